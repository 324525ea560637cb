"""Layer 3 of the evidence: small models trained with a mask beside models trained without."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from maskc.api import attention
from maskc.dsl.combinators import causal, full
from maskc.dsl.data_atoms import parents
from maskc.dsl.mask import Mask
from maskc.evaluate.results import Trained
from maskc.evaluate.statistics import equivalence, paired_interval, paired_p
from maskc.evaluate.tensors import torch_module

ACCURACY, LOSS = "accuracy", "nats per token"


class Batch(NamedTuple):
    """Sequences with what is to be predicted at each place."""

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
    """Where batches come from, and what is measured."""

    name: str
    n: int
    tokens: int
    """How many different tokens there are."""
    classes: int
    measure: str
    chance: float
    """The measure of a model that knows nothing but how frequent the answers are."""
    draw: Callable[[np.random.Generator, int, bool], Batch]
    """From (random numbers, batch size, whether held out) to a batch."""
    base: Mask
    """What dense attention means."""
    whole: bool = False
    """Whether one answer is given for a whole sequence."""

    @property
    def margin(self) -> float:
        """The difference that counts as none: .02, of accuracy or in nats."""
        return 0.02


@dataclass(frozen=True)
class Recipe:
    """How small models are trained; the same for all masks of a comparison."""

    steps: int = 1000
    batch: int = 32
    width: int = 64
    layers: int = 2
    heads: int = 4
    rate: float = 2e-3
    held_out: int = 16
    """Batches of the measurement."""
    device: str = "cpu"


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

    return Task("recall", 4 * pairs, keys + values, values, ACCURACY, 1 / values, draw, causal())


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
        own = np.stack([above[held_out][i : i + n] - i for i in starts])
        tree = parents(np.where(own < 0, -1, own))  # whose parent is before: a root
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

    found: list[tuple[str, int]] = []

    def visit(node: ast.AST, parent: int) -> None:
        own = len(found)
        found.append((type(node).__name__, parent))
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.expr_context):
                visit(child, own)

    for name in modules:
        spec = find_spec(name)
        if spec is not None and spec.origin and spec.origin.endswith(".py"):
            visit(ast.parse(Path(spec.origin).read_text(encoding="utf-8")), -1)
    return found


def digits() -> Task:
    """Which digit an image of 8 x 8 pixels shows; scikit-learn brings 1797 of them.

    Raises:
        ExtraMissing: scikit-learn is not installed (MC507).
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        from maskc.core.errors import ExtraMissing

        raise ExtraMissing("the task of digits", "scikit-learn", "evaluate") from None
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
    """Train with the mask and without: same first weights, same batches, same tokens.

    Args:
        mask: it may read the task's data; each layer runs the task's base & the mask.
        task: such as `copying()`.
        seeds: of weights and batches; one pair of models each, at least two.
        recipe: of the training.
        dense: what `measured(None, ...)` gave for these seeds, if it is known.
        progress: is told what comes next.

    Returns:
        Measures by seed, their mean difference with Student's interval, and the p-value of a
        difference of at least the task's margin.

    Raises:
        TooFewValues: there are fewer than two seeds (MC735).
        ExtraMissing: torch or SciPy is not installed (MC507).
    """
    recipe = recipe or Recipe()
    dense = measured(None, task, seeds, recipe, progress) if dense is None else dense
    masked = measured(mask, task, seeds, recipe, progress)
    return Trained(
        task.name, task.measure, recipe.steps, recipe.steps * recipe.batch * task.n, tuple(seeds),
        tuple(masked), tuple(dense), paired_interval(masked, dense), paired_p(masked, dense),
        task.margin, equivalence(masked, dense, task.margin), task.chance,
    )  # fmt: skip


def measured(
    mask: Mask | None, task: Task, seeds: Sequence[int], recipe: Recipe,
    progress: Callable[[str], object] | None = None,
) -> list[float]:  # fmt: skip
    """What models come to that were trained with a mask, by seed; None trains dense ones."""
    own = task.base if mask is None else task.base & mask
    found = []
    for seed in seeds:
        if progress:
            progress(f"{task.name}, {'dense' if mask is None else mask}, seed {seed}")
        found.append(_trained(own, task, seed, recipe))
    return found


def _trained(mask: Mask, task: Task, seed: int, recipe: Recipe) -> float:
    torch = torch_module()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = _network(task, recipe, mask).to(recipe.device)
    rng = np.random.default_rng([seed, 1])
    optimizer = torch.optim.AdamW(network.parameters(), lr=recipe.rate, weight_decay=0.01)
    warm = max(1, recipe.steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warm, 0.5 + 0.5 * float(np.cos(np.pi * step / recipe.steps))),
    )
    network.train()
    for _ in range(recipe.steps):
        loss, _ = _losses(network, task.draw(rng, recipe.batch, False), task, recipe)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    network.eval()
    held = np.random.default_rng([seed, 2])
    with torch.no_grad():
        ends = [
            _losses(network, task.draw(held, recipe.batch, True), task, recipe)
            for _ in range(recipe.held_out)
        ]
    which = 1 if task.measure == ACCURACY else 0
    return float(np.mean([float(end[which]) for end in ends]))


def _losses(network: Any, batch: Batch, task: Task, recipe: Recipe) -> tuple[Any, Any]:
    """(loss in nats, accuracy) of the places that count."""
    torch = torch_module()
    tokens = torch.from_numpy(batch.tokens).to(recipe.device)
    targets = torch.from_numpy(batch.targets).to(recipe.device)
    logits = network(tokens, batch.data)
    if task.whole:
        logits = logits.mean(dim=1)
    else:
        counts = torch.from_numpy(batch.counts).to(recipe.device)
        logits, targets = logits[:, counts].flatten(0, 1), targets[:, counts].flatten()
    loss = torch.nn.functional.cross_entropy(logits, targets)
    return loss, (logits.argmax(-1) == targets).float().mean()


def _network(task: Task, recipe: Recipe, mask: Mask) -> Any:
    """A small transformer with learned positions, whose attention is maskc's."""
    from maskc.reference.dense import declarations, walk

    torch = torch_module()
    nn = torch.nn
    width, heads = recipe.width, recipe.heads
    names = {decl.name for node in walk(mask) for decl in declarations(node)}

    class Block(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any, data: Mapping[str, object]) -> Any:
            qkv = self.qkv(self.before(x)).unflatten(-1, (3, heads, width // heads))
            q, k, v = qkv.permute(2, 0, 3, 1, 4).contiguous().unbind(0)
            call: Any = attention
            seen = call(q, k, v, mask, **data)
            x = x + self.out(seen.transpose(1, 2).flatten(2))
            return x + self.down(nn.functional.gelu(self.up(self.after(x))))

    class Network(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(task.tokens, width)
            self.places = nn.Parameter(0.02 * torch.randn(task.n, width))
            self.blocks = nn.ModuleList(Block() for _ in range(recipe.layers))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, task.classes)

        def forward(self, tokens: Any, data: Mapping[str, object]) -> Any:
            x = self.tokens(tokens) + self.places
            data = {name: array for name, array in data.items() if name in names}
            for block in self.blocks:
                x = block(x, data)
            return self.head(self.norm(x))

    return Network()


def tasks(long_text: str | None = None) -> Iterator[Task]:
    """All tasks: long text, code trees, images and the two synthetic ones."""
    from maskc.evaluate.texts import demo_texts

    yield copying()
    yield recall()
    yield text(demo_texts()["english"] if long_text is None else long_text)
    yield code_trees()
    yield digits()
