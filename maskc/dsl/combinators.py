"""The mask language: one function per combinator.

Throughout, q and k index the caller's tensors, and p = q + n_kv - n_q is the query's position when
`align="end"` (the last query meets the last key, as in decoding) or p = q when `align="start"`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import overload

from maskc.core.errors import BadChoice, BadPhase, NotAMask
from maskc.core.source import caller
from maskc.core.widths import plain_integer
from maskc.dsl import checked, nodes
from maskc.dsl.collect import mistake
from maskc.dsl.data_atoms import flagged
from maskc.dsl.mask import Mask
from maskc.dsl.nodes import END, Positions
from maskc.dsl.not_a_mask import not_a_mask
from maskc.dsl.traced import Traced

__all__ = [
    "block_diagonal", "causal", "chunked", "dilated", "full", "global_tokens", "heads", "offsets",
    "per_head", "prefix", "random_blocks", "sinks", "strided", "topk", "window",
]  # fmt: skip
"""Names of the language: maskc exports them, and texts of masks may call them."""

Count = int | Traced
"""An integer that is data: a literal, `mc.param(...)`, or a formula in `mc.n_q`, `mc.n_kv`."""


def full() -> Mask:
    """Keep every pair.

    Returns:
        The mask.
    """
    return nodes.Full(loc=caller())


def causal(*, align: str = END, at: Positions | None = None) -> Mask:
    """Keep k <= p: a query sees no key after its own position.

    Args:
        align: "end" (the last query meets the last key) or "start" (the first ones meet).
        at: `mc.positions(...)`: calls pass the positions of tokens instead of counting them.

    Returns:
        The mask.

    Raises:
        NotPositions: `at` is not such a pair, or is passed together with `align` (MC492).
    """
    loc = caller()
    made = nodes.Causal(checked.align("causal", align, loc), loc=loc)
    return checked.placed("causal", made, at, loc)


def _sized(where: str, name: str, value: Count, least: int) -> Traced:
    """Return a checked count in a form that formulas can use."""
    return Traced(checked.count(where, name, value, caller(), least))


class _Window:
    """Keep p - left <= k <= p + right: sliding window attention, counting the keys on each side.

    Other projects count differently; their conventions have names:
    `window.hf(W)`, `window.hf_bidirectional(W)`, `window.longformer(W)`, `window.jax(L, R)`,
    `window.flash(L, R)`, `window.gym(W)`.

    Args:
        left: number of keys before the query, not counting the query itself; None is unbounded.
        right: number of keys after the query; None is unbounded.
        align: "end" (the last query meets the last key) or "start" (the first ones meet).
        at: `mc.positions(...)`: calls pass the positions of tokens instead of counting them.

    Raises:
        NegativeWidth: a side is below 0 (MC101).
        NotAnInteger: a side is neither an integer nor a formula in lengths (MC103).
        NotPositions: `at` is not such a pair, or is passed together with `align` (MC492).
    """

    def __call__(
        self, left: Count | None, right: Count | None = 0, *, align: str = END,
        at: Positions | None = None,
    ) -> Mask:  # fmt: skip
        """Make the mask; see above."""
        loc = caller()
        sides = [
            None if side is None else checked.count("window", name, side, loc)
            for name, side in (("left", left), ("right", right))
        ]
        made = nodes.Window(sides[0], sides[1], checked.align("window", align, loc), loc=loc)
        return checked.placed("window", made, at, loc)

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


def dilated(
    left: Count, right: Count = 0, *, stride: int, align: str = END, at: Positions | None = None
) -> Mask:
    """Keep every stride-th key of a window, the query's own position included.

    Args:
        left: how many kept keys lie before the query; the window reaches left * stride back.
        right: how many kept keys lie after the query.
        stride: the distance of two kept keys; it shapes the kernel and is a constant.
        align: "end" (the last query meets the last key) or "start" (the first ones meet).
        at: `mc.positions(...)`: calls pass the positions of tokens instead of counting them.

    Returns:
        The mask.

    Raises:
        NegativeWidth: a side is below 0 (MC101).
        NotPositive: the stride is below 1 (MC102).
        NotConstant: the stride is not a plain integer (MC104).
        NotPositions: `at` is not such a pair, or is passed together with `align` (MC492).
    """
    loc = caller()
    made = nodes.Dilated(
        checked.count("dilated", "left", left, loc),
        checked.count("dilated", "right", right, loc),
        checked.constant("dilated", "stride", stride, loc),
        checked.align("dilated", align, loc),
        loc=loc,
    )
    for side in (made.left, made.right):
        checked.scaled("dilated", made.stride, side, loc)
    return checked.placed("dilated", made, at, loc)


def offsets(ids: Iterable[int], *, align: str = END) -> Mask:
    """Keep the pairs whose distance p - k is one of the ids: diagonals of the score matrix.

    Args:
        ids: distances; negative ones look ahead.
        align: "end" (the last query meets the last key) or "start" (the first ones meet).

    Returns:
        The mask.

    Raises:
        BadIds: an id is not an integer (MC118).
    """
    at = caller()
    numbers = checked.ids("offsets", ids, at, least=None)
    return nodes.Offsets(numbers, checked.align("offsets", align, at), loc=at)


def strided(stride: int, phase: int = 0) -> Mask:
    """Keep k mod stride == phase: every stride-th key.

    Args:
        stride: the distance of two kept keys, a constant.
        phase: the residue that is kept, 0 to stride - 1.

    Returns:
        The mask.

    Raises:
        NotPositive: the stride is below 1 (MC102).
        NotConstant: an argument is not a plain integer (MC104).
        BadPhase: the phase is not a residue of the stride (MC110).
    """
    at = caller()
    stride = checked.constant("strided", "stride", stride, at)
    phase = checked.constant("strided", "phase", phase, at, least=0)
    if phase >= stride:
        phase = mistake(BadPhase("strided", stride - 1, phase, at=at), 0)
    return nodes.Strided(stride, phase, loc=at)


def sinks(n: Count) -> Mask:
    """Keep k < n: the attention sinks of StreamingLLM (Xiao et al., 2023).

    The mask is not causal by itself.

    Args:
        n: how many keys at the beginning every query sees.

    Returns:
        The mask.

    Raises:
        NegativeWidth: n is below 0 (MC101).
        NotAnInteger: n is neither an integer nor a formula in lengths (MC103).
    """
    at = caller()
    return nodes.Sinks(checked.count("sinks", "n", n, at), loc=at)


def prefix(n: Count) -> Mask:
    """Keep k < n, as in prefix language models: `causal() | prefix(n)`.

    Args:
        n: the length of the prefix in keys.

    Returns:
        The mask.

    Raises:
        NegativeWidth: n is below 0 (MC101).
        NotAnInteger: n is neither an integer nor a formula in lengths (MC103).
    """
    at = caller()
    return nodes.Prefix(checked.count("prefix", "n", n, at), loc=at)


@overload
def global_tokens(
    ids: str, *, align: str = END, at_most: int | None = None
) -> nodes.GlobalFlags: ...
@overload
def global_tokens(ids: Iterable[int] | Count, *, align: str = END) -> nodes.GlobalTokens: ...
def global_tokens(
    ids: Iterable[int] | Count | str, *, align: str = END, at_most: int | None = None
) -> nodes.GlobalTokens | nodes.GlobalFlags:
    """Keep the pairs where p or k is a global token, as in Longformer (Beltagy et al., 2020).

    `.rows` keeps only the pairs of global queries, `.columns` only the pairs of global keys. Rows
    of scattered tokens are gathered into dense tiles, so a few of them cost little.

    Args:
        ids: positions of the global tokens, or the number of global tokens at the beginning.
            Positions beyond the length are ignored. Or a name, under which calls pass flags as for
            mc.flags, for queries and keys.
        align: "end" (the last query meets the last key) or "start" (the first ones meet).
        at_most: with a name: upper bound on the flagged tokens of a sequence, see mc.flags.

    Returns:
        The mask; its `rows` and `columns` are masks too.

    Raises:
        BadIds: an id is not an integer, or below 0 (MC118).
        NegativeWidth: a count is below 0 (MC101).
        ReservedName: the name is a keyword of calls, or not an identifier (MC111).
        BadChoice: `at_most` without a name (MC119).
    """
    at = caller()
    where = "global_tokens"
    if isinstance(ids, str):
        rows, columns = (flagged(where, ids, on, align, at_most, at) for on in ("q", "k"))
        return nodes.GlobalFlags(rows, columns, loc=at)
    if at_most is not None:
        mistake(BadChoice(where, "at_most", "None where ids are known", at_most, at=at), None)
    if isinstance(ids, Iterable) and not isinstance(ids, Traced):
        numbers = checked.ids(where, list(ids), at)
        return nodes.GlobalTokens(numbers, "both", checked.align(where, align, at), loc=at)
    n = checked.count(where, "n", ids, at)
    return nodes.GlobalTokens(n, "both", checked.align(where, align, at), loc=at)


def block_diagonal(size: int, *, align: str = END, at: Positions | None = None) -> Mask:
    """Keep p // size == k // size: blocks along the diagonal.

    Args:
        size: tokens of a block, a constant.
        align: "end" (the last query meets the last key) or "start" (the first ones meet).
        at: `mc.positions(...)`: calls pass the positions of tokens instead of counting them.

    Returns:
        The mask.

    Raises:
        NotPositive: the size is below 1 (MC102).
        NotConstant: the size is not a plain integer (MC104).
        NotPositions: `at` is not such a pair, or is passed together with `align` (MC492).
    """
    loc = caller()
    size = checked.constant("block_diagonal", "size", size, loc)
    made = nodes.BlockDiagonal(size, False, checked.align("block_diagonal", align, loc), loc=loc)
    return checked.placed("block_diagonal", made, at, loc)


def chunked(size: int, *, align: str = END, at: Positions | None = None) -> Mask:
    """Keep p // size == k // size and k <= p: causal inside each chunk, as in Llama 4.

    Args:
        size: tokens of a chunk, a constant.
        align: "end" (the last query meets the last key) or "start" (the first ones meet).
        at: `mc.positions(...)`: calls pass the positions of tokens instead of counting them.

    Returns:
        The mask.

    Raises:
        NotPositive: the size is below 1 (MC102).
        NotConstant: the size is not a plain integer (MC104).
        NotPositions: `at` is not such a pair, or is passed together with `align` (MC492).
    """
    loc = caller()
    size = checked.constant("chunked", "size", size, loc)
    made = nodes.BlockDiagonal(size, True, checked.align("chunked", align, loc), loc=loc)
    return checked.placed("chunked", made, at, loc)


def random_blocks(block: int, per_row: int, seed: int, *, align: str = END) -> Mask:
    """Keep k // block in R(p // block), a fixed draw of key blocks for each query block.

    R(I) holds the `per_row` block columns J with the smallest splitmix64(seed, I, J), ties by J.
    The draw is the same on every machine, in every release and for every head. BigBird (Zaheer et
    al., 2020) uses such blocks.

    Args:
        block: tokens of a block, a constant.
        per_row: number of key blocks drawn for each query block; all if there are fewer.
        seed: seed of the draw, a 64-bit integer; negative ones count modulo 2^64.
        align: "end" (the last query meets the last key) or "start" (the first ones meet).

    Returns:
        The mask.

    Raises:
        NotPositive: the block size is below 1 (MC102).
        NotConstant: an argument is not a plain integer (MC104).
        IntegerTooWide: the seed needs more than 64 bits (MC120).
    """
    at = caller()
    return nodes.RandomBlocks(
        checked.constant("random_blocks", "block", block, at),
        checked.constant("random_blocks", "per_row", per_row, at, least=0),
        checked.seed("random_blocks", seed, at),
        checked.align("random_blocks", align, at),
        loc=at,
    )


def per_head(masks: Sequence[Mask]) -> Mask:
    """Combine one mask per query head. Equal masks are compiled once.

    Args:
        masks: one mask for each query head, in the order of heads.

    Returns:
        The mask.

    Raises:
        NotAMask: an item is not a mask, or there is none (MC106).
    """
    at = caller()
    if not isinstance(masks, Iterable):
        wrong = not_a_mask("per_head", masks, at)
        if isinstance(masks, Mask):
            where, finding = "each item of per_head([...])", "no list but a mask"
            wrong = NotAMask(where, finding, "give a list with one mask per query head", at=at)
        return mistake(wrong, nodes.Full(loc=at))
    checked_masks = tuple(checked.mask("per_head", item, at) for item in masks)
    if not checked_masks:
        wrong = NotAMask("per_head", "an empty list", "give one mask per query head", at=at)
        return mistake(wrong, nodes.Full(loc=at))
    return nodes.PerHead(checked_masks, loc=at)


def heads(*ids: int | Iterable[int]) -> Mask:
    """Keep every pair on these query heads and none on the others: `heads(0, 1) & causal() | ...`.

    Args:
        ids: query heads, from 0; one list or range of them is accepted too.

    Returns:
        The mask.

    Raises:
        BadIds: an id is not an integer, or below 0 (MC118).
    """
    at = caller()
    if len(ids) == 1 and plain_integer(ids[0]) is None:
        return nodes.Heads(checked.ids("heads", ids[0], at), loc=at)
    return nodes.Heads(checked.ids("heads", ids, at), loc=at)


_SCORES = ("qk", "block_mean", "indexer", "given")
_SHARES = ("head", "group", "all")


def topk(
    k: int, of: Mask, score: str = "qk", block: int = 1, q_block: int = 1, share: str = "head", *,
    at: Positions | None = None,
) -> Mask:  # fmt: skip
    """Keep, for each query, the k keys with the highest scores among the candidates in `of`.

    The selection happens at run time. If scores are equal, the lower index wins. The choice has no
    gradient; attention over the chosen pairs does.

    Args:
        k: number of keys (or of blocks of `block` keys) to keep; fewer if there are fewer
            candidates.
        of: the mask of candidates.
        score: one of four formulas. `qk` is q . k. `block_mean` is the mean q of a query block
            times the mean k of a key block. `given` reads a tensor `scores` of the call. `indexer`
            is the sum over index heads of index_w * relu(index_q . index_k), as in DeepSeek's
            sparse attention.
        block: keys per chosen block.
        q_block: number of consecutive queries that share one choice.
        share: heads that share one choice: each "head" alone, each key/value "group", or "all".
        at: `mc.positions(...)`: blocks are counted by the positions that calls pass, from position
            0. If positions restart at 0 in each packed document, each document selects as it would
            alone. Neighbouring keys belong to one block while their positions ascend between two
            multiples of `block`; the same holds for queries.

    Returns:
        The mask.

    Raises:
        NotPositions: `at` is something else (MC492).
        NotAMask: `of` is not a mask (MC106).
        BadChoice: `score` or `share` is not one of these words (MC119).
        NotPositive: `block` or `q_block` is below 1 (MC102).
        NotConstant: a number is not a plain integer (MC104).
    """
    loc = caller()
    return nodes.TopK(
        checked.constant("topk", "k", k, loc, least=0), checked.mask("topk", of, loc),
        checked.choice("topk", "score", score, _SCORES, loc),
        checked.constant("topk", "block", block, loc),
        checked.constant("topk", "q_block", q_block, loc),
        checked.choice("topk", "share", share, _SHARES, loc),
        checked.positions("topk", at, loc), loc=loc,
    )  # fmt: skip
