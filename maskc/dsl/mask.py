"""The public methods of every mask. What they call is imported when they are called."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from maskc.core.errors import MaskArithmetic, MaskCalled, MaskIndexed, MaskUsedAsBool
from maskc.core.source import caller
from maskc.dsl.collect import mistake
from maskc.dsl.not_a_mask import not_a_mask

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from maskc.core.layout import BlockLayout
    from maskc.dsl.score_tracer import Score
    from maskc.questions.cache import KVCache
    from maskc.runtime.compiled import CompiledMask
    from maskc.viz.weights import WeightMap


class Mask:
    """A set of (query, key) pairs, possibly one set per head. It holds no lengths.

    Masks combine with & (and), | (or), - (without), ^ (exclusive or) and ~ (not). `==` compares how
    two masks are written; `equals` proves whether they are the same set.
    """

    __slots__ = ()
    __array_ufunc__ = None  # NumPy leaves `array & mask` to this class, as a whole

    # -------------------------------------------------------------- algebra

    def __and__(self, other: Mask) -> Mask:
        return self._combine("&", self, other)

    def __or__(self, other: Mask) -> Mask:
        return self._combine("|", self, other)

    def __sub__(self, other: Mask) -> Mask:
        return self._combine("-", self, other)

    def __xor__(self, other: Mask) -> Mask:
        return self._combine("^", self, other)

    def _reflected(self, other: object) -> Mask:
        return mistake(not_a_mask("a mask operator", other, caller()), self)

    __rand__ = __ror__ = __rsub__ = __rxor__ = _reflected

    def __add__(self, other: object) -> Mask:
        return self._no_set_operator("+", "| keeps the pairs that either mask keeps", other)

    def __mul__(self, other: object) -> Mask:
        return self._no_set_operator("*", "& keeps the pairs that both masks keep", other)

    __radd__, __rmul__ = __add__, __mul__

    def _no_set_operator(self, op: str, hint: str, other: object) -> Mask:
        if isinstance(other, Mask) or (isinstance(other, int) and other == 0):  # sum(masks)
            return mistake(MaskArithmetic(op, hint, at=caller()), self)
        return mistake(not_a_mask(op, other, caller()), self)

    def __invert__(self) -> Mask:
        from maskc.dsl.nodes import Complement

        return Complement(self, loc=caller())

    def __copy__(self) -> Mask:
        return self

    def __deepcopy__(self, memo: object) -> Mask:
        return self  # a value: compiled graphs know it by identity

    def __call__(self, *_: object, **__: object) -> NoReturn:
        """Raise an error that says what to call instead, because a mask is not a function.

        Raises:
            MaskCalled: always (MC442).
        """
        raise MaskCalled(at="mask")

    def __getitem__(self, _: object) -> NoReturn:
        """Raise an error that says what has rows and columns, because a mask has no lengths.

        Raises:
            MaskIndexed: always (MC447).
        """
        raise MaskIndexed(at="mask")

    def __bool__(self) -> bool:
        return mistake(MaskUsedAsBool("mask", at=caller()), True)

    @staticmethod
    def _combine(op: str, left: Mask, right: object) -> Mask:
        from maskc.dsl.nodes import Algebra

        at = caller()
        if not isinstance(right, Mask):
            return mistake(not_a_mask(op, right, at), left)
        if op == "&":
            from maskc.dsl.cut_selections import warn_of_cut

            warn_of_cut(left, right)
        return Algebra(op, left, right, loc=at)

    def __str__(self) -> str:
        from maskc.dsl.printer import print_mask

        return print_mask(self)

    def __repr__(self) -> str:
        """The text form; captured arrays of more than a few entries keep only a name in it."""
        from maskc.dsl.printer import print_short

        return print_short(self)

    def _repr_html_(self) -> str:
        from maskc.viz.notebook import html

        return html(self)

    # -------------------------------------------------------------- pictures

    def show(
        self, n: int | None = None, n_kv: int | None = None, *, n_heads: int | None = None,
        **data: object,
    ) -> None:  # fmt: skip
        """Draw the mask: as SVG in a notebook, as text elsewhere.

        Args:
            n: queries; long enough to show the shape of the mask when None.
            n_kv: keys; n when None.
            n_heads: query heads, as in `dense`; 8 if needed but not given.
            data: the arrays and parameters that the mask names. A run-time selection without its
                scores is drawn as all of its candidates.

        Raises:
            MaskcError: as `layout`.
        """
        from maskc.viz.notebook import show

        show(self, n, n_kv, n_heads, data)

    def save(
        self, path: str | Path, n: int | None = None, n_kv: int | None = None, *,
        name: str = "mask", n_heads: int | None = None, **data: object,
    ) -> None:  # fmt: skip
        """Draw the mask into a file.

        Args:
            path: *.png or *.svg.
            n: queries; long enough to show the shape of the mask when None.
            n_kv: keys; n when None.
            name: the title.
            n_heads, data: as in `show`.

        Raises:
            UsageMistake: another suffix (MC603).
            ExtraMissing: matplotlib is not installed (MC507).
            OSError: the file cannot be written.
            MaskcError: as `layout`.
        """
        from maskc.viz.figure import save
        from maskc.viz.notebook import written_heads
        from maskc.viz.shown_lengths import showing

        heads = n_heads or written_heads(self)
        if n is None:
            n, n_kv = showing(self, heads)
        save(self, path, n_q=n, n_kv=n_kv, name=name, n_heads=heads, data=data)

    def weights(
        self, n: int | None = None, n_kv: int | None = None, *, q: object = None,
        k: object = None, head: int = 0, sequence: int = 0, n_heads: int | None = None,
        scale: float | None = None, reduce: str = "mean", seed: int = 0, **data: object,
    ) -> WeightMap:  # fmt: skip
        """Compute a heatmap of attention weights: softmax of q and k over the pairs of the mask.

        Args:
            n: queries of synthetic q and k, up to 512 when None. If q is given, n must match it.
            n_kv: keys; n when None.
            q: [n, D], [heads, n, D] or [sequences, heads, n, D], on the host; synthetic when None.
            k: as q, with n_kv rows and a number of heads that divides that of q.
            head, sequence: the head and the sequence to show.
            n_heads: query heads, as in `dense`.
            scale: factor of q . k; D ** -0.5 when None.
            reduce: `mean` or `max` over the kept pairs of a cell that covers several pairs.
            seed: seed of synthetic q and k.
            data: the arrays and parameters that the mask names.

        Returns:
            A heatmap with at most 256 x 256 cells. It draws itself in a notebook and with `print`;
            `save` writes a PNG or SVG file, and `cells` returns the numbers.

        Raises:
            BadWeightTensors: q and k do not fit (MC751).
            WeightsNotFinite: q or k make a score infinite or NaN (MC752).
            NoSuchWeights: there is no such head, sequence or reduction (MC753).
            TooManyWeights: there are more than 2^28 pairs, or 2^24 for a mask that selects keys at
                run time (MC754).
            MaskcError: as `dense`.
        """
        from maskc.viz.weights import weights

        return weights(
            self, n, n_kv, q=q, k=k, head=head, sequence=sequence, n_heads=n_heads, scale=scale,
            reduce=reduce, data=data, seed=seed,
        )  # fmt: skip

    # -------------------------------------------------------------- questions

    def dense(
        self, n_q: int, n_kv: int | None = None, *, n_heads: int | None = None,
        head: int | None = None, batch: int | None = None, **data: object,
    ) -> np.ndarray:  # fmt: skip
        """Return the mask as booleans, True where the query sees the key.

        Args:
            n_q: queries.
            n_kv: keys; n_q when None.
            n_heads: query heads; needed if heads differ by `heads` or by a formula in h. Masks and
                tables per head determine their number.
            head: show only this head; all of them when None.
            batch: show only this sequence; all of them when None.
            data: the arrays and parameters that the mask names.

        Returns:
            bool [n_q, n_kv]. If heads differ, there is a dimension of heads in front. If an array
            has a batch dimension, there is one of sequences before that: [batch, heads, n_q, n_kv].
            `head` and `batch` select one index and remove the dimension.

        Raises:
            BadLength: a length is not an integer, or out of range (MC306).
            DenseTooLarge: the result does not fit into memory (MC311).
            HeadsUnknown: heads differ, and their number is unknown (MC114).
            WrongHeads: `n_heads` contradicts the mask (MC125).
            NoSuchHead: the mask or `head` refers to a head that does not exist (MC113).
            MaskcError: a mistake in data (MC301 to MC305).
        """
        from maskc import driver

        return driver.dense(self, n_q, n_kv, n_heads=n_heads, head=head, batch=batch, **data)

    def count(
        self, n_q: int, n_kv: int | None = None, *, n_heads: int | None = None,
        head: int | None = None, batch: int | None = None, **data: object,
    ) -> int:  # fmt: skip
        """Count the live pairs exactly: the number of True entries of `dense`.

        If heads differ, the result is the sum over all heads, and if an array has a batch
        dimension, the sum over all sequences. If all share one set, it counts once. Nothing of size
        n_q * n_kv is computed.

        Args:
            n_q: queries.
            n_kv: keys; n_q when None.
            n_heads: query heads, as in `dense`.
            head: count only this head.
            batch: count only this sequence.
            data: the arrays and parameters that the mask names.

        Returns:
            The number of pairs.

        Raises:
            MaskcError: as `dense`.
        """
        from maskc import questions

        return questions.count(self, n_q, n_kv, n_heads=n_heads, head=head, batch=batch, **data)

    def layout(
        self,
        n_q: int,
        n_kv: int | None = None,
        *,
        block: tuple[int, int] = (128, 128),
        n_heads: int | None = None,
        head: int | None = None,
        batch: int | None = None,
        **data: object,
    ) -> BlockLayout:
        """Return the tiles of one head of one sequence that contain a live pair, in CSR form.

        Args:
            n_q: queries.
            n_kv: keys; n_q when None.
            block: (queries, keys) of a tile.
            n_heads: query heads; checked if the mask determines their number.
            head: which head; needed where heads differ.
            batch: which sequence; needed where an array has a batch dimension.
            data: the arrays and parameters that the mask names.

        Returns:
            BlockLayout with row_ptr int32 [rows + 1], col int32 [nnz] ascending in a row and
            kind uint8 [nnz] (1 partial, 2 full).

        Raises:
            OneOfSeveral: heads or sequences differ, and none is selected (MC310).
            BadLength: a length is not an integer, or out of range (MC306).
            BadBlock: `block` is not two integers in range (MC307).
            TooManyTiles: there are more than 2^30 live tiles (MC308).
            WrongHeads: `n_heads` contradicts the mask (MC125).
            NoSuchHead: `head` does not exist (MC113).
            MaskcError: a mistake in data (MC301 to MC305).
        """
        from maskc import questions

        return questions.layout(
            self, n_q, n_kv, block=block, n_heads=n_heads, head=head, batch=batch, **data
        )

    def equals(self, other: Mask) -> bool | None:
        """Whether both masks are the same set at all lengths.

        Masks that hold only at some lengths, such as those of `mc.from_bool`, are compared at them.

        Args:
            other: the mask to compare with; data of the same name are the same data.

        Returns:
            True if that is proved, False if a differing pair was found (`mc.diff` returns it), None
            if neither was possible.

        Raises:
            NotAMask: `other` is not a mask (MC106).
        """
        from maskc import questions

        if not isinstance(other, Mask):
            raise not_a_mask("equals", other, caller())
        return questions.equals(self, other)

    def subset_of(self, other: Mask) -> bool | None:
        """Whether every pair of this mask is also a pair of `other`, at all lengths.

        Masks that hold only at some lengths, such as those of `mc.from_bool`, are compared at them.

        Args:
            other: the mask that should contain this one.

        Returns:
            True or False if proved, None if undecided.

        Raises:
            NotAMask: `other` is not a mask (MC106).
        """
        from maskc import questions

        if not isinstance(other, Mask):
            raise not_a_mask("subset_of", other, caller())
        return questions.subset_of(self, other)

    def cache(
        self, *, queries: int = 1, n_heads: int | None = None, ragged: bool = False, **data: object
    ) -> KVCache:
        """Plan a KV cache of constant size for decoding: which keys to keep, and in which slots.

        Args:
            queries: the largest number of new tokens in a call.
            n_heads: query heads, as in `dense`.
            ragged: whether sequences of a batch may have different lengths. The mask over slots
                then reads, for each sequence, which slots it has written.
            data: values of the parameters that the mask names; defaults for the others.

        Returns:
            A KVCache: the number of slots, the slot of each key, the slots that a query sees, and
                the proof.

        Raises:
            CacheUnbounded: later queries may see more keys than any number of slots holds (MC640).
            CacheReadsData: the mask reads data, or chooses keys at run time (MC641).
            CacheUndecided: there is no proof within isl's budget (MC642).
            CacheCall: `queries` is below 1 (MC643).
            MaskcError: as `dense`.
        """
        from maskc import questions

        return questions.cache(self, queries=queries, n_heads=n_heads, ragged=ragged, **data)

    def explain(
        self, *, head_dim: int = 128, head_dim_v: int | None = None, n_heads: int | None = None,
        dtype: object = None, target: str | None = None, score: Score | None = None,
        tile: tuple[int, int] | None = None, stages: int | None = None,
    ) -> str:  # fmt: skip
        """Return the proved facts about the mask, its kernel and the reasons, and its cost compared
        with dense attention.

        Args:
            head_dim, head_dim_v, n_heads, dtype, target, score, tile, stages: as in `compile`;
                nothing is built.

        Returns:
            Lines of text.

        Raises:
            MaskcError: as `compile`.
        """
        from maskc import driver
        from maskc.dsl.score_tracer import as_score

        return driver.explained(
            self, head_dim=head_dim, head_dim_v=head_dim_v, n_heads=n_heads, dtype=dtype,
            target=target, score=None if score is None else as_score(score), tile=tile,
            stages=stages,
        )  # fmt: skip

    def compile(
        self,
        head_dim: int,
        head_dim_v: int | None = None,
        n_heads: int | None = None,
        dtype: object = None,
        target: str | None = None,
        score: Score | None = None,
        *,
        tile: tuple[int, int] | None = None,
        stages: int | None = None,
    ) -> CompiledMask:
        """Compile the mask to a callable attention kernel.

        Nothing is built yet: kernels are built on first use, or by `CompiledMask.warmup`.

        Args:
            head_dim: elements per row of q and k.
            head_dim_v: elements per row of v; head_dim when None.
            n_heads: query heads; needed if heads differ by `heads` or by a formula in h.
            dtype: storage type of the tensors: "bfloat16", "float16" or "float32", as text or as a
                dtype of torch or NumPy. None: taken from each call; `explain` and `warmup` then use
                bfloat16. Sums are fp32.
            target: one of cpu, simt, sm_80 and sm_90a; None is the best target of this machine.
                simt runs on CUDA cores. It replaces a CUDA target without kernels for the dtype,
                the head dimensions or the score formula; see `target` of the result.
            score: the score formula that replaces scale * q . k, from `mc.score` and similar
                functions. Calls pass its tables and parameters by name.
            tile: (queries, keys) of a forward tile, instead of the planner's choice; on the CPU for
                both passes. `maskc bench --tiles` times all tiles.
            stages: tiles of keys in flight in the forward pass, on Hopper only.

        Returns:
            The compiled mask, callable at all lengths.

        Raises:
            UnknownDType: there are no kernels for the dtype (MC501).
            UnknownTarget: there is no such target (MC502).
            BadOption: a head dimension or number of heads is not an integer (MC407).
            HeadDimUnsupported: the target lacks this head dimension (MC504).
            DTypeUnsupported: the target lacks this dtype (MC505).
            SelectionNotCompiled: the target cannot run the mask's `topk` (MC117).
            HeadsUnknown: heads differ, and their number is unknown (MC114).
            NotAScore: `score` is not a score formula (MC132).
            TileUnsupported: the target has no kernel with this tile or these stages (MC490).
            BadTile: `tile` is not a pair of positive integers, or `stages` not a positive one
                (MC491).
            MaskcError: another reason why the mask cannot be compiled.
        """
        from maskc import driver
        from maskc.dsl.score_tracer import as_score

        return driver.compile(
            self, head_dim=head_dim, head_dim_v=head_dim_v, n_heads=n_heads, dtype=dtype,
            target=target, score=None if score is None else as_score(score), tile=tile,
            stages=stages,
        )  # fmt: skip
