"""Masks with run-time selections, end to end on the CPU: the definition decides, in fp64.

Inputs are small integers, so every score is exact in fp32 and the kernels must choose just what the
definition chooses, ties included.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import maskc as mc
from maskc.reference.attention import attention, gradients
from tests.support.thorough import examples

HEADS, DIM = 4, 16
_BLOCKS = st.sampled_from([1, 1, 8, 64])


@dataclass(frozen=True, eq=False)
class Call:
    """A mask and everything a call of it gives."""

    mask: mc.Mask
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    data: dict[str, object] = field(default_factory=dict)
    """The mask's own."""
    ranking: dict[str, np.ndarray] = field(default_factory=dict)
    """Scores that selections rank by."""

    @property
    def keep(self) -> np.ndarray:
        """bool [batch, heads, n_q, n_kv]."""
        batch, heads, n_q, _ = self.q.shape
        tensors = {"q": self.q, "k": self.k, **self.ranking}
        if "scores" in self.ranking:
            tensors = {"scores": self.ranking["scores"]}
        dense_mask = self.mask.dense(
            n_q, self.k.shape[2], n_heads=heads, heads_kv=self.k.shape[1], **self.data, **tensors
        )
        missing = 4 - dense_mask.ndim
        shape = (
            (batch, 1, *dense_mask.shape[1:])
            if missing and len(dense_mask) == batch
            else dense_mask.shape
        )
        return np.broadcast_to(dense_mask.reshape(shape), (batch, heads, n_q, self.k.shape[2]))


_JOINED = {
    "s": lambda own, others: own,
    "s | o": lambda own, others: own | others,
    "s & o": lambda own, others: own & others,
    "s - o": lambda own, others: own - others,
    "s ^ o": lambda own, others: own ^ others,
    "~s": lambda own, others: ~own,
}
PER_HEAD = mc.per_head([mc.causal(), mc.window(20), mc.full(), mc.sinks(30)])
AMONG = {
    "full": mc.full(),
    "causal": mc.causal(),
    "window": mc.window(40, 9),
    "per head": PER_HEAD,
    "documents": mc.causal() & mc.documents("doc"),
}


@dataclass(frozen=True)
class Form:
    """Everything that decides the source of a mask, except how many keys are chosen."""

    score: str
    among: str
    joined: str
    block: int
    q_block: int
    share: str

    def mask(self, k: int) -> mc.Mask:
        """The mask that chooses `k` keys or blocks."""
        own = mc.topk(
            k, AMONG[self.among], score=self.score, block=self.block, q_block=self.q_block,
            share=self.share,
        )  # fmt: skip
        return _JOINED[self.joined](own, mc.dilated(20, 3, stride=2) | mc.window(1))


FORMS = st.builds(
    Form,
    st.sampled_from(["qk", "block_mean", "indexer", "given"]),
    st.sampled_from(list(AMONG)),
    st.sampled_from(list(_JOINED)),
    _BLOCKS,
    _BLOCKS,
    st.sampled_from(["head", "group", "all"]),
)


@st.composite
def calls(draw: st.DrawFn, form: Form, batches: tuple[int, ...] = (1, 2)) -> Call:
    """A selection alone or with other masks, and integer inputs."""
    batch, heads_kv = draw(st.sampled_from(batches)), draw(st.sampled_from([1, 2, 4]))
    whole = form.score == "block_mean"  # means of 8 or 64 integers are exact
    lengths = st.sampled_from([64, 128]) if whole else st.integers(1, 150)
    n_q, n_kv = draw(lengths), draw(lengths)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))

    def integers(*shape: int) -> np.ndarray:
        return rng.integers(-2, 3, shape).astype(np.float32)

    data = {}
    if form.among == "documents":
        data = {"doc": tuple(np.sort(rng.integers(0, 4, n)) for n in (n_q, n_kv))}
    mask = form.mask(draw(st.integers(0, 3 if form.block > 1 else 40)))
    ranking = {}
    if form.score == "indexer":
        names = ("index_q", "index_k", "index_w")
        shapes = (batch, 3, n_q, 8), (batch, n_kv, 8), (batch, 3, n_q)
        ranking = {name: integers(*shape) for name, shape in zip(names, shapes, strict=True)}
    if form.score == "given":
        blocks = (-(-n_q // form.q_block), -(-n_kv // form.block))
        sizes = draw(st.sampled_from([(n_q, n_kv), blocks]))
        leading = draw(st.sampled_from([(), (HEADS,), (batch, HEADS), (batch, 1)]))
        ranking = {"scores": integers(*leading, *sizes)}
        ranking["scores"][rng.random(ranking["scores"].shape) < 0.1] = np.nan
        ranking["scores"][rng.random(ranking["scores"].shape) < 0.1] = -np.inf
    tensors = (batch, HEADS, n_q), (batch, heads_kv, n_kv), (batch, heads_kv, n_kv)
    return Call(mask, *(integers(*shape, DIM) for shape in tensors), data, ranking)


def several(number: int, batches: tuple[int, ...] = (1, 2)) -> st.SearchStrategy[list[Call]]:
    """Calls of one form: masks and inputs of their own, and one source, compiled once."""
    return FORMS.flatmap(
        lambda form: st.lists(calls(form, batches), min_size=number, max_size=number)
    )


@settings(max_examples=examples(13))
@given(several(4))
def test_calls_see_what_the_definition_says(made: list[Call]) -> None:
    for call in made:
        _as_defined(call)


def _as_defined(call: Call) -> None:
    attn = call.mask.compile(DIM, n_heads=HEADS, dtype="float32", target="cpu")
    out, lse = attn(call.q, call.k, call.v, return_lse=True, **call.data, **call.ranking)
    dout = np.cos(np.arange(out.size, dtype=np.float32)).reshape(out.shape)
    results = attn.backward(call.q, call.k, call.v, out, lse, dout, **call.data, **call.ranking)
    for b, keep in enumerate(call.keep):
        part = slice(b, b + 1)
        own = call.q[part], call.k[part], call.v[part]
        expected, expected_lse = attention(*own, keep)
        assert np.abs(out[part] - expected).max() < 1e-5
        assert np.array_equal(np.isneginf(lse[part]), np.isneginf(expected_lse))
        wanted = gradients(*own, keep, dout[part])
        for name, gradient in zip(("dq", "dk", "dv"), results, strict=True):
            scale = max(1.0, np.abs(wanted[name]).max())
            assert np.abs(gradient[part] - wanted[name]).max() < 1e-5 * scale, name


@settings(max_examples=examples(5))
@given(several(2, batches=(2,)))
def test_a_sequence_does_not_see_the_rest_of_the_batch(made: list[Call]) -> None:
    for call in made:
        _alone_as_in_the_batch(call)


def _alone_as_in_the_batch(call: Call) -> None:
    attn = call.mask.compile(DIM, n_heads=HEADS, dtype="float32", target="cpu")
    whole = attn(call.q, call.k, call.v, **call.data, **call.ranking)
    for b in range(len(call.q)):
        own = slice(b, b + 1)
        ranking = {
            name: x[own] if name != "scores" or x.ndim == 4 else x
            for name, x in call.ranking.items()
        }
        alone = attn(call.q[own], call.k[own], call.v[own], **call.data, **ranking)
        assert np.array_equal(alone, whole[own])
