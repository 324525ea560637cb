"""`where` follows a function exactly, or refuses it with the line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import maskc as mc
from maskc.core.errors import (
    ArgumentOrder,
    BatchUsed,
    DataRange,
    MaskcError,
    MaskUsedAsBool,
    NotTraceable,
)
from maskc.reference.dense import dense

TABLE = np.array([2, 0, 1, 1, 3, 0, 2, 5])
GRID = np.arange(12).reshape(3, 4) % 5 < 2
WIDTH = 3
CUBE = np.arange(24).reshape(2, 3, 4) % 5
helpers = ModuleType("helpers")
exec("def near(a, b, width):\n    return max(a, b) - min(a, b) < width", vars(helpers))


class Sized:
    values = TABLE


def meaning(predicate: Callable[..., object], size: int = 8) -> np.ndarray:
    """Return what the function says on plain integers."""
    return np.array([[bool(predicate(q, k)) for k in range(size)] for q in range(size)])


def smaller(a, b):
    return min(a, b) < 3


def recursive(q, k, depth=3):
    return q == k if depth == 0 else (q == k + depth) | recursive(q, k, depth - 1)


EXACT = {
    "add": lambda q, k: q + 2 <= k + 1,
    "sub_reflected": lambda q, k: 5 - q <= k,
    "mul": lambda q, k: 2 * q - k * 3 >= 0,
    "floordiv": lambda q, k: q // 3 == k // 3,
    "floordiv_negative": lambda q, k: (q - 9) // 4 == (k - 9) // -4,
    "mod": lambda q, k: (q - k) % 3 == 1,
    "mod_negative": lambda q, k: (q - k) % -3 == -1,
    "neg_pos": lambda q, k: -q + +k > -2,
    "abs": lambda q, k: abs(q - k) <= 2,
    "min": lambda q, k: min(q, k) < 2,
    "max_three": lambda q, k: max(q, k, 3) == 3,
    "max_list": lambda q, k: max([q, k]) > 4,
    "min_generator": lambda q, k: min(x + 1 for x in (q, k)) > 3,
    "min_plain": lambda q, k: q < min(4, 7),
    "comparisons": lambda q, k: (q < k) | (q > 6) | (q == 0) | (k >= 7) | (k <= 0),
    "not_equal": lambda q, k: q != k,
    "reflected_comparison": lambda q, k: 3 <= k,  # noqa: SIM300
    "and_or": lambda q, k: (q >= k) & ((q < 3) | (k == 1)),
    "xor": lambda q, k: (q < 3) ^ (k < 5),
    "equal_conditions": lambda q, k: (q < 4) == (k < 4),
    "unequal_conditions": lambda q, k: (q < 4) != (k < 4),
    "condition_equals_one": lambda q, k: (q > k) == 1,
    "condition_is_not_zero": lambda q, k: (q > k) != 0,
    "condition_equals_two": lambda q, k: ((q > k) == 2) | (q == 3),
    "condition_equals_a_residue": lambda q, k: (q > 5) == k % 3,
    "integer_equals_condition": lambda q, k: k % 2 == (q > 5),
    "true": lambda q, k: True,
    "condition_or_false": lambda q, k: (q > k) | False,
    "shifts": lambda q, k: (q >> 1) == (k >> 1),
    "shift_left": lambda q, k: (q << 1) >= k,
    "sum": lambda q, k: sum([q, k]) < 6,
    "reduce": lambda q, k: reduce(lambda a, b: a | b, [q == k + d for d in (0, 1, 4)]),
    "conditional_expression": lambda q, k: (q == k) if WIDTH else (q != k),
    "global_integer": lambda q, k: q - k < WIDTH,
    "default_argument": lambda q, k, w=2: q - k < w,
    "helper_with_min": lambda q, k: smaller(q, k),
    "recursion": lambda q, k: recursive(q, k),
    "table": lambda q, k: TABLE[q] == TABLE[k],
    "table_of_table": lambda q, k: TABLE[TABLE[q]] > k,
    "table_of_formula": lambda q, k: TABLE[(q + k) % 8] < 2,
    "table_two_dimensions": lambda q, k: GRID[q % 3, k % 4],
    "table_condition": lambda q, k: ~GRID[q % 3, k // 2] & (q > k),
    "table_shape": lambda q, k: q % TABLE.shape[0] < GRID.shape[1],
    "table_default": lambda q, k, t=TABLE: t[q] > k,
    "numpy_scalar": lambda q, k: np.int64(3) + q > np.int32(2) * k,
    "table_attribute": lambda q, k: Sized.values[q] > 1,
    "table_slice": lambda q, k: TABLE[1:][q % 7] > 1,
    "table_in_steps": lambda q, k: GRID[q % 3][k % 4],
    "table_of_constant_row": lambda q, k: GRID[1, k % 4] | GRID[2][q % 4],
    "table_three_dimensions": lambda q, k: CUBE[q // 4, k % 3, q % 4] > 1,
    "numpy_function": lambda q, k: np.logical_and(q > k, np.minimum(q, 5) - k < 3),
    "numpy_where": lambda q, k: np.where(q < 4, k, q) == 3,
    "helper_of_a_module": lambda q, k: helpers.near(q, k, 3),
    "divmod": lambda q, k: divmod(q, 3)[0] == divmod(k, 3)[1],
    "numpy_scalar_compares": lambda q, k: np.int64(3) >= k,
}


@pytest.mark.parametrize("name", EXACT)
def test_allowed(name: str) -> None:
    predicate = EXACT[name]
    assert np.array_equal(dense(mc.where(predicate), 8), meaning(predicate))


def test_not() -> None:
    """~True is an integer in Python, so what is meant is written with `not`."""
    mask = mc.where(lambda q, k: ~((q < 3) & (k > 2)))
    assert np.array_equal(dense(mask, 8), meaning(lambda q, k: not (q < 3 and k > 2)))


REACH = mc.param("reach", 3)


def test_a_parameter_from_outside_the_function() -> None:
    mask = mc.where(lambda q, k: (q - k) % 8 < REACH)
    q, k = np.arange(20)[:, None], np.arange(20)
    np.testing.assert_array_equal(mask.dense(20), (q - k) % 8 < 3)
    np.testing.assert_array_equal(mask.dense(20, reach=5), (q - k) % 8 < 5)


def test_lengths_and_parameters() -> None:
    mask = mc.where(lambda q, k: (q < mc.n_q // 2) & (k >= mc.n_kv - mc.param("tail", 2)))
    dense_mask = dense(mask, 4, 6)
    assert np.array_equal(np.argwhere(dense_mask), [[0, 4], [0, 5], [1, 4], [1, 5]])
    assert dense(mask, 4, 6, tail=1).sum() == 2


def test_closures_over_integers_arrays_and_functions() -> None:
    def windowed(width: int):
        def mask_mod(b, h, q_idx, kv_idx):
            return q_idx - kv_idx < width

        return mask_mod

    def joined(*mods):
        def mask_mod(b, h, q_idx, kv_idx):
            keep = mods[0](b, h, q_idx, kv_idx)
            for mod in mods[1:]:
                keep = keep & mod(b, h, q_idx, kv_idx)
            return keep

        return mask_mod

    documents = np.array([0, 0, 0, 1, 1, 1, 1, 2], dtype=np.int32)

    def same(b, h, q_idx, kv_idx):
        return documents[q_idx] == documents[kv_idx]

    mask = mc.from_mask_mod(joined(windowed(3), same, lambda b, h, q, k: q >= k))
    expected = meaning(lambda q, k: 0 <= q - k < 3 and documents[q] == documents[k])
    assert np.array_equal(dense(mask, 8), expected)


def test_partial_functions_and_methods() -> None:
    def near(width, table, q, k):
        return min(abs(q - k), table[q]) < width

    class Rule:
        width = 2

        def keep(self, q, k):
            return max(q, k) - min(q, k) < self.width

    expected = meaning(lambda q, k: min(abs(q - k), TABLE[q]) < 2)
    assert np.array_equal(dense(mc.where(partial(near, 2, TABLE)), 8), expected)
    assert np.array_equal(dense(mc.where(Rule().keep), 8), meaning(lambda q, k: abs(q - k) < 2))


def test_the_original_function_is_left_alone() -> None:
    def keep(q, k, t=TABLE):
        return min(q, t[k]) < 2

    mc.where(keep)
    assert keep.__defaults__[0] is TABLE
    assert keep(1, 4)


def test_heads_and_an_unused_batch() -> None:
    by_head = mc.where(lambda b, h, q, k: q - k == h)
    assert by_head == mc.where(lambda h, q, k: q - k == h)
    assert np.array_equal(dense(by_head, 3, n_heads=2), [np.eye(3), np.eye(3, k=-1)])
    assert mc.where(lambda b, h, q, k: q >= k + b - b) == mc.where(lambda q, k: q >= k)


def test_equal_formulas_are_equal_masks() -> None:
    assert mc.where(lambda q, k: q >= k) == mc.where(lambda q, k: ~(k > q) & (q - k > -1))
    copy = TABLE.copy()
    assert mc.where(lambda q, k: TABLE[q] > 1) == mc.where(lambda q, k: copy[q] > 1)


# ------------------------------------------------------------------ refusals


def chained(q, k):
    return 0 <= q - k < 3


def branch(q, k):
    if q > k:
        return q - k < 3
    return k - q < 2


def unbound(q, k):
    return missing < q  # noqa: F821


def matched(q, k):
    match q:
        case 3:
            return True
    return k < 2


REFUSED: dict[str, tuple[Callable[..., object], type[MaskcError]]] = {
    "and": (lambda q, k: (q > k) and (q < 5), MaskUsedAsBool),
    "or": (lambda q, k: (q > k) or (q < 5), MaskUsedAsBool),
    "not": (lambda q, k: not (q > k), MaskUsedAsBool),
    "chained": (chained, MaskUsedAsBool),
    "branch": (branch, MaskUsedAsBool),
    "conditional_expression": (lambda q, k: q < 3 if k > 2 else q < 5, MaskUsedAsBool),
    "membership": (lambda q, k: q in (1, 2), MaskUsedAsBool),
    "sorted": (lambda q, k: sorted([q, k])[0] == q, MaskUsedAsBool),
    "any": (lambda q, k: any([q > k, q < 3]), MaskUsedAsBool),
    "true_division": (lambda q, k: q / 2 > k, NotTraceable),
    "float": (lambda q, k: q * 0.5 > k, NotTraceable),
    "float_comparison": (lambda q, k: q > 1.5, NotTraceable),
    "product": (lambda q, k: q * k > 3, NotTraceable),
    "varying_divisor": (lambda q, k: 12 % (k + 1) == 0, NotTraceable),
    "varying_divisor_both": (lambda q, k: q // (k + 1) > 1, NotTraceable),
    "divide_by_zero": (lambda q, k: q % 0 == k, NotTraceable),
    "power": (lambda q, k: q**2 > k, NotTraceable),
    "power_of": (lambda q, k: 2**q > k, NotTraceable),
    "range": (lambda q, k: k in range(q), NotTraceable),
    "int": (lambda q, k: int(q) > k, NotTraceable),
    "float_call": (lambda q, k: float(q) > k, NotTraceable),
    "list_index": (lambda q, k: [1, 2, 3][q] > k, NotTraceable),
    "method": (lambda q, k: q.item() > k, NotTraceable),
    "bitwise_integers": (lambda q, k: (q | k) == 0, NotTraceable),
    "integer_result": (lambda q, k: q - k, NotTraceable),
    "text": (lambda q, k: str(q) == "q", NotTraceable),
    "formatted": (lambda q, k: f"{q}" == f"{k}", NotTraceable),
    "represented": (lambda q, k: repr(q - k) != "", NotTraceable),
    "identity": (lambda q, k: q is k, NotTraceable),
    "no_identity": (lambda q, k: (q - k) is not q, NotTraceable),
    "identity_of_a_condition": (lambda q, k: (q >= k) is True, NotTraceable),
    "instance": (lambda q, k: isinstance(q, int), NotTraceable),
    "instance_of_an_abstract_class": (lambda q, k: isinstance(q, Callable), NotTraceable),
    "type": (lambda q, k: type(q) is int, NotTraceable),
    "place_in_memory": (lambda q, k: id(q) == id(k), NotTraceable),
    "length": (lambda q, k: len(q) == 1, NotTraceable),
    "hash": (lambda q, k: hash(q) == 3, NotTraceable),
    "key_of_a_dict": (lambda q, k: {0: True}.get(q, False), NotTraceable),
    "iteration": (lambda q, k: [x + 1 for x in q] == [], NotTraceable),
    "inside": (lambda q, k: k in q, NotTraceable),
    "attribute_test": (lambda q, k: hasattr(q, "item"), NotTraceable),
    "equals_text": (lambda q, k: q == "x", NotTraceable),
    "equals_none": (lambda q, k: q == None, NotTraceable),  # noqa: E711
    "equals_float": (lambda q, k: q == 1.5, NotTraceable),
    "match": (matched, MaskUsedAsBool),
    "none_result": (lambda q, k: None, NotTraceable),
    "condition_as_integer": (lambda q, k: (q > k) + 1 > k, NotTraceable),
    "condition_and_integer": (lambda q, k: (q > k) & 1, NotTraceable),
    "string": (lambda q, k: q > "3", NotTraceable),
    "own_error": (lambda q, k: {}["x"], NotTraceable),
    "unbound_name": (unbound, NotTraceable),
    "float_array": (lambda q, k: np.ones(8)[q] > 0, NotTraceable),
    "table_rank": (lambda q, k: GRID[q] > 0, NotTraceable),
    "table_rank_one": (lambda q, k: TABLE[q, k] > 0, NotTraceable),
    "numpy_function": (lambda q, k: np.sin(q) > k, NotTraceable),
    "one_argument": (lambda q: q > 3, NotTraceable),
    "five_arguments": (lambda a, b, h, q, k: q > k, NotTraceable),
    "star_arguments": (lambda *args: True, NotTraceable),
    "keyword_only": (lambda q, k, *, w: q > k, NotTraceable),
    "builtin": (max, NotTraceable),
    "not_callable": (3, NotTraceable),
    "batch": (lambda b, h, q, k: (q > k) & (b < 2), BatchUsed),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    predicate, mistake = REFUSED[name]
    with pytest.raises(mistake) as caught:
        mc.where(predicate)
    at = caught.value.at
    assert at is not None
    assert Path(at.file).name == Path(__file__).name


def test_the_message_names_the_line_inside_the_function() -> None:
    def keep(q, k):
        near = q - k < 3
        return near and q > 0

    with pytest.raises(MaskUsedAsBool) as caught:
        mc.where(keep)
    assert caught.value.at.line == keep.__code__.co_firstlineno + 2
    assert "return near and q > 0" in str(caught.value)


def test_values_beyond_32_bits_are_refused_not_wrapped() -> None:
    wide = np.array([0, 2**32 + 1])
    with pytest.raises(DataRange):
        mc.where(lambda q, k: wide[q % 2] > k)


def test_reading_outside_a_captured_array_is_refused() -> None:
    mask = mc.where(lambda q, k: TABLE[q] > k)
    dense(mask, 8)
    with pytest.raises(DataRange):
        dense(mask, 9)
    with pytest.raises(DataRange):
        dense(mc.where(lambda q, k: TABLE[q - 1] > k), 4)


def test_what_is_decided_without_a_traced_value_stays() -> None:
    mode, near = object(), None

    def keep(q, k, kind=mode, width=None):
        size = 3 if kind is mode else 5
        return (q - k < size) & (near is None) & (width is None) & (isinstance(size, int))

    assert np.array_equal(dense(mc.where(keep), 8), meaning(keep))


def test_traced_values_outside_a_formula_are_ordinary_objects() -> None:
    assert isinstance(mc.n_q, type(mc.n_kv))
    assert str(mc.n_q) == "n_q"
    assert f"{mc.param('w', 3)}" == "param('w', 3)"


# ------------------------------------------------------------------ arguments


def test_where_goes_by_name() -> None:
    by_head = mc.where(lambda h, q, k: q - k == h)
    assert by_head == mc.where(lambda q, k, h: q - k == h)
    assert mc.where(lambda k, q: q >= k) == mc.where(lambda q, k: q >= k)
    assert mc.where(lambda kv_idx, q_idx: q_idx >= kv_idx) == mc.where(lambda q, k: q >= k)
    assert mc.where(lambda x, y: x >= y) == mc.where(lambda q, k: q >= k)  # unknown: by position
    assert mc.where(lambda batch, head, q_i, kv_i: q_i >= kv_i) == mc.where(lambda q, k: q >= k)


DISAGREEING = {
    "mask_mod": lambda: mc.from_mask_mod(lambda b, h, k, q: q >= k),
    "mask_mod_of_two": lambda: mc.from_mask_mod(lambda k, q: q >= k),
    "mask_mod_of_three": lambda: mc.from_mask_mod(lambda q, k, h: q - k < h),
    "one_unknown": lambda: mc.where(lambda x, q: q >= x),
    "named_twice": lambda: mc.where(lambda q, q_idx: q >= q_idx),
}


@pytest.mark.parametrize("name", DISAGREEING)
def test_names_and_places_that_disagree_are_refused_with_both(name: str) -> None:
    with pytest.raises(ArgumentOrder) as caught:
        DISAGREEING[name]()
    assert caught.value.code == "MC121"
    assert "by name" in str(caught.value)
    assert "by position" in str(caught.value)


def test_a_profiler_goes_on_after_a_formula_was_traced():
    import cProfile

    profile = cProfile.Profile()
    profile.enable()
    try:
        mask = mc.where(lambda q, k: k <= q)
        assert mask.equals(mc.causal(align="start"))
    finally:
        profile.disable()
    assert any("equals" in str(entry.code) for entry in profile.getstats())


def test_methods_of_frozen_objects_are_traced():
    @dataclass(frozen=True)
    class Packed:
        width: int
        ids: np.ndarray

        def __call__(self, b, h, q, k):
            return (abs(q - k) < self.width) & (self.ids[q] == self.ids[k])

    packed, q = Packed(3, np.arange(12) // 5), np.arange(12)
    ids = packed.ids
    wanted = (abs(q[:, None] - q) < 3) & (ids[:, None] == ids)
    for mod in (packed, packed.__call__, lambda b, h, q, k: packed(b, h, q, k)):
        mask = mc.from_mask_mod(mod, exact=True)
        assert np.array_equal(mask.dense(12), wanted)
