"""Attention layers of published models, and formulas of the score: eager, SDPA, FlexAttention and
maskc, forward and backward.

A layer is what a model calls its attention function with: q [B, Hq, N, D], k and v [B, Hkv, N, D],
transposes of tensors [B, N, H, D] as projections give them. Every implementation computes what
transformers' function of that name computes, written with PyTorch alone. All results are checked
against fp64, on the first and the last group of heads, before anything is timed.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from benchmarks import fa4
from benchmarks.report import aligned, reason
from maskc.api import attention
from maskc.dsl.combinators import causal, chunked, window
from maskc.dsl.mask import Mask
from maskc.dsl.score_tracer import Score, score, table
from maskc.lab.environment import environment
from maskc.lab.rivals import Missing, Unavailable, compiled_flex, quiet, start_anew
from maskc.scores import alibi, soft_cap, t5
from maskc.verify.timing import Timed, take_turns

Keep = Callable[[Any, Any], Any]
"""Whether query q sees key k; both are integer tensors."""
Tables = Mapping[str, Any]
"""What a formula of the score reads, by the keywords of calls."""
Mod = Callable[..., Any]
"""A score_mod(s, b, h, q, k) of FlexAttention."""
Call = Callable[..., Any]
"""A function of (q, k, v), and sink logits where a layer has them, to out [B, Hq, N, D]."""

TIMES_UNFUSED = 2.0
"""How many times those of unfused attention the errors may be, in half precision."""
FULL_PRECISION = 1e-5
"""The bound of fp32, relative."""
_ROWS = 1 << 26
"""Scores of a group of heads that the judge holds at a time."""


@dataclass(frozen=True)
class Layer:
    """The attention of one layer of a model."""

    name: str
    model: str
    heads: int
    kv_heads: int
    head_dim: int
    mask: Mask
    keep: Keep
    """The mask again, as FlexAttention and the judge read it."""
    scale: float
    softcap: float | None = None
    sinks: bool = False
    """Whether each head has a sink logit in the denominator."""
    score: Callable[[int], Score] | None = None
    """The formula of the score for maskc, at a length; without it tables are options of a call."""
    tables: Callable[[int, int, Any], Tables] = lambda heads, n, device: {}
    """What the formula reads, for so many heads, at a length and on a device."""
    formula: Callable[[Tables, int], Mod] | None = None
    """The formula again, as FlexAttention and the judge read it."""
    learned: bool = False
    """Whether tables get gradients."""

    @property
    def group(self) -> int:
        """Query heads that share a key/value head."""
        return self.heads // self.kv_heads

    def mod(self, tables: Tables, n: int) -> Mod | None:
        """What scores become after scaling; None where they stay."""
        if self.softcap is not None:
            return _cap(self.softcap)
        return None if self.formula is None else self.formula(tables, n)


def _causal(q: Any, k: Any) -> Any:
    return k <= q


def _window(size: int) -> Keep:
    return lambda q, k: (k <= q) & (k > q - size)


def _chunk(size: int) -> Keep:
    return lambda q, k: (k <= q) & (q // size == k // size)


MODELS = (
    Layer("gpt_oss_window", "gpt-oss-120b", 64, 8, 64, window.hf(128), _window(128), 64**-0.5,
          sinks=True),
    Layer("gpt_oss_full", "gpt-oss-120b", 64, 8, 64, causal(), _causal, 64**-0.5, sinks=True),
    Layer("gemma2_window", "Gemma 2 27B", 32, 16, 128, window.hf(4096), _window(4096), 144**-0.5,
          softcap=50.0),
    Layer("gemma2_full", "Gemma 2 27B", 32, 16, 128, causal(), _causal, 144**-0.5, softcap=50.0),
    Layer("gemma3_window", "Gemma 3 27B", 32, 16, 128, window.hf(1024), _window(1024),
          168**-0.5),
    Layer("llama4_chunk", "Llama 4 Scout", 40, 8, 128, chunked(8192), _chunk(8192), 128**-0.5),
    Layer("llama4_full", "Llama 4 Scout", 40, 8, 128, causal(), _causal, 128**-0.5),
)  # fmt: skip


# ------------------------------------------------------------------ formulas of the score

_CAP = 30.0


def _cap(most: float) -> Mod:
    import torch

    return lambda s, b, h, q, k: most * torch.tanh(s / most)


def _slopes(name: str, heads: int, n: int, device: Any) -> Tables:
    import torch

    return {name: 2.0 ** (-8 * torch.arange(1, heads + 1, device=device) / heads)}


def _biases(wide: bool, heads: int, n: int, device: Any) -> Tables:
    """[heads, 2 n], or T5's [32, heads]."""
    import torch

    draw = torch.Generator(device).manual_seed(1)
    shape = (heads, 2 * n) if wide else (32, heads)
    return {"bias": torch.randn(shape, device=device, generator=draw)}


def _alibi(tables: Tables, n: int) -> Mod:
    (slopes,) = tables.values()
    return lambda s, b, h, q, k: s - slopes[h] * (q - k)


def _relative(tables: Tables, n: int) -> Mod:
    return lambda s, b, h, q, k: s + tables["bias"][h, q - k + n]


def _t5(tables: Tables, n: int) -> Mod:
    """T5's own buckets of a decoder: 32, the last one from 128 on."""
    import torch

    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        far = torch.clamp(q - k, min=0)
        large = 16 + (torch.log(torch.clamp(far, min=1).float() / 16) / 2.0794415 * 16).to(q.dtype)
        return s + tables["bias"][torch.where(far < 16, far, torch.clamp(large, max=31)), h]

    return mod


def _relative_score(n: int) -> Score:
    bias = table("bias")
    return score(lambda s, q, k, h: s + bias[h, q - k + n])


def _formulas(dim: int, end: str) -> Iterator[Layer]:
    """A causal mask alone and with each formula, as a formula and as an option of a call; with
    gradients of its tables, too."""
    plain = Layer(f"score_none{end}", "", 16, 16, dim, causal(), _causal, dim**-0.5)

    def made(name: str, **changes: Any) -> Layer:
        return replace(plain, name=f"score_{name}{end}", **changes)

    yield plain
    yield made("cap", score=lambda n: soft_cap(_CAP), formula=lambda tables, n: _cap(_CAP))
    yield made("cap_option", softcap=_CAP)
    yield made("alibi_option", tables=partial(_slopes, "alibi_slopes"), formula=_alibi)
    for learned in (False, True):
        for name, formula, tables, of_score in (
            ("alibi", _alibi, partial(_slopes, "slopes"), lambda n: alibi()),
            ("relative", _relative, partial(_biases, True), _relative_score),
            ("t5", _t5, partial(_biases, False), lambda n: t5()),
        ):
            yield made(
                name + "_learned" * learned, score=of_score, tables=tables, formula=formula,
                learned=learned,
            )  # fmt: skip


LAYERS = (*MODELS, *_formulas(128, ""), *_formulas(64, "_d64"))


# ------------------------------------------------------------------ implementations


def _repeated(layer: Layer, x: Any) -> Any:
    """[B, Hq, N, D] of [B, Hkv, N, D], as transformers repeats keys for eager attention."""
    b, heads, n, dim = x.shape
    return x[:, :, None].expand(b, heads, layer.group, n, dim).reshape(b, -1, n, dim)


def _matrix(layer: Layer, n: int, device: Any) -> Any:
    """bool [N, N]."""
    import torch

    index = torch.arange(n, device=device)
    return layer.keep(index[:, None], index[None])


def eager(layer: Layer, n: int, device: Any, tables: Tables) -> Call:
    """Products, softmax and products, in the dtype of q; softmax in fp32."""
    import torch

    keep, mod = _matrix(layer, n, device), layer.mod(tables, n)
    heads, index = (torch.arange(count, device=device) for count in (layer.heads, n))

    def call(q: Any, k: Any, v: Any, sinks: Any = None) -> Any:
        k, v = _repeated(layer, k), _repeated(layer, v)
        scores = (q @ k.transpose(2, 3)) * layer.scale
        if mod is not None:
            scores = mod(scores, 0, heads[:, None, None], index[:, None], index[None]).to(q.dtype)
        scores = scores.masked_fill(~keep, -torch.inf)
        return _weighed(scores, v, sinks, torch.float32)

    return call


def _weighed(scores: Any, v: Any, sinks: Any, dtype: Any) -> Any:
    """Values weighed by a softmax that is computed in a dtype."""
    import torch

    if sinks is not None:
        column = sinks.to(scores.dtype).view(-1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, column), -1)
    weights = scores.softmax(-1, dtype=dtype).to(v.dtype)
    return weights[..., : v.shape[-2]] @ v


def sdpa(layer: Layer, n: int, device: Any, tables: Tables) -> Call:
    """scaled_dot_product_attention, by is_causal or a boolean matrix.

    Raises:
        Unavailable: it has no soft-cap, no formulas and no sink logits.
    """
    from torch.nn.functional import scaled_dot_product_attention

    lacks = {"soft-cap": layer.softcap, "formula": layer.formula, "sink logits": layer.sinks}
    if missing := [name for name, value in lacks.items() if value]:
        raise Unavailable(f"SDPA has no {missing[0]}")
    if layer.keep is _causal:
        return partial(
            scaled_dot_product_attention, is_causal=True, scale=layer.scale,
            enable_gqa=layer.group > 1,
        )  # fmt: skip
    keep = _matrix(layer, n, device)

    def call(q: Any, k: Any, v: Any) -> Any:  # with a matrix, grouped heads would run unfused
        k, v = _repeated(layer, k), _repeated(layer, v)
        return scaled_dot_product_attention(q, k, v, attn_mask=keep, scale=layer.scale)

    return call


def flex(layer: Layer, n: int, device: Any, tables: Tables, flash: bool = False) -> Call:
    """compile(flex_attention); a sink logit divides by what it adds to the denominator.

    Raises:
        Missing: FlashAttention 4, whose kernels are asked for, is not installed.
    """
    import torch
    from torch.nn.attention import flex_attention as module

    if flash and not fa4.installed():
        raise Missing(fa4.MISSING)

    def keep(b: Any, h: Any, q: Any, k: Any) -> Any:
        return layer.keep(q, k)

    compiled = compiled_flex(
        keep, (None, None, n, n), str(device), layer.group > 1, flash, scale=layer.scale,
        score_mod=layer.mod(tables, n),
    )  # fmt: skip
    if not layer.sinks:
        return compiled
    new = hasattr(module, "AuxRequest")
    options = {"return_aux": module.AuxRequest(lse=True)} if new else {"return_lse": True}

    def call(q: Any, k: Any, v: Any, sinks: Any) -> Any:
        out, more = compiled(q, k, v, **options)
        lse = more.lse if new else more
        return out * torch.sigmoid(lse - sinks[:, None])[..., None].to(out.dtype)

    return call


def ours(layer: Layer, n: int, device: Any, tables: Tables) -> Call:
    """maskc, as the integration with transformers calls it."""
    made = None if layer.score is None else layer.score(n)
    options = {"scale": layer.scale, "softcap": layer.softcap, "score": made, **tables}

    def call(q: Any, k: Any, v: Any, sinks: Any = None) -> Any:
        return attention(q, k, v, layer.mask, sink_logits=sinks, **options)

    return call


IMPLS = {
    "eager": eager, "sdpa": sdpa, "flex": flex, "flex_flash": partial(flex, flash=True),
    "maskc": ours,
}  # fmt: skip


# ------------------------------------------------------------------ the judge


def exact(
    layer: Layer, given: Sequence[Any], tables: Tables, dout: Any, group: int, dtype: Any
) -> list[Any]:
    """Compute (out, dq, dk, dv, dsinks where there are sinks, and gradients of learned tables) of
    one group of heads, unfused.

    Args:
        given: q, k, v [1, H, N, D], and the sink logits [Hq].
        dout: [1, Hq, N, D].
        dtype: every step is computed in it; fp64 is the truth. Tables stay in fp32 where it is
            less, and sums over chunks of queries are fp64.
    """
    import torch

    q, k, v, *sinks = given
    n, device = q.shape[2], q.device
    heads = slice(group * layer.group, (group + 1) * layer.group)
    shared = [x[0, group].detach().to(dtype).requires_grad_() for x in (k, v)]
    shared += [x[heads].detach().to(dtype).requires_grad_() for x in sinks]
    kind = torch.float64 if dtype == torch.float64 else torch.float32
    own_tables = {
        name: x.detach().to(kind).requires_grad_(layer.learned) for name, x in tables.items()
    }
    shared += own_tables.values() if layer.learned else ()
    mod, index = layer.mod(own_tables, n), torch.arange(n, device=device)
    of_heads = torch.arange(layer.heads, device=device)[heads, None, None]
    queries, slopes = q[0, heads].detach(), dout[0, heads]
    step = max(_ROWS // (n * layer.group), 1)
    rows: list[list[Any]] = [[], []]
    sums: list[Any] = [0.0] * len(shared)
    for first in range(0, n, step):
        part = slice(first, first + step)
        own = queries[:, part].to(dtype).requires_grad_()
        scores = (own @ shared[0].T) * layer.scale
        if mod is not None:
            scores = mod(scores, 0, of_heads, index[part, None], index[None])
        scores = scores.masked_fill(~layer.keep(index[part, None], index[None]), -torch.inf)
        out = _weighed(scores, shared[1], shared[2] if sinks else None, dtype)
        slope, *slopes_shared = torch.autograd.grad(out, (own, *shared), slopes[:, part].to(dtype))
        for kept, x in zip(rows, (out, slope), strict=True):
            kept.append(x.detach())
        sums = [total + x.double() for total, x in zip(sums, slopes_shared, strict=True)]
    return [torch.cat(x, 1) for x in rows] + sums


class Judge:
    """What is right for the tensors of a layer, and how large an error may be."""

    def __init__(self, layer: Layer, given: Sequence[Any], tables: Tables, dout: Any) -> None:
        import torch

        self.layer = layer
        self.groups = sorted({0, layer.kv_heads - 1})
        dtype = given[0].dtype
        by_group = partial(exact, layer, given, tables, dout)
        self.truth = [by_group(group, torch.float64) for group in self.groups]
        unfused = [[x.to(dtype) for x in by_group(group, dtype)] for group in self.groups]
        self.names = ["out", "dq", "dk", "dv", *(["dsinks"] if layer.sinks else [])]
        self.names += [f"d{name}" for name in tables] if layer.learned else []
        full = dtype == torch.float32
        self.allowed = [
            [
                FULL_PRECISION if full else TIMES_UNFUSED * _distance(x, true)
                for x, true in zip(found, truth, strict=True)
            ]
            for found, truth in zip(unfused, self.truth, strict=True)
        ]

    def errors(self, results: Sequence[Any]) -> dict[str, float]:
        """The largest error of each result, as a share of what is allowed.

        Args:
            results: out, dq, dk, dv, dsinks where there are sinks, and gradients of learned
                tables, of all heads.
        """
        out, dq, dk, dv, *more = results
        worst = dict.fromkeys(self.names, 0.0)
        for group, truth, allowed in zip(self.groups, self.truth, self.allowed, strict=True):
            heads = slice(group * self.layer.group, (group + 1) * self.layer.group)
            found = [out[0, heads], dq[0, heads], dk[0, group], dv[0, group]]
            found += [x[heads] for x in more[: self.layer.sinks]]
            # Entries of a table that the group's heads read are read by no others.
            found += [x * (true != 0) for x, true in
                      zip(more[self.layer.sinks :], truth[len(found) :], strict=True)]  # fmt: skip
            for name, x, true, most in zip(worst, found, truth, allowed, strict=True):
                worst[name] = max(worst[name], _distance(x, true) / most)
        return worst


def _distance(x: Any, true: Any) -> float:
    """Relative to the largest value, by the norm of the difference; never below a rounding of
    fp64. A value that is no number makes it infinite."""
    import torch

    lost = torch.linalg.vector_norm(x.detach().double() - true)
    share = float(lost / torch.linalg.vector_norm(true).clamp_min(1e-30))
    return max(share, 1e-12) if share == share else float("inf")


# ------------------------------------------------------------------ a run


def make_tensors(layer: Layer, n: int, dtype: Any, device: Any) -> tuple[list[Any], Any, Tables]:
    """(q, k, v, and sink logits; dout; tables), views [1, H, N, D] of tensors [1, N, H, D]."""
    import torch

    draw = torch.Generator(device).manual_seed(0)
    normal = partial(torch.randn, generator=draw, device=device)

    def tensor(heads: int) -> Any:
        x = normal(1, n, heads, layer.head_dim).to(dtype).transpose(1, 2)
        return x.requires_grad_()

    given = [tensor(h) for h in (layer.heads, layer.kv_heads, layer.kv_heads)]
    given += [normal(layer.heads).requires_grad_()] if layer.sinks else []
    tables = {
        name: x.requires_grad_(layer.learned)
        for name, x in layer.tables(layer.heads, n, device).items()
    }
    return given, tensor(layer.heads).detach(), tables


def measured(
    layer: Layer, n: int, impls: Sequence[str], repeats: int, device: str, dtype: str = "bfloat16",
    progress: Callable[[str], object] = lambda text: None,
) -> list[dict[str, Any]]:  # fmt: skip
    """A row for each implementation: checked first, then timed in turns.

    Args:
        n: queries and keys.
        repeats: rounds of timing; 0 only checks.
        device: "cuda" or "cpu".

    Returns:
        [{"case", "impl", "fwd_ms", "both_ms", "errors", "ok", "why"}]: milliseconds of a forward
        pass without gradients, and of a forward and a backward pass; `errors` as shares of
        what is allowed; `why` one could not run.
    """
    import torch

    start_anew()
    given, dout, tables = make_tensors(layer, n, getattr(torch, dtype), device)
    learned = [*tables.values()] if layer.learned else []
    progress(f"{layer.name} at {n}: the exact result")
    judge = Judge(layer, given, tables, dout)
    rows, ready = [], {}
    for impl in impls:
        progress(f"{layer.name} at {n}: {impl}")
        row: dict[str, Any] = {
            "case": layer.name, "model": layer.model, "n": n, "impl": impl, "fwd_ms": None,
            "both_ms": None, "errors": {}, "ok": False, "why": "",
        }  # fmt: skip
        rows.append(row)
        try:
            with quiet():
                call = IMPLS[impl](layer, n, device, tables)
                row["errors"] = judge.errors(_both(call, given, learned, dout, True))
        except Unavailable as error:
            row["why"] = str(error)
        except torch.OutOfMemoryError:
            row["why"] = "out of memory"
        except Exception as error:  # a rival's failure is a result, too
            if impl == "maskc":
                raise
            row["why"] = reason(error)
        else:
            row["ok"] = max(row["errors"].values()) <= 1
            ready[impl] = call
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
    if repeats:
        progress(f"{layer.name} at {n}: timing")
        for field, run in (("fwd_ms", _forward), ("both_ms", _both)):
            rivals = {
                impl: Timed(partial(run, call, given, learned, dout), quiet)
                for impl, call in ready.items()
            }
            for impl, ms in take_turns(rivals, repeats, device).items():
                next(row for row in rows if row["impl"] == impl)[field] = ms
    return rows


def _forward(call: Call, given: Sequence[Any], learned: Sequence[Any], dout: Any) -> Any:
    import torch

    with torch.no_grad():
        return call(*given)


def _both(
    call: Call, given: Sequence[Any], learned: Sequence[Any], dout: Any, keep: bool = False
) -> Any:
    """A forward and a backward pass; [out, dq, dk, dv, ...] where they are kept."""
    import torch

    out = call(*given)
    gradients = torch.autograd.grad(out, [*given, *learned], dout)
    return [out, *gradients] if keep else None


def run_layers(
    lengths: Sequence[int], *, only: str = "*", impls: Sequence[str] = tuple(IMPLS),
    repeats: int = 20, device: str = "cuda", dtype: str = "bfloat16",
    progress: Callable[[str], object] = lambda text: None,
    each: Callable[[dict[str, Any]], object] = lambda report: None,
) -> dict[str, Any]:  # fmt: skip
    """Measure layers at some lengths.

    Args:
        only: a shell pattern of names.
        each: told the report so far, after each layer.

    Returns:
        {"environment": {...}, "rows": [...]}, rows as of `measured`.
    """
    report: dict[str, Any] = {"environment": environment(device), "rows": []}
    for layer in LAYERS:
        for n in lengths if fnmatchcase(layer.name, only) else ():
            report["rows"] += measured(layer, n, impls, repeats, device, dtype, progress)
            each(report)
    return report


def as_text(report: dict[str, Any]) -> str:
    """A line for each layer and length: milliseconds of each implementation, and how many times
    maskc is faster than the fastest other one."""
    rows = report["rows"]
    impls = list(dict.fromkeys(row["impl"] for row in rows))
    lines = [("layer", "n", "pass", *impls, "maskc / best other")]
    for name, n in dict.fromkeys((row["case"], row["n"]) for row in rows):
        found = {row["impl"]: row for row in rows if (row["case"], row["n"]) == (name, n)}
        for word, field in (("forward", "fwd_ms"), ("both", "both_ms")):
            cells = [_cell(found[impl], field) for impl in impls]
            lines.append((name, str(n), word, *cells, _ratio(found, field)))
    errors = [
        f"{row['case']} at {row['n']}, {row['impl']}: " + (row["why"] or ", ".join(
            f"{name} {times:.2f}" for name, times in row["errors"].items()
        ) + " of the allowed error")
        for row in rows
    ]  # fmt: skip
    about = ", ".join(f"{name} {x}" for name, x in report["environment"].items() if x is not None)
    return "\n".join([*aligned(lines, len(lines[0])), "", *errors, "", about]) + "\n"


def _cell(row: dict[str, Any], field: str) -> str:
    if row[field] is None:
        return "-"
    return f"{row[field]:.3f}" + ("" if row["ok"] else " WRONG")


def _ratio(found: dict[str, dict[str, Any]], field: str) -> str:
    """Times as fast as the fastest other one whose result is right."""
    mine = found.get("maskc", {}).get(field)
    others = [
        row[field] for impl, row in found.items()
        if impl != "maskc" and row["ok"] and row[field] is not None
    ]  # fmt: skip
    return f"{min(others) / mine:.2f} x" if mine and others else "-"
