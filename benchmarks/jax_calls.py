"""Jitted calls of maskc in JAX, compared with its PyTorch calls, cuDNN through JAX, and XLA.

    python -m benchmarks.jax_calls -o benchmarks/results/jax-h200.json

All arrays are bf16, [B, N, H, D], and all implementations read the same memory, shared by DLPack.
Times are of 20 calls in a row, host included, divided by 20: the median of 15 rounds in random
order. "both passes" runs a forward pass and the gradients of q, k and v. maskc builds the lists of
data masks in every call, in JAX and in PyTorch. Outputs and gradients are compared with maskc's
PyTorch call, which the suites of this folder compare with fp64.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import torch

import maskc as mc
from benchmarks.anchors import DECODING, SEVENTEEN, Anchor
from maskc.integrations.jax import attention as jax_attention

Arrays = tuple[Any, ...]
_CALLS, _ROUNDS, _BOUND = 20, 15, 1.5e-2
_XLA_BYTES = 40e9
"""XLA stores every score in fp32. Cases with more bytes of scores are not run."""

_CUDNN: dict[str, dict[str, Any]] = {
    "causal_16k": {"is_causal": True},
    "window1024_32k": {"is_causal": True, "local_window_size": (1023, 0)},
    "decode_32x16k": {},
}
"""How JAX's cuDNN call states a mask. It gets other masks as a dense array."""
CASES = (
    "causal_16k", "window1024_32k", "document_32k", "longformer_256_g64_16k", "dilated_w512_s4_32k",
    "random10_16k", "decode_32x16k",
)  # fmt: skip
"""Anchors that are timed."""


def calls(case: Anchor) -> tuple[dict[str, Callable[[], Any]], dict[str, Callable[[], Any]]]:
    """Forward calls and calls of both passes, by implementation."""
    generator = torch.Generator("cuda").manual_seed(0)
    mask, rows = case.mask(), case.n_q or case.n
    data: dict[str, Any] = case.data()
    stated = _CUDNN.get(case.name)

    def draw(rows: int, heads: int) -> torch.Tensor:
        shape = (case.batch, rows, heads, case.head_dim)
        return torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)

    q, dout = draw(rows, case.heads), draw(rows, case.heads)
    k, v = (draw(case.n, case.kv_heads or case.heads) for _ in range(2))
    arrays = {name: torch.from_numpy(x).cuda() for name, x in data.items()}
    shared = [jax.dlpack.from_dlpack(x) for x in (q, k, v, dout)]
    traced = {name: jax.dlpack.from_dlpack(x) for name, x in arrays.items()}
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]

    def of_torch(with_gradients: bool) -> Any:
        for x in arrays.values():
            torch.autograd.graph.increment_version(x)  # or the lists of the last call serve again
        if not with_gradients:
            with torch.no_grad():
                return mc.attention(q, k, v, mask, layout="bshd", **arrays)
        out = mc.attention(leaves[0], leaves[1], leaves[2], mask, layout="bshd", **arrays)
        return (out.detach(), *torch.autograd.grad(out, leaves, dout))

    forward: dict[str, Callable[[], Any]] = {"maskc, PyTorch": partial(of_torch, False)}
    both: dict[str, Callable[[], Any]] = {"maskc, PyTorch": partial(of_torch, True)}

    def add(name: str, attend: Callable[..., Any], extra: dict[str, Any]) -> None:
        def passes(q: Any, k: Any, v: Any, dout: Any, extra: dict[str, Any]) -> Arrays:
            out, back = jax.vjp(lambda q, k, v: attend(q, k, v, **extra), q, k, v)
            return (out, *back(dout))

        one, two = jax.jit(lambda q, k, v, extra: attend(q, k, v, **extra)), jax.jit(passes)
        forward[name] = lambda: one(*shared[:3], extra)
        both[name] = lambda: two(*shared, extra)

    add("maskc, JAX", partial(jax_attention, mask=mask), traced)
    extra: dict[str, Any] = {}
    if stated is None:
        extra = {"mask": jnp.asarray(mask.dense(case.n, **data))[None, None]}
    dense = partial(jax.nn.dot_product_attention, **(stated or {}))
    add("cuDNN, JAX", partial(dense, implementation="cudnn"), extra)
    if 4 * case.batch * case.heads * rows * case.n <= _XLA_BYTES:
        add("XLA", partial(dense, implementation="xla"), extra)
    return forward, both


def wait(result: Any) -> None:
    """Wait for one result, of either library."""
    jax.block_until_ready([x for x in jax.tree.leaves(result) if isinstance(x, jax.Array)])
    torch.cuda.synchronize()


def error(result: Any, expected: Any) -> float:
    """Largest relative error, in the Frobenius norm, among arrays."""
    result, expected = (x if isinstance(x, tuple) else (x,) for x in (result, expected))
    pairs = zip(result, expected, strict=True)
    double = ((torch.from_dlpack(x).double(), y.double()) for x, y in pairs)
    return max(float((x - y).norm() / y.norm()) for x, y in double)


def turns(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Milliseconds per call of rivals that take turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    order, shuffled = list(runs), Random(0)
    for _ in range(_ROUNDS):
        shuffled.shuffle(order)
        for name in order:
            wait(runs[name]())
            start = perf_counter()
            for _ in range(_CALLS):
                result = runs[name]()
            wait(result)
            times[name].append((perf_counter() - start) / _CALLS * 1e3)
    return {name: round(median(values), 4) for name, values in times.items()}


def measure(case: Anchor) -> dict[str, Any]:
    """Check and time one case; milliseconds."""
    row: dict[str, Any] = {"case": case.name, "ms": {}, "errors": {}, "not run": {}}
    forward, both = calls(case)
    passes = {"forward": forward} | ({} if case.n_q else {"both passes": both})
    for direction, runs in passes.items():
        expected = runs["maskc, PyTorch"]()
        timed = {}
        for name, run in runs.items():
            try:
                gap = error(run(), expected)
            except Exception as failure:  # a rival may not know the mask, or lack memory
                row["not run"][f"{name}, {direction}"] = f"{type(failure).__name__}: {failure}"[
                    :200
                ]
                continue
            row["errors"][f"{name}, {direction}"] = round(gap, 5)
            if gap < _BOUND:
                timed[name] = run
            else:
                row["not run"][f"{name}, {direction}"] = "wrong"
        row["ms"][direction] = turns(timed)
    return row


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--case", action="append", choices=CASES, help="Only these cases.")
    options = parser.parse_args()
    output, chosen = options.output, options.case or CASES
    about = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "jax": jax.__version__,
    }
    rows: list[dict[str, Any]] = []
    for case in (x for x in (*SEVENTEEN, *DECODING) if x.name in chosen):
        try:
            rows.append(measure(case))
        except Exception as failure:  # the other cases still have a result
            rows.append({"case": case.name, "failed": f"{type(failure).__name__}: {failure}"[:300]})
        print(json.dumps(rows[-1]), flush=True)
        torch.cuda.empty_cache()
        if output:
            report = {"environment": about, "rows": rows}
            output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
