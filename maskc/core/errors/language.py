"""Mistakes in the mask language (MC1xx) and in pattern files (MC2xx)."""

from __future__ import annotations

from maskc.core.errors.base import MaskcError


class NegativeWidth(MaskcError):
    """A width or count of the mask language is below 0."""

    code = "MC101"
    message = "{0}: {1} must be >= 0, found {2}"
    hint = "counts are inclusive and never negative; None means unbounded where it is allowed"


class NotPositive(MaskcError):
    """A stride, block size or count that must be at least 1 is not."""

    code = "MC102"
    message = "{0}: {1} must be >= 1, found {2}"
    hint = "strides, block sizes and counts of levels start at 1"


class NotAboveZero(MaskcError):
    """A cap or a bound of logits is not above 0."""

    code = "MC136"
    message = "{0}: {1} must be above 0, found {2}"
    hint = "logits stay between -{1} and {1}; write for example 30.0"


class NotAnInteger(MaskcError):
    """A count of the mask language is neither an integer nor a formula in lengths."""

    code = "MC103"
    message = (
        "{0}: {1} must be an integer, mc.param(...) or a formula in mc.n_q, mc.n_kv; found {2}"
    )
    hint = "write a plain int, or int(...) around a value you computed"


class NotConstant(MaskcError):
    """A number that shapes the kernel, such as a stride, is not a plain integer."""

    code = "MC104"
    message = "{0}: {1} must be a plain integer, found {2}"
    hint = "strides, block sizes and phases shape the kernel, so they are constants of the pattern"


class MaskUsedAsBool(MaskcError, TypeError):
    """A mask or a traced value stands where Python needs True or False."""

    code = "MC105"
    message = (
        "a {0} has no truth value: `and`, `or`, `not`, `if` and chained comparisons would drop it"
    )
    hint = "use & for and, | for or, ~ for not, and put comparisons in parentheses"


class NotAMask(MaskcError, TypeError):
    """An argument is not a mask; the hint depends on what it is."""

    code = "MC106"
    message = "{0} expects a mask, found {1}"
    hint = "{2}"


class NotTraceable(MaskcError):
    """A Python function does something that tracing cannot follow exactly."""

    code = "MC107"
    message = "this formula cannot be traced exactly: {0}"
    hint = (
        "use + - * // %, abs, min, max, comparisons and & | ~ of q, k, h, mc.n_q, mc.n_kv "
        "and integers; products and divisors need a plain integer on one side"
    )
    hint_at = 1


class BatchUsed(MaskcError):
    """A formula computes with the batch index b."""

    code = "MC108"
    message = "the mask depends on the batch index b"
    hint = (
        "b may only index a captured array, as in doc[b, q]; or pass per-sequence information as "
        "data: mc.documents, mc.intervals, mc.flags"
    )


class BadAlign(MaskcError):
    """An `align` is neither "end" nor "start"."""

    code = "MC109"
    message = '{0}: align must be "end" or "start", found {1!r}'
    hint = (
        'with "end" the last query meets the last key (decoding); with "start" the first ones meet'
    )


class BadPhase(MaskcError):
    """The phase of `strided` is not a residue of its stride."""

    code = "MC110"
    message = "{0}: phase must lie in 0..{1}, found {2}"
    hint = "phase is the residue k mod stride"


class ReservedName(MaskcError):
    """The name of data or of a parameter is reserved, or is not an identifier."""

    code = "MC111"
    message = "{0} cannot name data or a parameter: {1}"
    hint = "choose another identifier, for example 'doc_ids'; calls pass the data under this name"
    hint_at = 2


class NameClash(MaskcError):
    """One name stands for two different things in a mask."""

    code = "MC112"
    message = "{0!r} is used both as {1} and as {2}"
    hint = "use two names: one name means one array, or one parameter with one default"


class NoSuchHead(MaskcError):
    """The mask refers to a query head that the call does not have."""

    code = "MC113"
    message = "the mask refers to head {0}, but there are {1} heads"
    hint = "per_head([...]) needs one mask per query head; pass n_heads= to compile()"


class HeadsUnknown(MaskcError):
    """Heads differ, and neither the mask nor the caller says how many there are."""

    code = "MC114"
    message = "the mask differs between heads, so the number of heads is needed"
    hint = "pass n_heads= (compile, dense) or head= (layout)"


class BadExpression(MaskcError):
    """The text of `--expr` or `mc.parse` is not part of the mask language."""

    code = "MC115"
    exit_code = 2
    message = "cannot read the mask expression: {0}"
    hint = "an expression is made of combinators, integers, & | ~ - ^ and parentheses"


class BadTable(MaskcError):
    """A block table has the wrong shape or element type."""

    code = "MC116"
    message = "{0}: the table must be a 2-D array of booleans or integers, found {1}"
    hint = (
        "rows are query blocks, columns are key blocks; a leading heads dimension is allowed; "
        "table != 0 makes booleans of numbers"
    )


class SelectionNotCompiled(MaskcError):
    """The target has no kernels for this run-time selection."""

    code = "MC117"
    message = (
        "target {0} has no kernels for topk of {1}; it has kernels for blocks of at least {2} keys"
    )
    hint = (
        "use target='simt' or 'cpu', or larger blocks; sm_80 and sm_90a select single keys by q"
        " . k of each head, and by an indexer or given scores if heads choose together "
        "(share='all' or 'group')"
    )


class BadIds(MaskcError):
    """A list of token or head ids holds something other than ids in range."""

    code = "MC118"
    message = "{0}: ids must be integers{1}, found {2}"
    hint = "pass a list of ints"


class BadChoice(MaskcError):
    """A word is not one of the allowed values."""

    code = "MC119"
    message = "{0}: {1} must be one of {2}, found {3!r}"
    hint = "choose one of these words"


class IntegerTooWide(MaskcError):
    """An integer of the mask does not fit 64 bits."""

    code = "MC120"
    message = "{0}: {1} does not fit 64 bits"
    hint = "integers of masks lie between -2^63 and 2^63; omit a bound if there is none"


class MissingParentheses(NotTraceable):
    """`&`, `|` or `^` of a formula combines two integers, because it binds before comparisons."""

    code = "MC122"
    message = "{0} binds more tightly than comparisons, so it combines two integers here"
    hint = "put each comparison in parentheses: (q >= k) & (q - k < 3)"


class MaskArithmetic(MaskcError, TypeError):
    """Masks are combined with an operator that sets do not have, such as +."""

    code = "MC123"
    message = "masks have no {0}"
    hint = "{1}"


class ArgumentOrder(MaskcError):
    """The names of a function's arguments contradict their positions."""

    code = "MC121"
    message = "names and positions of the arguments disagree: by name {0}; by position {1}"
    hint = "FlexAttention calls mask_mod(b, h, q_idx, kv_idx) by position; mc.where goes by name"


class WrongHeads(NoSuchHead):
    """`n_heads` or the call's heads contradict what the mask says."""

    code = "MC125"
    message = "the mask is written for {0} query heads, but {1}"
    hint = "per_head([...]) takes one mask for each head of q; leave n_heads= out"


class Undecided(MaskcError):
    """`mc.diff` found neither a difference nor a proof that there is none."""

    code = "MC126"
    message = "found neither a pair that distinguishes the masks{0} nor a proof that there is none"
    hint = "pass n=, n_heads= and all data: the answer is then exact"


class BadMatrix(MaskcError):
    """A matrix that should become a mask has the wrong rank or element type."""

    code = "MC127"
    message = "{0} expects booleans [.., n_q, n_kv] of 2 to 4 dimensions, found {1}"
    hint = "{2}"


class ScoreNotTraceable(MaskcError):
    """A score formula does something that tracing cannot follow exactly."""

    code = "MC129"
    message = "this score formula cannot be traced: {0}"
    hint = "{1}"


class ScoreDerivative(MaskcError):
    """A score formula has no finite derivative at some score."""

    code = "MC130"
    message = "this score formula has no finite derivative: {0}"
    hint = "{1}"


class ScoreHidesPairs(MaskcError):
    """A score formula hides pairs, with -inf for example; hiding pairs is the purpose of masks."""

    code = "MC131"
    message = "this score formula hides pairs: {0}"
    hint = "{1}"


class NotAScore(MaskcError, TypeError):
    """An argument is not a score formula."""

    code = "MC132"
    message = "score= expects mc.score(...), found {0}"
    hint = "{1}"


class NeedsLengths(MaskcError):
    """A mask_mod has pairs only at the lengths of a call, and a proof or plan needs them at all
    lengths.
    """

    code = "MC133"
    message = (
        "this mask_mod is evaluated for the lengths of each call, so there is no mask without "
        "lengths"
    )
    hint = (
        "write it so that it can be traced, see the warning of mc.from_mask_mod; or fix its "
        "lengths with mc.from_bool(create_mask(mask_mod, B, H, n_q, n_kv))"
    )


class SequencesUnknown(MaskcError):
    """A mask_mod computes with b, and the number of sequences is unknown."""

    code = "MC134"
    message = "this mask_mod computes with b, and the number of sequences is unknown"
    hint = "let b index a tensor, which tells their number; or use mc.from_bool(create_mask(...))"


class MaskModFailed(MaskcError):
    """A mask_mod raised when it was evaluated for the lengths of a call."""

    code = "MC135"
    message = "the mask_mod raised {0}, for {1} sequences, {2} heads, {3} queries and {4} keys"
    hint = "a tensor that it reads may have fewer entries than the call has tokens, heads or rows"


class ScoreNeedsLengths(MaskcError):
    """A part of a score formula has values only at the lengths of a call, and is needed for all
    lengths.
    """

    code = "MC650"
    message = "this part of the score is evaluated for the lengths of a call: {0}"
    hint = (
        "write it so that it can be followed, see the warning of mc.from_score_mod; or give its "
        "values as a tensor, score=mc.scores.bias() with bias="
    )


class NotEvaluated(MaskcError):
    """A part of a score formula raised when it was evaluated for the lengths of a call."""

    code = "MC651"
    message = "this part raised {0}, for {1} sequences, {2} heads, {3} queries and {4} keys"
    hint = "a tensor that it reads may have fewer entries than the call has tokens, heads or rows"


# ---------------------------------------------------------------- pattern files


class PatternFailed(MaskcError):
    """A pattern file raised an error of its own while it ran."""

    code = "MC201"
    message = "the pattern file raised {0}: {1}"
    hint = "a pattern file is ordinary Python, and this error comes from its code"


class NoPattern(MaskcError):
    """A pattern file defines neither a pattern nor a mask."""

    code = "MC202"
    message = "no pattern in this {0}"
    hint = "decorate a function with @mc.pattern, or assign a mask to a module-level name"


class BadPatternName(MaskcError):
    """A pattern's name cannot name a module."""

    code = "MC203"
    message = "a pattern's name must be a Python identifier of at most 40 characters, found {0!r}"
    hint = "rename it: the name becomes the generated module's name"


class BadParameter(MaskcError):
    """A pattern has no parameter of this name."""

    code = "MC204"
    exit_code = 2
    message = "{0} has no parameter {1!r}; it has: {2}"
    hint = "{3}give one of these with --set name=value or as a keyword"


class BadParameterValue(MaskcError):
    """A pattern's parameter has a value of the wrong type, one that the pattern refuses, or no
    default."""

    code = "MC205"
    exit_code = 2
    message = "{0}: parameter {1!r} expects {2}, found {3!r}"
    hint = "the annotation in the pattern's signature decides the type"


class NotAMaskReturned(MaskcError, TypeError):
    """A pattern's function returned something other than a mask."""

    code = "MC206"
    message = "pattern {0} returned {1}, not a mask"
    hint = "end the function with `return` and a maskc mask"


class FileMissing(MaskcError):
    """The pattern file does not exist."""

    code = "MC207"
    exit_code = 2
    message = "no such file: {0}"
    hint = 'check the path; `maskc compile --expr "causal()"` needs no file'


class FileUnreadable(MaskcError):
    """The pattern file is not a regular file, or may not be read."""

    code = "MC208"
    exit_code = 2
    message = "cannot read {0}: {1}"
    hint = "pass a regular file that you may read"


class PatternTwice(MaskcError):
    """Two patterns of a file have the same name."""

    code = "MC209"
    message = "{0} is defined twice: the pattern of this name in line {1} would be lost"
    hint = "rename one of them; the name becomes the generated module's name"
