"""Compiled masks as text, for programs that run in other processes: of torch.export, torch.jit.

The text holds the mask, what its kernel is compiled for, and which arrays its formulas read.
Content that may change is not a part of it: such tensors are operands of the operator.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from maskc.core.captured import Captured, Held
from maskc.core.errors import MaskcError, NotExported, StaleProgram
from maskc.core.plain import from_text, to_text
from maskc.core.score import Inputs
from maskc.core.target import Target
from maskc.driver import Recipe
from maskc.dsl.parser import parse_emptied

_WHOLE = "compile the mask with mask.compile, or call mc.attention"
_TABLES = "make the arrays tensors of torch, so that the program holds them"


def to_graph(attn: Any, kind: str) -> str:
    """A compiled mask as text.

    Args:
        kind: of the program, for the error.

    Raises:
        NotExported: it is part of a generated module, or holds arrays that are no text.
    """
    recipe = attn._report
    if not isinstance(recipe, Recipe):
        raise NotExported(kind, "a generated module cannot be serialized", _WHOLE, at="mask")
    problem, text = recipe.problem, str(recipe.mask)
    inputs: Inputs | None = attn.inputs
    of_score = None
    if inputs is not None:
        if inputs.placed is not None:
            finding = "a part of its score is evaluated for the lengths of a call"
            raise NotExported(kind, finding, _TABLES, at="score")
        if any(not hasattr(x, "data_ptr") for x in inputs.captured.values()):
            finding = "the formula of its score holds arrays of NumPy"
            raise NotExported(kind, finding, _TABLES, at="score")
        of_score = inputs.names, tuple(inputs.defaults.items()), inputs.text
        problem = replace(problem, score=replace(inputs.formula, loc=None))
    try:
        known = parse_emptied(text) == recipe.mask
        finding = "" if known else f"{text} is another mask when it is read"
    except MaskcError as error:
        known, finding = False, str(error)
    if not known:
        raise NotExported(kind, finding, _WHOLE, at="mask")
    of_held = None if attn.held is None else _skeleton(attn.held)
    return to_text((text, problem, attn.target.name, recipe.name, of_held, of_score))


def from_graph(text: str) -> Any:
    """The compiled mask of such a text; nothing is built yet.

    Raises:
        StaleProgram: the text is not what `to_graph` of this version writes.
        MaskcError: the target is unknown here, see CompiledMask.
    """
    try:
        mask, problem, target, name, of_held, of_score = from_text(text)
        recipe = Recipe(parse_emptied(mask), problem, Target.named(target), name)
        held = None if of_held is None else _filled(*of_held)
        inputs = None
        if of_score is not None:
            names, defaults, of_formula = of_score
            inputs = Inputs(problem.score, names, dict(defaults), {}, of_formula)
    except (AttributeError, MaskcError, TypeError, ValueError) as error:
        raise StaleProgram(at="mask") from error
    return recipe.bound(held, inputs)


def _skeleton(held: Held) -> tuple[Any, ...]:
    """(tables, readings, heads): of a table its name, its indices, its shape, and its content where
    nobody changes it."""
    tables = tuple(
        (name, rank, values.shape, values.array.tobytes() if values.fixed else None)
        for name, rank, values in held.tables
    )
    return tables, tuple(replace(reading, at=None) for reading in held.readings), held.heads


def _filled(tables: Any, readings: Any, heads: int) -> Held:
    filled = []
    for name, rank, shape, content in tables:
        array = np.zeros(shape, "<i4")
        if content is not None:
            array = np.frombuffer(content, "<i4").reshape(shape)
        values = Captured.of(array)
        values.fixed = content is not None
        filled.append((name, rank, values))
    return Held(tuple(filled), readings, heads)
