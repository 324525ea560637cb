"""maskc: a compiler from attention masks, written as sets of (query, key) pairs, to sparse
kernels."""

from importlib import import_module
from typing import TYPE_CHECKING

from maskc import scores as scores
from maskc.api import attention as attention
from maskc.api import diff as diff
from maskc.api import merge as merge
from maskc.conventions import LayoutWarning as LayoutWarning
from maskc.core import package as _package
from maskc.core.difference import Difference as Difference
from maskc.core.errors import BadParameterValue as BadParameterValue
from maskc.core.errors import MaskcError as MaskcError
from maskc.core.errors import SeveralErrors as SeveralErrors
from maskc.core.layout import BlockLayout as BlockLayout
from maskc.dsl import combinators as _combinators
from maskc.dsl.combinators import *  # noqa: F403
from maskc.dsl.cut_selections import PackedSelectionWarning as PackedSelectionWarning
from maskc.dsl.data_atoms import block_table as block_table
from maskc.dsl.data_atoms import cu_seqlens as cu_seqlens
from maskc.dsl.data_atoms import documents as documents
from maskc.dsl.data_atoms import flags as flags
from maskc.dsl.data_atoms import intervals as intervals
from maskc.dsl.data_atoms import key_lists as key_lists
from maskc.dsl.data_atoms import parents as parents
from maskc.dsl.data_atoms import positions as positions
from maskc.dsl.data_atoms import tree as tree
from maskc.dsl.evaluated import EvaluatedMaskWarning as EvaluatedMaskWarning
from maskc.dsl.loader import load as load
from maskc.dsl.mask import Mask as Mask
from maskc.dsl.matrices import DenseWarning as DenseWarning
from maskc.dsl.matrices import from_block_mask as from_block_mask
from maskc.dsl.matrices import from_bool as from_bool
from maskc.dsl.parameters import n_kv as n_kv
from maskc.dsl.parameters import n_q as n_q
from maskc.dsl.parameters import param as param
from maskc.dsl.parser import parse as parse
from maskc.dsl.pattern import Pattern as Pattern
from maskc.dsl.pattern import pattern as pattern
from maskc.dsl.ranges_of_others import from_flashmask as from_flashmask
from maskc.dsl.ranges_of_others import slices as slices
from maskc.dsl.score_tracer import EvaluatedScoreWarning as EvaluatedScoreWarning
from maskc.dsl.score_tracer import Score as Score
from maskc.dsl.score_tracer import ScoreMaskWarning as ScoreMaskWarning
from maskc.dsl.score_tracer import from_score_mod as from_score_mod
from maskc.dsl.score_tracer import score as score
from maskc.dsl.score_tracer import table as table
from maskc.dsl.tracer import from_mask_mod as from_mask_mod
from maskc.dsl.tracer import where as where
from maskc.flex import flex_attention as flex_attention
from maskc.paging import paged as paged
from maskc.sdpa import scaled_dot_product_attention as scaled_dot_product_attention

if TYPE_CHECKING:
    from maskc import distributed as distributed
    from maskc import evaluate as evaluate
    from maskc import nn as nn
    from maskc import patterns as patterns
    from maskc import testing as testing
    from maskc.integrations.torch.fp8 import to_e4m3 as to_e4m3
    from maskc.lab.explorer.notebook_cell import show as show
    from maskc.runtime.compiled import CompiledMask as CompiledMask
    from maskc.tuning import clear_tuned as clear_tuned
    from maskc.tuning import tune as tune

__all__ = [
    "BadParameterValue", "BlockLayout", "CompiledMask", "DenseWarning", "Difference",
    "EvaluatedMaskWarning", "EvaluatedScoreWarning", "LayoutWarning", "Mask", "MaskcError",
    "PackedSelectionWarning", "Pattern", "Score", "ScoreMaskWarning", "SeveralErrors",
    "attention", "block_table", "clear_tuned", "cu_seqlens", "diff", "distributed", "documents",
    "evaluate", "flags", "flex_attention", "from_block_mask", "from_bool", "from_flashmask",
    "from_mask_mod", "from_score_mod", "intervals", "key_lists", "load", "merge", "n_kv", "n_q",
    "paged", "param", "parents", "parse", "pattern", "patterns", "positions",
    "scaled_dot_product_attention", "score", "scores", "show", "slices", "table", "testing",
    "tree", "tune", "where",
] + _combinators.__all__  # fmt: skip
"""The public names that need no extra; `nn` and `to_e4m3` need torch."""

__version__ = "0.1.0"
_package.state()  # of the code that is loaded now: what it plans is kept under this state

_ROOMS = ("distributed", "evaluate", "nn", "patterns", "testing")
_LATE = {
    "CompiledMask": "maskc.runtime.compiled", "clear_tuned": "maskc.tuning",
    "show": "maskc.lab.explorer.notebook_cell", "tune": "maskc.tuning",
}  # fmt: skip
_NEED_TORCH = ("nn", "to_e4m3")


def __getattr__(name: str) -> object:
    """Load names and whole rooms on demand: importing maskc loads no torch and no laboratory."""
    if name in _ROOMS:
        return import_module(f"maskc.{name}")
    if name in _LATE:
        return getattr(import_module(_LATE[name]), name)
    if name == "to_e4m3":
        try:
            return import_module("maskc.integrations.torch.fp8").to_e4m3
        except ImportError as error:
            from maskc.core.errors import not_imported

            raise not_imported(error, "mc.to_e4m3", "torch", "torch") from error
    from maskc.dsl.meant import meant

    raise AttributeError(f"module 'maskc' has no attribute {name!r}{meant(name, __dir__())}")


def __dir__() -> list[str]:
    """Return the public names on this machine; without torch there is no `nn`."""
    from importlib.util import find_spec

    more = () if find_spec("torch") is None else _NEED_TORCH
    return sorted([*__all__, *more, "__version__"])
