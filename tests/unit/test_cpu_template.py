"""The CPU kernels against attention and its gradients written in fp64 NumPy, formula by formula."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import maskc as mc
from maskc.core.dtypes import DType
from maskc.core.library import standing_alone
from maskc.core.problem import TileShape
from maskc.emit.environment import render
from maskc.emit.spec import Iteration
from tests.support.cpu_harness import NUMPY, TEMPLATE, Call, lists, shape, spec
from tests.support.cpu_oracle import (
    BAND,
    BAND_ONLY,
    BF16,
    CORNER,
    F16,
    F32,
    check,
    kernels,
    many,
    masks,
    tensors,
)

# ------------------------------------------------------------------ right numbers


def test_a_list_of_chosen_blocks_ends_where_the_next_begins() -> None:
    """Each query chose one key, and the next query's stands behind it in memory."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, 40, 16), np.float32) for _ in range(3))
    chosen = np.sort(rng.permutation(40))
    scores = np.equal.outer(chosen, np.arange(40)).astype(np.float32)
    mask = mc.topk(1, mc.full(), score="given", share="all")
    out = mask.compile(16, dtype="float32", target="cpu")(q, k, v, scores=scores)
    np.testing.assert_allclose(out, v[:, :, chosen], rtol=1e-6)


LENGTHS = [(130, 130), (64, 64), (63, 65), (65, 63), (1, 130), (130, 1), (1, 1), (200, 70),
           (70, 200), (0, 64), (64, 0)]  # fmt: skip


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=lambda dtype: dtype.short)
def test_lengths_and_predicates(dtype: DType, lengths: tuple[int, int]) -> None:
    check(*many(kernels(dtype), lengths))


@pytest.mark.parametrize("dims", [(1, 1), (64, 64), (128, 96), (17, 72), (80, 16), (200, 5),
                                  (576, 512)], ids=str)  # fmt: skip
def test_head_dimensions(dims: tuple[int, int]) -> None:
    check(*many(kernels(F32, *dims), (90, 130), batch=1))


@pytest.mark.parametrize(
    ("tile", "dims"), [((32, 48), (576, 576)), ((128, 16), (128, 16))], ids=str
)
def test_tiles_of_unequal_sides(tile: tuple[int, int], dims: tuple[int, int]) -> None:
    source = replace(kernels(F32, *dims), tile=TileShape(*tile))
    check(*many(source, (150, 100), batch=1, heads=(4, 4)))


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
    """130 queries; the first `queries` see the first `keys` keys."""
    seen = np.zeros((1, 130, n_kv), dtype=bool)
    seen[:, :queries, :keys] = True
    return Call(
        kernels(), *tensors(F32, 1, (4, 2), (130, n_kv), (40, 40)), masks=seen,
        args=((CORNER, queries, keys),), arrays=masks(1, 1)[2], sinks=call_sinks,
    )  # fmt: skip


def test_unseen_poison_everywhere() -> None:
    """All keys but the first 40 are NaN and in no pair; partial tiles, tails and dead tiles. The
    first tile leaves a maximum of 0 for half of the queries: what says so is not read as a mask."""
    call = corner(queries=130, keys=40, n_kv=200)
    call.q[:, :, ::2] = 0
    call._lists = lists([np.ones((130, 200), dtype=bool)], call.source.tile)
    for tiles in (call._lists.row_tiles, call._lists.col_tiles):
        tiles &= ~1
    call.block = call._block()
    call.k[:, :, 40:] = np.nan
    call.v[:, :, 40:] = np.inf
    results = passes(call)
    assert all(np.isfinite(array).all() for array in results.values())
    assert not results["dk"][:, :, 40:].any()
    assert not results["dv"][:, :, 40:].any()


# ------------------------------------------------------------------ nothing to see


def test_rows_and_columns_with_nothing() -> None:
    call = corner(queries=70, keys=70, n_kv=200)
    results = passes(call)
    assert not results["out"][:, :, 70:].any()
    assert np.isneginf(results["lse"][:, :, 70:]).all()
    assert not any(results[name][:, :, 70:].any() for name in ("dq", "dk", "dv"))


@pytest.mark.parametrize("n_kv", [0, 100])
def test_sink_alone(n_kv: int) -> None:
    """No key and a sink: out 0, lse the logit, and no gradient anywhere."""
    results = passes(corner(SINKS, queries=0, keys=0, n_kv=n_kv))
    assert not results["out"].any()
    assert np.array_equal(results["lse"], np.broadcast_to(SINKS[None, :, None], (1, 4, 130)))
    assert not any(results[name].any() for name in ("dq", "dk", "dv", "dsink"))


# ------------------------------------------------------------------ the text


@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=lambda dtype: dtype.short)
def test_source_is_tidy(dtype: DType) -> None:
    lines = standing_alone(render(TEMPLATE, kernels(dtype))).splitlines()
    assert max(map(len, lines)) <= 100
    assert not any("{%" in line or "{{" in line for line in lines)
    assert not any(a == b == "" for a, b in pairwise(lines))


def test_builds_without_openmp() -> None:
    """A compiler without OpenMP ignores the pragmas; the same code then runs in one thread."""
    flags = ("-march=native", "-fno-openmp", "-Wno-unknown-pragmas")
    check(*many(kernels(), (130, 70), flags=flags))
