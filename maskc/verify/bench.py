"""One mask, timed beside dense attention and masked attention of PyTorch, every result checked.

Comparisons with more libraries, suites of masks and the cost model's fit are in the folder
`benchmarks/` of a checkout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from maskc import driver
from maskc.core.errors import UsageMistake
from maskc.core.problem import Direction
from maskc.core.target import Target
from maskc.verify import rivals
from maskc.verify.case import Case
from maskc.verify.judge import (
    Judge,
    Verdict,
    judged_backward,
    judged_forward,
    make_judge,
    sample_rows,
)
from maskc.verify.mask_mod import mask_mod
from maskc.verify.memory import peak_bytes
from maskc.verify.pairs import Pairs
from maskc.verify.samples import true_mask
from maskc.verify.tensors import Tensors, device_of, has_torch, make_tensors
from maskc.verify.timing import Timed, take_turns

if TYPE_CHECKING:
    from maskc.runtime.compiled import CompiledMask

RIVALS = {
    "dense": "SDPA without a mask: what leaving the mask out would cost",
    "sdpa_masked": "SDPA with the mask as booleans",
    "flex": "compiled FlexAttention with the same formula",
    "unfused": "scores, mask, softmax and product one after another, all of it stored",
    "sparse": "torch.sparse in fp32: sampled product, softmax of rows, product; forward only",
    "cudnn_flex": "cuDNN's flex attention, by runs of keys for each query, on GPUs",
}
"""What the mask is timed beside, where PyTorch is installed."""

_MASK_BYTES = 1 << 28
"""Largest boolean mask handed to SDPA."""
_ROWS = 1024
"""Rows of it that are made at once."""
_RANKED_PAIRS = 1 << 28
"""Pairs up to which the reference ranks keys that are chosen at run time."""

Row = dict[str, Any]
Scope = Callable[[], AbstractContextManager[Any]]
Keep = Callable[[int, int, np.ndarray], np.ndarray]
"""(batch, head, rows) -> bool [rows, n_kv]."""


@dataclass(frozen=True, eq=False)
class Runner:
    """One implementation with its inputs."""

    name: str
    forward: Callable[[], Any]
    """Gives out, or (out, lse)."""
    backward: Callable[[Any], tuple[Any, ...]] | None
    """A function from dout to (dq, dk, dv); None where there is no backward pass."""
    sees_all: bool = False
    """Whether it computes attention to every key, whatever the mask."""


def bench_mask(
    case: Case, target: Target, directions: tuple[str, ...] = ("fwd", "bwd"), repeats: int = 20,
    progress: Callable[[str], object] = lambda text: None, *, nvtx: bool = False,
    without: Collection[str] = (),
) -> tuple[list[Row], list[str]]:  # fmt: skip
    """Time a mask and check it.

    Args:
        case: mask, sizes, dtype and data.
        target: what the mask is compiled for; it decides where everything runs.
        directions: among "fwd" and "bwd"; a direction that the target lacks is left out.
        repeats: rounds of the timing, at least 1.
        progress: told, in a few words, what happens next.
        nvtx: mark the calls of each implementation as ranges for profilers, where PyTorch has CUDA.
        without: rivals to leave out.

    Returns:
        (rows, notes). A row has case, impl, direction, n_q, n_kv, pairs (live ones of the whole
        call), ms [ms a call], live_tflops (live pairs, for every implementation), tokens_per_s
        (queries of all sequences), peak_bytes (see `peak_bytes`; None where that is unknown),
        error (the largest of sampled rows against fp64) and ok. Notes say what was left out, and
        why.

    Raises:
        MaskcError: the mask, its data or the sizes are refused.
    """
    notes: list[str] = []
    progress(f"{case.name}: compiling for {target.name}")
    attn = case.mask.compile(
        case.head_dim, case.head_dim_v, n_heads=case.heads, dtype=case.dtype, target=target.name,
        tile=case.tile, stages=case.stages,
    )  # fmt: skip
    attn.warmup()
    tensors, rows = make_tensors(case, device_of(target)), sample_rows(case.n_q, case.n_kv)
    progress(f"{case.name}: counting pairs")
    pairs = None if driver.selects(case.mask) else Pairs(case)
    keep, live = keep_and_live(case, tensors, pairs)
    found: list[Row] = []
    if "bwd" in directions and Direction.backward not in target.directions:
        notes.append(f"{case.name} bwd: target {target.name} has no such kernels")
        directions = tuple(each for each in directions if each != "bwd")
    runners = [_maskc(case, tensors, attn, "bwd" in directions)]
    runners += _rivals(case, tensors, pairs, "bwd" in directions, notes, frozenset(without))
    if nvtx and (why := _no_ranges()):
        nvtx = False
        notes.append(f"{case.name}, nvtx: {why}")
    everything = np.ones((len(rows), case.n_kv), dtype=bool)

    @cache
    def judge(sees_all: bool) -> Judge:
        seen = (lambda b, h: everything) if sees_all else (lambda b, h: keep(b, h, rows))
        return make_judge(case, tensors, rows, seen, "bwd" in directions)

    for direction in directions:
        progress(f"{case.name}: checking and timing {direction}")
        checked = {}
        for runner in runners:
            if direction == "bwd" and runner.backward is None:
                notes.append(f"{case.name}, {runner.name}: it has no backward here")
                continue
            try:
                verdict = _judged(judge(runner.sees_all), tensors, rows, runner, direction)
            except Exception as error:  # whatever a rival raises is its own failure
                if runner.name == "maskc":
                    raise
                notes.append(f"{case.name}, {runner.name}: {direction} raised {_reason(error)}")
                continue
            checked[runner.name] = runner, verdict
        timed = {
            name: _timed(
                runner, direction, tensors, _range(case, name, direction) if nvtx else None
            )
            for name, (runner, _) in checked.items()
        }
        peaks = {name: peak_bytes(each.run, tensors.device) for name, each in timed.items()}
        for name, ms in take_turns(timed, repeats, tensors.device).items():
            verdict = checked[name][1]
            speed = case.flops(live, direction) / ms / 1e9
            finite = bool(np.isfinite(verdict.error))
            found.append({
                "case": case.name, "impl": name, "direction": direction, "n_q": case.n_q,
                "n_kv": case.n_kv, "pairs": live, "ms": short(ms), "live_tflops": short(speed),
                "tokens_per_s": short(case.batch * case.n_q / ms * 1e3), "peak_bytes": peaks[name],
                "error": short(verdict.error) if finite else None, "ok": verdict.ok,
            })  # fmt: skip
    return found, notes


def keep_and_live(case: Case, tensors: Tensors, pairs: Pairs | None = None) -> tuple[Keep, int]:
    """Which pairs the mask keeps, row by row, and how many of the whole call.

    Raises:
        UsageMistake: ranking keys in the reference would take minutes.
    """
    if driver.selects(case.mask):
        return _chosen(case, tensors)
    pairs = pairs or Pairs(case)
    return pairs.rows, pairs.live()


def short(value: float) -> float:
    """Four significant digits: more would be noise."""
    return float(f"{value:.4g}")


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".split("\n")[0][:200]


def _chosen(case: Case, tensors: Tensors) -> tuple[Keep, int]:
    """The mask of keys that are chosen at run time, by the reference, and its pairs.

    Raises:
        UsageMistake: ranking in the reference would take minutes.
    """
    pairs = case.batch * case.heads * case.n_q * case.n_kv
    if pairs > _RANKED_PAIRS:
        hint = "give a smaller --n, --heads or --batch"
        raise UsageMistake(f"a choice among {pairs} pairs takes too long to check", hint, at="--n")
    found = true_mask(case, tensors).reshape(-1, case.heads, case.n_q, case.n_kv)
    whole = np.broadcast_to(found, (case.batch, *found.shape[1:]))
    return lambda b, h, rows: whole[b, h][rows], int(np.count_nonzero(whole))


def _judged(
    judge: Judge, tensors: Tensors, rows: np.ndarray, runner: Runner, direction: str
) -> Verdict:
    result = runner.forward()
    if direction == "fwd" or runner.backward is None:
        return judged_forward(judge, rows, result)
    out = result[0] if isinstance(result, tuple) else result
    return judged_backward(judge, rows, tensors, runner.backward, out)


def _timed(
    runner: Runner, direction: str, tensors: Tensors, scope: Scope | None = None
) -> Timed:  # fmt: skip
    gradient = runner.backward
    if direction == "fwd" or gradient is None:
        return Timed(runner.forward, scope or nullcontext)
    return Timed(lambda: gradient(tensors.dout), scope or nullcontext)


def _no_ranges() -> str:
    """Why no NVTX range can be marked; nothing where it can."""
    if not has_torch():
        return "PyTorch, which marks ranges, is not installed"
    import torch

    return "" if torch.cuda.is_available() else "PyTorch has no GPU here, so no range is marked"


def _range(case: Case, name: str, direction: str) -> Scope:
    """A range around the calls of one implementation, as profilers show it."""
    import torch

    text = f"{case.name} {case.n_q}x{case.n_kv} {direction} {name}"
    return partial(torch.cuda.nvtx.range, text)


# ------------------------------------------------------------------ what runs


def _maskc(case: Case, tensors: Tensors, attn: CompiledMask, backward: bool) -> Runner:
    data: dict[str, Any] = dict(case.data)
    call = partial(attn, *tensors.qkv, return_lse=True, **data)
    kept = cache(call)

    def gradient(dout: Any) -> tuple[Any, ...]:
        out, lse = kept()
        found: tuple[Any, ...] = attn.backward(*tensors.qkv, out, lse, dout, **data)
        return found

    return Runner("maskc", call, gradient if backward else None)


def _rivals(
    case: Case, tensors: Tensors, pairs: Pairs | None, backward: bool, notes: list[str],
    without: Collection[str],
) -> Iterator[Runner]:  # fmt: skip
    """The RIVALS that can run the case; the others become notes."""
    if not has_torch():
        notes.append(f"{case.name}, rivals: PyTorch is not installed")
        return
    from torch.nn.functional import scaled_dot_product_attention

    sdpa = partial(scaled_dot_product_attention, enable_gqa=case.group > 1)
    if "dense" not in without:
        yield _differentiated("dense", sdpa, tensors, backward, sees_all=True)
    if pairs is None:
        notes.append(f"{case.name}, rivals but dense: keys are chosen at run time")
        return
    table = boolean_mask(case, tensors, pairs)
    for name in RIVALS:
        if name == "dense" or name in without:
            continue
        try:
            if name == "flex":
                yield _flex(case, tensors, pairs, backward)
                continue
            call, own = _call(name, case, tensors, pairs, table, backward)
            yield _differentiated(name, call, tensors, own)
        except rivals.Unavailable as why:
            notes.append(f"{case.name}, {name}: {why}")
        except Exception as error:  # its compiler may be missing, or refuse
            notes.append(f"{case.name}, {name}: {_reason(error)}")


def _call(
    name: str, case: Case, tensors: Tensors, pairs: Pairs, table: Any, backward: bool
) -> tuple[rivals.Call, bool]:
    """(a rival as a function of q, k and v, whether it has a backward that was asked for).

    Raises:
        rivals.Unavailable: it cannot run the case here.
    """
    from torch.nn.functional import scaled_dot_product_attention

    if name == "sparse":
        return rivals.sparse(case, tensors, pairs), False
    if name == "cudnn_flex":
        return rivals.cudnn_flex(case, tensors, pairs, backward), backward
    if table is None:
        raise rivals.Unavailable("its boolean mask would be too large")
    if name == "unfused":
        return rivals.unfused(case, tensors, table), backward
    sdpa = partial(scaled_dot_product_attention, enable_gqa=case.group > 1)
    return partial(sdpa, attn_mask=table), backward


def boolean_mask(case: Case, tensors: Tensors, pairs: Pairs, most: int = _MASK_BYTES) -> Any:
    """bool [B or 1, H or 1, n_q, n_kv] on the device; None where it would have more than `most`
    elements."""
    import torch

    shape = (
        case.batch if pairs.batched else 1, case.heads if pairs.by_head else 1, case.n_q, case.n_kv
    )  # fmt: skip
    if math.prod(shape) > most:
        return None
    mask = torch.empty(shape, dtype=torch.bool, device=tensors.q.device)
    for b, h in np.ndindex(shape[:2]):
        for start in range(0, case.n_q, _ROWS):
            rows = np.arange(start, min(start + _ROWS, case.n_q))
            mask[b, h, start : start + _ROWS] = torch.tensor(pairs.rows(b, h, rows))
    return mask


def _flex(case: Case, tensors: Tensors, pairs: Pairs, backward: bool) -> Runner:
    import torch
    import torch._functorch.config
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._functorch.config.donated_buffer = False  # the graph is differentiated many times
    blocks = create_block_mask(
        mask_mod(case, pairs, tensors.device), case.batch if pairs.batched else None,
        case.heads if pairs.by_head else None, case.n_q, case.n_kv, device=tensors.device,
    )  # fmt: skip
    compiled = torch.compile(flex_attention, dynamic=False)
    call = partial(compiled, block_mask=blocks, enable_gqa=case.group > 1)
    with torch.no_grad():
        call(*tensors.qkv)
    return _differentiated("flex", call, tensors, backward and tensors.device == "cuda")


def _differentiated(
    name: str, call: Callable[..., Any], tensors: Tensors, backward: bool, sees_all: bool = False
) -> Runner:
    import torch

    def forward() -> Any:
        with torch.no_grad():
            return call(*tensors.qkv)

    return Runner(name, forward, gradient_of(call, tensors) if backward else None, sees_all)


def gradient_of(call: Callable[..., Any], tensors: Tensors) -> Callable[[Any], tuple[Any, ...]]:
    """The backward of call(q, k, v) alone: its forward runs once, when first asked."""
    import torch

    @cache
    def graph() -> tuple[Any, list[Any]]:
        leaves = [x.detach().requires_grad_() for x in tensors.qkv]
        return call(*leaves), leaves

    def gradient(dout: Any) -> tuple[Any, ...]:
        out, leaves = graph()
        found: tuple[Any, ...] = torch.autograd.grad(out, leaves, dout, retain_graph=True)
        return found

    return gradient
