"""One mask on one machine: maskc and its rivals, checked and timed in the same run."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from maskc.bench.case import Case
from maskc.bench.check import (
    Judge,
    Verdict,
    judged_backward,
    judged_forward,
    make_judge,
    sample_rows,
)
from maskc.bench.environment import environment
from maskc.bench.pairs import Pairs
from maskc.bench.report import reason
from maskc.bench.report import summary as summary
from maskc.bench.report import table as table
from maskc.bench.rivals import (
    GPU_ONLY,
    IMPLS,
    Contender,
    Unavailable,
    make_rival,
    maskc_contender,
)
from maskc.bench.tensors import Tensors, has_torch, make_tensors
from maskc.bench.timing import Timed, take_turns
from maskc.core.dtypes import DType
from maskc.core.problem import Direction, Problem
from maskc.core.target import Target

if TYPE_CHECKING:
    from maskc.dsl.mask import Mask
    from maskc.runtime.compiled import CompiledMask

DIRECTIONS = {"fwd": Direction.forward, "bwd": Direction.backward}
Progress = Callable[[str], None]


@dataclass(eq=False)
class Measured:
    """What one case gave."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was left out, and what failed and how."""
    about: dict[str, Any] = field(default_factory=dict)
    """Sizes, live pairs, how results were checked."""


def bench_pattern(
    name: str,
    mask: Mask,
    *,
    n: int,
    n_kv: int | None = None,
    heads: int = 8,
    kv_heads: int | None = None,
    batch: int = 1,
    head_dim: int = 64,
    dtype: str = "float32",
    target: str | None = None,
    directions: tuple[str, ...] = ("fwd", "bwd"),
    repeats: int = 20,
    data: Mapping[str, object] | None = None,
    progress: Progress = lambda text: None,
) -> dict[str, Any]:
    """Time a mask beside dense, masked and FlexAttention, and check every result.

    Args:
        name: what rows call the case.
        n, n_kv: queries and keys; n_kv = n when None.
        heads, kv_heads: of q, and of k and v (`heads` when None).
        dtype: storage type of the tensors.
        target: None is what this machine has for this problem.
        directions: among "fwd" and "bwd"; a target without backward kernels leaves "bwd" out.
        repeats: rounds of the timing.
        data: arrays and parameters the mask names.
        progress: told, in a few words, what happens next.

    Returns:
        {"environment": {...}, "rows": [{"case", "impl", "direction", "ms", "live_tflops", "error",
        "ok"}]}. `live_tflops` counts live pairs only, for every implementation. A row that failed
        its check, or could not run, has ok False; environment["notes"] says why.

    Raises:
        MaskcError: the mask, its data or the problem are refused.
    """
    case = Case(
        name, mask, batch, heads, kv_heads or heads, n, n if n_kv is None else n_kv, head_dim,
        DType.parse(dtype), dict(data or {}),
    )  # fmt: skip
    chosen = target_for(case, target)
    measured = bench_case(case, chosen, directions, repeats, tuple(IMPLS), progress)
    about = environment(device_of(chosen)) | {"target": chosen.name, "repeats": repeats}
    about |= {"cases": {name: measured.about}, "notes": measured.notes}
    return {"environment": about, "rows": measured.rows}


def target_for(case: Case, name: str | None) -> Target:
    """The target asked for, or this machine's."""
    from maskc.runtime.device import default_target

    problem = Problem(case.head_dim, case.head_dim, case.dtype)
    return Target.named(name or default_target(problem))


def device_of(target: Target) -> str:
    """`cpu` or `cuda`."""
    return "cpu" if target.language == "c" else "cuda"


# ------------------------------------------------------------------ one case


def bench_case(
    case: Case, target: Target, directions: tuple[str, ...], repeats: int,
    impls: tuple[str, ...], progress: Progress,
) -> Measured:  # fmt: skip
    """Measure one case; implementations that cannot run it become notes.

    Raises:
        MaskcError: maskc itself refuses the case.
    """
    result = Measured()
    device = device_of(target)
    progress(f"{case.name}: compiling for {target.name}")
    attn = case.mask.compile(
        case.head_dim, n_heads=case.heads, dtype=case.dtype, target=target.name
    )
    attn.warmup()
    wanted = [d for d in directions if DIRECTIONS[d] in target.directions]
    for left_out in sorted(set(directions) - set(wanted)):
        result.notes.append(f"{case.name} {left_out}: target {target.name} has no such kernels")
    progress(f"{case.name}: counting and checking")
    tensors, pairs = make_tensors(case, device), Pairs(case)
    live = pairs.live()
    rows = sample_rows(case.n_q, case.n_kv)
    bench = _Bench(case, tensors, pairs, rows, "bwd" in wanted, result)
    result.about = _about(case, pairs, live, len(rows))
    contenders = bench.contenders(attn, impls, progress)
    bench.check(contenders, wanted, progress)
    result.about["allowed"] = {part: _short(x) for part, x in bench.judge(False).allowed.items()}
    bench.time(contenders, wanted, repeats, live, progress)
    del contenders, bench
    _free(device)
    return result


def _about(case: Case, pairs: Pairs, live: int, checked: int) -> dict[str, Any]:
    everything = case.batch * case.heads * case.n_q * case.n_kv
    return {
        "mask": str(case.mask), "batch": case.batch, "heads": case.heads,
        "kv_heads": case.kv_heads, "n_q": case.n_q, "n_kv": case.n_kv, "head_dim": case.head_dim,
        "dtype": case.dtype.value, "live_pairs": live,
        "live_share": _short(live / everything) if everything else 0.0,
        "checked": f"{checked} of {case.n_q} query rows on every head against fp64, gradients from "
        f"those rows; live keys from {pairs.source}",
    }  # fmt: skip


class _Bench:
    """The steps of one case."""

    def __init__(
        self, case: Case, tensors: Tensors, pairs: Pairs, rows: np.ndarray, backward: bool,
        result: Measured,
    ) -> None:  # fmt: skip
        self.case, self.tensors, self.pairs = case, tensors, pairs
        self.rows, self.backward, self.result = rows, backward, result
        self._judges: dict[bool, Judge] = {}
        self._verdicts: dict[tuple[str, str], Verdict] = {}

    def judge(self, keeps_all: bool) -> Judge:
        """Of the mask, or of attention to every key."""
        if keeps_all not in self._judges:
            everything = np.ones((len(self.rows), self.case.n_kv), dtype=bool)
            self._judges[keeps_all] = make_judge(
                self.case, self.tensors, self.rows,
                lambda b, h: everything if keeps_all else self.pairs.rows(b, h, self.rows),
                self.backward,
            )  # fmt: skip
        return self._judges[keeps_all]

    def contenders(
        self, attn: CompiledMask, impls: tuple[str, ...], progress: Progress
    ) -> list[Contender]:
        """Everything that can run; the rest becomes notes, and rows where it broke."""
        found = []
        if "maskc" in impls:
            found.append(maskc_contender(self.case, self.tensors, attn, self.backward))
        elsewhere = ("maskc",) if self.tensors.device == "cuda" else ("maskc", *GPU_ONLY)
        others = [impl for impl in impls if impl not in elsewhere]
        if others and not has_torch():
            self.note("rivals", "PyTorch is not installed")
            return found
        for impl in others:
            progress(f"{self.case.name}: preparing {impl}")
            try:
                made = make_rival(impl, self.case, self.tensors, self.pairs, self.backward)
            except Unavailable as error:
                self.note(impl, str(error))
            except Exception as error:  # whatever a rival raises is its own failure
                self.broke(impl, "fwd", error)
            else:
                found += [made] if made is not None else []
        return found

    def check(self, contenders: list[Contender], wanted: list[str], progress: Progress) -> None:
        """Run every contender once and judge what it gives."""
        for contender in contenders:
            progress(f"{self.case.name}: checking {contender.impl}")
            judge = self.judge(contender.keeps_all)
            for direction in wanted:
                if direction == "bwd" and contender.backward is None:
                    self.note(contender.impl, "it has no backward here")
                    continue
                try:
                    with contender.scope():
                        if direction == "fwd":
                            verdict = judged_forward(judge, self.rows, contender.forward())
                        else:
                            run = contender.backward
                            verdict = judged_backward(judge, self.rows, self.tensors, run)
                except Exception as error:
                    self.broke(contender.impl, direction, error)
                    continue
                self._verdicts[contender.impl, direction] = verdict

    def time(
        self, contenders: list[Contender], wanted: list[str], repeats: int, live: int,
        progress: Progress,
    ) -> None:  # fmt: skip
        """Let what ran take turns; a failed check keeps its row, as failed."""
        for direction in wanted:
            ran = {
                c.impl: Timed(_timed(c, direction, self.tensors), c.scope)
                for c in contenders if (c.impl, direction) in self._verdicts
            }  # fmt: skip
            if not ran:
                continue
            progress(f"{self.case.name}: timing {direction} of {', '.join(ran)}")
            for impl, ms in take_turns(ran, repeats, self.tensors.device).items():
                speed = self.case.flops(live, direction) / ms / 1e9
                verdict = self._verdicts[impl, direction]
                self.row(impl, direction, _short(ms), _short(speed), verdict)

    def row(
        self, impl: str, direction: str, ms: float | None, speed: float | None,
        verdict: Verdict | None,
    ) -> None:  # fmt: skip
        finite = verdict is not None and np.isfinite(verdict.error)
        self.result.rows.append({
            "case": self.case.name, "impl": impl, "direction": direction, "ms": ms,
            "live_tflops": speed, "error": _short(verdict.error) if finite else None,
            "ok": bool(verdict and verdict.ok),
        })  # fmt: skip
        if verdict is not None and not verdict.ok:
            self.note(impl, f"{direction} failed its check: error {verdict.error:.2g}")

    def broke(self, impl: str, direction: str, error: Exception) -> None:
        """A row without numbers, and the reason."""
        self.row(impl, direction, None, None, None)
        self.note(impl, f"{direction} raised {reason(error)}")

    def note(self, impl: str, text: str) -> None:
        self.result.notes.append(f"{self.case.name}, {impl}: {text}")


def _timed(contender: Contender, direction: str, tensors: Tensors) -> Callable[[], Any]:
    if direction == "fwd" or contender.backward is None:
        return contender.forward
    gradient, dout = contender.backward, tensors.dout
    return lambda: gradient(dout)


def _short(value: float) -> float:
    """Four significant digits: more would be noise in a committed file."""
    return float(f"{value:.4g}")


def _free(device: str) -> None:
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()
