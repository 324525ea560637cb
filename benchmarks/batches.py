"""`python -m benchmarks.batches [--out FILE] [ROW ...]`: masks that come with the batch, and few
queries.

Every row has a process of its own. All of them compile at once, and check what they have compiled
against fp64 on one head; then one after the other is alone on the card, and times its rivals in
turns. Data lie on the GPU. Rivals' masks are made beforehand, maskc makes its lists inside the
call: `maskc` finds the arrays as they were at the last call, `maskc, changed` is told before each
one that somebody wrote into them; `lists us` is the difference. Documents of the suite `field`
are given by their lengths and the longest one, as flash_attn_varlen_func gets them. Host time is of
calls whose kernels nobody waits for.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic, perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import maskc as mc
from benchmarks.batch_rows import ROWS, MaskMod, Row
from benchmarks.fa4 import ends_of
from benchmarks.host_time import per_call
from benchmarks.prepare import use_caches
from benchmarks.rivals import make_rival
from benchmarks.runs import save
from maskc.core.dtypes import DType
from maskc.lab.rivals import Unavailable
from maskc.verify.case import Case
from maskc.verify.case_tensors import CaseTensors
from maskc.verify.timing import Timed, take_turns

Found = dict[str, Any]
_ROUNDS, _CALLS, _CHUNK = 20, 100, 512
_TOLERANCE = 2e-2
"""Relative errors from which a peer computes something else."""
_PATIENCE = 60
"""Seconds that a peer may compile for one direction."""
_FIRST, _AGAIN = 150.0, 45.0
"""Seconds until the rows that are ready are timed, while others stand still; and then again."""
_TURN = 60.0
"""Seconds of a row's turn, after which it is ended."""


# ------------------------------------------------------------------ data


def _there(given: Any, device: str = "cuda") -> Any:
    """Arrays on the GPU."""
    if isinstance(given, tuple):
        return tuple(map(_there, given))
    return torch.tensor(given, device=device)


def _arrays(data: Mapping[str, Any]) -> list[Any]:
    arrays = [x for one in data.values() for x in (one if isinstance(one, tuple) else (one,))]
    return [getattr(x, "array", x) for x in arrays]


def _by_lengths(ids: np.ndarray, device: str = "cuda") -> Any:
    """Documents as a user of flash_attn_varlen_func gives them."""
    ends = ends_of(ids)
    return mc.cu_seqlens(_there(ends, device), max_seqlen=int(np.diff(ends).max()))


# ------------------------------------------------------------------ what is right


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


# ------------------------------------------------------------------ rivals


@contextmanager
def _patience() -> Iterator[None]:
    """Raises TimeoutError inside where it takes too long."""

    def over(*_: object) -> None:
        raise TimeoutError(f"it was not ready after {_PATIENCE} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(_PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _peers(
    row: Row, case: Case, tensors: CaseTensors, direction: str, said: dict[str, str]
) -> Found:
    """Build everybody else's way to compute a row, and call it once.

    Args:
        said: gets why one does not run it, by name.

    Returns:
        What is timed, by name.
    """
    backward, known = direction == "bwd", (case, tensors)
    names = ["flex", "flex_flash", "cudnn_flex"]
    if row.promised:
        names.append("fa4")
    elif row.known is not None:
        names += ["cudnn", "fa2", "fa4"]
        keys = row.last or case.n_kv
        k, v = (x[:, :, -keys:] for x in (tensors.k, tensors.v))
        known = replace(case, mask=row.known(), n_kv=keys, data={}), replace(tensors, k=k, v=v)
    by_head = any(x.ndim > 2 and x.shape[1] > 1 for x in _arrays(case.data))
    shape: Any = SimpleNamespace(batched=bool(case.data), by_head=by_head)
    found = {}
    for name in names:
        given = known if name in names[3:] else (case, tensors)
        try:
            print(f"{row.name}: {name}{', backward' * backward}", flush=True)
            with _patience():
                made = make_rival(name, *given, shape, backward)
                if made is None:
                    raise Unavailable("it has no name for the mask")
                timed = Timed(made.call(direction, tensors.dout), made.scope)
                with timed.scope():
                    timed.run()
                torch.cuda.synchronize()
            found[name] = timed
        except Exception as error:  # peers raise anything where they do not run a row
            why = (str(error).splitlines() or [""])[0][:150]
            said[f"{name}, backward" if backward else name] = why
    return found


# ------------------------------------------------------------------ maskc


def _host_us(call: Callable[[], Any]) -> float:
    return per_call(call, torch.cuda.synchronize, _CALLS, 8) * 1e3


# ------------------------------------------------------------------ one row


def _made(row: Row) -> tuple[Found, Callable[[], Found]]:
    """A row that has compiled everything: what is known of it, and what times it."""
    batch, heads, kv_heads, n, dim = row.sizes
    n_q, _ = row.lengths
    drawn = row.data(np.random.default_rng(0), batch, n)
    data = {name: _there(one) for name, one in drawn.items()}
    # The rivals make arrays of their own: autograd would mistake a new version of ours for others.
    case = Case(row.name, row.mask(), batch, heads, kv_heads, n_q, n, dim, DType.bfloat16, drawn,
                row.mask_mod)  # fmt: skip
    torch.manual_seed(0)
    tensors = [
        torch.randn(batch, h, tokens, dim, device="cuda", dtype=torch.bfloat16)
        for h, tokens in ((heads, n_q), (kv_heads, n), (kv_heads, n), (heads, n_q))
    ]
    start = perf_counter()
    attn = case.warm("sm_90a")
    found: Found = {"row": row.name, "sizes": row.sizes, "build s": perf_counter() - start}
    backward = n_q == n
    want = _exact(row, row.mask_mod(data), tensors, backward)
    if row.promised:
        data = {name: _by_lengths(ids) for name, ids in drawn.items()}
    arrays = _arrays(data)

    def forward() -> Any:
        return attn(*tensors[:3], return_lse=True, **data)

    out, lse = forward()

    def gradient(**options: Any) -> Any:
        return attn.backward(*tensors[:3], out, lse, tensors[3], **options, **data)

    def changed(call: Callable[[], Any]) -> Callable[[], Any]:
        def after_writing() -> Any:
            for x in arrays:
                torch.autograd.graph.increment_version(x)
            return call()

        return after_writing

    directions, said = [], dict[str, str]()
    for direction, call in (("fwd", forward), ("bwd", gradient))[: 1 + backward]:
        exact = want[direction == "bwd"]
        timed = {"maskc": Timed(call)}
        if arrays:
            timed["maskc, changed"] = Timed(changed(call))
        if direction == "bwd" and row.repeatable:
            timed["maskc, same bits"] = Timed(partial(gradient, deterministic=True))
        if row.peers:
            timed |= _peers(row, case, CaseTensors(*tensors, "cuda"), direction, said)
        if n_q == 1:
            timed["copy of k"] = Timed(partial(torch.empty_like(tensors[1]).copy_, tensors[1]))
        errors = {name: _error_of(one, exact) for name, one in timed.items() if "copy" not in name}
        right = {name for name, error in errors.items() if error < _TOLERANCE} | {"copy of k"}
        timed = {name: one for name, one in timed.items() if name in right}
        directions.append((direction, call, timed))
        call()
        found[direction] = {"errors": errors, "kernels": attn.last_sources}
    found["not run"] = said
    torch.cuda.synchronize()
    torch.cuda.empty_cache()

    def times() -> Found:
        for direction, call, timed in directions:
            ms = take_turns(timed, _ROUNDS, "cuda")
            found[direction] |= {"ms": {name: round(one, 4) for name, one in ms.items()}}
            if arrays:
                both = (call, changed(call))
                found[direction] |= {
                    "lists us": round((ms["maskc, changed"] - ms["maskc"]) * 1e3, 1),
                    "host us": [round(_host_us(one), 1) for one in both],
                }
        if arrays and backward:
            leaves = [x.detach().requires_grad_() for x in tensors[:3]]
            found["fwd"]["host us, with a graph"] = _host_us(lambda: attn(*leaves, **data))
        return found

    return found, times


def _child(number: int, pipe: Connection) -> None:
    """Prepare a row, say so, and time it when told to."""
    row = ROWS[number]
    try:
        found, times = _made(row)
        pipe.send(found)
        pipe.recv()
        pipe.send(times())
    except Exception as error:  # also a defect of maskc is a result here
        pipe.send({"row": row.name, "raised": repr(error)[:500]})


# ------------------------------------------------------------------ all rows


class _Runs:
    """Rows in their processes."""

    def __init__(self, numbers: list[int], keep: Callable[[Found], None]) -> None:
        context = multiprocessing.get_context("spawn")
        self._keep = keep
        self._rows: dict[Connection, Any] = {}
        for number in numbers:
            mine, its = context.Pipe()
            process = context.Process(target=_child, args=(number, its), daemon=True)
            process.start()
            its.close()
            self._rows[mine] = process

    def go(self) -> None:
        """Until every row has been timed, or has failed."""
        patience = _FIRST
        while self._rows:
            ready = self._ready(monotonic() + patience)
            for pipe in self._rows:
                if pipe not in ready:
                    os.kill(self._rows[pipe].pid, signal.SIGSTOP)
            for pipe in ready:
                self._time(pipe)
            for process in self._rows.values():
                os.kill(process.pid, signal.SIGCONT)
            patience = _AGAIN

    def _ready(self, until: float) -> list[Connection]:
        """Wait until all rows, or all up to a value of monotonic(), want their turn; return their
        pipes."""
        ready: list[Connection] = []
        while len(ready) < len(self._rows) and monotonic() < until:
            silent = [pipe for pipe in self._rows if pipe not in ready]
            for pipe in wait(silent, max(0.0, until - monotonic())):
                found = _received(pipe)
                if found is None or "raised" in found:
                    self._end(pipe, found)
                else:
                    print(f"{found['row']} is ready {monotonic():.0f}", flush=True)
                    ready.append(pipe)
        return ready

    def _time(self, pipe: Connection) -> None:
        pipe.send(None)
        self._end(pipe, _received(pipe) if pipe.poll(_TURN) else None)

    def _end(self, pipe: Connection, found: Found | None) -> None:
        process = self._rows.pop(pipe)
        process.kill()
        process.join()
        self._keep(found or {"raised": "its process ended, or was too slow", "of": process.name})


def _received(pipe: Connection) -> Found | None:
    try:
        found: Found = pipe.recv()
    except EOFError:
        return None
    return found


def main() -> None:
    """Measure the rows of these names, or all."""
    parser = argparse.ArgumentParser(prog="benchmarks.batches")
    parser.add_argument("--out", type=Path, default=Path("batches.json"))
    parser.add_argument("names", nargs="*", metavar="ROW")
    asked = parser.parse_args()
    use_caches()
    os.environ["OMP_NUM_THREADS"] = "1"
    report: Found = {
        "card": torch.cuda.get_device_name(), "torch": torch.__version__,
        "command": "python -m benchmarks.batches", "rows": [],
    }  # fmt: skip

    def keep(found: Found) -> None:
        print(found, flush=True)
        report["rows"].append(found)
        save(asked.out, report)

    numbers = [
        number for number, row in enumerate(ROWS)
        if not asked.names or any(name in row.name for name in asked.names)
    ]  # fmt: skip
    _Runs(numbers, keep).go()


if __name__ == "__main__":
    main()
