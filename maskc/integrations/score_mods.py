"""score_mods of FlexAttention that are options of a call: a factor, soft-capping, ALiBi.

A score_mod runs once a call, with symbols for the score and the positions and with all heads at
once as a tensor, so that `slopes[h]` and `torch.exp2(-8.0 * (h + 1) / heads)` are computed as
written, with their gradients. What comes back is read as

    factor * score, or cap * tanh(factor * score),  plus  slope[h] * (k - q) or -slope[h] * |q - k|

and a constant. Anything else is not an option of a call, but a score formula.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from math import isfinite
from typing import Any, NamedTuple, NoReturn

from maskc.core.tensors import torch_of


class NoOption(Exception):
    """A score_mod is not an option of a call."""


class Distance(NamedTuple):
    """|k - q - offset|."""

    offset: float


class Capped(NamedTuple):
    """tanh(factor * score)."""

    factor: float


Atom = str | Distance | Capped
"""Terms of coefficients: "score", "q", "k", "k - q", "" for a constant, and the other atoms."""


class ScoreOptions(NamedTuple):
    """Effect of a score_mod, as options of a call."""

    factor: float
    """The factor of the scale, after the soft-cap was taken out."""
    softcap: float | None
    slopes: Any
    """A number, or a tensor [Hq], or None: what the distance is multiplied with."""
    offset: float | None
    """None: slopes * (k - q); else -slopes * |k - q - offset|."""
    shift: Any
    """The number or tensor [Hq] that is added to every score of a head."""


def score_options(score_mod: Callable[..., Any], query: Any) -> ScoreOptions:
    """Read a score_mod(score, b, h, q_idx, kv_idx).

    Args:
        query: [B, Hq, Nq, D]; its heads, library and device.

    Raises:
        NoOption: it does something else.
    """
    heads = query.shape[1]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(query, torch.Tensor):
        h = torch.arange(heads, dtype=torch.int32, device=query.device)
    else:
        import numpy as np

        h = np.arange(heads, dtype=np.int32)
    score, q, k = (ScoreTerm({name: 1}, heads) for name in ("score", "q", "k"))
    try:
        result = score_mod(score, _Batch(), h, q, k)
    except Exception as error:  # whatever it is, the formula's trace meets and tells it
        raise NoOption from error
    return _read(result.terms) if isinstance(result, ScoreTerm) else _refuse()


def _read(terms: Mapping[Atom, Any]) -> ScoreOptions:
    rest = dict(terms)
    shift = rest.pop("", 0.0)
    capped = [atom for atom in rest if isinstance(atom, Capped)]
    if len(capped) + ("score" in rest) != 1:
        _refuse()
    softcap = None
    factor = rest.pop(capped[0] if capped else "score")
    if not _is_number(factor) or not isfinite(factor):
        _refuse()
    if _is_number(shift) and not isfinite(shift):
        _refuse()
    if capped:
        softcap, factor = float(factor), capped[0].factor * factor
        if not softcap > 0 or not isfinite(softcap):
            _refuse()
    if not rest:
        return ScoreOptions(float(factor), softcap, None, None, shift)
    if len(rest) > 1 or "q" in rest or "k" in rest:
        _refuse()
    (atom, slopes) = rest.popitem()
    slopes, offset = (-slopes, atom.offset) if isinstance(atom, Distance) else (slopes, None)
    return ScoreOptions(float(factor), softcap, slopes, offset, shift)


def _refuse(*_: Any) -> NoReturn:
    raise NoOption


class _Batch:
    """The batch index, which no option of a call depends on."""

    def __getattr__(self, name: str) -> NoReturn:
        _refuse()

    __index__ = _refuse


class ScoreTerm:
    """A sum of symbols with coefficients, which are numbers or tensors with a value for a head."""

    __slots__ = ("_heads", "terms")

    def __init__(self, terms: Mapping[Atom, Any], heads: int) -> None:
        self._heads = heads
        self.terms = dict(terms)
        key, query = self.terms.get("k"), self.terms.get("q")  # of tensors it is not asked
        if isinstance(key, (int, float)) and isinstance(query, (int, float)) and key == -query:
            self.terms["k - q"] = self.terms.get("k - q", 0) + self.terms.pop("k")
            del self.terms["q"]
        self.terms = {atom: x for atom, x in self.terms.items() if not (_is_number(x) and x == 0)}

    def _other(self, value: Any) -> ScoreTerm:
        """A number or a tensor as a constant."""
        if isinstance(value, ScoreTerm):
            return value
        if isinstance(value, _Batch):
            _refuse()
        if isinstance(value, (bool, int, float)):
            return ScoreTerm({"": value}, self._heads)
        shape = tuple(getattr(value, "shape", ("?",)))
        if shape == () and getattr(value, "requires_grad", False) is False and _on_host(value):
            return ScoreTerm({"": float(value)}, self._heads)
        if shape not in ((), (1,), (self._heads,)):
            _refuse()
        return ScoreTerm({"": value}, self._heads)

    def _constant(self) -> Any:
        """The value, where it has no symbol; None otherwise."""
        return self.terms.get("", 0) if set(self.terms) <= {""} else None

    def __add__(self, other: Any) -> ScoreTerm:
        terms = dict(self.terms)
        for atom, x in self._other(other).terms.items():
            terms[atom] = terms[atom] + x if atom in terms else x
        return ScoreTerm(terms, self._heads)

    __radd__ = __add__

    def __neg__(self) -> ScoreTerm:
        return ScoreTerm({atom: -x for atom, x in self.terms.items()}, self._heads)

    def __sub__(self, other: Any) -> ScoreTerm:
        return self + -self._other(other)

    def __rsub__(self, other: Any) -> ScoreTerm:
        return self._other(other) - self

    def __mul__(self, other: Any) -> ScoreTerm:
        right = self._other(other)
        sum_, factor = (right, self) if self._constant() is not None else (self, right)
        times = factor._constant()
        if times is None:
            _refuse()
        return ScoreTerm({atom: x * times for atom, x in sum_.terms.items()}, self._heads)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> ScoreTerm:
        by = self._other(other)._constant()
        if by is None:
            _refuse()
        return ScoreTerm({atom: x / by for atom, x in self.terms.items()}, self._heads)

    __rtruediv__ = _refuse

    def __abs__(self) -> ScoreTerm:
        terms = dict(self.terms)
        factor, offset = terms.pop("k - q", None), terms.pop("", 0)
        if terms or not (_is_number(factor) and _is_number(offset)):
            _refuse()
        return ScoreTerm({Distance(-offset / factor): abs(factor)}, self._heads)

    def tanh(self) -> ScoreTerm:
        """A soft-cap's middle part."""
        factor = self.terms.get("score")
        if factor is None or len(self.terms) != 1 or not _is_number(factor):
            _refuse()
        return ScoreTerm({Capped(float(factor)): 1}, self._heads)

    def _as(self, *kind: Any) -> ScoreTerm:
        """Scores are fp32, and positions are exact."""
        if any("16" in str(dtype) for dtype in kind):
            _refuse()
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _FUNCTIONS:
            return partial(_FUNCTIONS[name], self)
        return _refuse()

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), named: Any = None
    ) -> Any:
        return _call(getattr(function, "__name__", str(function)), args, named)

    def __array_ufunc__(self, function: Any, method: str, *args: Any, **named: Any) -> Any:
        return _call(function.__name__, args, named)

    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _refuse
    __hash__ = object.__hash__
    __bool__ = __float__ = __int__ = __index__ = __len__ = __iter__ = _refuse
    __getitem__ = __pow__ = __rpow__ = __mod__ = __floordiv__ = __rmod__ = __rfloordiv__ = _refuse
    __and__ = __or__ = __invert__ = _refuse


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float))


def _on_host(value: Any) -> bool:
    device = getattr(value, "device", "cpu")
    return str(getattr(device, "type", device)) == "cpu"


def _call(name: str, args: tuple[Any, ...], named: Any) -> Any:
    """A function of torch or NumPy with one of our terms among its arguments."""
    plain = name.strip("_")
    if plain not in _FUNCTIONS or named:
        _refuse()
    term = next(x for x in args if isinstance(x, ScoreTerm))
    return _FUNCTIONS[plain](term._other(args[0]), *args[1:])


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("add", "radd"), operator.add),
    **dict.fromkeys(("sub", "subtract"), operator.sub),
    "rsub": lambda x, y: -x + y,
    **dict.fromkeys(("mul", "rmul", "multiply"), operator.mul),
    **dict.fromkeys(("div", "truediv", "divide", "true_divide"), operator.truediv),
    **dict.fromkeys(("abs", "absolute"), abs),
    **dict.fromkeys(("neg", "negative"), operator.neg),
    "tanh": lambda x: x.tanh(),
    **dict.fromkeys(("to", "type"), lambda x, *kind: x._as(*kind)),
    **dict.fromkeys(("float", "double"), lambda x: x),
}
"""Operations of terms, by the names of torch and NumPy."""


def per_head(value: Any, query: Any) -> Any:
    """fp32 [Hq] of a number or a tensor, where query is."""
    heads = query.shape[1]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(query, torch.Tensor):
        tensor = torch.as_tensor(value, dtype=torch.float32, device=query.device)
        return tensor.expand(heads).contiguous()
    import numpy as np

    return np.ascontiguousarray(np.broadcast_to(np.asarray(value, np.float32), (heads,)))


def aux_output(lse: Any) -> Any:
    """torch's AuxOutput; lse is None if it was not asked for."""
    from torch.nn.attention.flex_attention import AuxOutput

    return AuxOutput(lse=lse)


def outside_of_modes(x: Any) -> AbstractContextManager[object]:
    """While it lasts, contents of tensors like x are read as they are: a mode of dispatch, as
    torch.export's, would answer with a tensor that has none."""
    torch = torch_of(x)
    if torch is None or not torch._C._len_torch_dispatch_stack():
        return nullcontext()
    disabled: AbstractContextManager[object] = torch.utils._python_dispatch._disable_current_modes()
    return disabled
