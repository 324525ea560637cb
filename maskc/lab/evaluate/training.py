"""Layer 3 of the evidence: small models trained with a mask, compared with models trained
without."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from maskc.api import attention
from maskc.core.data import Parents
from maskc.dsl.combinators import causal, full
from maskc.dsl.data_atoms import parents
from maskc.dsl.mask import Mask
from maskc.ir.names import declared_names
from maskc.lab.evaluate.results import Trained
from maskc.lab.evaluate.statistics import equivalence, paired_interval, paired_p
from maskc.lab.evaluate.tensors import torch_module

ACCURACY, LOSS = "accuracy", "nats per token"
MARGIN = 0.02
"""The largest difference that counts as equal, in accuracy or nats."""


class Batch(NamedTuple):
    """Sequences with their targets at each place."""

    tokens: np.ndarray
    """int64 [B, N]."""
    targets: np.ndarray
    """int64 [B, N]; [B] where a whole sequence is classified."""
    counts: np.ndarray
    """bool [N], places that count; of no meaning where a whole sequence is classified."""
    data: Mapping[str, object]
    """Arrays that masks of the task may read."""


@dataclass(frozen=True)
class Task:
    """A task: it draws batches and defines the measure."""

    name: str
    n: int
    tokens: int
    """The number of different tokens."""
    classes: int
    measure: str
    chance: float
    """The measure of a model that only knows the frequencies of the answers."""
    draw: Callable[[np.random.Generator, int, bool], Batch]
    """From (random numbers, batch size, whether held out) to a batch."""
    base: Mask
    """The mask of dense attention."""
    whole: bool = False
    """Whether one answer is given for a whole sequence."""
    effort: int = 1
    """Multiple of the recipe's steps: dense models must learn the task before masks can lose."""


@dataclass(frozen=True)
class Recipe:
    """Training settings of small models; the same for all masks of a comparison."""

    steps: int = 1000
    """Steps of a task with effort 1."""
    batch: int = 32
    width: int = 64
    layers: int = 2
    heads: int = 4
    rate: float = 2e-3
    held_out: int = 16
    """Batches of the measurement."""
    device: str = "cpu"
    compute: Any = None
    """The attention implementation; maskc when None. On a GPU it gets q, k and v in bfloat16."""


# ------------------------------------------------------------------ tasks


def copying(n: int = 128, letters: int = 16) -> Task:
    """Repeat the first half of a sequence: each answer is n / 2 - 1 tokens back."""

    def draw(rng: np.random.Generator, size: int, _: bool) -> Batch:
        half = rng.integers(letters, size=(size, n // 2))
        whole = np.concatenate([half, half, half[:, :1]], axis=1)
        counts = np.arange(n) >= n // 2
        return Batch(whole[:, :n], whole[:, 1 : n + 1], counts, {})

    return Task("copy", n, letters, letters, ACCURACY, 1 / letters, draw, causal())


def recall(n: int = 128, keys: int = 32, values: int = 16) -> Task:
    """Associative recall: pairs of key and value, then keys whose values are asked for.

    The first half of a sequence holds n / 4 pairs of different keys, the second half asks n / 4
    times, each answer shown after it was asked for.
    """
    pairs = n // 4
    if pairs > keys:
        keys = pairs

    def draw(rng: np.random.Generator, size: int, _: bool) -> Batch:
        named = rng.permuted(np.tile(np.arange(keys), (size, 1)), axis=1)[:, :pairs]
        held = rng.integers(values, size=(size, pairs))
        asked = rng.integers(pairs, size=(size, pairs))
        rows = np.arange(size)[:, None]
        order = np.concatenate([np.tile(np.arange(pairs), (size, 1)), asked], axis=1)
        whole = np.stack([named[rows, order], keys + held[rows, order]], axis=2).reshape(size, -1)
        targets = np.roll(whole, -1, axis=1)
        place = np.arange(whole.shape[1])
        counts = (place >= 2 * pairs) & (place % 2 == 0)
        return Batch(whole, np.where(counts, targets - keys, 0), counts, {})

    kinds, n = keys + values, 4 * pairs
    return Task("recall", n, kinds, values, ACCURACY, 1 / values, draw, causal(), effort=3)


def text(content: str, n: int = 256, name: str = "text") -> Task:
    """The next byte of a text; the last tenth of it is held out."""
    data = np.frombuffer(content.encode("utf-8"), dtype=np.uint8).astype(np.int64)
    edge = len(data) * 9 // 10
    draw = _next_tokens({False: data[:edge], True: data[edge:]}, n)
    return Task(name, n, 256, 256, LOSS, _entropy(data), draw, causal())


def _next_tokens(
    streams: Mapping[bool, np.ndarray], n: int
) -> Callable[[np.random.Generator, int, bool], Batch]:
    def draw(rng: np.random.Generator, size: int, held_out: bool) -> Batch:
        stream = streams[held_out]
        starts = rng.integers(len(stream) - n, size=size)
        rows = np.stack([stream[i : i + n + 1] for i in starts])
        return Batch(rows[:, :n], rows[:, 1:], np.ones(n, dtype=bool), {})

    return draw


def _entropy(stream: np.ndarray) -> float:
    shares = np.bincount(stream) / len(stream)
    return float(-(shares[shares > 0] * np.log(shares[shares > 0])).sum())


def code_trees(n: int = 256) -> Task:
    """The kind of the next node of syntax trees in preorder, from Python's own library.

    Masks may read the parents of nodes by the name `tree`, for `mc.tree("tree")`. Modules are held
    out whole.
    """
    streams = {False: _trees(_LIBRARY[:-2]), True: _trees(_LIBRARY[-2:])}
    kinds = {name: i for i, name in enumerate(sorted({x for s in streams.values() for x, _ in s}))}
    ids = {side: np.array([kinds[x] for x, _ in s]) for side, s in streams.items()}
    above = {side: np.array([p for _, p in s]) for side, s in streams.items()}
    ahead = _next_tokens(ids, n)

    def draw(rng: np.random.Generator, size: int, held_out: bool) -> Batch:
        again = np.random.default_rng()
        again.bit_generator.state = rng.bit_generator.state
        starts = again.integers(len(ids[held_out]) - n, size=size)
        targets = np.stack([above[held_out][i : i + n] - i for i in starts])
        tree = parents(np.where(targets < 0, -1, targets))  # whose parent is before: a root
        return ahead(rng, size, held_out)._replace(data={"tree": tree})

    stream = np.concatenate(list(ids.values()))
    return Task("code trees", n, len(kinds), len(kinds), LOSS, _entropy(stream), draw, causal())


_LIBRARY = (
    "argparse", "ast", "codecs", "configparser", "csv", "datetime", "decimal", "doctest",
    "fractions", "inspect", "pathlib", "pickle", "tarfile", "tokenize", "typing", "zipfile",
)  # fmt: skip


def _trees(modules: Sequence[str]) -> list[tuple[str, int]]:
    """(kind, index of the parent or -1) of the nodes of modules, one after the other."""
    import ast
    from importlib.util import find_spec
    from pathlib import Path

    nodes: list[tuple[str, int]] = []

    def visit(node: ast.AST, parent: int) -> None:
        number = len(nodes)
        nodes.append((type(node).__name__, parent))
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.expr_context):
                visit(child, number)

    for name in modules:
        spec = find_spec(name)
        if spec is not None and spec.origin and spec.origin.endswith(".py"):
            visit(ast.parse(Path(spec.origin).read_text(encoding="utf-8")), -1)
    return nodes


def digits() -> Task:
    """Which digit an image of 8 x 8 pixels shows; scikit-learn brings 1797 of them.

    Raises:
        ExtraMissing: scikit-learn is not installed (MC507).
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        from maskc.core.errors import not_imported

        raise not_imported(error, "the task of digits", "scikit-learn", "evaluate") from error
    images, labels = load_digits(return_X_y=True)
    pixels, labels = images.astype(np.int64), labels.astype(np.int64)
    held = np.arange(len(labels)) % 5 == 0

    def draw(rng: np.random.Generator, size: int, held_out: bool) -> Batch:
        chosen = rng.choice(np.flatnonzero(held == held_out), size=size)
        return Batch(pixels[chosen], labels[chosen], np.ones(64, dtype=bool), {})

    chance = float(np.bincount(labels).max() / len(labels))
    return Task("digits", 64, 17, 10, ACCURACY, chance, draw, full(), whole=True)


# ------------------------------------------------------------------ training


def train(
    mask: Mask, task: Task, *, seeds: Sequence[int] = (0, 1, 2), recipe: Recipe | None = None,
    dense: Sequence[float] | None = None, progress: Callable[[str], object] | None = None,
) -> Trained:  # fmt: skip
    """Train models with and without the mask, from the same initial weights on the same batches.

    Args:
        mask: it may read the task's data; each layer runs the task's base & the mask.
        task: the task, such as `copying()`.
        seeds: seeds of weights and batches, at least two. Each trains one pair of models.
        recipe: training settings; defaults of `Recipe` when None.
        dense: measures without the mask for these seeds, if known, as `measured` returned them.
        progress: called with a description of the next step.

    Returns:
        Measures by seed, their mean difference with Student's interval, and the p-value of a
        difference of at least MARGIN.

    Raises:
        TooFewValues: there are fewer than two seeds (MC735).
        ExtraMissing: torch or SciPy is not installed (MC507).
    """
    recipe = recipe or Recipe()
    asked = {"masked": mask} if dense is not None else {"dense": None, "masked": mask}
    measures = measured(asked, task, seeds, recipe, progress)
    return compared(task, recipe, seeds, measures["masked"], measures.get("dense", dense) or ())


def compared(
    task: Task, recipe: Recipe, seeds: Sequence[int], masked: Sequence[float],
    dense: Sequence[float],
) -> Trained:  # fmt: skip
    """Compare measures by seed with a mask and without; raises as `train` does."""
    steps = recipe.steps * task.effort
    return Trained(
        task.name, task.measure, steps, steps * recipe.batch * task.n, tuple(seeds),
        tuple(masked), tuple(dense), paired_interval(masked, dense), paired_p(masked, dense),
        MARGIN, equivalence(masked, dense, MARGIN), task.chance,
    )  # fmt: skip


def measured(
    masks: Mapping[str, Mask | None], task: Task, seeds: Sequence[int], recipe: Recipe,
    progress: Callable[[str], object] | None = None,
) -> dict[str, list[float]]:  # fmt: skip
    """Train models with masks and return their measures, by name and seed.

    All models are trained at once, each with its own losses. Their weights are stacked, so that one
    product serves all. Models of a seed have the same first weights and batches.

    Args:
        masks: by name; None is dense attention.
        task, seeds, recipe: as `train`.
        progress: called every hundredth step.
    """
    torch = torch_module()
    models = _Models(masks, task, seeds, recipe)
    optimizer = torch.optim.AdamW(models.weights.values(), lr=recipe.rate, weight_decay=0.01)
    steps = recipe.steps * task.effort
    warm = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warm, 0.5 + 0.5 * float(np.cos(np.pi * step / steps))),
    )
    draws = [np.random.default_rng([seed, 1]) for seed in seeds]
    for step in range(steps):
        if progress and step % 100 == 0:
            progress(f"{task.name}, {len(masks)} masks, step {step}")
        loss, _ = models.losses([task.draw(rng, recipe.batch, False) for rng in draws])
        optimizer.zero_grad()
        loss.sum().backward()
        models.clip(1.0)
        optimizer.step()
        schedule.step()
    held = [np.random.default_rng([seed, 2]) for seed in seeds]
    which = 1 if task.measure == ACCURACY else 0
    with torch.no_grad():
        ends = [
            models.losses([task.draw(rng, recipe.batch, True) for rng in held])[which]
            for _ in range(recipe.held_out)
        ]
    means = torch.stack(ends).mean(dim=0).view(len(masks), len(seeds)).tolist()
    return dict(zip(masks, means, strict=True))


class _Models:
    """Small transformers with learned positions, for each mask and seed, stacked in this order."""

    def __init__(
        self, masks: Mapping[str, Mask | None], task: Task, seeds: Sequence[int], recipe: Recipe
    ) -> None:
        torch = torch_module()
        self.task, self.recipe, self.seeds = task, recipe, len(seeds)
        self.masks = [task.base if mask is None else task.base & mask for mask in masks.values()]
        self.names = [declared_names(mask) for mask in self.masks]
        drawn = [_first_weights(task, recipe, seed) for seed in seeds]
        self.weights = {
            name: torch.stack([batch[name] for batch in drawn] * len(self.masks))
            .to(recipe.device)
            .requires_grad_()
            for name in drawn[0]
        }

    def losses(self, batches: Sequence[Batch]) -> tuple[Any, Any]:
        """(losses in nats [models], accuracies [models]) of the places that count."""
        torch = torch_module()
        device, times = self.recipe.device, len(self.masks)
        tokens, targets = (
            torch.from_numpy(np.stack([getattr(batch, name) for batch in batches])).to(device)
            for name in ("tokens", "targets")
        )
        logits = self._logits(tokens, batches)
        targets = targets.repeat(times, *[1] * (targets.ndim - 1))
        if self.task.whole:
            logits = logits.mean(dim=2)
        else:
            counts = torch.from_numpy(batches[0].counts).to(device)
            logits, targets = logits[:, :, counts].flatten(1, 2), targets[:, :, counts].flatten(1)
        lost = torch.nn.functional.cross_entropy(
            logits.transpose(1, 2), targets, reduction="none"
        ).mean(dim=1)
        return lost, (logits.argmax(-1) == targets).float().mean(dim=1)

    def _logits(self, tokens: Any, batches: Sequence[Batch]) -> Any:
        """[models, B, N, classes] of tokens [seeds, B, N]."""
        torch = torch_module()
        weights = self.weights
        models, kinds = weights["tokens.weight"].shape[:2]
        tokens = tokens.repeat(len(self.masks), 1, 1)
        tokens = tokens + kinds * torch.arange(models, device=tokens.device)[:, None, None]
        x = torch.nn.functional.embedding(tokens, weights["tokens.weight"].flatten(0, 1))
        x = x + weights["places"][:, None]
        merged = _merged(batches, frozenset().union(*self.names), x.device)
        data = [{name: merged[name] for name in names & merged.keys()} for names in self.names]
        for index in range(self.recipe.layers):
            block = f"{index}."
            x = x + self._attention(block, self._norm(block + "before", x), data)
            up = self._linear(block + "up", self._norm(block + "after", x))
            x = x + self._linear(block + "down", torch.nn.functional.gelu(up))
        return self._linear("head", self._norm("norm", x))

    def _attention(self, block: str, x: Any, data: Sequence[Mapping[str, object]]) -> Any:
        torch = torch_module()
        heads, batch = self.recipe.heads, x.shape[1]
        qkv = self._linear(block + "qkv", x).unflatten(-1, (3, heads, -1))
        # [3, masks, seeds * B, heads, N, D]: each mask serves the models of all seeds at once.
        qkv = qkv.permute(3, 0, 1, 4, 2, 5).unflatten(1, (len(self.masks), -1)).flatten(2, 3)
        if x.is_cuda:
            qkv = qkv.bfloat16()
        seen = []
        for index, mask in enumerate(self.masks):
            q, k, v = qkv[:, index].contiguous().unbind(0)
            call: Any = self.recipe.compute or attention
            seen.append(call(q, k, v, mask, **data[index]))
        out = torch.cat(seen).to(x.dtype).transpose(1, 2).flatten(2)
        return self._linear(block + "out", out.unflatten(0, (-1, batch)))

    def _linear(self, name: str, x: Any) -> Any:
        torch = torch_module()
        weight, bias = self.weights[name + ".weight"], self.weights[name + ".bias"]
        out = torch.baddbmm(bias[:, None], x.flatten(1, 2), weight.transpose(1, 2))
        return out.unflatten(1, x.shape[1:3])

    def _norm(self, name: str, x: Any) -> Any:
        weight, bias = (
            self.weights[f"{name}.{part}"][:, None, None] for part in ("weight", "bias")
        )
        return torch_module().nn.functional.layer_norm(x, x.shape[-1:]) * weight + bias

    def clip(self, most: float) -> None:
        """Scale the gradient of each model to a norm of at most so much."""
        torch = torch_module()
        gradients = [weight.grad for weight in self.weights.values()]
        squares = [grad.flatten(1).square().sum(dim=1) for grad in gradients]
        factor = (most / (torch.stack(squares).sum(dim=0).sqrt() + 1e-6)).clamp(max=1.0)
        for grad in gradients:
            grad.mul_(factor.view(-1, *[1] * (grad.ndim - 1)))


def _merged(batches: Sequence[Batch], names: frozenset[str], device: Any) -> dict[str, object]:
    """The arrays of all batches that a mask names, one sequence after the other, as tensors."""
    torch = torch_module()
    merged: dict[str, object] = {}
    for name in sorted(names & set(batches[0].data)):
        arrays: Any = [batch.data[name] for batch in batches]
        marked = isinstance(arrays[0], Parents)
        whole = np.concatenate([array.array for array in arrays] if marked else arrays)
        tensor = torch.from_numpy(whole).to(device)
        merged[name] = parents(tensor) if marked else tensor
    return merged


def _first_weights(task: Task, recipe: Recipe, seed: int) -> dict[str, Any]:
    """Weights by name, as torch draws them for layers of these kinds."""
    torch = torch_module()
    nn, width = torch.nn, recipe.width
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = {"tokens": nn.Embedding(task.tokens, width)}
        places = 0.02 * torch.randn(task.n, width)
        for index in range(recipe.layers):
            layers |= {
                f"{index}.before": nn.LayerNorm(width), f"{index}.after": nn.LayerNorm(width),
                f"{index}.qkv": nn.Linear(width, 3 * width),
                f"{index}.out": nn.Linear(width, width), f"{index}.up": nn.Linear(width, 4 * width),
                f"{index}.down": nn.Linear(4 * width, width),
            }  # fmt: skip
        layers |= {"norm": nn.LayerNorm(width), "head": nn.Linear(width, task.classes)}
    weights = {"places": places}
    for name, layer in layers.items():
        weights |= {f"{name}.{part}": weight.detach() for part, weight in layer.named_parameters()}
    return weights


def tasks(long_text: str | None = None, n: int = 256) -> Iterator[Task]:
    """All tasks: long text and code trees of n tokens, images and the two synthetic ones."""
    from maskc.lab.evaluate.texts import demo_texts

    yield copying()
    yield recall()
    yield text(demo_texts()["english"] if long_text is None else long_text, n)
    yield code_trees(n)
    yield digits()
