"""Bundles made by hand: formulas as text, one CPU source that holds them all, no planner.

`FORMULAS` are written the way masks print; the C side comes from the template, the expected pairs
from `pairs`, which spells each mask a second time in NumPy.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from maskc.core.abi import WORK_FIELDS
from maskc.core.bundle import (
    Bundle,
    Grid,
    Launch,
    LayoutRecipe,
    Mode,
    SourceUnit,
    Variant,
    WorkList,
)
from maskc.core.data import DataDecl, DataKind
from maskc.core.dtypes import DType
from maskc.core.expr import Expr, Param, Sym, const, transform
from maskc.core.expr_text import parse_expr
from maskc.core.problem import Direction, Problem, TileShape
from maskc.core.target import TARGETS
from maskc.emit.c_printer import CPrinter
from maskc.emit.environment import environment, render
from tests.support.cpu_harness import TEMPLATE, shape, spec

FORMULAS = {
    "band": "(k <= q + n_kv - n_q) & (k >= q + n_kv - n_q - param('w', 20)) | (k < 3)",
    "gaps": "((q - k) % 5 == 0) & (k >= q + 70)",
    "documents": "doc.q[q] == doc.k[k]",
    "table": "blocks[q // 16, k // 16] != 0",
}
"""A band with sinks; a lattice that leaves many queries without a key; data of two kinds."""
NAMES = tuple(FORMULAS)
ARRAYS = ("doc.q", "doc.k", "blocks")
DOCUMENTS = DataDecl("doc", DataKind.documents, ("doc.q", "doc.k"))
TABLE = DataDecl("blocks", DataKind.table, ("blocks",), block=16)
TILE = TileShape(64, 64)


@cache
def cpu_unit(dtype: str = "float32", head_dim: int = 32, head_dim_v: int = 48) -> SourceUnit:
    """The CPU source of all formulas."""
    printer = CPrinter(ARRAYS)
    shapes = [shape(printer(_lifted(parse_expr(text)))) for text in FORMULAS.values()]
    source = spec(
        *shapes, n_args=1, ranks=(1, 1, 2), dtype=DType.parse(dtype), head_dim=head_dim,
        head_dim_v=head_dim_v, tile=TILE,
    )  # fmt: skip
    return SourceUnit("cpu", render(TEMPLATE, source), TILE, False, directions=tuple(Direction))


@cache
def cuda_unit(head_dim: int = 64, mode: str = "") -> SourceUnit:
    """A slow CUDA source of all formulas, bfloat16; more shared memory than is free for all.

    With mode `items` or `stream` it reads a work list.
    """
    printer = CPrinter(ARRAYS)
    shapes = [shape(printer(_lifted(parse_expr(text)))) for text in FORMULAS.values()]
    source = replace(
        spec(
            *shapes, n_args=1, ranks=(1, 1, 2), dtype=DType.bfloat16, head_dim=head_dim,
            head_dim_v=head_dim, tile=TILE,
        ),
        target=TARGETS["sm_80"],
    )  # fmt: skip
    template = Path(__file__).with_name("naive.cu.j2").read_text()
    text = environment().from_string(template).render(spec=source, fields=len(WORK_FIELDS))
    shared = max(4 * TILE.q * head_dim, 64 * 1024)
    launch = Launch("attention_forward", Grid[mode or "rows"], TILE.q, shared)
    macro = {"": "", "items": "ITEMS", "stream": "PERSISTENT"}[mode]
    if macro not in text:
        raise ValueError(f"naive.cu.j2 does not ask for {macro}")
    return SourceUnit(
        "sm_80", text, TILE, ranges=False, modes=(("default", Mode((launch,), macro)),),
        work=WorkList(300) if mode else None,
    )  # fmt: skip


def _lifted(keep: Expr) -> Expr:
    """The formula with its one parameter as the kernel's first constant."""
    return transform(keep, lambda node: Sym("c0") if isinstance(node, Param) else None)


def variant(name: str) -> Variant:
    """One of `FORMULAS`."""
    keep = parse_expr(FORMULAS[name])
    arg = Param("w", 20) if name == "band" else const(0)
    return Variant(keep, NAMES.index(name), (arg,), (LayoutRecipe(TILE, keep, None),))


def bundle(
    *names: str,
    dtype: str = "float32",
    head_dim: int = 32,
    head_dim_v: int = 48,
    head_variant: tuple[int, ...] = (),
    units: tuple[SourceUnit, ...] | None = None,
) -> Bundle:
    """A bundle whose distinct masks are the named formulas."""
    data = {"documents": (DOCUMENTS,), "table": (DOCUMENTS, TABLE)}
    declared = {decl.name: decl for name in names for decl in data.get(name, ())}
    arrays = tuple(name for decl in declared.values() for name in decl.arrays)
    return Bundle(
        name="by_hand",
        problem=Problem(head_dim, head_dim_v, DType.parse(dtype), len(head_variant) or None),
        variants=tuple(map(variant, names)),
        head_variant=head_variant,
        arrays=arrays,
        data=tuple(declared.values()),
        params=(("w", 20),) if "band" in names else (),
        units=units or (cpu_unit(dtype, head_dim, head_dim_v),),
        report="by hand",
    )


def pairs(
    name: str,
    n_q: int,
    n_kv: int,
    *,
    w: int = 20,
    doc: tuple[np.ndarray, np.ndarray] | None = None,
    blocks: np.ndarray | None = None,
) -> np.ndarray:
    """bool [n_q, n_kv]: one of `FORMULAS` for one sequence and head."""
    q, k = np.arange(n_q)[:, None], np.arange(n_kv)[None, :]
    if name == "band":
        p = q + n_kv - n_q
        return ((p - w <= k) & (k <= p)) | (k < 3)
    if name == "gaps":
        return (k - q >= 70) & ((k - q) % 5 == 0)
    if name == "documents":
        return doc[0][:, None] == doc[1][None, :]
    return blocks[q // 16, k // 16] != 0
