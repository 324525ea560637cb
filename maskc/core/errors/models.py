"""Mistakes around models of other libraries."""

from __future__ import annotations

from maskc.core.errors.base import MaskcError


class ModelNotServed(MaskcError):
    """A model of transformers computes its attention by itself and never asks for ours."""

    code = "MC605"
    message = "{0} cannot run with attn_implementation='maskc': {1}"
    hint = "load it with attn_implementation='eager'"


class PartNotServed(ModelNotServed):
    """A part of a model of transformers, such as its vision tower, computes its attention by
    itself; the rest may run on maskc."""

    code = "MC614"
    hint = "give this part another implementation: attn_implementation={2}"


class ModelArgument(MaskcError):
    """A model passes something to its attention that would change the result and is not served."""

    code = "MC606"
    message = "{0} calls its attention with {1}, which maskc does not compute"
    hint = "{2}"


class MaskNotATensor(MaskcError, AttributeError, TypeError):
    """A model takes its attention mask for a tensor or for FlexAttention's blocks."""

    code = "MC607"
    message = "{0} takes {1} of its attention mask, which maskc keeps as a set and not as a tensor"
    hint = "this model computes with masks by itself: load it with attn_implementation='eager'"


class PackingLost(MaskcError):
    """The position ids describe packed sequences, and transformers made no mask of them."""

    code = "MC608"
    message = (
        "{0} gets position_ids that start anew at token {1} of sequence {2}, and a mask without "
        "packed sequences, so tokens would see other sequences"
    )
    hint = (
        "transformers packs only without a cache and without a mask: pass use_cache=False and "
        "attention_mask=None, also in training; some models never pack, so give them one sequence "
        "a row"
    )


class ModelMask(MaskcError):
    """The attention mask that a model passes is none that maskc can take."""

    code = "MC609"
    message = "{0} calls its attention with {1}"
    hint = "{2}"


class LibraryTooOld(MaskcError):
    """An installed library is older than what maskc serves."""

    code = "MC613"
    message = "maskc needs {0} {1} or later, and {2} is installed"
    hint = "pip install '{0}>={1}'"
