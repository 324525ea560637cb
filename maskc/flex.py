"""`flex_attention`: the signature of torch.nn.attention.flex_attention.flex_attention."""

from __future__ import annotations

import warnings
from typing import Any
from weakref import WeakKeyDictionary

from maskc.api import attention
from maskc.core.errors import BadOption, BadShape, MaskcError, NotAMask, ScoreModUnsupported
from maskc.core.source import caller, outside
from maskc.dsl.combinators import causal, full
from maskc.dsl.mask import Mask
from maskc.dsl.matrices import from_block_mask
from maskc.dsl.not_a_mask import not_a_mask
from maskc.dsl.score_tracer import Score, from_score_mod

_LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
_known: WeakKeyDictionary[Any, tuple[tuple[object, ...], Mask]] = WeakKeyDictionary()
_causal: WeakKeyDictionary[Mask, tuple[bool, bool]] = WeakKeyDictionary()
"""Whether masks keep no key behind their query, counted from the first tokens and the last."""
_FULL = full()
_ANY = 1 << 30
"""The size of the one block of torch's BlockMask for all lengths."""


def flex_attention(
    query: Any, key: Any, value: Any, score_mod: Any = None, block_mask: Any = None,
    scale: float | None = None, enable_gqa: bool = False, return_lse: bool = False,
    kernel_options: Any = None, *, return_aux: Any = None,
) -> Any:  # fmt: skip
    """FlexAttention's call, run by maskc; differentiable on torch tensors, without torch.compile.

    The mask of a BlockMask is made when it is seen first, see `mc.from_block_mask`, and again
    when its lists have been written into. Inside of torch.compile, make it outside:
    `mc.attention(q, k, v, mc.from_block_mask(block_mask))`.

    Args:
        query: [B, Hq, Nq, D]; key: [B, Hkv, Nkv, D]; value: [B, Hkv, Nkv, Dv].
        score_mod: a function of (score, b, h, q_idx, kv_idx) that scales or soft-caps scores, adds
            ALiBi, or several of these: `cap * torch.tanh(score / cap)`,
            `score + slopes[h] * (kv_idx - q_idx)`, `score - slopes[h] * (q_idx - kv_idx).abs()`.
            Slopes may come from a tensor that requires grad. Any other formula runs as that of
            `mc.from_score_mod`, on CPUs and on CUDA cores.
        block_mask: a BlockMask, also a mask of maskc; None keeps every pair.
        scale: of the products q . k; D^-1/2 when None.
        enable_gqa: whether query may have more heads than key and value.
        return_lse: whether to return the log-sum-exp of each query too, natural, fp32.
        kernel_options: has no effect, with a warning; it chooses among torch's kernels.
        return_aux: torch's AuxRequest(lse=True); max_scores is not computed.

    Returns:
        out [B, Hq, Nq, Dv], or (out, lse [B, Hq, Nq]) with return_lse=True, or (out, AuxOutput)
        with return_aux. A query without keys has out 0 and lse -inf.

    Raises:
        ScoreModUnsupported: score_mod is no such formula (MC128).
        NotAMask: block_mask is something else, such as a mask_mod (MC106).
        BadShape: the BlockMask was made for other lengths, sequences or heads (MC401).
        BadOption: query has more heads than key, and enable_gqa is False; or return_aux is not
            AuxRequest(lse=True), or return_lse was given, too (MC407).
        MaskcError: see `mc.from_block_mask` and CompiledMask.
    """
    if isinstance(score_mod, Mask) or hasattr(score_mod, "kv_num_blocks"):
        found = "a mask, which block_mask= takes"
        raise BadOption("score_mod", "a function", found, at="score_mod")
    if return_aux is not None:
        return_lse = _asks_for_lse(return_aux, return_lse)
    if kernel_options:
        text = "kernel_options has no effect: maskc chooses its kernel by the mask"
        warnings.warn(text, UserWarning, stacklevel=outside())
    mask = _FULL if block_mask is None else block_mask
    if not isinstance(mask, Mask):
        mask = _mask_of(block_mask)
        _check(block_mask, query.shape, key.shape)
    if not enable_gqa and query.shape[1] != key.shape[1]:
        wanted = f"True, as query has {query.shape[1]} heads and key {key.shape[1]}"
        raise BadOption("enable_gqa", wanted, enable_gqa, at="enable_gqa")
    options: dict[str, Any] = {"scale": scale}
    shift = None
    if score_mod is not None:
        options, shift = _with_score_mod(score_mod, query, key.shape[2], mask, scale)
    result = attention(query, key, value, mask, return_lse=return_lse, **options)
    if shift is not None and return_lse:
        result = result[0], result[1] + shift[None, :, None]
    if return_aux is None:
        return result
    from maskc.integrations import score_mods

    out, lse = result if return_lse else (result, None)
    return out, score_mods.aux_output(lse)


def _asks_for_lse(return_aux: Any, return_lse: bool) -> bool:
    """Whether an AuxRequest asks for the log-sum-exp.

    Raises:
        BadOption.
    """
    if return_lse:
        raise BadOption("return_lse", "left out beside return_aux", return_lse, at="return_lse")
    lse, most = (getattr(return_aux, name, None) for name in ("lse", "max_scores"))
    if lse is None or most:
        wanted = "AuxRequest(lse=True): maskc computes no max_scores"
        raise BadOption("return_aux", wanted, return_aux, at="return_aux")
    return bool(lse)


def _with_score_mod(
    score_mod: Any, query: Any, n_kv: int, mask: Mask, scale: float | None
) -> tuple[dict[str, Any], Any]:
    """(options of `attention`, what to add to the log-sum-exp of each head or None).

    FlexAttention counts queries from the first token, and ALiBi of maskc from where the last query
    meets the last key: that moves all scores of a row, so only its log-sum-exp changes.

    Raises:
        ScoreModUnsupported.
    """
    from maskc.integrations import score_mods

    try:
        found = score_mods.score_options(score_mod, query)
    except ScoreModUnsupported as refused:
        return {"scale": scale, "score": _formula(score_mod, refused)}, None
    options: dict[str, Any] = {"softcap": found.softcap, "scale": scale}
    if found.factor != 1:
        options["scale"] = (query.shape[-1] ** -0.5 if scale is None else scale) * found.factor
    shift = found.shift
    if found.slopes is not None:
        late = n_kv - query.shape[2]
        if found.offset is None and _is_causal(mask, late):
            shift = shift + found.slopes * late
        elif found.offset != late:
            hint = (
                "slopes[h] * (kv_idx - q_idx) needs a mask without keys behind their query"
                if found.offset is None
                else f"write abs(q_idx + {late} - kv_idx): the last query meets the last key"
            )
            other = ScoreModUnsupported(
                "ALiBi is of another distance", hint, at=caller() or "score_mod"
            )
            return {"scale": scale, "score": _formula(score_mod, other)}, None
        options["alibi_slopes"] = score_mods.per_head(found.slopes, query)
    if isinstance(shift, (int, float)) and shift == 0:
        return options, None
    return options, score_mods.per_head(shift, query)


def _formula(score_mod: Any, refused: ScoreModUnsupported) -> Score:
    """The score_mod as a formula of the score, where it is no option of a call.

    Raises:
        ScoreModUnsupported: it is no formula, either.
    """
    try:
        return from_score_mod(score_mod)
    except MaskcError as error:
        raise refused from error


def _is_causal(mask: Mask, late: int) -> bool:
    """Whether every key is at most `late` tokens behind its query, and `late` is not negative."""
    known = _causal.get(mask)
    if known is None:
        known = _causal[mask] = (
            mask.subset_of(causal(align="start")) is True, mask.subset_of(causal()) is True
        )  # fmt: skip
    return known[1] or (known[0] and late >= 0)


def _mask_of(block_mask: Any) -> Mask:
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
        if callable(block_mask):
            raise _refused(block_mask)
        known = _known[block_mask] = mark, from_block_mask(block_mask)
    return known[1]


def _refused(given: object) -> NotAMask:
    return not_a_mask("flex_attention", given, caller() or "block_mask")


def _check(block_mask: Any, of_q: tuple[int, ...], of_k: tuple[int, ...]) -> None:
    """Refuse a BlockMask that was made for another call.

    Raises:
        BadShape.
    """
    made, call = tuple(block_mask.seq_lengths), (of_q[2], of_k[2])
    if made != call and min(block_mask.BLOCK_SIZE) < _ANY:
        what = f"{call} for the queries and keys of this call; make it anew for other lengths"
        raise BadShape("block_mask", made, what, at="block_mask")
    front, wanted = tuple(block_mask.kv_num_blocks.shape[:2]), tuple(of_q[:2])
    if any(size not in (1, n) for size, n in zip(front, wanted, strict=True)):
        what = f"{wanted} sequences and heads, or 1 of these"
        raise BadShape("block_mask", front, what, at="block_mask")
