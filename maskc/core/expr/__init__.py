"""Integer and boolean formulas over queries, keys and lengths: the one expression language.

The tracer builds them, isl reads them, the printers write them as C, CUDA and Python, and the
layout evaluates them. Build them with the functions below, never with the classes: the functions
keep every formula in one normal form (sums flattened and sorted, comparisons against zero,
conjunctions without duplicates), so equal text means equal formulas.
"""

from maskc.core.expr.conditions import alternatives as alternatives
from maskc.core.expr.conditions import at_least_zero as at_least_zero
from maskc.core.expr.conditions import conj as conj
from maskc.core.expr.conditions import disj as disj
from maskc.core.expr.conditions import eq as eq
from maskc.core.expr.conditions import equals_zero as equals_zero
from maskc.core.expr.conditions import ge as ge
from maskc.core.expr.conditions import gt as gt
from maskc.core.expr.conditions import le as le
from maskc.core.expr.conditions import lt as lt
from maskc.core.expr.conditions import member as member
from maskc.core.expr.conditions import ne as ne
from maskc.core.expr.conditions import negate as negate
from maskc.core.expr.conditions import xor as xor
from maskc.core.expr.integers import absolute as absolute
from maskc.core.expr.integers import add as add
from maskc.core.expr.integers import as_const as as_const
from maskc.core.expr.integers import const as const
from maskc.core.expr.integers import floordiv as floordiv
from maskc.core.expr.integers import linear as linear
from maskc.core.expr.integers import maximum as maximum
from maskc.core.expr.integers import minimum as minimum
from maskc.core.expr.integers import mod as mod
from maskc.core.expr.integers import scale as scale
from maskc.core.expr.integers import split_linear as split_linear
from maskc.core.expr.integers import sub as sub
from maskc.core.expr.nodes import ALWAYS as ALWAYS
from maskc.core.expr.nodes import N_KV as N_KV
from maskc.core.expr.nodes import N_Q as N_Q
from maskc.core.expr.nodes import NEVER as NEVER
from maskc.core.expr.nodes import ZERO as ZERO
from maskc.core.expr.nodes import All as All
from maskc.core.expr.nodes import Any as Any
from maskc.core.expr.nodes import Cmp as Cmp
from maskc.core.expr.nodes import Expr as Expr
from maskc.core.expr.nodes import FloorDiv as FloorDiv
from maskc.core.expr.nodes import H as H
from maskc.core.expr.nodes import K as K
from maskc.core.expr.nodes import Load as Load
from maskc.core.expr.nodes import Max as Max
from maskc.core.expr.nodes import Member as Member
from maskc.core.expr.nodes import Min as Min
from maskc.core.expr.nodes import Mod as Mod
from maskc.core.expr.nodes import Param as Param
from maskc.core.expr.nodes import Q as Q
from maskc.core.expr.nodes import Sum as Sum
from maskc.core.expr.nodes import Sym as Sym
from maskc.core.expr.nodes import Truth as Truth
from maskc.core.expr.nodes import is_condition as is_condition
from maskc.core.expr.walking import arrays as arrays
from maskc.core.expr.walking import params as params
from maskc.core.expr.walking import renamed as renamed
from maskc.core.expr.walking import substitute as substitute
from maskc.core.expr.walking import symbols as symbols
from maskc.core.expr.walking import transform as transform
from maskc.core.expr.walking import walk as walk
