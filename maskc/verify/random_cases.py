"""Random cases of a mask's kernels: drawn and shrunk by Hypothesis, or drawn alone without it.

`maskc verify`, `maskc test` and `maskc.testing.check` run them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from maskc.core.data import CuSeqlens, DataKind, Parents
from maskc.core.errors import MaskcError
from maskc.core.problem import Direction
from maskc.questions.lengths import fixed_lengths
from maskc.verify.case import Case, ranks_by_qk
from maskc.verify.case_lengths import MARGIN, Lengths
from maskc.verify.case_tensors import (
    STRIDES,
    CaseTensors,
    has_torch,
    host,
    laid,
    moved,
    numpy_dtype,
)
from maskc.verify.full_judge import FullJudge
from maskc.verify.samples import sample_data, true_mask

if TYPE_CHECKING:
    from maskc.dsl.mask import Mask
    from maskc.runtime.compiled import CompiledMask

T = TypeVar("T")

FEATURES = ("softcap", "alibi_slopes", "sink_logits")
"""Options that change the scores; they are drawn together, so that only one more kernel is
built."""
OPTIONS: tuple[tuple[str, ...], ...] = ((), ("scale",), FEATURES, (*FEATURES, "scale"))
"""Sets of options that are drawn."""

_PAIRS = 1 << 16
"""Pairs of a drawn case, on all heads and sequences."""
_SECONDS = 20.0
"""The time limit of shrinking, in seconds."""


@dataclass(frozen=True)
class DrawnCase:
    """A random case; every number shrinks towards the first one of its range."""

    n_q: int
    n_kv: int
    batch: int
    heads: int
    kv_heads: int
    options: tuple[str, ...]
    strides: str
    data_by_sequence: bool
    seed: int
    params: tuple[tuple[str, int], ...]
    dtype: str
    """The dtype of q, k and v."""
    data_as_tensors: bool = False
    """Whether the mask's data are tensors where q is, and not NumPy arrays on the host."""
    deterministic: bool = False
    """Whether the backward pass is deterministic."""
    planted: bool = False
    """Whether one key becomes NaN in a second call, which must not change a bit of queries that do
    not see it."""

    @property
    def size(self) -> tuple[int, ...]:
        """A measure by which the smaller of two cases is easier to read."""
        return (
            self.batch * self.heads * self.n_q * self.n_kv, len(self.options),
            STRIDES.index(self.strides), int(self.data_by_sequence), int(self.data_as_tensors),
            int(self.deterministic), int(self.planted), self.seed,
        )  # fmt: skip


@dataclass(frozen=True)
class MaskUnderTest:
    """The mask and the kernels that are verified."""

    name: str
    mask: Mask
    kernels: Mapping[str, CompiledMask]
    """The compiled mask by the dtype that it stores; cases shrink towards the first."""
    lengths: Lengths
    heads: int | None
    """Query heads, if the mask is written for a number of them."""
    params: tuple[tuple[str, int], ...]
    """Names and defaults of the parameters that may be drawn."""
    fixed_params: tuple[tuple[str, int], ...] = ()
    """The parameters that the user set."""
    emulated: bool = False
    """Whether CPU tensors replace tensors of a GPU."""
    pairs: int = _PAIRS
    """The most pairs of a drawn case, on all heads and sequences."""

    @property
    def device(self) -> str:
        """The device of tensors: `cpu` or `cuda`."""
        cuda = any(attn.target.language != "c" for attn in self.kernels.values())
        return "cuda" if cuda and not self.emulated else "cpu"


@dataclass(frozen=True)
class Mismatch:
    """A case in which the kernel is wrong."""

    case: DrawnCase
    part: str
    """`out`, `lse`, `dq`, `dk`, `dv`, `dsink`, `dalibi`; `planted` where NaN spread, and `call`
    where something was raised that is no refusal."""
    error: float
    """The error; for `planted`, the number of wrong queries."""
    allowed: float
    raised: str = ""
    """The error that was raised."""


@dataclass(frozen=True)
class Outcome:
    """The result of the drawn cases."""

    cases: int
    """The number of cases that were compared."""
    refused: int
    """The number of cases that the kernel rejects; `reason` is the error of the first."""
    reason: str
    mismatch: Mismatch | None
    """The smallest that was found."""
    shrunk: bool
    """Whether Hypothesis drew them."""


# ------------------------------------------------------------------ drawing


class Draw:
    """Draws numbers; `integer` shrinks to `least`, `one_of` to the first."""

    def __init__(self, integer: Callable[[int, int], int]) -> None:
        self.integer = integer

    def one_of(self, values: Sequence[T]) -> T:
        """One of the values."""
        return values[self.integer(0, len(values) - 1)]


def drawn(draw: Draw, subject: MaskUnderTest) -> DrawnCase:
    """A case of a mask: lengths around its constants, small ones first."""
    batch = draw.integer(1, 2)
    heads = subject.heads or draw.one_of((1, 2, 4))
    kv_heads = draw.one_of([n for n in (heads, heads // 2, 1) if n and heads % n == 0])
    n_q, n_kv = _lengths(draw, subject, batch * heads)
    near = (0, *subject.lengths.constants)
    values = tuple(
        (name, draw.one_of((default, 0, 1, *near)) if draw.integer(0, 1) else default)
        for name, default in subject.params
    )
    options, strides = draw.one_of(OPTIONS), draw.one_of(STRIDES)
    by_sequence = bool(batch > 1 and draw.integer(0, 1))
    seed, dtype = draw.integer(0, 99), draw.one_of(list(subject.kernels))
    as_tensors, deterministic, planted = (bool(draw.integer(0, 1)) for _ in range(3))
    return DrawnCase(
        n_q, n_kv, batch, heads, kv_heads, options, strides, by_sequence, seed, values, dtype,
        as_tensors and has_torch(), deterministic, planted,
    )  # fmt: skip


def _lengths(draw: Draw, subject: MaskUnderTest, slices: int) -> tuple[int, int]:
    """Draw queries and keys: equally many, or a few of one and more of the other."""
    fixed = fixed_lengths(subject.mask)
    if fixed:
        n_q, n_kv = (side[draw.integer(0, len(side) - 1)] for side in fixed)
        return n_q, n_kv
    near = (0, *subject.lengths.constants)
    pairs = max(subject.pairs // slices, 1)
    one = draw.one_of(near) + draw.integer(1, MARGIN)
    match draw.one_of(("square", "few queries", "few keys")):
        case "square" if one * one <= 4 * pairs:
            return one, one
        case "few keys":
            return one, draw.integer(1, max(pairs // one, 1))
    return draw.integer(1, max(pairs // one, 1)), one


# ------------------------------------------------------------------ one case

SCALES = (0.25, -0.125, 0.0)
"""Factors of q . k that are drawn, besides the usual one."""


def inputs(case: DrawnCase, subject: MaskUnderTest) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Draw q, k, v, dout, fp32 [B, H, N, D], and the options of a case.

    They are rounded to the dtype of the kernel, and, where q and k rank keys, to a grid on which
    their products are exact.
    """
    problem = subject.kernels[case.dtype].bundle.problem
    rng = np.random.default_rng(case.seed)
    rows = (case.batch, case.heads, case.n_q)
    columns = (case.batch, case.kv_heads, case.n_kv)
    of_q, of_v = problem.head_dim, problem.head_dim_v
    shapes = [(*rows, of_q), (*columns, of_q), (*columns, of_v), (*rows, of_v)]
    made: list[np.ndarray] = [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]
    if ranks_by_qk(subject.mask):
        made[:2] = [np.round(x * 16) / 16 for x in made[:2]]
    slopes = rng.uniform(0.01, 0.2, case.heads).astype(np.float32)
    sinks = rng.standard_normal(case.heads).astype(np.float32)
    scale = SCALES[case.seed % len(SCALES)]
    known = {"softcap": 3.0, "alibi_slopes": slopes, "sink_logits": sinks, "scale": scale}
    stored = numpy_dtype(problem.dtype.value)
    rounded = [x.astype(stored).astype(np.float32) for x in made]
    return rounded, {name: known[name] for name in case.options}


def data_for(case: DrawnCase, subject: MaskUnderTest) -> dict[str, Any]:
    """The data that the mask reads: the same for all sequences, or each with its own."""
    data = sample_data(subject.mask, case.n_q, case.n_kv, case.seed)
    if case.data_by_sequence:
        others = [
            sample_data(subject.mask, case.n_q, case.n_kv, case.seed + 100 * b)
            for b in range(1, case.batch)
        ]
        data = {
            name: _stacked([value, *(other[name] for other in others)])
            for name, value in data.items()
        }
    return {**data, **dict(case.params), **dict(subject.fixed_params)}


def _stacked(values: list[Any]) -> Any:
    """Vectors with a batch dimension in front; anything else stays that of the first sequence."""
    first = values[0]
    if isinstance(first, tuple):
        return tuple(_stacked([value[i] for value in values]) for i in range(len(first)))
    if isinstance(first, (Parents, CuSeqlens)):
        return type(first)(_stacked([value.array for value in values]))
    return np.stack(values) if isinstance(first, np.ndarray) and first.ndim == 1 else first


def _truth(
    case: DrawnCase, subject: MaskUnderTest, data: dict[str, Any], q: Any, k: Any
) -> np.ndarray:
    """The mask by the reference, bool [batch, heads, n_q, n_kv]."""
    problem = subject.kernels[case.dtype].bundle.problem
    whole = Case(
        subject.name, subject.mask, case.batch, case.heads, case.kv_heads, case.n_q, case.n_kv,
        problem.head_dim, problem.dtype, data,
    )  # fmt: skip
    keep = true_mask(whole, CaseTensors(q, k, None, None, "cpu"))
    keep = keep.reshape(masks_of(case, subject), -1, case.n_q, case.n_kv)
    return np.broadcast_to(keep, (case.batch, case.heads, case.n_q, case.n_kv))


def masks_of(case: DrawnCase, subject: MaskUnderTest) -> int:
    """The number of sequences that have a mask of their own; 1 where all have the same."""
    by_data = case.data_by_sequence and _has_vectors(subject.mask)
    return case.batch if by_data or ranks_by_qk(subject.mask) else 1


def _has_vectors(mask: Mask) -> bool:
    from maskc.dsl.nodes import walk

    vectors = (
        DataKind.documents, DataKind.flags, DataKind.intervals, DataKind.positions, DataKind.tree,
    )  # fmt: skip
    return any(d.kind in vectors for node in walk(mask) for d in node.decls)


def mismatch(case: DrawnCase, subject: MaskUnderTest) -> Mismatch | None:
    """Run a case, forward and (where the target has it) backward, and compare it with fp64.

    Raises:
        MaskcError: the kernel refuses it.
    """
    (q, k, v, dout), options = inputs(case, subject)
    data = data_for(case, subject)
    attn, device = subject.kernels[case.dtype], subject.device
    problem = attn.bundle.problem

    def sent(value: Any) -> Any:
        return _as_tensor(value, device) if case.data_as_tensors else value

    own_q, own_k, own_v, sent_dout = (
        laid(x, case.strides, problem.dtype, device) for x in (q, k, v, dout)
    )
    more = {name: moved(value, device) for name, value in options.items()}
    if subject.emulated:  # as on a GPU, where all of a call's tensors are
        more = {name: _as_tensor(value, device) for name, value in more.items()}
    more |= {name: sent(value) for name, value in data.items()}
    out, lse = attn(own_q, own_k, own_v, return_lse=True, **more)
    results = {"out": host(out), "lse": host(lse)}
    backward = Direction.backward in attn.target.directions
    if backward:
        parts = attn.backward(
            own_q, own_k, own_v, out, lse, sent_dout, deterministic=case.deterministic, **more
        )
        names = ["dq", "dk", "dv", *(x for name, x in GRADIENTS.items() if name in options)]
        results |= {name: host(part) for name, part in zip(names, parts, strict=True)}
    keep = _truth(case, subject, data, q, k)
    sent_back = dout if backward else None
    judge = FullJudge(q, k, v, keep, sent_back, problem.dtype, **options)
    for part, values in results.items():
        error, allowed = judge.error(part, values)
        if not error <= allowed:
            return Mismatch(case, part, error, allowed)
    if not case.planted or ranks_by_qk(subject.mask):
        return None
    key = case.seed % case.n_kv
    k[:, :, key] = np.nan
    again = host(attn(own_q, laid(k, case.strides, problem.dtype, device), own_v, **more))
    wrong = reached_wrongly(results["out"], again, keep[..., key])
    return Mismatch(case, "planted", wrong, 0.0) if wrong else None


def mismatch_or_raised(case: DrawnCase, subject: MaskUnderTest) -> Mismatch | None:
    """The mismatch, and whatever is raised that is no refusal: a kernel that hangs in the emulator,
    or a defect of maskc.

    Raises:
        MaskcError: the kernel refuses the case.
    """
    try:
        return mismatch(case, subject)
    except MaskcError:
        raise
    except Exception as error:
        return Mismatch(case, "call", float("inf"), 0.0, f"{type(error).__name__}: {error}")


GRADIENTS = {"sink_logits": "dsink", "alibi_slopes": "dalibi"}
"""The gradient of each option that has one."""


def reached_wrongly(clean: np.ndarray, spoilt: np.ndarray, sees: np.ndarray) -> int:
    """Queries that a key of NaN should have reached and did not, or whose bits it changed although
    they do not see it.

    Args:
        clean, spoilt: out [B, Hq, Nq, Dv] without and with it.
        sees: bool [B, Hq, Nq].
    """
    spread = np.isnan(spoilt).all(3)
    same = (spoilt == clean).all(3)
    return int(np.count_nonzero(~np.where(sees, spread, same)))


def _as_tensor(value: Any, device: str) -> Any:
    """Arrays as tensors of PyTorch on this device; anything else as it is."""
    if isinstance(value, tuple):
        return tuple(_as_tensor(part, device) for part in value)
    if isinstance(value, (Parents, CuSeqlens)):
        return type(value)(_as_tensor(value.array, device))
    if not isinstance(value, np.ndarray):
        return value
    import torch

    return torch.from_numpy(np.ascontiguousarray(value)).to(device)


# ------------------------------------------------------------------ many cases


class _Enough(BaseException):
    """Raised when drawing has used its time; Hypothesis lets a BaseException through."""


class _Wrong(Exception):
    """A case is wrong: Hypothesis looks for a smaller one."""


class _Watch:
    """Tries cases and keeps the smallest wrong one."""

    def __init__(
        self, subject: MaskUnderTest, seconds: float | None, tell: Callable[[int], object]
    ) -> None:
        self.subject, self._seconds, self._tell = subject, seconds, tell
        self.cases = self.refused = 0
        self.reason = ""
        self.best: Mismatch | None = None
        self._until: float | None = None  # known after the first case, which builds the kernel

    def tried(self, case: DrawnCase) -> bool:
        """Whether a case is right; a rejected case counts as right.

        Raises:
            _Enough: the time limit for drawing or shrinking is exceeded.
        """
        if self._until is not None and monotonic() > self._until:
            raise _Enough
        self._tell(self.cases + self.refused)
        try:
            mismatch = mismatch_or_raised(case, self.subject)
        except MaskcError as refusal:
            self.refused += 1
            self.reason = self.reason or f"{refusal.code} {refusal.finding}"
            return True
        finally:
            limit = self._seconds if self.best is None else _SECONDS
            if self._until is None and limit is not None:
                self._until = monotonic() + limit
        self.cases += self.best is None
        if mismatch is None:
            return True
        if self.best is None:
            self._until = None  # looking for a smaller one has time of its own
        if self.best is None or case.size < self.best.case.size:
            self.best = mismatch
        return False


def try_cases(
    subject: MaskUnderTest, count: int, seed: int, seconds: float | None = None,
    tell: Callable[[int], object] = lambda done: None,
) -> Outcome:  # fmt: skip
    """Draw cases until one is wrong, and shrink that one.

    Args:
        count: limit on the number of cases.
        seed: the same seed, the same cases.
        seconds: time limit for drawing; None: no limit. Shrinking may take 20 seconds more.
        tell: called before each case with the number of cases so far.
    """
    watch = _Watch(subject, seconds, tell)
    shrinks = find_spec("hypothesis") is not None
    with suppress(_Enough), _nothing_left_behind():
        _by_hypothesis(watch, count, seed) if shrinks else _by_numpy(watch, count, seed)
    if watch.best is not None:
        watch.best = _simplest(watch.best, subject)
    return Outcome(watch.cases, watch.refused, watch.reason, watch.best, shrinks)


@contextmanager
def _nothing_left_behind() -> Iterator[None]:
    """Keep Hypothesis from writing notes into the working directory."""
    if _STORAGE in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="maskc-", ignore_cleanup_errors=True) as folder:
        os.environ[_STORAGE] = folder
        try:
            yield
        finally:
            del os.environ[_STORAGE]


_STORAGE = "HYPOTHESIS_STORAGE_DIRECTORY"


def _by_numpy(watch: _Watch, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    draw = Draw(lambda least, most: int(rng.integers(least, most + 1)))
    for _ in range(count):
        if not watch.tried(drawn(draw, watch.subject)):
            return


def _by_hypothesis(watch: _Watch, count: int, seed: int) -> None:
    import hypothesis
    from hypothesis import strategies as st

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count, database=None, deadline=None, report_multiple_bugs=False,
        print_blob=False, verbosity=hypothesis.Verbosity.quiet,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
    )  # fmt: skip
    @hypothesis.given(st.data())
    def trial(data: st.DataObject) -> None:
        draw = Draw(lambda least, most: data.draw(st.integers(least, most)))
        if not watch.tried(drawn(draw, watch.subject)):
            raise _Wrong

    with suppress(_Wrong, hypothesis.errors.Flaky):  # a kernel that is wrong at times is wrong
        trial()


def _simplest(mismatch: Mismatch, subject: MaskUnderTest) -> Mismatch:
    """Simplify a case, one property after another, as long as it stays wrong.

    Hypothesis shrinks what was drawn, and draws squares more simply than single rows.
    """
    best, left = mismatch, _SIMPLER
    candidates = _simpler(best.case, subject)
    while left and (case := next(candidates, None)) is not None:
        left -= 1
        with suppress(MaskcError):
            again = mismatch_or_raised(case, subject)
            if again is not None:
                best, candidates = again, _simpler(again.case, subject)
    return best


_SIMPLER = 60
"""Cases that are tried in the end, at most."""


def _simpler(case: DrawnCase, subject: MaskUnderTest) -> Iterator[DrawnCase]:
    """Yield cases with one property simplified, the largest simplification first."""
    if case.batch > 1:
        yield replace(case, batch=1, data_by_sequence=False)
    if subject.heads is None and case.heads > 1:
        yield replace(case, heads=1, kv_heads=1)
        yield replace(case, heads=case.heads // 2, kv_heads=min(case.kv_heads, case.heads // 2))
    if case.kv_heads < case.heads:
        yield replace(case, kv_heads=case.heads)
    for option in case.options:
        yield replace(case, options=tuple(name for name in case.options if name != option))
    if case.strides != STRIDES[0]:
        yield replace(case, strides=STRIDES[0])
    for name in ("planted", "deterministic", "data_as_tensors", "data_by_sequence"):
        if getattr(case, name):
            changed: dict[str, Any] = {name: False}
            yield replace(case, **changed)
    for name in ("n_q", "n_kv"):
        length = getattr(case, name)
        steps = [length - 1, *(length >> i for i in range(1, length.bit_length()))]
        yield from (replace(case, **{name: length - step}) for step in dict.fromkeys(steps) if step)
