"""Every pattern on every head dimension and dtype of a target, against fp64 attention."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import maskc
from benchmarks.contest import Measured
from benchmarks.report import reason
from maskc.core.dtypes import DType
from maskc.core.errors import MaskcError, UsageMistake
from maskc.core.problem import Direction
from maskc.core.target import Target
from maskc.driver import selects
from maskc.dsl.loader import load
from maskc.dsl.mask import Mask
from maskc.ir.heads import fixed_heads, head_count
from maskc.lab.environment import cores
from maskc.verify.case import Case
from maskc.verify.case_tensors import CaseTensors, device_of, make_tensors
from maskc.verify.judge import make_judge
from maskc.verify.samples import sample_data, true_mask

LENGTHS = ((1, 1), (129, 129), (200, 333))
"""(queries, keys): one, one more than a tile, and a rectangle that no tile divides."""
_ANY_HEAD_DIM = (40, 64, 128)
"""Tried where a target takes every head dimension."""
_BUILDERS = 14


def patterns_folder() -> Path:
    """`patterns/` beside the package.

    Raises:
        UsageMistake: this installation came without it.
    """
    folder = Path(maskc.__file__).parents[1] / "patterns"
    if not folder.is_dir():
        raise UsageMistake(
            "there is no folder patterns/ beside the package",
            "run this from a checkout of the project",
        )
    return folder


def units(
    target: Target, only: tuple[str, ...], progress: Callable[[str], None],
    folder: Path | None = None,
) -> Iterator[tuple[str, Callable[[], Measured]]]:  # fmt: skip
    """(pattern name, what measures it) for every pattern of a folder, by file name.

    Args:
        only: shell patterns of names; empty is all.
        folder: `patterns/` when None.
    """
    found = []
    for file in sorted((folder or patterns_folder()).glob("*.py")):
        for name, mask in _masks(str(file)).items():
            block = selects(mask)
            if block and not 0 < target.least_block <= block:
                continue
            if not only or any(fnmatchcase(name, shape) for shape in only):
                found.append((str(file), name, mask))
    problems = list(_problems(target))
    _prebuild([(file, name) for file, name, _ in found], problems, target, progress)
    for _, name, mask in found:
        yield name, _measure(name, mask, problems, target, progress)


def _problems(target: Target) -> Iterator[tuple[int, DType]]:
    for head_dim in target.head_dims or _ANY_HEAD_DIM:
        for dtype in target.dtypes:
            yield head_dim, dtype


@cache
def _masks(file: str) -> dict[str, Mask]:
    return {
        name: value if isinstance(value, Mask) else value() for name, value in load(file).items()
    }


def _heads(mask: Mask) -> int:
    """The query heads that the mask is written for, else at least four, two per key head."""
    return fixed_heads(mask) or max(4, 2 * -(-head_count(mask) // 2))


# ------------------------------------------------------------------ building ahead


def _prebuild(
    masks: list[tuple[str, str]], problems: list[tuple[int, DType]], target: Target,
    progress: Callable[[str], None],
) -> None:  # fmt: skip
    """Fill the cache from several processes; what fails here fails again, and is told, later."""
    workers = min(cores() - 2, _BUILDERS, len(masks))
    if workers < 2:
        return
    progress(f"building {len(masks) * len(problems)} kernels in {workers} processes")
    arch = ""
    if target.language == "cuda":
        from maskc.runtime.launch.cuda import device_arch

        arch = device_arch(target.name, 0)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        jobs = [pool.submit(_build_all, *mask, problems, target.name, arch) for mask in masks]
        for job in jobs:
            job.exception()


def _build_all(
    file: str, name: str, problems: list[tuple[int, DType]], target: str, arch: str
) -> None:
    from maskc.build import build

    mask = _masks(file)[name]
    for head_dim, dtype in problems:
        attn = mask.compile(head_dim, n_heads=_heads(mask), dtype=dtype, target=target)
        build(attn.unit, frozenset(), attn.target.directions, arch)


# ------------------------------------------------------------------ one pattern


def _measure(
    name: str, mask: Mask, problems: list[tuple[int, DType]], target: Target,
    progress: Callable[[str], None],
) -> Callable[[], Measured]:  # fmt: skip
    return lambda: _Pattern(name, mask, target).run(problems, progress)


class _Pattern:
    """One pattern on one target."""

    def __init__(self, name: str, mask: Mask, target: Target) -> None:
        heads = _heads(mask)
        self.target, self.backward = target, Direction.backward in target.directions
        self.case = Case(
            name, mask, 1, heads, heads // 2 if heads % 2 == 0 else heads, 1, 1, 1, DType.float32
        )
        self.result = Measured()
        self._known: dict[tuple[int, int], np.ndarray] = {}

    def run(self, problems: list[tuple[int, DType]], progress: Callable[[str], None]) -> Measured:
        """A row per problem and direction, with the worst error over all lengths."""
        case = self.case
        progress(f"{case.name}: checking {len(problems)} kernels")
        places = list(self._places())
        for head_dim, dtype in problems:
            label = f"{case.name} d{head_dim} {dtype.value}"
            worst: dict[str, tuple[float, bool]] = {}
            try:
                attn = replace(case, head_dim=head_dim, dtype=dtype).compile(self.target.name)
                for sized in places:
                    self._check(attn, replace(sized, head_dim=head_dim, dtype=dtype), worst)
            except Exception as error:  # a broken kernel is a result, and the rest goes on
                worst["fwd"] = (np.nan, False)
                self.result.notes.append(f"{label}: {reason(error)}")
            for direction, (error, ok) in worst.items():
                self._row(label, direction, error, ok)
        self.result.about = {
            "mask": str(case.mask), "heads": case.heads, "kv_heads": case.kv_heads,
            "lengths": [[sized.n_q, sized.n_kv] for sized in places],
        }  # fmt: skip
        return self.result

    def _places(self) -> Iterator[Case]:
        """Cases with the lengths that the mask has, and data."""
        for n_q, n_kv in LENGTHS:
            data = sample_data(self.case.mask, n_q, n_kv)
            sized = replace(self.case, n_q=n_q, n_kv=n_kv, data=data)
            try:
                self._keep(sized, make_tensors(sized, "cpu"))
            except MaskcError as error:  # a mask with tables of its own has lengths of its own
                self.result.notes.append(
                    f"{self.case.name} at {n_q} x {n_kv} left out: {error.finding}"
                )
                continue
            yield sized

    def _keep(self, case: Case, tensors: CaseTensors) -> np.ndarray:
        """bool [heads or 1, n_q, n_kv]; the same for all tensors where these do not rank."""
        key = (case.n_q, case.n_kv)
        if key in self._known:
            return self._known[key]
        keep = true_mask(case, tensors).reshape(-1, case.n_q, case.n_kv)
        if not case.ranks_by_qk:
            self._known[key] = keep
        return keep

    def _check(self, attn: Any, case: Case, worst: dict[str, tuple[float, bool]]) -> None:
        tensors = make_tensors(case, device_of(self.target))
        keep = self._keep(case, tensors)
        every = np.arange(case.n_q)
        judge = make_judge(case, tensors, every, lambda b, h: keep[h % len(keep)], self.backward)
        out, lse = attn(*tensors.qkv, return_lse=True, **case.data)
        verdicts = {"fwd": judge.verdict(out=out, lse=lse)}
        if self.backward:
            found = attn.backward(*tensors.qkv, out, lse, tensors.dout, **case.data)
            parts = zip(("dq", "dk", "dv"), found, strict=True)
            verdicts["bwd"] = judge.verdict(**dict(parts))
        for direction, verdict in verdicts.items():
            error, ok = worst.get(direction, (0.0, True))
            worst[direction] = float(np.maximum(error, verdict.error)), ok and verdict.ok

    def _row(self, label: str, direction: str, error: float, ok: bool) -> None:
        self.result.rows.append({
            "case": label, "impl": "maskc", "direction": direction, "ms": None,
            "live_tflops": None, "error": float(f"{error:.3g}") if np.isfinite(error) else None,
            "ok": ok,
        })  # fmt: skip
