"""Calls that also return the choice of run-time selections, or the loss that trains their
ranking."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from maskc.core import expr as E
from maskc.core.attention_call import AttentionCall
from maskc.core.bundle import Bundle, LayoutRecipe
from maskc.core.errors import BadOption, MixedLibraries, NoIndexerLoss, NothingSelected
from maskc.core.errors import SelectionNotListed as NotListed
from maskc.core.evaluator import evaluate
from maskc.core.expr import Expr
from maskc.core.problem import TileShape
from maskc.core.selection import Score, Selection
from maskc.core.sizes import Sizes
from maskc.core.tensors import torch_of
from maskc.dispatch.call import Bound
from maskc.dispatch.options import plan_options
from maskc.layout import extents, sequence_arrays
from maskc.layout.tiles.chosen_blocks import NONE, Chosen
from maskc.layout.topk.choose_keys import sharing
from maskc.runtime.arrays.known import module_of
from maskc.runtime.arrays.read import read
from maskc.runtime.autograd import is_traced, kind_of
from maskc.runtime.device_lists.call import Asked
from maskc.runtime.torch_calls import indexer_loss_of

if TYPE_CHECKING:
    from maskc.runtime.compiled import CompiledMask

_QKV = ("q", "k", "v")


def call_selecting(attn: CompiledMask, call: AttentionCall) -> tuple[Any, ...]:
    """A call with `return_selection` or `indexer_loss`; see CompiledMask.__call__.

    Raises:
        NothingSelected, SelectionNotListed, NoIndexerLoss, and as a call.
    """
    q, k, v, options, data = call[:5]
    returned, trained = options.return_selection, options.indexer_loss
    keyword = "return_selection" if returned else "indexer_loss"
    torch = torch_of(q)
    if torch is not None and is_traced(torch):
        finding = "one inside of torch.compile or torch.jit.trace, which take operators only"
        raise BadOption(keyword, "left to calls in eager mode", finding, at=keyword)
    bundle = attn.bundle
    if not bundle.selections and bundle.chooser is None:
        raise NothingSelected(keyword, at=keyword)
    listed = bundle.chooser is None and not attn.gathers
    if returned and not listed:
        raise NotListed(attn.target.name, at="return_selection")
    if trained:
        check_trained(attn, q)
    if torch is not None and torch.is_autocast_enabled(q.device.type):
        dtype = getattr(torch, bundle.problem.dtype.value)
        q, k, v = (x.to(dtype) if torch_of(x) is not None else x for x in (q, k, v))
    detached = {name: _detached(x) for name, x in data.items()} if trained else data
    runs = attn.choosing_on_host() if listed else attn
    asked = options._replace(return_lse=True, return_selection=False, indexer_loss=False)
    out, lse = runs.attend(AttentionCall(q, k, v, asked, detached))
    bound = _bound(runs, q, k, v, detached) if listed else None
    results = [out]
    if options.return_lse:
        results.append(lse)
    if returned and bound is not None:
        sizes = _sizes(q, k)
        lists = [lists_of(selection, bound, sizes) for selection in bundle.selections]
        made = tuple(_like(q, part) for part in lists)
        results.append(made[0] if len(made) == 1 else made)
    if trained:
        results.append(indexer_loss_of(runs, q, k, lse, options, data, bound))
    return tuple(results)


def check_trained(attn: CompiledMask, q: Any) -> None:
    """Raise an error if the indexer's loss is not defined for the mask or the tensors."""
    selections = attn.bundle.selections
    why = ""
    if len(selections) != 1:
        why = f"the mask has {len(selections)} selections, and one can be trained"
    else:
        (one,) = selections
        if one.score not in (Score.indexer, Score.given):
            why = f"the keys are ranked by {one.score.value}, not by tensors of the call"
        elif one.block > 1 or one.q_block > 1:
            why = f"blocks of {one.q_block} x {one.block} are chosen, not single keys"
        elif attn.bundle.problem.score is not None:
            why = "softmax sees a score formula"
    if attn.bundle.chooser is not None:
        why = "the keys are ranked by qk, not by tensors of the call"
    if why:
        raise NoIndexerLoss(why, at="indexer_loss")
    if torch_of(q) is None:
        raise MixedLibraries("q", kind_of(q), "indexer_loss", "tensor of torch", at="indexer_loss")


def _detached(x: Any) -> Any:
    """Return a ranking tensor of a call without its gradient, which comes from the loss."""
    if isinstance(x, tuple):
        return tuple(map(_detached, x))
    return x.detach() if torch_of(x) is not None else x


def _sizes(q: Any, k: Any) -> Sizes:
    batch, heads, n_q, _ = q.shape
    return Sizes(batch, heads, k.shape[1], n_q, k.shape[2])


def _bound(attn: CompiledMask, q: Any, k: Any, v: Any, data: Mapping[str, Any]) -> Bound:
    """Return the host's cached selection for a call."""
    options, given = plan_options(_QKV, True, 0.0, False), [q, k, v]
    _, kinds, places = read(options.names, given)
    return attn.bound_on_host(
        lambda sizes, device: Asked(options, given, data, attn.held, sizes, device), given, kinds,
        places,
    )  # fmt: skip


# ------------------------------------------------------------------ what was chosen


def lists_of(selection: Selection, bound: Bound, sizes: Sizes) -> np.ndarray:
    """int32 [batch, heads that choose apart, query blocks, width]: blocks of keys, ascending, and
    -1 behind the last one of a row."""
    chosen: Chosen = bound.arrays[selection.name]  # type: ignore[assignment]
    groups = sharing(selection.share, sizes)
    lists = chosen.lists
    if lists.shape[1] > 1:
        lists = lists[:, [group[0] for group in groups]]
    lists = np.where(lists == NONE, np.int32(-1), lists)
    shape = (sizes.batch, len(groups), *lists.shape[2:])
    return np.array(np.broadcast_to(lists, shape))  # torch warns of arrays that are read-only


def _like(q: Any, lists: np.ndarray) -> Any:
    """Lists in the library of q, and on its device."""
    module = module_of(q)
    return module.asarray(lists, **({"device": q.device} if torch_of(q) is not None else {}))


# ------------------------------------------------------------------ pairs


_TILE = TileShape(64, 64)


class Pairs:
    """A formula of a mask, pair by pair, for some queries at a time."""

    def __init__(
        self, formulas: tuple[Expr, ...], of_head: tuple[int, ...], arrays: Mapping[str, Any],
        params: Mapping[str, int], n_q: int, n_kv: int,
    ) -> None:  # fmt: skip
        """Nothing is computed yet.

        Args:
            formulas: the distinct ones; of_head: which one a head has, empty if all share one.
            arrays: by name.
            params: a value for every parameter.
        """
        self._recipes = [LayoutRecipe(_TILE, formula, None) for formula in formulas]
        self._of_head, self._arrays, self._n_kv = of_head, arrays, n_kv
        self._env = {**params, "n_q": n_q, "n_kv": n_kv, "k": np.arange(n_kv)[None, :]}
        extent_list = [extents(layout_recipe, arrays) for layout_recipe in self._recipes]
        self.batch = max(batch for batch, _ in extent_list)
        """1 where sequences are alike."""
        self.heads = max(len(of_head), *(heads for _, heads in extent_list))
        """1 where heads are alike."""

    @property
    def all(self) -> bool:
        """Whether every pair is kept."""
        return all(layout_recipe.keep == E.ALWAYS for layout_recipe in self._recipes)

    def rows(self, first: int, last: int) -> np.ndarray:
        """bool [batch, heads, last - first, n_kv], of queries first .. last - 1."""
        env = {**self._env, "q": np.arange(first, last)[:, None]}
        kept = np.empty((self.batch, self.heads, last - first, self._n_kv), bool)
        for sequence, head in np.ndindex(self.batch, self.heads):
            recipe = self._recipes[self._of_head[head] if self._of_head else 0]
            arrays = sequence_arrays(recipe, self._arrays, sequence, head)
            kept[sequence, head] = evaluate(recipe.keep, {**env, **arrays})
        return kept


def kept_of_chosen(
    bundle: Bundle, arrays: Mapping[str, Any], params: Mapping[str, int], sizes: Sizes
) -> Pairs | None:
    """Return the pairs that the mask keeps if they are chosen; None if these are all candidates."""
    (one,) = bundle.selections
    formulas = tuple(_as_chosen(variant.keep, one.name) for variant in bundle.variants)
    plain = len(one.allowed) == 1 and all(
        formula in (one.allowed[0], E.ALWAYS) for formula in formulas
    )
    if plain:
        return None
    return Pairs(formulas, bundle.head_variant, arrays, params, sizes.n_q, sizes.n_kv)


def pairs_of_call(attn: CompiledMask, q: Any, k: Any, v: Any, data: Mapping[str, Any]) -> Pairs:
    """Return the pairs that the mask keeps in a call without selection, or with one made on the
    host."""
    bundle, bound = attn.bundle, _bound(attn, q, k, v, data)
    sizes = _sizes(q, k)
    arrays = attn.arrays_of(bound, sizes)
    formulas = tuple(variant.keep for variant in bundle.variants)
    return Pairs(formulas, bundle.head_variant, arrays, bound.params, sizes.n_q, sizes.n_kv)


def allowed_of(
    bundle: Bundle, arrays: Mapping[str, Any], params: Mapping[str, int], sizes: Sizes
) -> Pairs:
    """The pairs that may be chosen."""
    (one,) = bundle.selections
    of_head = tuple(range(len(one.allowed))) if len(one.allowed) > 1 else ()
    return Pairs(one.allowed, of_head, arrays, params, sizes.n_q, sizes.n_kv)


def _as_chosen(keep: Expr, name: str) -> Expr:
    """The mask where every pair is chosen."""

    def known(node: Expr) -> Expr | None:
        if isinstance(node, E.Cmp) and E.arrays(node) == (name,):
            return E.Truth(node.op != "==")
        return None

    return E.transform(keep, known)
