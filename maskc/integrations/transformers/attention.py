"""The attention function that models of transformers call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from maskc.api import attention
from maskc.core.errors import DataMissing, ModelArgument, ModelMask
from maskc.dsl.combinators import causal, full
from maskc.dsl.data_atoms import cu_seqlens, documents
from maskc.dsl.mask import Mask
from maskc.dsl.moved import FIRST_KEY, FIRST_QUERY, NotMoved
from maskc.dsl.score_tracer import score as score_of
from maskc.dsl.score_tracer import table
from maskc.integrations.transformers.carried import reads_is_causal
from maskc.integrations.transformers.masks import name_of_both, named, part_of
from maskc.integrations.transformers.packed_positions import check_packing, check_states
from maskc.integrations.transformers.tensor_masks import misfit, parts_of

HARMLESS = frozenset({
    "sliding_window", "use_cache", "output_router_logits", "output_hidden_states", "deterministic",
    "num_items_in_batch", "return_dict", "cache_position", "logits_to_keep", "max_length_q",
    "max_length_k", "labels", "training",
})  # fmt: skip
"""Keywords that do not affect attention, or that the mask already covers."""

EXTRA = "maskc_extra_mask"
"""The attribute of an attention module with a mask of its own, see `set_mask`."""

_CAPTURED = (
    "models pass no data to masks of set_mask: let the mask capture the array, as in "
    "mc.from_mask_mod(lambda b, h, q, k: {0}[q] == {0}[k])"
)
_EAGER = "load the model with attn_implementation='eager'"
_ADVICE = {
    "output_attentions": _EAGER + " to look at attention weights",
    "indices": "the keys chosen by the model's indexer would be ignored: " + _EAGER,
    "seq_idx": "pass position_ids that restart in each sequence, and use_cache=False",
    "block_indices": "the blocks chosen by the model would be ignored: " + _EAGER,
}


class Layer(NamedTuple):
    """Record of one call of an attention module."""

    number: int | None
    """The index of the layer, if the module has one."""
    module: str
    """Class of the attention module."""
    mask: Mask
    data: dict[str, Any]
    shape: tuple[int, int, int, int, int, int, int]
    """(B, Hq, Hkv, n_q, n_kv, D, Dv)."""
    dtype: Any
    device: tuple[str, int]
    softcap: float | None
    sinks: bool


_watching: ContextVar[list[Layer] | None] = ContextVar("maskc_layers", default=None)


@contextmanager
def layers() -> Iterator[list[Layer]]:
    """Collects what attention modules run meanwhile."""
    seen: list[Layer] = []
    token = _watching.set(seen)
    try:
        yield seen
    finally:
        _watching.reset(token)


def run(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any,
    scaling: float | None = None, dropout: float = 0.0, softcap: float | None = None,
    s_aux: Any = None, is_causal: bool | None = None, position_ids: Any = None,
    position_bias: Any = None, cu_seq_lens_q: Any = None, cu_seq_lens_k: Any = None,
    max_length_q: Any = None, compute: Any = None, **others: Any,
) -> tuple[Any, None]:  # fmt: skip
    """Compute attention with the signature of `AttentionInterface`.

    Args:
        module: the attention module; its class and layer index name it in errors.
        query: [B, Hq, n_q, D]; key: [B, Hkv, n_kv, D]; value: [B, Hkv, n_kv, Dv]; any strides.
        attention_mask: the result of `make_mask`; or a tensor that broadcasts to [B, Hq, n_q,
            n_kv], booleans that keep pairs or numbers that are added to scores; or None if the
            model has no mask.
        scaling: factor of the scores; D^-1/2 when None.
        dropout: the share of weights that are dropped, by the default generator of the device.
        softcap: scores become softcap * tanh(score / softcap).
        s_aux: [Hq], a logit per head in the denominator, with a gradient.
        is_causal: used only without a mask; None takes the module's setting.
        position_bias: [B, Hq, n_q, n_kv] or what broadcasts to it, added to scaled scores, with a
            gradient; T5 and its kin make it.
        position_ids: [B, n_q]; only read to find packed sequences that the mask ignores.
        cu_seq_lens_q: int [segments + 1], cumulative lengths of packed segments.
        cu_seq_lens_k: the same for keys.
        max_length_q: the longest segment. Integers choose tiles; tensors are not read.
        compute: replacement of `maskc.attention`, with its arguments.
        others: ignored where they are known to say nothing about attention.

    Returns:
        (out [B, n_q, Hq, Dv] contiguous, None).

    Raises:
        ModelArgument: an argument would change the result and is not computed (MC606).
        ModelMask: the mask is missing, of other lengths, or no mask (MC609).
        PackingLost: position_ids describe packed sequences that the mask ignores (MC608), or that
            other layers of the model do not keep apart (MC615).
        MaskcError: see CompiledMask.
    """
    starts = {"seq_idx": others.get("seq_idx"), "cu_seq_lens_q": cu_seq_lens_q}
    if cu_seq_lens_q is not None or _separates(attention_mask):
        others.pop("seq_idx", None)  # it says again which tokens are of one sequence
    for name, given in others.items():
        if given is not None and given is not False and name not in HARMLESS:
            shown = f"{name}={given}" if isinstance(given, (bool, int, float, str)) else name
            raise ModelArgument(_name(module), shown, _ADVICE.get(name, _EAGER))
    bias = position_bias
    if attention_mask is None:
        mask, data = _without(module, query, key, is_causal), dict[str, Any]()
    elif getattr(attention_mask, "carries_a_mask", False):
        positions = position_ids, cu_seq_lens_q
        mask, data, key, value = _with(module, attention_mask, query, key, value, *positions)
    else:
        mask, data, bias = _with_tensor(module, attention_mask, query, key, position_bias)
    sequences = _sequences(attention_mask, cu_seq_lens_q, query)
    check_states(_name(module), getattr(module, "config", None), sequences, starts)
    if cu_seq_lens_q is not None or cu_seq_lens_k is not None:
        lengths = cu_seq_lens_q, cu_seq_lens_k, max_length_q
        mask, data = _segmented(module, mask, data, query, key, *lengths)
    if (extra := getattr(module, EXTRA, None)) is not None:  # torch.compile guards it
        mask, data = _with_extra(module, mask, data, extra, attention_mask)
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    sinks = None if s_aux is None else s_aux.reshape(-1).float()
    _note(module, query, key, value, mask, data, softcap, sinks)
    score = None
    if bias is not None:
        if softcap is not None and position_bias is not None:
            raise ModelArgument(_name(module), "position_bias and softcap", _EAGER)
        score, data = _BIASED, {**data, _BIAS: bias[..., : key.shape[2]]}
        if softcap is not None:  # a mask of numbers is added behind it
            score, data[_SOFTCAP], softcap = _CAPPED, _vector(softcap, key), None
    try:
        out = (compute or attention)(
            query, key, value, mask, scale=scaling, softcap=softcap, sink_logits=sinks,
            score=score, dropout_p=dropout, **data,
        )  # fmt: skip
    except DataMissing as error:  # of the mask that set_mask gave
        error.hint = _CAPTURED
        raise
    return out.transpose(1, 2).contiguous(), None


def _name(module: Any) -> str:
    """The module and its model, for errors."""
    kind = getattr(getattr(module, "config", None), "model_type", "")
    return type(module).__name__ + (f" of {kind}" if kind else "")


def _separates(carried: Any) -> bool:
    """Whether a mask separates packed sequences."""
    return getattr(carried, "carries_a_mask", False) and carried.found.sequences is not None


def _sequences(carried: Any, ends: Any, query: Any) -> Any:
    """The packed sequence of each token, int [B, N]; None if nothing in the call packs."""
    import torch

    if _separates(carried):
        return carried.found.sequences
    if ends is None or ends.shape[0] < 3:
        return None
    tokens = torch.arange(query.shape[2], device=ends.device)
    return torch.bucketize(tokens, ends[1:-1], right=True)[None]


def _vector(number: float, like: Any) -> Any:
    """A number on the device of a tensor, in fp32."""
    import torch

    return torch.full((1,), number, device=like.device)


_TENSOR = (
    "masks are booleans that keep pairs, or numbers that are added to scores, and broadcast to the "
    "scores; where a model made this one: " + _EAGER
)


def _with_tensor(
    module: Any, tensor: Any, query: Any, key: Any, position_bias: Any
) -> tuple[Mask, dict[str, Any], Any]:
    """(the mask of a tensor, its data, what is added to scores or None)."""
    if not hasattr(tensor, "is_floating_point"):
        raise ModelMask(_name(module), f"a {type(tensor).__name__} for a mask", _TENSOR)
    batch, heads, n_q, _ = query.shape
    if wrong := misfit(tensor, (batch, heads, n_q, key.shape[2])):
        raise ModelMask(_name(module), wrong, _TENSOR)
    mask, data, has_bias = parts_of(tensor)
    if not has_bias:
        return mask, data, position_bias
    bias = tensor.reshape((1,) * (4 - tensor.ndim) + tuple(tensor.shape))
    return mask, data, bias if position_bias is None else position_bias + bias


def _without(module: Any, query: Any, key: Any, is_causal: bool | None) -> Mask:
    """Return the mask of a call without one: full, or causal if the module is causal."""
    if is_causal is None:
        kind: Any = type(module)
        is_causal = getattr(module, "is_causal", False) and reads_is_causal(kind)
    n_q, n_kv = query.shape[2], key.shape[2]
    if not is_causal or n_q == 1:
        return _FULL
    if n_q == n_kv:
        return _CAUSAL
    what = f"is_causal=True, no mask, and {n_q} queries for {n_kv} keys"
    raise ModelMask(_name(module), what, "the positions of the queries are unknown: " + _EAGER)


_FULL, _CAUSAL = full(), causal()
_BIAS, _SOFTCAP = "position_bias", "model_softcap"
_BIASED = score_of(lambda s, q, k, h, b: s + table(_BIAS)[b, h, q, k])
_CAPPED = score_of(
    lambda s, q, k, h, b: (
        table(_SOFTCAP)[0] * np.tanh(s / table(_SOFTCAP)[0]) + table(_BIAS)[b, h, q, k]
    )
)


def _with(
    module: Any, carried: Any, query: Any, key: Any, value: Any, position_ids: Any, starts: Any
) -> tuple[Mask, dict[str, Any], Any, Any]:
    """The mask, its data, and the keys and values that can be seen."""
    mask, place = carried.found, carried.place
    n_q, n_kv = query.shape[2], key.shape[2]
    # A mask for one query broadcasts, as a tensor would.
    if (n_q, n_kv) != place[:2] and (place.n_q, place.n_kv, mask.alike) != (1, n_kv, True):
        what = f"{n_q} queries and {n_kv} keys, and a mask for {place.n_q} and {place.n_kv}"
        raise ModelMask(_name(module), what, _EAGER)
    if position_ids is not None and mask.sequences is None and place.q_offset == place.kv_offset:
        _check_packing(module, carried, position_ids, starts)
    if mask.n_kv < n_kv:
        key, value = key[:, :, : mask.n_kv], value[:, :, : mask.n_kv]
    return mask.mask, dict(mask.data), key, value


def _check_packing(module: Any, carried: Any, position_ids: Any, starts: Any) -> None:
    """Refuse position ids of packed sequences that neither the mask nor the call separates.

    Raises:
        PackingLost: see `check_packing`.
    """
    import torch

    if not torch.compiler.is_compiling():  # once for all layers of a type
        if position_ids is carried.checked_positions:
            return
        carried.checked_positions = position_ids
    owner = _name(module)
    check_packing(owner, position_ids, carried.place.n_q, carried.padding, starts)


def _segmented(
    module: Any, mask: Mask, data: dict[str, Any], query: Any, key: Any, of_q: Any, of_k: Any,
    longest: Any,
) -> tuple[Mask, dict[str, Any]]:  # fmt: skip
    """The mask inside segments that cumulative lengths give, as vision towers pack images."""
    import torch

    same = of_q is of_k or (of_q is not None and of_k is not None and torch.equal(of_q, of_k))
    if not same or query.shape[2] != key.shape[2] or query.shape[0] != 1:
        what = "cu_seq_lens of queries and keys that differ, or with several sequences"
        raise ModelMask(_name(module), what, _EAGER)
    is_known = isinstance(longest, int) and not torch.compiler.is_compiling()
    segments = cu_seqlens(of_q, longest if is_known else None)
    return _joined(mask, _SEGMENTS), {**data, "segments": segments}


_SEGMENTS = documents("segments")


_WHOLE = (
    "let the mask be a formula of positions, without top-k and data, or generate with a cache that "
    "keeps all keys: DynamicCache() without a config"
)


def _with_extra(
    module: Any, mask: Mask, data: dict[str, Any], extra: Mask, carried: Any
) -> tuple[Mask, dict[str, Any]]:
    """The model's mask and the one that `set_mask` gave the layer, and their data.

    The latter is a mask of the whole sequence. The call holds the sequence's last queries, and in a
    sliding cache only its last keys.
    """
    if getattr(carried, "carries_a_mask", False) and carried.place.q_offset:
        place = carried.place
        try:
            extra, places = part_of(extra, place.kv_offset != 0)
        except NotMoved:
            what = f"{place.kv_offset} dropped keys of a sliding cache, and a mask of set_mask"
            raise ModelMask(_name(module), what, _WHOLE) from None
        positions = {FIRST_QUERY: place.q_offset, FIRST_KEY: place.kv_offset}
        data = data | {name: positions[name] for name in places}
    return _joined(mask, extra), data


def _joined(mask: Mask, other: Mask) -> Mask:
    import torch

    if torch.compiler.is_compiling():
        return named(name_of_both(id(mask), id(other)))
    return mask & other


def _note(
    module: Any, query: Any, key: Any, value: Any, mask: Mask, data: dict[str, Any],
    softcap: float | None, sinks: Any,
) -> None:  # fmt: skip
    import torch

    if torch.compiler.is_compiling():
        return
    seen = _watching.get()
    if seen is not None:
        batch, heads, n_q, dim = query.shape
        shape = batch, heads, key.shape[1], n_q, key.shape[2], dim, value.shape[-1]
        seen.append(Layer(
            getattr(module, "layer_idx", None), type(module).__name__, mask, data, shape,
            query.dtype, (query.device.type, query.device.index or 0), softcap, sinks is not None,
        ))  # fmt: skip
