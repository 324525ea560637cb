"""Code of two ranks for tests of calls that end early, and of data that change after planning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import maskc as mc
from maskc.core.errors import MaskcError
from maskc.distributed import passes
from tests.support.exact_attention import exact

N = 96
SMALL: dict[str, Any] = {"heads": (2, 1, 16), "dtype": "float32"}
TABLED = mc.score(lambda s, q, k, h: s * mc.table("t")[h])


def tensors(n: int = N) -> list[torch.Tensor]:
    """q, k and v of the whole sequence, the same on all ranks."""
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(1, heads, n, 16, generator=draw) for heads in (2, 1, 1)]


def calls_that_end_early(rank: int, size: int) -> list[str]:
    """One rank's call raises: all ranks raise, and the next call is right."""
    made = mc.distributed.plan(mc.causal(), N, size, layout="contiguous", **SMALL)
    by_squares = mc.distributed.plan(
        mc.causal(), N, size, layout="contiguous", block=16, **SMALL
    )  # fmt: skip
    q, k, v = tensors()
    own = [made.shard(x, 2).requires_grad_() for x in (q, k, v)]
    last, wrong = rank == size - 1, []

    def good(then: str) -> None:
        leaves = [x.detach().requires_grad_() for x in own]
        out = mc.distributed.attention(*leaves, made)
        out.sum().backward()
        wanted = made.shard(exact(q, k, v, np.tril(np.ones((N, N), bool)))[0].float(), 2)
        if not torch.allclose(out, wanted, atol=1e-5):
            wrong.append(f"a good call after {then}")
        grad = leaves[1].grad
        if grad is None or not torch.isfinite(grad).all():
            wrong.append(f"gradients after {then}")

    good("nothing")
    sinks = torch.zeros(3 if last else 2)
    unknown = {"bias": torch.ones(2)} if last else {}
    calls: dict[str, tuple[str, Callable[[], Any]]] = {
        "sinks of other heads": ("MC703", lambda: mc.distributed.attention(
            *own, made, sink_logits=sinks)),
        "an unknown name": ("MC302", lambda: mc.distributed.attention(*own, made, **unknown)),
        "no tensor": ("MC411", lambda: mc.distributed.attention(
            None if last else own[0], *own[1:], made)),
        "a shard of other tokens": ("MC704", lambda: made.unshard(
            own[0][:, :, 1:] if last else own[0], 2)),
        "tokens of another dtype": ("MC703", lambda: made.unshard(
            own[0].double() if last else own[0], 2)),
        "tokens of another batch": ("MC703", lambda: made.roll(
            own[0].repeat(1 + last, 1, 1, 1), -1, 2)),
        "no group": ("MC706", lambda: mc.distributed.attention(*own, made, group="cp")),
        "other shapes": ("MC703", lambda: mc.distributed.attention(
            own[0].repeat(1, 2, 1, 1) if last else own[0], *own[1:], made)),
    }  # fmt: skip
    calls |= {
        f"another {name}": ("MC703", lambda own_options=own_options: mc.distributed.attention(
            *own, by_squares, **own_options))
        for name, own_options in {
            "softcap": {"softcap": 3.0 + last},
            "scale": {"scale": 0.5 + last},
            "sink": {"sink_logits": torch.zeros(2) + last},
            "table": {"score": TABLED, "t": torch.ones(2) + last},
            "seed": {"dropout_p": 0.5, "dropout_seed": int(last)},
            "seed in a tensor": {"dropout_p": 0.5, "dropout_seed": torch.tensor([int(last)])},
        }.items()
    }  # fmt: skip
    for name, (code, call) in calls.items():
        told = _told(call)
        wanted = code if last or code in ("MC703", "MC704", "MC706") else "MC709"
        if told[:5] != wanted:
            wrong.append(f"{name}: {told} in place of {wanted}")
        good(name)
    launch = passes.Backward.launch

    def failing(*_: Any) -> None:
        raise MemoryError("no room")

    out = mc.distributed.attention(*own, made)
    passes.Backward.launch = failing if last else launch  # type: ignore[method-assign]
    told = _told(lambda: out.sum().backward())
    passes.Backward.launch = launch  # type: ignore[method-assign]
    if told[:5] != ("no ro" if last else "MC709"):
        wrong.append(f"a backward pass: {told}")
    good("a backward pass")
    return wrong


def _told(call: Callable[[], Any]) -> str:
    try:
        call()
    except (MaskcError, MemoryError) as error:
        return str(error)
    return "nothing"


def data_of_a_moment(rank: int, size: int) -> list[str]:
    """Writing into arrays after `given` changes nothing. Captured tensors are read again; the
    backward pass uses the content of the forward pass."""
    old, new = np.repeat([0, 1, 2], [40, 40, 16]), np.repeat([0, 1], [10, 86])
    q, k, v = tensors()
    wrong = []

    def keep(ids: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.tril(np.ones((N, N), bool)) & (ids[:, None] == ids[None])
        return found

    def check(name: str, plan: Any, ids: np.ndarray, doc: torch.Tensor | None = None) -> None:
        leaves = [plan.shard(x, 2).requires_grad_() for x in (q, k, v)]
        out = mc.distributed.attention(*leaves, plan)
        theirs = [x.clone().requires_grad_() for x in (q, k, v)]
        wanted = exact(*theirs, keep(ids))[0].float()
        if doc is not None:
            doc.zero_()
        out.sin().sum().backward()
        wanted.sin().sum().backward()
        if not torch.allclose(out, plan.shard(wanted, 2), atol=1e-5):
            wrong.append(name)
        for x, y in zip(leaves, theirs, strict=True):
            if not torch.allclose(x.grad, plan.shard(y.grad, 2), atol=1e-5):
                wrong.append(f"{name}: a gradient")

    mask = mc.causal() & mc.documents("d")
    for make in (torch.tensor, np.array):
        ids = make(old)
        for way in ("given", "plan"):
            ids[:] = make(old)
            made = mc.distributed.plan(mask, N, size, data={"d": ids} if way == "plan" else None,
                                       **SMALL)  # fmt: skip
            made = made.given(d=ids) if way == "given" else made
            ids[:] = make(new)
            check(f"{way} {make.__name__}", made, old)
    doc = torch.tensor(old).int()
    mask = mc.from_mask_mod(lambda b, h, q, k: (q >= k) & (doc[q] == doc[k]))
    made = mc.distributed.plan(mask, N, size, **SMALL)
    check("captured", made, old)
    doc.copy_(torch.tensor(new))
    check("captured, then written", made, new, doc)
    return wrong


def index_tensors(rank: int, size: int) -> list[str]:
    """An indexer's selection over ranks selects as one process does."""
    q, k, v = tensors(64)
    draw = torch.Generator().manual_seed(2)
    index = {"index_q": torch.randn(1, 3, 64, 8, generator=draw),
             "index_k": torch.randn(1, 64, 8, generator=draw),
             "index_w": torch.randn(1, 3, 64, generator=draw)}  # fmt: skip
    mask = mc.topk(5, of=mc.causal(), score="indexer", share="all")
    made = mc.distributed.plan(mask, 64, size, layout="contiguous", **SMALL)
    theirs = [x.clone().requires_grad_() for x in (q, k, v)]
    wanted = mc.attention(*theirs, mask, **index)
    wanted.sin().sum().backward()
    own = {name: made.shard(x, 1 if name == "index_k" else 2) for name, x in index.items()}
    leaves = [made.shard(x, 2).requires_grad_() for x in (q, k, v)]
    out = mc.distributed.attention(*leaves, made, **own)
    out.sin().sum().backward()
    wrong = []
    if not torch.allclose(out, made.shard(wanted, 2), atol=1e-5):
        wrong.append("out")
    for x, y in zip(leaves, theirs, strict=True):
        if not torch.allclose(x.grad, made.shard(y.grad, 2), atol=1e-5):
            wrong.append("a gradient")
    return wrong


def captured_tables(rank: int, size: int) -> list[str]:
    """Each rank has its share of the gradient of a table that a formula captures."""
    q, k, v = tensors(24)
    table = torch.randn(2, 47, generator=torch.Generator().manual_seed(1))

    def trained(call: Callable[..., Any], given: list[torch.Tensor]) -> torch.Tensor:
        bias = table.clone().requires_grad_()
        score = mc.score(lambda s, q, k, h: s + bias[h, q - k + 23])
        call(*given, score=score).sin().sum().backward()
        assert bias.grad is not None, "no gradient"
        return bias.grad

    made = mc.distributed.plan(mc.causal(), 24, size, layout="contiguous", **SMALL)
    found = trained(
        lambda *x, **more: mc.distributed.attention(*x, made, **more),
        [made.shard(x, 2) for x in (q, k, v)],
    )
    torch.distributed.all_reduce(found)
    place = torch.arange(24)
    bias, q, k, v = (x.double().requires_grad_() for x in (table, q, k, v))
    scores = q @ k.mT / 4 + bias[:, place[:, None] - place + 23]
    weights = scores.masked_fill(place[:, None] < place, -torch.inf).softmax(-1)
    (weights @ v).sin().sum().backward()
    return [] if torch.allclose(found.double(), bias.grad, atol=1e-5) else ["a captured table"]


def layouts_of_others(rank: int, size: int) -> list[str]:
    """Tokens, and keys of cross attention, that something else placed; and ranks that disagree."""
    draw, wrong = np.random.default_rng(4), []
    order = draw.permutation(N)
    layout = [order[:40], order[40:]]
    keys = [np.r_[40:64, 8:24], np.r_[24:40, 0:8]]  # two chunks, the last one first
    whole = tensors()
    memory = [x[:, :, :64] for x in whole[1:]]
    there = np.arange(N)
    lists = torch.from_numpy(draw.integers(-1, N, (1, N, 9)))
    lists[..., 0] = torch.from_numpy(there)  # no row is empty
    causal, listed = there <= there[:, None], (lists.numpy()[..., None] == there).any(-2)
    for name, mask, given, keep, more in (
        ("self", mc.causal(), whole, causal, {}),
        ("cross", mc.full(), [whole[0], *memory], np.ones((N, 64), bool), {}),
        ("listed", mc.causal() & mc.key_lists("listed"), whole, causal & listed, {"listed": lists}),
    ):
        crosses = {"n_kv": 64, "key_layout": keys} if name == "cross" else {}
        made = mc.distributed.plan(mask, N, size, layout=layout, **crosses, **SMALL)
        sides = "qkk"
        theirs = [x.clone().requires_grad_() for x in given]
        wanted = exact(*theirs, keep)[0].float()
        wanted.sin().sum().backward()
        shards = [made.shard(x, 2, of=of) for x, of in zip(given, sides, strict=True)]
        leaves = [x.clone().requires_grad_() for x in shards]
        own_lists = {key: made.shard(x, -2) for key, x in more.items()}
        out = mc.distributed.attention(*leaves, made, **own_lists)
        out.sin().sum().backward()
        if not torch.allclose(made.unshard(out, 2), wanted, atol=1e-5):
            wrong.append(f"{name}: out")
        for x, y, of in zip(leaves, theirs, sides, strict=True):
            if not torch.allclose(made.unshard(x.grad, 2, of=of), y.grad, atol=1e-5):
                wrong.append(f"{name}: a gradient")
    held = torch.from_numpy(layout[rank])
    made = mc.distributed.plan(mc.causal(), N, size, layout=layout, **SMALL)
    if not torch.equal(made.position_ids(), held):
        wrong.append("positions")
    if not torch.equal(made.roll(held, dim=0), (held + 1) % N):
        wrong.append("labels")
    shards = [made.shard(x, 2) for x in whole]
    other = [layout[0][::-1], layout[1]] if rank else layout
    disagrees = mc.distributed.plan(mc.causal(), N, size, layout=other, **SMALL)
    told = _told(lambda: mc.distributed.attention(*shards, disagrees))
    if "MC703" not in told or "the plan" not in told:
        wrong.append(f"other slots: {told}")
    return wrong
