"""A bias with a number for each pair: maskc, cuDNN, memory-efficient attention, FlexAttention.

    python -m benchmarks.pair_bias -o benchmarks/results/pair-bias-h200.json

The bias is bf16, as under autocast. Three passes: forward, backward, and backward with the gradient
of the bias. Outputs and gradients of two sequences are compared with float64 first.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import maskc as mc
from maskc.verify.timing import Timed, take_turns

Call = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Case(NamedTuple):
    """q, k and v are [batch, heads, tokens, dim], the bias is [biases, heads, tokens, tokens]."""

    name: str
    batch: int
    heads: int
    tokens: int
    dim: int
    biases: int


CASES = (
    Case("triangle attention, 384 rows share a bias", 384, 4, 384, 32, 1),
    Case("a bias for each of 96 rows", 96, 4, 384, 32, 96),
    Case("a bias for each sequence", 2, 16, 2048, 64, 2),
    Case("two sequences share a bias", 2, 16, 2048, 128, 1),
)
_BOUND = 1e-2
_ROUNDS = 20
_CHECKED = 2
"""Sequences that are compared with float64."""


def rivals(case: Case) -> dict[str, Call]:
    """Calls that take q, k, v and the bias."""
    import torch._functorch.config as functorch
    from torch.nn.attention.flex_attention import flex_attention

    # Without donated buffers a backward pass can be timed again and again.
    functorch.donated_buffer = False
    torch._dynamo.reset()  # or the next lengths are compiled as variables
    flex = torch.compile(flex_attention, dynamic=False)

    def sdpa(backend: SDPBackend) -> Call:
        def call(q: Any, k: Any, v: Any, bias: Any) -> torch.Tensor:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(
                    q, k, v, attn_mask=bias.expand(case.batch, -1, -1, -1)
                )

        return call

    def flexible(q: Any, k: Any, v: Any, bias: Any) -> torch.Tensor:
        if case.biases == 1:
            return flex(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[0, h, i, j])
        return flex(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[b, h, i, j])

    score = mc.scores.bias()
    return {
        "maskc": lambda q, k, v, bias: mc.attention(q, k, v, mc.full(), score=score, bias=bias),
        "cudnn": sdpa(SDPBackend.CUDNN_ATTENTION),
        "efficient": sdpa(SDPBackend.EFFICIENT_ATTENTION),
        "flex": flexible,
    }


def exact(q: Any, k: Any, v: Any, bias: Any, dout: Any) -> list[torch.Tensor]:
    """Out and the gradients of q, k and v of the first sequences, in float64."""
    given = [x[:_CHECKED].detach().double().requires_grad_() for x in (q, k, v)]
    scores = given[0] @ given[1].mT * q.shape[3] ** -0.5 + bias[:_CHECKED].detach().double()
    out = torch.softmax(scores, -1) @ given[2]
    return [out.detach(), *torch.autograd.grad(out, given, dout[:_CHECKED].double())]


def measure(case: Case) -> dict[str, Any]:
    """Check and time one case; milliseconds."""
    shape = case.batch, case.heads, case.tokens, case.dim
    kwargs: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    q, k, v = (torch.randn(shape, **kwargs).requires_grad_() for _ in range(3))
    bias = torch.randn((case.biases, case.heads, case.tokens, case.tokens), **kwargs)
    learned, dout = bias.clone().requires_grad_(), torch.randn_like(q)
    right = exact(q, k, v, bias, dout)
    passes: dict[str, dict[str, Timed]] = {"forward": {}, "backward": {}, "with bias gradient": {}}
    errors: dict[str, list[float]] = {}
    failed: dict[str, str] = {}

    def add(what: str, name: str, run: Callable[[], Any]) -> None:
        try:
            run()
            run()
        except Exception as error:  # whatever a rival raises is its own failure
            failed[f"{name}, {what}"] = f"{type(error).__name__}: {error}"[:200]
        else:
            passes[what][name] = Timed(run)

    for name, call in rivals(case).items():
        try:
            out = call(q, k, v, bias)
            results = [out, *torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)]
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"[:200]
            continue
        errors[name] = [
            float((x[:_CHECKED].double() - y).norm() / y.norm())
            for x, y in zip(results, right, strict=True)
        ]
        if max(errors[name]) > _BOUND:
            failed[name] = "wrong"
            continue

        def forward(call: Call = call) -> Any:
            with torch.no_grad():
                return call(q, k, v, bias)

        def backward(out: Any = out) -> Any:
            return torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)

        add("forward", name, forward)
        add("backward", name, backward)
        try:
            with_learned = call(q, k, v, learned)
        except Exception as error:
            failed[f"{name}, with bias gradient"] = f"{type(error).__name__}: {error}"[:200]
            continue

        def everything(out: Any = with_learned) -> Any:
            return torch.autograd.grad(out, (q, k, v, learned), dout, retain_graph=True)

        add("with bias gradient", name, everything)
    times = {
        what: {name: round(ms, 4) for name, ms in take_turns(timed, _ROUNDS, "cuda").items()}
        for what, timed in passes.items()
    }
    rounded = {name: [round(x, 5) for x in values] for name, values in errors.items()}
    return {**case._asdict(), "ms": times, "errors": rounded, "not run": failed}


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    torch.manual_seed(0)
    about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    rows: list[dict[str, Any]] = []
    for case in CASES:
        rows.append(measure(case))
        print(json.dumps(rows[-1]), flush=True)
        torch.cuda.empty_cache()
        if asked.output:
            report = {"environment": about, "rows": rows}
            asked.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
