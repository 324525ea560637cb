"""One mask compared with its rivals, as a suite's case would be."""

from __future__ import annotations

from typing import Any

import maskc as mc
from benchmarks.contest import Ask
from benchmarks.rivals import IMPLS
from benchmarks.run import bench_case
from maskc.core.dtypes import DType
from maskc.core.problem import Problem
from maskc.core.target import Target
from maskc.lab.environment import environment
from maskc.runtime.device import default_target
from maskc.verify.case import Case
from maskc.verify.case_tensors import device_of


def bench_pattern(
    name: str, mask: mc.Mask, *, n: int, n_kv: int | None = None, heads: int = 8,
    kv_heads: int | None = None, batch: int = 1, head_dim: int = 64, dtype: str = "float32",
    target: str | None = None, directions: tuple[str, ...] = ("fwd", "bwd"), repeats: int = 20,
    data: dict[str, object] | None = None, **ask: Any,
) -> dict[str, Any]:  # fmt: skip
    """The report of one case."""
    case = Case(
        name, mask, batch, heads, kv_heads or heads, n, n_kv or n, head_dim, DType.parse(dtype),
        data or {},
    )  # fmt: skip
    problem = Problem(head_dim, head_dim, case.dtype)
    chosen = Target.named(target or default_target(problem)).serving(problem)
    found = bench_case(case, Ask(chosen, directions, tuple(IMPLS), repeats, **ask))
    about = environment(device_of(chosen)) | {"target": chosen.name, "repeats": repeats}
    about |= {"cases": {name: found.about}, "notes": found.notes}
    return {"environment": about, "rows": found.rows}
