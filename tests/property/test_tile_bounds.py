"""The interpreter of formulas on whole tiles: its C text says what its NumPy form says, and on data
in order nothing is lost."""

from __future__ import annotations

import ctypes
import subprocess

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskc as mc
from maskc.build.hostcc import host_compiler
from maskc.core import expr as E
from maskc.core.expr import Expr
from maskc.core.library import standing_alone
from maskc.core.problem import TileShape
from maskc.core.tile_bounds import Span
from maskc.emit.tile_bounds_text import tile_text
from maskc.ir.lift import lift
from maskc.ir.lower import lower
from maskc.layout import bind_arrays
from maskc.layout.tiles.bounds import Analyst, PairBoxes
from maskc.layout.tiles.data_tiles import hull, split
from maskc.layout.tiles.elements import Elements
from tests.property.test_layout_engine import ARRAYS, ATOMS, WIDTH, classes, dense, formula

N = 50
READ = ["vector", "sorted", "table"]  # whose bounds are exact, in both languages
FORMULAS = formula(ATOMS, READ)
HEAD = """
typedef int i32; typedef long long i64;
#define FN static inline
#define WITH_WIDE 1
#include "common/lib/formulas.h"
#include "common/lib/tile_bounds.h"
FN struct Span entries(const i32 *x, i64 width, i64 rows, i64 r0, i64 r1, i64 c0, i64 c1) {
    struct Span found = span(0x7fffffff, -0x7fffffff - 1);
    for (i64 row = r0; row <= r1; row++)
        for (i64 column = c0; column <= c1; column++) {
            const i64 v = x[row * width + column];
            found = span(min_int(found.low, v), max_int(found.high, v));
        }
    return found;
}
"""


def read(node: E.Load, index: tuple[Span, ...]) -> str:
    array = ARRAYS[node.array]
    rows, columns = (1, *array.shape)[-2:]
    spans = index if len(index) > 1 else (Span(0, 0), *index)
    ends = ", ".join(str(end) for span in spans for end in span)
    return f"entries({node.array}, {columns}, {rows}, {ends})"


def source(formulas: list[Expr]) -> str:
    """A function for each formula; constants come in an array, as kernels have them."""
    text = [standing_alone(HEAD)]
    for name in READ:
        values = ", ".join(map(str, ARRAYS[name].ravel()))
        text.append(f"static const i32 {name}[] = {{{values}}};")
    for number, keep in enumerate(formulas):
        lifted = lift(keep, lists=False)
        found = tile_text(lifted.shape, read)
        members = "".join(f"i64 c{i}; " for i in range(len(lifted.args))) or "i64 none; "
        body = "\n    ".join(found.lines)
        text.append(f"""
struct Mask{number} {{ {members}}};
i32 classify{number}(const i64 *args, i64 q0, i64 q1, i64 k0, i64 k1) {{
    const struct Mask{number} m = *(const struct Mask{number} *)args;
    (void)q0, (void)q1, (void)k0, (void)k1, (void)m;
    {body}
    return ({found.may}) | ({found.must}) << 1;
}}""")
    return "\n".join(text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tiles")


@settings(max_examples=4, derandomize=True)
@given(st.lists(FORMULAS, min_size=25, max_size=25), st.integers(0, 1000))
def test_c_says_what_numpy_says(folder, formulas: list[Expr], seed: int) -> None:
    values = {"n_q": N, "n_kv": N, "width": 3}
    known = {E.N_Q: E.const(N), E.N_KV: E.const(N), WIDTH: E.const(3)}
    path = folder / f"lists{seed}.c"
    path.write_text(source(formulas))
    library = path.with_suffix(".so")
    command = (*host_compiler().command, "-O1", "-shared", "-fPIC", "-std=gnu11")
    subprocess.run([*command, "-o", str(library), str(path)], check=True, timeout=300)
    built = ctypes.CDLL(str(library))
    rng = np.random.default_rng(seed)
    corners = np.sort(rng.integers(0, N, (20, 2, 2)), axis=2)
    boxes = PairBoxes(*corners.reshape(20, 4).T)
    for number, keep in enumerate(formulas):
        lifted = lift(keep, lists=False)
        args = [int(E.as_const(E.substitute(arg, known))) for arg in lifted.args]
        block = (ctypes.c_longlong * max(1, len(args)))(*args)
        may, must = Analyst(ARRAYS).verdict(E.substitute(keep, known), boxes)
        call = getattr(built, f"classify{number}")
        call.argtypes = [ctypes.c_void_p, *(ctypes.c_longlong,) * 4]
        live = dense(keep, N, N)
        for box, ((q0, q1), (k0, k1)) in enumerate(corners.tolist()):
            found = call(block, q0, q1, k0, k1)
            pairs = live[q0 : q1 + 1, k0 : k1 + 1]
            assert found & 1 or not pairs.any(), (keep, values)
            assert pairs.all() or not found >> 1, keep
            assert (found & 1, found >> 1) == (may[box], must[box]), keep


def test_numbers_of_a_list_are_told_to_their_ends():
    """Rows that begin or end where a range of the list does."""
    listed = [2, 3, 4, 9, 10, 12]
    low, high = np.array([(a, b) for a in range(14) for b in range(a, 14)]).T
    boxes = PairBoxes(low, high, np.zeros_like(low), np.zeros_like(low))
    may, must = Analyst({}).verdict(E.member(E.Q, listed), boxes)
    inside = [np.isin(np.arange(a, b + 1), listed) for a, b in zip(low, high, strict=True)]
    assert may.tolist() == [x.any() for x in inside]
    assert must.tolist() == [x.all() for x in inside]


def test_boxes_at_an_edge_are_counted_without_what_they_repeat():
    """Boxes of 5 x 3 pairs that do not begin at the first token."""
    sides = [np.array([side]) for side in (32, 36, 16, 18)]
    assert Elements(E.ALWAYS, {}, 37, 19).count(PairBoxes(*sides)) == 5 * 3


@settings(max_examples=200)
@given(formula(ATOMS, READ))
def test_the_hull_keeps_all_that_data_could(keep: Expr) -> None:
    live, whole = dense(keep, N, N), dense(hull(keep), N, N)
    assert not (live & ~whole).any()
    found = split(keep)
    assert (dense(found.hull, N, N) >= live).all()
    if found.exact:
        assert (dense(E.conj(found.hull, found.rest), N, N) == live).all()


def sorted_ids(rng, n):
    return np.repeat(np.arange(n), rng.integers(1, 90, n))[:n]


def ends(rng, n):
    return np.zeros(n, int), np.full(n, rng.integers(1, n + 1))


def walk(rng, n):
    """A random tree in preorder."""
    last, path = np.full(n, n), []
    for token in range(n):
        while path and rng.random() < 0.2:
            last[path.pop()] = token
        path.append(token)
    return np.arange(n), last


FAMILIES = {
    "documents": (mc.documents("x"), sorted_ids),
    "documents, causal": (mc.documents("x") & mc.causal(), sorted_ids),
    "documents in a window": (mc.documents("x") & mc.window(40), sorted_ids),
    "padding": (mc.intervals("x") & mc.causal(), ends),
    "prefix": (mc.intervals("x") | mc.causal(), ends),
    "flags": (mc.flags("x") & mc.causal(), lambda rng, n: np.arange(n) < rng.integers(1, n)),
    "tree": (mc.tree("x"), walk),
    "blocks": (mc.block_table("x", 32), lambda rng, n: rng.random((-(-n // 32),) * 2) < 0.4),
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("sizes", [(32, 32), (64, 32), (32, 64), (16, 16)])
def test_nothing_is_lost_on_data_in_order(name, sizes):
    mask, draw = FAMILIES[name]
    n, tile = 500, TileShape(*sizes)
    data = {"x": draw(np.random.default_rng(7), n)}
    ir = lower(mask)
    arrays = bind_arrays(tuple(ir.data), data, n, n)
    keep = E.substitute(ir.keep, {E.N_Q: E.const(n), E.N_KV: E.const(n)})
    q, k = (np.arange(0, n, side) for side in sizes)
    boxes = PairBoxes(
        q[:, None], np.minimum(q + tile.q, n)[:, None] - 1, k[None],
        np.minimum(k + tile.k, n)[None] - 1,
    )  # fmt: skip
    may, must = Analyst(arrays).verdict(keep, boxes)
    want = classes(mask.dense(n, **data), tile)
    assert (may.astype(int) + must == want).all()
