"""Models of transformers on maskc's kernels: `attn_implementation="maskc"`.

`register` registers the name. The mask of each layer is the one that the model requests from
transformers' `masking_utils`, as a Mask: nothing of size n_q * n_kv is created. If a model needs
something that maskc does not compute, the error names the model.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from maskc.core.errors import BadOption
from maskc.core.source import outside
from maskc.dsl.mask import Mask
from maskc.dsl.not_a_mask import not_a_mask
from maskc.integrations.transformers.attention import EXTRA
from maskc.integrations.transformers.continuous import continuous_batching as continuous_batching
from maskc.integrations.transformers.model_checks import Check as Check
from maskc.integrations.transformers.model_checks import Row as Row
from maskc.integrations.transformers.model_checks import attention_modules
from maskc.integrations.transformers.model_checks import check as check
from maskc.integrations.transformers.model_checks import mask_of as mask_of
from maskc.integrations.transformers.registration import NAME as NAME
from maskc.integrations.transformers.registration import OLDEST as OLDEST
from maskc.integrations.transformers.registration import register as register


class IgnoredMaskWarning(UserWarning):
    """A model got a mask by `set_mask`, and its attention implementation does not read it."""


def set_mask(model: Any, masks: Mask | Mapping[int, Mask | None]) -> None:
    """Give layers of a model a sparser mask: each layer runs its own mask & the given one.

    Padding, packing and caches are unchanged. None removes a mask. In an encoder-decoder model, an
    index names a layer of the encoder and one of the decoder, with its cross attention.

    Args:
        model: a model that runs with attn_implementation="maskc".
        masks: a mask for all layers, or a dictionary from layer indices to masks. They count from
            the first token of the sequence, with every cache. Masks that read named data raise an
            error in the call.

    Raises:
        NotAMask: a value is not a mask (MC106).
        BadOption: there is no such layer (MC407).

    Warns:
        IgnoredMaskWarning: the model runs another implementation, which ignores the masks.
    """
    modules = attention_modules(model)
    if isinstance(masks, Mask):
        masks = dict.fromkeys(modules, masks)
    elif not isinstance(masks, Mapping):
        raise not_a_mask("set_mask", masks, "masks")
    for layer, mask in masks.items():
        if mask is not None and not isinstance(mask, Mask):
            raise not_a_mask("set_mask", mask, f"masks[{layer!r}]")
        if layer not in modules:
            known = ", ".join(map(str, sorted(modules))) or "none"
            raise BadOption("layer", f"one of the layers {known}", repr(layer), at="masks")
    for layer, mask in masks.items():
        for module in modules[layer]:
            module.__dict__.pop(EXTRA, None)
            if mask is not None:
                module.__dict__[EXTRA] = mask
    given = [layer for layer, mask in masks.items() if mask is not None]
    _warn_of_others(module for layer in given for module in modules[layer])


def _warn_of_others(modules: Iterable[Any]) -> None:
    """Warn if modules run an implementation that ignores masks of `set_mask`."""
    for module in modules:
        name = getattr(module.config, "_attn_implementation", NAME)
        if not str(name).startswith(NAME):  # those of maskc read the masks
            text = (
                f"{type(module).__name__} runs attn_implementation={name!r}, which ignores masks "
                "of set_mask: call model.set_attn_implementation('maskc')"
            )
            warnings.warn(text, IgnoredMaskWarning, stacklevel=outside())
            return
