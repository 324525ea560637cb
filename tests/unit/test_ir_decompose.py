"""Named masks fall into the pieces that their papers speak of; equal masks into equal pieces."""

from __future__ import annotations

import random
from dataclasses import fields, is_dataclass
from pathlib import Path

import islpy as isl
import pytest

import maskc as mc
from maskc import driver
from maskc.core import expr as E
from maskc.core.expr_text import to_people
from maskc.core.target import TARGETS
from maskc.driver import analyse_heads
from maskc.ir import decompose as decomposing
from maskc.ir import pieces_space
from maskc.ir.decompose import decompose
from maskc.ir.lower import lower
from maskc.ir.set_comparison import equals
from maskc.ir.sets import greatest, least
from maskc.ir.types import Band, Columns, Lattice, Piece, PieceKind, Rows, Segments, Table
from maskc.layout import distance_words
from maskc.plan.explain import explain

FOLDER = Path(__file__).parents[2] / "patterns"


def pieces(mask: mc.Mask, heads: int | None = None) -> tuple[Piece, ...]:
    return decompose(driver.lowered(mask, 0, heads)).pieces


def kinds(found: tuple[Piece, ...]) -> list[str]:
    return [str(piece.kind) for piece in found]


def published(name: str, **parameters: object) -> tuple[Piece, ...]:
    mask = mc.load(FOLDER / f"{name}.py")[name](**parameters)
    return pieces(mask, 4 if name == "longnet" else None)


def same(formula: E.Expr, mask: mc.Mask) -> bool:
    return equals(formula, driver.lowered(mask).keep) is True


# ------------------------------------------------------------------ published masks


def test_one_band():
    masks = [
        mc.full(), mc.causal(), mc.window(9), mc.window(4, 3), mc.block_diagonal(8), mc.chunked(8),
        mc.causal() | mc.prefix(64), mc.window(mc.param("w", 5)), mc.causal(align="start"),
    ]  # fmt: skip
    for mask in masks:
        (piece,) = pieces(mask)
        assert piece.kind is PieceKind.band, mask
        assert isinstance(piece.detail, Band)
        assert same(piece.keep, mask)
    shifting = [piece.detail.shifts for mask in masks for piece in pieces(mask)]
    assert shifting == [True, True, True, True, False, False, False, True, True]


def test_ends_of_a_window():
    (piece,) = pieces(mc.window(7, 2))
    (span,) = piece.detail.spans
    assert to_people(span.first) == "max(q + n_kv - n_q - 7, 0)"
    assert to_people(span.last) == "min(n_kv - 1, q + n_kv - n_q + 2)"


def test_prefix_lm_is_one_band_of_two_slopes():
    (piece,) = published("prefix_lm", n_prefix=64)
    (span,) = piece.detail.spans
    assert to_people(span.first) == "0"
    assert to_people(span.last) == "min(max(q + n_kv - n_q, 63), n_kv - 1)"


def test_exponential_dilation_is_one_band_per_level():
    mask = published("exponential_dilation", window=64, levels=6)
    assert kinds(mask) == ["band"] + ["lattice"] * 5
    assert same(mask[0].keep, mc.window.hf(64))
    for level, piece in enumerate(mask[1:], 1):
        stride = 2**level
        assert piece.detail.stride == stride
        assert piece.detail.difference == 0
        earlier = 63 * stride // 2
        own = mc.where(lambda q, k, e=earlier: k < q + mc.n_kv - mc.n_q - e)
        expected = mc.dilated(63, stride=stride) & own
        assert same(piece.keep, expected)
        assert E.symbols(piece.detail.band) == {"t_q", "t_k"}, "the congruence is gone"


def test_streaming_is_a_band_and_columns():
    band, columns = published("streaming", n_sinks=4, window=100)
    assert same(band.keep, mc.window.hf(100))
    assert columns.kind is PieceKind.columns
    assert same(columns.keep, (mc.sinks(4) & mc.causal()) - mc.window(99))
    assert same(columns.detail.keys, mc.sinks(4))
    assert to_people(columns.detail.queries) == "q >= n_q - n_kv + 103"


def test_symbolic_widths_stay_symbolic():
    w = mc.param("w", 100)
    band, columns = pieces(mc.causal() & (mc.sinks(4) | mc.window(w)))
    assert band.detail.shifts
    assert to_people(columns.detail.queries) == "q >= w + n_q - n_kv + 4"


def test_longformer_is_a_band_columns_and_rows():
    band, columns, rows = published("longformer", window=16, n_global=5)
    assert same(band.keep, mc.window(16, 16))
    assert isinstance(columns.detail, Columns)
    assert same(columns.detail.keys, mc.sinks(5))
    assert isinstance(rows.detail, Rows)
    assert same(rows.detail.queries, mc.global_tokens(5).rows)
    assert same(rows.keep, mc.global_tokens(5).rows & mc.window(0, None) & ~mc.window(None, 16))


def test_dilated_longformer_has_a_lattice_for_its_band():
    lattice, columns, rows = published("dilated_longformer", window=16, dilation=2, n_global=5)
    assert isinstance(lattice.detail, Lattice)
    assert lattice.detail.stride == 2
    assert to_people(lattice.detail.band) == "(t_q >= t_k - 16) & (t_k >= t_q - 16)"
    assert kinds((columns, rows)) == ["columns", "rows"]


def test_sparse_transformer_strided():
    band, lattice = published("sparse_transformer_strided", stride=8)
    assert same(band.keep, mc.window(7))
    assert (lattice.detail.stride, lattice.detail.difference) == (8, 0)
    assert to_people(lattice.detail.band) == "t_q > t_k"


def test_sparse_transformer_fixed():
    band, lattice = published("sparse_transformer_fixed", length=8, summary=2)
    assert same(band.keep, mc.chunked(8))
    detail = lattice.detail
    assert (detail.stride, detail.key_phase, detail.width) == (8, 6, 2)
    assert (detail.query_phase, detail.difference) == (None, None)
    assert to_people(detail.queries) == "t_q"
    assert to_people(detail.keys) == "j + 8 * t_k + 6"


def test_landmarks_behind_the_causal_edge_are_a_lattice_and_without_it_columns():
    band, lattice = published("landmark", window=10, block=8)
    assert (lattice.detail.stride, lattice.detail.key_phase) == (8, 7)
    assert band.detail.shifts
    (columns,) = pieces(mc.strided(8, 7))
    assert columns.kind is PieceKind.columns
    assert same(columns.detail.keys, mc.strided(8, 7))
    assert to_people(columns.detail.queries) == "n_kv >= 8"


def test_bigbird_gives_random_blocks_what_nobody_else_has():
    mask = published("bigbird_itc", block=8)
    assert kinds(mask) == ["band", "columns", "rows", "table"]
    assert mask[-1].detail == Table("random_8_3_0", 8)
    assert kinds(published("bigbird_etc", block=8, n_global=8)) == kinds(mask)


def test_tri_shape_and_vertical_slash():
    assert kinds(published("tri_shape")) == ["band", "columns", "rows"]
    mask = published("vertical_slash")
    assert kinds(mask) == ["band", "band", "band", "columns"]
    assert same(mask[1].keep, mc.offsets([256]))
    assert same(mask[-1].detail.keys, mc.sinks(4))


def test_block_diffusion_is_three_bands():
    assert kinds(published("block_diffusion", block=4)) == ["band"] * 3


def test_axial_is_a_band_and_both_sides_of_a_lattice():
    band, before, after = published("axial", width=8)
    assert same(band.keep, mc.block_diagonal(8))
    assert to_people(before.detail.band) == "t_q > t_k"
    assert before.detail.stride == after.detail.stride == 8


def test_longnet_has_a_lattice_per_rate():
    mask = published("longnet", segments=(16, 32, 64), rates=(1, 2, 4))
    assert kinds(mask) == ["band", "lattice", "lattice"]
    phases = [(p.detail.stride, p.detail.query_phase, p.detail.key_phase) for p in mask[1:]]
    assert phases == [(2, 0, 0), (4, 0, 0)]


def test_logsparse_is_a_band_per_power():
    mask = published("logsparse")
    assert kinds(mask) == ["band"] * 30
    assert same(mask[0].keep, mc.window(2))
    assert [same(mask[i].keep, mc.offsets([2 ** (i + 1)])) for i in (1, 5, 29)] == [True] * 3


# ------------------------------------------------------------------ complements and algebra


def test_complements():
    before, after = sorted(pieces(~mc.window(5)), key=lambda piece: piece.keep.key)
    assert {before.kind, after.kind} == {PieceKind.band}
    assert before.detail.shifts
    assert after.detail.shifts
    found = pieces(~mc.dilated(6, stride=4))
    assert kinds(found) == ["band", "band", "lattice"]
    assert (found[-1].detail.difference, found[-1].detail.width) == (1, 3)
    (lattice,) = pieces(mc.causal() - mc.strided(4))
    assert (lattice.detail.stride, lattice.detail.key_phase, lattice.detail.width) == (4, 1, 3)
    assert kinds(pieces(~mc.block_diagonal(8))) == ["band", "band"]
    assert kinds(pieces(mc.window(9) ^ mc.sinks(3))) == ["band", "band", "columns"]
    assert pieces(mc.causal() & ~mc.causal()) == ()


def test_residues_that_are_no_run_are_a_set():
    (piece,) = pieces(mc.where(lambda q, k: ((q * 3 + k * 5) % 7 < 2) & (k <= q)))
    assert piece.kind is PieceKind.set
    assert piece.detail is None


def test_equal_masks_have_equal_pieces():
    window, sinks, wide = mc.window(9), mc.causal() & mc.sinks(4), mc.window(None)
    stride = mc.dilated(20, stride=4)
    groups = [
        [window | sinks, sinks | window, window | (sinks - window), (window - sinks) | sinks,
         mc.causal() & (mc.window(9) | mc.sinks(4)), ~(~window & ~sinks),
         mc.where(lambda q, k: (k <= q + mc.n_kv - mc.n_q)
                  & ((k < 4) | (q + mc.n_kv - mc.n_q - k < 10)))],
        [wide & mc.window(20), mc.window(5) | mc.window(20),
         (mc.window(20) - mc.window(5)) | mc.window(5)],
        [window | stride, (stride - window) | window, stride ^ (window - stride),
         mc.window(3) | stride | mc.window(9)],
        [mc.causal(), wide, mc.full() & mc.causal(), mc.chunked(8) | (mc.causal() - mc.chunked(8))],
        [mc.strided(4) & wide, mc.causal() - ~mc.strided(4),
         mc.where(lambda q, k: (k // 4 * 4 == k) & (k <= q + mc.n_kv - mc.n_q))],
        [mc.causal() & (mc.strided(4) | mc.sinks(6)),
         mc.causal() & ((mc.strided(4) - mc.sinks(6)) | mc.sinks(6))],
        [mc.window(6, 6) | mc.global_tokens(3),
         mc.global_tokens(3).rows | mc.window(6, 6) | mc.global_tokens(3).columns,
         (mc.sinks(3) - mc.window(6, 6)) | mc.window(6, 6) | mc.global_tokens(3).rows],
    ]  # fmt: skip
    for group in groups:
        found = [pieces(mask) for mask in group]
        found += [decompose(lower(mask)).pieces for mask in group]  # as written
        assert all(other == found[0] for other in found), group[0]


# ------------------------------------------------------------------ data


def test_data_have_their_kinds():
    doc, grid = mc.documents("doc"), mc.block_table("grid", 16)
    (piece,) = pieces(mc.causal() & doc)
    assert piece.kind is PieceKind.segments
    assert piece.detail == Segments(("doc.q", "doc.k"))
    assert kinds(pieces(mc.tree("walk"))) == ["segments"]
    assert kinds(pieces(mc.intervals("span") & mc.causal())) == ["segments"]
    assert kinds(pieces(grid)) == kinds(pieces(~grid)) == ["table"]
    assert kinds(pieces(mc.flags("seen"))) == ["columns"]
    assert kinds(pieces(mc.flags("awake", on="q"))) == ["rows"]
    assert kinds(pieces(~doc)) == ["set"]
    assert kinds(pieces(doc & grid)) == ["set"]


def test_data_lose_what_formulas_own():
    band, segments = pieces(mc.window(4) | mc.documents("doc"))
    assert band.detail.shifts
    assert same(segments.keep, mc.documents("doc") - mc.window(4))
    columns, documents = published("shared_prefix", n_prefix=8)
    assert same(columns.keep, mc.causal() & mc.sinks(8))
    assert documents.kind is PieceKind.segments
    one, two = mc.block_table("one", 8), mc.block_table("two", 4)
    by_name = {piece.detail.array: piece for piece in pieces(one | two)}
    assert by_name["two"].detail == Table("two", 4)
    assert same(by_name["one"].keep, one)
    assert same(by_name["two"].keep, two - one)


# ------------------------------------------------------------------ limits and manners


@pytest.fixture
def forgetful():
    """Pieces are not remembered from one test to another."""
    decomposing.pieces_of.cache_clear()
    yield decomposing.pieces_of.cache_clear
    decomposing.pieces_of.cache_clear()


def test_too_hard_masks_are_one_set(monkeypatch, forgetful):
    mask = mc.window(9) | mc.strided(4)
    assert "set" not in kinds(pieces(mask))
    forgetful()
    monkeypatch.setattr(decomposing, "_OPERATIONS", 1)
    assert pieces(mask) == (Piece(driver.lowered(mask).keep),)


def test_too_hard_questions_leave_a_set(monkeypatch, forgetful):
    monkeypatch.setattr(pieces_space, "_OPERATIONS", 1)
    assert kinds(pieces(mc.window(9) | mc.strided(4))) == ["set"]


def test_many_conjunctions_are_one_set():
    assert kinds(pieces(mc.offsets(n * n for n in range(100)))) == ["set"]


def test_no_isl_object_escapes():
    def look(value: object) -> None:
        assert "isl" not in type(value).__module__
        if isinstance(value, tuple):
            list(map(look, value))
        elif is_dataclass(value):
            list(map(look, (getattr(value, field.name) for field in fields(value))))

    for name in ("longformer", "sparse_transformer_fixed", "bigbird_itc"):
        look(published(name))


@pytest.mark.parametrize("name", ["longformer", "logsparse"])
def test_explain_names_kinds(name):
    mask = mc.load(FOLDER / f"{name}.py")[name]()
    made = driver.plan_kernel(mask, driver.problem(64, None, None, "bfloat16"), TARGETS["cpu"])
    lines = [line for line in explain(made).splitlines() if line.startswith("piece")]
    if name == "longformer":
        assert (
            lines[0] == "piece    band: (k >= q + n_kv - n_q - 256) & (k <= q + n_kv - n_q + 256)"
        )
        assert [line.split(":")[0].split()[1] for line in lines] == ["band", "columns", "rows"]
    else:
        assert lines[-1] == "piece    band: 22 more"
        assert len(lines) == 9


@pytest.mark.parametrize("name", ["x", "a", "c", "d", "m", "t_q", "q2", "i0", "counter"])
def test_no_name_of_a_parameter_is_one_of_ours(name):
    """Proofs do not depend on names: isl and tables have their own."""

    def proved(name):
        width = mc.param(name, 64)
        gap = (mc.sinks(width) & mc.causal()) | mc.where(lambda q, k: k == q)
        for mask in (gap, mc.causal() & (mc.strided(8) | mc.window(width))):
            (ir,), (facts,) = (heads := analyse_heads(mask)).masks, heads.facts
            words = distance_words(ir.keep, 70, 90, {name: 33}).tolist()
            rows = mask.layout(70, 90, block=(16, 16), **{name: 33}).to_dense().tolist()
            text = repr((ir.pieces, facts, words, rows))
            yield text.replace(f"Param(name={name!r}", "Param(name=")

    assert list(proved(name)) == list(proved(f"{name}_"))


def test_what_is_taken_for_true():
    """A comparison and its negation, those that read arrays, and numbers for names."""
    same = E.eq(E.Load("d", (E.Q,)), E.Load("d", (E.K,)))
    rest = E.le(E.K, E.Param("w", 3))
    for holds, other in ((True, E.NEVER), (False, rest)):
        assert E.assume(E.conj(E.negate(same), rest), same, holds) == other
        assert E.assume(E.disj(same, rest), same, holds) == (E.ALWAYS if holds else rest)
    assert E.assume_reads(E.conj(same, rest), True) == rest
    assert E.assume_reads(E.conj(same, rest), False) == E.NEVER
    assert E.assume_reads(E.conj(same, rest), False, {"other"}) == E.conj(same, rest)
    assert E.with_values(rest, {"w": 5, "k": 2}) == E.ALWAYS
    assert E.with_values(rest, {"w": 5}) == E.le(E.K, E.const(5))


# ------------------------------------------------------------------ ends of sets


def drawn(rng: random.Random) -> isl.Set:
    """A union of bands and residue classes at one length; some parts have no point there."""
    parts = []
    for _ in range(rng.randint(1, 8)):
        apart, stride = rng.randint(0, 12), rng.randint(2, 5)
        band = f"k = q - {apart}"
        lattice = f"q - k >= {apart} and (q - k) mod {stride} = {rng.randint(0, 1)}"
        parts.append(f"({band if rng.random() < 0.5 else lattice})")
    text = f"{{ [n, q, k] : 0 <= k and 0 <= q < n <= 14 and ({' or '.join(parts)}) }}"
    length = isl.Val.int_from_si(isl.DEFAULT_CONTEXT, rng.randint(1, 14))
    return isl.Set(text).fix_val(isl.dim_type.set, 0, length)


def test_ends_of_unions_with_empty_parts():
    """isl's dim_min_val says 0 for some of these, where the least q is 3."""
    rng, wrong_in_isl = random.Random(1), 0
    for _ in range(400):
        points = drawn(rng)
        values: list[int] = []
        points.foreach_point(
            lambda p, values=values: values.append(
                p.get_coordinate_val(isl.dim_type.set, 1).to_python()
            )
        )
        if values:
            assert least(points, 1).to_str() == str(min(values))
            assert greatest(points, 1).to_str() == str(max(values))
            wrong_in_isl += points.dim_min_val(1).to_str() != str(min(values))
    assert wrong_in_isl  # or `least` is not needed any more


@pytest.mark.parametrize(("text", "ends"), [
    ("{ [x] : x >= 3 }", ("3", "infty")), ("{ [x] : x <= 3 }", ("-infty", "3")),
    ("{ [x] : x = 1 or x >= 5 }", ("1", "infty")),
    ("{ [x] : x < 2 and x > 3 }", ("infty", "-infty")),
])  # fmt: skip
def test_sets_without_ends(text: str, ends: tuple[str, str]):
    points = isl.Set(text)
    assert (least(points, 0).to_str(), greatest(points, 0).to_str()) == ends
