"""The public function, and its gradient."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from maskc.conventions import LayoutWarning
from maskc.core.dropout import PARTS, check_rate
from maskc.core.errors import (
    BadShape,
    DropoutSeed,
    DTypesDiffer,
    HeadsDoNotDivide,
    MaskcError,
    NotAMask,
    NotTraced,
    ScoreOption,
    WrongRank,
)
from maskc.core.source import caller, outside
from maskc.core.tensors import layout_among
from maskc.dsl.mask import Mask
from maskc.dsl.not_a_mask import not_a_mask
from maskc.dsl.score_tracer import Score, as_score
from maskc.integrations.jax.jax_keywords import bad_option
from maskc.integrations.jax.lowered import BACKWARD, FORWARD
from maskc.integrations.jax.traced_call import (
    LAYOUTS,
    TracedCall,
    TracedScore,
    shape_first,
    taken_apart,
)

_OLD_KEYS = ((2,), (4,))
"""Shapes of keys that jax.random.PRNGKey makes: threefry and rbg."""


def attention(
    q: Any, k: Any, v: Any, mask: Mask, *, scale: float | None = None, layout: str | None = None,
    return_lse: bool = False, softcap: float | None = None, alibi_slopes: Any = None,
    sink_logits: Any = None, deterministic: bool = False, score: Score | Any = None,
    dropout_p: float = 0.0, dropout_seed: Any = None, **data: Any,
) -> Any:  # fmt: skip
    """Compute softmax(scale * q k^T, restricted to the mask) v on JAX arrays.

    It works under jax.jit, jax.grad, jax.vjp, jax.vmap, jax.lax.scan, jax.checkpoint, and inside
    jax.shard_map over sequences and heads. q, k, v, alibi_slopes, sink_logits and tables of a score
    have first-order gradients. The mask and all numbers are static; arrays are traced. GSPMD does
    not partition a custom call: use shard_map if arrays are sharded.

    Args:
        q: queries [B, N, Hq, D], or [B, Hq, N, D] with layout="bhnd"; fp32, bf16 or fp16, on CPUs
            also fp64, which is slow.
        k: keys [B, Nkv, Hkv, D]; Hq is a multiple of Hkv.
        v: values [B, Nkv, Hkv, Dv].
        mask: any mask.
        scale: factor of q . k; D^-1/2 when None.
        layout: "bnhd", the default, as in jax.nn.dot_product_attention, or "bhnd"; "s" may stand
            for "n".
        return_lse: also return the log-sum-exp of every row, which has gradients as well.
        softcap: scores become softcap * tanh(score / softcap) first.
        alibi_slopes: [Hq]; -slope * |p - k| is added to the scores.
        sink_logits: [Hq]; one more logit per head in the denominator.
        deterministic: make gradients bitwise deterministic.
        score: the score formula that replaces scale * q . k, see `mc.score`. Pass traced or trained
            arrays by name, for `mc.table`; the formula may capture others.
        dropout_p: probability of dropping a weight.
        dropout_seed: seed of the dropped weights: a jax.random key, new or old style, an integer,
            or an array of one integer.
        **data: the mask's and the score's data by name: arrays, traced or not, and plain numbers.

    Returns:
        out in the layout of q, or (out, lse) with lse fp32 [B, Hq, N].

    Raises:
        NotTraced: an argument that must be static is traced, or data are not arrays (MC481).
        OnlyOneDerivative: a second derivative is requested (MC482).
        TypeError: a forward-mode derivative is requested; JAX raises it.
        NotRecorded: on a GPU, the host would have to read data of the mask (MC480).
        NoRunner: the library that runs kernels in XLA programs cannot be built or loaded (MC483).
        NotExported: jax.export exports the call (MC420).
        MaskcError: as `maskc.attention`. Names and shapes of data are checked when XLA compiles the
            program. Inside jit on CPUs, values are checked when the program runs, and JAX raises
            jax.errors.JaxRuntimeError with the same text.

    Warns:
        LayoutWarning: there are more heads than tokens, and no layout is given.
    """
    check_mask(mask)
    order = layout_among(layout or "bnhd", LAYOUTS)
    if order is None:
        raise bad_option("layout", " or ".join(map(repr, LAYOUTS)), repr(layout))
    q, k, v = _arrays(q, k, v, order)
    if layout is None:
        _hint(q, k)
    layout = order
    return_lse = _truth("return_lse", return_lse)
    scored, tables = _score(score, softcap, alibi_slopes, data, _sizes(q, k, layout))
    spec, arrays = taken_apart({**data, **tables})
    rate = seed = None
    if _number("dropout_p", dropout_p):
        check_rate(dropout_p, "dropout_p")
        rate, seed = round(dropout_p * PARTS), _seed(dropout_seed)
    call = TracedCall(
        mask, scored, layout, _number("scale", scale), _number("softcap", softcap),
        _truth("deterministic", deterministic), rate, alibi_slopes is not None,
        sink_logits is not None, spec,
    )  # fmt: skip
    rest = [jnp.asarray(x, np.float32) for x in (alibi_slopes, sink_logits) if x is not None]
    arrays = [
        x.astype(np.float32) if name in call.tables else x
        for name, x in zip(call.names[len(rest) :], arrays, strict=False)
    ]
    given = _alike([q, k, v, *rest, *arrays, *([] if seed is None else [seed])])
    if not return_lse:
        return _out(call, *given)
    return _both(call, *given)


def check_mask(mask: Any) -> None:
    """Check that a call got a mask."""
    if mask is None:
        hint = 'mc.full() keeps every pair, mc.causal(align="start") is is_causal=True'
        raise NotAMask("attention", "None", hint, at=caller() or "mask")
    if not isinstance(mask, Mask):
        raise not_a_mask("attention", mask, caller() or "mask")


def _arrays(q: Any, k: Any, v: Any, layout: str) -> tuple[Any, Any, Any]:
    """q, k and v as arrays of JAX with as many sequences.

    Raises:
        WrongRank, DTypesDiffer, BadShape, HeadsDoNotDivide.
    """
    q, k, v = map(jnp.asarray, (q, k, v))
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4:
            raise _of_layout(WrongRank(name, x.shape, at=name), layout)
        if x.dtype != q.dtype:
            raise DTypesDiffer(q.dtype.name, name, x.dtype.name, at=name)
    batch = q.shape[0]
    _check_shapes(q, k, v, layout)
    k, v = (
        jnp.broadcast_to(x, (batch, *x.shape[1:])) if x.shape[0] == 1 != batch else x
        for x in (k, v)
    )
    return q, k, v


def _hint(q: Any, k: Any) -> None:
    """Warn where arrays look like [B, H, N, D], and nothing says that they are not."""
    tokens, heads = q.shape[1:3]
    if heads == k.shape[2] > max(tokens, k.shape[1]) and min(tokens, k.shape[1]) > 1:
        warnings.warn(
            f"q has {heads} heads and {tokens} tokens: arrays [B, H, N, D] need layout='bhnd', and "
            "layout='bnhd' says that these are [B, N, H, D]",
            LayoutWarning,
            stacklevel=outside(),
        )


def _check_shapes(q: Any, k: Any, v: Any, layout: str) -> None:
    """Check that q, k and v fit each other, in the caller's order of dimensions."""
    batch, heads_q, _, dim = shape_first(q.shape, layout)
    of_k, of_v = (shape_first(x.shape, layout) for x in (k, v))
    for name, x, shape, tail, why in (
        ("k", k, of_k, (*of_k[1:3], dim), "batch of q or 1, head_dim of q"),
        ("v", v, of_v, (*of_k[1:3], of_v[3]), "batch of q or 1, heads and tokens of k"),
    ):
        if shape[0] not in (1, batch) or shape[1:] != tail:
            expected = shape_first((batch, *tail), layout)
            raise _of_layout(BadShape(name, x.shape, f"{expected} ({why})", at=name), layout)
    if heads_q and (not of_k[1] or heads_q % of_k[1]):
        raise _of_layout(HeadsDoNotDivide(heads_q, of_k[1], at="k"), layout)


def _of_layout(error: MaskcError, layout: str) -> MaskcError:
    """Return the error, with a hint about the layout of arrays."""
    other = next(name for name in LAYOUTS if name != layout)
    if layout == "bnhd":
        shapes = "q is [B, N, Hq, D], k [B, Nkv, Hkv, D] and v [B, Nkv, Hkv, Dv]"
    else:
        shapes = "q is [B, Hq, N, D], k [B, Hkv, Nkv, D] and v [B, Hkv, Nkv, Dv]"
    error.hint = f"{shapes}, Hq a multiple of Hkv; layout='{other}' has heads and tokens swapped"
    if isinstance(error, WrongRank):
        error.hint += "; x[None] adds a dimension"
    return error


def _sizes(q: Any, k: Any, layout: str) -> tuple[int, int, int, int]:
    """Sequences, query heads, queries and keys."""
    _, heads, tokens, _ = LAYOUTS[layout]
    return q.shape[0], q.shape[heads], q.shape[tokens], k.shape[tokens]


def _score(
    score: Any,
    softcap: Any,
    slopes: Any,
    data: dict[str, Any],
    sizes: tuple[int, int, int, int],
) -> tuple[TracedScore | None, dict[str, Any]]:
    """(the formula, the arrays that it captured)."""
    if score is None:
        return None, {}
    if softcap is not None:
        raise ScoreOption("softcap=", "cap * tanh(s / cap)", at="softcap")
    if slopes is not None:
        raise ScoreOption("alibi_slopes=", "s - slopes[h] * abs(q - k)", at="alibi_slopes")
    made = as_score(score)
    held = made.inputs.held(*sizes)
    captured = {name: x for name, x in held.items() if name not in data}
    return TracedScore.of(made), captured


def _truth(name: str, x: Any) -> bool:
    if isinstance(x, jax.core.Tracer):
        raise NotTraced(name, "traced", "it must be known: pass True or False", at=name)
    return bool(x)


def _number(name: str, x: Any) -> float | None:
    if x is None:
        return None
    if isinstance(x, jax.core.Tracer):
        raise NotTraced(name, "traced", "it must be known: pass a number of Python", at=name)
    if isinstance(x, Real):
        return float(x)
    try:
        return float(x)
    except (TypeError, ValueError):
        raise bad_option(name, "a number", repr(x)) from None


def _seed(seed: Any) -> Any:
    """Two words of 32 bits, the lower one first.

    Raises:
        DropoutSeed: it is missing, or no integer (MC431).
    """
    hint = "pass dropout_seed=, a key of jax.random, an integer, or an array of one"
    if seed is None:
        raise DropoutSeed("missing", hint, at="dropout_seed")
    if isinstance(seed, int) and not isinstance(seed, bool) and -(1 << 63) <= seed < 1 << 64:
        seed &= (1 << 64) - 1
        return jnp.asarray([seed & 0xFFFFFFFF, seed >> 32], np.uint32)
    try:
        x = seed if isinstance(seed, jax.Array) else jnp.asarray(seed)
    except (TypeError, ValueError, OverflowError):
        raise DropoutSeed(repr(seed), hint, at="dropout_seed") from None
    is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    is_old_key = x.dtype == np.uint32 and x.shape in _OLD_KEYS
    if (is_key and x.ndim == 0) or is_old_key:
        return jax.random.bits(x, (2,), np.uint32)
    if x.size != 1 or not jnp.issubdtype(x.dtype, jnp.integer):
        raise DropoutSeed(f"{x.dtype.name}, {list(x.shape)}", hint, at="dropout_seed")
    x = x.reshape(())
    if x.dtype.itemsize == 8:
        return jax.lax.bitcast_convert_type(x, np.uint32)
    wide = x.astype(np.int32) if jnp.issubdtype(x.dtype, jnp.signedinteger) else x
    above = jnp.where(wide < 0, np.uint32(0xFFFFFFFF), np.uint32(0))
    return jnp.stack([wide.astype(np.uint32), above])


def _alike(arrays: list[Any]) -> list[Any]:
    """Arrays that vary along the same axes of shard_map; gradients of others are added up there."""
    of_arrays = [_axes_of(x) for x in arrays]
    axes = frozenset[Any]().union(*of_arrays)
    return [
        _varying(x, tuple(sorted(axes - kept, key=str))) if axes - kept else x
        for x, kept in zip(arrays, of_arrays, strict=True)
    ]


def _axes_of(x: Any) -> frozenset[Any]:
    """The axes of shard_map along which an array varies, also in older versions of JAX."""
    aval: Any = jax.typeof(x)
    kind = getattr(aval, "manual_axis_type", None)
    axes: frozenset[Any] = getattr(aval, "vma", frozenset()) if kind is None else kind.varying
    return axes


def _varying(x: Any, axes: tuple[Any, ...]) -> Any:
    """The array, said to vary along axes, by the function that this version of JAX has."""
    cast = getattr(jax.lax, "pcast", None)
    return jax.lax.pvary(x, axes) if cast is None else cast(x, axes, to="varying")


# ------------------------------------------------------------------ gradients


def _forward(call: TracedCall, arrays: tuple[Any, ...]) -> tuple[Any, Any]:
    out, lse = FORWARD.bind(*arrays, call=call)
    return out, lse.reshape(lse.shape[:3])


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _out(call: TracedCall, *arrays: Any) -> Any:
    return _forward(call, arrays)[0]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _both(call: TracedCall, *arrays: Any) -> Any:
    return _forward(call, arrays)


def _kept(call: TracedCall, *arrays: Any) -> tuple[Any, Any]:
    out, lse = _forward(call, arrays)
    return (out, lse), (arrays, out, lse)


def _out_kept(call: TracedCall, *arrays: Any) -> tuple[Any, Any]:
    (out, _), kept = _kept(call, *arrays)
    return out, kept


def _of_out(call: TracedCall, kept: Any, dout: Any) -> tuple[Any, ...]:
    arrays, out, lse = kept
    return _placed(call, arrays, _backward(call, arrays, out, lse, dout))


def _of_both(call: TracedCall, kept: Any, gradients: Any) -> tuple[Any, ...]:
    arrays, out, lse = kept
    dout, dlse = gradients
    through_out = _backward(call, arrays, out, lse, dout)
    more = _through_lse(call, arrays, out, lse, dlse)
    return _placed(call, arrays, [a + b for a, b in zip(through_out, more, strict=True)])


_out.defvjp(_out_kept, _of_out)
_both.defvjp(_kept, _of_both)


def _backward(call: TracedCall, arrays: Any, out: Any, lse: Any, dout: Any) -> list[Any]:
    q, k, v, *rest = arrays
    return list(BACKWARD.bind(q, k, v, out, lse, dout, *rest, call=call))


def _through_lse(call: TracedCall, arrays: Any, out: Any, lse: Any, dlse: Any) -> list[Any]:
    """Return the gradients for dlse only, with kernels that take dout.

    With p the probabilities, ds = p * (dout . v - dout . out) + p * dlse. If v is (1, 0, 0, ...),
    dout is (dlse, 0, 0, ...) and out is 0, the first term equals the second.
    """
    q, k, v, *rest = arrays
    empty = lse == -jnp.inf
    dlse = jnp.where(empty, 0, dlse)
    axis = jnp.arange(v.shape[-1]) == 0
    pushed = jnp.swapaxes(dlse, 1, 2) if call.layout == "bnhd" else dlse
    dout = jnp.where(axis, pushed[..., None], 0).astype(v.dtype)
    ones = jnp.broadcast_to(axis.astype(v.dtype), v.shape) + 0 * v
    plain = call if call.rate is None else replace(call, rate=0)
    gradients = _backward(plain, (q, k, ones, *rest), jnp.zeros_like(out), lse, dout)
    gradients[2] = jnp.zeros_like(v)
    if call.sinks:
        sinks = arrays[3 + call.slopes]
        share = jnp.where(empty, 0, jnp.exp(sinks[:, None] - lse))
        gradients[3] = gradients[3] + (share * dlse).sum((0, 2))
    return gradients


def _placed(call: TracedCall, arrays: Any, gradients: list[Any]) -> tuple[Any, ...]:
    """The gradients in the order of the arrays; None if there is none."""
    named = dict(zip(call.with_gradients, gradients[3:], strict=True))
    names = call.names
    rest = [named.get(name) for name in names]
    return (*gradients[:3], *rest)
