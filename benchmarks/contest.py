"""One case: its contenders, checked, then timed in turns. What breaks becomes a row saying so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import phases
from benchmarks.heads import HeadJudges, confirm
from benchmarks.report import reason
from benchmarks.rivals import GPU_ONLY, make_rival, maskc_contenders
from maskc.core.problem import Direction
from maskc.core.target import Target
from maskc.driver import selects
from maskc.lab.bench import short
from maskc.lab.case_pairs import CasePairs
from maskc.lab.rivals import Contender, Key, Missing, Unavailable
from maskc.verify.case import Case
from maskc.verify.case_tensors import CaseTensors, has_torch, like
from maskc.verify.judge import (
    CaseVerdict,
    Judge,
    judged_backward,
    judged_forward,
    make_judge,
    worst,
)
from maskc.verify.timing import SECONDS, Timed, peak_bytes, take_turns

if TYPE_CHECKING:
    from maskc.runtime.compiled import CompiledMask

Progress = Callable[[str], object]
MATMUL: Key = ("matmul", "")
"""A bf16 product that takes its turns too: what the card gives in the same rounds."""
_MATMUL_SIZE = 8192


@dataclass(frozen=True)
class Ask:
    """What is to be measured, and how long it may take."""

    target: Target
    directions: tuple[str, ...] = ("fwd", "bwd")
    impls: tuple[str, ...] = ("maskc",)
    repeats: int = 20
    """Rounds of the timing."""
    seconds: float = SECONDS
    """What one rival may spend in all rounds of a direction."""
    progress: Progress = lambda text: None
    rivals_anyway: bool = False
    """Whether rivals are measured where maskc cannot compile the case or lacks a direction."""
    compile_ms: float | None = None
    """What compiling the mask took elsewhere; None measures it here."""


@dataclass(eq=False)
class Measured:
    """What one case gave."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was left out, and what failed and how."""
    about: dict[str, Any] = field(default_factory=dict)
    """Sizes, live pairs, how results were checked."""


class Contest:
    """The steps of one case."""

    def __init__(
        self, case: Case, ask: Ask, tensors: CaseTensors, pairs: CasePairs, rows: np.ndarray,
        result: Measured,
    ) -> None:  # fmt: skip
        self.case, self.ask, self.tensors, self.pairs = case, ask, tensors, pairs
        self.rows, self.result = rows, result
        self.live = pairs.live()
        self.backward = "bwd" in ask.directions
        self.of_maskc: dict[str, Any] = {"target": ask.target.name}
        """What rows of maskc say besides."""
        self.predicted: dict[str, float] = {}
        """Milliseconds of maskc by direction, where the cost model knows them."""
        self._plan_ms: dict[str, float] = {}
        self._sources: dict[tuple[Key, str], tuple[str, ...]] = {}
        self._judges: dict[tuple[bool, float], Judge] = {}
        self._heads: dict[float, HeadJudges] = {}
        self._verdicts: dict[tuple[Key, str], CaseVerdict] = {}
        self._whole = tensors.device == "cuda" and not selects(case.mask)
        if self._whole:
            confirm(case, tensors, pairs, rows, self.live)

    def judge(self, contender: Contender | None = None) -> Judge:
        """This judges sampled rows of what a contender computes; None: of what is asked for."""
        keeps_all = contender is not None and contender.keeps_all
        key = keeps_all, self._alpha(contender)
        if key not in self._judges:
            everything = np.ones((len(self.rows), self.case.n_kv), dtype=bool)
            everything = like(self.tensors.q, everything)  # once, not for every head
            self._judges[key] = make_judge(
                replace(self.case, alpha=key[1]), self.tensors, self.rows,
                lambda b, h: everything if keeps_all else self.pairs.rows(b, h, self.rows),
                self.backward,
            )  # fmt: skip
        return self._judges[key]

    def heads(self, contender: Contender | None = None) -> HeadJudges | None:
        """The judges of whole heads; None where they take too long (on a CPU, and where keys are
        chosen at run time), and for contenders that compute another mask."""
        if not self._whole or (contender is not None and contender.keeps_all):
            return None
        alpha = self._alpha(contender)
        if alpha not in self._heads:
            case = replace(self.case, alpha=alpha)
            self._heads[alpha] = HeadJudges(case, self.tensors, self.pairs, self.backward)
        return self._heads[alpha]

    def _alpha(self, contender: Contender | None) -> float:
        known = None if contender is None else contender.alpha
        return self.case.alpha if known is None else known

    # -------------------------------------------------------------- contenders

    def contenders(self, attn: CompiledMask | None) -> list[Contender]:
        """Everything that can run; the rest becomes notes, and rows where it broke."""
        impls, found = self.ask.impls, []
        if attn is not None and "maskc" in impls:
            backward = self.backward and Direction.backward in self.ask.target.directions
            found += maskc_contenders(self.case, self.tensors, attn, backward)
            found += self._known_before()
        elsewhere = ("maskc",) if self.tensors.device == "cuda" else ("maskc", *GPU_ONLY)
        others = [impl for impl in impls if impl not in elsewhere]
        if others and not has_torch():
            self.note("rivals", "PyTorch is not installed")
            return found
        for impl in others:
            self.say(f"preparing {impl}")
            try:
                made = make_rival(impl, self.case, self.tensors, self.pairs, self.backward)
            except Missing as error:
                self.result.notes.append(f"{impl}: {error}")
            except Unavailable as error:
                self.note(impl, str(error))
            except Exception as error:  # whatever a rival raises is its own failure
                for direction in self.ask.directions:
                    self.broke((impl, ""), direction, reason(error))
            else:
                found += [made, *made.also] if made is not None else []
        return found

    def _known_before(self) -> list[Contender]:
        """maskc with what is chosen known before, where its own backward is not asked for."""
        if not selects(self.case.mask) or self.backward:
            return []
        self.say("choosing blocks before")
        try:
            made = phases.static_contender(self.case, self.tensors, self.pairs, self.ask.target)
        except Exception as error:
            self.broke(("maskc", "static"), "fwd", reason(error))
            return []
        return [] if made is None else [made]

    # -------------------------------------------------------------- checks

    def check(self, contenders: list[Contender]) -> None:
        """Run every contender and judge what it gives."""
        for contender in contenders:
            self.say(f"checking {' '.join(contender.key).strip()}")
            for direction in self.ask.directions:
                if not contender.runs(direction):
                    self._absent(contender, direction)
                    continue
                judged = self._forward if direction == "fwd" else self._backward
                try:
                    with contender.scope():
                        verdict = judged(contender)
                except Exception as error:
                    self.broke(contender.key, direction, reason(error))
                    continue
                self._verdicts[contender.key, direction] = verdict
                self._sources[contender.key, direction] = contender.sources()

    def _absent(self, contender: Contender, direction: str) -> None:
        if contender.variant:
            return
        if contender.impl == "maskc":
            text = f"target {self.ask.target.name} has no backward kernels"
            self.broke(contender.key, direction, text)
        else:
            self.note(contender.impl, "it has no backward here")

    def _forward(self, contender: Contender) -> CaseVerdict:
        start = perf_counter()
        found = contender.forward()
        if contender.key == ("maskc", ""):
            first = perf_counter() - start
            self._plan_ms["fwd"] = self._beyond_a_call(first, contender.forward)
        verdicts = [judged_forward(self.judge(contender), self.rows, found)]
        if (heads := self.heads(contender)) is not None:
            verdicts.append(heads.forward(found))
        return worst(verdicts)

    def _backward(self, contender: Contender) -> CaseVerdict:
        run, dout = contender.backward, self.tensors.dout
        attended = contender.forward or contender.attended
        found = attended() if attended else None
        out = found[0] if isinstance(found, tuple) else found
        if contender.key == ("maskc", ""):
            start = perf_counter()
            run(dout)
            self._plan_ms["bwd"] = self._beyond_a_call(perf_counter() - start, lambda: run(dout))
        verdicts = [judged_backward(self.judge(contender), self.rows, self.tensors, run, out)]
        if (heads := self.heads(contender)) is not None:
            verdicts.append(heads.backward(run(dout), out))
        return worst(verdicts)

    def _beyond_a_call(self, first: float, call: Callable[[], Any]) -> float:
        """Milliseconds that the host spent on a first call more than on another one."""
        self._wait()
        start = perf_counter()
        call()
        again = perf_counter() - start
        self._wait()
        return max(first - again, 0.0) * 1e3

    def _wait(self) -> None:
        if self.tensors.device == "cuda":
            import torch

            torch.cuda.synchronize()

    # -------------------------------------------------------------- times

    def time(self, contenders: list[Contender]) -> None:
        """Let what ran take turns; a failed check keeps its row, as failed."""
        for direction in self.ask.directions:
            ran = [c for c in contenders if (c.key, direction) in self._verdicts]
            if not ran:
                continue
            self.say(f"timing {direction} of {', '.join(' '.join(c.key).strip() for c in ran)}")
            try:
                self._take_turns(ran, direction)
            except Exception as error:  # out of memory, say; the other direction may still work
                for contender in ran:
                    self.broke(contender.key, direction, f"timing: {reason(error)}")

    def _take_turns(self, ran: list[Contender], direction: str) -> None:
        timed = {c.key: Timed(c.call(direction, self.tensors.dout), c.scope) for c in ran}
        memory = {key: self._peak(rival) for key, rival in timed.items()}
        parts = {key: self._phases(key, rival) for key, rival in timed.items()}
        if self.tensors.device == "cuda":
            timed[MATMUL] = Timed(_matmul())
        times = take_turns(timed, self.ask.repeats, self.tensors.device, self.ask.seconds)
        peak = None
        if MATMUL in times:
            peak = 2 * _MATMUL_SIZE**3 / times.pop(MATMUL) / 1e9
            self.result.about.setdefault("matmul_tflops", {})[direction] = short(peak)
        for key, ms in times.items():
            speed = self.case.flops(self.live, direction) / ms / 1e9
            more = {} if peak is None else {"matmul_share": short(speed / peak)}
            more |= {} if memory[key] is None else {"memory_mb": memory[key]}
            more |= {"phases_ms": parts[key]} if parts[key] else {}
            self.row(key, direction, ms, self._verdicts[key, direction], more)

    def _peak(self, rival: Timed) -> float | None:
        """MiB that a call takes beyond its inputs, by PyTorch's allocator; None on a CPU."""
        if self.tensors.device != "cuda":
            return None
        with rival.scope():
            most = peak_bytes(rival.run, "cuda")
        return None if most is None else short(most / 2**20)

    def _phases(self, key: Key, rival: Timed) -> dict[str, float]:
        """Milliseconds of choosing and attending, where maskc chooses on a GPU, and where it might
        have."""
        if key[0] != "maskc" or self.tensors.device != "cuda" or not selects(self.case.mask):
            return {}
        try:
            with rival.scope():
                found = phases.measured(rival.run)
        except Exception as error:  # its profiler is not everywhere allowed to see kernels
            self.note("maskc", f"its phases were not measured: {reason(error)}")
            return {}
        if not found:
            self.note("maskc", "its phases were not measured: no kernel was seen")
        return {name: short(ms) for name, ms in found.items()}

    # -------------------------------------------------------------- rows

    def row(
        self, key: Key, direction: str, ms: float | None, verdict: CaseVerdict | None,
        more: dict[str, Any],
    ) -> None:  # fmt: skip
        """Add a row: what every row has, then what is known besides."""
        impl, variant = key
        finite = verdict is not None and np.isfinite(verdict.error)
        speed = None if ms is None else self.case.flops(self.live, direction) / ms / 1e9
        found = {
            "case": self.case.name, "impl": impl, "direction": direction,
            "ms": None if ms is None else short(ms),
            "live_tflops": None if speed is None else short(speed),
            "error": short(verdict.error) if finite else None,
            "ok": bool(verdict and verdict.ok),
        }  # fmt: skip
        found |= {"variant": variant} if variant else {}
        if impl == "maskc":
            found |= self._besides(direction, variant, speed)
        self.result.rows.append(found | more)
        if verdict is not None and not verdict.ok:
            what = f"{variant} {direction}".strip()
            self.note(impl, f"{what} failed its check: error {verdict.error:.2g}")

    def _besides(self, direction: str, variant: str, speed: float | None) -> dict[str, Any]:
        other = ("tile_pairs", "compile_ms") if variant == "static" else ("tile_pairs",)
        found = {name: x for name, x in self.of_maskc.items() if name not in other}
        area = self.of_maskc.get("tile_pairs")
        if area and speed is not None:
            found["tile_tflops"] = short(speed * area / self.live) if self.live else None
        if sources := self._sources.get((("maskc", variant), direction)):
            found["sources"] = list(sources)
        if not variant:
            known = {"plan_ms": self._plan_ms, "predicted_ms": self.predicted}
            found |= {name: short(x[direction]) for name, x in known.items() if direction in x}
        return found

    def broke(self, key: Key, direction: str, text: str) -> None:
        """A row without numbers, and the reason."""
        self.row(key, direction, None, None, {"raised": text})
        self.note(" ".join(key).strip(), f"{direction} raised {text}")

    def note(self, impl: str, text: str) -> None:
        """Something a reader should know about an implementation on this case."""
        self.result.notes.append(f"{self.case.name}, {impl}: {text}")

    def say(self, text: str) -> None:
        """Progress."""
        self.ask.progress(f"{self.case.name}: {text}")


def _matmul() -> Callable[[], Any]:
    import torch

    shape, options = (_MATMUL_SIZE, _MATMUL_SIZE), {"device": "cuda", "dtype": torch.bfloat16}
    left, right = (torch.randn(shape, **options) for _ in range(2))
    out = torch.empty(shape, **options)
    return lambda: torch.matmul(left, right, out=out)
