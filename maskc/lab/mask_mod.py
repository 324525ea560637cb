"""The mask as a formula on tensors: what FlexAttention takes, and what judges whole heads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import numpy as np

from maskc.core.evaluator import Env, Evaluator
from maskc.lab.case_pairs import CasePairs
from maskc.verify.case import Case


def formula_of(case: Case, pairs: CasePairs, device: str) -> Callable[..., Any]:
    """Return the mask as mask_mod(b, h, q, k): written by hand if the case has one, otherwise the
    compiler's formula."""
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
        terms = [_TENSORS.value(f, env | here) for f, env in zip(formulas, envs, strict=True)]
        if len(terms) == 1:
            return terms[0]
        kept = [(which[h] == number) & term for number, term in enumerate(terms)]
        return reduce(lambda x, y: x | y, kept)

    return keep


def _on_device(values: np.ndarray, device: str) -> Any:
    import torch

    return torch.tensor(values, device=device)  # a copy: bound arrays may be read-only


class _OfTensors(Evaluator):
    """Values of formulas on tensors; Python integers where no tensor takes part."""

    def truth(self, value: bool, env: Env) -> Any:
        return env["q"] >= 0 if value else env["q"] < 0

    def extreme(self, least: bool, values: list[Any]) -> Any:
        return reduce(partial(_extreme, least), values)

    def element(self, array: str, index: tuple[Any, ...], env: Env) -> Any:
        """An element; leading dimensions are batch and, for tables, heads. Size 1 is shared."""
        table = env[array]
        leading = table.ndim - len(index)
        names = ("b", "h")[-leading:] if leading and len(index) > 1 else ("b",) * leading
        outer = tuple(env[name] if table.shape[axis] > 1 else 0 for axis, name in enumerate(names))
        return table[outer + index]


_TENSORS = _OfTensors()


def _extreme(least: bool, left: Any, right: Any) -> Any:
    import torch

    numbers = isinstance(left, int), isinstance(right, int)
    if all(numbers):
        return min(left, right) if least else max(left, right)
    if any(numbers):
        bound, x = (left, right) if numbers[0] else (right, left)
        return torch.clamp(x, max=bound) if least else torch.clamp(x, min=bound)
    return torch.minimum(left, right) if least else torch.maximum(left, right)
