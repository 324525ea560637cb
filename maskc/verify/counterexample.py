"""A wrong case as a short Python program that shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from maskc.core.data import CuSeqlens, Parents
from maskc.core.dtypes import DType
from maskc.verify.case import ranks_by_qk
from maskc.verify.random_cases import (
    GRADIENTS,
    DrawnCase,
    MaskUnderTest,
    Mismatch,
    data_for,
    inputs,
    masks_of,
)

_WIDTH = 96


def script(mismatch: Mismatch, subject: MaskUnderTest, command: str = "maskc verify") -> str:
    """Return the program. It exits with 0 if the kernel is right, and with 1 if it is still wrong.

    Args:
        command: the command that found it, for the first line.
    """
    case, attn = mismatch.case, subject.kernels[mismatch.case.dtype]
    problem = attn.bundle.problem
    _, options = inputs(case, subject)
    data = data_for(case, subject)
    cuda = attn.target.language != "c"
    place = _Place(cuda, cuda or case.data_as_tensors, subject.emulated)
    passed = "".join(f", {name}={name}" for name in [*options, *data])
    ranked = "q, k = np.round(q * 16) / 16, np.round(k * 16) / 16\n" * ranks_by_qk(subject.mask)
    heads = f", n_heads={case.heads}" if problem.n_heads else ""
    sent = {**(options if place.cuda else {}), **(data if case.data_as_tensors else {})}
    tensors = "".join(
        f"{name} = {place.moved(name, value)}\n"
        for name, value in sent.items()
        if isinstance(value, _ARRAYS)
    )
    dense = "".join(f", {name}={name}" for name in data)
    if ranks_by_qk(subject.mask):
        dense += ", q=q, k=k"
    return f"""\
# {command}: {_said(mismatch)}.
import sys

import maskc as mc
import numpy as np
{_imports(problem.dtype, place)}\
from maskc.reference.attention import attention, gradients

{place.start}mask = mc.parse({_text(str(subject.mask))})
batch, heads, kv_heads, n_q, n_kv = {case.batch}, {case.heads}, {case.kv_heads}, {case.n_q}, \
{case.n_kv}
{_lines({**options, **data})}rng = np.random.default_rng({case.seed})
rows, columns = (batch, heads, n_q), (batch, kv_heads, n_kv)
q, k, v, dout = (
    rng.standard_normal((*sides, width), dtype=np.float32)
    for sides, width in ((rows, {problem.head_dim}), (columns, {problem.head_dim}), \
(columns, {problem.head_dim_v}), (rows, {problem.head_dim_v}))
)
{ranked}{_stored(problem.dtype)}
attn = mask.compile(
    {problem.head_dim}, {problem.head_dim_v}{heads}, dtype="{problem.dtype.value}", \
target="{attn.target.name}"
)
keep = mask.dense(n_q, n_kv, n_heads=heads, heads_kv=kv_heads{dense})
keep = np.broadcast_to(keep.reshape({masks_of(case, subject)}, -1, n_q, n_kv), \
(batch, heads, n_q, n_kv))
options = dict({", ".join(f"{name}={name}" for name in options)})


def stored(x):
    return {place.sent(problem.dtype, case.strides)}


def values(x):
    return x.float().cpu().numpy() if hasattr(x, "cpu") else np.asarray(x, np.float32)


{tensors}given = [stored(x) for x in (q, k, v, dout)]
out, lse = attn(*given[:3], return_lse=True{passed})
{_compared(mismatch, case, passed)}"""


_ARRAYS = (np.ndarray, tuple, Parents, CuSeqlens)


def _said(mismatch: Mismatch) -> str:
    if mismatch.part == "call":
        return f"a call raises {mismatch.raised.splitlines()[0][:200]}"
    if mismatch.part == "planted":
        return f"a key of NaN is not where it should be for {mismatch.error:.0f} queries"
    return f"{mismatch.part} is wrong by {mismatch.error:.1e}, {mismatch.allowed:.1e} is allowed"


@dataclass(frozen=True)
class _Place:
    """The device of a program's tensors, and what it must do first."""

    cuda: bool
    """Whether the target is a GPU."""
    tensors: bool
    """Whether q, k and v are tensors of PyTorch."""
    emulated: bool
    """Whether the GPU is not there."""

    @property
    def start(self) -> str:
        """Lines that put the emulator in place of a GPU."""
        return "emulator.start()\n" if self.emulated else ""

    def sent(self, dtype: DType, strides: str) -> str:
        """An expression that makes a tensor of x, with its strides."""
        if not self.tensors:
            kind = f"x.astype({_numpy(dtype)})"
            if strides == "BSHD":
                return f"{kind}.swapaxes(1, 2).copy().swapaxes(1, 2)"
            if strides == "padded":
                return f"np.pad({kind}, [(0, 0)] * 3 + [(0, 16)])[..., :-16]"
            return kind
        device = "'cuda', " if self.cuda and not self.emulated else ""
        kind = f"torch.from_numpy(x).to({device}torch.{dtype.value})"
        if strides == "BSHD":
            return f"{kind}.transpose(1, 2).contiguous().transpose(1, 2)"
        if strides == "padded":
            return f"torch.nn.functional.pad({kind}, (0, 16))[..., :-16]"
        return kind

    def moved(self, name: str, value: Any) -> str:
        """An expression that makes a tensor of what `name` holds."""
        if isinstance(value, tuple):
            return f"tuple({self.moved('x', value[0])} for x in {name})"
        if isinstance(value, Parents):
            return f"mc.parents({self.moved(name + '.array', value.array)})"
        if isinstance(value, CuSeqlens):
            return f"mc.cu_seqlens({self.moved(name + '.array', value.array)})"
        if not isinstance(value, np.ndarray):
            return name
        device = ".cuda()" if self.cuda and not self.emulated else ""
        return f"torch.from_numpy({name}){device}"


def _imports(dtype: DType, place: _Place) -> str:
    lines = ["import torch"] if place.tensors else []
    lines += ["import ml_dtypes"] if dtype is DType.bfloat16 else []
    lines = sorted(lines) + ["from maskc.testing import emulator"] * place.emulated
    return "".join(f"{line}\n" for line in lines)


def _numpy(dtype: DType) -> str:
    return "ml_dtypes.bfloat16" if dtype is DType.bfloat16 else f"np.{dtype.value}"


def _stored(dtype: DType) -> str:
    if dtype is DType.float32:
        return ""
    kind = _numpy(dtype)
    return f"q, k, v, dout = (x.astype({kind}).astype(np.float32) for x in (q, k, v, dout))\n"


def _compared(mismatch: Mismatch, case: DrawnCase, passed: str) -> str:
    """The lines of a program that compare, and exit."""
    order = f", deterministic={case.deterministic}" * case.deterministic
    results = ["dq", "dk", "dv", *(GRADIENTS[x] for x in GRADIENTS if x in case.options)]
    back = f"attn.backward(*given[:3], out, lse, given[3]{order}{passed})"
    if mismatch.part == "call":
        return f"{back}\n"
    if mismatch.part == "planted":
        return f"""\
k[:, :, {case.seed % case.n_kv}] = np.nan
again = values(attn(given[0], stored(k), given[2]{passed}))
spread, same = np.isnan(again).all(3), (again == values(out)).all(3)
wrong = ~np.where(keep[..., {case.seed % case.n_kv}], spread, same)
print(int(wrong.sum()), "queries are wrong")
sys.exit(wrong.any())
"""
    if mismatch.part in ("out", "lse"):
        place = 0 if mismatch.part == "out" else 1
        expected, line = f"attention(q, k, v, keep, **options)[{place}]", ""
    else:
        expected = f'gradients(q, k, v, keep, dout, **options)["{mismatch.part}"]'
        line = f"{', '.join(results)} = {back}\n"
    return f"""\
{line}found, expected = values({mismatch.part}), {expected}
{_ERRORS.get(mismatch.part, _ROWS)}
print("error", error, "of", "{mismatch.part}")
sys.exit(not error <= {mismatch.allowed!r})
"""


_ROWS = """\
norm = np.linalg.norm(expected, axis=3)
size = np.maximum(norm, np.sqrt((norm**2).mean(2, keepdims=True)))
error = (np.linalg.norm(found - expected, axis=3) / np.maximum(size, 1e-300)).max()"""
_HEADS = """\
size = np.maximum(abs(expected), np.sqrt((expected**2).mean()))
error = (abs(found - expected) / np.maximum(size, 1e-300)).max()"""
_ERRORS = {
    "lse": """\
with np.errstate(invalid="ignore"):
    off = abs(found - expected) / np.maximum(abs(expected), 1)
error = np.where(found == expected, 0, off).max()""",
    "dsink": _HEADS,
    "dalibi": _HEADS,
}
"""Code that measures the error of a part; see `maskc.verify.full_judge`."""


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
