"""Targets and builds (MC5xx), the command line (MC6xx)."""

from __future__ import annotations

from importlib.util import find_spec

from maskc.core.errors.base import MaskcError


class UnknownDType(MaskcError):
    """maskc has no kernels for this dtype."""

    code = "MC501"
    exit_code = 2
    message = "unknown dtype {0!r}; known: {1}"
    hint = (
        "pass one of these, as text or as a dtype of torch or NumPy; convert other tensors first, "
        "for example with q.float() or q.astype('float32'), as kernels compute in fp32"
    )


class UnknownTarget(MaskcError):
    """There is no such target, or the bundle was not compiled for it."""

    code = "MC502"
    exit_code = 2
    message = "unknown target {0!r}; known: {1}"
    hint = "target=None picks what this machine has; H100 and H200 are sm_90a, A100 is sm_80"


class TargetNotBuilt(MaskcError):
    """The target lacks the kernels that the call needs, such as a backward pass."""

    code = "MC503"
    message = "target {0} has no {1} kernels yet: {2}"
    hint = "{3}"


class HeadDimUnsupported(MaskcError):
    """The target has no kernel for this head dimension."""

    code = "MC504"
    message = "target {0} has no kernel for head_dim={1}, head_dim_v={2}; it has: {3}"
    hint = "pad or split the head dimension; target 'simt' takes any up to 512, and 'cpu' up to 576"


class BadTile(MaskcError, TypeError):
    """A tile is not a pair of numbers, or a number of stages is not a number."""

    code = "MC491"
    message = "{0} must be {1}, found {2}"
    hint = "tile=(128, 64) is 128 queries by 64 keys; None leaves the choice to the planner"


class TileUnsupported(MaskcError):
    """The target has no forward kernel with this tile or number of stages."""

    code = "MC490"
    message = "{0} has no forward kernel with {1}: {2}"
    hint = "{3}"


class DTypeUnsupported(MaskcError):
    """The target has no kernel for this dtype."""

    code = "MC505"
    message = "target {0} has no {1} kernel; it has: {2}"
    hint = "choose one of these dtypes, or another target; 'simt' and 'cpu' also have fp32"


class NoCompiler(MaskcError):
    """No C compiler works on this machine."""

    code = "MC506"
    message = "no working C compiler: tried {0}"
    hint = "install gcc or clang, or set CC; until then the CPU path runs in NumPy, slower"


class ExtraMissing(MaskcError):
    """An optional package is not installed."""

    code = "MC507"
    message = "{0} needs {1}, which is not installed"
    hint = "pip install 'maskc[{2}]'"


class ExtraBroken(ExtraMissing):
    """An optional package is installed, and its import fails."""

    code = "MC644"
    message = "{0} needs {1}, which is installed and cannot be imported: {3}"
    hint = (
        "its dependencies may have incompatible versions: pip install --upgrade 'maskc[{2}]', or "
        "see what `import {1}` prints"
    )


def _lacks_another(error: ModuleNotFoundError, package: str) -> bool:
    """Whether the package is installed, and the module that is missing is one that it imports."""
    module, missing = package.lower().replace("-", "_"), (error.name or "").partition(".")[0]
    try:
        return missing not in ("", module) and find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def not_imported(error: ImportError, what: str, package: str, extra: str) -> ExtraMissing:
    """The mistake behind an import that failed; raise it from the error, which is its cause.

    Args:
        what: what needs the package; extra: of maskc, which installs it.
    """
    if isinstance(error, ModuleNotFoundError) and not _lacks_another(error, package):
        return ExtraMissing(what, package, extra)
    return ExtraBroken(what, package, extra, str(error).split("\n")[0])


class BuildFailed(MaskcError):
    """A compiler refused generated source, which is a defect of maskc."""

    code = "MC508"
    message = "{0} refused the generated source: {1}"
    hint = "this is a defect of maskc, not of your mask: please report it with this text"


class NoDevice(MaskcError):
    """The target needs an NVIDIA GPU that this machine or process does not have."""

    code = "MC509"
    message = "{0} needs an NVIDIA GPU, and {1}"
    hint = "compile(target='cpu') runs anywhere; `maskc doctor` says what is missing"


class SharedMemoryExceeded(MaskcError):
    """A plan needs more shared memory than a block of threads may have."""

    code = "MC510"
    message = "the plan needs {0} bytes of shared memory, target {1} has {2}"
    hint = "choose a smaller tile"


class TooManyArrays(MaskcError):
    """The mask reads more data arrays than a kernel's argument block holds."""

    code = "MC511"
    message = "the mask reads {0} data arrays, a kernel takes {1}"
    hint = "merge tables, or express some of them as formulas"


class DecompositionBroken(MaskcError):
    """The pieces of a mask are not equal to it, which is a defect of maskc."""

    code = "MC512"
    message = "the pieces of this mask are not equal to the mask: {0}"
    hint = "this is a defect of maskc: please report it with the pattern"


# ---------------------------------------------------------------- command line


class Drift(MaskcError):
    """Generated files differ from what their patterns generate now."""

    code = "MC601"
    exit_code = 3
    message = "the files differ from what the patterns generate now: {0}"
    hint = "run `maskc compile {1}` and commit the result"


class BadPlan(MaskcError):
    """The plan or a source next to a generated module does not belong to it."""

    code = "MC604"
    message = "a generated module cannot read {0}: {1}"
    hint = "run `maskc compile` again; the module, its plan and its sources belong together"


class CheckFailed(MaskcError):
    """A kernel disagrees with the dense definition, which is a defect of maskc."""

    code = "MC602"
    exit_code = 3
    message = "{0}"
    hint = "the kernel and the dense oracle disagree: please report this with the pattern"


class WrongDeviceLists(CheckFailed):
    """With MASKC_CHECK=1: a GPU built other tile lists than the host, a defect of maskc."""

    code = "MC690"
    message = "lists that the GPU made are wrong: {0}: {1} on the GPU, {2} on the host"
    hint = "please report this with the pattern, the lengths and the data"


class ListsNotRead(MaskcError):
    """With MASKC_CHECK=1: a call is recorded for later, so its lists cannot be checked now."""

    code = "MC691"
    message = (
        "this call runs later, in a CUDA graph or a program of JAX: its lists are not built yet"
    )
    hint = "run the call once outside of it, or unset MASKC_CHECK"


class UsageMistake(MaskcError):
    """A command line contradicts itself or names something that does not exist."""

    code = "MC603"
    exit_code = 2
    message = "{0}"
    hint = "{1}"


# ---------------------------------------------------------------- property tests


class EmulatorMissing(MaskcError):
    """CUDA kernels need a GPU or the emulator to be tested, and neither is available."""

    code = "MC610"
    exit_code = 2
    message = "this machine has no GPU that runs the kernels, and the emulator needs {0}"
    hint = "install it, or test the CPU kernels with target='cpu'"


class Counterexample(CheckFailed):
    """A property test found a case in which a kernel is wrong, which is a defect of maskc."""

    code = "MC611"
    exit_code = 1
    message = "{0}"
    hint = "this program reproduces the fault: please report it with the pattern"


class NothingCompared(CheckFailed):
    """A property test compared nothing: every case that it drew was refused."""

    code = "MC612"
    exit_code = 1
    message = "none of the {0} cases of {1} could be compared; the first was refused: {2}"
    hint = "pass the data that such a call needs, or lengths that the mask accepts"
