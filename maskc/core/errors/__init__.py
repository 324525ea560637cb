"""One class per mistake: a code, a place, what was found, what to do.

A class holds a message template and a hint; the base formats them. Raise as
`NegativeWidth("left", -3, at=loc)`: positional arguments fill the template in order.
Codes: MC1xx the mask language, MC2xx pattern files, MC3xx lengths and data at call time,
MC4xx tensors and options of a call, MC5xx targets and builds, MC6xx command line and models
of other libraries.
"""

from maskc.core.errors.base import MaskcError as MaskcError
from maskc.core.errors.base import SeveralErrors as SeveralErrors
from maskc.core.errors.builds import BadPlan as BadPlan
from maskc.core.errors.builds import BuildFailed as BuildFailed
from maskc.core.errors.builds import CheckFailed as CheckFailed
from maskc.core.errors.builds import Counterexample as Counterexample
from maskc.core.errors.builds import DecompositionBroken as DecompositionBroken
from maskc.core.errors.builds import Drift as Drift
from maskc.core.errors.builds import DTypeUnsupported as DTypeUnsupported
from maskc.core.errors.builds import EmulatorMissing as EmulatorMissing
from maskc.core.errors.builds import ExtraMissing as ExtraMissing
from maskc.core.errors.builds import HeadDimUnsupported as HeadDimUnsupported
from maskc.core.errors.builds import NoCompiler as NoCompiler
from maskc.core.errors.builds import NoDevice as NoDevice
from maskc.core.errors.builds import NothingCompared as NothingCompared
from maskc.core.errors.builds import SharedMemoryExceeded as SharedMemoryExceeded
from maskc.core.errors.builds import TargetNotBuilt as TargetNotBuilt
from maskc.core.errors.builds import TooManyArrays as TooManyArrays
from maskc.core.errors.builds import UnknownDType as UnknownDType
from maskc.core.errors.builds import UnknownTarget as UnknownTarget
from maskc.core.errors.builds import UsageMistake as UsageMistake
from maskc.core.errors.calls import BadBlock as BadBlock
from maskc.core.errors.calls import BadLength as BadLength
from maskc.core.errors.calls import BadOption as BadOption
from maskc.core.errors.calls import BadShape as BadShape
from maskc.core.errors.calls import DataMissing as DataMissing
from maskc.core.errors.calls import DataRange as DataRange
from maskc.core.errors.calls import DataShape as DataShape
from maskc.core.errors.calls import DataType as DataType
from maskc.core.errors.calls import DataUnknown as DataUnknown
from maskc.core.errors.calls import HeadsDoNotDivide as HeadsDoNotDivide
from maskc.core.errors.calls import Misaligned as Misaligned
from maskc.core.errors.calls import MixedLibraries as MixedLibraries
from maskc.core.errors.calls import NestedTensor as NestedTensor
from maskc.core.errors.calls import NoGradient as NoGradient
from maskc.core.errors.calls import NotAddressable as NotAddressable
from maskc.core.errors.calls import NotAnArray as NotAnArray
from maskc.core.errors.calls import NotContiguous as NotContiguous
from maskc.core.errors.calls import NotPicklable as NotPicklable
from maskc.core.errors.calls import OneOfSeveral as OneOfSeveral
from maskc.core.errors.calls import StalePickle as StalePickle
from maskc.core.errors.calls import TooFewMultiprocessors as TooFewMultiprocessors
from maskc.core.errors.calls import TooManyTiles as TooManyTiles
from maskc.core.errors.calls import TooMuchWork as TooMuchWork
from maskc.core.errors.calls import WrongDevice as WrongDevice
from maskc.core.errors.calls import WrongDType as WrongDType
from maskc.core.errors.language import ArgumentOrder as ArgumentOrder
from maskc.core.errors.language import BadAlign as BadAlign
from maskc.core.errors.language import BadChoice as BadChoice
from maskc.core.errors.language import BadExpression as BadExpression
from maskc.core.errors.language import BadIds as BadIds
from maskc.core.errors.language import BadMatrix as BadMatrix
from maskc.core.errors.language import BadParameter as BadParameter
from maskc.core.errors.language import BadParameterValue as BadParameterValue
from maskc.core.errors.language import BadPatternName as BadPatternName
from maskc.core.errors.language import BadPhase as BadPhase
from maskc.core.errors.language import BadTable as BadTable
from maskc.core.errors.language import BatchUsed as BatchUsed
from maskc.core.errors.language import FileMissing as FileMissing
from maskc.core.errors.language import FileUnreadable as FileUnreadable
from maskc.core.errors.language import HeadsUnknown as HeadsUnknown
from maskc.core.errors.language import IntegerTooWide as IntegerTooWide
from maskc.core.errors.language import MaskUsedAsBool as MaskUsedAsBool
from maskc.core.errors.language import NameClash as NameClash
from maskc.core.errors.language import NegativeWidth as NegativeWidth
from maskc.core.errors.language import NoPattern as NoPattern
from maskc.core.errors.language import NoSuchHead as NoSuchHead
from maskc.core.errors.language import NotAMask as NotAMask
from maskc.core.errors.language import NotAMaskReturned as NotAMaskReturned
from maskc.core.errors.language import NotAnInteger as NotAnInteger
from maskc.core.errors.language import NotConstant as NotConstant
from maskc.core.errors.language import NotPositive as NotPositive
from maskc.core.errors.language import NotTraceable as NotTraceable
from maskc.core.errors.language import PatternFailed as PatternFailed
from maskc.core.errors.language import PatternTwice as PatternTwice
from maskc.core.errors.language import ReservedName as ReservedName
from maskc.core.errors.language import ScoreModUnsupported as ScoreModUnsupported
from maskc.core.errors.language import SelectionNotCompiled as SelectionNotCompiled
from maskc.core.errors.language import Undecided as Undecided
from maskc.core.errors.language import WrongHeads as WrongHeads
from maskc.core.errors.models import MaskNotATensor as MaskNotATensor
from maskc.core.errors.models import ModelArgument as ModelArgument
from maskc.core.errors.models import ModelMask as ModelMask
from maskc.core.errors.models import ModelNotServed as ModelNotServed
from maskc.core.errors.models import PackingLost as PackingLost
