"""Pieces are disjoint, add up to the mask, and are what their kind says: by looking at pairs."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskc as mc
from maskc import driver
from maskc.core import expr as E
from maskc.core.evaluator import evaluate
from maskc.dsl.slots import with_captured
from maskc.ir.decompose import decompose
from maskc.ir.types import Band, Columns, Lattice, MaskIR, Piece, PieceKind, Rows, Segments, Table
from maskc.layout import Chosen, bind_ranked
from maskc.testing.strategies import data_for, lengths, masks
from tests.support.thorough import examples, more

SLOW = settings(max_examples=examples(80))
FOLDER = Path(__file__).parents[2] / "patterns"

Env = dict[str, object]


# ------------------------------------------------------------------ what kinds mean


def grid(keep: E.Expr, env: Env) -> np.ndarray:
    """The formula on every pair."""
    n_q, n_kv = env["n_q"], env["n_kv"]
    q, k = np.arange(n_q)[:, None], np.arange(n_kv)[None, :]
    return np.broadcast_to(evaluate(keep, {**env, "q": q, "k": k}), (n_q, n_kv))


def line(keep: E.Expr, env: Env, name: str) -> np.ndarray:
    """The formula on every query (`q`) or every key (`k`)."""
    size = env["n_q" if name == "q" else "n_kv"]
    assert name == "q" or "q" not in E.symbols(keep)
    assert name == "k" or "k" not in E.symbols(keep)
    return np.broadcast_to(evaluate(keep, {**env, name: np.arange(size)}), size)


def is_one_run(kept: np.ndarray) -> bool:
    where = np.flatnonzero(kept)
    return len(where) == 0 or where[-1] - where[0] + 1 == len(where)


def check_band(dense: np.ndarray, band: Band, env: Env) -> None:
    assert all(map(is_one_run, dense)), "a band's rows are intervals"
    covered = np.zeros(len(dense), dtype=int)
    said = np.zeros_like(dense)
    k = np.arange(dense.shape[1])
    for span in band.spans:
        rows = line(span.rows, env, "q")
        covered += rows
        first, last = (line(end, env, "q") for end in (span.first, span.last))
        said |= rows[:, None] & (k >= first[:, None]) & (k <= last[:, None])
    assert (covered <= 1).all(), "one span a row"
    assert (said == dense).all(), "a row's keys are first .. last"
    if band.shifts:
        offsets = np.arange(len(dense))[:, None] - k
        kept, dropped = set(offsets[dense]), set(offsets[~dense])
        assert not kept & dropped, "a band that shifts knows q - k only"


def check_lattice(dense: np.ndarray, lattice: Lattice, env: Env) -> None:
    count = np.zeros(dense.shape, dtype=int)
    stride, reach = lattice.stride, sum(dense.shape) + lattice.stride
    steps = np.arange(-reach, reach + 1)
    classes = stride if "c" in E.symbols(lattice.keys) else 1
    for c, j in product(range(classes), range(lattice.width)):
        here = {**env, "c": c, "j": j}
        q = np.asarray(evaluate(lattice.queries, {**here, "t_q": steps}))
        k = np.asarray(evaluate(lattice.keys, {**here, "t_k": steps}))
        inside_q, inside_k = (q >= 0) & (q < len(dense)), (k >= 0) & (k < dense.shape[1])
        t_q, t_k = steps[inside_q][:, None], steps[inside_k][None, :]
        shape = t_q.shape[0], t_k.shape[1]
        kept = np.broadcast_to(evaluate(lattice.band, {**here, "t_q": t_q, "t_k": t_k}), shape)
        assert all(map(is_one_run, kept)), "a class is a band"
        np.add.at(count, np.ix_(q[inside_q], k[inside_k]), kept)
    assert (count == dense).all(), "every pair once, and no other"
    q, k = np.nonzero(dense)
    if lattice.key_phase is not None and lattice.query_phase is None:
        assert ((k - lattice.key_phase) % stride < lattice.width).all()
    if lattice.key_phase is not None and lattice.query_phase is not None:
        assert (k % stride == lattice.key_phase).all()
    assert not any(
        isinstance(node, (E.Mod, E.FloorDiv)) and {"c", "j"} & E.symbols(node)
        for node in E.walk(lattice.band)
    ), "no congruence is left"


def check_crossing(dense: np.ndarray, lines: np.ndarray, complete: np.ndarray) -> None:
    """Rows of `dense` where `complete` holds are `lines`, the others a part of it."""
    assert (dense[complete] == lines).all()
    assert not (dense & ~lines).any()


def check_kind(piece: Piece, env: Env) -> None:
    dense, detail = grid(piece.keep, env), piece.detail
    match piece.kind:
        case PieceKind.band:
            assert isinstance(detail, Band)
            check_band(dense, detail, env)
        case PieceKind.lattice:
            assert isinstance(detail, Lattice)
            check_lattice(dense, detail, env)
        case PieceKind.columns if detail is not None:
            assert isinstance(detail, Columns)
            check_crossing(dense, line(detail.keys, env, "k"), line(detail.queries, env, "q"))
        case PieceKind.rows if detail is not None:
            assert isinstance(detail, Rows)
            check_crossing(dense.T, line(detail.queries, env, "q"), line(detail.keys, env, "k"))
        case PieceKind.table:
            assert isinstance(detail, Table)
            assert detail.array in E.arrays(piece.keep)
        case PieceKind.segments:
            assert isinstance(detail, Segments)
            assert set(detail.arrays) <= set(E.arrays(piece.keep))
        case PieceKind.set:
            assert detail is None


def check(ir: MaskIR, env: Env) -> None:
    expected = grid(ir.keep, env)
    total = np.zeros(expected.shape, dtype=int)
    for piece in ir.pieces:
        total += grid(piece.keep, env)
        check_kind(piece, env)
    assert (total == expected).all(), "pieces are disjoint and complete"
    ranks = [list(PieceKind).index(piece.kind) for piece in ir.pieces]
    assert ranks == sorted(ranks)


def bound(ir: MaskIR, n_q: int, n_kv: int, data: Env) -> Env:
    """Lengths, parameters and arrays; run-time selections rank by something."""
    ranked = {}
    if ir.selections:
        rng = np.random.default_rng(n_q + 1000 * n_kv)
        ranked["scores"] = rng.standard_normal((n_q, n_kv), dtype=np.float32)
    params, arrays = bind_ranked(
        ir.data, tuple(ir.params.items()), ir.selections, ir.declared - {"scores"},
        {**data, **ranked}, n_q, n_kv,
    )  # fmt: skip
    own = {name: first(x) if isinstance(x, Chosen) else x for name, x in arrays.items()}
    return {"n_q": n_q, "n_kv": n_kv, **params, **own}


def first(chosen: Chosen) -> Chosen:
    """The lists of the first sequence and head; lists of keys may have no such dimensions."""
    while chosen.ndim > 2:
        chosen = chosen.part(0)
    return chosen


# ------------------------------------------------------------------ random masks


@SLOW
@given(st.data(), masks(), lengths(28))
def test_pieces_of_random_masks(data, mask, sizes):
    given_data = with_captured(mask, data.draw(data_for(mask, *sizes)), None, *sizes)[1]
    ir = decompose(driver.lowered(mask))
    check(ir, bound(ir, *sizes, given_data))


def few_atoms() -> st.SearchStrategy[mc.Mask]:
    """Bands, lattices, columns and rows with small constants."""
    size = st.integers(0, 6)
    return st.one_of(
        st.builds(mc.window, size, size),
        st.builds(lambda w, s: mc.dilated(w, stride=s), st.integers(1, 4), st.integers(2, 4)),
        st.builds(lambda n: mc.causal() & mc.sinks(n), size),
        st.builds(lambda n: mc.global_tokens(n), size),
        st.builds(lambda s: mc.causal() & mc.strided(s, s - 1), st.integers(2, 5)),
        st.builds(mc.chunked, st.integers(2, 6)),
    )


@SLOW
@given(st.lists(few_atoms(), min_size=1, max_size=4), lengths(36))
def test_pieces_of_unions(atoms, sizes):
    mask = atoms[0]
    for atom in atoms[1:]:
        mask = mask | atom
    ir = decompose(driver.lowered(mask))
    check(ir, bound(ir, *sizes, {}))


@SLOW
@given(few_atoms(), few_atoms())
def test_the_order_of_terms_does_not_matter(left, right):
    one, two = (decompose(driver.lowered(m)).pieces for m in (left | right, right | left))
    assert one == two
    outside = decompose(driver.lowered(~(~left & ~right))).pieces
    assert outside == one


# ------------------------------------------------------------------ patterns

SMALL: dict[str, dict[str, object]] = {
    "axial": {"width": 8}, "bigbird_etc": {"block": 4, "n_global": 6}, "bigbird_itc": {"block": 4},
    "block_diagonal": {"size": 7}, "block_diffusion": {"block": 4}, "chunked": {"size": 8},
    "dilated_longformer": {"window": 4, "n_global": 3},
    "exponential_dilation": {"window": 4, "levels": 4}, "landmark": {"window": 5, "block": 8},
    "longformer": {"window": 5, "n_global": 4},
    "longnet": {"segments": (8, 16, 32), "rates": (1, 2, 4)}, "natten_1d": {"kernel": 7},
    "natten_2d": {"width": 6, "kernel": (3, 3)},
    "natten_3d": {"height": 4, "width": 4, "kernel": (3, 3, 3)},
    "nsa_compressed": {"length": 8, "stride": 4}, "nsa_sliding": {"window": 9},
    "prefix_lm": {"n_prefix": 10}, "sliding_window": {"window": 6},
    "sparse_transformer_fixed": {"length": 8, "summary": 2},
    "sparse_transformer_strided": {"stride": 6}, "sta": {"canvas": (3, 3, 3), "tile": 2},
    "streaming": {"n_sinks": 3, "window": 7}, "swin": {"width": 8, "window": 4, "shift": 2},
    "tri_shape": {"n_sinks": 3, "window": 6, "last": 5},
    "vertical_slash": {"columns": (0, 1, 9), "slashes": (0, 1, 2, 7, 12)},
}  # fmt: skip


def pattern_ir(name: str, parameters: dict[str, object]) -> MaskIR:
    found = mc.load(FOLDER / f"{name}.py")[name]
    heads = 4 if name == "longnet" else None
    return decompose(driver.lowered(found(**parameters), 0, heads))


def without_call_data() -> list[str]:
    names = [path.stem for path in sorted(FOLDER.glob("*.py"))]
    data = {
        "adaptive_local_global",
        "ast_tree",
        "documents",
        "flamingo",
        "shared_prefix",
        "speculative_tree",
    }
    return [name for name in names if name not in data]


LONG = ("longnet", "bigbird_etc", "bigbird_itc", "logsparse")  # formulas


@pytest.mark.parametrize("name", [more(x) if x in LONG else x for x in without_call_data()])
def test_pieces_of_published_masks(name):
    defaults, small = pattern_ir(name, {}), pattern_ir(name, SMALL.get(name, {}))
    for sizes in [(1, 1), (48, 48), (61, 61), (20, 70), (70, 20)]:
        check(small, bound(small, *sizes, {}))
    check(defaults, bound(defaults, 150, 150, {}))
