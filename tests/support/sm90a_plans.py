"""Plans and kernels of masks for Hopper, made once in each process."""

from __future__ import annotations

from functools import cache

import maskc as mc
from maskc import driver
from maskc.core.target import TARGETS

SM_90A = TARGETS["sm_90a"]
HEADS = 2


@cache
def planned(mask: mc.Mask, dim: int = 128):
    return driver.plan_kernel(mask, driver.problem(dim, None, HEADS, "bfloat16"), SM_90A)


@cache
def emitted(mask: mc.Mask, dim: int = 128):
    return driver.emit_bundle(planned(mask, dim))
