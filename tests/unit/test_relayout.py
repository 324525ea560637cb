"""Masks inside residue classes: pair by pair against the dense mask, and what named masks give."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskc as mc
from maskc import driver
from maskc.analysis.facts import analyse
from maskc.analysis.head_groups import HeadGroups, strides_together
from maskc.core import expr as E
from maskc.core.bundle import N_KV_OF_ALL
from maskc.core.captured import HELD
from maskc.core.errors import DecompositionBroken
from maskc.core.evaluator import evaluate
from maskc.core.expr_text import to_people
from maskc.core.target import TARGETS
from maskc.dsl.slots import with_captured
from maskc.ir import relayout, sets
from maskc.ir.decompose import decompose
from maskc.ir.relayout import parts
from maskc.ir.set_comparison import equals
from maskc.ir.types import MaskIR, MaskPart, PieceKind
from maskc.layout import Classes, bind_arrays, classes, held_arrays, split_call_data, views
from maskc.plan.choose import plan
from maskc.testing.strategies import data_for, lengths, masks
from tests.support.thorough import examples

SLOW = settings(max_examples=examples(120))
FOLDER = Path(__file__).parents[2] / "patterns"


def decomposed(mask: mc.Mask, heads: int | None = None) -> MaskIR:
    return decompose(driver.lowered(mask, 0, heads))


def published(name: str, **parameters: object) -> MaskIR:
    mask = mc.load(FOLDER / f"{name}.py")[name](**parameters)
    return decomposed(mask, 4 if name == "longnet" else None)


# ------------------------------------------------------------------ pair by pair


def tokens(run: Classes, index: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Queries and keys of one class of a run."""
    q = run.first_query + index + stride * np.arange(run.n_q)
    k = run.first + index + stride * np.arange(run.n_kv)
    return q, k


def kept(keep: E.Expr, ir: MaskIR, n_q: int, n_kv: int, data: dict[str, object]) -> np.ndarray:
    """A formula of one mask on every pair, [n_q, n_kv]."""
    params, given_arrays = split_call_data(ir.data, tuple(ir.params.items()), data, ir.declared)
    arrays = bind_arrays(ir.data, given_arrays, n_q, n_kv)
    if HELD in data:
        arrays |= held_arrays(data[HELD], params, n_q, n_kv)
    q, k = np.arange(n_q)[:, None], np.arange(n_kv)[None, :]
    env = {"q": q, "k": k, "n_q": n_q, "n_kv": n_kv, **params, **arrays}
    return np.broadcast_to(evaluate(keep, env), (n_q, n_kv))


def counted(part: MaskPart[MaskIR], n_q: int, n_kv: int, data: dict[str, object]) -> np.ndarray:
    """Count how often each pair is in the part; its pieces must say the same."""
    count = np.zeros((n_q, n_kv), dtype=int)
    if N_KV_OF_ALL in part.inner.params:
        data = {**data, N_KV_OF_ALL: n_kv}
    for run in views(part.stride, part.keys, n_q, n_kv):
        ir, sizes = part.inner, (run.n_q, run.n_kv)
        inner = kept(ir.keep, ir, *sizes, data)
        pieces = [kept(piece.keep, ir, *sizes, data).astype(int) for piece in ir.pieces]
        assert (sum(pieces, np.zeros(sizes, dtype=int)) == inner).all(), "pieces of a part"
        for index in range(run.count):
            q, k = tokens(run, index, part.stride)
            np.add.at(count, np.ix_(q if part.keys is None else np.arange(n_q), k), inner)
    return count


def check(
    mask: mc.Mask, found: tuple[MaskPart[MaskIR], ...], n_q: int, n_kv: int, data: dict[str, object]
) -> None:
    strides = [part.stride for part in found if part.keys is None]
    assert strides == sorted(set(strides))
    assert all(part.keys is None for part in found[: len(strides)])
    assert not any(part.inner.data for part in found if part.stride > 1)
    if any(part.aligned and (n_kv - n_q) % part.stride for part in found):
        return
    own = with_captured(mask, data, None, n_q, n_kv)[1]
    total = sum(counted(part, n_q, n_kv, own) for part in found)
    assert (total == mask.dense(n_q, n_kv, **data)).all(), "every pair once, and no other"


@SLOW
@given(st.data(), masks(), lengths(24))
def test_random_masks(data, mask, sizes):
    check(mask, parts(decomposed(mask)), *sizes, data.draw(data_for(mask, *sizes)))


def regular() -> st.SearchStrategy[mc.Mask]:
    """Masks of distances, most of them multiples of a stride."""
    size, stride = st.integers(0, 5), st.integers(2, 6)
    width = size | st.sampled_from([mc.param("w", 3), mc.n_kv, mc.n_q, mc.n_q // 2])
    align = st.sampled_from(["end", "end", "end", "start"])

    def residue(s, r):
        return mc.where(lambda q, k: (q + mc.n_kv - mc.n_q - k) % s == r % s)

    return st.one_of(
        st.builds(
            lambda left, right, s, a: mc.dilated(left, right, stride=s, align=a),
            width, width, stride, align,
        ),
        st.builds(lambda s, r: residue(s, r) & mc.causal(), stride, size),
        st.builds(lambda s: mc.where(lambda q, k: (q - k) % s == 0) & mc.causal(), stride),
        st.builds(lambda s, first, n: mc.offsets(range(first * s, n * s, s)), stride, size, size),
        st.lists(st.integers(-4, 8), min_size=1).map(lambda ids: mc.offsets(2 * i for i in ids)),
        st.builds(mc.window, size, size),
    )  # fmt: skip


def irregular() -> st.SearchStrategy[mc.Mask]:
    return st.sampled_from([
        mc.causal(), mc.causal() & mc.sinks(2), mc.global_tokens(2), mc.strided(3), mc.chunked(4),
        mc.block_diagonal(4), mc.documents("doc"), mc.flags("seen"), mc.full(), mc.strided(4, 1),
    ])  # fmt: skip


@SLOW
@given(
    st.data(),
    st.lists(st.tuples(st.sampled_from("||||-&^"), regular()), min_size=1, max_size=3),
    st.none() | st.tuples(st.sampled_from("||-&"), irregular()),
    lengths(32),
)
def test_masks_of_distances(data, terms, other, sizes):
    mask = terms[0][1]
    for op, term in [*terms[1:], *([other] if other else [])]:
        mask = mc.Mask._combine(op, mask, term)
    ir, own = decomposed(mask), data.draw(data_for(mask, *sizes))
    check(mask, parts(ir), *sizes, own)

    def together(extents):
        """Each stride with any that divides it."""
        divide = {s: [t for t in (1, *extents) if s % t == 0] for s in extents}
        return {s: data.draw(st.sampled_from(ts)) for s, ts in divide.items()}

    check(mask, parts(ir, together), *sizes, own)


# ------------------------------------------------------------------ classes


@pytest.mark.parametrize("stride", [1, 2, 3, 4, 7, 12])
def test_classes_hold_every_token_once(stride):
    for n_q in range(16):
        for n_kv in range(16):
            runs = classes(stride, n_q, n_kv)
            assert len(runs) <= 3
            seen = {"q": np.zeros(n_q, dtype=int), "k": np.zeros(n_kv, dtype=int)}
            for run in runs:
                assert run.count > 0
                assert run.n_q + run.n_kv > 0
                assert run.n_q or run.first_query == 0
                for index in range(run.count):
                    q, k = tokens(run, index, stride)
                    seen["q"][q] += 1
                    seen["k"][k] += 1
                    position = q + n_kv - n_q
                    residues = set(position % stride) | set(k % stride)
                    assert residues == {run.first + index}
                    if run.n_q:
                        assert run.n_kv - run.n_q == position[0] // stride
            assert all((count == 1).all() for count in seen.values())
            for run, following in pairwise(runs):
                assert run.first + run.count <= following.first
                sizes = [(of.n_q, of.n_kv) for of in (run, following)]
                assert sizes[0] != sizes[1] or following.first_query == 0, "one run in two"


def test_named_lengths():
    assert classes(4, 16, 16) == (Classes(0, 4, 0, 4, 4),)
    assert classes(4, 10, 10) == (Classes(0, 2, 0, 3, 3), Classes(2, 2, 2, 2, 2))
    assert classes(4, 1, 9) == (Classes(0, 1, 0, 1, 3), Classes(1, 3, 0, 0, 2))
    assert classes(4, 5, 3) == (
        Classes(0, 2, 2, 1, 1), Classes(2, 1, 0, 2, 1), Classes(3, 1, 1, 1, 0),
    )  # fmt: skip
    assert classes(8, 2, 2) == (Classes(0, 2, 0, 1, 1),)
    assert classes(1, 7, 9) == (Classes(0, 1, 0, 7, 9),)
    assert classes(3, 0, 0) == ()
    assert classes(3, 0, 4) == (Classes(0, 1, 0, 0, 2), Classes(1, 2, 0, 0, 1))


# ------------------------------------------------------------------ named masks


def told(found: tuple[MaskPart[MaskIR], ...]) -> list[tuple[int, str]]:
    return [(part.stride, to_people(part.inner.keep)) for part in found]


def strides(ir: MaskIR) -> list[int]:
    return [part.stride for part in parts(ir)]


def same(ir: MaskIR, mask: mc.Mask) -> bool:
    return equals(ir.keep, driver.lowered(mask).keep) is True


W = mc.param("w", 7)
BEHIND = "(k <= q + n_kv - n_q) & (k >= q + n_kv - n_q - {})"


@pytest.mark.parametrize(
    ("mask", "stride", "inner"),
    [
        (mc.dilated(9, stride=4), 4, BEHIND.format(9)),
        (mc.dilated(9, 2, stride=4), 4,
         "(k <= q + n_kv - n_q + 2) & (k >= q + n_kv - n_q - 9)"),
        (mc.causal() & mc.dilated(mc.n_kv, mc.n_q, stride=6), 6, "k <= q + n_kv - n_q"),
        (mc.dilated(mc.n_kv, mc.n_q, stride=6), 6, "True"),
        (mc.dilated(W, stride=4), 4, "(k >= q + n_kv - w - n_q) & (k <= q + n_kv - n_q)"),
        (mc.dilated(20, stride=4) - mc.window(7), 4,
         "(k <= q + n_kv - n_q - 2) & (k >= q + n_kv - n_q - 20)"),
        (mc.dilated(8, stride=4) & mc.window(9), 4, BEHIND.format(2)),
        (mc.offsets(range(0, 100, 5)), 5, BEHIND.format(19)),
        (mc.offsets(range(0, 400, 4)), 4, BEHIND.format(99)),
        (mc.where(lambda q, k: ((q + mc.n_kv - mc.n_q - k) % 6 == 3) & (k <= q + mc.n_kv - mc.n_q)),
         3, "((q + n_kv - k - n_q + 1) % 2 == 0) & (k < q + n_kv - n_q)"),
    ],
)  # fmt: skip
def test_one_stride(mask, stride, inner):
    pieces = parts(decomposed(mask))
    assert told(pieces) == [(stride, inner)]
    assert pieces[0].inner.pieces


def test_every_piece_has_its_largest_stride():
    assert told(parts(decomposed(mc.dilated(9, stride=4) | mc.dilated(8, stride=8)))) == [
        (4, BEHIND.format(9)), (8, "(k <= q + n_kv - n_q - 5) & (k >= q + n_kv - n_q - 8)"),
    ]  # fmt: skip
    assert strides(decomposed(mc.dilated(8, stride=4) | mc.dilated(8, stride=6))) == [4, 6, 12]


@pytest.mark.parametrize(
    "mask",
    [
        mc.full(), mc.causal(), mc.window(9), mc.strided(4), mc.causal() & mc.strided(4, 1),
        mc.chunked(8), mc.global_tokens(4), mc.documents("doc"), mc.offsets([0, 3, 7]),
        mc.dilated(0, stride=4), mc.causal() - mc.causal(), ~mc.dilated(6, stride=4),
        mc.offsets([0, 8, 24, 32]), mc.offsets([256, 512, 520]),
        mc.dilated(5, stride=4) & mc.documents("doc"),
        mc.dilated(5, stride=4) & mc.strided(4),
        mc.dilated(5, stride=4) & mc.chunked(8),
        mc.dilated(mc.n_q // 2, stride=4),
        mc.dilated(5, stride=4, align="start"),
        mc.where(lambda q, k: k == q + mc.n_kv - mc.n_q - 4 * mc.param("w", 7)),
    ],
)  # fmt: skip
def test_masks_that_stay_whole(mask):
    ir = decomposed(mask)
    pieces = parts(ir)
    assert len(pieces) == 1
    assert pieces[0].stride == 1
    assert pieces[0].inner is ir


def test_slashes_go_along_with_a_stride_that_divides_their_distance():
    mask = mc.dilated(9, 1, stride=4) - mc.window(3, 3)
    (part,) = parts(decomposed(mask))
    assert part.stride == 4
    assert same(part.inner, mc.window(9, 1) - mc.offsets([0]))
    wide = mask | mc.offsets([8 * 40, 1001, 2002])
    rest, part = parts(decomposed(wide))
    assert same(rest.inner, mc.offsets([1001, 2002]))
    assert same(part.inner, (mc.window(9, 1) - mc.offsets([0])) | mc.offsets([80]))
    both = mc.dilated(6, stride=2) | mc.dilated(6, stride=4) | mc.offsets([82, 84, 1001])
    rest, by_two, by_four = parts(decomposed(both))
    assert same(rest.inner, mc.offsets([1001]))
    assert same(by_two.inner, mc.window(6) | mc.offsets([41]))
    assert same(by_four.inner, mc.window(6) - mc.window(3) | mc.offsets([21]))


def test_exponential_dilation_is_one_band_per_stride():
    pieces = parts(published("exponential_dilation", window=64, levels=5))
    assert [part.stride for part in pieces] == [1, 2, 4, 8, 16]
    assert told(pieces)[0] == (1, BEHIND.format(63))
    further = "(k <= q + n_kv - n_q - 32) & (k >= q + n_kv - n_q - 63)"
    assert told(pieces)[1:] == [(2**level, further) for level in range(1, 5)]
    assert all([piece.kind for piece in part.inner.pieces] == [PieceKind.band] for part in pieces)


def test_window_or_dilation():
    mask = mc.window(3, 3) | mc.dilated(9, 9, stride=2)
    near, far = parts(decomposed(mask))
    assert told((near,)) == [(1, "(k >= q + n_kv - n_q - 3) & (k <= q + n_kv - n_q + 3)")]
    assert far.stride == 2
    inner = mc.window(9, 9) - mc.window(1, 1)
    assert same(far.inner, inner)
    assert [piece.kind for piece in far.inner.pieces] == [PieceKind.band] * 2
    terms = {origin.term for _, origin in far.inner.origins}
    assert terms == {"window(3, 3)", "dilated(9, 9, stride=2)"}


def test_published_masks():
    expected = {
        "dilated_longformer": [1, 2], "exponential_dilation": [1, 2, 4, 8],
        "sparse_transformer_strided": [1, 128], "axial": [1, 64], "landmark": [1, 64],
        "longnet": [1, 12], "sparse_transformer_fixed": [1] + 8 * [128],
    }  # fmt: skip
    names = [path.stem for path in sorted(FOLDER.glob("*.py"))]
    assert {name: strides(published(name)) for name in names} == {
        name: expected.get(name, [1]) for name in names
    }


def test_published_masks_inside_their_classes():
    strided = parts(published("sparse_transformer_strided", stride=8))
    assert told(strided) == [(1, BEHIND.format(7)), (8, "k < q + n_kv - n_q")]
    rest, dilated = parts(published("dilated_longformer", window=16, n_global=5))
    assert [piece.kind for piece in rest.inner.pieces] == [PieceKind.columns, PieceKind.rows]
    assert same(dilated.inner, mc.window(16, 16))
    assert same(rest.inner, mc.global_tokens(5) - mc.dilated(16, 16, stride=2))
    rows, columns = parts(decomposed(mc.block_diagonal(8) | mc.dilated(mc.n_kv, mc.n_q, stride=8)))
    assert same(rows.inner, mc.block_diagonal(8))
    assert same(columns.inner, ~mc.offsets([0])), "without what rows have"


# ------------------------------------------------------------------ masks of parts


def test_parts_read_what_they_need_and_accept_what_the_mask_does():
    mask = mc.dilated(mc.param("w", 5), stride=4) | mc.documents("doc") & mc.window(
        mc.param("u", 9)
    )
    ir = decomposed(mask)
    rest, dilated = parts(ir)
    assert (dilated.stride, dilated.inner.data, dilated.inner.params) == (4, (), {"w": 5})
    assert (rest.inner.data, rest.inner.params) == (ir.data, {"u": 9, "w": 5})
    assert rest.inner.declared == dilated.inner.declared == {"w", "u", "doc"}


def test_comparisons_of_a_class_know_the_users_term():
    (part,) = parts(decomposed(mc.dilated(9, 2, stride=4)))
    comparisons = {n for n in E.walk(part.inner.keep) if isinstance(n, E.Cmp)}
    assert {atom for atom, _ in part.inner.origins} == comparisons
    assert {origin.term for _, origin in part.inner.origins} == {"dilated(9, 2, stride=4)"}


@pytest.mark.parametrize("target", ["cpu", "sm_80", "sm_90a"])
def test_parts_can_be_planned(target):
    problem = driver.problem(64, None, None, "float32" if target == "cpu" else "bfloat16")
    for part in parts(published("exponential_dilation")):
        assert analyse(part.inner).translation_invariant.holds
        made = plan(HeadGroups((part.inner,), (analyse(part.inner),), ()), problem, TARGETS[target])
        assert made.use_ranges, "a band needs no lists"
    rest = parts(published("dilated_longformer"))[0].inner
    plan(HeadGroups((rest,), (analyse(rest),), ()), problem, TARGETS[target])


# ------------------------------------------------------------------ limits


@pytest.mark.parametrize("operations", [1, 100, 1000, 3000, 10_000, 50_000])
def test_a_question_too_hard_leaves_pieces_where_they_are(operations, monkeypatch):
    mask = mc.window(3) | mc.dilated(6, 6, stride=2) | mc.dilated(4, stride=6) | mc.sinks(2)
    ir = decomposed(mask)
    assert [part.stride for part in parts(ir)][:2] == [1, 2]
    monkeypatch.setattr(relayout, "budget", lambda: sets.budget(operations))
    pieces = parts(ir)
    if operations == 1:
        assert pieces == (MaskPart(1, ir),)
    check(mask, pieces, 33, 33, {})
    check(mask, pieces, 12, 29, {})


def test_a_wrong_reading_is_noticed(monkeypatch):
    class Wrong(relayout.PieceReader):
        def condition(self, points):
            return E.ALWAYS

    ir = decomposed(mc.dilated(9, stride=4))
    monkeypatch.setattr(relayout, "PieceReader", Wrong)
    with pytest.raises(DecompositionBroken):
        parts(ir)


def test_an_undecomposed_mask_is_one_part():
    ir = driver.lowered(mc.dilated(9, stride=4))
    assert parts(ir) == (MaskPart(1, ir),)


# ------------------------ strides that run with a lesser one


def test_strides_run_together():
    """Data are read as plainly as each alone; extents are given to whoever chooses."""
    ir = published("exponential_dilation", window=64, levels=5)
    asked = []
    rest, four = parts(ir, lambda e: asked.append(e) or {1: 1, 2: 1, 4: 4, 8: 4, 16: 4})
    assert asked == [{1: None, 2: 31, 4: 31, 8: 31, 16: 31}]
    assert same(rest.inner, mc.window(63) | mc.dilated(63, stride=2))
    inner = [mc.dilated(63, stride=2**i) - mc.dilated(31, stride=2**i) for i in range(3)]
    assert same(four.inner, inner[0] | inner[1] | inner[2])
    assert not parts(decomposed(mc.dilated(W, stride=4)), lambda e: {4: 4})[0].aligned
    (whole,) = parts(ir, lambda e: dict.fromkeys(e, 1))
    assert whole.inner is ir


def test_what_holds_at_aligned_lengths_keeps_its_stride():
    """A multiple of 4 between the lengths is enough for one piece, not for the other."""
    eight = mc.window(40) & mc.where(lambda q, k: (q - k) % 8 == 0)
    mask = eight | mc.dilated(7, stride=4)
    ir = decomposed(mask)
    pieces = parts(ir, lambda extents: {1: 1, 4: 4, 8: 4})
    assert [(part.stride, part.aligned) for part in pieces] == [(4, False), (8, True)]
    for n_q, n_kv in ((23, 27), (23, 31), (31, 23), (24, 28)):
        check(mask, pieces, n_q, n_kv, {})


def test_passes_are_saved_where_tiles_cost_less():
    """The planner's choice: a pass costs as much as a few tiles."""
    assert strides_together({1: None, 2: 127, 4: 127, 8: 127, 16: 127, 32: 127}) == {
        1: 1, 2: 1, 4: 1, 8: 8, 16: 8, 32: 8,
    }  # fmt: skip
    assert strides_together({4: 511}) == {4: 4}
    assert strides_together({1: None, 128: None}) == {1: 1, 128: 128}
    assert strides_together({4: 100, 6: 10, 12: 10}) == {4: 4, 6: 6, 12: 6}
    assert strides_together({1: None, 64: 500}) == {1: 1, 64: 64}
