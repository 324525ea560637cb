"""The named problems that kernels are compared on, as maskc masks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

import numpy as np

from benchmarks import formulas as by_hand
from maskc.core.dtypes import DType
from maskc.core.errors import ExtraMissing
from maskc.dsl.combinators import (
    block_diagonal,
    causal,
    chunked,
    dilated,
    full,
    global_tokens,
    prefix,
    sinks,
    topk,
    window,
)
from maskc.dsl.data_atoms import block_table, cu_seqlens, documents
from maskc.dsl.mask import Mask
from maskc.dsl.tracer import where
from maskc.verify.case import Case, Formula
from maskc.verify.case_tensors import numpy_dtype


@dataclass(frozen=True)
class Anchor:
    """A mask and the sizes it is run at; windows count the query itself, as in `window.hf`."""

    name: str
    mask: Callable[[], Mask]
    batch: int
    heads: int
    n: int
    head_dim: int
    data: Callable[[], dict[str, object]] = dict
    formula: Formula | None = None
    """The mask by hand."""
    kv_heads: int = 0
    """The key heads; 0: as many as query heads."""
    n_q: int = 0
    """The queries; 0: as many as `n`, the keys."""
    alpha: float = 1.0
    """This is entmax's parameter; 1 is softmax."""
    head_dim_v: int | None = None
    """As wide as rows of q, where None."""

    def case(self, dtype: DType) -> Case:
        """The problem itself; its data are drawn here."""
        return Case(
            self.name, self.mask(), self.batch, self.heads, self.kv_heads or self.heads,
            self.n_q or self.n, self.n, self.head_dim, dtype, self.data(), self.formula,
            self.alpha, head_dim_v=self.head_dim_v,
        )  # fmt: skip


def streaming(n_sinks: int, size: int) -> Mask:
    """Attention sinks and a causal window of `size` keys."""
    return causal() & (sinks(n_sinks) | window.hf(size))


def longformer(side: int, n_global: int) -> Mask:
    """A window of `side` keys on each side, and global tokens."""
    return window(side, side) | global_tokens(n_global)


def sparse_strided(stride: int) -> Mask:
    """Sparse Transformer, strided: the last `stride` keys and every stride-th one behind."""
    return causal() & (window.hf(stride) | where(lambda q, k: (q - k) % stride == 0))


def moba(block: int, top: int) -> Mask:
    """A query's own block, causal, and the `top` - 1 past blocks of best mean product."""
    earlier = where(lambda q, k: k // block < q // block)
    return topk(top - 1, earlier, score="block_mean", block=block) | chunked(block)


def exponential(size: int, levels: int) -> Mask:
    """`size` keys at each of the strides 1, 2, 4, ..."""
    return reduce(or_, (dilated(size - 1, stride=2**level) for level in range(levels)))


# ------------------------------------------------------------------ data, drawn by PyTorch

# Other projects were timed on these very tables, and they come from PyTorch's generator.


def _generator() -> tuple[Any, Any]:
    try:
        import torch
    except ImportError:
        raise ExtraMissing("this anchor's data", "torch", "torch") from None
    return torch, torch.Generator().manual_seed(0)


def bigbird_blocks(blocks: int, near: int, drawn: int, n_global: int) -> np.ndarray:
    """bool [blocks, blocks]: `near` diagonals, global rows and columns, `drawn` random ones."""
    torch, seeded = _generator()
    index = np.arange(blocks)
    found = abs(index[:, None] - index) <= near // 2
    found[:, :n_global] = found[:n_global] = True
    for row in range(blocks):
        found[row, torch.randperm(blocks, generator=seeded)[:drawn].numpy()] = True
    return found


def random_blocks(blocks: int, share: float) -> np.ndarray:
    """bool [blocks, blocks]: each block with probability `share`, the diagonal always."""
    torch, seeded = _generator()
    return (torch.rand(blocks, blocks, generator=seeded) < share).numpy() | np.eye(
        blocks, dtype=bool
    )


def index(
    heads: int, n_q: int, n_kv: int, dim: int, dtype: str = "float32"
) -> dict[str, np.ndarray]:
    """Draw the arrays that an indexer ranks by: index_q [1, heads, n_q, dim], index_k [1, n_kv,
    dim] and index_w [1, heads, n_q].

    They are so coarse that scores are exact in fp32; index_q and index_k have the dtype.
    """
    rng = np.random.default_rng(0)
    shapes = {
        "index_q": (1, heads, n_q, dim),
        "index_k": (1, n_kv, dim),
        "index_w": (1, heads, n_q),
    }
    found = {
        name: rng.integers(-8, 9, shape, np.int8) / np.float32(4) for name, shape in shapes.items()
    }
    kind = numpy_dtype(dtype)
    return {name: x if name == "index_w" else x.astype(kind, copy=False)
            for name, x in found.items()}  # fmt: skip


def document_ids(n: int) -> np.ndarray:
    """int32 [n]: packed documents of 64 to 4095 tokens."""
    torch, seeded = _generator()
    lengths: list[int] = []
    while sum(lengths) < n:
        lengths.append(int(torch.randint(64, 4096, (1,), generator=seeded)))
    return np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)[:n]


def packed_ends(n: int, longest: int) -> np.ndarray:
    """int32 [documents + 1]: ends of documents of half of a length, to all of it."""
    rng = np.random.default_rng(0)
    ends = np.cumsum(rng.integers(longest // 2, longest + 1, 2 * n // longest + 1))
    return np.concatenate([[0], ends[ends < n], [n]]).astype(np.int32)


def _short_documents(longest: int, head_dim: int, promise: bool) -> Anchor:
    """Packed documents, with `max_seqlen` or without."""
    name = f"documents{longest}_4k_d{head_dim}{'_promised' if promise else ''}"
    return Anchor(
        name, lambda: causal() & documents("doc"), 1, 64, 4096, head_dim,
        lambda: {"doc": cu_seqlens(packed_ends(4096, longest), longest if promise else None)},
    )  # fmt: skip


def _random(name: str, batch: int, n: int, share: float) -> Anchor:
    """A random table of 128 x 128 blocks."""
    return Anchor(
        name, lambda: block_table("table", 128), batch, 16, n, 128,
        lambda: {"table": random_blocks(n // 128, share)}, by_hand.blocks(128),
    )  # fmt: skip


def _plain(
    name: str, mask: Callable[[], Mask], formula: Formula, batch: int, heads: int, n: int,
    head_dim: int = 128,
) -> Anchor:  # fmt: skip
    """A mask that reads no data."""
    return Anchor(name, mask, batch, heads, n, head_dim, dict, formula)


# ------------------------------------------------------------------ the lists

CPU = (
    Anchor("window512_4k", lambda: window.hf(512), 1, 8, 4096, 64),
    Anchor("streaming_16_256_4k", lambda: streaming(16, 256), 1, 8, 4096, 64),
    Anchor("blockdiag128_4k", lambda: block_diagonal(128), 1, 8, 4096, 64),
    Anchor("causal_4k", causal, 1, 8, 4096, 64),
    Anchor("topk64_2k", lambda: topk(64, causal()) | window.hf(32), 1, 8, 2048, 64),
    Anchor("moba_128_2k", lambda: moba(128, 4), 1, 8, 2048, 64),
)
"""What the CPU kernels are judged by."""

_W1024 = by_hand.window(1024)

SM80 = (
    _plain("full_8k", full, by_hand.full, 2, 16, 8192),
    _plain("causal_16k", causal, by_hand.causal, 1, 16, 16384),
    _plain("window1024_32k", lambda: window.hf(1024), _W1024, 1, 16, 32768),
    _plain("full_8k_d64", full, by_hand.full, 2, 32, 8192, 64),
    _plain("causal_16k_d64", causal, by_hand.causal, 1, 16, 16384, 64),
    _plain("window1024_32k_d64", lambda: window.hf(1024), _W1024, 1, 16, 32768, 64),
)
"""What libraries have kernels of their own for."""

SIMT = (
    _plain("full_4k_d64", full, by_hand.full, 1, 16, 4096, 64),
    _plain("causal_4k_d128", causal, by_hand.causal, 1, 16, 4096),
    _plain("window1024_16k_d64", lambda: window.hf(1024), _W1024, 1, 8, 16384, 64),
    _plain(
        "streaming_16_64_4k_d64",
        lambda: streaming(16, 64),
        by_hand.streaming(16, 64),
        1,
        6,
        4096,
        64,
    ),
    _plain(
        "blockdiag64_4k_d64", lambda: block_diagonal(64), by_hand.block_diagonal(64), 1, 6, 4096, 64
    ),
)
"""What fp32 on CUDA cores is judged by, beside PyTorch's kernels for it."""

DENSE = (
    *SM80[3:5],
    _plain("full_8k_d256", full, by_hand.full, 1, 16, 8192, 256),
    _plain("causal_16k_d256", causal, by_hand.causal, 1, 8, 16384, 256),
)
"""Full and causal at the other head dimensions."""

SEVENTEEN = (
    *SM80[:3],
    _plain("window4096_128k", lambda: window.hf(4096), by_hand.window(4096), 1, 8, 131072),
    _plain("streaming_16_64_4k", lambda: streaming(16, 64), by_hand.streaming(16, 64), 1, 16, 4096),
    _plain(
        "streaming_64_1024_128k", lambda: streaming(64, 1024), by_hand.streaming(64, 1024),
        1, 8, 131072,
    ),
    _plain(
        "blockdiag16_4k", lambda: block_diagonal(16), by_hand.block_diagonal(16), 1, 16, 4096, 64
    ),
    _plain(
        "longformer_256_g64_16k", lambda: longformer(256, 64), by_hand.longformer(256, 64),
        1, 12, 16384, 64,
    ),
    _plain(
        "dilated_w512_s4_32k", lambda: dilated(511, stride=4), by_hand.dilated(512, 4),
        1, 16, 32768,
    ),
    _plain(
        "strided_128_16k", lambda: sparse_strided(128), by_hand.strided(128), 1, 16, 16384
    ),
    _plain(
        "logdilated_256x6_32k", lambda: exponential(256, 6), by_hand.exponential(256, 6),
        1, 16, 32768,
    ),
    Anchor(
        "bigbird64_16k", lambda: block_table("table", 64), 1, 12, 16384, 64,
        lambda: {"table": bigbird_blocks(256, 3, 3, 2)}, by_hand.blocks(64),
    ),
    _plain("prefixlm_4k_16k", lambda: causal() | prefix(4096), by_hand.prefix(4096), 1, 16, 16384),
    Anchor(
        "document_32k", lambda: causal() & documents("doc"), 1, 16, 32768, 128,
        lambda: {"doc": document_ids(32768)}, by_hand.documents,
    ),
    _random("random50_4k", 4, 4096, 0.5),
    _random("random25_8k", 2, 8192, 0.25),
    _random("random10_16k", 1, 16384, 0.1),
)  # fmt: skip
"""The structured masks, and full and causal at head dimension 128."""


def _decode(batch: int, keys: int, heads: int = 32, kv_heads: int = 8, dim: int = 128) -> Anchor:
    """One query for each sequence behind `keys` times 1024 keys."""
    unusual = "" if (heads, kv_heads) == (32, 8) else f"_{heads}_{kv_heads}"
    name = f"decode_{batch}x{keys}k{unusual}{'' if dim == 128 else f'_d{dim}'}"
    return Anchor(name, full, batch, heads, 1024 * keys, dim, kv_heads=kv_heads, n_q=1)


DECODING = (
    *(_decode(*sizes) for sizes in (
        (32, 16), (8, 32), (1, 128), (64, 1), (1, 8), (128, 4, 64, 8), (16, 4, 32, 32),
        (1, 64, 8, 8), (32, 8, 28, 4), (64, 4, 32, 8, 64), (8, 8, 16, 8, 256),
    )),
    Anchor("decode_4096_32x32k", lambda: window.hf(4096), 32, 32, 32768, 128, kv_heads=8, n_q=1),
    Anchor("decode_16_1024_16x32k", lambda: streaming(16, 1024), 16, 32, 32768, 128,
           kv_heads=8, n_q=1),
    Anchor("verify4_8x32k", causal, 8, 32, 32768, 128, kv_heads=8, n_q=4),
)  # fmt: skip
"""One query, or the four that a draft model proposed, for each sequence; four heads share keys."""

DOCUMENTS = tuple(
    _short_documents(longest, head_dim, promise)
    for head_dim in (64, 128)
    for longest in (80, 200, 500)
    for promise in (False, True)
)
"""Short documents in tiles of one size, and in those that a promised length chooses."""


def scattered(n: int, count: int, seed: int | None = None) -> list[int]:
    """Distinct tokens, the same in every run."""
    drawn = np.random.default_rng(count if seed is None else seed)
    return sorted(drawn.choice(n, count, replace=False).tolist())


def flags_of(n: int, count: int, seed: int | None = None) -> np.ndarray:
    """bool [n], true at scattered tokens."""
    found = np.zeros(n, dtype=bool)
    found[scattered(n, count, seed)] = True
    return found


GLOBALS = (
    Anchor("window128_16_ids_4k", lambda: window(128, 128) | global_tokens(scattered(4096, 16)),
           8, 12, 4096, 64),
    Anchor("window128_16_flags_4k", lambda: window(128, 128) | global_tokens("globals", at_most=16),
           8, 12, 4096, 64, lambda: {"globals": flags_of(4096, 16)}, by_hand.near_or_global(128)),
    Anchor("window512_500_columns_32k",
           lambda: window(512) & causal() | global_tokens(scattered(32768, 500)).columns,
           1, 32, 32768, 128, kv_heads=8),
)  # fmt: skip
"""Scattered global tokens: of which every tile has some."""


def _dsa(name: str, n: int, dtype: str = "float32") -> Anchor:
    """DeepSeek-V3.2's attention: 128 heads over one, 64 heads of an indexer."""
    return Anchor(
        name, lambda: topk(2048, causal(), score="indexer", share="all"), 1, 128, n, 128,
        lambda: index(64, 32768, n, 128, dtype), kv_heads=1, n_q=32768,
    )  # fmt: skip


SELECTIONS = (
    Anchor("topk512_8k", lambda: topk(512, causal()), 1, 16, 8192, 64),
    Anchor("blocks16_64_32k", lambda: topk(16, causal(), score="block_mean", block=64, q_block=64,
           share="group"), 1, 32, 32768, 128, kv_heads=2),
    Anchor("moba512_4_8k", lambda: moba(512, 4), 1, 16, 8192, 128),
    _dsa("dsa2048_32k", 32768),
    _dsa("dsa2048_128k", 131072),
    _dsa("dsa2048_32k_e4m3", 32768, "float8_e4m3fn"),
)  # fmt: skip
"""Keys, and blocks of 64 and of 512, that each query chooses at run time."""

ENTMAX = (
    *(
        Anchor(f"entmax{alpha:g}_window1024_32k", lambda: window.hf(1024), 1, 16, 32768, 64,
               formula=_W1024, alpha=alpha)
        for alpha in (1.5, 2.0)
    ),
    Anchor("entmax1.5_causal_8k", causal, 1, 16, 8192, 64, formula=by_hand.causal, alpha=1.5),
)  # fmt: skip
"""Weights by alpha-entmax in place of softmax."""

SPLASH = (
    *(
        Anchor(f"splash{top}_{n // 1024}k", lambda top=top: topk(top, causal()), 1, 16, n, 64,
               alpha=1.5)
        for top, n in ((32, 4096), (32, 8192), (256, 8192))
    ),
    Anchor("entmax1.5_causal_4k", causal, 1, 16, 4096, 64, formula=by_hand.causal, alpha=1.5),
)  # fmt: skip
"""SplashAttention: alpha-entmax over the keys that each query chooses; the last chooses none."""

HEADS = tuple(
    Anchor(f"{name}_8k_d{of_qk}{'' if of_v == of_qk else f'_{of_v}'}", mask, 1, 16, 8192, of_qk,
           formula=formula, head_dim_v=of_v)
    for name, mask, formula in (("full", full, by_hand.full), ("causal", causal, by_hand.causal))
    for of_qk, of_v in ((72, 72), (80, 80), (96, 96), (112, 112), (160, 160), (192, 128))
)  # fmt: skip
"""Head dimensions between the kernels' widths, beside one of these."""

WIDE = (
    Anchor("full_4k_d512", full, 1, 16, 4096, 512, formula=by_hand.full),
    Anchor("causal_8k_d512", causal, 1, 16, 8192, 512, formula=by_hand.causal, kv_heads=4),
    Anchor("window1024_16k_d512", lambda: window.hf(1024), 1, 16, 16384, 512, formula=_W1024,
           kv_heads=4),
    Anchor("causal_2k_d576_512", causal, 1, 128, 2048, 576, formula=by_hand.causal, kv_heads=1,
           head_dim_v=512),
)  # fmt: skip
"""Rows of 512 elements, as Gemma's global layers have, and of 576 beside 512 of v, as DeepSeek's
absorbed attention has: 128 heads share keys."""

ANCHORS = (*SEVENTEEN[:2], *DENSE, *SEVENTEEN[2:])
"""The anchor suite: twenty-one cases."""
