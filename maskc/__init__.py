"""maskc: write an attention mask as a set; get a proved layout and a specialised kernel."""

from typing import TYPE_CHECKING

from maskc import scores as scores
from maskc.api import attention as attention
from maskc.api import diff as diff
from maskc.api import merge as merge
from maskc.api import show as show
from maskc.conventions import LayoutWarning as LayoutWarning
from maskc.core import package as _package
from maskc.core.difference import Difference as Difference
from maskc.core.errors import MaskcError as MaskcError
from maskc.core.errors import SeveralErrors as SeveralErrors
from maskc.core.layout import BlockLayout as BlockLayout
from maskc.dsl.combinators import block_diagonal as block_diagonal
from maskc.dsl.combinators import causal as causal
from maskc.dsl.combinators import chunked as chunked
from maskc.dsl.combinators import dilated as dilated
from maskc.dsl.combinators import full as full
from maskc.dsl.combinators import global_tokens as global_tokens
from maskc.dsl.combinators import heads as heads
from maskc.dsl.combinators import offsets as offsets
from maskc.dsl.combinators import per_head as per_head
from maskc.dsl.combinators import prefix as prefix
from maskc.dsl.combinators import random_blocks as random_blocks
from maskc.dsl.combinators import sinks as sinks
from maskc.dsl.combinators import strided as strided
from maskc.dsl.combinators import topk as topk
from maskc.dsl.combinators import window as window
from maskc.dsl.data_atoms import block_table as block_table
from maskc.dsl.data_atoms import cu_seqlens as cu_seqlens
from maskc.dsl.data_atoms import documents as documents
from maskc.dsl.data_atoms import flags as flags
from maskc.dsl.data_atoms import intervals as intervals
from maskc.dsl.data_atoms import parents as parents
from maskc.dsl.data_atoms import positions as positions
from maskc.dsl.data_atoms import tree as tree
from maskc.dsl.loader import load as load
from maskc.dsl.mask import Mask as Mask
from maskc.dsl.matrices import DenseWarning as DenseWarning
from maskc.dsl.matrices import from_block_mask as from_block_mask
from maskc.dsl.matrices import from_bool as from_bool
from maskc.dsl.parser import parse as parse
from maskc.dsl.pattern import Pattern as Pattern
from maskc.dsl.pattern import pattern as pattern
from maskc.dsl.score_tracer import Score as Score
from maskc.dsl.score_tracer import ScoreMaskWarning as ScoreMaskWarning
from maskc.dsl.score_tracer import from_score_mod as from_score_mod
from maskc.dsl.score_tracer import score as score
from maskc.dsl.score_tracer import table as table
from maskc.dsl.traced import n_kv as n_kv
from maskc.dsl.traced import n_q as n_q
from maskc.dsl.traced import param as param
from maskc.dsl.tracer import from_mask_mod as from_mask_mod
from maskc.dsl.tracer import where as where
from maskc.flex import flex_attention as flex_attention

if TYPE_CHECKING:
    from maskc import distributed as distributed
    from maskc import evaluate as evaluate
    from maskc import nn as nn
    from maskc.integrations.torch.fp8 import to_e4m3 as to_e4m3
    from maskc.runtime.compiled import CompiledMask as CompiledMask
    from maskc.tuning import clear_tuned as clear_tuned
    from maskc.tuning import tune as tune

__version__ = "0.1.0"
_package.state()  # of the code that is loaded now: what it plans is kept under this state


def __getattr__(name: str) -> object:
    """CompiledMask and whole rooms on demand: importing maskc loads no torch."""
    if name in ("nn", "distributed", "evaluate"):
        from importlib import import_module

        return import_module(f"maskc.{name}")
    if name == "CompiledMask":
        from maskc.runtime.compiled import CompiledMask

        return CompiledMask
    if name in ("tune", "clear_tuned"):
        from maskc import tuning

        return getattr(tuning, name)
    if name == "to_e4m3":
        try:
            from maskc.integrations.torch.fp8 import to_e4m3
        except ImportError:
            from maskc.core.errors import ExtraMissing

            raise ExtraMissing("mc.to_e4m3", "torch", "torch") from None
        return to_e4m3
    if name == "patterns":
        from importlib import import_module

        return import_module("maskc.patterns")
    from maskc.dsl.meant import meant

    raise AttributeError(f"module 'maskc' has no attribute {name!r}{meant(name, globals())}")
