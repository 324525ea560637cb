"""Draw a mask, compile a kernel for this CPU, run it and check it: the demo behind `make demo`.

The queries, keys and values come from a real text: bytes of docs/language.md, embedded by a fixed
random table and projected by fixed random matrices.
"""

from __future__ import annotations

import sys
from pathlib import Path
from time import perf_counter

import numpy as np

import maskc as mc
from maskc.reference.attention import attention as dense_attention
from maskc.viz.figure import write
from maskc.viz.picture import KernelTiles, picture
from maskc.viz.terminal import render

HERE = Path(__file__).parent
HEADS, HEAD_DIM, TOKENS, DTYPE = 4, 64, 2048, "float32"


def text_as_qkv(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return q, k and v, float32 [1, HEADS, TOKENS, HEAD_DIM], made from the bytes of a text."""
    tokens = np.frombuffer(path.read_bytes()[:TOKENS], dtype=np.uint8)
    rng = np.random.default_rng(2026)
    width = HEADS * HEAD_DIM
    place = np.arange(len(tokens))[:, None] / 10000 ** (np.arange(width) / width)
    embedded = rng.standard_normal((256, width))[tokens] + np.sin(place)
    projected = [embedded @ rng.standard_normal((width, width)) / np.sqrt(width) for _ in range(3)]
    return tuple(  # type: ignore[return-value]
        x.reshape(1, -1, HEADS, HEAD_DIM).transpose(0, 2, 1, 3).astype(np.float32)
        for x in projected
    )


def say(step: int, text: str) -> None:
    """Announce a step of the demo before it runs."""
    print(f"\n[{step}/4] {text}", flush=True)


def main() -> None:
    mask = mc.causal() & (mc.sinks(16) | mc.window(255))
    attn = mask.compile(head_dim=HEAD_DIM, dtype=DTYPE, target="cpu")
    tiles = KernelTiles(attn.target.name, attn.unit.tile)
    shown = picture(mask, TOKENS, kernel=tiles, head_dim=HEAD_DIM, dtype=DTYPE)
    say(1, f"Drawing the mask {mask}: 16 attention sinks and a window of 256.")
    print(render(shown))

    say(2, "Planning a kernel, writing it in C, compiling it for this CPU.")
    start = perf_counter()
    attn.warmup()
    print(f"compiled in {perf_counter() - start:.2f} s (cached builds take milliseconds)")
    print(attn.explain())

    say(3, "Running the kernel on a text, and comparing it with dense attention in NumPy.")
    q, k, v = text_as_qkv(HERE / "language.md")
    attn(q, k, v)
    start = perf_counter()
    out, lse = attn(q, k, v, return_lse=True)
    sparse = perf_counter() - start
    start = perf_counter()
    expected, expected_lse = dense_attention(q, k, v, mask.dense(q.shape[2]))
    dense = perf_counter() - start

    error = np.abs(out - expected).max() / np.abs(expected).max()
    lse_error = np.abs(lse - expected_lse).max()
    print(f"{q.shape[2]} bytes of docs/language.md, {HEADS} heads of {HEAD_DIM}:")
    print(f"  maskc kernel            {sparse * 1e3:8.2f} ms")
    print(f"  masked dense NumPy fp64 {dense * 1e3:8.2f} ms")
    print(f"  largest error {error:.1e} (out), {lse_error:.1e} (log-sum-exp)")
    if not error < 1e-5:
        raise SystemExit("the kernel disagrees with dense attention")

    file = HERE.parent / "demo.png"
    say(4, f"Drawing the mask into {file.name}.")
    write(shown, file)
    print(
        "Next: read docs/tutorial.md. `maskc patterns` lists published masks, and `maskc init`\n"
        f"writes a pattern file to start from. The commands are in {Path(sys.executable).parent}."
    )


if __name__ == "__main__":
    main()
