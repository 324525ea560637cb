"""Attention on torch tensors: autograd, torch.compile, checkpointing, autocast.

Two ways lead to the same kernels. Plain eager calls go straight to the compiled mask, inside a
`torch.autograd.Function` where a gradient is wanted. Whatever has to see an operator (a compiler,
a dispatch mode, a tensor subclass) sees `torch.ops.maskc.attention`.

Why two: a torch operator with a kernel and a derivative in Python passes the dispatcher and its
wrappers several times. For one query on a CPU, the compiled mask by itself takes 10 us. A call
without gradients takes 15 us directly and 29 us as an operator. With gradients the forward pass
takes 27 us compared with 105 us, and forward and backward 94 us compared with 217 us.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from maskc.core.attention_call import DEFAULTS, WITH_LSE, AttentionCall, CallOptions
from maskc.core.captured import present, recomputed
from maskc.core.dtypes import dtype_name
from maskc.core.errors import (
    MaskcError,
    MixedLibraries,
    SubclassNotRun,
    WrongDevice,
    WrongRank,
)
from maskc.core.problem import Direction
from maskc.core.tensors import Array, Order
from maskc.dispatch.checks import check_inputs, of_every_sequence
from maskc.integrations.torch.eager import attended
from maskc.integrations.torch.gradients import refuse_transforms
from maskc.integrations.torch.handles import check_dimensions, handle, in_graph, operands, refuse
from maskc.integrations.torch.handles import operators as operators
from maskc.integrations.torch.keywords import packed_call
from maskc.runtime.arrays.known import array_of
from maskc.runtime.autograd import TAKING_NONE, kind_of, takes_part
from maskc.runtime.dropout import drawn

Finder = Callable[..., Any]
"""(owner, head_dim, head_dim_v, heads, dtype, (device type, index)) -> CompiledMask, remembered."""

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_recording, _forward = torch.is_grad_enabled, torch.autograd.forward_ad
_is_cast, _modes = torch._C._is_any_autocast_enabled, torch._C._len_torch_dispatch_stack
_tracing, _transforms = torch._C._get_tracing_state, torch._C._functorch.peek_interpreter_stack
"""Questions that every call asks of torch, looked up once."""

_DEVICES = ("cpu", "cuda")
_TRAINABLE = ("alibi_slopes", "sink_logits")


def attention(find: Finder, mask: Any, call: AttentionCall, score: Any = None) -> Any:
    """A call of `maskc.attention` whose q is a torch tensor; see there.

    Args:
        find: makes or finds the kernel of `mask`.
        score: a score formula.

    Raises:
        As `through_torch`.
    """
    if score is not None and (held := captured_by(score)):
        call = call.with_data({**held, **call.data})
    if call.options.dropout_p:
        call, find = drawn(call), partial(_dropping, find)
    return through_torch(find, mask, call, score=score)


def through_torch(
    find: Finder | None, owner: Any, call: AttentionCall, dtype: str | None = None,
    score: Any = None,
) -> Any:  # fmt: skip
    """Run a call that torch must see, see `maskc/runtime/torch_calls.py`.

    Args:
        find: makes or finds the kernel; None: the owner has a single one for all calls.
        owner: the mask, compiled mask or generated module that the kernel belongs to.
        dtype: the dtype that autocast casts to; None: as for operands of
            scaled_dot_product_attention.
        score: a score formula for `find`, if the owner is a mask; the call has its tensors.

    Raises:
        TargetNotBuilt: a gradient is wanted and the target has no backward kernels.
        MixedLibraries: k, v, slopes or sinks are no torch tensors.
        NestedTensor: a tensor is nested.
        NoGradient: data require grad: what is chosen by them has no derivative.
        BadOption: torch.func or forward-mode differentiation transforms a tensor.
        ShardedTensor: a tensor is a DTensor.
        SubclassNotRun: a tensor subclass does not run the operator (MC446).
        MaskcError: see CompiledMask.
    """
    q, k, v, options, data, _, _, _, _, _, _, _, order = call
    slopes, sinks = options.alibi_slopes, options.sink_logits
    has_vectors = slopes is not None or sinks is not None
    vectors = {"alibi_slopes": slopes, "sink_logits": sinks, **data} if has_vectors else data
    sees, watched = _who_sees(q, k, v, options, vectors), False
    if sees is _OTHERS:
        q, k, v = cast_all(q, k, v, dtype)
        watched = torch.compiler.is_compiling() or q.is_meta or _watched(q, k, v, vectors)
    wanted = sees is not None and _recording()
    if wanted and sees is not _AUTOGRAD:
        wanted = _wanted(q, k, v, options, vectors, owner, score)
    if watched:
        if order is not None:
            q, k, v = map(order.heads_first, (q, k, v))
        attn = _named(find, owner, q, k, v, wanted, score)
    else:
        attn = owner
        if find is not None:
            dim, dim_v, heads = _sizes(q, v, order)
            of_score = {} if score is None else _score_option(score)
            attn = find(owner, dim, dim_v, heads, q.dtype, _place(q), **of_score)
        if not wanted:
            if sees is _OTHERS:
                call = AttentionCall(q, k, v, options, data, order=order)
            return attn.run(call)
        if Direction.backward not in attn.target.directions:
            attn.target.check(attn.bundle.problem, Direction.backward)
    packed, tensors = packed_call(options, data, as_operator=watched)
    if sees is _OTHERS:
        k, v = _tensor(k, "k"), _tensor(v, "v")
    if has_vectors:
        slopes, sinks = _tensor(slopes, "alibi_slopes"), _tensor(sinks, "sink_logits")
    if watched:
        run, captured = torch.ops.maskc.attention.default, operands(attn)
        keep = wanted and len(captured) > 0
        mask = in_graph(attn, torch.compiler.is_dynamo_compiling())
        read = (captured if torch.compiler.is_compiling() else _as_fake(q, captured)) or None
        args = (q, k, v, slopes, sinks, keep, tensors or None, read, mask, *packed.numbers())
        if torch.compiler.is_compiling():
            out, lse, _ = run(*args)
        else:
            named = {"q": q, "k": k, "v": v, **vectors}
            out, lse, _ = _dispatched(run, args, (*tensors, *(read or ())), named)
        out = out if order is None else order.restored(out)
    else:
        packed = packed if order is None else packed._replace(order=order)
        out, lse = attended(attn, packed, q, k, v, slopes, sinks, *tensors)
    return (out, lse) if options.return_lse else out


def cast_all(q: Any, k: Any, v: Any, dtype: str | None = None) -> tuple[Any, Any, Any]:
    """Cast tensors as autocast does, if it is enabled.

    Args:
        dtype: the target dtype; None: as for operands of scaled_dot_product_attention.

    Raises:
        NestedTensor: one is nested.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if isinstance(x, torch.Tensor) and x.is_nested:
            refuse("nested", name, torch.compiler.is_compiling())
    kind = q.device.type
    if kind not in _DEVICES or not torch.is_autocast_enabled(kind):
        return q, k, v
    to = torch.get_autocast_dtype(kind) if dtype is None else getattr(torch, dtype)
    return _cast(q, to), _cast(k, to), _cast(v, to)


def aux_output(lse: Any) -> Any:
    """FlexAttention's AuxOutput; lse is None if it was not asked for."""
    from torch.nn.attention.flex_attention import AuxOutput

    return AuxOutput(lse=lse)


_AUTOGRAD, _PERHAPS, _OTHERS = "autograd", "perhaps autograd", "others"
_NUMBERS = frozenset((type(None), bool, int, float, str))


def _who_sees(
    q: Any, k: Any, v: Any, options: CallOptions, vectors: Mapping[str, Any]
) -> str | None:
    """Who might have to see a call: nobody (None), autograd for q, k or v, perhaps autograd for
    another argument, or others as well."""
    if (
        torch.compiler.is_compiling()
        or type(q) not in _PLAIN or type(k) not in _PLAIN or type(v) not in _PLAIN
        or q.is_meta or q.is_nested or k.is_nested or v.is_nested
        or _is_cast() or _modes() or _forward._current_level >= 0
        or _transforms() is not None or _tracing() is not None
    ):  # fmt: skip
        return _OTHERS
    more = not (options is DEFAULTS or options is WITH_LSE)
    for x in vectors.values():
        kind = type(x)
        if kind is torch.Tensor:
            more = more or x.requires_grad
        elif kind not in _NUMBERS:
            if kind not in TAKING_NONE and takes_part(x):
                return _OTHERS
            more = more or isinstance(x, (tuple, torch.Tensor))
    if more:
        return _PERHAPS
    return _AUTOGRAD if q.requires_grad or k.requires_grad or v.requires_grad else None


def _named(
    find: Finder | None, owner: Any, q: Any, k: Any, v: Any, wanted: bool, score: Any
) -> str:
    """The handle of what operators run, see `handle`; arguments as of `through_torch`."""
    place = _place(q)
    check_dimensions(q.dim(), v.dim())
    if q.is_meta and not torch.compiler.is_compiling():
        attn = owner if find is None else find(owner, *_sizes(q, v), q.dtype, place)
        _check_shapes(attn, q, k, v)
    # a dimension that is a symbol becomes a number: it chooses the kernel
    dim, dim_v, heads = map(operator.index, (q.shape[3], v.shape[3], q.shape[1]))
    # compilers before PyTorch 2.13 take the identity of a frozen object, but not the object
    which = 0 if score is None else id(score)
    return handle(find, id(owner), dim, dim_v, heads, q.dtype, place, wanted, which)


def _dropping(find: Finder, owner: Any, *kernel: Any, **score: Any) -> Any:
    """The kernel of a call with dropout."""
    return find(owner, *kernel, **score).dropping


def _score_option(score: Any) -> dict[str, Any]:
    """The argument of `find` for a formula, without its tensors: calls pass them, and equal
    formulas share a compiled mask."""
    if score is None:
        return {}
    bare = vars(score).get("_bare")
    if bare is None:
        inputs = score.inputs.without_tensors
        bare = score if inputs is score.inputs else replace(score, inputs=inputs)
        vars(score)["_bare"] = bare
    return {"score": bare}


def captured_by(score: Any) -> dict[str, Any]:
    """The tensors that a score formula captured, by name: torch must see them, and kernels
    find arrays of others by themselves."""
    held: Mapping[str, Any] = score.inputs.captured
    now = recomputed if torch.compiler.is_compiling() else present
    return {name: now(x) for name, x in held.items() if isinstance(x, torch.Tensor)}


def _check_shapes(attn: Any, q: Any, k: Any, v: Any) -> None:
    """Refuse tensors of the meta device that no call could take.

    Raises:
        WrongDevice: k or v is a tensor of another device (MC404).
        MaskcError: as `check_inputs`.
    """
    for name, x in (("k", k), ("v", v)):
        if isinstance(x, torch.Tensor) and not x.is_meta:
            raise WrongDevice(name, str(x.device), "this call", "meta", at=name)
    here = ("cpu" if attn.target.language == "c" else "cuda", 0)
    of_q, of_k, of_v = (
        Array(0, tuple(x.shape), x.stride(), dtype_name(x), here)
        for x in (q, _tensor(k, "k"), _tensor(v, "v"))
    )
    check_inputs(*of_every_sequence(of_q, of_k, of_v), attn.bundle.problem, attn.target)


def _place(q: Any) -> tuple[str, int]:
    """(device type, index) of a tensor."""
    device = q.device
    return device.type, device.index or 0


def _wanted(
    q: Any, k: Any, v: Any, options: CallOptions, vectors: Mapping[str, Any], owner: Any,
    score: Any,
) -> bool:  # fmt: skip
    """Whether a gradient is required.

    Args:
        vectors: vectors per head and data.
        owner, score: tell which of the data may require grad.

    Raises:
        NoGradient: data require grad. BadOption: a number does.
    """
    if not (options is DEFAULTS or options is WITH_LSE):
        for name in ("scale", "softcap"):
            if _is_trained(getattr(options, name)):
                refuse("number", name, torch.compiler.is_compiling())
    is_needed = False
    for x in (q, k, v):
        if isinstance(x, torch.Tensor) and x.requires_grad:
            is_needed = True
    for name, given in vectors.items():
        if type(given) is torch.Tensor and not given.requires_grad:
            continue
        if given is None or given is False or type(given) is str:
            continue
        if _is_trained(*given) if isinstance(given, tuple) else _is_trained(given):
            tables = getattr(owner, "trainable", ()) if score is None else score.inputs.trainable
            if name not in _TRAINABLE and name not in tables:
                refuse("chosen by", name, torch.compiler.is_compiling())
            is_needed = True
    return is_needed


def _is_trained(*given: Any) -> bool:
    """Whether a tensor among them requires grad; numbers are symbols to a compiler, which have no
    attributes."""
    return True in [x.requires_grad for x in given if isinstance(x, torch.Tensor)]


def _dispatched(
    run: Any, args: tuple[Any, ...], listed: tuple[Any, ...], named: Mapping[str, Any]
) -> Any:
    """Call an operator, also where a tensor subclass without memory stands in a list alone.

    PyTorch's dispatcher does not look into optional lists for subclasses.

    Raises:
        SubclassNotRun: a subclass refuses.
    """
    kind, refusal = None, None
    if not any(map(_dispatches, args[:3])):
        kind = next((type(x) for x in listed if _dispatches(x)), None)
    try:
        results = run(*args) if kind is None else kind.__torch_dispatch__(run, (kind,), args, {})
        if results is not NotImplemented:
            return results
    except MaskcError:
        raise
    except (AssertionError, TypeError) as error:
        refusal = error
    for name, x in named.items():
        if isinstance(x, torch.Tensor) and _dispatches(x):
            raise SubclassNotRun(name, type(x).__name__, at=name) from refusal
    raise refusal or TypeError(f"{run} is not implemented for {kind}")


def _dispatches(x: Any) -> bool:
    """Whether the type of a tensor runs operators by itself."""
    return type(x).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def _as_fake(q: Any, captured: tuple[Any, ...]) -> tuple[Any, ...]:
    """Captured tensors as a q without content needs them: of its mode."""
    mode = getattr(q, "fake_mode", None)
    return captured if mode is None else tuple(map(mode.from_tensor, captured))


def _tensor(x: Any, name: str) -> Any:
    if x is None or isinstance(x, torch.Tensor):
        return x
    raise MixedLibraries("q", "torch.Tensor", name, kind_of(x), at=name)


def _sizes(q: Any, v: Any, order: Order | None = None) -> tuple[int, int, int]:
    """(head_dim, head_dim_v, heads of q)."""
    if order is None and type(v) is torch.Tensor:
        of_q, of_v = q.shape, v.shape
    else:
        of_q, of_v = q.shape, v.shape if hasattr(v, "shape") else _shape(v)
        if order is not None:
            of_q, of_v = order.shape(of_q), order.shape(of_v)
    if len(of_q) == 4 == len(of_v):
        return of_q[3], of_v[3], of_q[1]
    name, shape = ("v", of_v) if len(of_q) == 4 else ("q", of_q)
    raise WrongRank(name, tuple(shape), at=name)


def _shape(v: Any) -> tuple[int, ...]:
    """The shape of an array of another library."""
    return array_of(v, "v").shape


def _cast(x: Any, dtype: Any) -> Any:
    """The operand as autocast passes it to scaled_dot_product_attention: fp64 stays."""
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.dtype == torch.float64:
        return x
    return x.to(dtype)


def _watched(q: Any, k: Any, v: Any, vectors: Mapping[str, Any]) -> bool:
    """Whether a dispatch mode, torch.jit.trace or a subclass of Tensor must see an operator.

    Raises:
        BadOption: a transform of torch.func or forward-mode differentiation would miss the kernel.
        ShardedTensor: a tensor is a DTensor.
    """
    refuse_transforms({"q": q, "k": k, "v": v, **vectors})
    if torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state() is not None:
        return True
    if any(type(x) not in _PLAIN and isinstance(x, torch.Tensor) for x in (q, k, v)):
        return True
    return any(map(takes_part, vectors.values()))
