"""One bundle and its built kernels: chooses a source for each pass."""

from __future__ import annotations

from maskc.core.bundle import Bundle
from maskc.core.target import Target
from maskc.core.tensors import Output
from maskc.dispatch.call import Bound, Pass, Place
from maskc.dispatch.programs import Emitted
from maskc.dispatch.selector import SourceSelector
from maskc.runtime.launch.cuda import multiprocessors
from maskc.runtime.launch.kernels import Kernels
from maskc.runtime.launch.numpy_kernel import NumPyKernel
from maskc.runtime.launch.prepared import PreparedLaunch


class BuiltBundle:
    """The sources of one bundle on one target and their binaries; safe to use from several
    threads."""

    def __init__(self, bundle: Bundle, target: Target, kernels: Kernels | None = None) -> None:
        """`kernels`: those of a bundle with the same sources, to share them."""
        self.bundle, self.target = bundle, target
        self.selector = SourceSelector(bundle, target, multiprocessors)
        self.kernels = kernels or Kernels(bundle, target)
        self.dtype = bundle.problem.dtype.value
        """The dtype of q."""

    def plan(
        self, program: Emitted, wanted: Pass, bound: Bound, place: Place,
        outputs: tuple[Output, ...],
    ) -> PreparedLaunch:  # fmt: skip
        """Plan a pass over some tokens; arguments as in SourceSelector.plan.

        Raises:
            NotAddressable, ExtraMissing: tensor maps cannot be made.
        """
        asked = (program, wanted, bound, place, outputs)
        plan = self.selector.plan(*asked)
        kernel = self.kernels.get(plan.unit, plan.mode, plan.features, wanted.device[1])
        if isinstance(kernel, NumPyKernel) and plan.unit.ranges:
            plan = self.selector.plan(*asked, lists=True)
        return kernel.prepare(plan)
