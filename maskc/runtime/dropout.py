"""Dropout: its kernels, and its arguments in a call.

Calls with dropout have separate kernels, compiled on first use, so that other kernels contain no
dropout code. Rate and seed are stored after `struct Attention` and are not part of a plan, so a new
seed costs nothing. `reference/dropout.py` defines which weights are kept.
"""

from __future__ import annotations

import operator
from typing import Any

from maskc.core.abi import DROPOUT_FIELDS, packer
from maskc.core.attention_call import AttentionCall
from maskc.core.dropout import FIRST, PARTS, RATE, SEED, check_rate
from maskc.core.errors import DropoutSeed, WrongDevice
from maskc.core.tensors import HOST, torch_of
from maskc.runtime.arrays.known import array_of
from maskc.runtime.launch.prepared import OpenedCall

_BLOCK = packer(DROPOUT_FIELDS)
_SIGN, _WORDS = 1 << 63, 1 << 64


def asked(q: Any, p: Any, seed: Any) -> dict[str, Any]:
    """The keywords of a call with dropout.

    Args:
        q: of the call; a torch tensor's default generator gives the seed where there is none. None
            if the seed must have been given.
        p: the share of weights that are dropped.
        seed: an integer, or an array of one int64 on the device of q.

    Raises:
        DropoutRate: p is not a number in 0 .. 1 (MC430).
        DropoutSeed: there is none, or it is not an integer (MC431).
    """
    torch = torch_of(q)
    if torch is None or not torch.compiler.is_compiling():
        check_rate(p, "dropout_p")
    return {RATE: round(p * PARTS), SEED: _seed(torch, q, seed)}


def _seed(torch: Any, q: Any, seed: Any) -> Any:
    if seed is None:
        if torch is None or not isinstance(q, torch.Tensor):
            hint = (
                "pass dropout_seed= as the call had it" if q is None
                else "pass dropout_seed=; only torch tensors have a generator that gives one"
            )  # fmt: skip
            raise DropoutSeed("missing", hint, at="dropout_seed")
        # a tensor, so that nothing waits for the device and a graph draws anew when replayed
        return torch.randint(-_SIGN, _SIGN - 1, (1,), device=q.device)
    if torch is not None and isinstance(seed, torch.Tensor):
        return seed
    traced = torch is not None and torch.compiler.is_compiling()
    if traced and isinstance(seed, int) and not isinstance(seed, bool):
        # another seed is another input of the graph; the kernel reads it where q is
        signed = seed - _WORDS if seed >= _SIGN else seed
        return torch.full((1,), signed, dtype=torch.int64, device=q.device)
    if hasattr(seed, "dtype") and getattr(seed, "shape", ()) != ():
        return seed
    try:
        number = operator.index(seed)
    except TypeError:
        number = _WORDS
    if isinstance(seed, bool) or not -_SIGN <= number < _WORDS:
        raise DropoutSeed(repr(seed), _INTEGER, at="dropout_seed")
    return number - _WORDS if number >= _SIGN else number


_INTEGER = "pass an integer of 64 bits, or an array of one int64 on the device of q"


def drawn(call: AttentionCall) -> AttentionCall:
    """A call with dropout as kernels take it: rate and seed are among the data.

    Raises:
        As `asked`; a backward pass draws no seed.
    """
    options = call.options
    q = call.q if call.lse is None else None
    data = {**call.data, **asked(q, options.dropout_p, options.dropout_seed)}
    return call._replace(options=options.undropped(), data=data)


class DropoutBlock:
    """Gives kernels that drop weights the rate and the seed, which are among the data of a call."""

    def opened(self, call: AttentionCall) -> OpenedCall:
        """See `CallBlock`."""
        rest = dict(call.data)
        block = _block(call.q, rest.pop(RATE), rest.pop(SEED), rest.pop(FIRST, (0, 0)))
        return OpenedCall(call.with_data(rest), block)


def _block(q: Any, rate: int, seed: Any, first: tuple[int, int]) -> bytes:
    pointer = number = 0
    if isinstance(seed, int):
        number = seed
    else:
        pointer, number = _held(q, seed)
    scale = 0.0 if rate == PARTS else PARTS / (PARTS - rate)
    return _BLOCK.pack(pointer, number, rate, scale, *first)


def _held(q: Any, seed: Any) -> tuple[int, int]:
    """(address of a seed on the device of q, 0), or (0, the seed) where the host holds it."""
    view, here = array_of(seed, "dropout_seed"), array_of(q, "q").device
    if view.dtype != "int64" or any(size != 1 for size in view.shape):
        raise DropoutSeed(f"{view.dtype}, {list(view.shape)}", _INTEGER, at="dropout_seed")
    if view.device == here:
        return view.pointer, 0
    if view.device == HOST:
        return 0, int(seed)
    raise WrongDevice("dropout_seed", view.device[0], "this call", here[0], at="dropout_seed")
