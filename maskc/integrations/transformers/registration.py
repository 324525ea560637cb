"""Registration of the name "maskc" in transformers, and what it refuses to run under the name."""

from __future__ import annotations

from functools import wraps
from typing import Any

from maskc.core.errors import LibraryTooOld, not_imported
from maskc.integrations.transformers.attention import run
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
from maskc.integrations.transformers.packed_positions import check_where_masks_are_made

NAME = "maskc"
OLDEST = "5.24"
"""The oldest version of transformers: earlier ones make masks of packed sequences otherwise."""


def register() -> None:
    """Make `attn_implementation="maskc"` known to transformers. Calling it again does nothing.

    Works in `from_pretrained`, `from_config` and `set_attn_implementation`, with dynamic and static
    caches. Continuous batching takes only implementations of its own, see `continuous_batching`.

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
    check_where_masks_are_made(NAME)
    AttentionMaskInterface.register(NAME, make_mask)
    AttentionInterface.register(NAME, run)
    _refuse_others(PreTrainedModel)


def _release(version: str) -> tuple[int, ...]:
    """Major and minor of a version such as "5.25.0.dev0"."""
    return tuple(int(number) for number in version.split(".")[:2])


def _refuse_others(kind: Any) -> None:
    """Make models that would silently compute attention themselves raise an error for the name."""
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
        chosen: str = choose(self, requested_attention, is_init_check)
        return chosen

    kind.get_correct_attn_implementation = get_correct_attn_implementation
