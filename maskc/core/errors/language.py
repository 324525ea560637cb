"""Mistakes in the mask language (MC1xx) and in pattern files (MC2xx)."""

from __future__ import annotations

from maskc.core.errors.base import MaskcError


class NegativeWidth(MaskcError):
    code = "MC101"
    message = "{0}: {1} must be >= 0, found {2}"
    hint = "counts are inclusive and never negative; None means unbounded where it is allowed"


class NotPositive(MaskcError):
    code = "MC102"
    message = "{0}: {1} must be >= 1, found {2}"
    hint = "strides, block sizes and counts of levels start at 1"


class NotAnInteger(MaskcError):
    code = "MC103"
    message = (
        "{0}: {1} must be an integer, mc.param(...) or a formula in mc.n_q, mc.n_kv; found {2}"
    )
    hint = "write a plain int, or int(...) around a value you computed"


class NotConstant(MaskcError):
    code = "MC104"
    message = "{0}: {1} must be a plain integer, found {2}"
    hint = "strides, block sizes and phases shape the kernel, so they are constants of the pattern"


class MaskUsedAsBool(MaskcError, TypeError):
    code = "MC105"
    message = (
        "a {0} has no truth value: `and`, `or`, `not`, `if` and chained comparisons would drop it"
    )
    hint = "use & for and, | for or, ~ for not, and put comparisons in parentheses"


class NotAMask(MaskcError, TypeError):
    code = "MC106"
    message = "{0} expects a mask, found {1}"
    hint = "{2}"


class NotTraceable(MaskcError):
    code = "MC107"
    message = "this formula cannot be traced exactly: {0}"
    hint = (
        "use + - * // %, abs, min, max, comparisons and & | ~ of q, k, h, mc.n_q, mc.n_kv "
        "and integers; products and divisors need a plain integer on one side"
    )


class BatchUsed(MaskcError):
    code = "MC108"
    message = "the mask depends on the batch index b"
    hint = (
        "b may only index a captured array, as in doc[b, q]; or pass per-sequence information as "
        "data: mc.documents, mc.intervals, mc.flags"
    )


class BadAlign(MaskcError):
    code = "MC109"
    message = '{0}: align must be "end" or "start", found {1!r}'
    hint = (
        'with "end" the last query meets the last key (decoding); with "start" the first ones meet'
    )


class BadPhase(MaskcError):
    code = "MC110"
    message = "{0}: phase must lie in 0..{1}, found {2}"
    hint = "phase is the residue k mod stride"


class ReservedName(MaskcError):
    code = "MC111"
    message = "{0!r} cannot name data or a parameter: {1}"
    hint = "choose another identifier, for example 'doc_ids'"


class NameClash(MaskcError):
    code = "MC112"
    message = "{0!r} is used both as {1} and as {2}"
    hint = "give each its own name; one name means one array at call time"


class NoSuchHead(MaskcError):
    code = "MC113"
    message = "the mask speaks of head {0}, but there are {1} heads"
    hint = "per_head([...]) needs one mask per query head; pass n_heads= to compile()"


class HeadsUnknown(MaskcError):
    code = "MC114"
    message = "the mask differs between heads, so the number of heads is needed"
    hint = "pass n_heads= (compile, dense) or head= (layout)"


class BadExpression(MaskcError):
    code = "MC115"
    exit_code = 2
    message = "cannot read the mask expression: {0}"
    hint = "an expression is made of combinators, integers, & | ~ - ^ and parentheses"


class BadTable(MaskcError):
    code = "MC116"
    message = "{0}: the table must be a 2-D array of booleans or integers, found {1}"
    hint = "rows are query blocks, columns are key blocks; a leading heads dimension is allowed"


class SelectionNotCompiled(MaskcError):
    code = "MC117"
    message = "target {0} has no kernels for topk of {1}; of blocks of at least {2} keys it has"
    hint = (
        "use target='cpu', or choose larger blocks; sm_80 and sm_90a have single keys by q . k of "
        "each head, and where heads choose together by an indexer or by given scores "
        "(share='all' or 'group')"
    )


class BadIds(MaskcError):
    code = "MC118"
    message = "{0}: ids must be integers{1}, found {2}"
    hint = "pass a list of ints"


class BadChoice(MaskcError):
    code = "MC119"
    message = "{0}: {1} must be one of {2}, found {3!r}"
    hint = "these words are all there are"


class IntegerTooWide(MaskcError):
    code = "MC120"
    message = "{0}: {1} does not fit 64 bits"
    hint = "integers of masks lie between -2^63 and 2^63; leave a bound out where there is none"


class ArgumentOrder(MaskcError):
    code = "MC121"
    message = "names and places of the arguments disagree: by name {0}; by place {1}"
    hint = "FlexAttention calls mask_mod(b, h, q_idx, kv_idx) by place; mc.where goes by name"


class WrongHeads(NoSuchHead):
    code = "MC125"
    message = "the mask is written for {0} query heads, but {1}"
    hint = "per_head([...]) has one mask per query head and needs no n_heads="


class Undecided(MaskcError):
    code = "MC126"
    message = "no pair was found that tells the masks apart{0}, and no proof that there is none"
    hint = "give n=, n_heads= and all data: for these the answer is exact"


# ---------------------------------------------------------------- pattern files


class PatternFailed(MaskcError):
    code = "MC201"
    message = "the pattern file raised {0}: {1}"
    hint = "a pattern file is ordinary Python; this is its own error"


class NoPattern(MaskcError):
    code = "MC202"
    message = "no pattern in this file"
    hint = "decorate a function with @mc.pattern, or assign a mask to a module-level name"


class BadPatternName(MaskcError):
    code = "MC203"
    message = "a pattern's name must be a Python identifier of at most 40 characters, found {0!r}"
    hint = "rename it: the name becomes the generated module's name"


class BadParameter(MaskcError):
    code = "MC204"
    exit_code = 2
    message = "{0} has no parameter {1!r}; it has: {2}"
    hint = "give one of these with --set name=value or as a keyword"


class BadParameterValue(MaskcError):
    code = "MC205"
    exit_code = 2
    message = "{0}: parameter {1!r} expects {2}, found {3!r}"
    hint = "the annotation in the pattern's signature decides the type"


class NotAMaskReturned(MaskcError, TypeError):
    code = "MC206"
    message = "pattern {0} returned {1}, not a mask"
    hint = "end the function with `return` and a maskc mask"


class FileMissing(MaskcError):
    code = "MC207"
    exit_code = 2
    message = "no such file: {0}"
    hint = 'check the path; `maskc compile --expr "causal()"` needs no file'


class FileUnreadable(MaskcError):
    code = "MC208"
    exit_code = 2
    message = "cannot read {0}: {1}"
    hint = "a pattern file is a regular file that you may read"


class PatternTwice(MaskcError):
    code = "MC209"
    message = "{0} is defined twice: the pattern of this name in line {1} would be lost"
    hint = "give each its own name; the name becomes the generated module's name"
