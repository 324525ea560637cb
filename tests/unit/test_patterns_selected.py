"""Published masks that choose at run time, against their papers' definitions in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import maskc as mc
from maskc import driver
from maskc.reference.attention import attention

FOLDER = Path(__file__).parents[2] / "patterns"
SIZES = [(1, 1), (17, 17), (48, 48), (5, 40)]
HEADS, HEADS_KV, DIM = 4, 2, 16

Rows = list[list[bool]]


def integers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(-3, 4, shape).astype(np.float32)


def first_best(candidates: list[int], score: Callable[[int], float], count: int) -> set[int]:
    """The best, one after another; the first of equals."""
    left, taken = list(candidates), set()
    while left and len(taken) < count:
        top = max(left, key=lambda item: (score(item), -item))
        taken.add(top)
        left.remove(top)
    return taken


# ------------------------------------------------------------------ definitions
#
# Each gives, for a head h, query at position p among n keys, the set of keys.


def dsa(x, h, q, p, n):
    def score(k):
        return sum(
            float(x["index_w"][0, j, q])
            * max(0.0, float(x["index_q"][0, j, q] @ x["index_k"][0, k]))
            for j in range(x["index_q"].shape[1])
        )

    return first_best(list(range(p + 1)), score, 6)


def topk_attention(x, h, q, p, n):
    key = x["k"][0, h // 2]
    return first_best(list(range(p + 1)), lambda k: float(x["q"][0, h, q] @ key[k]), 5)


def blocks_of(chosen: set[int], size: int, p: int) -> set[int]:
    return {k for k in range(p + 1) if k // size in chosen}


def moba(x, h, q, p, n):
    key, own = x["k"][0, h // 2], p // 4

    def score(block):
        return float(x["q"][0, h, q] @ key[4 * block : 4 * block + 4].mean(axis=0))

    return blocks_of({own} | first_best(list(range(own)), score, 2), 4, p)


def landmark_selection(x, h, q, p, n):
    scores, own = x["scores"], p // 4
    best = first_best(list(range(own)), lambda block: scores[0, h, q, block], 2)
    return blocks_of({own} | best, 4, p)


def near(p):
    """Two sinks and the last five."""
    return {k for k in range(p + 1) if k < 2 or p - k < 5}


def adaptive_content(x, h, q, p, n):
    key, far = x["k"][0, h // 2], {k // 4 for k in range(p + 1) if k not in near(p)}

    def score(block):
        return float(x["q"][0, h, q] @ key[4 * block : 4 * block + 4].mean(axis=0))

    return near(p) | blocks_of(first_best(sorted(far), score, 2), 4, p)


def adaptive_learned(x, h, q, p, n):
    """Queries of a block open the same blocks; one that nobody of them needs is no candidate."""
    rows = range(q // 3 * 3, min(q // 3 * 3 + 3, x["q"].shape[2]))
    places = [row + p - q for row in rows]
    far = {k // 4 for place in places for k in range(place + 1) if k not in near(place)}
    best = first_best(sorted(far), lambda block: x["scores"][0, h, q // 3, block], 2)
    return near(p) | blocks_of(best, 4, p)


def nsa_selected(x, h, q, p, n):
    scores, own = x["scores"], p // 4
    fixed = {0} | {block for block in (own - 1, own) if block >= 0}
    group = [g for g in range(HEADS) if g // 2 == h // 2]
    rest = [block for block in range(own + 1) if block not in fixed]
    best = first_best(rest, lambda block: math.fsum(scores[0, g, q, block] for g in group), 2)
    return blocks_of(fixed | best, 4, p)


def splash_attention(x, h, q, p, n):
    """The keys it sees; their weights are below."""
    past = sorted(range(p + 1), key=lambda k: (-float(x["q"][0, h, q] @ x["k"][0, h // 2, k]), k))
    return set(past[:5])


CASES = {
    "adaptive_local_global_content": (
        adaptive_content,
        {"n_sinks": 2, "window": 5, "block": 4, "top": 2},
        "qk",
    ),
    "adaptive_local_global_learned": (
        adaptive_learned,
        {"n_sinks": 2, "window": 5, "block": 4, "q_block": 3, "top": 2},
        "gate",
    ),
    "splash_attention": (splash_attention, {"top": 5}, "qk"),
    "dsa": (dsa, {"top": 6}, "indexer"),
    "topk_attention": (topk_attention, {"top": 5}, "qk"),
    "moba": (moba, {"block": 4, "top": 3}, "qk"),
    "landmark_selection": (landmark_selection, {"block": 4, "top": 2}, "given"),
    "nsa_selected": (nsa_selected, {"block": 4, "top": 5}, "given"),
}


def ranking(rng: np.random.Generator, kind: str, n_q: int, n_kv: int) -> dict[str, np.ndarray]:
    if kind == "indexer":
        return {
            "index_q": integers(rng, 1, 3, n_q, 8), "index_k": integers(rng, 1, n_kv, 8),
            "index_w": integers(rng, 1, 3, n_q),
        }  # fmt: skip
    if kind == "given":
        return {"scores": integers(rng, 1, HEADS, n_q, -(-n_kv // 4))}
    if kind == "gate":
        return {"scores": integers(rng, 1, HEADS, -(-n_q // 3), -(-n_kv // 4))}
    return {}


@pytest.mark.parametrize("name", CASES)
def test_the_mask_and_its_kernel_are_the_definition(name: str) -> None:
    keys_of, parameters, kind = CASES[name]
    mask = mc.load(FOLDER / f"{name}.py")[name](**parameters)
    attn = mask.compile(DIM, n_heads=HEADS, dtype="float32", target="cpu")
    rng = np.random.default_rng(sum(map(ord, name)))
    for n_q, n_kv in SIZES:
        q, k, v = (
            integers(rng, 1, heads, n, DIM)
            for heads, n in ((HEADS, n_q), (HEADS_KV, n_kv), (HEADS_KV, n_kv))
        )
        more = ranking(rng, kind, n_q, n_kv)
        tensors = {"q": q, "k": k, **more}
        expected = np.zeros((HEADS, n_q, n_kv), bool)
        for h, row in np.ndindex(HEADS, n_q):
            chosen = keys_of(tensors, h, row, row + n_kv - n_q, n_kv)
            expected[h, row, sorted(chosen)] = True
        asked = more if "scores" in more else tensors
        dense_mask = mask.dense(n_q, n_kv, n_heads=HEADS, heads_kv=HEADS_KV, **asked)
        assert (dense_mask.reshape(-1, n_q, n_kv) == expected).all(), (n_q, n_kv)
        out = attn(q, k, v, **more)
        assert np.abs(out - attention(q, k, v, expected)[0]).max() < 1e-5


def test_every_such_pattern_has_a_case() -> None:
    made = {name: p() for file in FOLDER.glob("*.py") for name, p in mc.load(file).items()}
    assert {name for name, mask in made.items() if driver.selects(mask)} == set(CASES)


# ------------------------------------------------------------------ weights of SplashAttention


def entmax_weights(scores: list[float], alpha: float) -> list[float]:
    """By bisection: the threshold at which max(0, (alpha - 1) s - tau) ** (1 / (alpha - 1)) sum to
    one."""
    scaled = [(alpha - 1) * s for s in scores]
    low, high = max(scaled) - 1, max(scaled)
    for _ in range(100):
        tau = (low + high) / 2
        total = math.fsum(max(0.0, s - tau) ** (1 / (alpha - 1)) for s in scaled)
        low, high = (tau, high) if total > 1 else (low, tau)
    return [max(0.0, s - low) ** (1 / (alpha - 1)) for s in scaled]


def splash_rows(q: np.ndarray, k: np.ndarray, v: np.ndarray, top: int, alpha: float) -> np.ndarray:
    """The output, a query at a time."""
    n_q, n_kv = q.shape[2], k.shape[2]
    out = np.zeros(q.shape)
    for h, row in np.ndindex(HEADS, n_q):
        p, key = row + n_kv - n_q, k[0, h // 2].astype(float)
        ranked = sorted(range(p + 1), key=lambda i: (-(q[0, h, row] @ k[0, h // 2, i]), i))[:top]
        scores = [float(q[0, h, row].astype(float) @ key[i]) / math.sqrt(DIM) for i in ranked]
        for weight, i in zip(entmax_weights(scores, alpha), ranked, strict=True):
            out[0, h, row] += weight * v[0, h // 2, i]
    return out


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
def test_splash_attention_with_its_weights(alpha: float) -> None:
    mask = mc.load(FOLDER / "splash_attention.py")["splash_attention"](top=5)
    attn = mask.compile(DIM, n_heads=HEADS, dtype="float32", target="cpu")
    rng = np.random.default_rng(5)
    for n_q, n_kv in SIZES:
        q, k, v = (integers(rng, 1, h, n, DIM) for h, n in ((HEADS, n_q), (HEADS_KV, n_kv),
                                                             (HEADS_KV, n_kv)))  # fmt: skip
        out = attn(q, k, v, normalizer="entmax", alpha=alpha)
        assert np.abs(out - splash_rows(q, k, v, 5, alpha)).max() < 2e-5, (n_q, n_kv)


def test_enough_keys_are_as_good_as_all() -> None:
    """Entmax itself gives no more of them weight."""
    make = mc.load(FOLDER / "splash_attention.py")["splash_attention"]
    rng = np.random.default_rng(2)
    q, k, v = (3 * rng.standard_normal((1, 2, 60, DIM), dtype=np.float32) for _ in range(3))
    few, every = (mask.compile(DIM, dtype="float32", target="cpu") for mask in
                  (make(top=12), mc.causal()))  # fmt: skip
    options = {"normalizer": "entmax", "alpha": 1.5}
    assert np.abs(few(q, k, v, **options) - every(q, k, v, **options)).max() < 1e-5
