"""Copy a user's functions, with min, max, type and NumPy arrays replaced by traced versions.

torch needs no copies, because its calls can be intercepted. Indexing a NumPy array and calling a
builtin bypass traced values. Both are replaced in all places where a function may find them:
globals, closure, defaults, containers and attributes of objects.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, NoReturn

import numpy as np

from maskc.core.errors import NotTraceable
from maskc.core.jax_arrays import is_jax_array, jax_values
from maskc.core.source import caller
from maskc.core.tensors import refuse_masked
from maskc.dsl.followed import Followed
from maskc.dsl.tables import IndexedRows, WatchedArray
from maskc.dsl.traced import Traced, traced_max, traced_min
from maskc.dsl.watching import users

_LARGEST = 4096
"""Containers with more items than this are not searched: they hold numbers."""


def _type(*args: Any, **named: Any) -> Any:
    if len(args) == 1 and type(args[0]) in (Traced, IndexedRows):
        what = "type() asks what a traced value is, which would be decided for good"
        raise NotTraceable(what, at=caller())
    return type(*args, **named)


_BUILTINS: dict[str, Any] = {"min": traced_min, "max": traced_max, "type": _type}


def _differentiates(owner: Any) -> bool:
    """Whether it is a torch.autograd.Function."""
    bases = getattr(owner, "__mro__", ())
    names = [(base.__module__, base.__qualname__) for base in bases]
    return ("torch.autograd.function", "Function") in names


def _own_backward(owner: Any, *given: object, **named: object) -> NoReturn:
    """Replacement for its `apply`: a traced formula has its own derivative only."""
    raise TypeError(
        f"{owner.__name__} is a torch.autograd.Function, whose gradient need not be that of its "
        "formula; write the formula with torch's own functions, such as torch.tanh"
    )


class Rebinder:
    """Copies functions, objects and containers, each of them once."""

    def __init__(
        self, watched: type[np.ndarray] = WatchedArray, builtins_of: Mapping[str, Any] | None = None
    ) -> None:
        """Start with nothing replaced.

        Args:
            watched: the class that arrays of NumPy and JAX, of any shape, become.
            builtins_of: replacements of builtins, by name.
        """
        self._done: dict[int, tuple[object, Any]] = {}  # originals stay alive: ids are unique
        self._watched = watched
        self._builtins = _BUILTINS if builtins_of is None else builtins_of

    def function(self, fn: Callable[..., object]) -> Callable[..., object]:
        """The copy of a function, a method, a partial function or a callable object."""
        if isinstance(fn, partial):
            named = {name: self.value(item) for name, item in fn.keywords.items()}
            return partial(self.function(fn.func), *map(self.value, fn.args), **named)
        if isinstance(fn, MethodType):
            if fn.__name__ == "apply" and _differentiates(fn.__self__):
                return partial(_own_backward, fn.__self__)
            return MethodType(self.function(fn.__func__), self.value(fn.__self__))
        known: Callable[..., object]
        if not isinstance(fn, FunctionType):
            known = self.value(fn)
            return known
        if not users(fn.__module__):
            return fn
        if id(fn) in self._done:
            known = self._done[id(fn)][1]
            return known
        scope = dict(fn.__globals__)
        cells = tuple(CellType() for _ in fn.__closure__ or ())
        copy = FunctionType(fn.__code__, scope, fn.__name__, None, cells or None)
        self._done[id(fn)] = fn, copy  # before its names, which may lead back to it
        for name in _names(fn.__code__):
            if name in scope:
                scope[name] = self.value(scope[name])
            elif name in self._builtins and hasattr(builtins, name):
                scope[name] = self._builtins[name]
        copy.__defaults__ = tuple(map(self.value, fn.__defaults__ or ())) or None
        copy.__kwdefaults__ = {n: self.value(v) for n, v in (fn.__kwdefaults__ or {}).items()}
        for cell, original in zip(cells, fn.__closure__ or (), strict=True):
            with suppress(ValueError):  # not filled yet: reading it raises, as in the original
                cell.cell_contents = self.value(original.cell_contents)
        return copy

    def value(self, value: Any) -> Any:
        """Return the replacement of a captured value."""
        kind = type(value)
        if kind in (int, float, str, bool, bytes, type(None), Traced):
            return value
        if getattr(kind, "of_score", False):
            return value
        if kind in (FunctionType, MethodType, partial):
            return self.function(value)
        if id(value) in self._done:
            return self._done[id(value)][1]
        if isinstance(value, np.ndarray):
            refuse_masked(value, "a captured array", caller())
            return self._kept(value, value.view(self._watched) if value.ndim else value[()])
        if hasattr(value, "get") and hasattr(value, "__cuda_array_interface__"):
            return self._kept(value, value.get().view(self._watched))
        if is_jax_array(value):
            values = jax_values("an array that the formula captures", value, caller())
            return self._kept(value, values.view(self._watched) if values.ndim else values[()])
        if kind in (list, tuple, dict):
            return self._container(value)
        if isinstance(value, ModuleType):
            if value.__name__ == "jax.numpy":  # its functions look into their arguments
                return np
            is_users = users(value.__name__) and value.__name__ != "builtins"
            return self._kept(value, _Names(self, value)) if is_users else value
        if isinstance(value, type):
            holds = users(value.__module__) and any(map(_matters, vars(value).values()))
            return self._kept(value, _Names(self, value)) if holds else value
        return self._object(value)

    def _kept(self, original: object, copy: Any) -> Any:
        self._done[id(original)] = original, copy
        return copy

    def _container(self, value: Any) -> Any:
        if len(value) > _LARGEST:
            return value
        if type(value) is list and value and all(map(_is_number, value)):
            return self._kept(value, _Listed(self._watched, value))
        if not any(map(_matters, value.values() if type(value) is dict else value)):
            return value
        if type(value) is tuple:
            return self._kept(value, tuple(map(self.value, value)))
        copy = self._kept(value, type(value)())
        if type(value) is dict:
            copy.update((name, self.value(item)) for name, item in value.items())
        else:
            copy.extend(map(self.value, value))
        return copy

    def _object(self, value: Any) -> Any:
        """A copy of an object with a `__dict__`; its methods are those of a class of its own."""
        kind = type(value)
        held = getattr(value, "__dict__", None)
        known = users(kind.__module__) or kind is SimpleNamespace
        if type(held) is not dict or not known:
            return value
        methods = {
            name: item for base in reversed(kind.__mro__) if users(base.__module__)
            for name, item in vars(base).items() if isinstance(item, (FunctionType, np.ndarray))
        }  # fmt: skip
        if not methods and not any(map(_matters, held.values())):
            return value
        try:
            copy = SimpleNamespace() if kind is SimpleNamespace else object.__new__(kind)
        except TypeError:  # made in another way
            return value
        self._kept(value, copy)
        vars(copy).update((name, self.value(item)) for name, item in held.items())
        namespace = {name: self.value(item) for name, item in methods.items()}
        made: Callable[[str, tuple[type, ...], dict[str, Any]], type] = type(kind)
        with suppress(TypeError):  # slots, or a class that nothing may derive from
            its_class = made(kind.__name__, (kind,), {**namespace, "__module__": "maskc"})
            object.__setattr__(copy, "__class__", its_class)  # also where instances are frozen
        return copy


def _is_number(value: object) -> bool:
    return type(value) in (bool, int, float)


class _Listed(list[Any]):
    """A list of numbers that traced values may index, as in `[4, 9][b]`."""

    def __init__(self, watched: type[np.ndarray], values: Any) -> None:
        super().__init__(values)
        self._watched = watched

    def __getitem__(self, index: Any) -> Any:
        if issubclass(type(index), Followed):
            return np.array(self).view(self._watched)[index]
        return super().__getitem__(index)


def _matters(value: object) -> bool:
    """Whether a function may meet an array in it, or call it."""
    kind = type(value)
    return not (kind in (int, float, str, bool, bytes, type(None)) or kind.__module__ == "torch")


class _Names:
    """A module or a class that returns replacements for its attributes."""

    def __init__(self, rebinder: Rebinder, original: Any) -> None:
        self._rebinder, self._original = rebinder, original

    def __getattr__(self, name: str) -> Any:
        return self._rebinder.value(getattr(self._original, name))

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._original(*args, **named)


def _names(code: CodeType) -> Iterator[str]:
    """Return the global names that a code object and its nested functions may read."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
