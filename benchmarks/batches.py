"""`python -m benchmarks.batches [ROW ...]`: masks that come with the batch, their data on the GPU.

Every row is checked against fp64 on one head, then timed in turns with FlexAttention, whose block
masks are made beforehand. maskc makes its lists inside the call: `maskc` finds the arrays as they
were at the last call, `maskc, changed` is told before each one that somebody wrote into them. Lists
alone are timed in a CUDA graph of twenty makings. Host time is of calls whose kernels nobody waits
for.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

import maskc as mc
from benchmarks import cudnn_flex
from benchmarks.contender import Missing, Unavailable, tokens_first
from benchmarks.fa4 import installed
from maskc.runtime.device_lists.lists_launch import ListsPlan
from maskc.verify.tensors import Tensors
from maskc.verify.timing import Timed, take_turns

Data = dict[str, Any]
MaskMod = Callable[[Any, Any, Any, Any], Any]
_ROUNDS, _MAKINGS, _CALLS, _CHUNK = 20, 20, 100, 512
_REFUSALS = (Unavailable, RuntimeError, TypeError, ValueError, ImportError)
"""What peers raise that do not run a row."""
_TOLERANCE = 2e-2
"""Relative errors from which a peer computes something else."""


@dataclass(frozen=True)
class Row:
    """A mask, its sizes, its data, and the same mask as a FlexAttention user writes it."""

    name: str
    mask: Callable[[], mc.Mask]
    sizes: tuple[int, int, int, int, int]
    """Sequences, query heads, key/value heads, keys, head dimension."""
    data: Callable[[np.random.Generator, int, int], Data]
    """A function of a generator, sequences and keys to the arrays."""
    mask_mod: Callable[[Data], MaskMod]
    n_q: int = 0
    """The queries; 0: as many as keys."""

    @property
    def lengths(self) -> tuple[int, int]:
        """Queries and keys."""
        return self.n_q or self.sizes[3], self.sizes[3]


# ------------------------------------------------------------------ data


def _lengths(rng: np.random.Generator, batch: int, n: int) -> np.ndarray:
    return rng.integers(n // 4, n + 1, (batch, 1))


def _flags(rng: np.random.Generator, batch: int, n: int) -> Data:
    return {"pad": np.arange(n) < _lengths(rng, batch, n)}


def _ends(rng: np.random.Generator, batch: int, n: int) -> Data:
    last = np.broadcast_to(_lengths(rng, batch, n), (batch, n)).astype(np.int32)
    return {"span": (np.zeros_like(last), last.copy())}


def _prefixes(rng: np.random.Generator, batch: int, n: int) -> Data:
    last = np.broadcast_to(rng.integers(64, n // 2, (batch, 1)), (batch, n)).astype(np.int32)
    return {"span": (np.zeros_like(last), last.copy())}


def _ids(rng: np.random.Generator, batch: int, n: int, mean: int = 900) -> np.ndarray:
    rows = []
    for _ in range(batch):
        sizes = np.maximum(rng.lognormal(np.log(mean) - 0.5, 1, 8 * n // mean + 8).astype(int), 1)
        ends = np.cumsum(sizes)
        rows.append(np.searchsorted(ends, np.arange(n), side="right"))
    return np.stack(rows).astype(np.int32)


def _images(rng: np.random.Generator, batch: int, n: int) -> Data:
    """The end of each token's image, of 256 tokens each; text ends at itself."""
    first, last = np.stack([np.arange(n)] * batch), np.stack([np.arange(n)] * batch)
    for low, high in zip(first, last, strict=True):
        for start in range(int(rng.integers(0, 500)), n - 256, 1100):
            low[start : start + 256], high[start : start + 256] = start, start + 255
    return {"span": (first.astype(np.int32), (last + 1).astype(np.int32))}


def _table(block: int) -> Callable[[np.random.Generator, int, int], Data]:
    def made(rng: np.random.Generator, batch: int, n: int) -> Data:
        side = -(-n // block)
        table = rng.random((batch, 1, side, side)) < 0.2
        return {"table": table | np.eye(side, dtype=bool)}

    return made


def _tree(rng: np.random.Generator, batch: int, n: int, draft: int = 64) -> Data:
    """A chain of `n - draft` tokens, then a random tree of drafts below its end."""
    tin, tout = np.zeros((batch, n), np.int32), np.zeros((batch, n), np.int32)
    for enter, leave in zip(tin, tout, strict=True):
        trunk, path = n - draft, list[int]()
        enter[:], leave[:trunk] = np.arange(n), n
        for token in range(trunk, n):
            while path and rng.random() < 0.4:
                leave[path.pop()] = token
            path.append(token)
        leave[path] = n
    return {"tree": (tin, tout)}


# ------------------------------------------------------------------ rows


def _in_window(q: Any, k: Any, size: int) -> Any:
    return (k <= q) & (q - k < size)


ROWS = (
    Row("padding, flags", lambda: mc.flags("pad") & mc.causal(), (8, 16, 16, 4096, 128), _flags,
        lambda d: lambda b, h, q, k: (k <= q) & d["pad"][b, k]),
    Row("padding, intervals", lambda: mc.intervals("span") & mc.causal(), (8, 16, 16, 4096, 128),
        _ends, lambda d: lambda b, h, q, k: (k <= q) & (k < d["span"][1][b, q])),
    Row("prefix", lambda: mc.intervals("span") | mc.causal(), (8, 16, 16, 2048, 128), _prefixes,
        lambda d: lambda b, h, q, k: (k <= q) | (k < d["span"][1][b, q])),
    Row("padding, documents, window 512",
        lambda: mc.flags("pad") & mc.documents("doc") & mc.window.hf(512), (8, 32, 8, 4096, 128),
        lambda rng, batch, n: {**_flags(rng, batch, n), "doc": _ids(rng, batch, n)},
        lambda d: lambda b, h, q, k: (
            _in_window(q, k, 512) & d["pad"][b, k] & (d["doc"][b, q] == d["doc"][b, k])
        )),
    Row("packed documents", lambda: mc.documents("doc") & mc.causal(), (1, 32, 8, 16384, 128),
        lambda rng, batch, n: {"doc": _ids(rng, batch, n)},
        lambda d: lambda b, h, q, k: (k <= q) & (d["doc"][b, q] == d["doc"][b, k])),
    Row("images in a window",
        lambda: mc.window.hf(1024) | (mc.intervals("span") & mc.window(1023, 1023)),
        (1, 8, 4, 8192, 256), _images,
        lambda d: lambda b, h, q, k: _in_window(q, k, 1024) | (
            (d["span"][0][b, q] <= k) & (k < d["span"][1][b, q])
        )),
    Row("block table, 64", lambda: mc.block_table("table", 64), (4, 16, 16, 8192, 128), _table(64),
        lambda d: lambda b, h, q, k: d["table"][b, 0, q // 64, k // 64]),
    Row("block table, 128", lambda: mc.block_table("table", 128), (4, 16, 16, 8192, 128),
        _table(128), lambda d: lambda b, h, q, k: d["table"][b, 0, q // 128, k // 128]),
    Row("tree of 64 behind 8k", lambda: mc.tree("tree"), (8, 32, 8, 8256, 128), _tree,
        lambda d: lambda b, h, q, k: (
            (d["tree"][0][b, k] <= d["tree"][0][b, q + 8192])
            & (d["tree"][0][b, q + 8192] < d["tree"][1][b, k])
        ), n_q=64),
)  # fmt: skip


# ------------------------------------------------------------------ one row


def _there(given: Any) -> Any:
    """Arrays on the GPU."""
    if isinstance(given, tuple):
        return tuple(map(_there, given))
    return torch.tensor(given, device="cuda")


def _arrays(data: Data) -> list[torch.Tensor]:
    return [x for one in data.values() for x in (one if isinstance(one, tuple) else (one,))]


def _exact(row: Row, keep: MaskMod, tensors: list[torch.Tensor], backward: bool) -> list[Any]:
    """out of the last head of the last sequence, and gradients of its q, in fp64."""
    n_q, n_kv = row.lengths
    batch, head = row.sizes[0] - 1, row.sizes[1] - 1
    shared = head // (row.sizes[1] // row.sizes[2])
    q, k, v, dout = (x[batch, i].double() for x, i in
                     zip(tensors, (head, shared, shared, head), strict=True))  # fmt: skip
    columns, outs, dqs = torch.arange(n_kv, device="cuda")[None], [], []
    place = [torch.tensor(i, device="cuda") for i in (batch, head)]
    for first in range(0, n_q, _CHUNK):
        rows = torch.arange(first, min(first + _CHUNK, n_q), device="cuda")
        scores = q[rows] @ k.T * row.sizes[4] ** -0.5
        live = keep(*place, rows[:, None], columns)
        p = torch.softmax(scores.masked_fill(~live, -torch.inf), -1).nan_to_num(0)
        outs.append(p @ v)
        if backward:
            dp = dout[rows] @ v.T
            ds = p * (dp - (p * dp).sum(-1, keepdim=True))
            dqs.append(ds @ k * row.sizes[4] ** -0.5)
    return [torch.cat(parts) for parts in (outs, dqs) if parts]


def _error(found: Any, want: Any) -> float:
    return float((found[-1, -1].double() - want).norm() / want.norm())


def _error_of(peer: Timed, want: Any) -> float:
    """The error of out, or of dq."""
    with peer.scope():
        found = peer.run()
    return _error(found[0] if isinstance(found, tuple) else found, want)


def _rivals(row: Row, keep: MaskMod, tensors: list[Any], backward: bool) -> dict[str, Timed]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    batch, heads, kv_heads, *_ = row.sizes
    blocks = create_block_mask(keep, batch, None, *row.lengths, device="cuda", _compile=True)
    found = {}
    for name, options in (("flex", {}), ("flex_flash", {"kernel_options": {"BACKEND": "FLASH"}})):
        try:
            if name == "flex_flash" and not installed():
                raise Missing("FlashAttention 4 is not installed")
            torch._dynamo.reset()
            compiled = torch.compile(flex_attention, dynamic=False)

            def call(*qkv: Any, compiled: Any = compiled, options: Any = options) -> Any:
                return compiled(*qkv, block_mask=blocks, enable_gqa=heads > kv_heads, **options)

            if not backward:
                with torch.no_grad():
                    call(*tensors[:3])
                found[name] = Timed(lambda call=call: call(*tensors[:3]), torch.no_grad)
                continue
            leaves = [x.detach().requires_grad_() for x in tensors[:3]]
            out = call(*leaves)

            def gradient(out: Any = out, leaves: Any = leaves) -> Any:
                return torch.autograd.grad(out, leaves, tensors[3], retain_graph=True)

            gradient()
            found[name] = Timed(gradient)
        except _REFUSALS as error:
            print(f"    {name}: {str(error).splitlines()[0][:100]}")
    try:
        found["cudnn_flex"] = _cudnn_flex(row, keep, tensors, backward)
    except _REFUSALS as error:
        print(f"    cudnn_flex: {str(error).splitlines()[0][:100]}")
    return found


def _cudnn_flex(row: Row, keep: MaskMod, tensors: list[Any], backward: bool) -> Timed:
    """cuDNN's flex attention, with its plan made beforehand.

    Raises:
        Unavailable: it is not installed, or a query has too many intervals of keys.
    """
    if not cudnn_flex.installed():
        raise Missing(cudnn_flex.MISSING)
    ends = cudnn_flex.intervals(keep, row.sizes[0], 1, *row.lengths, "cuda")
    given = Tensors(*tensors, "cuda")
    attend = cudnn_flex.attend_with(ends, given, backward)
    made = tokens_first("cudnn_flex", attend, given, backward)
    call = partial(made.backward, tensors[3]) if backward else made.forward
    call()
    return Timed(call)


def _lists_alone(attn: Any, call: Callable[[], Any]) -> float | None:
    """Microseconds of making lists once, inside a CUDA graph; None where the host makes them."""
    call()
    plan = attn._last[1]
    if not isinstance(plan, ListsPlan):
        return None
    launch, blocks = plan.lists.launch, []

    def remember(steps: Any, stream: int, memory: Any) -> None:
        if steps is plan.before:
            blocks.append(memory)
        launch(steps, stream, memory)

    plan.lists.launch = remember
    try:
        plan.kept.clear()
        call()
    finally:
        plan.lists.launch = launch
    (memory,) = blocks
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(_MAKINGS):
            plan.lists.launch(plan.before, stream.cuda_stream, memory)
    return take_turns({"lists": Timed(graph.replay)}, 10, "cuda")["lists"] * 1e3 / _MAKINGS


def _host_us(call: Callable[[], Any]) -> float:
    times = []
    for _ in range(9):
        torch.cuda.synchronize()
        start = perf_counter()
        for _ in range(_CALLS):
            call()
        times.append((perf_counter() - start) / _CALLS * 1e6)
    torch.cuda.synchronize()
    return median(times)


def measure(row: Row) -> dict[str, Any]:
    """Check and time one row."""
    batch, heads, kv_heads, n, dim = row.sizes
    n_q, _ = row.lengths
    data = {k: _there(v) for k, v in row.data(np.random.default_rng(0), batch, n).items()}
    # The rival's own arrays: autograd would mistake a new version of ours for other data.
    keep = row.mask_mod({
        name: tuple(x.clone() for x in one) if isinstance(one, tuple) else one.clone()
        for name, one in data.items()
    })  # fmt: skip
    torch.manual_seed(0)
    tensors = [
        torch.randn(batch, h, tokens, dim, device="cuda", dtype=torch.bfloat16)
        for h, tokens in ((heads, n_q), (kv_heads, n), (kv_heads, n), (heads, n_q))
    ]
    attn = row.mask().compile(head_dim=dim, n_heads=heads, dtype="bfloat16", target="sm_90a")
    attn.warmup()
    backward = n_q == n
    want = _exact(row, keep, tensors, backward)
    found: dict[str, Any] = {"row": row.name, "sizes": row.sizes}
    arrays = _arrays(data)

    def forward() -> Any:
        return attn(*tensors[:3], return_lse=True, **data)

    out, lse = forward()
    found["error out"] = _error(out, want[0])

    def gradient() -> Any:
        return attn.backward(*tensors[:3], out, lse, tensors[3], **data)

    def changed(call: Callable[[], Any]) -> Callable[[], Any]:
        def after_writing() -> Any:
            for x in arrays:
                torch.autograd.graph.increment_version(x)
            return call()

        return after_writing

    for direction, call in (("fwd", forward), ("bwd", gradient))[: 1 + backward]:
        result = call()
        if direction == "bwd":
            found["error dq"] = _error(result[0], want[1])
        names = attn.last_sources
        timed = {"maskc": Timed(call), "maskc, changed": Timed(changed(call))}
        peers = _rivals(row, keep, tensors, direction == "bwd")
        errors = {name: _error_of(peer, want[direction == "bwd"]) for name, peer in peers.items()}
        timed |= {name: peer for name, peer in peers.items() if errors[name] < _TOLERANCE}
        times = take_turns(timed, _ROUNDS, "cuda")
        best = min((ms for name, ms in times.items() if "maskc" not in name), default=None)
        found[direction] = {
            "ms": {name: round(ms, 4) for name, ms in times.items()},
            "to the best peer": best
            and [round(best / times[name], 3) for name in ("maskc", "maskc, changed")],
            "kernels": names,
            "errors of peers": errors,
            "lists us": _lists_alone(attn, call),
            "host us": [round(_host_us(call), 1), round(_host_us(changed(call)), 1)],
        }
    return found


def main(names: list[str]) -> None:
    """Measure the rows of these names, or all."""
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    for row in ROWS:
        if not names or any(name in row.name for name in names):
            try:
                print(json.dumps(measure(row)), flush=True)
            except Exception as error:  # also a defect of maskc is a result here
                print(json.dumps({"row": row.name, "raised": repr(error)[:500]}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
