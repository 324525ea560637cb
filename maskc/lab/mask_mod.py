"""The mask as a formula on tensors: what FlexAttention takes, and what judges whole heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import Any

import numpy as np

from maskc.core import expr as E
from maskc.core.expr import Expr
from maskc.lab.case_pairs import CasePairs
from maskc.verify.case import Case

Env = Mapping[str, Any]
"""Index tensors b, h, q, k; lengths and parameters as integers; arrays as tensors."""


def formula_of(case: Case, pairs: CasePairs, device: str) -> Callable[..., Any]:
    """The mask as mask_mod(b, h, q, k): by hand where the case has it so, else the compiler's."""
    if case.formula is None:
        return mask_mod(case, pairs, device)
    arrays = {name: np.asarray(values) for name, values in case.data.items()}
    return case.formula({name: _on_device(values, device) for name, values in arrays.items()})


def mask_mod(case: Case, pairs: CasePairs, device: str) -> Callable[..., Any]:
    """The mask as FlexAttention's mask_mod(b, h, q, k)."""
    import torch

    envs = []
    for variant in range(len(pairs.masks)):
        params, arrays = pairs.bound_arrays(variant)
        held = {name: _on_device(values, device) for name, values in arrays.items()}
        envs.append({**params, **held, "n_q": case.n_q, "n_kv": case.n_kv})
    formulas = [ir.keep for ir in pairs.masks]
    which = torch.tensor(pairs.of_head or (0,), dtype=torch.int32, device=device)

    def keep(b: Any, h: Any, q: Any, k: Any) -> Any:
        here = {"b": b, "h": h, "q": q, "k": k}
        terms = [condition(f, env | here) for f, env in zip(formulas, envs, strict=True)]
        if len(terms) == 1:
            return terms[0]
        kept = [(which[h] == number) & term for number, term in enumerate(terms)]
        return reduce(lambda x, y: x | y, kept)

    return keep


def _on_device(values: np.ndarray, device: str) -> Any:
    import torch

    return torch.tensor(values, device=device)  # a copy: bound arrays may be read-only


def condition(expr: Expr, env: Env) -> Any:
    """A boolean formula on tensors."""
    match expr:
        case E.Truth(value):
            return env["q"] >= 0 if value else env["q"] < 0
        case E.Cmp(">=", lhs):
            return integer(lhs, env) >= 0
        case E.Cmp("==", lhs):
            return integer(lhs, env) == 0
        case E.Cmp("!=", lhs):
            return integer(lhs, env) != 0
        case E.Member(value, ranges, inside):
            x = integer(value, env)
            in_range = reduce(
                lambda a, b: a | b, ((x >= low) & (x <= high) for low, high in ranges)
            )
            return in_range if inside else ~in_range
        case E.All(terms):
            return reduce(lambda a, b: a & b, (condition(term, env) for term in terms))
        case E.Any(terms):
            return reduce(lambda a, b: a | b, (condition(term, env) for term in terms))
    raise TypeError(f"not a boolean formula: {expr!r}")


def integer(expr: Expr, env: Env) -> Any:
    """An integer formula on tensors; a Python integer where no tensor takes part."""
    match expr:
        case E.Sum(constant, terms):
            total: Any = constant
            for factor, term in terms:
                value = integer(term, env)
                total = total + (value if factor == 1 else factor * value)
            return total
        case E.Sym(name):
            return env[name]
        case E.Param(name, default):
            return env.get(name, default)
        case E.FloorDiv(num, den):
            return integer(num, env) // den
        case E.Mod(num, den):
            return integer(num, env) % den
        case E.Min(args):
            return reduce(partial(_extreme, True), (integer(arg, env) for arg in args))
        case E.Max(args):
            return reduce(partial(_extreme, False), (integer(arg, env) for arg in args))
        case E.Load(array, index):
            return _load(env[array], tuple(integer(part, env) for part in index), env)
    raise TypeError(f"not an integer formula: {expr!r}")


def _extreme(least: bool, left: Any, right: Any) -> Any:
    import torch

    numbers = isinstance(left, int), isinstance(right, int)
    if all(numbers):
        return min(left, right) if least else max(left, right)
    if any(numbers):
        bound, x = (left, right) if numbers[0] else (right, left)
        return torch.clamp(x, max=bound) if least else torch.clamp(x, min=bound)
    return torch.minimum(left, right) if least else torch.maximum(left, right)


def _load(array: Any, index: tuple[Any, ...], env: Env) -> Any:
    """An element; leading dimensions are batch and, for tables, heads. Size 1 is shared."""
    leading = array.ndim - len(index)
    names = ("b", "h")[-leading:] if leading and len(index) > 1 else ("b",) * leading
    outer = tuple(env[name] if array.shape[axis] > 1 else 0 for axis, name in enumerate(names))
    return array[outer + index]
