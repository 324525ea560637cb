"""FlexAttention for the same mask, and the mask as a formula on tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, reduce
from typing import Any

import numpy as np

from maskc.bench.case import Case
from maskc.bench.fa4 import MISSING, installed
from maskc.bench.pairs import Pairs
from maskc.bench.rivals import Contender, Missing, Unavailable, differentiated
from maskc.bench.tensors import Tensors
from maskc.core import expr as E
from maskc.core.expr import Expr

Env = Mapping[str, Any]
"""Index tensors b, h, q, k; lengths and parameters as integers; arrays as tensors."""


_DENSE_MASK = 1 << 28
"""Pairs up to which a block mask is made eagerly; beyond, its boolean matrix is not formed."""


def start_anew() -> None:
    """Forget compiled functions: else earlier cases count towards a limit of recompilations.

    Beyond the limit PyTorch would run FlexAttention uncompiled; here that is an error.
    """
    import torch
    import torch._dynamo

    torch._dynamo.reset()
    if hasattr(torch._dynamo.config, "fail_on_recompile_limit_hit"):
        torch._dynamo.config.fail_on_recompile_limit_hit = True


def flex_contender(
    case: Case, tensors: Tensors, pairs: Pairs, backward: bool, flash: bool = False
) -> Contender:
    """torch.compile(flex_attention) with a block mask made beforehand.

    Args:
        flash: its backend of FlashAttention 4's kernels, instead of Triton's.

    Raises:
        Unavailable: this PyTorch has no FlexAttention, or it refuses the case.
    """
    try:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    except ImportError as error:
        raise Unavailable(str(error)) from None
    import torch

    if flash and not installed():
        raise Missing(MISSING)
    if backward and tensors.device == "cpu":
        backward = False  # FlexAttention has no backward there
    import torch._functorch.config

    torch._functorch.config.donated_buffer = False  # the graph is differentiated many times
    batch = case.batch if pairs.batched else None
    heads = case.heads if pairs.by_head else None
    large = case.n_q * case.n_kv > _DENSE_MASK
    options = {"kernel_options": {"BACKEND": "FLASH"}} if flash else {}
    with quiet():
        keep = formula_of(case, pairs, tensors.device)
        blocks = create_block_mask(
            keep, batch, heads, case.n_q, case.n_kv, device=tensors.device,
            _compile=large and tensors.device == "cuda",
        )  # fmt: skip
        compiled = torch.compile(flex_attention, dynamic=False)
        call = partial(compiled, block_mask=blocks, enable_gqa=case.group > 1, **options)

    def forward() -> Any:
        with torch.no_grad():  # else it writes its log-sum-exp, which nobody asked for
            return call(*tensors.qkv)

    with quiet():
        forward()
    gradient = differentiated(call, tensors) if backward else None
    return Contender("flex_flash" if flash else "flex", forward, gradient, scope=quiet)


def formula_of(case: Case, pairs: Pairs, device: str) -> Callable[..., Any]:
    """The mask as mask_mod(b, h, q, k): by hand where the case has it so, else the compiler's."""
    if case.formula is None:
        return mask_mod(case, pairs, device)
    arrays = {name: np.asarray(values) for name, values in case.data.items()}
    return case.formula({name: _on_device(values, device) for name, values in arrays.items()})


@contextmanager
def quiet() -> Iterator[None]:
    """Its compiler's warnings speak of PyTorch's own code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def mask_mod(case: Case, pairs: Pairs, device: str) -> Callable[..., Any]:
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
        own = [(which[h] == number) & term for number, term in enumerate(terms)]
        return reduce(lambda x, y: x | y, own)

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
            found = reduce(lambda a, b: a | b, ((x >= low) & (x <= high) for low, high in ranges))
            return found if inside else ~found
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
