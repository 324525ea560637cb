"""Every kind of score_mod and mask_mod that PyTorch's own tests of FlexAttention run, written anew.

Each is compared with its dense definition in float64, gradients of q, k, v and of what is learned
included. docs/porting.md counts them.
"""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as flex

import maskc as mc

B, H, N, D = 2, 4, 36, 16
SIDE = 6
GENERATOR = torch.Generator().manual_seed(0)
INFINITE = float("inf")


def random(*shape: int, learned: bool = False) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR).requires_grad_(learned)


def integers(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=GENERATOR)


# ------------------------------------------------------------------ what is compared


def scores_of(score_mod: Callable[..., Any], scores: torch.Tensor) -> torch.Tensor:
    """The score_mod of all pairs, as FlexAttention means it: of scalars, under vmap."""
    made = score_mod
    for place in (4, 3, 2, 1):
        made = torch.vmap(made, in_dims=(0, *(0 if n == place else None for n in range(1, 5))))
    return made(scores, *(torch.arange(size) for size in scores.shape))


def definition(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, score_mod: Any, mask_mod: Any
) -> torch.Tensor:
    """Dense attention in float64; a row without a weight is 0."""
    q, k, v = q.double(), *(x.double().repeat_interleave(H // x.shape[1], 1) for x in (k, v))
    logits = q @ k.mT / D**0.5
    if score_mod is not None:
        logits = scores_of(score_mod, logits)
    if mask_mod is not None:
        kept = flex.create_mask(mask_mod, B, H, q.shape[2], k.shape[2], device="cpu")
        logits = logits.masked_fill(~kept, -INFINITE)
    empty = torch.isneginf(logits).all(-1, keepdim=True)
    return torch.softmax(logits.masked_fill(empty, 0), -1).masked_fill(empty, 0) @ v


def compare(
    score_mod: Any = None, mask_mod: Any = None, learned: tuple[torch.Tensor, ...] = (),
    n_q: int = N, heads_kv: int = H,
) -> None:  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    shapes = ((H, n_q), (heads_kv, N), (heads_kv, N))
    inputs = [torch.randn(B, h, n, D, generator=generator, requires_grad=True) for h, n in shapes]
    block_mask = None
    if mask_mod is not None:
        block_mask = flex.create_block_mask(mask_mod, B, H, n_q, N, device="cpu")
    out = mc.flex_attention(
        *inputs, score_mod=score_mod, block_mask=block_mask, enable_gqa=heads_kv < H
    )
    wanted = definition(*inputs, score_mod, mask_mod)
    dout = torch.randn(wanted.shape, generator=generator)
    given = (*inputs, *learned)
    for one, two in zip(
        (out, *torch.autograd.grad(out, given, dout)),
        (wanted, *torch.autograd.grad(wanted, given, dout.double())), strict=True,
    ):  # fmt: skip
        bound = 5e-5 * max(1.0, two.abs().max().item())
        torch.testing.assert_close(one.double(), two.double(), atol=bound, rtol=0)


# ------------------------------------------------------------------ score_mods

SLOPES = torch.exp2(-2.0 * torch.arange(1, H + 1))
BY_HEAD, BY_BATCH, BY_KEY, BY_QUERY = random(H), random(B), random(N), random(N)
BIAS, RELATIVE = random(B, H, N, N), random(2 * N)
LAYERS, PICKED = random(4, B, H, N), torch.tensor(0)
DOCUMENT = torch.arange(N) // 10
LENGTHS, PREFIXES = torch.tensor([N, 21]), torch.tensor([4, 15])
HALVES = torch.arange(N) < N // 2
STARTS = torch.tensor([0, 10, 20, 30])
SCALE, FACTORS = torch.tensor(1.234), random(B, 3)
TABLE_OF_TABLES = integers(N, N)
PAGES = torch.tensor([[3, 0, 2, 1], [1, 3, 0, 2]])
"""The page in memory of each page of a sequence."""
LOGICAL = torch.argsort(PAGES, 1)
PAGE = N // 4


def hides(condition: Callable[..., Any]) -> Callable[..., Any]:
    """The score_mod that leaves the pairs without a condition no weight."""
    return lambda score, b, h, q, k: torch.where(condition(b, h, q, k), score, -INFINITE)


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def neighbours(b: Any, h: Any, q: Any, k: Any) -> Any:
    rows, columns = q // SIDE - k // SIDE, q % SIDE - k % SIDE
    return (rows.abs() <= 1) & (columns.abs() <= 2)


def paged(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    """Causal attention to keys whose pages lie in another order."""
    logical = LOGICAL[b, k // PAGE] * PAGE + k % PAGE
    return torch.where(logical >= 0, torch.where(q >= logical, score, -INFINITE), -INFINITE)


def composed(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    capped = 3 * torch.tanh(score / 3)
    return hides(causal)(capped, b, h, q, k) + BY_HEAD[h] * (k - q)


def branches(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    near = torch.where(q - k < 4, score * 2, torch.where(q - k < 9, score, score / 2))
    return torch.where(k > q, -INFINITE, near)


def clamped_prefix(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    same = DOCUMENT[q] == DOCUMENT[k]
    local = k - STARTS[DOCUMENT[k].clamp(max=3)]
    return torch.where(same & ((q >= k) | (local < 3)), score, -INFINITE)


SCORE_MODS: dict[str, Callable[..., Any]] = {
    "identity": lambda s, b, h, q, k: s,
    "causal": hides(causal),
    "inverse causal": hides(lambda b, h, q, k: q <= k),
    "relative bias": lambda s, b, h, q, k: s + (q - k),
    "relative causal": lambda s, b, h, q, k: torch.where(q >= k, s + (q - k) * 0.1, -INFINITE),
    "alibi": lambda s, b, h, q, k: s + (k - q) * SLOPES[h],
    "computed alibi": lambda s, b, h, q, k: s + (k - q) * torch.exp2(-(h + 1) * 8.0 / H),
    "times two": lambda s, b, h, q, k: s * 2,
    "squared": lambda s, b, h, q, k: s * s,
    "head offset": lambda s, b, h, q, k: s + BY_HEAD[h],
    "trigonometry": lambda s, b, h, q, k: torch.sin(torch.cos(s)) + torch.tan(b),
    "trigonometry in steps": lambda s, b, h, q, k: torch.cos(s) * torch.sin(s) + torch.tan(b),
    "soft-cap": lambda s, b, h, q, k: 5.0 * torch.tanh(s / 5.0),
    "silu": lambda s, b, h, q, k: torch.nn.functional.silu(s),
    "relu": lambda s, b, h, q, k: torch.relu(s),
    "exponential": lambda s, b, h, q, k: torch.exp(s * 0.5),
    "powers": lambda s, b, h, q, k: s.pow(3) / 8 + s**2,
    "skip odd keys": hides(lambda b, h, q, k: k % 2 == 0),
    "captured scale": lambda s, b, h, q, k: s * SCALE,
    "captured number": lambda s, b, h, q, k: s + N * 0.01,
    "captured reduction": lambda s, b, h, q, k: s + FACTORS.sum(dim=-1)[b],
    "all dimensions": lambda s, b, h, q, k: s + BY_HEAD[h] + BY_BATCH[b] + BY_KEY[k] + BY_QUERY[q],
    "two captured": lambda s, b, h, q, k: s * BY_HEAD[h] + RELATIVE[q - k + N],
    "bias of pairs": lambda s, b, h, q, k: s + BIAS[0, 0][q, k],
    "bias by sequence": lambda s, b, h, q, k: s + BIAS[:, 0][b, q, k],
    "bias by all": lambda s, b, h, q, k: s + BIAS[b, h, q, k],
    "bias turned": lambda s, b, h, q, k: s + BIAS[b, h, k, q],
    "relative table": lambda s, b, h, q, k: s + RELATIVE[q - k + N],
    "index in steps": lambda s, b, h, q, k: s + BIAS[b][h][q][k],
    "index with a number in front": lambda s, b, h, q, k: s + LAYERS[0][b, h][q],
    "index with a captured number": lambda s, b, h, q, k: s + LAYERS[PICKED, b, h, q],
    "a table by a table": lambda s, b, h, q, k: s + BY_KEY[TABLE_OF_TABLES[k]],
    "the sequence's number": lambda s, b, h, q, k: s + b * q * 0.01,
    "documents": hides(lambda b, h, q, k: (DOCUMENT[q] == DOCUMENT[k]) & (q >= k)),
    "halves": hides(lambda b, h, q, k: HALVES[q] == HALVES[k]),
    "bidirectional prefix": hides(
        lambda b, h, q, k: ((q <= PREFIXES[b]) & (k <= PREFIXES[b])) | (q >= k)
    ),
    "prefix of documents": clamped_prefix,
    "padding": hides(lambda b, h, q, k: (k < LENGTHS[b]) & (q >= k)),
    "nested offsets": hides(
        lambda b, h, q, k: (
            (DOCUMENT[q] == DOCUMENT[k]) & (q - STARTS[DOCUMENT[q]] >= k - STARTS[DOCUMENT[k]])
        )
    ),
    "neighbours": hides(neighbours),
    "pages": paged,
    "composed": composed,
    "nested where": branches,
    "masked_fill": lambda s, b, h, q, k: s.masked_fill(q < k, -INFINITE),
    "added infinity": lambda s, b, h, q, k: s + torch.where(q >= k, 0.0, -INFINITE),
    "of the score": lambda s, b, h, q, k: torch.where(s > -1, s, -INFINITE),
    "bits": lambda s, b, h, q, k: torch.where(((q ^ k) & 3) != 0, s, s * 0.5),
    "shifts": lambda s, b, h, q, k: s + ((q >> 2) - (k << 1)) * 0.01,
    "floats of positions": lambda s, b, h, q, k: s - torch.log1p((q - k).abs().float()),
    "float positions": lambda s, b, h, q, k: s * (q.to(torch.float32) / N) + k.float() * 0.01,
}


@pytest.mark.filterwarnings("ignore::maskc.ScoreMaskWarning")
@pytest.mark.parametrize("name", SCORE_MODS)
def test_score_mods(name: str) -> None:
    compare(SCORE_MODS[name])


LEARNED: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "relative": (lambda s, b, h, q, k, x: s + x[(q - k).abs()], (N,)),
    "absolute": (lambda s, b, h, q, k, x: s + x[q, k], (N, N)),
    "by head": (lambda s, b, h, q, k, x: s + x[h, q, k], (H, N, N)),
    "by sequence and head": (lambda s, b, h, q, k, x: s + x[b, h, q, k], (B, H, N, N)),
    "factor": (lambda s, b, h, q, k, x: s * x[q], (N,)),
    "window": (lambda s, b, h, q, k, x: s + x[(q - k + 4).clamp(0, 8)], (9,)),
    "keys": (lambda s, b, h, q, k, x: s + x[k], (N,)),
    "in steps": (lambda s, b, h, q, k, x: s + x[b][h][0, q], (B, H, 4, N)),
    "indirect": (lambda s, b, h, q, k, x: s + x[TABLE_OF_TABLES[q]], (N,)),
    "symmetric": (lambda s, b, h, q, k, x: s + x[q, k] * 2 + x[k, q], (N, N)),
    "alibi": (lambda s, b, h, q, k, x: s - x[h] * (q - k).abs(), (H,)),
    "gate": (lambda s, b, h, q, k, x: s * torch.sigmoid(x[h]), (H,)),
    "beside a mask": (
        lambda s, b, h, q, k, x: torch.where(DOCUMENT[q] == DOCUMENT[k], s + x[h, k], -INFINITE),
        (H, N),
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::maskc.ScoreMaskWarning")
@pytest.mark.parametrize("name", LEARNED)
def test_learned_score_mods(name: str) -> None:
    function, shape = LEARNED[name]
    table = random(*shape, learned=True)
    compare(lambda s, b, h, q, k: function(s, b, h, q, k, table), None, (table,))


# ------------------------------------------------------------------ mask_mods

KINDS = torch.tensor([True, False, True, False])
OFFSET = torch.tensor(7)
CHANCES = torch.rand(N, generator=GENERATOR)


def by_kind(b: Any, h: Any, q: Any, k: Any) -> Any:
    """Causal heads, and heads that see everything."""
    return torch.where(KINDS[h], q >= k, torch.ones_like(q, dtype=torch.bool))


MASK_MODS: dict[str, Callable[..., Any]] = {
    "nothing is hidden": flex.noop_mask,
    "causal": causal,
    "causal from an offset": lambda b, h, q, k: q + OFFSET >= k,
    "causal from a number": lambda b, h, q, k: q + N // 4 >= k,
    "window": lambda b, h, q, k: (q >= k) & (q - k <= 5),
    "both": flex.and_masks(causal, lambda b, h, q, k: q - k <= 5),
    "either": flex.or_masks(causal, lambda b, h, q, k: k < 6),
    "documents": lambda b, h, q, k: (DOCUMENT[q] == DOCUMENT[k]) & (q >= k),
    "prefix": lambda b, h, q, k: (k < PREFIXES[b]) | (q >= k),
    "padding": lambda b, h, q, k: (k < LENGTHS[b]) & (q < LENGTHS[b]),
    "neighbours": neighbours,
    "by head": lambda b, h, q, k: (KINDS[h] & (q >= k)) | ~KINDS[h],
    "by the head's number": lambda b, h, q, k: (q >= k) | (h % 2 == 1),
    "chosen by head": by_kind,
    "offsets": lambda b, h, q, k: (
        (DOCUMENT[q] == DOCUMENT[k]) & (q - STARTS[DOCUMENT[q]] >= k - STARTS[DOCUMENT[k]])
    ),
    "captured booleans": lambda b, h, q, k: HALVES[k] | (q == k),
    "a table by a table": lambda b, h, q, k: TABLE_OF_TABLES[TABLE_OF_TABLES[k]] <= q,
    "blocks": lambda b, h, q, k: q // 9 == k // 9,
    "dilated": lambda b, h, q, k: (q - k) % 3 == 0,
    "nested where": lambda b, h, q, k: torch.where(
        q < 9, k < 9, torch.where(q < 20, q >= k, (q - k).abs() < 4)
    ),
    "rows without keys": lambda b, h, q, k: (q >= 12) & (q >= k),
    "nothing": lambda b, h, q, k: q < 0,
    "minimum": lambda b, h, q, k: torch.minimum(q, k) < 3,
    "bits of a number": lambda b, h, q, k: (q & 3) == (k & 3),
    "any of a row": lambda b, h, q, k: (TABLE_OF_TABLES[:4] == k).any() | (q == k),
    "Morton order": lambda b, h, q, k: ((q | (q << 2)) & 51) >= ((k | (k << 2)) & 51),
}
EVALUATED_MODS: dict[str, Callable[..., Any]] = {
    "every other sequence": lambda b, h, q, k: (q >= k) & (b % 2 == 0),
    "bits of two": lambda b, h, q, k: ((q ^ k) & (k | 5)) % 3 != 0,
    "real numbers": lambda b, h, q, k: CHANCES[q] * 1.2 >= CHANCES[k],
    "a circle": lambda b, h, q, k: (
        torch.sqrt(((q // SIDE - k // SIDE) ** 2 + (q % SIDE - k % SIDE) ** 2).float()) < 2.5
    ),
    "a product": lambda b, h, q, k: (q * k) % 4 != 1,
}


@pytest.mark.parametrize("name", MASK_MODS)
def test_mask_mods(name: str) -> None:
    compare(None, MASK_MODS[name])


@pytest.mark.parametrize("name", EVALUATED_MODS)
def test_mask_mods_that_are_evaluated(name: str) -> None:
    with pytest.warns(mc.EvaluatedMaskWarning):
        compare(None, EVALUATED_MODS[name])


@pytest.mark.filterwarnings("ignore::maskc.ScoreMaskWarning")
@pytest.mark.parametrize("heads_kv", [1, 2])
def test_both_with_grouped_heads_and_fewer_queries(heads_kv: int) -> None:
    for name in ("soft-cap", "alibi", "bias of pairs", "documents", "pages"):
        compare(SCORE_MODS[name], MASK_MODS["prefix"], n_q=20, heads_kv=heads_kv)


# ------------------------------------------------------------------ scores that are evaluated

STEPS = torch.tensor([1, 2, 4, 8, 16])
CURVE = random(N, N, learned=True)
BYTES = integers(256, N).to(torch.uint8)
EVALUATED_SCORES: dict[str, Callable[..., Any]] = {
    "buckets of distances": lambda s, b, h, q, k: (
        s + BY_HEAD[h] * BY_KEY[torch.bucketize((q - k).abs(), STEPS)]
    ),
    "a product of rows": lambda s, b, h, q, k: s + (CURVE.detach()[q] * BIAS[b, h, k]).sum(),
    "an arc of pairs": lambda s, b, h, q, k: s * torch.atan(BIAS[b, h, q, k]),
    "powers": lambda s, b, h, q, k: s + (0.1 + q * 0.01) ** (k * 0.01),
    "steps of a bias": lambda s, b, h, q, k: s + torch.round(BIAS[b, h, q, k] + q),
    "pairs hidden by buckets": lambda s, b, h, q, k: torch.where(
        torch.bucketize((q - k).abs(), STEPS) < 3, s, -INFINITE
    ),
    "choices by buckets": lambda s, b, h, q, k: torch.where(
        torch.bucketize(q + k, STEPS) % 2 == 0, s, s * 2
    ),
    "beside what is learned": lambda s, b, h, q, k: s + CURVE[q, k] + torch.atan((q - k) * 1.0),
    "bytes that wrap": lambda s, b, h, q, k: (
        s + 0.01 * (BYTES[q] - BYTES[k]) + 0.01 * (torch.where(q > k, BYTES[q], BYTES[k]) - 3)
    ),
    "bytes that keep their dtype": lambda s, b, h, q, k: (
        s
        + 0.01 * (torch.maximum(BYTES[q] % 7, BYTES[k] // 2) - BYTES[k])
        + torch.bucketize(BYTES[q].long() * 2 + BYTES[k], STEPS * 20)
    ),
    "conditions of bytes": lambda s, b, h, q, k: torch.where(BYTES[q] - BYTES[k] < 100, s, s * 2),
}
OF_ONE_INDEX: dict[str, Callable[..., Any]] = {
    "a reduction of a row": lambda s, b, h, q, k: s + BIAS[0, 0, q].sum(),
    "steps of queries": lambda s, b, h, q, k: s * torch.round(BY_QUERY[q]),
    "squares and casts of bytes": lambda s, b, h, q, k: (
        s + 0.001 * BYTES[q] ** 2 + 0.01 * (BYTES[k] < 300) * (q * 100).to(torch.uint8)
    ),
    "a head's angle": lambda s, b, h, q, k: s + torch.atan(1.0 * h),
}


@pytest.mark.filterwarnings("ignore::maskc.ScoreMaskWarning")
@pytest.mark.parametrize("name", EVALUATED_SCORES)
def test_scores_that_are_evaluated(name: str) -> None:
    learned = (CURVE,) if name == "beside what is learned" else ()
    with pytest.warns(mc.EvaluatedScoreWarning, match="test_flex_mods"):
        compare(EVALUATED_SCORES[name], None, learned)


@pytest.mark.parametrize("name", OF_ONE_INDEX)
def test_scores_of_one_index_are_evaluated_without_a_word(name: str) -> None:
    compare(OF_ONE_INDEX[name])


@pytest.mark.filterwarnings("ignore::maskc.EvaluatedScoreWarning")
def test_evaluated_scores_follow_lengths_and_writes() -> None:
    """A table is made for the lengths of a call, and anew when its sources are written into."""
    weights, counts = random(N), integers(9, N)
    x = torch.randn(B, H, N, D)
    for mod, sources in (
        (lambda s, b, h, q, k: s + torch.atan(weights[q] - weights[k]), weights),
        (lambda s, b, h, q, k: s + torch.atan((counts[q] - counts[k]) * 1.0), counts),
        (lambda s, b, h, q, k: s + (weights[q] * weights[k]).atan(), weights),
    ):
        score = mc.from_score_mod(mod)
        for n in (N, 20, N):
            short = x[:, :, :n]
            out = mc.attention(short, short, short, mc.full(), score=score)
            wanted = definition(short, short, short, mod, None)
            torch.testing.assert_close(out.double(), wanted, atol=5e-6, rtol=0)
            sources += sources.flip(0) * 2 + 1


def test_an_evaluated_score_stays_in_its_process() -> None:
    mod = EVALUATED_SCORES["buckets of distances"]
    with pytest.raises(mc.MaskcError, match="MC129"):
        mc.from_score_mod(mod, exact=True)
    with pytest.warns(mc.EvaluatedScoreWarning):
        score = mc.from_score_mod(mod)
    with pytest.raises(mc.MaskcError, match="MC650"):
        pickle.dumps(score)
    x = torch.randn(B, H, N, D)
    one = mc.nn.Attention(mc.causal(), score=score)
    torch.testing.assert_close(copy.deepcopy(one)(x, x, x), one(x, x, x))
    with pytest.warns(UserWarning, match="float64"):
        exactly = mc.attention(*(x.double(),) * 3, mc.causal(), score=score)
    torch.testing.assert_close(exactly.float(), one(x, x, x), atol=5e-6, rtol=0)


# ------------------------------------------------------------------ what is refused

REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "half precision": (lambda s, b, h, q, k: s.to(torch.bfloat16) + q, "MC129"),
    "a decision": (lambda s, b, h, q, k: s if q >= k else s * 2, "MC129"),
    "a step of scores": (lambda s, b, h, q, k: torch.round(s), "MC129"),
    "learned and beyond formulas": (lambda s, b, h, q, k: s + torch.atan(CURVE[q, k]), "MC129"),
    "a quotient of scores": (lambda s, b, h, q, k: 1 / s, "MC130"),
    "a product with infinity": (lambda s, b, h, q, k: s + (q < k) * -INFINITE, "MC131"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_why(name: str) -> None:
    score_mod, code = REFUSED[name]
    x = torch.randn(B, H, N, D)
    with pytest.raises(mc.MaskcError, match=f"{code}.*test_flex_mods"):
        mc.flex_attention(x, x, x, score_mod)


def test_the_documentation_counts_them() -> None:
    text = (Path(__file__).parents[2] / "docs/porting.md").read_text()
    for row, right, refused in (
        ("score_mods", len(SCORE_MODS), len(REFUSED)),
        ("score_mods that are evaluated", len(EVALUATED_SCORES) + len(OF_ONE_INDEX), 0),
        ("score_mods with learned tensors", len(LEARNED), 0),
        ("mask_mods that are traced", len(MASK_MODS), 0),
        ("mask_mods that are evaluated", len(EVALUATED_MODS), 0),
    ):
        assert re.search(rf"^\| {row} \| {right} \| {refused} \| 0 \|$", text, re.M), row
