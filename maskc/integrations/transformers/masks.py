"""Mask functions of transformers as masks.

transformers composes a mask from closures: causal, sliding, chunked, packed, images, and additions
of a user. Closures of `transformers.masking_utils` are recognised by their code objects, never
by name. They become combinators with named data, so that one mask and one kernel serve every
step. All others are traced, with their tensors as captured data; if that fails, an error is
raised.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, NamedTuple

from maskc.dsl import data_atoms
from maskc.dsl.combinators import causal, full, window
from maskc.dsl.mask import Mask
from maskc.dsl.moved import FIRST_KEY, FIRST_QUERY, NotMoved, moved
from maskc.dsl.nodes import END, START, default_parameters
from maskc.dsl.parameters import param
from maskc.dsl.tracer import from_mask_mod, where

SHIFT = "query_offset"
"""The parameter for the distance from the first key to the first query."""
SHIFTED = "shifted"
"""An alignment other than "start" and "end": by that parameter."""


class LayerPlace(NamedTuple):
    """Where the queries and keys of a call lie in the sequence."""

    n_q: int
    n_kv: int
    q_offset: int
    kv_offset: int


class Found(NamedTuple):
    """The mask of a call, in the indices of its own tensors."""

    mask: Mask
    data: dict[str, Any]
    n_kv: int
    """Number of keys up to the last live one; later keys are dead and may be cut off."""
    sequences: Any
    """The packed sequence of each token that the mask separates, [B, N]; None if not packed."""
    alike: bool
    """Whether all queries see the same keys."""


class _Unknown(Exception):
    """A function that is none of transformers' own, or in an unusual place."""


Tree = tuple[Any, ...]
"""The computation of a mask function, without its tensors: (word, ...parts or numbers)."""
_FULL: Tree = ("full",)
_CAUSAL: Tree = ("causal",)


def mask_of(function: Callable[..., Any], padding: Any, place: LayerPlace) -> Found:
    """The mask of a mask function, and the data of this call.

    Args:
        function: a mask function (batch, head, query, key) in absolute positions.
        padding: bool [B, tokens], False where a token is padding; or None.
        place: of this call.

    Raises:
        NotTraceable: the function cannot be followed exactly (MC107).
        BatchUsed: the function computes with the batch index (MC108).
    """
    try:
        return _composed(function, padding, place)
    except _Unknown:
        return _traced(function, padding, place)


def mask_in_graph(function: Callable[..., Any], padding: Any, place: LayerPlace) -> Found | None:
    """The mask as of `mask_of`, where a compiler follows it; None for functions that only eager
    code follows.

    No tensor is read, so padding is always a part of the mask if it is passed.
    """
    try:
        return _composed(function, padding, place)
    except _Unknown:
        return None


def _composed(function: Callable[..., Any], padding: Any, place: LayerPlace) -> Found:
    """The mask of a composition of transformers' own functions.

    Raises:
        _Unknown: it is none, or its tensors are too short.
    """
    tensors = _Tensors()
    tree = _flat(_read(function, tensors, None, ()))
    shift = place.q_offset - place.kv_offset
    n_kv = place.n_kv
    if _has_causal(tree) and 0 < shift + place.n_q < n_kv:
        n_kv = shift + place.n_q
    align = END if not _relative(tree) or shift + place.n_q == n_kv else START if not shift else ""
    data = tensors.of_call(place._replace(n_kv=n_kv))
    if data is None:
        raise _Unknown
    if not align:
        data[SHIFT] = shift
    _, sequences = tensors.kept.get("packing", ("", None))
    padded = _is_padded(data, padding, place, n_kv)
    mask = _mask_of_tree(tree, align or SHIFTED, padded)
    return Found(mask, data, n_kv, sequences, tree == _FULL)


def _is_padded(data: dict[str, Any], padding: Any, place: LayerPlace, n_kv: int) -> bool:
    """Whether keys are padding; adds to the data which ones are not."""
    import torch

    if padding is None:
        return False
    end = place.kv_offset + n_kv
    # What transformers' own prepare_padding_mask does: keys beyond the mask are not there yet.
    if padding.shape[-1] < end:
        padding = torch.nn.functional.pad(padding, (0, end - padding.shape[-1]))
    keys = padding[:, place.kv_offset : end]
    if not torch.compiler.is_compiling() and bool(keys.all()):
        return False
    data["padding"] = keys.contiguous()
    return True


_PADDING = data_atoms.flags("padding")


def _traced(function: Callable[..., Any], padding: Any, place: LayerPlace) -> Found:
    """The mask of a function that is followed like any mask_mod."""
    q_offset, kv_offset = place.q_offset, place.kv_offset

    def absolute(b: Any, h: Any, q: Any, k: Any) -> Any:
        return function(b, h, q + q_offset, k + kv_offset)

    mask = from_mask_mod(absolute if q_offset or kv_offset else function, exact=True)
    data: dict[str, Any] = {}
    if _is_padded(data, padding, place, place.n_kv):
        mask = mask & _PADDING
    return Found(mask, data, place.n_kv, _sequences(function), alike=False)


# ------------------------------------------------------------------ reading closures


@cache
def _known() -> dict[Any, str]:
    """The code objects of transformers' own mask functions, and what each is."""
    import torch
    from transformers import masking_utils as hf

    ids = torch.zeros(1, 1, dtype=torch.long)
    made = {
        "and": hf.and_masks(hf.causal_mask_function),
        "or": hf.or_masks(hf.causal_mask_function),
        "causal": hf.causal_mask_function,
        "full": hf.bidirectional_mask_function,
        "window": hf.sliding_window_overlay(1),
        "near": hf.sliding_window_bidirectional_overlay(1),
        "chunks": hf.chunked_overlay(1, ids[0]),
        "images": hf.blockwise_overlay(ids),
        "packing": hf.packed_sequence_mask_function(ids),
        "remapped": hf.remap_positions_for_packed_sequence(hf.causal_mask_function, ids),
    }
    return {function.__code__: word for word, function in made.items()}


MARK = "maskc_known"
"""The attribute of a mask function that a compiler follows: its word, and what it captured."""


def mark() -> None:
    """Let compilers see what mask functions of transformers are made of.

    While a compiler follows them, functions that transformers makes get an attribute with their
    word and parts, since nothing shows a compiler what a closure captured. They do what they did.
    """
    from transformers import masking_utils as hf

    if hasattr(hf.and_masks, "__wrapped__"):
        return
    for name, (word, names) in _MAKERS.items():
        setattr(hf, name, _marking(getattr(hf, name), word, names))


_MAKERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "and_masks": ("and", ()),
    "or_masks": ("or", ()),
    "sliding_window_overlay": ("window", ("sliding_window",)),
    "sliding_window_bidirectional_overlay": ("near", ("sliding_window",)),
    "chunked_overlay": ("chunks", ("chunk_size", "left_padding")),
    "blockwise_overlay": ("images", ("block_sequence_ids",)),
    "packed_sequence_mask_function": ("packing", ("packed_sequence_mask",)),
    "remap_positions_for_packed_sequence": ("remapped", ("mask_function", "position_ids")),
}
"""Makers of mask functions: their kind, and the names of their arguments; no name: functions."""


def _marking(make: Callable[..., Any], word: str, names: tuple[str, ...]) -> Callable[..., Any]:
    import torch

    @wraps(make)
    def made(*args: Any) -> Any:
        function = make(*args)
        if torch.compiler.is_compiling():
            held = dict(zip(names, args, strict=True)) if names else {"mask_functions": args}
            setattr(function, MARK, (word, held))
        return function

    return made


def _made_of(function: Any) -> tuple[str, dict[str, Any]]:
    """(the word of a mask function, what it captured by name); ("", {}) where it is none of
    transformers' own."""
    import torch

    if torch.compiler.is_compiling():
        from transformers import masking_utils as hf

        if function is hf.causal_mask_function:
            return "causal", {}
        if function is hf.bidirectional_mask_function:
            return "full", {}
        made: tuple[str, dict[str, Any]] = getattr(function, MARK, _NOT_KNOWN)
        return made
    word = _known().get(getattr(function, "__code__", None))
    if word is None:
        return _NOT_KNOWN
    names, cells = function.__code__.co_freevars, function.__closure__ or ()
    return word, {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}


_NOT_KNOWN: tuple[str, dict[str, Any]] = ("", {})


def _sequences(function: Any) -> Any:
    """The packed sequences that a composition separates at its top, [B, N]; or None."""
    word, held = _made_of(function)
    if word == "packing":
        return held["packed_sequence_mask"]
    parts = map(_sequences, held["mask_functions"] if word == "and" else ())
    return next((ids for ids in parts if ids is not None), None)


class _Tensors:
    """The tensors that a mask function captured, in the order of the mask's data."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[str, Any]] = {}
        """(what it is, ids [B, tokens] or Chunks), by the name of the data."""

    def name(self, kind: str, held: Any) -> str:
        """The name of the data; `packing`, then `packing_1` and so on."""
        before = sum([kind == other for other, _ in self.kept.values()])
        name = f"{kind}_{before}" if before else kind
        self.kept[name] = kind, held
        return name

    def of_call(self, place: LayerPlace) -> dict[str, Any] | None:
        """The data by name for the tokens of a call; None if a tensor is too short."""
        data: dict[str, Any] = {}
        for name, (kind, held) in self.kept.items():
            ids = _chunk_ids(held, place) if kind == "chunks" else held
            if ids.shape[-1] < max(place.kv_offset + place.n_kv, place.q_offset + place.n_q):
                return None
            data[name] = _sides(ids, place)
            if kind == "images":
                keys = ids[:, place.kv_offset : place.kv_offset + place.n_kv]
                data[f"{name}_shown"] = (keys >= 0).contiguous()
        return data


class Chunks(NamedTuple):
    """Chunks that begin where a sequence's padding ends."""

    size: int
    left_padding: Any
    """Tokens of padding, [B]."""
    positions: Any
    """[B, N], inside packed sequences; or None."""


def _chunk_ids(chunks: Chunks, place: LayerPlace) -> Any:
    """The chunk of each token, [B, tokens]."""
    import torch

    size, left_padding, positions = chunks
    if positions is None:
        end = max(place.kv_offset + place.n_kv, place.q_offset + place.n_q)
        positions = torch.arange(end, device=left_padding.device)
    return (positions - left_padding[:, None]) // size


def _sides(ids: Any, place: LayerPlace) -> Any:
    """The ids [B, tokens] of a call's keys, which serve its queries; else a pair, for each."""
    n_q, n_kv, q_offset, kv_offset = place
    keys = ids[:, kv_offset : kv_offset + n_kv].contiguous()
    if q_offset + n_q == kv_offset + n_kv and q_offset >= kv_offset:
        return keys
    return ids[:, q_offset : q_offset + n_q].contiguous(), keys


def _read(function: Any, tensors: _Tensors, positions: Any, segments: tuple[Any, ...]) -> Tree:
    """Return the computation of a mask function.

    Args:
        tensors: receives the captured tensors.
        positions: [B, N], if the function is called with positions inside packed sequences.
            Positions in a segment are consecutive, so differences of positions equal differences of
            indices.
        segments: ids of packed sequences that stand in a conjunction with the function.
    """
    word, held = _made_of(function)
    match word:
        case "causal" | "full":
            return (word,)
        case "window" | "near":
            size = held["sliding_window"]
            if type(size) is not int or size < 1:
                raise _Unknown
            return word, size
        case "chunks":
            size, left = held["chunk_size"], held["left_padding"]
            if type(size) is not int or size < 1 or getattr(left, "ndim", 0) != 1:
                raise _Unknown
            return "same", tensors.name("chunks", Chunks(size, left, positions))
        case "and":
            parts = held["mask_functions"]
            if positions is None:
                for kind, inside in map(_made_of, parts):
                    if kind == "packing":
                        segments = *segments, inside["packed_sequence_mask"]
            return ("and", *(_read(part, tensors, positions, segments) for part in parts))
        case "or":
            parts = held["mask_functions"]
            return ("or", *(_read(part, tensors, positions, segments) for part in parts))
        case "remapped" if positions is None:
            inner, position_ids = held["mask_function"], held["position_ids"]
            if not any(_consecutive(position_ids, ids) for ids in segments):
                raise _Unknown
            return _read(inner, tensors, position_ids, segments)
        case "packing" if positions is None:
            return "same", tensors.name("packing", _matrix(held["packed_sequence_mask"]))
        case "images" if positions is None:
            return "shown", tensors.name("images", _matrix(held["block_sequence_ids"]))
    raise _Unknown


def _matrix(ids: Any) -> Any:
    if getattr(ids, "ndim", 0) != 2:
        raise _Unknown
    return ids


def _consecutive(positions: Any, ids: Any) -> bool:
    """Whether positions rise by one inside each segment, and segments are runs."""
    import torch

    if positions.shape != ids.shape or positions.ndim != 2:
        return False
    steps = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1)
    numbers, ids = (steps != 1).cumsum(-1), ids.to(torch.long)
    if torch.compiler.is_compiling():  # a graph cannot wait for the answer
        torch._assert_async((numbers == ids).all(), _APART)
        return True
    is_consecutive: bool = torch.equal(numbers, ids)
    return is_consecutive


_APART = "position_ids of packed sequences and the sequences' ids are of different batches"


# ------------------------------------------------------------------ writing masks


def _flat(tree: Tree) -> Tree:
    """Nested conjunctions as one, without what keeps everything; likewise for disjunctions."""
    word, *parts = tree
    if word not in ("and", "or"):
        return tree
    flat: dict[Tree, None] = {}
    for part in map(_flat, parts):
        for inner in part[1:] if part[0] == word else (part,):
            flat[inner] = None
    if word == "or" and _FULL in flat:
        return _FULL
    if word == "and" and len(flat) > 1:
        flat.pop(_FULL, None)
    return (word, *flat) if len(flat) > 1 else next(iter(flat))


def _has_causal(tree: Tree) -> bool:
    """Whether the mask keeps no key behind the query, by its form."""
    return tree == _CAUSAL or (
        (tree[0] == "and" and any(map(_has_causal, tree[1:])))
        or (tree[0] == "or" and all(map(_has_causal, tree[1:])))
    )


def _relative(tree: Tree) -> bool:
    """Whether the mask compares the positions of queries and keys."""
    if tree[0] in ("and", "or"):
        return any(map(_relative, tree[1:]))
    return tree[0] in ("causal", "window", "near")


def _mask_of_tree(tree: Tree, align: str, padded: bool) -> Mask:
    """The mask of a tree, without keys that are padding; equal trees give one object."""
    import torch

    if torch.compiler.is_compiling():
        return named(_name_of_tree(tree, align, padded))
    return joined(_mask(tree, align), _PADDING) if padded else _mask(tree, align)


class _Named:
    """Masks as attributes: where a compiler that follows a call finds an object it can guard."""


_NAMED = _Named()


def named(name: str) -> Mask:
    """The mask of a name."""
    mask: Mask = getattr(_NAMED, name)
    return mask


def _name(mask: Mask) -> str:
    name = f"mask_{id(mask)}"
    setattr(_NAMED, name, mask)
    return name


def _name_of_tree(tree: Tree, align: str, padded: bool) -> str:
    """Return the name under which `named` knows the mask of a tree."""
    return _name(joined(_mask(tree, align), _PADDING) if padded else _mask(tree, align))


def name_of_both(mask: int, other: int) -> str:
    """Return the name under which `named` knows the pairs of both masks, given by their `id`."""
    return _name(joined(*(ctypes.cast(x, ctypes.py_object).value for x in (mask, other))))


def part_of(mask: Mask, keys: bool) -> tuple[Mask, tuple[str, ...]]:
    """(the mask of a sequence on a part of it, the parameters of `moved` that it reads).

    Args:
        mask: of the whole sequence.
        keys: whether the sequence's first keys are missing, and not only queries.

    Raises:
        NotMoved: see `moved`.
    """
    import torch

    if not torch.compiler.is_compiling():
        part = moved(mask, keys)
        return part, _places(part)
    name, places = _part_in_graph(id(mask), keys)
    if not name:
        raise NotMoved
    return named(name), places


def _part_in_graph(mask: int, keys: bool) -> tuple[str, tuple[str, ...]]:
    """Return the name of a part of the mask with this `id`; empty if there is none."""
    try:
        part = moved(ctypes.cast(mask, ctypes.py_object).value, keys)
    except NotMoved:
        return "", ()
    return _name(part), _places(part)


def _places(mask: Mask) -> tuple[str, ...]:
    return tuple(name for name in (FIRST_QUERY, FIRST_KEY) if name in default_parameters(mask))


@cache
def joined(mask: Mask, other: Mask) -> Mask:
    """The pairs of both masks; equal masks give one object."""
    return mask & other


# What torch.compiler.assume_constant_result sets, without importing torch here: the results are
# constants of the graph.
for _function in (_flat, _has_causal, _relative, _name_of_tree, name_of_both, _part_in_graph):
    setattr(_function, "_dynamo_marked_constant", True)  # noqa: B010


@cache
def _mask(tree: Tree, align: str) -> Mask:
    """The mask of a tree, kept for good: compiled graphs know it by its identity."""
    match tree:
        case ("full",):
            return full()
        case ("causal",):
            return causal(align=align) if align != SHIFTED else _shifted(None, 0)
        case ("window", size):
            return _near(size - 1, None, align)
        case ("near", size):
            return _near(size, size, align)
        case ("same", name):
            return data_atoms.documents(name)
        case ("shown", name):
            return data_atoms.documents(name) & data_atoms.flags(f"{name}_shown")
        case ("or", first, *rest):
            mask = _mask(first, align)
            for part in rest:
                mask = mask | _mask(part, align)
            return mask
    return _conjunction(tree[1:], align)


def _conjunction(parts: tuple[Tree, ...], align: str) -> Mask:
    """The parts in one mask; a causal window is written as one combinator."""
    sizes = [part[1] for part in parts if part[0] == "window"]
    rest = [part for part in parts if part[0] != "window"]
    masks = []
    if sizes and _CAUSAL in rest:
        rest.remove(_CAUSAL)
        masks.append(_near(min(sizes) - 1, 0, align))
    else:
        masks += [_near(size - 1, None, align) for size in sizes]
    joined: Mask | None = None
    for mask in (*masks, *(_mask(part, align) for part in rest)):
        joined = mask if joined is None else joined & mask
    return full() if joined is None else joined


def _near(left: int | None, right: int | None, align: str) -> Mask:
    if align == SHIFTED:
        return _shifted(left, right)
    return window(left, right, align=align)


def _shifted(left: int | None, right: int | None) -> Mask:
    """A window around q + query_offset."""
    p_offset = param(SHIFT, 0)
    masks = []
    if left is not None:
        masks.append(where(lambda q, k: k >= q + p_offset - left))
    if right is not None:
        masks.append(where(lambda q, k: k <= q + p_offset + right))
    return masks[0] if len(masks) == 1 else masks[0] & masks[1]
