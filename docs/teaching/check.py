"""Run a teaching kernel without a GPU, and compare it with dense attention in fp64.

    python docs/teaching/check.py [KERNEL.cu] [--mask EXPRESSION]

Needs g++ and PyTorch, which the emulator uses. Exits with 1 if the kernel is wrong.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import click
import numpy as np

import maskc as mc
from maskc.testing.emulator import Fault, machine

FOLDER = Path(__file__).parent
MASK = "causal() & (sinks(4) | window(127))"
LENGTHS = (1, 31, 64, 200)
HEADS, D, ROWS = 2, 64, 64


def launch(source: str, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return out [heads, n, D] and lse [heads, n] of the kernel `attention` in a CUDA source."""
    heads, n, _ = q.shape
    out, lse = np.full_like(q, np.nan), np.full((heads, n), np.nan, np.float32)
    values = [ctypes.c_void_p(x.ctypes.data) for x in (q, k, v, out, lse)]
    values += [ctypes.c_int(n), ctypes.c_float(D**-0.5)]
    addresses = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    blocks = heads * -(-n // ROWS)
    library = machine.loaded(source, ())
    machine.run(library, "attention", ctypes.addressof(addresses), blocks, ROWS, 1 << 16)
    return out, lse


def dense(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return out and lse of masked dense attention in fp64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = np.where(mask, q @ k.transpose(0, 2, 1) * D**-0.5, -np.inf)
    lse = np.logaddexp.reduce(scores, axis=-1)
    weights = np.exp(scores - np.where(np.isinf(lse), 0, lse)[..., None])
    return weights @ v, lse


def mistake(source: str, mask: mc.Mask, n: int) -> str | None:
    """Return what is wrong with the kernel at length n, or None."""
    rng = np.random.default_rng(n)
    q, k, v = (rng.standard_normal((HEADS, n, D)).astype(np.float32) for _ in range(3))
    try:
        computed = launch(source, q, k, v)
    except Fault as fault:
        return str(fault)
    for name, x, exact in zip(("out", "lse"), computed, dense(q, k, v, mask.dense(n)), strict=True):
        same = (x == exact) | (np.abs(x - exact) < 1e-5)  # NaN is never the same
        if not same.all():
            place = tuple(int(i) for i in np.argwhere(~same)[0])
            return f"{name}{list(place)} is {x[place]:.6g}, expected {exact[place]:.6g}"
    return None


@click.command(help=__doc__)
@click.argument("kernel", default=FOLDER / "flash_attention.cu", type=Path)
@click.option("--mask", default=MASK, show_default=True, help="What the kernel's keep() means.")
def main(kernel: Path, mask: str) -> None:
    wrong = False
    for n in LENGTHS:
        error = mistake(kernel.read_text(), mc.parse(mask), n)
        print(f"n = {n:3}: {error or 'right'}")
        wrong |= error is not None
    sys.exit(wrong)


if __name__ == "__main__":
    main()
