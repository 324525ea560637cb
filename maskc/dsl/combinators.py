"""The mask language: one function per combinator.

Throughout, q and k index the caller's tensors, and p = q + n_kv - n_q is the query's position when
`align="end"` (the last query meets the last key, as in decoding) or p = q when `align="start"`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from maskc.core.errors import BadPhase, NotAMask
from maskc.core.source import caller
from maskc.dsl import checked, nodes
from maskc.dsl.collect import mistake
from maskc.dsl.mask import Mask
from maskc.dsl.nodes import END
from maskc.dsl.not_a_mask import not_a_mask
from maskc.dsl.traced import Traced

Count = int | Traced
"""An integer that is data: a literal, `mc.param(...)`, or a formula in `mc.n_q`, `mc.n_kv`."""


def full() -> Mask:
    """Every pair."""
    return nodes.Full(loc=caller())


def causal(*, align: str = END) -> Mask:
    """k <= p."""
    at = caller()
    return nodes.Causal(checked.align("causal", align, at), loc=at)


def _sized(where: str, name: str, value: Count, least: int) -> Traced:
    """A count that arithmetic follows."""
    return Traced(checked.count(where, name, value, caller(), least))


class _Window:
    """p - left <= k <= p + right: inclusive counts on both sides; None is unbounded.

    Other projects count differently; their conventions by name:
    `window.hf(W)`, `window.hf_bidirectional(W)`, `window.longformer(W)`, `window.jax(L, R)`,
    `window.flash(L, R)`, `window.gym(W)`.
    """

    def __call__(self, left: Count | None, right: Count | None = 0, *, align: str = END) -> Mask:
        at = caller()
        sides = [
            None if side is None else checked.count("window", name, side, at)
            for name, side in (("left", left), ("right", right))
        ]
        return nodes.Window(sides[0], sides[1], checked.align("window", align, at), loc=at)

    def hf(self, size: Count) -> Mask:
        """Hugging Face's causal sliding window: `size` keys, the query itself included."""
        return self(_sized("window.hf", "size", size, 1) - 1, 0)

    def hf_bidirectional(self, size: Count) -> Mask:
        """Hugging Face's bidirectional sliding window: 2 * size + 1 keys."""
        return self(size, size)

    def longformer(self, attention_window: Count) -> Mask:
        """Longformer's attention_window: half of it on each side."""
        side = _sized("window.longformer", "attention_window", attention_window, 0) // 2
        return self(side, side)

    def jax(self, left: Count | None, right: Count | None) -> Mask:
        """JAX's LocalMask((left, right)): left + 1 + right keys."""
        return self(left, right)

    def flash(self, left: int, right: int) -> Mask:
        """FlashAttention's window_size=(left, right): inclusive, -1 is unbounded."""
        return self(None if left == -1 else left, None if right == -1 else right)

    def gym(self, size: Count) -> Mask:
        """attention-gym's sliding_window(size): size + 1 keys."""
        return self(size, 0)

    def __reduce__(self) -> str:
        return "window"  # there is one


window = _Window()


def dilated(left: Count, right: Count = 0, *, stride: int, align: str = END) -> Mask:
    """Every stride-th key of a window: `left` keys back and `right` ahead, besides p itself."""
    at = caller()
    made = nodes.Dilated(
        checked.count("dilated", "left", left, at),
        checked.count("dilated", "right", right, at),
        checked.constant("dilated", "stride", stride, at),
        checked.align("dilated", align, at),
        loc=at,
    )
    for side in (made.left, made.right):
        checked.scaled("dilated", made.stride, side, at)
    return made


def offsets(ids: Iterable[int], *, align: str = END) -> Mask:
    """p - k in ids: slashes. Negative ids look ahead."""
    at = caller()
    found = checked.ids("offsets", ids, at, least=None)
    return nodes.Offsets(found, checked.align("offsets", align, at), loc=at)


def strided(stride: int, phase: int = 0) -> Mask:
    """k mod stride == phase: every stride-th column."""
    at = caller()
    stride = checked.constant("strided", "stride", stride, at)
    phase = checked.constant("strided", "phase", phase, at, least=0)
    if phase >= stride:
        phase = mistake(BadPhase("strided", stride - 1, phase, at=at), 0)
    return nodes.Strided(stride, phase, loc=at)


def sinks(n: Count) -> Mask:
    """k < n (StreamingLLM's attention sinks); not causal by itself."""
    at = caller()
    return nodes.Sinks(checked.count("sinks", "n", n, at), loc=at)


def prefix(n: Count) -> Mask:
    """k < n, as in prefix language models: `causal() | prefix(n)`."""
    at = caller()
    return nodes.Prefix(checked.count("prefix", "n", n, at), loc=at)


def global_tokens(ids: Iterable[int] | Count, *, align: str = END) -> nodes.GlobalTokens:
    """p in G or k in G, where G is the given ids or the first n positions.

    `.rows` keeps only the global queries, `.columns` only the global keys.
    """
    at = caller()
    where = "global_tokens"
    if isinstance(ids, Iterable) and not isinstance(ids, (Traced, str)):
        found = checked.ids(where, list(ids), at)
        return nodes.GlobalTokens(found, "both", checked.align(where, align, at), loc=at)
    n = checked.count(where, "n", ids, at)
    return nodes.GlobalTokens(n, "both", checked.align(where, align, at), loc=at)


def block_diagonal(size: int, *, align: str = END) -> Mask:
    """p // size == k // size."""
    at = caller()
    size = checked.constant("block_diagonal", "size", size, at)
    return nodes.BlockDiagonal(size, False, checked.align("block_diagonal", align, at), loc=at)


def chunked(size: int, *, align: str = END) -> Mask:
    """p // size == k // size and k <= p: causal inside each chunk (Llama 4)."""
    at = caller()
    size = checked.constant("chunked", "size", size, at)
    return nodes.BlockDiagonal(size, True, checked.align("chunked", align, at), loc=at)


def random_blocks(block: int, per_row: int, seed: int, *, align: str = END) -> Mask:
    """k // block in R(p // block).

    R(I) holds the `per_row` block columns J of least splitmix64(seed, I, J), ties by J: the same
    everywhere, for ever, and for every head.
    """
    at = caller()
    return nodes.RandomBlocks(
        checked.constant("random_blocks", "block", block, at),
        checked.constant("random_blocks", "per_row", per_row, at, least=0),
        checked.constant("random_blocks", "seed", seed, at, least=0),
        checked.align("random_blocks", align, at),
        loc=at,
    )


def per_head(masks: Sequence[Mask]) -> Mask:
    """One mask per query head; equal ones are compiled once."""
    at = caller()
    if not isinstance(masks, Iterable):
        wrong = not_a_mask("per_head", masks, at)
        if isinstance(masks, Mask):
            where, found = "each item of per_head([...])", "no list but a mask"
            wrong = NotAMask(where, found, "give a list with one mask per query head", at=at)
        return mistake(wrong, nodes.Full(loc=at))
    found = tuple(checked.mask("per_head", item, at) for item in masks)
    if not found:
        wrong = NotAMask("per_head", "an empty list", "give one mask per query head", at=at)
        return mistake(wrong, nodes.Full(loc=at))
    return nodes.PerHead(found, loc=at)


def heads(*ids: int) -> Mask:
    """Every pair on these heads, none on the others: `heads(0, 1) & causal() | ...`."""
    at = caller()
    return nodes.Heads(checked.ids("heads", ids, at), loc=at)


_SCORES = ("qk", "block_mean", "indexer", "given")
_SHARES = ("head", "group", "all")


def topk(
    k: int, of: Mask, score: str = "qk", block: int = 1, q_block: int = 1, share: str = "head"
) -> Mask:
    """The k best-scored keys among those `of` allows, for each query: a run-time selection.

    Args:
        k: keys (or blocks of `block` keys) kept; fewer where fewer are allowed.
        of: the mask that selects among its own keys.
        score: "qk" (q . k), "block_mean" (q . mean of a key block), "indexer" (DeepSeek's sparse
            attention: sum over index heads of index_w * relu(index_q . index_k)) or "given".
        block: keys per selected block.
        q_block: queries that select together.
        share: which heads select together: each "head", each key/value "group", or "all".

    Equal scores: the lower index wins.
    """
    at = caller()
    return nodes.TopK(
        checked.constant("topk", "k", k, at, least=0), checked.mask("topk", of, at),
        checked.choice("topk", "score", score, _SCORES, at),
        checked.constant("topk", "block", block, at),
        checked.constant("topk", "q_block", q_block, at),
        checked.choice("topk", "share", share, _SHARES, at), loc=at,
    )  # fmt: skip
