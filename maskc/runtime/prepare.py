"""From checked views to a plan: sizes, strides, tables and the shapes of results."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from maskc.core.bundle import Bundle, SourceUnit
from maskc.core.problem import Direction
from maskc.core.target import Target
from maskc.runtime import checks
from maskc.runtime.arrays import Array, Shape, out_strides
from maskc.runtime.checks import Sizes
from maskc.runtime.plans import ATTENTION, Kernel, Output, Plan
from maskc.runtime.tables import Tables


def check_call(views: Mapping[str, Array], bundle: Bundle, unit: SourceUnit) -> Sizes:
    """Refuse what does not fit; the sizes of the call otherwise.

    Args:
        views: q, k, v; in a backward also out, dout and lse; alibi_slopes and sink_logits where
            given.

    Raises:
        MC4xx, BadLength: see `checks`.
    """
    target, problem = Target.named(unit.target), bundle.problem
    q = views["q"]
    sizes = checks.check_inputs(q, views["k"], views["v"], problem, target)
    heads = len(bundle.head_variant) or sizes.heads_q
    checks.check_heads(q, heads)
    if "lse" in views:
        shape = (sizes.batch, sizes.heads_q, sizes.n_q, problem.head_dim_v)
        for name in ("out", "dout"):
            checks.check_like(name, views[name], shape, problem.dtype.value, target, q.device)
        checks.check_lse(views["lse"], sizes, target, q.device)
    for name in ("alibi_slopes", "sink_logits"):
        if name in views:
            checks.check_vector(name, views[name], sizes.heads_q, target, q.device)
    if target.language == "cuda":
        checks.check_grid(sizes, unit.tile, q)
    return sizes


def make_plan(
    bundle: Bundle,
    unit: SourceUnit,
    direction: Direction,
    kernel: Kernel | None,
    views: Mapping[str, Array],
    sizes: Sizes,
    params: Mapping[str, int],
    tables: Tables,
    ordered: bool,
) -> Plan:
    """Everything a signature fixes.

    Args:
        kernel: None where nothing will be launched.
        views: checked.
        sizes: from `check_call`.
        params, tables: the mask's, bound to these sizes.
        ordered: whether q's library can store results with tokens before heads.
    """
    outputs = _outputs(bundle, direction, views, sizes, ordered)
    block = _block(bundle, unit, views, sizes, tables, outputs)
    if kernel is not None and direction is Direction.backward:
        outputs = (*outputs[:3], Output((kernel.workspace(block),)), *outputs[4:])
    return Plan(
        direction=direction,
        kernel=kernel,
        device=views["q"].device,
        grid=-(-sizes.n_q // unit.tile.q) * sizes.heads_q * sizes.batch,
        params=params,
        tables=tables,
        numbers=bytes(block),
        outputs=outputs,
    )


def launches(sizes: Sizes, direction: Direction) -> bool:
    """Whether there is anything to compute; without keys a forward still writes empty rows."""
    rows = 0 not in (sizes.batch, sizes.heads_q, sizes.n_q)
    return rows and (sizes.n_kv > 0 or direction is Direction.forward)


def _outputs(
    bundle: Bundle, direction: Direction, views: Mapping[str, Array], sizes: Sizes, ordered: bool
) -> tuple[Output, ...]:
    """out, lse; or dq, dk, dv, the workspace, and the shape of gradients per head."""
    if direction is Direction.forward:
        rows = Output((sizes.batch, sizes.heads_q, sizes.n_q))
        shape = (*rows.shape, bundle.problem.head_dim_v)
        return Output(shape, ordered and _tokens_first(views["q"])), rows
    gradients = (
        Output(tuple(views[name].shape), ordered and _tokens_first(views[name])) for name in "qkv"
    )
    return (*gradients, Output((0,)), Output((sizes.heads_q,)))


def _tokens_first(array: Array) -> bool:
    """Whether a [B, H, N, D] array is a view of one stored as [B, N, H, D]."""
    _, heads, tokens, _ = array.shape
    return heads > 1 and tokens > 1 and array.strides[1] < array.strides[2]


def _block(
    bundle: Bundle, unit: SourceUnit, views: Mapping[str, Array], sizes: Sizes, tables: Tables,
    outputs: tuple[Output, ...],
) -> ctypes.Structure:  # fmt: skip
    """The argument block with every pointer null."""
    block = ATTENTION()
    strides: dict[str, Shape] = {name: views[name].strides for name in "qkv"}
    if "lse" not in views:
        strides["out"] = _strides(outputs[0])
    else:
        strides |= {name: views[name].strides for name in ("out", "dout")}
        named = zip(("dq", "dk", "dv"), outputs, strict=False)
        strides |= {name: _strides(output) for name, output in named}
    for name, steps in strides.items():
        setattr(block, f"{name}_stride", (block.q_stride._type_ * 3)(*steps[:3]))
    for number, slot in enumerate(tables.slots):
        block.array_batch[number] = slot.batch
        block.array_head[number] = slot.head
        block.array_row[number] = slot.row
    block.batch, block.heads_q, block.heads_kv = sizes.batch, sizes.heads_q, sizes.heads_kv
    block.n_q, block.n_kv = sizes.n_q, sizes.n_kv
    block.tile_rows = -(-sizes.n_q // unit.tile.q)
    block.tile_cols = -(-sizes.n_kv // unit.tile.k)
    block.list_batch = tables.list_batch
    block.scale = bundle.problem.head_dim**-0.5
    return block


def _strides(output: Output) -> Shape:
    return out_strides(output.shape, output.tokens_first)
