"""`python -m benchmarks.scores [-o FILE] [ROW ...]`: what formulas of the score cost, both passes.

A causal mask with each formula is timed in turns with FlexAttention, which is given the same
formula as a score_mod, and beside the mask without any. Passes with gradients of tables are rows of
their own. Everything is compiled ahead in many processes. Results are checked against fp64 on a few
rows of queries; gradients of tables against FlexAttention's, where it has them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.prepare import use_caches

use_caches()

import torch  # noqa: E402

import maskc as mc  # noqa: E402
from benchmarks.fa4 import installed  # noqa: E402
from maskc.verify.rivals import compiled_flex, start_anew  # noqa: E402
from maskc.verify.timing import Timed, take_turns  # noqa: E402

Data = Mapping[str, Any]
Mod = Callable[[Any, Any, Any, Any, Any], Any]
HEADS, TOKENS, CAP = 16, 16384, 30.0
_ROUNDS, _WORKERS = 12, 12
_SAMPLES = (0, 1, 127, 128, 4095, 9000, TOKENS - 1)
"""Queries that are checked."""


@dataclass(frozen=True)
class Row:
    """A formula for maskc and for FlexAttention; without the former, an option of a call."""

    name: str
    score: Callable[[], mc.Score | None]
    data: Callable[[], dict[str, Any]]
    """By the keywords of calls."""
    mod: Callable[[Data], Mod | None]
    learned: bool = False
    """Whether tables get gradients."""


def _nothing() -> dict[str, Any]:
    return {}


def _slopes() -> dict[str, Any]:
    return {"slopes": 2.0 ** (-8 * torch.arange(1, HEADS + 1, device="cuda") / HEADS)}


def _table(*shape: int) -> Callable[[], dict[str, Any]]:
    def made() -> dict[str, Any]:
        generator = torch.Generator("cuda").manual_seed(1)
        return {"bias": torch.randn(shape, device="cuda", generator=generator)}

    return made


def _alibi_mod(data: Data) -> Mod:
    slopes = data["slopes" if "slopes" in data else "alibi_slopes"]
    return lambda s, b, h, q, k: s - slopes[h] * (q - k)


def _cap_mod(data: Data) -> Mod:
    return lambda s, b, h, q, k: CAP * torch.tanh(s / CAP)


def _relative_mod(data: Data) -> Mod:
    bias = data["bias"]
    return lambda s, b, h, q, k: s + bias[h, q - k + TOKENS]


def _t5_mod(data: Data) -> Mod:
    """T5's own buckets of a decoder: 32, the last one from 128 on."""
    bias = data["bias"]

    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        far = torch.clamp(q - k, min=0)
        large = 16 + (torch.log(torch.clamp(far, min=1).float() / 16) / 2.0794415 * 16).to(q.dtype)
        return s + bias[torch.where(far < 16, far, torch.clamp(large, max=31)), h]

    return mod


def _relative() -> mc.Score:
    given = mc.table("bias")
    return mc.score(lambda s, q, k, h: s + given[h, q - k + TOKENS])


ROWS = (
    Row("none", lambda: None, _nothing, lambda data: None),
    Row("ALiBi", mc.scores.alibi, _slopes, _alibi_mod),
    Row("soft-cap", lambda: mc.scores.soft_cap(CAP), _nothing, _cap_mod),
    Row("relative", _relative, _table(HEADS, 2 * TOKENS), _relative_mod),
    Row("T5", mc.scores.t5, _table(32, HEADS), _t5_mod),
    Row("ALiBi, option", lambda: None,
        lambda: {"alibi_slopes": _slopes()["slopes"]}, _alibi_mod),
    Row("soft-cap, option", lambda: None, lambda: {"softcap": CAP}, _cap_mod),
    Row("ALiBi, learned", mc.scores.alibi, _slopes, _alibi_mod, True),
    Row("relative, learned", _relative, _table(HEADS, 2 * TOKENS), _relative_mod, True),
    Row("T5, learned", mc.scores.t5, _table(32, HEADS), _t5_mod, True),
)  # fmt: skip


# ------------------------------------------------------------------ calls


def _tensors(dim: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shape = (1, HEADS, TOKENS, dim)
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4)]


def _attend(row: Row, impl: str, dim: int, data: Data) -> Callable[..., Any]:
    """What computes the output of q, k and v with `data`."""
    if impl == "maskc":
        score = row.score()
        attn = mc.causal().compile(
            dim, n_heads=HEADS, dtype="bfloat16", target="sm_90a", score=score
        )
        return lambda q, k, v: attn(q, k, v, **data)
    start_anew()
    return compiled_flex(
        lambda b, h, q, k: q >= k, (None, None, TOKENS, TOKENS), "cuda", False,
        impl == "flex_flash", score_mod=row.mod(data),
    )  # fmt: skip


def _leaves(row: Row, tensors: list[torch.Tensor], data: dict[str, Any]) -> list[torch.Tensor]:
    """What gets gradients; `data` then holds its own."""
    found = [x.detach().requires_grad_() for x in tensors[:3]]
    if row.learned:
        for name, x in data.items():
            data[name] = x.detach().clone().requires_grad_()
            found.append(data[name])
    return found


@dataclass(frozen=True)
class Passes:
    """Both passes of one implementation, each run once."""

    forward: Callable[[], Any]
    backward: Callable[[], Any] | None
    out: Any
    gradients: Any


def passes(row: Row, impl: str, dim: int) -> Passes:
    """Made and run once."""
    tensors, data = _tensors(dim), row.data()
    leaves = _leaves(row, tensors, data)
    attend = _attend(row, impl, dim, data)

    def forward() -> Any:
        with torch.no_grad():
            return attend(*tensors[:3])

    def backward() -> Any:
        return torch.autograd.grad(graph, leaves, tensors[3], retain_graph=True)

    out = forward()
    try:
        graph = attend(*leaves[:3])
        return Passes(forward, backward, out, backward())
    except Exception as error:  # FLASH has no backward pass for some
        if impl == "maskc":
            raise
        print(f"    {impl}, {row.name}, backward: {str(error).splitlines()[0][:120]}", flush=True)
        return Passes(forward, None, out, None)


# ------------------------------------------------------------------ fp64


def exact_rows(row: Row, dim: int) -> tuple[Any, Any]:
    """out and dq of the sampled queries of all heads, in fp64."""
    q, k, v, dout = _tensors(dim)
    mod, rows = row.mod(row.data()), torch.tensor(_SAMPLES, device="cuda")
    columns, outs, dqs = torch.arange(TOKENS, device="cuda"), [], []
    for head in range(HEADS):
        own = q[0, head, rows].double().requires_grad_()
        scores = own @ k[0, head].double().T * dim**-0.5
        if mod is not None:
            place = [torch.tensor(i, device="cuda") for i in (0, head)]
            scores = mod(scores, *place, rows[:, None], columns[None])
        scores = scores.masked_fill(columns[None] > rows[:, None], -torch.inf)
        out = torch.softmax(scores, -1) @ v[0, head].double()
        (dq,) = torch.autograd.grad(out, own, dout[0, head, rows].double())
        outs.append(out.detach())
        dqs.append(dq)
    return torch.stack(outs), torch.stack(dqs)


def _errors(found: Passes, want: tuple[Any, Any]) -> dict[str, float]:
    pairs = {"out": (found.out, want[0])}
    if found.gradients is not None:
        pairs["dq"] = found.gradients[0], want[1]
    return {
        name: round(float((x[0][:, list(_SAMPLES)].double() - y).norm() / y.norm()), 5)
        for name, (x, y) in pairs.items()
    }


# ------------------------------------------------------------------ measuring


def _compiled(name: str, impl: str, dim: int) -> str:
    """In a process of its own: kernels are in the caches afterwards."""
    try:
        passes(next(row for row in ROWS if row.name == name), impl, dim)
    except Exception as error:  # told when it is timed
        return f"{impl}, {name}, {dim}: {str(error)[:200]}"
    return ""


def prepare(rows: list[Row], impls: tuple[str, ...], dims: tuple[int, ...]) -> None:
    """Compile everything in many processes."""
    work = [(row.name, impl, dim) for impl in reversed(impls) for dim in dims for row in rows]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(_WORKERS, os.cpu_count() or 1), context) as pool:
        for done in as_completed([pool.submit(_compiled, *each) for each in work]):
            if said := done.result():
                print(f"    {said}", flush=True)


def measure(row: Row, impls: tuple[str, ...], dim: int, rounds: int) -> dict[str, Any]:
    """Check and time one row."""
    made: dict[str, Passes] = {}
    for impl in impls:
        try:
            made[impl] = passes(row, impl, dim)
        except Exception as error:
            print(f"    {impl}: {str(error).splitlines()[0][:120]}", flush=True)
    want = exact_rows(row, dim)
    found: dict[str, Any] = {"row": row.name, "dim": dim}
    found["errors"] = {impl: _errors(one, want) for impl, one in made.items()}
    if row.learned and made.keys() >= {"maskc", "flex"} and made["flex"].gradients:
        one, two = (made[impl].gradients[3].double() for impl in ("maskc", "flex"))
        found["table beside flex"] = round(float((one - two).norm() / two.norm()), 5)
    plain = passes(ROWS[0], "maskc", dim) if row.name != "none" and "maskc" in made else None
    for direction in ("forward", "backward"):
        timed = {
            impl: Timed(getattr(one, direction)) for impl, one in made.items()
            if getattr(one, direction) is not None
        }  # fmt: skip
        if plain is not None:
            timed["maskc, none"] = Timed(getattr(plain, direction))
        times = take_turns(timed, rounds, "cuda")
        found[direction] = {name: round(ms, 3) for name, ms in times.items()}
    return found


def main() -> None:
    """Measure rows whose names hold one of those given, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--impls", default="maskc,flex,flex_flash")
    parser.add_argument("--dims", default="128,64")
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    asked = parser.parse_args()
    impls = tuple(x for x in asked.impls.split(",") if x != "flex_flash" or installed())
    dims = tuple(map(int, asked.dims.split(",")))
    rows = [row for row in ROWS if not asked.rows or any(x in row.name for x in asked.rows)]
    environment = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    print(json.dumps(environment), flush=True)
    prepare(rows, impls, dims)
    print("compiled", flush=True)
    results = []
    for dim in dims:
        for row in rows:
            results.append(measure(row, impls, dim, asked.rounds))
            print(json.dumps(results[-1]), flush=True)
            with suppress(TypeError):
                torch.cuda.empty_cache()
            if asked.output:
                text = json.dumps({"environment": environment, "rows": results}, indent=1)
                asked.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
