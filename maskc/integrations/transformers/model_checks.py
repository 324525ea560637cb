"""Questions about a model: which mask each layer runs, and whether the result is eager's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from maskc.core.dtypes import DType
from maskc.core.errors import BadOption
from maskc.core.problem import Problem
from maskc.dsl.mask import Mask
from maskc.integrations.transformers.attention import Layer, layers
from maskc.integrations.transformers.carried import NEVER_ASKS, can_be_set, not_served
from maskc.integrations.transformers.registration import register
from maskc.runtime.device import default_target

_TOKENS = 24
_SILENT = "no layer of it called the attention interface"
_HALF = 2e-2
"""The tolerance of half precision."""


@dataclass(frozen=True)
class Row:
    """Result of one attention layer."""

    layer: int
    """The index of the layer; the number of earlier calls if the module has no index."""
    module: str
    """The class of the attention module."""
    mask: Mask
    live: float
    """The share of pairs that the mask keeps, in this call."""
    heads: tuple[int, int]
    """(query heads, key/value heads)."""
    head_dims: tuple[int, int]
    """(of q and k, of v)."""
    target: str
    """The kernel family that ran."""
    extras: tuple[str, ...]
    """Soft-cap and sink logits, where the layer has them."""


@dataclass(frozen=True)
class Check:
    """Result of `check`; printed as a table."""

    model: str
    rows: tuple[Row, ...]
    error: float
    """Largest absolute difference to eager in the outputs of all tokens that are not padding."""
    scale: float
    """Largest absolute value of eager's outputs."""

    tolerance: float = 1e-4
    """The largest `error` that is allowed, as a share of `scale`: 1e-4 in fp32, 2e-2 in half
    precision, where eager itself rounds every step."""

    from_fp32: tuple[float, float] | None = None
    """Largest differences of maskc and of eager attention to eager attention in fp32; only where
    half precision differs by more than the tolerance, as a token may go to another expert."""

    @property
    def ok(self) -> bool:
        """Whether the difference is rounding: within the tolerance, or maskc is at most twice as
        far from fp32 as eager attention is."""
        if self.from_fp32 is not None:
            ours, eager = self.from_fp32
            return ours <= 2 * eager
        return self.error <= self.tolerance * max(self.scale, 1.0)

    def __str__(self) -> str:
        head = ("layer", "module", "mask", "live", "heads", "head dim", "kernel", "extras")
        lines = [
            (
                str(row.layer), row.module, str(row.mask),
                f"{row.live:.1%}", "{}/{}".format(*row.heads),
                "/".join(map(str, dict.fromkeys(row.head_dims))), row.target,
                ", ".join(row.extras),
            )
            for row in self.rows
        ]  # fmt: skip
        widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
        table = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in (head, *lines)
        ]
        word = "equals eager" if self.ok else "DIFFERS FROM EAGER"
        verdict = f"{self.model} {word}: largest difference {self.error:.1e} of {self.scale:.1e}"
        if self.from_fp32 is not None:
            verdict += "; from fp32 {:.1e}, eager {:.1e}".format(*self.from_fp32)
        return "\n".join([*table, verdict])


def check(model: Any, **inputs: Any) -> Check:
    """Run a model once with maskc and once with eager attention, and report each layer.

    The model's weights, mode and implementation are left as they were. If half precision differs
    by more than rounding usually does, a copy of the model in fp32 decides.

    Args:
        model: a model of transformers; its attention may be set to anything.
        inputs: keyword arguments of its forward pass; by default, 24 arbitrary tokens or one image.
            Pass a padded batch or packed position_ids to see how they appear in the masks.

    Returns:
        A table with a row for each attention layer, and the largest difference from eager
            attention.

    Raises:
        ModelNotServed: the model never calls the attention interface, or no layer did (MC605).
        MaskcError: a forward pass of the model raises it.
    """
    import torch

    seen, ours = _seen(model, inputs)
    inputs = inputs or _made_up(model)
    with _implementation(model, "eager"), torch.no_grad():
        eager = _output(model(**inputs))
    real = _real(inputs, ours)
    difference = (ours - eager).abs().float()
    if real is not None:
        difference, eager = difference[real], eager[real]
    half = eager.dtype in (torch.bfloat16, torch.float16)
    result = Check(
        _kind(model).__name__, tuple(map(_row, range(len(seen)), seen)), float(difference.max()),
        float(eager.abs().max()), _HALF if half else 1e-4,
    )  # fmt: skip
    if result.ok or not half:
        return result
    exact = _in_fp32(model, inputs)
    both = (ours if real is None else ours[real], eager)
    exact = exact if real is None else exact[real]
    ours_lost, eager_lost = (float((x.float() - exact).abs().max()) for x in both)
    return replace(result, from_fp32=(ours_lost, eager_lost))


def _in_fp32(model: Any, inputs: dict[str, Any]) -> Any:
    """The output of a copy of the model in fp32, with eager attention."""
    import torch

    copy = deepcopy(model).float()
    given = {
        name: x.float() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for name, x in inputs.items()
    }
    with _implementation(copy, "eager"), torch.no_grad():
        return _output(copy(**given))


def mask_of(model: Any, layer: int = 0, **inputs: Any) -> Mask:
    """Return the mask that a layer of a model runs.

    Args:
        model: a model of transformers; its attention may be set to anything.
        layer: index of the layer, as the model counts.
        inputs: keyword arguments of a forward pass, as for `check`. Padding and packing become part
            of the mask, as data named `padding`, `packing`, `chunks` and `images`.

    Returns:
        The mask.

    Raises:
        ModelNotServed: the model never calls the attention interface (MC605).
        BadOption: no layer with this index called the attention interface (MC407).
    """
    seen, _ = _seen(model, inputs)
    for row in seen:
        if row.number == layer:
            return row.mask
    known = [row.number for row in seen]
    if all(index is None for index in known) and 0 <= layer < len(seen):
        return seen[layer].mask
    listed = ", ".join(str(index) for index in dict.fromkeys(known))
    raise BadOption("layer", f"one that calls attention: {listed}", repr(layer), at="layer")


def attention_modules(model: Any) -> dict[int, list[Any]]:
    """The attention modules of a model by the index of their layer."""
    modules: dict[int, list[Any]] = {}
    for module in model.modules():
        index = module.__dict__.get("layer_idx")
        if isinstance(index, int) and "attention" in type(module).__name__.lower():
            modules.setdefault(index, []).append(module)
    return modules


def _seen(model: Any, inputs: dict[str, Any]) -> tuple[list[Layer], Any]:
    """(what the layers ran, the output) of one forward pass without gradients."""
    import torch

    kind = _kind(model)
    if not can_be_set(kind):
        raise not_served(kind.__name__, NEVER_ASKS, type(model.config))
    with _implementation(model, "maskc"), torch.no_grad(), layers() as seen:
        output = _output(model(**(inputs or _made_up(model))))
    if not seen:
        raise not_served(kind.__name__, _SILENT, type(model.config))
    return seen, output


def _kind(model: Any) -> type:
    """The class of a model, also where torch.compile wraps it."""
    return type(getattr(model, "_orig_mod", model))


@contextmanager
def _implementation(model: Any, name: str) -> Iterator[None]:
    """The model in evaluation mode with another attention, not compiled, for a while."""
    import torch

    register()
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    before = [(c, getattr(c, "_attn_implementation_internal", None)) for c in configs.values()]
    training = model.training
    model.eval()
    try:
        for config, _ in before:
            config._attn_implementation_internal = name
        with torch.compiler.set_stance("force_eager"):  # layers say nothing inside a graph
            yield
    finally:
        for config, word in before:
            config._attn_implementation_internal = word
        model.train(training)


def _made_up(model: Any) -> dict[str, Any]:
    """A small input: tokens, or an image."""
    import torch

    config = model.config
    text = config.get_text_config()
    device = next(model.parameters()).device
    if getattr(model, "main_input_name", "input_ids") == "pixel_values":
        size = config.image_size
        height, width = size if isinstance(size, (tuple, list)) else (size, size)
        shape = 1, config.num_channels, height, width
        dtype = next(model.parameters()).dtype
        noise = torch.linspace(-1, 1, shape[1] * height * width, dtype=dtype, device=device)
        return {"pixel_values": noise.reshape(shape)}
    ids = torch.arange(_TOKENS, device=device)[None] * 7 % (text.vocab_size - 3) + 3
    given = {"input_ids": ids}
    if getattr(config, "is_encoder_decoder", False):
        given["decoder_input_ids"] = ids
    else:
        given["attention_mask"] = torch.ones_like(ids)
    return given


def _output(result: Any) -> Any:
    """The first tensor of a model's output: logits, or hidden states."""
    for name in ("logits", "last_hidden_state"):
        output = getattr(result, name, None)
        if output is not None:
            return output
    return result[0]


def _real(inputs: dict[str, Any], output: Any) -> Any:
    """bool [B, N], where tokens are not padding; None if nothing says so."""
    mask: Any = inputs.get("attention_mask")
    if getattr(mask, "ndim", 0) != 2 or output.ndim != 3 or mask.shape != output.shape[:2]:
        return None
    return mask.bool()


def _row(number: int, layer: Layer) -> Row:
    heads, heads_kv, dims = layer.shape[1], layer.shape[2], layer.shape[5:]
    target = "cpu"
    if layer.device[0] != "cpu":
        target = default_target(Problem(*dims, DType.parse(layer.dtype)))
    extras = [f"softcap {layer.softcap:g}"] if layer.softcap is not None else []
    extras += ["sink logits"] if layer.sinks else []
    index = number if layer.number is None else layer.number
    return Row(
        index, layer.module, layer.mask, _live(layer), (heads, heads_kv), dims, target,
        tuple(extras),
    )  # fmt: skip


_DENSE = 1 << 22
"""Pairs of a mask that is looked at as a whole."""


def _live(layer: Layer) -> float:
    """The share of pairs that the mask keeps; of long sequences that of the first one."""
    heads, n_q, n_kv = layer.shape[1], layer.shape[3], layer.shape[4]
    if n_q * n_kv <= _DENSE:
        return float(layer.mask.dense(n_q, n_kv, n_heads=heads, **layer.data).mean())
    kept = layer.mask.count(n_q, n_kv, n_heads=heads, head=0, batch=0, **layer.data)
    return kept / (n_q * n_kv)
