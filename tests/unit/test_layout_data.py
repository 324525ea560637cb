"""Data that a caller may pass, what formulas then read, and every refusal in full."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import maskc as mc
from maskc.core import errors
from maskc.core.data import CuSeqlens, DataDecl, DataKind, Parents
from maskc.layout import bind_arrays, split_call_data, to_host
from maskc.layout.inputs.random_draw import draw

DOC = DataDecl("doc", DataKind.documents, ("doc.q", "doc.k"))
FLAG = DataDecl("flag", DataKind.flags, ("flag",), options=(0,))
FLAG_Q = DataDecl("flag", DataKind.flags, ("flag",), options=(1,))
SPAN = DataDecl("span", DataKind.intervals, ("span.lo", "span.hi"))
TREE = DataDecl("ast", DataKind.tree, ("ast.tin", "ast.tout", "ast.q"))
LISTS = DataDecl("keys", DataKind.key_lists, ("keys",), options=(1,))
TABLE = DataDecl("table", DataKind.table, ("table",), block=4)


def bind(decl: DataDecl, given: object, n_q: int, n_kv: int) -> dict[str, list]:
    arrays = bind_arrays((decl,), {decl.name: given}, n_q, n_kv)
    assert all(a.dtype == np.int32 and a.flags.c_contiguous for a in arrays.values())
    return {name: array.tolist() for name, array in arrays.items()}


# ------------------------------------------------------------------ what is accepted


class FakeTorch:
    """A stand-in with as much of a torch tensor as the conversion may use."""

    def __init__(self, values: list[int]) -> None:
        self.values, self.ndim, self.shape = values, 1, (len(values),)

    def detach(self) -> FakeTorch:
        return self

    def cpu(self) -> FakeTorch:
        return self

    def numpy(self) -> np.ndarray:
        return np.array(self.values)


class OnlyDlpack:
    """An array of a library that speaks DLPack alone."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.ndim = array, array.ndim

    def __dlpack__(self, **options: object) -> object:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


@pytest.mark.parametrize(
    "given",
    [
        [3, 3, 1],
        np.array([3, 3, 1]),
        np.array([3, 3, 1], dtype=np.uint8),
        np.array([3, 0, 3, 0, 1])[::2],
        FakeTorch([3, 3, 1]),
        OnlyDlpack(np.array([3, 3, 1])),
        SimpleNamespace(__cuda_array_interface__={}, get=lambda: np.array([3, 3, 1]), ndim=1),
    ],
)
def test_arrays_of_any_library(given: object) -> None:
    assert to_host(given).tolist() == [3, 3, 1]
    assert bind(DOC, given, 3, 3) == {"doc.q": [3, 3, 1], "doc.k": [3, 3, 1]}


def test_documents_share_one_array_where_lengths_agree() -> None:
    arrays = bind_arrays((DOC,), {"doc": [0, 0, 1]}, 3, 3)
    assert arrays["doc.q"] is arrays["doc.k"]


def test_documents_as_pairs_batches_and_cumulative_lengths() -> None:
    assert bind(DOC, ([5], [5, 6, 5]), 1, 3) == {"doc.q": [5], "doc.k": [5, 6, 5]}
    assert bind(DOC, (7, 9), 2, 2)["doc.q"] == [7, 9]
    assert bind(DOC, [[0, 1], [1, 1]], 2, 2)["doc.k"] == [[0, 1], [1, 1]]
    assert bind(DOC, CuSeqlens([0, 2, 2, 5]), 5, 5)["doc.q"] == [0, 0, 2, 2, 2]
    assert bind(DOC, CuSeqlens([[0, 1, 3], [0, 3, 3]]), 3, 3)["doc.q"] == [[0, 1, 1], [0, 0, 0]]
    pair = CuSeqlens([0, 1, 2]), CuSeqlens([0, 3, 4])
    assert bind(DOC, pair, 2, 4) == {"doc.q": [0, 1], "doc.k": [0, 0, 0, 1]}
    assert bind(DOC, CuSeqlens([0]), 0, 0) == {"doc.q": [], "doc.k": []}
    assert bind(DOC, [], 0, 0) == {"doc.q": [], "doc.k": []}


def test_large_document_ids_keep_their_equality() -> None:
    ids = np.array([2**60, -5, 2**60, 2**40])
    bound = bind(DOC, (ids[:2], ids), 2, 4)
    assert bound == {"doc.q": [2, 0], "doc.k": [2, 0, 2, 1]}


def test_flags_are_zero_or_one_on_either_side() -> None:
    assert bind(FLAG, [True, False, True], 2, 3) == {"flag": [1, 0, 1]}
    assert bind(FLAG_Q, [4, 0], 2, 3) == {"flag": [1, 0]}
    assert bind(FLAG, [[1, 0], [0, 0]], 9, 2) == {"flag": [[1, 0], [0, 0]]}


def test_intervals_end_at_the_keys() -> None:
    bound = bind(SPAN, (np.array([-(2**40), 1]), np.array([2, 2**40])), 2, 9)
    assert bound == {"span.lo": [0, 1], "span.hi": [2, 9]}
    assert bind(SPAN, np.array([[0, 1], [2, 3]]), 2, 9)["span.hi"] == [2, 3]


def test_parents_become_a_depth_first_numbering() -> None:
    parents = [2, -1, 1, 1, 3, -1]
    bound = bind(TREE, Parents(parents), 6, 6)
    tin, tout = bound["ast.tin"], bound["ast.tout"]
    assert (tin, tout) == ([2, 0, 1, 3, 4, 5], [3, 5, 3, 5, 5, 6])
    for q in range(6):
        above, token = {q}, q
        while parents[token] >= 0:
            token = parents[token]
            above.add(token)
        assert above == {k for k in range(6) if tin[k] <= tin[q] < tout[k]}


def test_trees_as_times_and_in_batches() -> None:
    assert bind(TREE, ([0, 1], [2, 2]), 1, 2) == {
        "ast.tin": [0, 1], "ast.tout": [2, 2], "ast.q": [1],
    }  # fmt: skip
    assert bind(TREE, Parents([[-1, 0], [1, -1]]), 2, 2)["ast.tin"] == [[0, 1], [1, 0]]
    deep = Parents(np.arange(-1, 4999))
    assert bind(TREE, deep, 5000, 5000)["ast.tout"] == [5000] * 5000


def test_tables_of_sequences_and_heads() -> None:
    assert bind(TABLE, [[True, False], [False, False]], 5, 8) == {"table": [[1, 0], [0, 0]]}
    by_head = bind_arrays((TABLE,), {"table": np.ones((3, 2, 1)) > 0}, 5, 4)
    assert by_head["table"].shape == (3, 2, 1)
    assert bind(TABLE, np.zeros((2, 1, 1, 1), int), 1, 1)["table"] == [[[[0]]], [[[0]]]]


@pytest.mark.parametrize(("aligned_at_end", "first"), [(1, -2), (0, 0)])
def test_random_rows_follow_the_positions(aligned_at_end: int, first: int) -> None:
    options = (1, 7, aligned_at_end)
    decl = DataDecl("random", DataKind.random, ("random",), block=4, options=options)
    table = bind_arrays((decl,), {}, 12, 7)["random"]
    rows = len({(q + (7 - 12 if aligned_at_end else 0)) // 4 for q in range(12)})
    assert (table == draw(7, 1, first, rows, 2)).all()
    assert (bind_arrays((decl,), {}, 12, 7, offset=-5)["random"] == table).all()


def test_captured_arrays_need_no_data() -> None:
    values = np.arange(6, dtype="<i4").reshape(2, 3)
    decl = DataDecl(
        "table_1", DataKind.constant, ("table_1",), values=values.tobytes(), shape=(2, 3)
    )
    assert (bind_arrays((decl,), {}, 4, 4)["table_1"] == values).all()


# ------------------------------------------------------------------ what is refused


def refused(decl: DataDecl, given: object, n_q: int, n_kv: int) -> str:
    with pytest.raises(errors.MaskcError) as caught:
        bind_arrays((decl,), {decl.name: given}, n_q, n_kv)
    return str(caught.value)


REFUSED: dict[str, tuple[DataDecl, object, object, object]] = {
    "ids of too few tokens": (DOC, [5, 2], 3, 3),
    "ids of neither tokens nor queries": (DOC, [5, 2], 1, 3),
    "ends beyond the tokens, one query": (DOC, CuSeqlens([0, 4]), 1, 3),
    "flags of too few queries": (FLAG_Q, [1], 2, 3),
    "a pair with ids of too many queries": (DOC, ([1, 2], [1]), 1, 1),
    "ids as floats": (DOC, [1.0, 2.0], 2, 2),
    "an id beyond 64 bits": (DOC, np.array([2**63, 0], dtype=np.uint64), 2, 2),
    "ends that do not begin at 0": (DOC, CuSeqlens([1, 4]), 4, 4),
    "ends beyond the tokens": (DOC, CuSeqlens([0, 5]), 4, 4),
    "ends that fall": (DOC, CuSeqlens([0, 3, 2, 4]), 4, 4),
    "ends as a number": (DOC, CuSeqlens(3), 4, 4),
    "a ragged list": (DOC, [[1, 2], [3]], 2, 2),
    "flags as floats": (FLAG, [0.5], 1, 1),
    "flags of too few tokens": (FLAG, [1, 0], 2, 3),
    "an interval as a list": (SPAN, [1, 2, 3], 3, 3),
    "an interval as a number": (SPAN, 5, 3, 3),
    "a time beyond the tokens": (TREE, ([0], [2**31]), 1, 1),
    "a parent beyond the tokens": (TREE, Parents([-1, 7]), 2, 2),
    "a cycle of parents": (TREE, Parents([-1, 2, 1]), 3, 3),
    "lists of too few queries": (LISTS, [[1, 0]], 2, 8),
    "a key beyond the tokens": (LISTS, [[1, 3]], 1, 3),
    "a key below -1": (LISTS, [[-2, 3]], 1, 3),
    "a table of too few blocks": (TABLE, [[1, 0]], 5, 8),
    "nothing": (DOC, None, 4, 4),
    "a length below 0": (DOC, [1], -1, 4),
    "a length as a float": (DOC, [1], 1, 2.5),
}
"""The declaration, what a call gives, and its numbers of queries and keys."""


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str, message) -> None:
    message("data", name, refused(*REFUSED[name]))


def test_batches_must_agree() -> None:
    data = {"doc": np.zeros((2, 4), int), "flag": np.ones((3, 4), bool)}
    with pytest.raises(errors.DataShape, match=r"'flag' has shape \[3, \.\.\.\], expected batch 2"):
        bind_arrays((DOC, FLAG), data, 4, 4)
    data["flag"] = data["flag"][:1]
    assert bind_arrays((DOC, FLAG), data, 4, 4)["flag"].shape == (1, 4)


def test_a_captured_table_fits_its_lengths() -> None:
    values = np.ones((2, 2), dtype="<i4").tobytes()
    decl = DataDecl("table_1", DataKind.table, ("table_1",), 4, values=values, shape=(2, 2))
    assert bind_arrays((decl,), {}, 5, 8)["table_1"].shape == (2, 2)
    with pytest.raises(errors.DataShape) as caught:
        bind_arrays((decl,), {}, 9, 8)
    assert str(caught.value).startswith(
        "MC303  'block_table(block=4)' has shape (2, 2), expected (3, 2) for 9 queries and 8 keys"
    )


def test_device_element_types_are_named() -> None:
    class BFloat:
        dtype = "torch.bfloat16"

        def detach(self) -> BFloat:
            return self

        cpu = detach

        def numpy(self) -> np.ndarray:
            raise TypeError("Got unsupported ScalarType BFloat16")

    with pytest.raises(errors.DataType, match=r"'x' has dtype torch\.bfloat16, expected"):
        to_host(BFloat(), "x")


def test_what_a_device_says_is_not_blamed_on_the_dtype() -> None:
    class Lost:
        dtype = "torch.int32"

        def detach(self) -> Lost:
            return self

        def cpu(self) -> Lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        to_host(Lost(), "x")


# ------------------------------------------------------------------ keywords of a call

PARAMS = (("width", 5), ("sinks", 2))


def test_a_call_is_split_into_parameters_and_data() -> None:
    ids = [1, 2]
    values, given = split_call_data((DOC,), PARAMS, {"doc": ids, "width": np.int64(9)})
    assert values == {"width": 9, "sinks": 2}
    assert given["doc"] is ids
    assert all(type(value) is int for value in values.values())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"doc": [1], "docs": 3},
         "MC302 docs  the mask has no data or parameter named 'docs'; it has: doc, sinks, width\n"
         "    hint: did you mean 'doc'? options are scale, return_lse, softcap, alibi_slopes, "
         "sink_logits, normalizer, alpha, nan_safe, deterministic, dropout_p, dropout_seed; "
         "mc.attention also has is_causal, window_size, enable_gqa, layout, cu_seqlens_q, "
         "cu_seqlens_k, cu_seqlens_q_padded, cu_seqlens_k_padded, max_seqlen"),
        ({"doc": [1], "width": 2.0},
         "MC304 width  'width' has dtype float, expected an integer\n"
         "    hint: convert it first, for example with x.long() or x.bool(); maskc never "
         "rounds silently"),
        ({"doc": [1], "width": 2**31},
         "MC305 width  'width': 2147483648 is outside 0..1073741824\n"
         "    hint: parameters count tokens; None in the pattern means unbounded"),
    ],
)  # fmt: skip
def test_keywords_that_do_not_fit(data: dict[str, object], message: str) -> None:
    with pytest.raises(errors.MaskcError) as caught:
        split_call_data((DOC,), PARAMS, data)
    assert str(caught.value) == message


def test_a_mask_without_data_says_so() -> None:
    with pytest.raises(errors.DataUnknown, match="named 'doc'; it has: none"):
        split_call_data((), (), {"doc": 1})
    with pytest.raises(errors.DataUnknown, match="named 'doc'; it has: none"):
        bind_arrays((), {"doc": 1}, 4, 4)


def test_lists_of_keys_have_places_without_a_key():
    lists = np.array([[2, -1, 2], [-1, -1, -1], [0, 3, 1]])
    right = np.zeros((3, 4), bool)
    for query, keys in enumerate(lists):
        right[query, keys[keys >= 0]] = True
    layout = mc.key_lists("keys").layout(3, 4, block=(1, 1), keys=lists)
    assert np.array_equal(layout.to_dense() > 0, right)
