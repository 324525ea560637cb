"""Masks, tensors and attention in fp64 NumPy, formula by formula, for tests of CPU kernels."""

from __future__ import annotations

import numpy as np

from maskc.core.dtypes import DType
from maskc.emit.spec import KernelSpec
from tests.support.cpu_harness import NUMPY, Call, shape, spec

F32, BF16, F16 = DType.float32, DType.bfloat16, DType.float16

# ------------------------------------------------------------------ masks, twice: C and NumPy

BAND = (
    "k <= q + m.c0 && q - k <= m.c1",
    ("max_i32(0, floor_div(64 * ti - m.c1, 64))",
     "min_i32((n_kv + 63) / 64, floor_div(min_i32(64 * ti + 63, n_q - 1) + m.c0, 64) + 1)",
     "0", "0"),
    ("max_i32(0, floor_div(64 * tj - m.c0, 64))",
     "min_i32((n_q + 63) / 64, floor_div(min_i32(64 * tj + 63, n_kv - 1) + m.c1, 64) + 1)",
     "0", "0"),
)  # fmt: skip
SHAPES = (
    shape(BAND[0]),
    shape("m.a0[q] == m.a1[k] && k <= q + m.c0"),
    shape("m.a2[(q / 16) * m.row2 + k / 16]"),
    shape("floor_mod(q + m.c0 - k, 7) == 0 || k < m.c1"),
    shape("q < m.c0 && k < m.c1"),
)
"""A band; causal documents; a block table; a lattice with leading keys; a corner."""
BAND_ONLY, DOCUMENTS, TABLE, LATTICE, CORNER = range(5)


def kernels(dtype: DType = F32, head_dim: int = 40, head_dim_v: int | None = None) -> KernelSpec:
    """All formulas in one source."""
    return spec(
        *SHAPES, n_args=2, ranks=(1, 1, 2), dtype=dtype, head_dim=head_dim, head_dim_v=head_dim_v
    )


def masks(n_q: int, n_kv: int, seed: int = 0) -> tuple[np.ndarray, tuple, tuple]:
    """bool [5, n_q, n_kv], the constants of each formula, and the data arrays."""
    rng = np.random.default_rng(seed)
    off = n_kv - n_q
    q, k = np.arange(n_q)[:, None], np.arange(n_kv)[None]
    doc_q = np.sort(rng.integers(0, 4, n_q)).astype(np.int32)
    doc_k = np.sort(rng.integers(0, 4, n_kv)).astype(np.int32)
    table = (rng.random((n_q // 16 + 1, n_kv // 16 + 1)) < 0.3).astype(np.int32)
    seen = np.stack([
        (k <= q + off) & (q - k <= 37 - off),
        (doc_q[:, None] == doc_k[None]) & (k <= q + off),
        table[q // 16, k // 16] != 0,
        ((q + off - k) % 7 == 0) | (k < 3),
        (q < 70) & (k < 40),
    ])  # fmt: skip
    args = (
        (BAND_ONLY, off, 37 - off), (DOCUMENTS, off, 0), (TABLE, 0, 0), (LATTICE, off, 3),
        (CORNER, 70, 40),
    )  # fmt: skip
    return seen, args, (doc_q, doc_k, table)


# ------------------------------------------------------------------ the oracle


def oracle(
    call: Call, dout: np.ndarray, seen: np.ndarray
) -> tuple[dict[str, np.ndarray], np.ndarray, dict[str, float]]:
    """out and gradients by name, lse, sizes of the gradients' terms; fp64.

    `seen` is bool [batch or 1, Hq, n_q, n_kv].
    """
    q, k, v, dout = (x.astype(np.float64) for x in (call.q, call.k, call.v, dout))
    heads_kv, group = k.shape[1], q.shape[1] // k.shape[1]
    k, v = k.repeat(group, axis=1), v.repeat(group, axis=1)
    n_q, n_kv = q.shape[2], k.shape[2]
    scale = q.shape[3] ** -0.5 if call.scale is None else call.scale
    s, steepness = scale * q @ k.swapaxes(2, 3), 1.0
    if call.softcap is not None:
        t = np.tanh(s / call.softcap)
        s, steepness = call.softcap * t, 1 - t**2
    far = np.abs(np.arange(n_q)[:, None] + (n_kv - n_q) - np.arange(n_kv)[None])
    if call.alibi is not None:
        s = s - call.alibi.astype(np.float64)[:, None, None] * far
    sink = np.full(q.shape[1], -np.inf) if call.sinks is None else call.sinks.astype(np.float64)
    sink = np.broadcast_to(sink[:, None], q.shape[:3])
    s = np.where(seen, s, -np.inf)
    top = np.maximum(s.max(-1, initial=-np.inf), sink)
    base = np.where(np.isneginf(top), 0, top)
    weight, sink_weight = np.exp(s - base[..., None]), np.exp(sink - base)
    total = weight.sum(-1) + sink_weight
    divisor = np.where(total == 0, 1, total)
    p, sink_p = weight / divisor[..., None], sink_weight / divisor
    out = p @ v
    with np.errstate(divide="ignore"):
        lse = base + np.log(total)
    dp, delta = dout @ v.swapaxes(2, 3), (out * dout).sum(-1)
    ds = p * (dp - delta[..., None])
    terms = p * (np.abs(dp) + np.abs(delta)[..., None])

    def of_group(x: np.ndarray) -> np.ndarray:
        return x.reshape(x.shape[0], heads_kv, group, *x.shape[2:]).sum(2)

    def three(ds: np.ndarray, p: np.ndarray, *qkd: np.ndarray) -> dict[str, np.ndarray]:
        q, k, dout = qkd
        dk, dv = ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ dout
        return {"dq": ds @ k, "dk": of_group(dk), "dv": of_group(dv)}

    found = three(ds * steepness * scale, p, q, k, dout)
    found |= {"out": out, "dalibi": -(ds * far).sum((0, 2, 3)),
              "dsink": -(sink_p * delta).sum((0, 2))}  # fmt: skip
    sizes = three(terms * steepness * abs(scale), p, *map(np.abs, (q, k, dout)))
    sizes |= {"out": p @ np.abs(v), "dalibi": (terms * far).sum((0, 2, 3)),
              "dsink": (sink_p * np.abs(delta)).sum((0, 2))}  # fmt: skip
    return found, lse, {name: np.abs(x).max(initial=0) for name, x in sizes.items()}


def unfused(call: Call, dout: np.ndarray, seen: np.ndarray) -> dict[str, np.ndarray]:
    """Compute as PyTorch does without fusion: every intermediate is rounded to the storage type."""
    dtype = call.q.dtype

    def rounded(x: np.ndarray) -> np.ndarray:
        return x.astype(dtype).astype(np.float32)

    q, k, v, dout = (x.astype(np.float32) for x in (call.q, call.k, call.v, dout))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat(group, axis=1), v.repeat(group, axis=1)
    scale = np.float32(q.shape[3] ** -0.5)
    s = np.where(seen, rounded(rounded(q @ k.swapaxes(2, 3)) * scale), -np.inf)
    top = s.max(-1, keepdims=True, initial=-np.inf)
    e = np.exp(s - np.where(np.isneginf(top), 0, top))
    p = rounded(e / np.maximum(e.sum(-1, keepdims=True), 1e-30))
    dp = rounded(dout @ v.swapaxes(2, 3))
    ds = rounded(rounded(p * (dp - (p * dp).sum(-1, keepdims=True))) * scale)
    found = {"out": rounded(p @ v), "dq": rounded(ds @ k)}
    for name, grad in (("dk", ds.swapaxes(2, 3) @ q), ("dv", p.swapaxes(2, 3) @ dout)):
        grad = rounded(grad).reshape(q.shape[0], call.k.shape[1], group, *grad.shape[2:])
        found[name] = rounded(grad.sum(2))
    return found


def error(found: np.ndarray, wanted: np.ndarray, size: float) -> float:
    """Largest difference over the largest value.

    `size` is the largest sum of absolute terms. A row that sees one key has gradient 0, the
    difference of two large numbers: then a fiftieth of that size is what counts.
    """
    if not wanted.size:
        return 0.0
    difference = np.abs(found.astype(np.float64) - wanted).max()
    return float(difference / max(np.abs(wanted).max(), 0.02 * size)) if difference else 0.0


def check(call: Call, seen: np.ndarray, bound: float = 1e-5, seed: int = 5) -> None:
    """Both passes of a call against the oracle; half precision against unfused PyTorch too."""
    rng = np.random.default_rng(seed)
    dout = call.like(call.q, call.source.head_dim_v)
    dout[...] = rng.standard_normal(dout.shape)
    out, lse = call.forward()
    wanted, wanted_lse, sizes = oracle(call, dout, seen)
    found = call.backward(out, lse, dout) | {"out": out}
    limits = dict.fromkeys(found, bound)
    if call.source.dtype is not F32:
        for name, peer in unfused(call, dout, seen).items():
            limits[name] = max(bound, 2 * error(peer, wanted[name], sizes[name]))
    finite = np.isfinite(wanted_lse)
    assert np.array_equal(finite, np.isfinite(lse))
    assert np.array_equal(np.isneginf(wanted_lse), np.isneginf(lse))
    assert error(lse[finite], wanted_lse[finite], 50.0) <= bound
    assert not out[~finite].any()
    assert not found["dq"][~finite].any()
    errors = {name: error(found[name], wanted[name], sizes[name]) for name in found}
    assert all(errors[name] <= limits[name] for name in errors), (errors, limits)


def tensors(
    dtype: DType, batch: int, heads: tuple[int, int], lengths: tuple[int, int],
    dims: tuple[int, int], layout: str = "bhsd",
) -> list[np.ndarray]:  # fmt: skip
    """q, k and v; `bshd` and `sliced` are views whose tokens are further apart."""
    rng = np.random.default_rng(sum(lengths))
    sizes = ((heads[0], lengths[0], dims[0]), (heads[1], lengths[1], dims[0]),
             (heads[1], lengths[1], dims[1]))  # fmt: skip
    found = []
    for h, n, d in sizes:
        values = rng.standard_normal((batch, n, h, d)).astype(NUMPY[dtype])
        if layout == "sliced":
            wide = np.full((batch, n, h, d + 3), np.nan, dtype=values.dtype)
            wide[..., 1 : d + 1] = values
            values = wide[..., 1 : d + 1]
        values = values.swapaxes(1, 2)
        found.append(values if layout != "bhsd" else np.ascontiguousarray(values))
    return found


def many(
    source: KernelSpec, lengths: tuple[int, int], *, heads: tuple[int, int] = (4, 2),
    layout: str = "bhsd", batch: int = 2, head_variant: tuple[int, ...] = (0, 1, 2, 3),
    **options: object,
) -> tuple[Call, np.ndarray]:  # fmt: skip
    """A call in which every head has its own formula, and who sees whom."""
    seen, args, arrays = masks(*lengths)
    dims = (source.head_dim, source.head_dim_v)
    head_variant = head_variant[: heads[0]]
    call = Call(
        source, *tensors(source.dtype, batch, heads, lengths, dims, layout), masks=seen,
        args=args, head_variant=head_variant, arrays=arrays, **options,
    )  # fmt: skip
    return call, seen[list(head_variant)][None]
