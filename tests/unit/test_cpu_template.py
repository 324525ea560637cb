"""The CPU kernels against attention and its gradients written in fp64 NumPy, formula by formula."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from maskc.core.dtypes import DType
from maskc.core.problem import TileShape
from maskc.emit.environment import render
from maskc.emit.spec import Iteration, KernelSpec
from tests.support.cpu_harness import NUMPY, TEMPLATE, Call, shape, spec

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
    """What PyTorch does without fusion: every intermediate is rounded to the storage type."""
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


# ------------------------------------------------------------------ right numbers

LENGTHS = [(130, 130), (64, 64), (63, 65), (65, 63), (1, 130), (130, 1), (1, 1), (200, 70),
           (70, 200), (0, 64), (64, 0)]  # fmt: skip


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=lambda dtype: dtype.short)
def test_lengths_and_predicates(dtype: DType, lengths: tuple[int, int]) -> None:
    check(*many(kernels(dtype), lengths))


@pytest.mark.parametrize("dims", [(1, 1), (64, 64), (128, 96), (17, 72), (80, 16), (200, 5)],
                         ids=str)  # fmt: skip
def test_head_dimensions(dims: tuple[int, int]) -> None:
    check(*many(kernels(F32, *dims), (90, 130), batch=1))


def test_largest_head_dimension_with_a_smaller_tile() -> None:
    source = replace(kernels(F32, 512), tile=TileShape(32, 48))
    check(*many(source, (70, 100), batch=1, heads=(4, 4)))


@pytest.mark.parametrize("layout", ["bshd", "sliced"])
@pytest.mark.parametrize("dtype", [F32, F16], ids=lambda dtype: dtype.short)
def test_strides(dtype: DType, layout: str) -> None:
    check(*many(kernels(dtype), (70, 130), layout=layout))


@pytest.mark.parametrize("heads", [(4, 4), (4, 1), (8, 2)], ids=str)
def test_grouped_heads_with_masks_of_their_own(heads: tuple[int, int]) -> None:
    check(*many(kernels(), (100, 70), heads=heads, head_variant=(3, 0, 2, 1, 1, 4, 3, 2)))


SLOPES = np.array([0.0, 0.02, 0.1, 0.5], dtype=np.float32)
SINKS = np.array([-np.inf, -1.0, 0.5, 3.0], dtype=np.float32)


@pytest.mark.parametrize(
    "options",
    [
        {"softcap": 0.8},
        {"alibi": SLOPES},
        {"sinks": SINKS},
        {"softcap": 5.0, "alibi": SLOPES, "sinks": SINKS},
    ],
    ids=["softcap", "alibi", "sinks", "all"],
)
@pytest.mark.parametrize("lengths", [(130, 70), (65, 130)], ids=str)
def test_features(options: dict[str, object], lengths: tuple[int, int]) -> None:
    check(*many(kernels(), lengths, scale=0.3, **options))


def test_scale_and_large_scores() -> None:
    check(*many(kernels(), (70, 70), scale=-3.0))


@pytest.mark.parametrize("flags", [(), ("-mavx2", "-mfma")], ids=["sse2", "avx2"])
def test_narrower_vectors(flags: tuple[str, ...]) -> None:
    check(*many(kernels(F16), (65, 130), flags=flags))


def test_half_conversions_are_exact() -> None:
    """Every half goes in and out through a query that sees one key: out = v."""
    n, dim = 1640, 40
    v = np.zeros(n * dim, dtype=np.uint16)
    v[: 1 << 16] = np.arange(1 << 16)
    v = v.view(np.float16).reshape(1, 1, n, dim)
    q = np.zeros_like(v)
    call = Call(
        kernels(F16), q, q, v, masks=np.eye(n, dtype=bool)[None], args=((BAND_ONLY, 0, 0),),
        arrays=masks(1, 1)[2],
    )  # fmt: skip
    out, _ = call.forward()
    nan = np.isnan(v)
    assert np.isnan(out[nan]).all()
    assert np.array_equal(out[~nan], v[~nan])


@pytest.mark.parametrize("dtype", [BF16, F16], ids=lambda dtype: dtype.short)
def test_rounding_is_to_nearest_even(dtype: DType) -> None:
    """Means of three values, of all sizes, against NumPy's own rounding."""
    rng = np.random.default_rng(1)
    kind = NUMPY[dtype]
    q, k = np.zeros((1, 1, 64, 40), dtype=kind), np.zeros((1, 1, 3, 40), dtype=kind)
    v = (rng.standard_normal((1, 1, 3, 40)) * 10.0 ** rng.integers(-7, 4, 40)).astype(kind)
    call = Call(
        kernels(dtype), q, k, v, masks=np.ones((1, 64, 3), dtype=bool), args=((CORNER, 64, 3),),
        arrays=masks(1, 1)[2],
    )  # fmt: skip
    out, _ = call.forward()
    third = np.float32(1) / np.float32(3)
    x = v.astype(np.float32)
    wanted = ((x[..., 0:1, :] + x[..., 1:2, :]) + x[..., 2:3, :]) * third
    assert np.array_equal(out, np.broadcast_to(wanted, out.shape).astype(kind))


# ------------------------------------------------------------------ iteration


def range_and_list_calls(lengths: tuple[int, int]) -> tuple[Call, Call]:
    n_q, n_kv = lengths
    seen, args, _ = masks(n_q, n_kv)
    qkv = tensors(F32, 2, (2, 1), lengths, (40, 40))
    by_range = spec(shape(*BAND), n_args=2, head_dim=40, iteration=Iteration.range)
    arrays = masks(*lengths)[2]
    return (
        Call(kernels(), *qkv, masks=seen[:1], args=args[:1], arrays=arrays),
        Call(by_range, *qkv, masks=seen[:1], args=args[:1]),
    )


@pytest.mark.parametrize("lengths", [(130, 130), (300, 300), (70, 200), (1, 100)], ids=str)
def test_ranges_and_lists_give_the_same_bits(lengths: tuple[int, int]) -> None:
    by_list, by_range = range_and_list_calls(lengths)
    by_range.block.row_ptr = by_range.block.col_ptr = None
    (out, lse), (out_r, lse_r) = by_list.forward(), by_range.forward()
    assert same_bits(out, out_r)
    assert same_bits(lse, lse_r)
    dout = np.random.default_rng(0).standard_normal(out.shape).astype(np.float32)
    found, found_r = by_list.backward(out, lse, dout), by_range.backward(out, lse, dout)
    assert all(same_bits(found[name], found_r[name]) for name in found)


# ------------------------------------------------------------------ same bits


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


EXTRAS = {"softcap": 5.0, "alibi": SLOPES, "sinks": SINKS}


def passes(call: Call) -> dict[str, np.ndarray]:
    out, lse = call.forward()
    dout = np.random.default_rng(3).standard_normal(out.shape).astype(out.dtype)
    return call.backward(out, lse, dout) | {"out": out, "lse": lse}


@pytest.mark.parametrize("heads", [(4, 2), (4, 1)], ids=str)
def test_threads_do_not_change_bits(heads: tuple[int, int]) -> None:
    """With one key/value head and more threads than heads, threads meet in dq."""
    results = []
    for threads in (1, 2, 3, 8):
        call, _ = many(kernels(), (300, 300), batch=1, heads=heads, threads=threads, **EXTRAS)
        results.append(passes(call))
    for other in results[1:]:
        assert all(same_bits(results[0][name], other[name]) for name in other)


def test_batch_and_neighbours_do_not_change_bits() -> None:
    call, _ = many(kernels(), (200, 200), batch=3)
    out, lse = call.forward()
    alone = Call(
        call.source, call.q[1:2], call.k[1:2], call.v[1:2], masks=call.masks, args=call.args,
        head_variant=call.head_variant, arrays=call.arrays, threads=1,
    )  # fmt: skip
    out_1, lse_1 = alone.forward()
    assert same_bits(out[1:2], out_1)
    assert same_bits(lse[1:2], lse_1)


def test_a_partial_tile_that_is_full_gives_the_same_bits() -> None:
    """Classification is a hint about speed, nothing else; so is a tile with no live pair."""
    call, _ = many(kernels(), (130, 130), head_variant=(3, 0, 0, 3))
    before = passes(call)
    for name in ("row_tiles", "col_tiles"):
        getattr(call._lists, name)[:] &= ~1
    after = passes(call)
    assert all(same_bits(before[name], after[name]) for name in before)


def test_lists_per_sequence() -> None:
    """Data with a batch dimension: lists and arrays of each sequence."""
    seen = [masks(130, 130, seed=seed) for seed in (0, 1)]
    arrays = tuple(np.stack([s[2][i] for s in seen]) for i in range(3))
    steps = tuple((array[0].size, 0) for array in arrays)
    stacked = np.stack([s[0] for s in seen])
    call = Call(
        kernels(), *tensors(F32, 2, (4, 2), (130, 130), (40, 40)), masks=stacked, batched=True,
        args=seen[0][1], head_variant=(0, 1, 2, 3), arrays=arrays, array_steps=steps,
    )  # fmt: skip
    check(call, stacked[:, :4])


# ------------------------------------------------------------------ NaN and infinity


def reached(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Rows that changed."""
    return (np.ascontiguousarray(before).view(np.uint32)
            != np.ascontiguousarray(after).view(np.uint32)).any(-1)  # fmt: skip


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_poison_reaches_only_who_sees_it(name: str, value: float) -> None:
    clean, seen = many(kernels(), (130, 130))
    token, head = 70, 1  # of key/value head 1 (query heads 2 and 3), or of query head 1
    before, _ = clean.forward()
    poisoned, _ = many(kernels(), (130, 130))
    getattr(poisoned, name)[0, head, token, 5] = value
    after, _ = poisoned.forward()
    may = np.zeros(before.shape[:3], dtype=bool)
    if name == "q":
        may[0, head, token] = True
    else:
        may[0, 2:] = seen[0, 2:, :, token]
    changed = reached(before, after)
    assert not changed[~may].any()
    if np.isnan(value):
        assert changed[may].all()
        assert np.isnan(after[may]).any(-1).all()
    if name == "v":
        assert not np.isfinite(after[may][:, 5]).any()
        assert same_bits(before[may][:, 6:], after[may][:, 6:])


@pytest.mark.parametrize("name", ["q", "k", "v", "dout"])
def test_poison_in_the_backward_pass(name: str) -> None:
    """A poisoned query may reach its own dq, and dk and dv of the keys it sees; and so on."""
    call, seen = many(kernels(), (130, 130), heads=(4, 4))
    out, lse = call.forward()
    dout = np.random.default_rng(3).standard_normal(out.shape).astype(np.float32)
    before = call.backward(out, lse, dout)
    token, head = 70, 1
    (dout if name == "dout" else getattr(call, name))[0, head, token, 5] = np.nan
    out, lse = call.forward()
    after = call.backward(out, lse, dout)
    rows, columns = np.zeros((2, *out.shape[:3]), dtype=bool)
    if name in ("q", "dout"):
        rows[0, head, token] = True
        columns[0, head] = seen[0, head, token]
    else:
        rows[0, head] = seen[0, head, :, token]
        columns[0, head] = (seen[0, head] & rows[0, head][:, None]).any(0)
    for gradient, may in (("dq", rows), ("dk", columns), ("dv", columns)):
        assert not reached(before[gradient], after[gradient])[~may].any(), gradient
    assert np.isnan(after["dq"]).any()


def corner(call_sinks: np.ndarray | None = None, *, queries: int, keys: int, n_kv: int) -> Call:
    """130 queries of which the first `queries` see the first `keys` keys."""
    seen = np.zeros((1, 130, n_kv), dtype=bool)
    seen[:, :queries, :keys] = True
    return Call(
        kernels(), *tensors(F32, 1, (4, 2), (130, n_kv), (40, 40)), masks=seen,
        args=((CORNER, queries, keys),), arrays=masks(1, 1)[2], sinks=call_sinks,
    )  # fmt: skip


def test_unseen_poison_everywhere() -> None:
    """All keys but the first 40 are NaN and in no pair; partial tiles, tails and dead tiles."""
    call = corner(queries=130, keys=40, n_kv=200)
    call.k[:, :, 40:] = np.nan
    call.v[:, :, 40:] = np.inf
    found = passes(call)
    assert all(np.isfinite(array).all() for array in found.values())
    assert not found["dk"][:, :, 40:].any()
    assert not found["dv"][:, :, 40:].any()


# ------------------------------------------------------------------ nothing to see


def test_rows_and_columns_with_nothing() -> None:
    call = corner(queries=70, keys=70, n_kv=200)
    found = passes(call)
    assert not found["out"][:, :, 70:].any()
    assert np.isneginf(found["lse"][:, :, 70:]).all()
    assert not any(found[name][:, :, 70:].any() for name in ("dq", "dk", "dv"))


@pytest.mark.parametrize("n_kv", [0, 100])
def test_sink_alone(n_kv: int) -> None:
    """No key and a sink: out 0, lse the logit, and no gradient anywhere."""
    found = passes(corner(SINKS, queries=0, keys=0, n_kv=n_kv))
    assert not found["out"].any()
    assert np.array_equal(found["lse"], np.broadcast_to(SINKS[None, :, None], (1, 4, 130)))
    assert not any(found[name].any() for name in ("dq", "dk", "dv", "dsink"))


# ------------------------------------------------------------------ the text


@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=lambda dtype: dtype.short)
def test_source_is_tidy(dtype: DType) -> None:
    lines = render(TEMPLATE, kernels(dtype)).splitlines()
    assert max(map(len, lines)) <= 100
    assert not any("{%" in line or "{{" in line for line in lines)
    assert not any(a == b == "" for a, b in pairwise(lines))


def test_builds_without_openmp() -> None:
    """A compiler without OpenMP ignores the pragmas; the same code then runs in one thread."""
    flags = ("-march=native", "-fno-openmp", "-Wno-unknown-pragmas")
    check(*many(kernels(), (130, 70), flags=flags))
