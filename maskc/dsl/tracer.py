"""`where` and `from_mask_mod`: Python functions traced into formulas, exactly or not at all."""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType

import numpy as np

from maskc.core import expr as E
from maskc.core.data import DataDecl, DataKind
from maskc.core.errors import BatchUsed, MaskcError, NotTraceable
from maskc.core.expr import Expr
from maskc.core.source import SourceLoc, caller, raised_at
from maskc.dsl import nodes
from maskc.dsl.collect import mistake
from maskc.dsl.data_atoms import captured
from maskc.dsl.mask import Mask
from maskc.dsl.traced import Traced, lift_bool, lift_int, traced_max, traced_min

_BATCH = E.Sym("b")


def where(predicate: Callable[..., object]) -> Mask:
    """The pairs for which the predicate holds, traced once and exactly.

    Args:
        predicate: takes (q, k), (h, q, k) or FlexAttention's (b, h, q, k), raw token indices;
            further parameters keep their defaults.
            It may use + - * // %, abs, min, max, comparisons, & | ~, mc.n_q, mc.n_kv,
            mc.param(...), captured integers and captured integer or boolean arrays.

    Raises:
        NotTraceable: the predicate cannot be followed exactly; the message names the line.
        BatchUsed: it depends on b.
    """
    at = caller()
    try:
        formula, tables = trace(predicate, at)
    except MaskcError as error:
        return mistake(error, nodes.Full(loc=at))
    return nodes.Where(formula, tables, loc=at)


def from_mask_mod(mask_mod: Callable[..., object]) -> Mask:
    """A FlexAttention mask_mod(b, h, q_idx, kv_idx) as a mask, traced exactly or refused."""
    return where(mask_mod)


def trace(
    predicate: Callable[..., object], at: SourceLoc | None
) -> tuple[Expr, tuple[DataDecl, ...]]:
    """The formula of a predicate and the arrays it captured."""
    arguments = _arguments(predicate, at)
    tables: dict[str, DataDecl] = {}
    rebound = _Rebinder(tables).function(predicate)
    try:
        result = rebound(*arguments)
    except MaskcError:
        raise
    except Exception as error:
        found = f"it raised {type(error).__name__}: {error}"
        where_it_raised = raised_at(error, at.file) if at is not None else None
        raise NotTraceable(found, at=where_it_raised or at) from error
    formula = lift_bool(result, "the result")
    if _BATCH in E.walk(formula):
        raise BatchUsed(at=at)
    used = E.arrays(formula)
    return formula, tuple(tables[name] for name in used)


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _arguments(predicate: Callable[..., object], at: SourceLoc | None) -> tuple[Traced, ...]:
    names = {2: (E.Q, E.K), 3: (E.H, E.Q, E.K), 4: (_BATCH, E.H, E.Q, E.K)}
    try:
        parameters = inspect.signature(predicate).parameters.values()
    except (TypeError, ValueError):
        raise NotTraceable("it is not a Python function", at=at) from None
    needed = [p for p in parameters if p.default is p.empty]
    count = len(needed) if all(p.kind in _POSITIONAL for p in needed) else -1
    if count not in names:
        found = f"{count} arguments" if count >= 0 else "* or keyword-only arguments"
        raise NotTraceable(f"it takes {found}, expected (q, k) or (h, q, k)", at=at)
    return tuple(map(Traced, names[count]))


class _Table:
    """A captured array inside a traced function: indexing it makes a Load."""

    def __init__(self, array: np.ndarray, tables: dict[str, DataDecl]) -> None:
        self.decl = captured(array, DataKind.constant)
        self.shape = array.shape
        tables[self.decl.name] = self.decl
        self.boolean = array.dtype.kind == "b"

    def __getitem__(self, index: object) -> Traced:
        parts = index if isinstance(index, tuple) else (index,)
        dims = len(self.shape)
        if dims > 2:
            found = f"a captured array has {dims} dimensions, at most 2 work"
            raise NotTraceable(found, at=caller())
        if len(parts) != dims:
            found = f"an array of {dims} dimensions is indexed by {len(parts)}"
            raise NotTraceable(found, at=caller())
        load = E.Load(self.decl.name, tuple(lift_int(part, "an index") for part in parts))
        return Traced(E.ne(load, E.ZERO) if self.boolean else load)


class _Rebinder:
    """Copies functions with min, max, abs and captured arrays replaced by traced ones."""

    _BUILTINS = {"min": traced_min, "max": traced_max, "abs": abs}

    def __init__(self, tables: dict[str, DataDecl]) -> None:
        self.tables = tables
        self.done: dict[int, object] = {}

    def function(self, fn: Callable[..., object]) -> Callable[..., object]:
        if isinstance(fn, partial):
            named = {name: self.value(item) for name, item in fn.keywords.items()}
            return partial(self.function(fn.func), *map(self.value, fn.args), **named)
        if isinstance(fn, MethodType):
            return MethodType(self.function(fn.__func__), fn.__self__)
        if not isinstance(fn, FunctionType):
            return fn
        if id(fn) in self.done:
            return self.done[id(fn)]  # type: ignore[return-value]
        scope = dict(fn.__globals__)
        cells = tuple(CellType() for _ in fn.__closure__ or ())
        copy = FunctionType(fn.__code__, scope, fn.__name__, None, cells or None)
        self.done[id(fn)] = copy  # before its names, which may lead back to it
        for name in _names(fn.__code__):
            if name in scope:
                scope[name] = self.value(scope[name])
            elif name in self._BUILTINS and hasattr(builtins, name):
                scope[name] = self._BUILTINS[name]
        copy.__defaults__ = tuple(map(self.value, fn.__defaults__ or ())) or None
        copy.__kwdefaults__ = {n: self.value(v) for n, v in (fn.__kwdefaults__ or {}).items()}
        for cell, original in zip(cells, fn.__closure__ or (), strict=True):
            try:
                cell.cell_contents = self.value(original.cell_contents)
            except ValueError:  # not filled yet: reading it raises, as it would in the original
                continue
        return copy

    def value(self, value: object) -> object:
        """A captured value as the traced function should see it."""
        if isinstance(value, (FunctionType, MethodType, partial)):
            return self.function(value) if _user_code(value) else value
        if isinstance(value, (list, tuple)) and any(isinstance(v, FunctionType) for v in value):
            return type(value)(self.value(item) for item in value)
        array = _as_array(value)
        if array is None or array.dtype.kind not in "biu":
            return value
        return _Table(array, self.tables) if array.ndim else array.item()


def _names(code: CodeType) -> Iterator[str]:
    """Global names the code and the functions nested in it may read."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _user_code(fn: Callable[..., object]) -> bool:
    module = getattr(fn, "__module__", None) or ""
    return module.partition(".")[0] not in ("maskc", "numpy", "torch", "cupy")


def _as_array(value: object) -> np.ndarray | None:
    """NumPy arrays, torch and CuPy tensors; None for anything else."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, Traced):  # which refuses to be asked for methods
        return None
    try:
        if hasattr(value, "detach") and hasattr(value, "cpu"):
            return value.detach().cpu().numpy()  # type: ignore[attr-defined]
        if hasattr(value, "get") and hasattr(value, "__cuda_array_interface__"):
            return value.get()  # type: ignore[attr-defined]
    except (TypeError, RuntimeError):  # an element type NumPy lacks: refused where it is used
        pass
    return None
