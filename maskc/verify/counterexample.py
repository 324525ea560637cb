"""A wrong case as a short Python program that shows it."""

from __future__ import annotations

from typing import Any

import numpy as np

from maskc.core.data import CuSeqlens, Parents
from maskc.core.dtypes import DType
from maskc.verify.random_cases import Mismatch, Subject, data_for, inputs, masks_of

_WIDTH = 96


def script(found: Mismatch, subject: Subject) -> str:
    """The program: it exits with 0 where the kernel is right, with 1 where it still is wrong."""
    case, attn = found.case, subject.attn
    problem = attn.bundle.problem
    _, options = inputs(case, subject)
    data = data_for(case, subject)
    names = [*options, *data]
    passed = "".join(f", {name}={name}" for name in names)
    cuda = attn.target.language != "c"
    ranked = "    q, k = np.round(q * 16) / 16, np.round(k * 16) / 16\n" * _ranks(subject)
    heads = f", n_heads={case.heads}" if problem.n_heads else ""
    dense = "".join(f", {name}={name}" for name in data)
    if _ranks(subject):
        dense += ", q=q, k=k"
    return f"""\
# maskc verify: {found.part} is wrong by {found.error:.1e}, {found.allowed:.1e} is allowed.
import sys

import maskc as mc
import numpy as np
{_imports(problem.dtype, cuda)}from maskc.verify.judge import {_error(found.part)}
from maskc.reference.attention import attention, gradients

mask = mc.parse({_text(str(subject.mask))})
batch, heads, kv_heads, n_q, n_kv = {case.batch}, {case.heads}, {case.kv_heads}, {case.n_q}, \
{case.n_kv}
{_lines({**options, **data})}rng = np.random.default_rng({case.seed})
rows, columns = (batch, heads, n_q), (batch, kv_heads, n_kv)
q, k, v, dout = (
    rng.standard_normal((*sides, width), dtype=np.float32)
    for sides, width in ((rows, {problem.head_dim}), (columns, {problem.head_dim}), \
(columns, {problem.head_dim_v}), (rows, {problem.head_dim_v}))
)
{ranked.replace("    q", "q")}{_stored(problem.dtype)}
attn = mask.compile(
    {problem.head_dim}, {problem.head_dim_v}{heads}, dtype="{problem.dtype.value}", \
target="{attn.target.name}"
)
keep = mask.dense(n_q, n_kv, n_heads=heads, heads_kv=kv_heads{dense})
keep = keep.reshape({masks_of(case, subject)}, -1, n_q, n_kv)
given = [{_sent(problem.dtype, cuda, case.strides)} for x in (q, k, v, dout)]
out, lse = attn(*given[:3], return_lse=True{passed})
options = dict({", ".join(f"{name}={name}" for name in options)})
{_compared(found, passed)}
error = {_error(found.part)}(found, expected)
print("error", error, "of", "{found.part}")
sys.exit(not error <= {found.allowed!r})
"""


def _ranks(subject: Subject) -> bool:
    from maskc.dsl.nodes import TopK
    from maskc.reference.dense import walk

    nodes = (node for node in walk(subject.mask) if isinstance(node, TopK))
    return any(node.score in ("qk", "block_mean") for node in nodes)


def _imports(dtype: DType, cuda: bool) -> str:
    lines = ["import torch"] if cuda else []
    lines += ["import ml_dtypes"] if dtype is DType.bfloat16 else []
    return "".join(f"{line}\n" for line in sorted(lines))


def _numpy(dtype: DType) -> str:
    return "ml_dtypes.bfloat16" if dtype is DType.bfloat16 else f"np.{dtype.value}"


def _stored(dtype: DType) -> str:
    if dtype is DType.float32:
        return ""
    kind = _numpy(dtype)
    return f"q, k, v, dout = (x.astype({kind}).astype(np.float32) for x in (q, k, v, dout))\n"


def _sent(dtype: DType, cuda: bool, strides: str) -> str:
    """An expression that makes a tensor of x, with its strides."""
    kind = f"torch.from_numpy(x).to('cuda', torch.{dtype.value})" if cuda else (
        f"x.astype({_numpy(dtype)})"
    )  # fmt: skip
    if strides == "BSHD":
        if cuda:
            return f"{kind}.transpose(1, 2).contiguous().transpose(1, 2)"
        return f"{kind}.swapaxes(1, 2).copy().swapaxes(1, 2)"
    if strides == "padded":
        if cuda:
            return f"torch.nn.functional.pad({kind}, (0, 16))[..., :-16]"
        return f"np.pad({kind}, [(0, 0)] * 3 + [(0, 16)])[..., :-16]"
    return kind


def _compared(found: Mismatch, passed: str) -> str:
    """The lines of a program that make `found` and `expected`."""
    back = "" if found.part in ("out", "lse") else (
        f"dq, dk, dv = attn.backward(*given[:3], out, lse, given[3]{passed})[:3]\n"
    )  # fmt: skip
    expected = {
        "out": "attention(q, k, v, keep, **options)[0]",
        "lse": "attention(q, k, v, keep, **options)[1]",
    }.get(found.part, f'gradients(q, k, v, keep, dout, **options)["{found.part}"]')
    value = found.part
    return f"""\
{back}found = {value}.float().cpu().numpy() if hasattr({value}, "cpu") else \
np.asarray({value}, np.float32)
expected = {expected}"""


def _error(part: str) -> str:
    return "lse_error" if part == "lse" else "row_error"


# ------------------------------------------------------------------ values


def _lines(values: dict[str, Any]) -> str:
    return "".join(f"{name} = {_literal(value)}\n" for name, value in values.items())


def _literal(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_literal, value))})"
    if isinstance(value, Parents):
        return f"mc.parents({_literal(value.array)})"
    if isinstance(value, CuSeqlens):
        return f"mc.cu_seqlens({_literal(value.array)})"
    if isinstance(value, np.ndarray):
        return f"np.array({value.tolist()}, np.{value.dtype.name})"
    return repr(value)


def _text(text: str) -> str:
    """A string literal, in several lines where it is long."""
    if len(text) <= _WIDTH - 20:
        return repr(text)
    parts = [text[at : at + _WIDTH - 10] for at in range(0, len(text), _WIDTH - 10)]
    return "\n    " + "\n    ".join(map(repr, parts)) + "\n"
