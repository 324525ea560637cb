"""Score formulas with what they read, and random ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

import maskc as mc
from maskc.reference.attention import attention, gradients
from maskc.reference.scores import ScoreOf

Made = tuple[mc.Score, dict[str, Any]]


def close(found: Any, right: np.ndarray, name: str = "", tolerance: float = 2e-5) -> None:
    """Within a relative tolerance of the largest number, wherever both are finite alike."""
    found = np.asarray(found, np.float64)
    same = found == right
    size = max(1.0, float(np.abs(np.where(np.isfinite(right), right, 0)).max(initial=0)))
    error = np.where(same, 0, found - np.where(same, 0, right))
    assert (np.abs(error) <= tolerance * size).all(), (name, np.abs(error).max(), size)


_OF_HEADS = {"sink_logits": "dsink", "alibi_slopes": "dalibi"}
"""Options with an entry for each head, and what the reference calls their gradients."""
_OF_BOTH = ("scale", "softcap", *_OF_HEADS)


def judged_passes(
    attn: Any, given: Sequence[Any], live: np.ndarray, *, score: mc.Score | None = None,
    data: Mapping[str, Any] | None = None, call: Mapping[str, Any] | None = None,
    dropout: np.ndarray | None = None, deterministic: bool = False,
    compare: Callable[[Any, np.ndarray, str], None] = close, **options: Any,
) -> tuple[Any, tuple[Any, ...]]:  # fmt: skip
    """(out, gradients) of a compiled mask, after a comparison with the reference in fp64.

    Args:
        given: q, k, v and dout, of NumPy or torch.
        live: the mask's pairs.
        score: the formula of the scores, and `data`, which it reads, as NumPy arrays and numbers.
        call: further options of the calls, which the reference does not have.
        dropout: what `call` drops, for the reference.
        compare: takes a result, what is right, and its name.
    """
    q, k, v, dout = given
    data = data or {}
    passed = {**{name: _like(q, x) for name, x in data.items()}, **(call or {}), **options}
    out, lse = attn(q, k, v, return_lse=True, **passed)
    results = attn.backward(q, k, v, out, lse, dout, deterministic=deterministic, **passed)
    wanted = {name: x for name, x in options.items() if name in _OF_BOTH}
    if "normalizer" in options:
        wanted["alpha"] = options.get("alpha", 1.5)
    made = None if score is None else ScoreOf(score.inputs, data, q.shape[2], k.shape[2])
    rest = {"score": made, "dropout": dropout, **wanted}
    arrays_given = [_on_host(x) for x in (q, k, v)]
    for name, x, right in zip(
        ("out", "lse"), (out, lse), attention(*arrays_given, live, **rest), strict=True
    ):
        compare(_on_host(x), right, name)
    exact = gradients(*arrays_given, live, _on_host(dout), **rest)
    heads = [gradient for name, gradient in _OF_HEADS.items() if name in options]
    own = [f"d {name}" for name in attn.trainable if isinstance(data.get(name), np.ndarray)]
    for name, gradient in zip(["dq", "dk", "dv", *heads, *own], results, strict=True):
        values = _on_host(gradient)
        compare(values, exact.get(name, 0 * values), name)
    return out, results


def _like(q: Any, x: Any) -> Any:
    """An array in the library of q; numbers as they are."""
    if isinstance(q, np.ndarray) or not isinstance(x, np.ndarray):
        return x
    import torch

    return torch.from_numpy(x)


def _on_host(x: Any) -> np.ndarray:
    return x if isinstance(x, np.ndarray) else x.float().numpy()


def arrays(tables: Mapping[str, str], n_q: int, n_kv: int, heads: int, batch: int,
           seed: int = 0) -> dict[str, np.ndarray]:  # fmt: skip
    """Random tables; a text of letters names the dimensions: b, h, q, k, r (relative), 8."""
    rng = np.random.default_rng(seed)
    sizes = {"b": batch, "h": heads, "q": n_q, "k": n_kv, "r": n_q + n_kv, "8": 8}
    return {
        name: rng.normal(size=tuple(sizes[letter] for letter in kinds)).astype(np.float32)
        for name, kinds in tables.items()
    }


def _made(function: Callable[..., object], **tables: str) -> Callable[[int, int, int, int], Made]:
    return lambda n_q, n_kv, heads, batch: (
        mc.score(function), arrays(tables, n_q, n_kv, heads, batch)
    )  # fmt: skip


FORMULAS: dict[str, Callable[[int, int, int, int], Made]] = {
    "soft-cap": _made(lambda s: 5 * np.tanh(s / 5)),
    "relative table": _made(lambda s, q, k, h: s + mc.table("bias")[h, q - k], bias="hr"),
    "buckets": _made(
        lambda s, q, k, h: s + mc.table("bias")[np.minimum(abs(q - k), 7), h], bias="8h"
    ),
    "bias": _made(lambda s, q, k, h, b: s + mc.table("bias")[b, h, q, k], bias="bhqk"),
    "gate": _made(
        lambda s, q, k: s * mc.table("gate")[k] + mc.table("other")[q] * np.exp(-abs(q - k) / 9),
        gate="k", other="q",
    ),
    "twice": _made(
        lambda s, q, k: s + mc.table("t")[q - k] * mc.table("t")[(q + k) % 8] / (1 + s * s), t="r"
    ),
    "pieces": _made(
        lambda s, q, k, h: np.where((s > 0) & (q - k > 3), s / 2, np.maximum(s, -1.5) + h)
    ),
    "floats to integers": _made(
        lambda s, q, k: s + mc.table("t")[np.log(1.0 + abs(q - k)).astype(int)], t="8"
    ),
    "waves": _made(
        lambda s, q, k: (
            mc.scores.gelu(s) * mc.scores.cos((q - k) / 5) + mc.scores.sin(s) - mc.scores.erf(s / 2)
        )
    ),
    "without s": _made(lambda s, q, k: mc.table("t")[q - k], t="r"),
    "hidden": _made(
        lambda s, q, k: np.where(
            (mc.table("t")[q, k] > 0) & (s > -0.5), s / 2 + mc.table("t")[q, k], -np.inf
        ),
        t="qk",
    ),
}  # fmt: skip


# ------------------------------------------------------------------ random formulas

_LEAVES = (
    lambda s, q, k, h, b: s, lambda s, q, k, h, b: s, lambda s, q, k, h, b: 0.25 * (q - k),
    lambda s, q, k, h, b: mc.table("r")[h, q - k], lambda s, q, k, h, b: mc.table("c")[k] + b,
    lambda s, q, k, h, b: 0.75, lambda s, q, k, h, b: mc.table("one")[min(abs(q - k), 7)],
)  # fmt: skip
TABLES = {"r": "hr", "c": "k", "one": "8"}

Function = Callable[..., Any]


def _binary(op: Callable[[Any, Any], Any], one: Function, two: Function) -> Function:
    return lambda s, q, k, h, b: op(one(s, q, k, h, b), two(s, q, k, h, b))


def _unary(op: Callable[[Any], Any], one: Function) -> Function:
    return lambda s, q, k, h, b: op(one(s, q, k, h, b))


def _chosen(one: Function, two: Function, three: Function) -> Function:
    return lambda s, q, k, h, b: np.where(
        one(s, q, k, h, b) > 0.1, two(s, q, k, h, b), three(s, q, k, h, b)
    )


_BINARY = (
    lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, np.minimum, np.maximum,
    lambda x, y: x / (1.5 + np.tanh(y)),
)  # fmt: skip
_UNARY = (
    np.tanh, lambda x: np.exp(-abs(x)), abs, lambda x: -x, lambda x: np.log(1 + x * x),
    lambda x: np.sqrt(x * x + 0.5), lambda x: 1 / (1 + np.exp(-np.tanh(x))),
)  # fmt: skip


def random_formulas() -> st.SearchStrategy[tuple[Function, Mapping[str, str]]]:
    """(function of s, q, k, h and b, kinds of the tables that it may read)."""

    def larger(inner: st.SearchStrategy[Function]) -> st.SearchStrategy[Function]:
        return st.one_of(
            st.builds(_binary, st.sampled_from(_BINARY), inner, inner),
            st.builds(_unary, st.sampled_from(_UNARY), inner),
            st.builds(_chosen, inner, inner, inner),
        )

    found = st.recursive(st.sampled_from(_LEAVES), larger, max_leaves=6)
    return found.map(lambda function: (_binary(lambda x, y: x + y, _LEAVES[0], function), TABLES))
