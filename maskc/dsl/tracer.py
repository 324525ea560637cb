"""`where` and `from_mask_mod`: Python functions traced into formulas, exactly or not at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

from maskc.core import expr as E
from maskc.core.data import DataDecl, constant, renamed
from maskc.core.errors import BatchUsed, MaskcError, NotTraceable
from maskc.core.expr import Expr
from maskc.core.source import SourceLoc, caller
from maskc.dsl import nodes
from maskc.dsl.arguments import arguments
from maskc.dsl.collect import mistake
from maskc.dsl.evaluated import evaluated
from maskc.dsl.followed import told
from maskc.dsl.mask import Mask
from maskc.dsl.rebinding import Rebinder
from maskc.dsl.tabled import tabling
from maskc.dsl.tables import BATCH, IndexTables, Registry, capturing
from maskc.dsl.traced import lift_bool
from maskc.dsl.watching import watched

_ONCE = "the function runs once, with q and k that stand for all pairs"


def where(predicate: Callable[..., object]) -> Mask:
    """Keep the pairs for which a Python function holds. The function is traced once, exactly.

    Args:
        predicate: takes token indices, known by their names: q, k, h and b, also q_idx, kv_idx,
            head, batch and the like. Other names are assigned by position: (q, k), (h, q, k) or (b,
            h, q, k). Further parameters keep their defaults. It may use + - * // %, abs, min, max,
            comparisons, & | ~, and the functions of torch and NumPy for these. Operands are
            integers, mc.n_q, mc.n_kv, mc.param(...), and integer or boolean arrays indexed by such
            formulas. b may only index an array, as data per sequence.

    Returns:
        The mask.

    Raises:
        NotTraceable: the predicate cannot be traced exactly; the message names the line (MC107).
        ArgumentOrder: some names contradict the positions of the others (MC121).
        BatchUsed: the predicate computes with b (MC108).
        IntegerTooWide: an integer does not fit 64 bits (MC120).
    """
    return traced_at(predicate, caller(), by_place=False)


def from_mask_mod(mask_mod: Callable[..., object], *, exact: bool = False) -> Mask:
    """Convert a FlexAttention mask_mod(b, h, q_idx, kv_idx) to a mask.

    It follows the rules of `where`, except that arguments go by position, as FlexAttention calls
    it. A function that cannot be traced, but runs under torch.vmap as in FlexAttention, is
    evaluated for the lengths of each call and compressed to tiles, with a warning. Its pairs are
    exact, but nothing is known about other lengths.

    Args:
        mask_mod: the function; what it captures becomes data or constants of the mask.
        exact: refuse a function that cannot be traced.

    Returns:
        The mask.

    Raises:
        ArgumentOrder: names contradict positions (MC121).
        NotTraceable: the function can be neither traced exactly nor evaluated (MC107).
        BatchUsed: the function computes with b (MC108), with exact=True.

    Warns:
        EvaluatedMaskWarning: the function is evaluated for the lengths of each call.
    """
    return traced_at(mask_mod, caller(), exact=exact)


def traced_at(
    predicate: Callable[..., object], at: SourceLoc | None, by_place: bool = True,
    exact: bool = True,
) -> Mask:  # fmt: skip
    """Return the mask of a function, which messages place at `at`; see `where`, from_mask_mod."""
    try:
        formula, tables = trace(predicate, at, by_place)
    except MaskcError as error:
        matrix = None if exact else _computed(predicate, at)
        if matrix is None and not exact:
            matrix = evaluated(predicate, error, at)
        return mistake(error, nodes.Full(loc=at)) if matrix is None else matrix
    return nodes.Where(formula, tables, loc=at)


def _computed(predicate: Callable[..., object], at: SourceLoc | None) -> Mask | None:
    """The mask of a mask_mod, where tables of one index are enough to follow it."""
    try:
        formula, tables = trace(predicate, at, True, computing=True)
    except MaskcError:
        return None
    return nodes.Where(formula, tables, loc=at)


def trace(
    predicate: Callable[..., object], at: SourceLoc | None, by_place: bool = False,
    computing: bool = False,
) -> tuple[Expr, tuple[DataDecl, ...]]:  # fmt: skip
    """The formula of a predicate, and the arrays that it captured.

    Args:
        predicate: the function.
        at: where it was given.
        by_place: whether its arguments go by place.
        computing: whether values of one index may be computed into tables.

    Raises:
        BatchUsed: the formula computes with the batch index (MC108).
        NotTraceable: it does something that cannot be followed exactly (MC107).
    """
    given = arguments(predicate, at, by_place)
    rebound = Rebinder().function(predicate)
    with capturing() as registry:
        values = tabling(IndexTables(registry)) if computing else nullcontext()
        with values as tables, told(NotTraceable, at, _ONCE), watched():
            result = rebound(*given)
    formula = lift_bool(result, "the result")
    if tables is not None:
        made = {name: constant(name, 1, values) for name, values in tables.made.items()}
        registry.tables.update(made)
    if BATCH in E.walk(formula):
        raise BatchUsed(at=at)
    return numbered(formula, registry)


def numbered(formula: Expr, registry: Registry) -> tuple[Expr, tuple[DataDecl, ...]]:
    """The formula, and the arrays that it reads, numbered in the order of their first index."""
    used = set(E.arrays(formula))
    kept = [decl for name, decl in registry.tables.items() if name in used]
    names = {decl.name: f"table{number}" for number, decl in enumerate(kept)}
    tables = tuple(renamed(decl, names[decl.name]) for decl in kept)
    return E.renamed(formula, names), tables
