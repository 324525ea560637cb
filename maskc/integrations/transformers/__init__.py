"""Models of transformers on maskc's kernels: `attn_implementation="maskc"`.

`register` makes the name known. The mask of each layer is what the model asks of transformers'
`masking_utils`, as a Mask: nothing of size n_q * n_kv is made. What a model asks of its attention
and maskc does not compute is refused with the model's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import wraps
from typing import Any

from maskc.core.errors import BadOption, LibraryTooOld, not_imported
from maskc.dsl.mask import Mask
from maskc.dsl.not_a_mask import not_a_mask
from maskc.integrations.transformers.asked import Check as Check
from maskc.integrations.transformers.asked import Row as Row
from maskc.integrations.transformers.asked import attention_modules
from maskc.integrations.transformers.asked import check as check
from maskc.integrations.transformers.asked import mask_of as mask_of
from maskc.integrations.transformers.attention import EXTRA, run
from maskc.integrations.transformers.carried import (
    NEVER_ASKS,
    can_be_set,
    make_mask,
    not_served,
    note_parts,
    prepare,
    refuse_by_name,
)
from maskc.integrations.transformers.masks import mark

NAME = "maskc"
OLDEST = "5.24"
"""Of transformers: earlier ones make masks of packed sequences from other functions."""


def register() -> None:
    """Make `attn_implementation="maskc"` known to transformers. Calling it again does nothing.

    Works in `from_pretrained`, `from_config` and `set_attn_implementation`, with dynamic and static
    caches. Continuous batching of transformers takes only its own implementations.

    Raises:
        ExtraMissing: transformers or torch is not installed (MC507).
        LibraryTooOld: it is an earlier transformers than 5.24 (MC613).
    """
    try:
        from transformers import __version__

        if _release(__version__) < _release(OLDEST):
            raise LibraryTooOld("transformers", OLDEST, __version__)
        from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
    except ImportError as error:
        raise not_imported(
            error, "maskc.integrations.transformers", "transformers", "transformers"
        ) from error
    if NAME in AttentionMaskInterface._global_mapping:
        return
    prepare()
    mark()
    AttentionMaskInterface.register(NAME, make_mask)
    AttentionInterface.register(NAME, run)
    _refuse_others(PreTrainedModel)


def _release(version: str) -> tuple[int, ...]:
    """Major and minor of a version such as "5.25.0.dev0"."""
    return tuple(int(number) for number in version.split(".")[:2])


def _refuse_others(kind: Any) -> None:
    """Models that would silently compute attention by themselves refuse the name."""
    choose = kind.get_correct_attn_implementation

    @wraps(choose)
    def get_correct_attn_implementation(
        self: Any, requested_attention: str | None, is_init_check: bool = False
    ) -> str:
        note_parts(self.config)
        if requested_attention == NAME:
            model: Any = type(self)
            if not can_be_set(model):
                raise not_served(model.__name__, NEVER_ASKS, type(self.config))
            refuse_by_name(model, NAME)
        found: str = choose(self, requested_attention, is_init_check)
        return found

    kind.get_correct_attn_implementation = get_correct_attn_implementation


def set_mask(model: Any, masks: Mask | Mapping[int, Mask | None]) -> None:
    """Give layers of a model a sparser mask: each runs the model's own mask & the given one.

    Padding, packing and caches stay what the model says. None takes a mask away again.

    Args:
        model: a model that runs with attn_implementation="maskc".
        masks: a mask for all layers, or one for each of some layers by their index. Positions are
            those of the keys in the call; masks that read named data are refused by the call.

    Raises:
        NotAMask: a value is no mask (MC106).
        BadOption: there is no such layer (MC407).
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
