"""Quality of Adaptive Local-Global: python -m benchmarks.adaptive -o OUT.json

Landmarks by structure, by content and by a gate that is trained here, beside masks with as many
live pairs, ablations and controls: on SmolLM2-135M, whose weights are not changed.

- Structure: tokens that end a sentence or a line, of each sequence its own.
- Content: blocks of 32 keys by the mean of their keys, for each query and head.
- Learning: blocks of 32 keys by a gate for each block of 32 queries and head. It is trained to give
  the attention that blocks of other texts get from the model (Gao et al., "SeerAttention", 2024).
- Controls: as many landmarks at random places; as many blocks at random.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import maskc as mc
from maskc.lab.evaluate import FAMILIES, Evaluated, Evaluation, Inputs, at_budget, load
from maskc.lab.evaluate import retrieval as needle
from maskc.lab.evaluate.best_masks import best as best_of
from maskc.lab.evaluate.best_masks import cells, means
from maskc.lab.evaluate.devices import best_device, environment
from maskc.lab.evaluate.evaluating import INFORMATION, SCOPE, UNTRAINED, _corrected, perplexity
from maskc.lab.evaluate.information import Losses
from maskc.lab.evaluate.matrices import Matrices
from maskc.lab.evaluate.models import losses
from maskc.lab.evaluate.tensors import LayerTensors, capture
from maskc.lab.evaluate.texts import demo_texts, read_text, sequences
from maskc.patterns import adaptive_local_global

SINKS, BLOCK = 4, 32
ENDS = (".", ":", ";", "\n", "\n\n", ".\n")
Keep = Callable[[int, Any, Any, Any], Any]
"""A function of layer, tokens [N], q [Hq, N, D], k [Hkv, N, D] to bool [N, N] or [Hq, N, N]."""


@dataclass
class Way:
    """A mask with what it keeps."""

    name: str
    text: str
    keep: Keep
    role: str = "pattern"
    of: str = ""


class Chosen:
    """Attention of one sequence by what a way keeps."""

    def __init__(self, way: Way, tokens: Any) -> None:
        self.way, self.tokens = way, tokens

    def __call__(
        self, q: Any, k: Any, v: Any, _: Any, *, layer: int, scale: float, **__: Any
    ) -> Any:
        keep = self.way.keep(layer, self.tokens, q[0], k[0])
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        out = torch.empty_like(q)
        rows = 1024
        for first in range(0, q.shape[2], rows):
            part = slice(first, first + rows)
            seen = keep[..., part, :].expand(q.shape[1], -1, -1)
            bias = torch.zeros(seen.shape, dtype=q.dtype, device=q.device)
            bias.masked_fill_(~seen, -torch.inf)
            out[:, :, part] = torch.nn.functional.scaled_dot_product_attention(
                q[:, :, part], k, v, attn_mask=bias[None], scale=scale
            ).masked_fill(~seen.any(dim=-1)[None, :, :, None], 0)
        return out


# ------------------------------------------------------------------ the gate


class Gate:
    """Scores of blocks of keys for blocks of queries: pooled q and k, each through a matrix."""

    def __init__(self, layers: int, heads: int, dim: int, device: str) -> None:
        torch.manual_seed(0)
        self.q, self.k = (
            (torch.randn(layers, heads, size, 64, device=device) * size**-0.5).requires_grad_()
            for size in (dim, 3 * dim)
        )

    def pooled(self, q: Any, k: Any) -> tuple[Any, Any]:
        """[Hq, blocks, D] and [Hq, blocks, 3 D]: mean, maximum and minimum of keys."""
        q, k = q.float(), k.float()
        group = q.shape[0] // k.shape[0]
        blocks = k.unflatten(1, (-1, BLOCK))
        k = torch.cat([blocks.mean(2), blocks.amax(2), blocks.amin(2)], dim=-1)
        return means(q, BLOCK), k.repeat_interleave(group, dim=0)

    def scores(self, pooled: tuple[Any, Any], layers: Any) -> Any:
        """[..., Hq, query blocks, key blocks]."""
        q, k = pooled
        return (q @ self.q[layers]) @ (k @ self.k[layers]).transpose(-1, -2) / 8

    def train(self, given: list[tuple[Any, Any, Any]], live: Any, steps: int) -> list[float]:
        """Cross entropy to the attention of blocks, all layers at once, a sequence a step."""
        optimizer = torch.optim.Adam([self.q, self.k], lr=3e-3)
        lost = []
        for step in range(steps):
            q, k, goal = given[step % len(given)]
            scores = self.scores((q, k), slice(None)).masked_fill(~live, -1e30)
            loss = -(goal * scores.log_softmax(-1)).sum(-1)[..., live.any(-1)].mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            lost.append(loss.detach())
        self.q, self.k = self.q.detach(), self.k.detach()
        ends = lost[: len(given)], lost[-len(given) :]
        return [float(torch.stack(some).mean()) for some in ends]


def attention_of_blocks(layer: LayerTensors, far: Any, live: Any) -> Any:
    """[Hq, blocks, blocks]: the share of each block of keys in the attention beyond the window."""
    q, k = layer.q[0].float(), layer.k[0].float()
    k = k.repeat_interleave(q.shape[0] // k.shape[0], dim=0)
    found = []
    for one_q, one_k in zip(q, k, strict=True):
        scores = (one_q @ one_k.T * layer.scale).masked_fill(
            ~torch.ones_like(far).tril(), -torch.inf
        )
        weights = scores.softmax(-1).masked_fill(~far, 0)
        found.append(weights.unflatten(1, (-1, BLOCK)).sum(2).unflatten(0, (-1, BLOCK)).sum(1))
    sums = torch.stack(found).masked_fill(~live, 0)
    return sums / sums.sum(-1, keepdim=True).clamp(min=1e-20)


# ------------------------------------------------------------------ the ways


def ways(
    asked: argparse.Namespace, matrices: Matrices, gate: Gate | None, ends: Any, mean_ends: float
) -> list[Way]:
    """All masks at one budget; windows and numbers of blocks are solved for it."""
    n, share = asked.n, asked.budget / 100
    wanted = int(share * n * (n + 1) // 2)
    causal = matrices.of(mc.causal(), n)

    def local(window: int, sinks: int = SINKS) -> mc.Mask:
        mask = mc.window.hf(window) if window else mc.sinks(sinks)
        return mc.causal() & (mask | mc.sinks(sinks) if window and sinks else mask)

    def near(window: int, sinks: int = SINKS) -> Any:
        return matrices.of(local(window, sinks), n)

    def structure(window: int, of: Any = ends, sinks: int = SINKS) -> Keep:
        return lambda _, tokens, q, k: (
            (near(window, sinks) if window or sinks else causal & False)
            | (causal & of(tokens)[None, :])
        )

    def blocks(window: int, top: int, q_block: int, scores: Any, sinks: int = SINKS) -> Keep:
        def keep(layer: int, tokens: Any, q: Any, k: Any) -> Any:
            allowed = causal & ~near(window, sinks) if window or sinks else causal
            live = cells(allowed, q_block, BLOCK)
            best = best_of(scores(layer, q, k), live.expand(q.shape[0], -1, -1), top)
            rows, columns = (torch.arange(n, device=q.device) // size for size in (q_block, BLOCK))
            found = best[:, rows][:, :, columns] & allowed
            return found | near(window, sinks) if window or sinks else found

        return keep

    def mean_scores(_: int, q: Any, k: Any) -> Any:
        k = means(k.float(), BLOCK).repeat_interleave(q.shape[0] // k.shape[0], dim=0)
        return q.float() @ k.transpose(1, 2)

    def gate_scores(layer: int, q: Any, k: Any) -> Any:
        return gate.scores(gate.pooled(q, k), layer)

    def random_scores(layer: int, q: Any, _: Any, q_block: int = BLOCK) -> Any:
        drawn = torch.Generator(device=q.device).manual_seed(layer)
        shape = q.shape[0], -(-n // q_block), -(-n // BLOCK)
        return torch.rand(shape, generator=drawn, device=q.device)

    def most(pairs: Callable[[int], float], step: int) -> int:
        """The greatest multiple of `step` with at most so many pairs."""
        value = step
        while pairs(value + step) <= wanted:
            value += step
        return value

    def kept_blocks(top: int, q_block: int) -> int:
        """Pairs of a head that chooses blocks at random."""
        q = torch.zeros(1, n, 1, device=causal.device)
        keep = blocks(window, top, q_block, lambda *x: random_scores(*x, q_block))
        return int(keep(0, None, q, q).sum())

    def kept_landmarks(window: int) -> float:
        inside = int(near(window).sum())
        return inside + mean_ends * (int(causal.sum()) - inside)

    # Half of the keys of a long row are the window's, the rest are those of blocks or landmarks.
    window = max(8, int(share * n / 4) // 8 * 8)
    top = most(lambda top: kept_blocks(top, 1), 1)
    gated = most(lambda top: kept_blocks(top, BLOCK), 1)
    inner = most(kept_landmarks, 8)
    own, content, learned = (f"adaptive_local_global{end}" for end in ("", "_content", "_learned"))
    drawn = torch.from_numpy(np.random.default_rng(0).random(n)).to(matrices.device)

    def some(tokens: Any) -> Any:
        return drawn < ends(tokens).float().mean()

    def bare(of: str, part: str, text: str, keep: Keep) -> Way:
        return Way(f"{of} without {part}", text, keep, "ablation", of)

    equal = {
        name: at_budget(FAMILIES[name], share, n, name=name).mask
        for name in ("window", "streaming", "strided", "longformer")
    }
    by_gate = f"sinks {SINKS}, window {window}, {gated} blocks of {BLOCK} for {BLOCK} queries"
    return [
        Way(own, str(adaptive_local_global(n_sinks=SINKS, window=inner)), structure(inner)),
        Way(content, f"sinks {SINKS}, window {window}, {top} blocks of {BLOCK}",
            blocks(window, top, 1, mean_scores)),
        Way(learned, by_gate, blocks(window, gated, BLOCK, gate_scores)),
        *(
            Way(f"{name} at {share:.1%}", str(mask), lambda *_, m=mask: matrices.of(m, n))
            for name, mask in equal.items()
        ),
        Way("random landmarks", "as many landmarks at random places", structure(inner, some),
            "control", own),
        Way("random blocks", "as many blocks at random",
            blocks(window, gated, BLOCK, random_scores), "control", learned),
        bare(own, "landmarks", str(local(inner)), lambda *_: near(inner)),
        bare(own, "window", "sinks and landmarks", structure(0)),
        bare(own, "sinks", "window and landmarks", structure(inner, sinks=0)),
        bare(content, "blocks", str(local(window)), lambda *_: near(window)),
        bare(content, "window", "sinks and blocks", blocks(0, top, 1, mean_scores)),
        bare(content, "sinks", "window and blocks", blocks(window, top, 1, mean_scores, 0)),
        bare(learned, "window", "sinks and blocks", blocks(0, gated, BLOCK, gate_scores)),
    ]  # fmt: skip


def main() -> None:
    """Parse arguments, measure, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("-o", "--output", required=True)
    add("--n", type=int, default=4096, help=f"tokens, a multiple of {BLOCK}")
    add("--sequences", type=int, default=4, help="of each text, and as many to train the gate")
    add("--text", action="append", default=[], help="NAME=FILE, beside the texts of Python")
    add("--budget", type=float, default=25, help="percent; landmarks alone are 15")
    add("--needles", type=int, default=20)
    add("--every", type=int, default=3)
    add("--steps", type=int, default=400)
    add("--seconds", type=float, default=240)
    add("--device", default=best_device())
    asked = parser.parse_args()
    end = time.monotonic() + asked.seconds
    device = asked.device
    model, tokenizer = load(device=device, dtype="bfloat16" if device == "cuda" else "float32")
    texts = demo_texts()
    texts |= {name: read_text(path) for name, _, path in (x.partition("=") for x in asked.text)}
    every, names = sequences(tokenizer, texts, asked.n, 2 * asked.sequences)
    ids, names, others = every[::2].to(device), names[::2], every[1::2].to(device)
    matrices = Matrices(device)
    ending = torch.tensor(
        [tokenizer.decode([i]).strip(" ") in ENDS for i in range(model.config.vocab_size)],
        device=device,
    )
    ends = lambda tokens: ending[tokens]  # noqa: E731
    count, heads = model.config.num_hidden_layers, model.config.num_attention_heads
    gate = Gate(count, heads, 64, device)
    share = asked.budget / 100
    window = max(8, int(share * asked.n / 4) // 8 * 8)
    local = mc.causal() & (mc.window.hf(window) | mc.sinks(SINKS))
    far = matrices.of(mc.causal() - local, asked.n)
    live = cells(far, BLOCK, BLOCK)
    given = []
    for row in others:
        layers = capture(model, row[None], None, matrices.attention).layers
        pooled = [gate.pooled(layer.q[0], layer.k[0]) for layer in layers]
        goals = [attention_of_blocks(layer, far, live) for layer in layers]
        given.append((*(torch.stack([p[i] for p in pooled]) for i in (0, 1)), torch.stack(goals)))
    print("gate", gate.train(given, live, asked.steps), flush=True)
    del given
    found = ways(asked, matrices, gate, ends, float(ending[ids].float().mean()))
    needles = needle.trials(tokenizer, ids.cpu(), asked.n, asked.needles)
    looked = list(range(0, count, asked.every))
    source = f"smollm2, {', '.join(texts)}; the gate has seen {len(others)} other sequences"
    inputs = Inputs(model, tokenizer, ids, names, source, needles, looked, matrices)
    dense, dense_answers = inputs.dense_losses, inputs.dense_answers
    print("dense is there", flush=True)
    state: dict[str, Any] = {}

    def kept_of(way: Way) -> Any:
        return lambda layer, b: way.keep(layer.layer, state["tokens"], layer.q[b], layer.k[b])

    kept = Losses({way.name: kept_of(way) for way in found}, matrices=matrices)
    for row in ids:
        state["tokens"] = row
        kept.add(capture(model, row[None], looked, matrices.attention))
    information = kept.found()
    print("information is there", flush=True)
    whole = mc.causal().count(asked.n)
    results: list[Evaluated] = []
    for way in found:
        if time.monotonic() > end:
            print("not run:", way.name, flush=True)
            continue
        ours = np.concatenate([losses(model, row[None], None, Chosen(way, row)) for row in ids])
        said = perplexity(dense, ours, names)
        repeated = tuple(
            needle.answers(model, [trial], None, Chosen(way, trial.ids.to(device)))[0]
            for trial in needles
        )
        # floor is the mean share of a row's keys, not of all pairs
        pairs = int(np.mean([float(_pairs(way, model, row, matrices)) for row in ids]))
        results.append(Evaluated(
            way.name, way.text, way.role, way.of, pairs, pairs / whole, share,
            information[way.name], said, needle.retrieval(needles, dense_answers, repeated),
        ))  # fmt: skip
        numbers = information[way.name].retained.value, said.difference.value, sum(repeated)
        print(way.name, "{:.2%} {:.3f} {:+.3f} {}".format(pairs / whole, *numbers), flush=True)
        command = (
            f"python -m benchmarks.adaptive --n {asked.n} "
            f"--sequences {asked.sequences} --budget {asked.budget:g} --needles {asked.needles} "
            f"--every {asked.every} --steps {asked.steps} "
            + "".join(f"--text {x.partition('=')[0]}={Path(x).name} " for x in asked.text)
            + f"-o {Path(asked.output).name}"
        )
        about = tuple((key, str(value)) for key, value in environment(inputs).items())
        result = Evaluation(
            source, asked.n, len(ids), "causal()", tuple(_corrected(results)),
            (INFORMATION, UNTRAINED, SCOPE), command, 0, 2000, about,
        )  # fmt: skip
        Path(asked.output).write_text(result.to_json(indent=None) + "\n", encoding="utf-8")


def _pairs(way: Way, model: Any, row: Any, matrices: Matrices) -> Any:
    """Live pairs of a head of the first layer, the mean of its heads."""
    layer = capture(model, row[None], [0], matrices.attention).layers[0]
    keep = way.keep(0, row, layer.q[0], layer.k[0])
    return keep.sum() / (keep.shape[0] if keep.ndim == 3 else 1)


if __name__ == "__main__":
    main()
