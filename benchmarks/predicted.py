"""What the cost model says that a case takes, to print beside what it took."""

from __future__ import annotations

from maskc import driver
from maskc.core.coefficients import card_of
from maskc.core.errors import MaskcError
from maskc.core.layout import BlockLayout
from maskc.core.problem import Direction
from maskc.core.target import Target
from maskc.plan.cost import layout_at
from maskc.plan.predict import milliseconds
from maskc.plan.types import KernelPlan, PlannedMask
from maskc.runtime.compiled import CompiledMask
from maskc.verify.case import Case


def predicted_ms(case: Case, attn: CompiledMask, target: Target) -> dict[str, float]:
    """Milliseconds by direction, of the card that coefficients are of; none where there are none,
    or the mask chooses at run time.

    Data count as those of the first sequence.
    """
    if card_of(target.name) is None or driver.selects(case.mask):
        return {}

    def tiles(plan: KernelPlan, mask: PlannedMask, n_q: int, n_kv: int) -> BlockLayout:
        if not case.data:
            return layout_at(plan, mask, n_q, n_kv)
        number = next(i for i, each in enumerate(plan.masks) if each is mask)
        head = plan.of_head.index(number) if plan.of_head else 0
        block = (plan.tile.q, plan.tile.k)
        return attn.layout(n_q, n_kv, block=block, head=head, batch=0, **case.data)

    owners = case.batch * case.heads
    try:
        plan = driver.plan_kernel(case.mask, attn.bundle.problem, target)
        found = {
            name: milliseconds(plan, direction, case.n_q, case.n_kv, owners, tiles)
            for name, direction in zip(("fwd", "bwd"), Direction, strict=True)
        }
    except MaskcError:  # tables too large to count: nothing is predicted
        return {}
    return {name: ms for name, ms in found.items() if ms is not None}
