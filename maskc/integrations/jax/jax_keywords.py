"""Keywords that a call with arrays of JAX does not have, and what to write in their place."""

from __future__ import annotations

from maskc.core.errors import BadOption, DataUnknown
from maskc.core.unknown import meant_keyword

OPTIONS = (
    "scale", "layout", "return_lse", "softcap", "alibi_slopes", "sink_logits", "deterministic",
    "score", "dropout_p", "dropout_seed",
)  # fmt: skip
"""Options of a call."""

_DOCUMENTS = 'mask & mc.documents("doc"), called with doc='
_LENGTHS = 'mask & mc.flags("keep"), called with keep=jnp.arange(tokens) < lengths[:, None]'
_SOFTMAX = "leave it out: calls with arrays of JAX have softmax only"
_OTHER = "leave it out: this is an option for torch tensors"
_KERNEL = "leave it out: the mask and the device determine the kernel"
_INSTEAD = {
    "alpha": _SOFTMAX,
    "bias": "score=mc.scores.bias() adds one to the scores, called with bias=",
    "broadcast_dropout": "leave it out: dropout is drawn for each pair",
    "causal": "the mask mc.causal(), where the last query meets the last key",
    "cu_seqlens_k": _DOCUMENTS + "(mc.cu_seqlens(of_queries), mc.cu_seqlens(of_keys))",
    "cu_seqlens_q": _DOCUMENTS + "mc.cu_seqlens(ends)",
    "dropout_rate": "dropout_p= is the share of weights that are dropped",
    "dropout_rng": "dropout_seed= takes a key of jax.random",
    "dtype": "leave it out: out has the dtype of q",
    "enable_gqa": "leave it out: query heads share key heads where there are fewer of those",
    "implementation": _KERNEL,
    "indexer_loss": _OTHER,
    "is_causal": 'the mask mc.causal(align="start"), or mc.causal() to align the last tokens',
    "key_value_seq_lengths": _LENGTHS,
    "local_window_size": 'mask & mc.window(left, right, align="start")',
    "logits_soft_cap": "softcap= bounds scores: softcap * tanh(score / softcap)",
    "max_seqlen": _DOCUMENTS + "mc.cu_seqlens(ends, max_seqlen)",
    "nan_safe": _OTHER,
    "normalizer": _SOFTMAX,
    "precision": "leave it out: kernels add up in fp32",
    "query_seq_lengths": _LENGTHS,
    "return_residual": "return_lse=True also returns lse, [B, H, N]",
    "return_selection": _OTHER,
    "segment_ids": _DOCUMENTS + "ids, or doc=(ids of queries, ids of keys)",
    "window_size": "mask & mc.window(left, right)",
}
"""Keywords of jax.nn.dot_product_attention, of Flax, and of mc.attention for other arrays."""


def is_elsewhere(name: str) -> bool:
    """Whether a keyword is one of another function, for which there is something to write."""
    return name in _INSTEAD


def keyword_hint(name: str, of_mask: str = "") -> str:
    """Return a hint that says what to write instead of a keyword.

    Args:
        name: the keyword that nothing takes.
        of_mask: names of data and parameters, separated by commas.
    """
    if text := _INSTEAD.get(name):
        return text
    meant = meant_keyword(name, of_mask.split(", "), OPTIONS)
    return f"{meant} options are {', '.join(OPTIONS)}".strip()


def unknown_here(error: DataUnknown) -> DataUnknown:
    """The mistake of an unknown keyword, with a hint for calls with arrays of JAX."""
    name, of_mask, *_ = map(str, error.args)
    return DataUnknown(name, of_mask, keyword_hint(name, of_mask), at=name)


_HELP = "see help(maskc.integrations.jax.attention)"


def bad_option(name: str, expected: str, finding: str, hint: str = _HELP) -> BadOption:
    """The mistake of an option that has another value than it takes."""
    return BadOption(name, expected, finding, hint, at=name)
