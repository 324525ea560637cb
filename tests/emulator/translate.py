"""A rendered CUDA source as C++: every PTX instruction becomes a call of the emulator."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple


class Asm(NamedTuple):
    """One asm statement."""

    text: str
    """Instructions, without line ends."""
    outs: list[str]
    ins: list[str]


class Unknown(Exception):
    """An instruction that the emulator does not have."""


Rule = tuple[str, str | Callable[[Asm, re.Match[str]], str]]


def _box(call: str, first: int, more: str = "") -> Callable[[Asm, re.Match[str]], str]:
    def made(asm: Asm, _: re.Match[str]) -> str:
        at = ", ".join(f"(int)({x})" for x in asm.ins[first:])
        return f"emu::{call}({', '.join(asm.ins[:first])}, {{{at}}}{more})"

    return made


def _matrices(kind: str) -> Callable[[Asm, re.Match[str]], str]:
    def made(asm: Asm, found: re.Match[str]) -> str:
        count, turned = int(found[1]), "true" if found[2] else "false"
        if kind == "store":
            x = ", ".join(asm.ins[1:] + ["0"] * (4 - count))
            return f"{{ const emu::u32 emu_x[4] = {{{x}}}; emu::matrices_store({asm.ins[0]}, emu_x, {count}, {turned}); }}"
        x = ", ".join([f"&({out})" for out in asm.outs] + ["nullptr"] * (4 - count))
        return f"{{ emu::u32 *const emu_x[4] = {{{x}}}; emu::matrices_load(emu_x, {asm.ins[0]}, {count}, {turned}); }}"

    return made


def _wgmma(asm: Asm, found: re.Match[str]) -> str:
    columns, half = int(found[1]), "true" if found[2] == "f16" else "false"
    turned = re.search(r"add,\s*1, 1, (\d)(?:, (\d))?;", asm.text)
    registers = len(asm.ins) == 6
    if registers:
        a, b, add = asm.ins[:4], asm.ins[4], asm.ins[5]
        b_turned, a_turned = turned[1], "0"
        begin = f"const emu::u32 emu_a[4] = {{{', '.join(a)}}};"
        operands = "nullptr, emu_a"
    else:
        a, b, add = asm.ins
        a_turned, b_turned = turned[1], turned[2]
        begin = f"const emu::u64 emu_a = {a};"
        operands = "&emu_a, nullptr"
    d = asm.outs[0]
    return (f"{{ {begin} emu::wgmma(&({d}), {columns}, {operands}, {b}, {add}, {a_turned}, "
            f"{b_turned}, {half}); }}")  # fmt: skip


def _mma(asm: Asm, found: re.Match[str]) -> str:
    c = ", ".join(f"&({out})" for out in asm.outs)
    half = "true" if found[1] == "f16" else "false"
    return (f"{{ float *const emu_c[4] = {{{c}}}; const emu::u32 emu_a[4] = {{{', '.join(asm.ins[:4])}}}, "
            f"emu_b[2] = {{{', '.join(asm.ins[4:6])}}}; emu::mma(emu_c, emu_a, emu_b, {half}); }}")  # fmt: skip


# The first that matches; {o0}, {i0} are operands, {1} a group of the match.
RULES: tuple[Rule, ...] = (
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
    (r"cp\.async\.bulk\.tensor\.\dd\.shared::cluster", lambda a, m: _box("load_tensor", 3)(a, m)),
    (r"cp\.async\.bulk\.tensor\.\dd\.global", lambda a, m: _box("store_tensor", 2, ", false")(a, m)),
    (r"cp\.reduce\.async\.bulk\.tensor\.\dd\.global", lambda a, m: _box("store_tensor", 2, ", true")(a, m)),
    (r"cp\.reduce\.async\.bulk\.global\.shared::cta.*\.add\.f32", "emu::add_floats({i0}, {i1}, {i2})"),
    (r"cp\.async\.bulk\.shared::cluster\.global", "emu::load_bytes({i0}, {i1}, {i2}, {i3})"),
    (r"cp\.async\.bulk\.global\.shared::cta", "emu::store_bytes({i0}, {i1}, {i2})"),
    (r"cp\.async\.bulk\.commit_group", "emu::bulk_commit()"),
    (r"cp\.async\.bulk\.wait_group(?:\.read)? %0", "emu::bulk_wait({i0})"),
    (r"cp\.async\.c[ag]\.shared\.global\S* \[%0\], \[%1\], (\d+), %2", "emu::copy_async({i0}, {i1}, {1}, {i2})"),
    (r"cp\.async\.c[ag]\.shared\.global\S* \[%0\], \[%1\], (\d+);", "emu::copy_async({i0}, {i1}, {1}, {1})"),
    (r"cp\.async\.commit_group", "emu::copy_commit()"),
    (r"cp\.async\.wait_group %0", "emu::copy_wait({i0})"),
    (r"cp\.async\.wait_all", "emu::copy_wait(0)"),
    (r"setmaxnreg", ""),
    (r"elect\.sync", "{o0} = emu::lane() == 0"),
    (r"stmatrix\.sync\.aligned\.m8n8\.x(\d)(\.trans)?", _matrices("store")),
    (r"ldmatrix\.sync\.aligned\.m8n8\.x(\d)(\.trans)?", _matrices("load")),
    (r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.(bf16|f16)", _wgmma),
    (r"wgmma\.fence", ""),
    (r"wgmma\.commit_group", "emu::wgmma_commit()"),
    (r"wgmma\.wait_group\.sync\.aligned %0", "emu::wgmma_wait({i0})"),
    (r"wgmma\.wait_group\.sync\.aligned (\d)", "emu::wgmma_wait({1})"),
    (r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.(bf16|f16)", _mma),
    (r"mov\.u32 %0, memory", "{o0} = 0"),
    (r"mov\.b32 \{low, high\}, %2.*cvt\.f32\.f16",
     "{o0} = emu::widen({i0} & 0xffff, true), {o1} = emu::widen({i0} >> 16, true)"),
    (r"cvt\.rn\.(bf16|f16)x2\.f32", lambda a, m: f"{a.outs[0]} = emu::pack({a.ins[1]}, {a.ins[0]}, "
                                              f"{'true' if m[1] == 'f16' else 'false'})"),
    (r"ex2\.approx\.ftz\.f32", "{o0} = emu::exp2_fast({i0})"),
    (r"lg2\.approx\.ftz\.f32", "{o0} = emu::log2_fast({i0})"),
    (r"rcp\.approx\.ftz\.f32", "{o0} = emu::reciprocal_fast({i0})"),
    (r"max\.NaN\.f32", "{o0} = emu::max_nan({i0}, {i1})"),
    (r"^shl\.b32", "{o0} = emu::shift_left({i0}, {i1})"),
    (r"^shr\.u32", "{o0} = emu::shift_right({i0}, {i1})"),
    (r"^\s*fence\.", ""),
)  # fmt: skip

_BEGIN = re.compile(r"\basm\b(?:\s+volatile)?\s*\(")
_SHARED = re.compile(
    r"(?<!extern )__shared__\s+(?:__align__\(\d+\)\s+)?([\w ]*?\w)\s+(\w+)((?:\[[^\]]*\])*);"
)
_EXTERN = re.compile(r"extern __shared__ __align__\(\d+\) unsigned char memory\[\];")
_KERNEL = re.compile(r'extern "C" __global__ void(?:\s+__launch_bounds__\([^)]*\))?\s+(\w+)\s*\(')


def translated(source: str) -> tuple[str, tuple[str, ...]]:
    """(C++ that includes device.h, entry points).

    Raises:
        Unknown: an instruction has no rule.
    """
    element = re.search(r'#define ELEMENT "(\w+)"', source)
    text = _statements(source, element[1] if element else "")
    count = iter(range(1 << 20))
    text = _EXTERN.sub("#define memory (emu::arena())", text, count=1)
    text = _SHARED.sub(
        lambda m: f"auto &{m[2]} = emu::shared_variable<{m[1]}{m[3]}, {next(count)}>();", text
    )
    entries = tuple(_KERNEL.findall(text))
    cases = "".join(
        f'    if (!strcmp(entry, "{name}"))\n'
        f"        return emu::launch({name}, given, blocks, threads, shared, seed);\n"
        for name in entries
    )
    return (
        f'#include "device.h"\n{text}\n#undef memory\n'
        'extern "C" const char *emulated(const char *entry, void **given, int blocks,\n'
        "                                int threads, int shared, unsigned long seed) {\n"
        f'{cases}    return "no such entry point";\n}}\n'
    ), entries


def _statements(source: str, element: str) -> str:
    pieces, at = [], 0
    for found in _BEGIN.finditer(source):
        if found.start() < at:
            continue
        end = _closing(source, found.end() - 1)
        pieces += [source[at : found.start()], _statement(source[found.end() : end], element)]
        at = end + 1
    return "".join([*pieces, source[at:]])


def _closing(text: str, at: int) -> int:
    """Where the parenthesis at `at` closes."""
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
    """At `by`, but inside of strings and parentheses."""
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


def _statement(inside: str, element: str) -> str:
    code, *rest = _split(inside, ":")
    words = re.findall(r'"((?:[^"\\]|\\.)*)"|(ELEMENT)', code)
    text = "".join(element if word else string for string, word in words)
    text = re.sub(r"//[^\\]*", "", text).replace("\\n", " ").replace("\\t", " ").strip()
    outs, ins = (_operands(part) for part in [*rest, "", ""][:2])
    asm = Asm(text, outs, ins)
    for pattern, made in RULES:
        found = re.search(pattern, text)
        if found:
            return made(asm, found) if callable(made) else _filled(made, asm, found)
    raise Unknown(text)


def _filled(made: str, asm: Asm, found: re.Match[str]) -> str:
    named = {f"o{i}": f"({x})" for i, x in enumerate(asm.outs)}
    named |= {f"i{i}": f"({x})" for i, x in enumerate(asm.ins)}
    return re.sub(r"\{(\w+)\}", lambda m: named.get(m[1]) or found[int(m[1])], made)


def _operands(text: str) -> list[str]:
    found = []
    for part in _split(text, ","):
        match = re.match(r'\s*"[^"]*"\s*\((.*)\)\s*$', part, re.DOTALL)
        if match:
            found.append(match[1])
    return found
