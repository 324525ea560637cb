"""Plausible data for masks that read some: packed documents, trees, tables, flags, intervals."""

from __future__ import annotations

from typing import Any

import numpy as np

from maskc.core.data import DataDecl, DataKind, Parents
from maskc.dsl.mask import Mask
from maskc.dsl.nodes import TopK, walk
from maskc.layout import kept_promise
from maskc.verify.case import Case
from maskc.verify.case_tensors import CaseTensors, host


def sample_data(mask: Mask, n_q: int, n_kv: int | None = None, seed: int = 0) -> dict[str, object]:
    """An array (or a pair of them) for every name the mask's caller must pass.

    Args:
        mask: any mask.
        n_q, n_kv: lengths; n_kv = n_q when None.
        seed: the same seed, the same data.

    Returns:
        Host arrays by name; empty for a mask without data. Parameters keep their defaults.
    """
    n_kv = n_q if n_kv is None else n_kv
    wanted = {decl.name: decl for node in walk(mask) for decl in node.decls}
    rng = np.random.default_rng(seed)
    samples = {
        name: _sample(decl, n_q, n_kv, rng)
        for name, decl in sorted(wanted.items())
        if decl.from_caller
    }
    return samples | _ranking([x for x in walk(mask) if isinstance(x, TopK)], n_q, n_kv, rng)


_INDEX_HEADS, _INDEX_DIM = 4, 32


def _ranking(
    selections: list[TopK], n_q: int, n_kv: int, rng: np.random.Generator
) -> dict[str, object]:
    """Return inputs of run-time selections: small integers, so that every score is exact in
    fp32."""
    by = {one.score for one in selections}
    shapes: dict[str, tuple[int, ...]] = {}
    if "indexer" in by:
        shapes["index_q"] = (1, _INDEX_HEADS, n_q, _INDEX_DIM)
        shapes["index_k"] = (1, n_kv, _INDEX_DIM)
        shapes["index_w"] = (1, _INDEX_HEADS, n_q)
    if "given" in by:
        sizes = {x.scored_blocks for x in selections if x.score == "given"}
        q_block, block = sizes.pop() if len(sizes) == 1 else (1, 1)
        shapes["scores"] = (-(-n_q // q_block), -(-n_kv // block))
    return {name: rng.integers(-3, 4, size).astype(np.float32) for name, size in shapes.items()}


def true_mask(case: Case, tensors: CaseTensors) -> np.ndarray:
    """bool [n_q, n_kv], after batch and heads where these differ, by the reference."""
    reads: dict[str, Any] = {"heads_kv": case.kv_heads, **case.data}
    if case.ranks_by_qk:
        reads |= {"q": host(tensors.q), "k": host(tensors.k)}
    return case.mask.dense(case.n_q, case.n_kv, n_heads=case.heads, **reads)


def _sample(decl: DataDecl, n_q: int, n_kv: int, rng: np.random.Generator) -> object:
    match decl.kind:
        case DataKind.documents:
            ids = _documents(max(n_q, n_kv), rng)
            return ids if n_q == n_kv else (ids[len(ids) - n_q :], ids[len(ids) - n_kv :])
        case DataKind.flags:
            return kept_promise(decl, rng.random(n_q if decl.on_queries else n_kv) < 0.2)
        case DataKind.intervals:
            low = rng.integers(0, n_kv + 1, n_q)
            return low, low + rng.integers(0, n_kv // 2 + 1, n_q)
        case DataKind.positions:
            count = n_q if decl.on_queries else n_kv
            return np.sort(rng.permutation(2 * max(n_q, n_kv))[:count]).astype(np.int32)
        case DataKind.tree:
            tokens = np.arange(max(n_q, n_kv))
            back = rng.integers(1, 4, len(tokens))
            return Parents(np.maximum(tokens - back, -1))
        case DataKind.key_lists:
            return rng.integers(-1, n_kv, (n_q, max(1, n_kv // 8))).astype(np.int32)
    shape = (-(-n_q // decl.block), -(-n_kv // decl.block))
    return rng.random(shape) < 0.3


def _documents(n: int, rng: np.random.Generator) -> np.ndarray:
    """Ascending ids of documents of between n / 16 and n / 4 tokens or so."""
    lengths = rng.integers(max(n // 16, 1), max(n // 4, 2), 17 if n else 0)
    return np.repeat(np.arange(len(lengths)), lengths)[:n].astype(np.int32)
