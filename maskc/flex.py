"""`flex_attention`: the signature of torch.nn.attention.flex_attention.flex_attention."""

from __future__ import annotations

import sys
import warnings
from contextlib import AbstractContextManager, nullcontext
from operator import index
from types import CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from maskc.api import attention
from maskc.core.errors import BadOption, BadShape, NotAMask
from maskc.core.recorders import refuse_proxy, unscripted
from maskc.core.score import capped
from maskc.core.source import caller, outside
from maskc.core.tensors import torch_of
from maskc.dsl.combinators import full
from maskc.dsl.mask import Mask
from maskc.dsl.matrices import from_block_mask
from maskc.dsl.not_a_mask import not_a_mask
from maskc.dsl.score_tracer import Score, from_score_mod
from maskc.runtime.autograd import is_compiling

_LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
_known: WeakKeyDictionary[Any, tuple[tuple[object, ...], Mask]] = WeakKeyDictionary()
_FULL = full()
_ANY = 1 << 30
_MASK_MADE = "create_block_mask(mask_mod, B, H, Q_LEN, KV_LEN) makes one for these sizes"
"""The size of the one block of torch's BlockMask for all lengths."""


@unscripted
def flex_attention(
    query: Any, key: Any, value: Any, score_mod: Any = None, block_mask: Any = None,
    scale: float | None = None, enable_gqa: bool = False, return_lse: bool = False,
    kernel_options: Any = None, *, return_aux: Any = None,
) -> Any:  # fmt: skip
    """Run FlexAttention's call on maskc, differentiably and without torch.compile.

    The first call with a BlockMask converts it, see `mc.from_block_mask`. A later call converts it
    again if its lists were modified. A graph of torch.compile belongs to one BlockMask and one
    score_mod object. It reads the lists when it is compiled; tensors that mask_mod and score_mod
    read are inputs of the graph.

    Args:
        query: [B, Hq, Nq, D]; key: [B, Hkv, Nkv, D]; value: [B, Hkv, Nkv, Dv].
        score_mod: a function of (score, b, h, q_idx, kv_idx) that scales or soft-caps scores, adds
            ALiBi, or several of these: `cap * torch.tanh(score / cap)`,
            `score + slopes[h] * (kv_idx - q_idx)`, `score - slopes[h] * (q_idx - kv_idx).abs()`.
            Slopes may come from a tensor that requires grad. Any other formula runs as that of
            `mc.from_score_mod`.
        block_mask: a BlockMask or a mask of maskc; None keeps every pair.
        scale: factor of q . k; D^-1/2 when None.
        enable_gqa: whether query may have more heads than key and value.
        return_lse: whether to return the natural log-sum-exp of each query too, in fp32.
        kernel_options: has no effect, with a warning; it chooses among torch's kernels.
        return_aux: torch's AuxRequest(lse=True); max_scores is not supported.

    Returns:
        out [B, Hq, Nq, Dv], or (out, lse [B, Hq, Nq]) with return_lse=True, or (out, AuxOutput)
        with return_aux. A query without keys has out 0 and lse -inf.

    Raises:
        ScoreNotTraceable, ScoreDerivative, ScoreHidesPairs: see `mc.from_score_mod` (MC129 to
            MC131).
        NotAMask: block_mask is something else, such as a mask_mod (MC106).
        BadShape: the BlockMask was made for other lengths, sequences or heads (MC401).
        BadOption: query has more heads than key, and enable_gqa is False; or return_aux is not
            AuxRequest(lse=True), or return_lse was given too (MC407).
        MaskcError: see `mc.from_block_mask` and CompiledMask.
    """
    refuse_proxy(query)
    if isinstance(score_mod, Mask) or hasattr(score_mod, "kv_num_blocks"):
        finding = "a mask, which block_mask= takes"
        raise BadOption("score_mod", "a function", finding, at="score_mod")
    if return_aux is not None:
        return_lse = _asks_for_lse(return_aux, return_lse)
    if kernel_options:
        text = "kernel_options has no effect: maskc chooses its kernel by the mask"
        warnings.warn(text, UserWarning, stacklevel=outside())
    call = (query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse)
    result = _traced(call) if is_compiling(query) else _attention(*call)
    if return_aux is None:
        return result
    from maskc.integrations.torch import aux_output

    out, lse = result if return_lse else (result, None)
    return out, aux_output(lse)


def _attention(
    query: Any, key: Any, value: Any, score_mod: Any, block_mask: Any, scale: float | None,
    enable_gqa: bool, return_lse: bool,
) -> Any:  # fmt: skip
    """Run the call without the keywords that only select results."""
    mask = _FULL if block_mask is None else block_mask
    if not isinstance(mask, Mask):
        mask = mask_of_block_mask(block_mask)
        sizes, of_q = sizes_of(block_mask), query.shape
        check_sizes(sizes, of_q[0], of_q[1], of_q[2], key.shape[2])
    check_heads(query.shape[1], key.shape[1], enable_gqa)
    if score_mod is None:
        return attention(query, key, value, mask, return_lse=return_lse, scale=scale)
    rules = formula_or_numbers(score_mod)
    return _with_rules(query, key, value, mask, scale, return_lse, rules)


Rules = tuple[Score | None, float | None, float, float]
"""A score_mod as a formula, or as a soft-cap, a factor of the scale and a number that is added."""


def formula_or_numbers(score_mod: Any) -> Rules:
    """Read a score_mod.

    Raises:
        As `from_score_mod`.
    """
    mark = _numbers_of(score_mod)
    if mark is not None and mark in _RULES:
        return _RULES[mark]
    score = from_score_mod(score_mod)
    numbers = None if score.mask is not None else capped(score.formula.logit)
    if numbers is None:
        return score, None, 1.0, 0.0
    if mark is not None and len(_RULES) < _MAX_RULES:
        _RULES[mark] = (None, *numbers)
    return None, *numbers


_RULES: dict[object, Rules] = {}
"""Results for score_mods that compute with numbers alone: tracing one takes up to a millisecond."""
_MAX_RULES = 256


def _numbers_of(function: Any) -> object:
    """The code of a function and the numbers that it captured; None if it reads anything else,
    modules aside, which may be another thing in the next call."""
    if type(function) is not FunctionType or function.__defaults__ or function.__kwdefaults__:
        return None
    code, known = function.__code__, function.__globals__
    if any(type(x) is CodeType for x in code.co_consts):
        return None
    # names that are no globals are builtins, or attributes
    values = [known[x] for x in code.co_names if type(known.get(x, sys)) is not ModuleType]
    try:
        values += [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # a variable without a value, which the trace reports
        return None
    return (code, *values) if all(type(x) in (int, float) for x in values) else None


def _with_rules(
    query: Any, key: Any, value: Any, mask: Any, scale: float | None, return_lse: bool,
    rules: Rules,
) -> Any:  # fmt: skip
    """The call with a score_mod that was read."""
    score, softcap, factor, shift = rules
    if factor != 1:
        scale = (query.shape[3] ** -0.5 if scale is None else scale) * factor
    options: dict[str, Any] = {"scale": scale, "softcap": softcap, "score": score}
    result = attention(query, key, value, mask, return_lse=return_lse, **options)
    if shift != 0 and return_lse:
        result = result[0], result[1] + shift
    return result


def _traced(call: tuple[Any, ...]) -> Any:
    """The call as a compiler can follow it; arguments as of `_attention`."""
    from maskc.integrations.torch import making
    from maskc.integrations.torch.handles import check_dimensions

    query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse = call
    if not (making.has_place(block_mask) and making.has_place(score_mod)):
        return making.uncompiled(_attention, *call)
    check_dimensions(query.dim(), value.dim())
    batch, heads, n_q, _ = query.shape
    mask = _FULL if block_mask is None else block_mask
    if not isinstance(mask, Mask):
        mask = making.made(mask_of_block_mask, block_mask)
        lengths, front = sizes = making.stated(sizes_of, block_mask)
        other = lengths is not None and (n_q != lengths[0] or key.shape[2] != lengths[1])
        if other or front[0] not in (1, batch) or front[1] not in (1, heads):
            making.checked(check_sizes, sizes, *map(index, (batch, heads, n_q, key.shape[2])))
    if not enable_gqa and heads != key.shape[1]:
        making.checked(check_heads, *map(index, (heads, key.shape[1])), False)
    if score_mod is None:
        return attention(query, key, value, mask, return_lse=return_lse, scale=scale)
    rules = making.made_of_function(formula_or_numbers, score_mod)
    return _with_rules(query, key, value, mask, scale, return_lse, rules)


def check_heads(of_q: int, of_k: int, enable_gqa: bool) -> None:
    """Raise an error for grouped heads without enable_gqa."""
    if not enable_gqa and of_q != of_k:
        wanted = f"True, as query has {of_q} heads and key {of_k}"
        raise BadOption("enable_gqa", wanted, enable_gqa, at="enable_gqa")


def _asks_for_lse(return_aux: Any, return_lse: bool) -> bool:
    """Whether an AuxRequest requests the log-sum-exp."""
    if return_lse:
        raise BadOption("return_lse", "left out with return_aux", return_lse, at="return_lse")
    lse, most = (getattr(return_aux, name, None) for name in ("lse", "max_scores"))
    if lse is None or most:
        wanted = "AuxRequest(lse=True): maskc computes no max_scores"
        raise BadOption("return_aux", wanted, return_aux, at="return_aux")
    return bool(lse)


def mask_of_block_mask(block_mask: Any) -> Mask:
    """The mask of a BlockMask, remembered while the BlockMask lives and is not written into.

    Raises:
        As `from_block_mask`.
    """
    lists = [getattr(block_mask, name, None) for name in _LISTS]
    mark = (
        getattr(block_mask, "mask_mod", None),
        *((id(x), getattr(x, "_version", 0)) for x in lists),
    )
    try:
        known = _known.get(block_mask)
    except TypeError:  # what cannot be referred to weakly is no BlockMask
        raise _refused(block_mask) from None
    if known is None or known[0] != mark:
        if callable(block_mask) or not hasattr(block_mask, "kv_num_blocks"):
            raise _refused(block_mask)
        with _outside_of_modes(block_mask.kv_num_blocks):
            known = _known[block_mask] = mark, from_block_mask(block_mask)
    return known[1]


def _outside_of_modes(x: Any) -> AbstractContextManager[object]:
    """While it lasts, contents of tensors like x are read as they are: a mode of dispatch, as
    torch.export's, would answer with a tensor that has none."""
    torch = torch_of(x)
    if torch is None or not torch._C._len_torch_dispatch_stack():
        return nullcontext()
    disabled: AbstractContextManager[object] = torch.utils._python_dispatch._disable_current_modes()
    return disabled


def _refused(given: object) -> NotAMask:
    return not_a_mask("flex_attention", given, caller() or "block_mask")


def sizes_of(block_mask: Any) -> tuple[tuple[int, int] | None, tuple[int, int]]:
    """((queries, keys) of a BlockMask or None if it holds at all, (sequences, heads))."""
    n_q, n_kv = block_mask.seq_lengths
    batch, heads = block_mask.kv_num_blocks.shape[:2]
    return (n_q, n_kv) if min(block_mask.BLOCK_SIZE) < _ANY else None, (batch, heads)


def check_sizes(
    sizes: tuple[tuple[int, int] | None, tuple[int, int]], batch: int, heads: int, n_q: int,
    n_kv: int,
) -> None:  # fmt: skip
    """Refuse a BlockMask that was made for another call.

    Args:
        sizes: as of `sizes_of`; the others are the call's.
    """
    made, front = sizes
    call, wanted = (n_q, n_kv), (batch, heads)
    if made not in (None, call):
        what = f"{call} for the queries and keys of this call; create it again for other lengths"
        raise BadShape("block_mask", made, what, _MASK_MADE, at="block_mask")
    if any(size not in (1, n) for size, n in zip(front, wanted, strict=True)):
        what = f"{wanted} sequences and heads, or 1 of these"
        raise BadShape("block_mask", front, what, _MASK_MADE, at="block_mask")
