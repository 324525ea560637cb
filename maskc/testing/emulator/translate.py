"""A CUDA source, as the preprocessor leaves it, in C++: PTX becomes calls of the emulator."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple


class Asm(NamedTuple):
    """One asm statement."""

    text: str
    """Instructions, without line ends."""
    outs: list[str]
    ins: list[str]


class Unknown(Exception):
    """An instruction that the emulator does not have."""


Made = Callable[[Asm, re.Match[str]], str]


def _bool(holds: object) -> str:
    return "true" if holds else "false"


def _words(values: list[str], count: int) -> str:
    """A list of `count` 32-bit numbers."""
    return ", ".join(f"(emu::u32)({x})" for x in [*values, *["0"] * (count - len(values))])


def _places(values: list[str], count: int) -> str:
    """A list of `count` pointers."""
    return ", ".join([*(f"&({x})" for x in values), *["nullptr"] * (count - len(values))])


def _box(call: str, first: int, more: str = "") -> Made:
    def made(asm: Asm, instruction: re.Match[str]) -> str:
        dims = int(instruction[1])  # a hint for L2 may follow the coordinates
        at = ", ".join(f"(int)({x})" for x in asm.ins[first : first + dims])
        return f"emu::{call}({', '.join(asm.ins[:first])}, {{{at}}}{more})"

    return made


def _load_matrices(asm: Asm, match: re.Match[str]) -> str:
    to = _places(asm.outs, 4)
    return f"emu::matrices_load({{{to}}}, {asm.ins[0]}, {match[1]}, {_bool(match[2])})"


def _store_matrices(asm: Asm, match: re.Match[str]) -> str:
    x = _words(asm.ins[1:], 4)
    return f"emu::matrices_store({asm.ins[0]}, {{{x}}}, {match[1]}, {_bool(match[2])})"


def _mma(asm: Asm, match: re.Match[str]) -> str:
    a, b = _words(asm.ins[:4], 4), _words(asm.ins[4:6], 2)
    return f"emu::mma({{{_places(asm.outs, 4)}}}, {{{a}}}, {{{b}}}, {_bool(match[1] == 'f16')})"


def _wgmma(asm: Asm, match: re.Match[str]) -> str:
    *a, b, add = asm.ins
    if match[2] == "e4m3" and len(a) == 4:
        d = f"&({asm.outs[0]}), {match[1]}"
        return f"emu::wgmma_byte_registers({d}, {{{_words(a, 4)}}}, {b}, {add})"
    if match[2] == "e4m3":  # along columns, both
        return f"emu::wgmma_bytes(&({asm.outs[0]}), {match[1]}, {a[0]}, {b}, {add})"
    flags = re.search(r"add,\s*1, 1, (?:(\d), )?(\d);", asm.text)
    if flags is None:
        raise Unknown(asm.text)
    begin, d, turned = "emu::wgmma", f"&({asm.outs[0]}), {match[1]}", _bool(flags[1] == "1")
    rest = f"{b}, {add}, {turned}, {_bool(flags[2] == '1')}, {_bool(match[2] == 'f16')})"
    if len(a) == 4:
        return f"{begin}_registers({d}, {{{_words(a, 4)}}}, {rest}"
    return f"{begin}({d}, {a[0]}, {rest}"


def _pack(asm: Asm, match: re.Match[str]) -> str:
    high, low = asm.ins
    return f"{asm.outs[0]} = emu::pack({low}, {high}, {_bool(match[1] == 'f16')})"


def _fma_pairs(asm: Asm, match: re.Match[str]) -> str:
    x, y, z = asm.ins
    return f"{asm.outs[0]} = emu::fma_pairs({x}, {y}, {z}, {_bool(match[1] == 'f16')})"


# The first that matches; {o0}, {i0} are operands, {1} a group of the match.
RULES: tuple[tuple[str, str | Made], ...] = (
    (r"setp\.eq\.u32 q, .* nanosleep", "(void)0;"),  # settle: reads registers, does nothing
    (r"^\s*$", ""),
    (r"mbarrier\.init", "emu::barrier_init({i0}, {i1})"),
    (r"cp\.async\.mbarrier\.arrive\.noinc", "emu::copy_arrive({i0})"),
    (r"mbarrier\.arrive\.expect_tx", "emu::barrier_expect({i0}, {i1})"),
    (r"mbarrier\.arrive", "emu::barrier_arrive({i0})"),
    (r"mbarrier\.try_wait\.parity", "emu::barrier_wait({i0}, {i1})"),
    (r"red\.release\.gpu\.global\.add\.s32 \[%0\], 1", "*({i0}) += 1"),
    (r"ld\.acquire\.gpu\.global\.b32", "{o0} = emu::poll({i0})"),
    (r"bar\.sync %0, %1", "emu::named_sync({i0}, {i1})"),
    (r"bar\.arrive %0, %1", "emu::named_arrive({i0}, {i1})"),
    (r"cp\.async\.bulk\.tensor\.(\d)d\.shared::cluster", _box("load_tensor", 3)),
    (r"cp\.async\.bulk\.tensor\.(\d)d\.global", _box("store_tensor", 2, ", false")),
    (r"cp\.reduce\.async\.bulk\.tensor\.(\d)d\.global", _box("store_tensor", 2, ", true")),
    (
        r"red\.global\.add\.v4\.f32",
        "atomicAdd({i0}, {i1}), atomicAdd({i0} + 1, {i2}), "
        "atomicAdd({i0} + 2, {i3}), atomicAdd({i0} + 3, {i4})",
    ),
    (r"cp\.reduce\.async\.bulk\.global.*add\.f32", "emu::add_floats({i0}, {i1}, {i2})"),
    (r"cp\.async\.bulk\.shared::cluster\.global",
     "emu::load_bytes({i0}, {i1}, {i2}, {i3})"),
    (r"cp\.async\.bulk\.global\.shared::cta", "emu::store_bytes({i0}, {i1}, {i2})"),
    (r"cp\.async\.bulk\.commit_group", "emu::bulk_commit()"),
    (r"cp\.async\.bulk\.wait_group(?:\.read)? %0", "emu::bulk_wait({i0})"),
    (r"cp\.async\.c[ag]\S* \[%0\], \[%1\], (\d+), %2",
     "emu::copy_async({i0}, {i1}, {1}, {i2})"),
    (r"cp\.async\.c[ag]\S* \[%0\], \[%1\], (\d+);", "emu::copy_async({i0}, {i1}, {1}, {1})"),
    (r"cp\.async\.commit_group", "emu::copy_commit()"),
    (r"cp\.async\.wait_group %0", "emu::copy_wait({i0})"),
    (r"cp\.async\.wait_all", "emu::copy_wait(0)"),
    (r"setmaxnreg", ""),
    (r"griddepcontrol", ""),
    (r"elect\.sync", "{o0} = emu::lane() == 0"),
    (r"stmatrix\.sync\.aligned\.m8n8\.x(\d)(\.trans)?", _store_matrices),
    (r"ldmatrix\.sync\.aligned\.m8n8\.x(\d)(\.trans)?", _load_matrices),
    (r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k\d+\.f32\.(bf16|f16|e4m3)", _wgmma),
    (r"wgmma\.fence", ""),
    (r"wgmma\.commit_group", "emu::wgmma_commit()"),
    (r"wgmma\.wait_group\.sync\.aligned %0", "emu::wgmma_wait({i0})"),
    (r"wgmma\.wait_group\.sync\.aligned (\d)", "emu::wgmma_wait({1})"),
    (r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.(bf16|f16)", _mma),
    (r"movmatrix\.sync\.aligned\.m8n8\.trans\.b16", "{o0} = emu::transposed({i0})"),
    (r"mov\.u32 %0, memory", "{o0} = 0"),
    (r"cvt\.rn\.f16x2\.e4m3x2 %0, first;", "emu::halves_of_bytes({o0}, {o1}, {i0})"),
    (r"^\s*cvt\.f32\.f16 %0, %1", "{o0} = emu::widen({i0}, true)"),
    (r"mov\.b32 \{low, high\}, %2.*cvt\.f32\.f16",
     "{o0} = emu::widen({i0} & 0xffff, true), {o1} = emu::widen({i0} >> 16, true)"),
    (r"^cvt\.f32\.f16", "{o0} = emu::widen({i0}, true)"),
    (r"cvt\.rn\.satfinite\.e4m3x2\.f32 low, %2, %1;.*high, %4, %3;",
     "{o0} = emu::pack_bytes({i0}, {i1}, {i2}, {i3})"),
    (r"cvt\.rn\.(bf16|f16)x2\.f32", _pack),
    (r"cvt\.rn\.f16\.f32", "{o0} = emu::pack({i0}, 0.0f, true) & 0xffff"),
    (r"fma\.rn\.(bf16|f16)x2", _fma_pairs),
    (r"ex2\.approx\.ftz\.f32", "{o0} = emu::exp2_fast({i0})"),
    (r"lg2\.approx\.ftz\.f32", "{o0} = emu::log2_fast({i0})"),
    (r"rcp\.approx\.ftz\.f32", "{o0} = emu::reciprocal_fast({i0})"),
    (r"fma\.rn\.f32", "{o0} = fmaf({i0}, {i1}, {o0})"),
    (r"max\.NaN\.f32", "{o0} = emu::max_nan({i0}, {i1})"),
    (r"setp\.ge\.f32 reaches, .* inside,", "emu::list_one({o0}, {o1}, {i0}, {i1}, {i2}, {i3})"),
    (r"^shl\.b32", "{o0} = emu::shift_left({i0}, {i1})"),
    (r"^shr\.u32", "{o0} = emu::shift_right({i0}, {i1})"),
    (r"^\s*fence\.", ""),
)  # fmt: skip

_BEGIN = re.compile(r"\basm\b(?:\s+volatile)?\s*\(")
_SHARED = re.compile(
    r"(?<!extern )__shared__\s+(?:__align__\(\d+\)\s+)?([\w ]*?\w)\s+(\w+)((?:\[[^\]]*\])*);"
)
_EXTERN = re.compile(r"extern __shared__ __align__\(\d+\) unsigned char memory\[\];")
_C = 'extern "C"'
_KERNEL = re.compile(rf"{_C} __global__ void(?:\s+__launch_bounds__\([^)]*\))?\s+(\w+)\s*\(")


def translated(source: str, only: tuple[str, ...] = ()) -> str:
    """Return C++ that includes device.h, for a source without directives of the preprocessor.

    Args:
        only: the entry points that will be launched, else all; others take no time to compile.

    Raises:
        Unknown: an instruction has no rule.
    """
    count = iter(range(1 << 20))
    text = _EXTERN.sub("\n#define memory (emu::arena())\n", _statements(source), count=1)
    text = _SHARED.sub(
        lambda m: f"auto &{m[2]} = emu::shared_variable<{m[1]}{m[3]}, {next(count)}>();", text
    )
    if only:
        text = _KERNEL.sub(lambda m: m[0] if m[1] in only else "inline" + m[0][len(_C) :], text)
    cases = "".join(
        f'    if (!strcmp(entry, "{name}"))\n'
        f"        return emu::launch({name}, given, blocks, threads, shared, seed);\n"
        for name in _KERNEL.findall(text)
    )
    return (
        f'#include "device.h"\n{text}\n#undef memory\n'
        'extern "C" const char *emulated(const char *entry, void **given, int blocks,\n'
        "                                int threads, int shared, unsigned long seed) {\n"
        f'{cases}    return "no such entry point";\n}}\n'
    )


def _statements(source: str) -> str:
    pieces, at = [], 0
    for begin in _BEGIN.finditer(source):
        end = _closing(source, begin.end() - 1)
        pieces += [source[at : begin.start()], _statement(source[begin.end() : end])]
        at = end + 1
    return "".join([*pieces, source[at:]])


def _closing(text: str, at: int) -> int:
    """The place where the parenthesis at `at` closes."""
    depth, quoted = 0, False
    for i in range(at, len(text)):
        if text[i] == '"' and text[i - 1] != "\\":
            quoted = not quoted
        elif not quoted:
            depth += (text[i] == "(") - (text[i] == ")")
            if depth == 0:
                return i
    raise Unknown("a statement that does not end")


def _split(text: str, by: str) -> list[str]:
    """The text split at `by`, except inside strings and parentheses."""
    parts, depth, quoted, last = [], 0, False, 0
    for i, c in enumerate(text):
        if c == '"' and text[i - 1 : i] != "\\":
            quoted = not quoted
        elif not quoted:
            depth += (c in "([{") - (c in ")]}")
            lonely = by != ":" or (text[i + 1 : i + 2] != ":" and text[i - 1 : i] != ":")
            if c == by and depth == 0 and (lonely or by == ":"):
                parts.append(text[last:i])
                last = i + 1
    return [*parts, text[last:]]


@cache
def _statement(inside: str) -> str:
    """Return the call of the emulator for a statement; most sources have most statements of
    others."""
    code, *rest = _split(inside, ":")
    text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', code))
    text = re.sub(r"//[^\\]*", "", text).replace("\\n", " ").replace("\\t", " ").strip()
    outs, ins = (_operands(part) for part in [*rest, "", ""][:2])
    asm = Asm(text, outs, ins)
    for pattern, made in RULES:
        match = re.search(pattern, text)
        if match:
            return made(asm, match) if callable(made) else _filled(made, asm, match)
    raise Unknown(text)


def _filled(made: str, asm: Asm, match: re.Match[str]) -> str:
    named = {f"o{i}": f"({x})" for i, x in enumerate(asm.outs)}
    named |= {f"i{i}": f"({x})" for i, x in enumerate(asm.ins)}
    return re.sub(r"\{(\w+)\}", lambda m: named.get(m[1]) or match[int(m[1])], made)


def _operands(text: str) -> list[str]:
    operands = []
    for part in _split(text, ","):
        match = re.match(r'\s*"[^"]*"\s*\((.*)\)\s*$', part, re.DOTALL)
        if match:
            operands.append(match[1])
        elif part.strip() not in ("", '"memory"'):
            raise Unknown(f"operands {part.strip()}")
    return operands
