"""Targets and builds (MC5xx), the command line (MC6xx)."""

from __future__ import annotations

from maskc.core.errors.base import MaskcError


class UnknownDType(MaskcError):
    code = "MC501"
    exit_code = 2
    message = "unknown dtype {0!r}; known: {1}"
    hint = (
        "write one of these, as text or as a dtype of torch or NumPy; tensors of others are "
        "converted first, for example with q.float(), as kernels compute in fp32"
    )


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
    hint = "pad or split the head dimension; target='cpu' takes any up to 512"


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


class TooManyArrays(MaskcError):
    """A mask reads more data arrays than the argument block holds."""

    code = "MC511"
    message = "the mask reads {0} data arrays, a kernel takes {1}"
    hint = "merge tables, or express some of them as formulas"


class DecompositionBroken(MaskcError):
    code = "MC512"
    message = "the pieces of this mask do not add up to it: {0}"
    hint = "this is a defect of maskc: please report it with the pattern"


# ---------------------------------------------------------------- command line


class Drift(MaskcError):
    code = "MC601"
    exit_code = 3
    message = "the files differ from what the patterns give now: {0}"
    hint = "run `maskc compile {1}` and commit the result"


class BadPlan(MaskcError):
    code = "MC604"
    message = "a generated module cannot read {0}: {1}"
    hint = "run `maskc compile` again; the module, its plan and its sources belong together"


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
