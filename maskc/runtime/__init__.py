"""Compiled masks as callables on arrays: checks, layouts, launches, and a NumPy stand-in.

Imports core, layout and build. Array libraries and CUDA are touched only once a call needs them.
"""

from __future__ import annotations

from maskc.runtime.compiled import CompiledMask
from maskc.runtime.device import default_target
from maskc.runtime.generated import GeneratedMask
from maskc.runtime.launch.numpy_kernel import FallbackWarning
from maskc.runtime.merge import merge

__all__ = ["CompiledMask", "FallbackWarning", "GeneratedMask", "default_target", "merge"]
