"""Mistakes around models of other libraries."""

from __future__ import annotations

from maskc.core.errors.base import MaskcError


class ModelNotServed(MaskcError):
    """A transformers model computes its attention itself and never calls maskc."""

    code = "MC605"
    message = "{0} cannot run with attn_implementation='maskc': {1}"
    hint = "load it with attn_implementation='eager'"


class PartNotServed(ModelNotServed):
    """A part of a transformers model, such as its vision tower, computes its attention itself.

    The rest may run on maskc.
    """

    code = "MC614"
    hint = "give this part another implementation: attn_implementation={2}"


class ModelArgument(MaskcError):
    """A model passes its attention something that would change the result and is not supported."""

    code = "MC606"
    message = "{0} calls its attention with {1}, which maskc does not compute"
    hint = "{2}"


class MaskNotATensor(MaskcError, AttributeError, TypeError):
    """A model treats its attention mask as a tensor, or as FlexAttention's block mask."""

    code = "MC607"
    message = "{0} reads {1} of its attention mask, which is a set in maskc and not a tensor"
    hint = "this model computes with masks itself: load it with attn_implementation='eager'"


class PackingLost(MaskcError):
    """The position ids describe packed sequences, and transformers made no mask for them."""

    code = "MC608"
    message = (
        "{0} got position_ids that restart at token {1} of sequence {2}, and a mask without "
        "packed sequences, so tokens would see other sequences"
    )
    hint = (
        "transformers packs only without a cache and without a mask: pass use_cache=False and "
        "attention_mask=None, also in training; give models that never pack cu_seq_lens_q and "
        "cu_seq_lens_k, or one sequence per row"
    )


class StateCrossesSequences(PackingLost):
    """Layers without attention, such as Mamba's, would carry state across packed sequences."""

    code = "MC615"
    message = (
        "{0} got packed sequences, and other layers of the model ({1}) carry their state from one "
        "sequence into the next"
    )
    hint = "{2}"


class ModelMask(MaskcError):
    """A model passes an attention mask that maskc cannot use."""

    code = "MC609"
    message = "{0} calls its attention with {1}"
    hint = "{2}"


class LibraryTooOld(MaskcError):
    """An installed library is older than maskc supports."""

    code = "MC613"
    message = "maskc needs {0} {1} or later, and {2} is installed"
    hint = "pip install '{0}>={1}'"


class NotServed(MaskcError):
    """An inference engine or a trainer uses attention in a way that its plug-in does not run."""

    code = "MC665"
    message = "{0}: maskc does not run {1}"
    hint = "choose another attention backend for this model or option"


class BadServingMask(MaskcError):
    """The mask in MASKC_SERVING_MASK cannot be used for the layers of an inference engine."""

    code = "MC666"
    message = "the mask {0!r} {1}"
    hint = "write a mask without data, such as 'sinks(4) | window(1023)', or unset the variable"
