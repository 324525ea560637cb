"""One class per mistake: a code, a place, what was found, what to do.

A class holds a message template and a hint; the base formats them. Raise as
`NegativeWidth("left", -3, at=loc)`: positional arguments fill the template in order.
Codes: MC1xx the mask language, MC2xx pattern files, MC3xx lengths and data at call time,
MC4xx tensors and options of a call, MC5xx targets and builds, MC6xx command line.
"""

from __future__ import annotations

from maskc.core.source import SourceLoc


class MaskcError(Exception):
    """Base of everything maskc raises for a user's mistake.

    Attributes:
        code: `MCnnn`, stable across releases.
        exit_code: what the command line exits with (1 pattern or build, 2 usage, 3 failed check).
        at: the place: a `SourceLoc`, an argument's name, or None.
    """

    code = "MC000"
    exit_code = 1
    message = "{}"
    hint = ""

    def __init__(self, *args: object, at: SourceLoc | str | None = None) -> None:
        self.args = args
        self.at = at
        super().__init__(*args)

    @property
    def finding(self) -> str:
        """The message with its arguments, without place and hint."""
        return self.message.format(*self.args)

    def __str__(self) -> str:
        place = f" {self.at}" if self.at is not None else ""
        lines = [f"{self.code}{place}  {self.finding}"]
        if isinstance(self.at, SourceLoc) and (excerpt := self.at.excerpt()):
            lines.append(excerpt)
        if self.hint:
            lines.append(f"    hint: {self.hint.format(*self.args)}")
        return "\n".join(lines)


class SeveralErrors(MaskcError):
    """Every mistake of one pattern file, in the order of its lines."""

    code = "MC001"

    def __init__(self, errors: tuple[MaskcError, ...]) -> None:
        super().__init__(*errors)
        self.errors = errors
        self.exit_code = max(error.exit_code for error in errors)

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


# ------------------------------------------------------------------ the mask language


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
    message = "{0}: {1} must be an integer, mc.param(...) or a formula in mc.n_q, mc.n_kv; found {2}"
    hint = "write a plain int, or int(...) around a value you computed"


class NotConstant(MaskcError):
    code = "MC104"
    message = "{0}: {1} must be a plain integer, found {2}"
    hint = "strides, block sizes and phases shape the kernel, so they are constants of the pattern"


class MaskUsedAsBool(MaskcError, TypeError):
    code = "MC105"
    message = "a {0} has no truth value: `and`, `or`, `not`, `if` and chained comparisons would drop it"
    hint = "use & for and, | for or, ~ for not, and put comparisons in parentheses"


class NotAMask(MaskcError, TypeError):
    code = "MC106"
    message = "{0} expects a mask, found {1}"
    hint = "masks come from maskc's combinators: mc.causal(), mc.window(256), mc.where(...)"


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
    hint = "pass per-sequence information as data instead: mc.documents, mc.intervals, mc.flags"


class BadAlign(MaskcError):
    code = "MC109"
    message = '{0}: align must be "end" or "start", found {1!r}'
    hint = 'with "end" the last query meets the last key (decoding); with "start" the first ones meet'


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
    message = "topk is a run-time selection; its kernels are not built yet"
    hint = "mask.dense(..., scores=...) evaluates it slowly; without topk the mask compiles"


class BadIds(MaskcError):
    code = "MC118"
    message = "{0}: ids must be integers{1}, found {2}"
    hint = "pass a list of ints"


# ------------------------------------------------------------------ pattern files


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
    hint = "rename the function; the name becomes the generated module's name"


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
    hint = "check the path; `maskc compile --expr \"causal()\"` needs no file"


# ------------------------------------------------------------------ lengths and data


class DataMissing(MaskcError):
    code = "MC301"
    message = "the mask needs {0!r} ({1}), which was not given"
    hint = "pass it by name: attn(q, k, v, {0}=...)"


class DataUnknown(MaskcError):
    code = "MC302"
    message = "the mask has no data or parameter named {0!r}; it has: {1}"
    hint = "remove the argument or correct its name"


class DataShape(MaskcError):
    code = "MC303"
    message = "{0!r} has shape {1}, expected {2}"
    hint = "lengths follow q and k; a leading batch dimension is allowed"


class DataType(MaskcError):
    code = "MC304"
    message = "{0!r} has dtype {1}, expected {2}"
    hint = "convert it first; nothing is rounded silently"


class DataRange(MaskcError):
    code = "MC305"
    message = "{0!r}: {1}"
    hint = "{2}"


class BadLength(MaskcError):
    code = "MC306"
    message = "{0} must be an integer in 0..{1}, found {2}"
    hint = "lengths are numbers of tokens"


class BadBlock(MaskcError):
    code = "MC307"
    message = "block must be two integers in 1..65536, found {0}"
    hint = "for example block=(128, 128)"


class TooManyTiles(MaskcError):
    code = "MC308"
    message = "the layout has {0} live tiles, more than 2^30"
    hint = "use larger tiles, or shorter lengths"


# ------------------------------------------------------------------ tensors and options


class BadShape(MaskcError):
    code = "MC401"
    message = "{0} has shape {1}, expected {2}"
    hint = "q is [B, Hq, Nq, D], k is [B, Hkv, Nkv, D], v is [B, Hkv, Nkv, Dv]"


class HeadsDoNotDivide(MaskcError):
    code = "MC402"
    message = "q has {0} heads and k has {1}: the first must be a multiple of the second"
    hint = "grouped-query attention shares each key/value head among Hq / Hkv query heads"


class WrongDType(MaskcError):
    code = "MC403"
    message = "{0} is {1}, but this kernel was compiled for {2}"
    hint = "convert the tensor, or compile(dtype={1!r})"


class WrongDevice(MaskcError):
    code = "MC404"
    message = "{0} lives on {1}, but {2} runs on {3}"
    hint = "move the tensor, or compile for the other target"


class NotContiguous(MaskcError):
    code = "MC405"
    message = "the last dimension of {0} has stride {1}, it must be 1"
    hint = "call .contiguous() on it; every other dimension may have any stride"


class NotAnArray(MaskcError, TypeError):
    code = "MC406"
    message = "{0} is a {1}, not an array"
    hint = "pass a torch, CuPy or NumPy array, or anything with __dlpack__"


class BadOption(MaskcError):
    code = "MC407"
    message = "{0} must be {1}, found {2}"
    hint = "see help(maskc.CompiledMask.__call__)"


class Misaligned(MaskcError):
    code = "MC408"
    message = "{0} starts at an address or has strides that are not multiples of 16 bytes"
    hint = "call .contiguous() on it, or slice at multiples of 8 elements"


# ------------------------------------------------------------------ targets and builds


class UnknownDType(MaskcError):
    code = "MC501"
    exit_code = 2
    message = "unknown dtype {0!r}; known: {1}"
    hint = "write it as a string, for example dtype='bfloat16'"


class UnknownTarget(MaskcError):
    code = "MC502"
    exit_code = 2
    message = "unknown target {0!r}; known: {1}"
    hint = "target=None picks what this machine has"


class TargetNotBuilt(MaskcError):
    code = "MC503"
    message = "target {0} has no {1} kernels yet: {2}"
    hint = "{3}"


class HeadDimUnsupported(MaskcError):
    code = "MC504"
    message = "target {0} has no kernel for head_dim={1}, head_dim_v={2}; it has: {3}"
    hint = "pad the head dimension, or compile for target='cpu', which takes any up to 512"


class DTypeUnsupported(MaskcError):
    code = "MC505"
    message = "target {0} has no {1} kernel; it has: {2}"
    hint = "choose one of these dtypes, or another target"


class NoCompiler(MaskcError):
    code = "MC506"
    message = "no working C compiler: tried {0}"
    hint = "install gcc or clang, or set CC; until then the CPU path runs in NumPy, slower"


class ExtraMissing(MaskcError):
    code = "MC507"
    message = "{0} needs {1}, which is not installed"
    hint = "pip install 'maskc[{2}]'"


class BuildFailed(MaskcError):
    code = "MC508"
    message = "{0} refused the generated source: {1}"
    hint = "this is a defect of maskc, not of your mask: please report it with this text"


class NoDevice(MaskcError):
    code = "MC509"
    message = "target {0} needs an NVIDIA GPU, and {1}"
    hint = "compile(target='cpu') runs anywhere; `maskc doctor` says what is missing"


class SharedMemoryExceeded(MaskcError):
    code = "MC510"
    message = "the plan needs {0} bytes of shared memory, target {1} has {2}"
    hint = "a smaller tile fits"


# ------------------------------------------------------------------ command line


class Drift(MaskcError):
    code = "MC601"
    exit_code = 3
    message = "{0} differs from what the pattern gives now"
    hint = "run `maskc compile {1} -o {2}` and commit the result"


class CheckFailed(MaskcError):
    code = "MC602"
    exit_code = 3
    message = "{0}"
    hint = "the kernel and the dense oracle disagree: please report this with the pattern"


class UsageMistake(MaskcError):
    code = "MC603"
    exit_code = 2
    message = "{0}"
    hint = "{1}"
