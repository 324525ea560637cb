"""Parts of a score formula that depend on indices only and cannot be traced: read from tables.

As in masks (`tabled`), such a part is computed for the lengths of a call and read from a table.
Here the table may have any of the dimensions b, h, q and k. A formula refers to an entry of the
table. The numbers are computed for the lengths of a call, and again after a write to a tensor that
the part reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np

from maskc.core import expr as E
from maskc.core import score as S
from maskc.core.captured import Captured
from maskc.core.errors import NotEvaluated, ScoreNeedsLengths, ScoreNotTraceable
from maskc.core.score import PlaceTable
from maskc.core.source import SourceLoc, caller
from maskc.dsl.evaluation import Evaluated
from maskc.dsl.followed import narrow_of
from maskc.dsl.score_values import Parameter, ScoreRegistry, Value, read_entry
from maskc.dsl.tabled import ComputedTables, Places, torch_of, widened
from maskc.dsl.traced import Traced

_AT_ONCE = 1 << 22
"""Entries that are computed at once."""


class ScoreTables(ComputedTables):
    """The tables that replace parts of one score formula."""

    symbols = ("b", "h", "q", "k")
    together = True

    def __init__(self, registry: ScoreRegistry) -> None:
        self._registry = registry
        self.computed: list[PlacesOfScore] = []

    def entry(self, places: Places, sample: Any) -> Any:
        """The formula of a table's entry; None if the value has dimensions."""
        if sample.ndim:
            return None
        if sample.is_complex() or any(x.requires_grad for x in places.tensors):
            raise ScoreNotTraceable("what it reads requires grad", _FOLLOWED, at=caller())
        table = PlacesOfScore(places, sample.dtype.is_floating_point, caller())
        self.computed.append(table)
        index: list[E.Expr] = [E.Sym(name) for name in places.symbols]
        integer = "bool" if sample.dtype is torch_of().bool else "int64"
        kind = "float32" if table.real else integer
        return Value(read_entry(table, kind, index), narrow_of(sample.dtype))

    def expr_of(self, value: Any) -> Any:
        """Return the formula of a traced value; None if it is not traced."""
        if type(value) is Value:
            return value.node
        if type(value) is Parameter:
            raise ScoreNotTraceable("it computes with a parameter", _FOLLOWED, at=caller())
        return value.expr if type(value) is Traced else None

    def check(self, expr: Any) -> set[str]:
        """Check which symbols a formula depends on.

        Raises:
            ScoreNotTraceable: it depends on the score, on lengths, or on arguments of a call.
        """
        result = set()
        for part in E.walk(expr):
            match part:
                case E.Sym(name) if name in self.symbols:
                    result.add(name)
                case S.Read(slot, _) | S.Entry(slot, _) if slot in self._registry.captured:
                    pass
                case E.Sym() | E.Param() | S.Score() | S.Read() | S.Entry() | E.Load():
                    raise ScoreNotTraceable("more than places decide it", _FOLLOWED, at=caller())
        return result

    def read_by(self, expr: Any) -> Iterator[Any]:
        """Yield the captured arrays that a formula reads."""
        for part in E.walk(expr):
            if isinstance(part, (S.Read, S.Entry)):
                array = self._registry.captured[part.slot]
                yield from array.tensors if isinstance(array, PlacesOfScore) else (array,)

    def value(self, expr: Any, env: Mapping[str, Any]) -> Any:
        """The value of a formula."""
        torch = torch_of()

        def of(part: Any) -> Any:
            return self.value(part, env)

        match expr:
            case S.Number(value):
                return torch.tensor(value)
            case S.Whole(number):
                return torch.as_tensor(of(number)).float()
            case S.Read(slot, index) | S.Entry(slot, index):
                return self._element(slot, tuple(map(of, index)), env)
            case S.Call(name, args):
                return _FUNCTIONS[name](*map(of, args))
            case S.Choice(condition, then, other):
                return torch.where(of(condition), of(then), of(other))
            case S.Less(left, right):
                return of(left) < of(right)
            case S.Logic("not", (part,)):
                return ~of(part)
            case S.Logic(word, (one, two)):
                return of(one) & of(two) if word == "and" else of(one) | of(two)
            case S.Trunc(number):
                return torch.trunc(of(number)).long()
            case S.Product(left, right):
                return of(left) * of(right)
        return super().value(expr, env)

    def _element(self, slot: str, index: tuple[Any, ...], env: Mapping[str, Any]) -> Any:
        array = self._registry.captured[slot]
        if isinstance(array, PlacesOfScore):
            return array.places.run(env)
        tensor = array if hasattr(array, "detach") else torch_of().as_tensor(np.asarray(array))
        if not index:
            return widened(tensor.reshape(()))
        shared = zip(tensor.shape, index, strict=True)
        return widened(tensor[tuple(0 if size == 1 else part for size, part in shared)])


_FOLLOWED = "write it so that it can be followed"
_NAMES = {"min": "minimum", "max": "maximum", "neg": "neg", "div": "true_divide"}


def _function(name: str) -> Callable[..., Any]:
    def apply(*args: Any) -> Any:
        torch = torch_of()
        if name == "gelu":
            return torch.nn.functional.gelu(*args)
        return getattr(torch, _NAMES.get(name, name))(*args)

    return apply


_FUNCTIONS = {name: _function(name) for name in S.FUNCTIONS if name != "step"}


class PlacesOfScore(PlaceTable, Evaluated):
    """Computes the table of a part."""

    sequences = heads = 1

    def __init__(self, places: Places, real: bool, at: SourceLoc | None) -> None:
        """Store the arguments; nothing is computed yet.

        Args:
            places: the part.
            real: whether it is a real number instead of an integer or a condition.
            at: the line of the part.
        """
        Evaluated.__init__(self, places.tensors, at)
        self.places, self.real = places, real

    @property
    def pairs(self) -> bool:
        """Whether it depends on both the query and the key."""
        return {"q", "k"} <= set(self.places.symbols)

    def __copy__(self) -> PlacesOfScore:
        return self

    def __deepcopy__(self, memo: object) -> PlacesOfScore:
        return self

    def __reduce__(self) -> NoReturn:
        """Raise an error: the traced function exists in this process only.

        Raises:
            ScoreNeedsLengths: always (MC650).
        """
        raise ScoreNeedsLengths("it cannot leave the process that made it", at=self.at)

    def of_call(self, batch: int, heads: int, n_q: int, n_kv: int) -> np.ndarray:
        """Return the numbers for a call, read-only, in fp32 or int32."""
        result: np.ndarray = self.arrays(batch, heads, n_q, n_kv)[0]
        return result

    def kept(self, array: np.ndarray) -> np.ndarray:
        """Return the array as calls read it; raises DataRange if an integer exceeds 32 bits
        (MC305).
        """
        if not self.real:
            return Captured(array, self.at).array
        array.flags.writeable = False
        return array

    def what_decides(self, batch: int, heads: int, n_q: int, n_kv: int) -> tuple[int, ...]:
        """The sizes of its dimensions."""
        sizes = {"b": batch, "h": heads, "q": n_q, "k": n_kv}
        return tuple(sizes[name] for name in self.places.symbols)

    def evaluate(self, batch: int, heads: int, n_q: int, n_kv: int) -> tuple[np.ndarray, ...]:
        """Compute all entries.

        Raises:
            NotEvaluated: the part raised (MC651).
        """
        sizes = self.what_decides(batch, heads, n_q, n_kv)
        whole = np.zeros(sizes, np.float32 if self.real else np.int64)
        if not whole.size:
            return (whole,)
        torch = torch_of()
        axis = self.places.symbols.index("q") if "q" in self.places.symbols else 0
        step = max(1, _AT_ONCE * sizes[axis] // whole.size)
        vectors = [torch.arange(size, device=self.places.device) for size in sizes]
        try:
            for first in range(0, sizes[axis], step):
                stretch = [*vectors]
                stretch[axis] = vectors[axis][first : first + step]
                place = (slice(None),) * axis + (slice(first, first + step),)
                result = self.places.over(*stretch).cpu()
                whole[place] = result.float().numpy() if self.real else result.numpy()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise NotEvaluated(reason, batch, heads, n_q, n_kv, at=self.at) from error
        return (whole,)
