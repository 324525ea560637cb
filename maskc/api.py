"""Calls that compile by themselves."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, Never, overload

from maskc import conventions
from maskc.core.attention_call import DEFAULTS, AttentionCall, CallOptions, shown_by_overload
from maskc.core.data import CONVENTIONS
from maskc.core.dtypes import E4M3
from maskc.core.errors import ArgumentsByPlace, BadOption, UnknownDType, WrongRank
from maskc.core.recorders import refuse_proxy, unscripted
from maskc.core.score import Formula, Inputs, by_length
from maskc.core.source import outside
from maskc.core.tensors import ORDERS, Order, layout_of, torch_of
from maskc.dsl.mask import Mask
from maskc.dsl.score_tracer import Score, as_score
from maskc.dsl.slots import emptied

if TYPE_CHECKING:
    from maskc.core.difference import Difference
    from maskc.core.tensors import Device
    from maskc.runtime.compiled import CompiledMask

Sizes = tuple[int, int, int]
"""(head_dim, head_dim_v, query heads)."""


@overload
def attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Mask | None = None,
    *,
    return_lse: Literal[True],
    return_selection: Literal[False] = False,
    indexer_loss: Literal[False] = False,
    **options: Any,
) -> tuple[Any, Any]: ...
@overload
def attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Mask | None = None,
    *others: Never,
    scale: float | None = None,
    return_lse: bool = False,
    softcap: float | None = None,
    alibi_slopes: Any = None,
    sink_logits: Any = None,
    normalizer: str = "softmax",
    alpha: Any = None,
    nan_safe: bool = False,
    deterministic: bool = False,
    is_causal: bool = False,
    window_size: tuple[int, int] | None = None,
    enable_gqa: bool | None = None,
    layout: str | None = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    cu_seqlens_q_padded: Any = None,
    cu_seqlens_k_padded: Any = None,
    max_seqlen: int | None = None,
    score: Score | None = None,
    dropout_p: float = 0.0,
    dropout_seed: Any = None,
    return_selection: bool = False,
    indexer_loss: bool = False,
    **data: Any,
) -> Any: ...
@unscripted
@shown_by_overload
def attention(
    q: Any, k: Any, v: Any, mask: Mask | None = None, *others: Any, **keywords: Any
) -> Any:
    """Compute attention restricted to a mask. The kernel is compiled on first use and cached.

    On torch tensors, out and lse are differentiable (once) in q, k, v, alibi_slopes and
    sink_logits. It works inside torch.compile(fullgraph=True) with a mask made outside. Under
    autocast, q, k and v are cast as for scaled_dot_product_attention.

    Args:
        q: [B, Hq, Nq, D]; k: [B, Hkv, Nkv, D]; v: [B, Hkv, Nkv, Dv]. Their device decides the
            target.
        mask: which query sees which key. It may be left out if is_causal, window_size or
            cu_seqlens_q is given; with several of them, a pair must satisfy all.
        others: none; all further arguments go by name.
        deterministic: make torch gradients bitwise deterministic, as
            torch.use_deterministic_algorithms(True) does, and results batch-invariant.
        scale, return_lse, softcap, alibi_slopes, sink_logits, normalizer, alpha, nan_safe: see
            calls of CompiledMask.
        is_causal: keep k <= q, as scaled_dot_product_attention does: with fewer queries than
            keys, the first query is aligned with the first key. `mc.causal()` aligns the last ones.
        window_size: (keys before, keys behind) of flash-attn, -1 for unbounded; with fewer queries
            than keys, the last ones are aligned.
        enable_gqa: False refuses fewer key heads than query heads; otherwise query heads share key
            heads.
        layout: "bhsd", the default, "bshd" for tensors [B, N, H, D], out included, or "sbhd" for
            Megatron's [N, B, H, D]. "n" may stand for "s".
        cu_seqlens_q, cu_seqlens_k: integers [sequences + 1], cumulative lengths of packed tokens. q
            is [tokens, Hq, D] then, or has a batch of one. One array serves both. With two arrays,
            is_causal and window_size count from the last tokens of each sequence; alibi_slopes, and
            scores of distances p - k, are then refused.
        cu_seqlens_q_padded, cu_seqlens_k_padded: integers [sequences + 1], where each sequence
            begins if sequences are stored with padding behind them, as in TransformerEngine.
            Queries that are padding have out 0.
        max_seqlen: upper bound on the tokens of a sequence, see `mc.cu_seqlens`; not read with
            cu_seqlens_q_padded. With two arrays it changes nothing, and is compared with the
            lengths if MASKC_CHECK=1 is set.
        score: the score formula that replaces scale * q . k, see `mc.score`.
        return_selection, indexer_loss: see calls of CompiledMask.
        dropout_p: the probability of dropping a weight, as in scaled_dot_product_attention: it
            applies in every call that passes it, also in evaluation mode.
        dropout_seed: seed of the dropped weights. None takes a seed from torch's default generator
            of the device, so that torch.manual_seed reproduces it.
        data: the mask's and the score's data and parameters by name.

    Returns:
        out [B, Hq, Nq, Dv], or (out, lse) with return_lse=True; lse is [B, Hq, Nq]. With
        layout="bshd" out is [B, Nq, Hq, Dv]; for packed tokens [tokens, Hq, D] it is [tokens, Hq,
        Dv], and lse [Hq, tokens].

    Raises:
        NotAMask: `mask` is not a mask; for a matrix or a function, the hint says what to write
            (MC106).
        BadOption: keywords contradict each other (MC407).
        ArgumentsByPlace: more positional arguments follow the mask (MC439).
        TargetNotBuilt: a gradient is required and the target has no backward kernels (MC503).
        MaskcError: see CompiledMask.

    Warns:
        LayoutWarning: there are more heads than tokens, and no layout is given.
    """
    if others:
        raise ArgumentsByPlace("mc.attention", len(others), at="mask")
    if _RESERVED.isdisjoint(keywords):
        return attend(AttentionCall(q, k, v, DEFAULTS, keywords), mask)
    options, data = CallOptions.read(keywords)
    score = data.pop("score", None)
    of_others = conventions.Keywords.taken(data) if data else None
    return attend(AttentionCall(q, k, v, options, data), mask, score, of_others)


_RESERVED = frozenset((*CallOptions._fields, *CONVENTIONS, "score"))
"""Keywords of `attention` that are no data."""


def attend(
    call: AttentionCall, mask: object, score: Score | None = None,
    of_others: conventions.Keywords | None = None,
) -> Any:  # fmt: skip
    """A call of `attention` with its keywords read.

    Args:
        of_others: keywords of other libraries; None if all have their defaults.
    """
    q, k = call.q, call.k
    refuse_proxy(q)
    if of_others is not None:
        return _by_convention(call, mask, of_others, score)
    if not isinstance(mask, Mask):
        raise conventions.without_mask(mask, call.data)
    torch = torch_of(q)
    _hint(torch, q, k)
    return _attention(torch, _compiled, mask, call, score)


def _hint(torch: Any, q: Any, k: Any) -> None:
    """Warn where tensors look like [B, N, H, D]; a compiler that traces the call hears nothing."""
    if torch is not None and (
        torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
    ):
        return
    if getattr(q, "is_nested", False):  # has no shape, and is refused later
        return
    of_q: tuple[int, ...] = getattr(q, "shape", None) or ()
    if len(of_q) == 4 and of_q[1] > of_q[2] > 1 and conventions.may_be_tokens_first(q, k):
        warnings.warn(
            f"q has {of_q[1]} heads and {of_q[2]} tokens: tensors [B, N, H, D] need "
            "layout='bshd', and layout='bhsd' says that these are [B, H, N, D]",
            conventions.LayoutWarning,
            stacklevel=outside(),
        )


def _attention(
    torch: Any, find: Any, mask: Mask, call: AttentionCall, score: Score | None = None
) -> Any:
    """The call of tensors [B, H, N, D], or in another order; `find` makes or finds the kernel of
    the mask; `torch` is what `torch_of` gives. Log-sum-exps are [B, H, N]."""
    q, options = call.q, call.options
    watched = torch is not None and isinstance(q, torch.Tensor)
    if score is not None:
        score = as_score(score)
    several = options is not DEFAULTS and (
        options.return_selection or options.indexer_loss or options.alpha_by_head
    )
    if watched and (several or q.dtype is torch.float8_e4m3fn):
        if score is None and not several:
            return _scaled(find, torch, mask, call)
        from maskc.runtime.autograd import is_traced

        watched = score is not None and is_traced(torch)
    if watched:
        import maskc.integrations.torch as with_torch  # takes less time than `from`

        return with_torch.attention(find, mask, call, score)
    eager = torch is not None and not torch.compiler.is_compiling()
    if eager and torch._C._is_any_autocast_enabled() and isinstance(q, torch.Tensor):
        from maskc.integrations.torch import cast_all

        q, k, v = cast_all(*call[:3])
        call = call._replace(q=q, k=k, v=v)
    sizes, dtype, place = _kernel_of(q, call.v, call.order)
    if torch is not None and torch.jit.is_tracing():
        sizes = _counted(sizes)
    score_option = {} if score is None else {"score": score}
    return find(mask, *sizes, dtype, place, **score_option).attend(call)


def _kernel_of(q: Any, v: Any, order: Order | None = None) -> tuple[Sizes, str, Device]:
    """((head_dim, head_dim_v, query heads), dtype, device) of a call's tensors."""
    from maskc.runtime.arrays.known import array_of

    of_q, of_v = array_of(q, "q"), array_of(v, "v")
    if order is not None:
        of_q, of_v = order.array(of_q), order.array(of_v)
    for x, name in ((of_q, "q"), (of_v, "v")):
        if len(x.shape) != 4:
            raise WrongRank(name, x.shape, at=name)
    return (of_q.shape[3], of_v.shape[3], of_q.shape[1]), of_q.dtype, of_q.device


def _counted(sizes: Sizes) -> Sizes:
    """Sizes as numbers, which are tensors while torch.jit.trace records."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dim, dim_v, heads = map(int, sizes)
    return dim, dim_v, heads


def _scaled(find: Any, torch: Any, mask: Mask, call: AttentionCall) -> Any:
    """The call of torch tensors in E4M3: by kernels for it, or multiplied out."""
    if call.order is not None:
        return call.order.with_out(_scaled(find, torch, mask, call.heads_first()))
    from maskc.runtime.device import default_target
    from maskc.runtime.fp8 import multiplied_out, refuse_gradients

    q, k, v, options, given = call[:5]
    data = dict(given)
    sizes, _, place = _kernel_of(q, v)
    if place[0] == "cuda" and default_target() == "sm_90a":
        return find(mask, *sizes, E4M3, place).attend(call)
    refuse_gradients(place[0], q, k, v, options, data)
    kind = torch.float32 if place[0] == "cpu" else torch.bfloat16
    q, k, v = multiplied_out(q, k, v, data, kind)
    out = _attention(torch, find, mask, AttentionCall(q, k, v, options, data))
    if isinstance(out, torch.Tensor):
        return out.to(torch.bfloat16)
    return out[0].to(torch.bfloat16), *out[1:]


def _by_convention(
    call: AttentionCall, mask: object, keywords: conventions.Keywords, score: Score | None
) -> Any:
    """A call with keywords of other libraries, see `maskc.conventions`."""
    q, k, v, options, data = call[:5]
    restricts = keywords.is_causal or keywords.window_size is not None
    if mask is None and (restricts or keywords.cu_seqlens_q is not None):
        mask = conventions.EVERYTHING
    if not isinstance(mask, Mask):
        raise conventions.without_mask(mask, data)
    layout = None if keywords.layout is None else layout_of(keywords.layout)
    if getattr(q, "is_nested", False):  # refused, with what to do
        return _attention(torch_of(q), _compiled, mask, call)
    packed = keywords.cu_seqlens_q is not None and getattr(q, "ndim", 4) == 3
    if packed and layout == "bhsd":
        wanted = "left out for packed tokens [tokens, heads, D]"
        raise BadOption("layout", wanted, repr(keywords.layout), at="layout")
    swapped = packed or layout in ("bshd", "sbhd")
    if swapped and (options.return_selection or options.indexer_loss):
        finding = "a call whose tensors are [B, N, H, D]"
        wanted = "left to tensors [B, H, N, D]"
        raise BadOption("return_selection and indexer_loss", wanted, finding, at="layout")
    order = ORDERS["packed" if packed else layout or "bshd"] if swapped else None
    if layout is None and not packed:
        _hint(torch_of(q), q, k)
    if order is None or (order.fits(q) and order.fits(k) and order.fits(v)):
        in_order = AttentionCall(q, k, v, options, data, order=order)
        results = _in_order(in_order, mask, keywords, score)
    else:
        q, k, v = (order.view(x, name) for x, name in zip((q, k, v), "qkv", strict=True))
        results = _in_order(AttentionCall(q, k, v, options, data), mask, keywords, score)
        results = order.with_out(results)
    return results if order is None else order.with_lse(results)


def _in_order(
    call: AttentionCall, mask: Mask, keywords: conventions.Keywords, score: Score | None
) -> Any:
    """A call of tensors in an order. Log-sum-exps are [B, H, N]."""
    q, k, order, data = call.q, call.k, call.order, dict(call.data)
    if order is None:
        of_q, of_k = _shape(q, "q"), _shape(k, "k")
    else:
        of_q, of_k = order.shape(q.shape), order.shape(k.shape)
    keywords.check_heads(of_q[1], of_k[1])
    masked = mask is not conventions.EVERYTHING
    to = keywords.restriction(of_q[2], of_k[2], masked, data)
    if call.options.alibi_slopes is not None:
        keywords.check_distances(to, of_q[2], of_k[2], "alibi_slopes")
    if score is not None:
        score = as_score(score)
        if by_length(score.formula.logit):
            keywords.check_distances(to, of_q[2], of_k[2], "score")
    find = partial(_restricted, to)
    return _attention(torch_of(q), find, mask, call.with_data(data), score)


def _shape(x: Any, name: str) -> tuple[int, ...]:
    """The shape of an array of four dimensions."""
    from maskc.runtime.arrays.known import array_of

    shape: tuple[int, ...] = x.shape if hasattr(x, "shape") else array_of(x, name).shape
    if len(shape) != 4:
        raise WrongRank(name, tuple(shape), at=name)
    return shape


def _restricted(
    to: conventions.Restriction, mask: Mask, *kernel: Any, score: Score | None = None
) -> CompiledMask:
    """The kernel of what keywords leave of a mask."""
    return _compiled(conventions.restricted(mask, to), *kernel, score=score)


def _compiled(
    mask: Mask, dim: int, dim_v: int, heads: int, dtype: Any, device: Device, *,
    score: Score | None = None,
) -> CompiledMask:  # fmt: skip
    """The kernel of a mask, head_dim, head_dim_v, heads, dtype and device; made once.

    A function of its own, as torch.compile takes no cached one for an argument.
    """
    if score is not None and score.mask is not None:
        mask = mask & score.mask
    inner, held = emptied(mask)
    target = "cpu" if device[0] == "cpu" else None
    try:
        formula = None if score is None else score.formula
        compiled = _remembered(inner, dim, dim_v, heads, dtype, target, formula)
    except UnknownDType as error:  # which nobody wrote
        raise UnknownDType(*error.args, at="q") from None
    if held is None and score is None:
        return compiled
    return compiled.holding(held, None if score is None else score.inputs)


@lru_cache(maxsize=512)
def _remembered(
    mask: Mask, head_dim: int, head_dim_v: int, heads: int, dtype: object, target: str | None,
    formula: Formula | None = None,
) -> CompiledMask:  # fmt: skip
    from maskc import driver
    from maskc.ir.heads import heads_of
    from maskc.ir.lower import differs_by_head

    heads_of(mask, heads)  # refuses a mask that is written for another number
    return driver.compile(
        mask, head_dim=head_dim, head_dim_v=head_dim_v, dtype=dtype, target=target,
        n_heads=heads if differs_by_head(mask) else None,
        score=None if formula is None else Score(Inputs.of(formula)),
    )  # fmt: skip


def diff(
    a: Mask, b: Mask, /, *, n: int | None = None, n_q: int | None = None,
    n_kv: int | None = None, n_heads: int | None = None, **data: Any,
) -> Difference | None:  # fmt: skip
    """Find a pair that only one of two masks keeps; None if they are equal.

    With `n` and all data that the masks name, the answer is exact for these, and the pair is the
    first one. Without data, arrays are found as well: all but a few elements are 0. Without `n`,
    lengths are found, the least that isl knows. The result is verified against the masks' dense
    definition.

    Args:
        a, b: the masks; they may name the same data.
        n: queries; n_kv: keys, n when None. Without n and n_kv, the answer covers all lengths.
        n_q: the same as n; with both, n is a parameter of that name.
        n_heads: query heads, if heads differ and the masks do not say how many there are.
        data: arrays and parameters that the masks name. Parameters may come without arrays; arrays
            must be complete or absent.

    Returns:
        Difference, which has q, k, head, batch, n_q, n_kv, kept_by ("a" or "b"), data and pairs
        (number of differing pairs); or None, which is a proof that the masks are equal.

    Raises:
        Undecided: neither a difference nor a proof of equality was found (MC126).
        DataShape: the masks hold at other lengths (MC303).
        MaskcError: an argument is not a mask (MC106), heads or lengths do not fit (MC125, MC306),
            or a mistake in data (MC301 to MC305).
    """
    from maskc.questions import diff as find

    if n_q is not None and n is not None:
        data["n"] = n
    return find(a, b, n if n_q is None else n_q, n_kv, n_heads, data)


def merge(
    outs: Sequence[Any], lses: Sequence[Any], *, layout: str | None = None
) -> tuple[Any, Any]:
    """Combine attention results over disjoint sets of keys into the result over their union.

    Args:
        outs: as `attention` returned them: each [B, H, N, Dv], [B, N, H, Dv] of layout="bshd",
            [N, B, H, Dv] of layout="sbhd", or [tokens, H, Dv] of packed tokens.
        lses: each fp32 [B, H, N], or [H, tokens] of packed tokens, natural log.
        layout: of `outs`: "bhsd", "bshd" or "sbhd". None: shapes and strides tell. Pass it if there
            are as many tokens as heads or sequences, and the results were copied.

    Returns:
        (out, lse); a query that is empty in all pieces has out 0 and lse -inf.

    Raises:
        BadOption: outs or lses is not a list, or the layout is unknown (MC407).
        BadShape: there are no pieces, or their shapes differ (MC401).
        MixedLibraries: arrays of several libraries (MC411).
        NotAnArray: a piece is not an array (MC406).
    """
    from maskc.runtime.merge import merge as join

    for name, pieces in (("outs", outs), ("lses", lses)):
        if not isinstance(pieces, Sequence):
            raise BadOption(name, "a list with an array per piece", type(pieces).__name__, at=name)
    return join(outs, lses, layout=layout)
