"""The rows of `benchmarks.batches`: a mask, its sizes, its data, and the same mask by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import maskc as mc
from benchmarks.anchors import flags_of, scattered
from maskc.patterns import block_diffusion

Data = dict[str, Any]
MaskMod = Callable[[Any, Any, Any, Any], Any]


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
    known: Callable[[], mc.Mask] | None = None
    """The mask as SDPA and FlashAttention 4 have a name for it; None: they have none."""
    last: int = 0
    """They are given only so many keys, the last ones; 0: all."""
    repeatable: bool = False
    """Whether gradients of the same bits on every run are timed, too."""
    peers: bool = True
    """Whether anybody else runs it."""
    promised: bool = False
    """Whether maskc and FlashAttention 4 are given documents by cumulative lengths, and the longest
    one, in place of ids."""

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


def _globals(rng: np.random.Generator, batch: int, n: int) -> Data:
    return {"globals": np.stack([flags_of(n, 16, seed) for seed in range(batch)])}


def _none(rng: np.random.Generator, batch: int, n: int) -> Data:
    return {}


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


def _table(
    block: int, share: float = 0.2, heads: int = 1
) -> Callable[[np.random.Generator, int, int], Data]:
    def made(rng: np.random.Generator, batch: int, n: int) -> Data:
        side = -(-n // block)
        table = rng.random((batch, heads, side, side)) < share
        return {"table": table | np.eye(side, dtype=bool)}

    return made


def _packed(shortest: int, longest: int) -> Callable[[np.random.Generator, int, int], Data]:
    """Documents whose lengths are between two bounds."""

    def made(rng: np.random.Generator, batch: int, n: int) -> Data:
        sizes = rng.integers(shortest, longest + 1, (batch, n // shortest + 1))
        rows = [np.searchsorted(ends, np.arange(n), side="right") for ends in sizes.cumsum(1)]
        return {"doc": np.stack(rows).astype(np.int32)}

    return made


def _behind_caches(n_q: int) -> Callable[[np.random.Generator, int, int], Data]:
    """The keys that `n_q` new queries see, behind a cache whose length differs by sequence."""

    def made(rng: np.random.Generator, batch: int, n: int) -> Data:
        cached = rng.integers(n // 8, n - n_q + 1, (batch, 1))
        last = (cached + 1 + np.arange(n_q)).astype(np.int32)
        return {"span": (np.zeros_like(last), last)}

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


def _same_document(d: Data) -> MaskMod:
    return lambda b, h, q, k: (k <= q) & (d["doc"][b, q] == d["doc"][b, k])


def _near_or_global(n: int, count: int) -> MaskMod:
    listed = torch.tensor(flags_of(n, count), device="cuda")
    return lambda b, h, q, k: ((q - k <= 128) & (k - q <= 128)) | listed[q] | listed[k]


def _window_or_column(n: int, count: int) -> MaskMod:
    listed = torch.tensor(flags_of(n, count), device="cuda")
    return lambda b, h, q, k: _in_window(q, k, 512) | listed[k]


def _diffusion(b: Any, h: Any, q: Any, k: Any) -> Any:
    """Block diffusion over 8192 tokens, in blocks of 16; see patterns/block_diffusion.py."""
    of_q, of_k = q % 4096 // 16, k % 4096 // 16
    noised_q, noised_k = q < 4096, k < 4096
    return (
        ((of_q == of_k) & (q // 4096 == k // 4096))
        | ((of_q > of_k) & noised_q & ~noised_k)
        | ((of_q >= of_k) & ~noised_q & ~noised_k)
    )


def _all_keys(d: Data) -> MaskMod:
    return lambda b, h, q, k: k >= 0 * q


def _decoding(batch: int, n: int) -> Row:
    return Row(f"decoding, {batch} x {n // 1024}k", mc.full, (batch, 32, 8, n, 128), _none,
               _all_keys, n_q=1, known=mc.full)  # fmt: skip


_BATCHES = (
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
        _same_document, repeatable=True),
    Row("documents of 128k tokens", lambda: mc.documents("doc") & mc.causal(),
        (1, 8, 8, 131072, 64), lambda rng, batch, n: {"doc": _ids(rng, batch, n)}, _same_document,
        peers=False),
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
    Row("window 128, 16 global tokens by id",
        lambda: mc.window(128, 128) | mc.global_tokens(scattered(4096, 16)), (8, 12, 12, 4096, 64),
        _none, lambda d: _near_or_global(4096, 16)),
    Row("window 128, 16 global tokens by flag",
        lambda: mc.window(128, 128) | mc.global_tokens("globals", at_most=16),
        (8, 12, 12, 4096, 64), _globals,
        lambda d: lambda b, h, q, k: (
            ((q - k <= 128) & (k - q <= 128)) | d["globals"][b, q] | d["globals"][b, k]
        )),
    Row("window 512, 500 columns",
        lambda: mc.window.hf(512) | mc.global_tokens(scattered(32768, 500)).columns,
        (1, 32, 8, 32768, 128), _none, lambda d: _window_or_column(32768, 500)),
    _decoding(32, 16384),
    _decoding(8, 32768),
    _decoding(1, 131072),
    Row("decoding, window 4096 of 32k", lambda: mc.window.hf(4096), (8, 32, 8, 32768, 128), _none,
        lambda d: lambda b, h, q, k: k >= 32768 - 4096 + 0 * q, n_q=1, known=mc.full, last=4096),
    Row("window 1024, width 256", lambda: mc.window.hf(1024), (1, 16, 8, 16384, 256), _none,
        lambda d: lambda b, h, q, k: _in_window(q, k, 1024), known=lambda: mc.window.hf(1024)),
    Row("causal, 512 tokens", mc.causal, (32, 16, 16, 512, 64), _none,
        lambda d: lambda b, h, q, k: k <= q, known=mc.causal),
    Row("block diffusion", lambda: block_diffusion(block=16), (1, 32, 8, 8192, 128), _none,
        lambda d: _diffusion),
)  # fmt: skip

_FIELD = (
    Row("field: SigLIP", mc.full, (32, 16, 16, 729, 72), _none, _all_keys, known=mc.full),
    Row("field: Phi-3, window 2047", lambda: mc.window.hf(2047), (1, 32, 32, 8192, 96), _none,
        lambda d: lambda b, h, q, k: _in_window(q, k, 2047), known=lambda: mc.window.hf(2047)),
    Row("field: Gemma 3, window 512", lambda: mc.window.hf(512), (4, 4, 1, 8192, 256), _none,
        lambda d: lambda b, h, q, k: _in_window(q, k, 512), known=lambda: mc.window.hf(512)),
    Row("field: SDXL cross attention", mc.full, (8, 10, 10, 77, 64), _none, _all_keys, n_q=4096,
        known=mc.full),
    Row("field: NaViT", lambda: mc.documents("doc"), (1, 16, 16, 16384, 72), _packed(256, 1024),
        lambda d: lambda b, h, q, k: d["doc"][b, q] == d["doc"][b, k], promised=True),
    Row("field: short documents", lambda: mc.documents("doc") & mc.causal(),
        (1, 32, 8, 16384, 128), _packed(150, 450), _same_document, promised=True),
    Row("field: documents per sequence", lambda: mc.documents("doc") & mc.causal(),
        (8, 16, 8, 4096, 64), _packed(350, 1050), _same_document, promised=True),
    Row("field: BERT, padding", lambda: mc.flags("pad"), (64, 12, 12, 512, 64), _flags,
        lambda d: lambda b, h, q, k: d["pad"][b, k] & (q >= 0)),
    Row("field: block table per head, 5 %", lambda: mc.block_table("table", 64),
        (1, 16, 16, 16384, 128), _table(64, 0.05, heads=16),
        lambda d: lambda b, h, q, k: d["table"][b, h, q // 64, k // 64]),
    Row("field: chunked prefill", lambda: mc.intervals("span"), (6, 32, 8, 32768, 128),
        _behind_caches(512), lambda d: lambda b, h, q, k: k < d["span"][1][b, q], n_q=512),
    Row("field: ragged decoding", lambda: mc.intervals("span"), (64, 64, 8, 16384, 128),
        _behind_caches(1), lambda d: lambda b, h, q, k: k < d["span"][1][b, q], n_q=1),
)  # fmt: skip
"""Cases of models and engines for which nothing was tuned."""

ROWS = _BATCHES + _FIELD
