"""The sm_80 family: mma.sync kernels, for every card from compute capability 8.0 on."""

from __future__ import annotations

from maskc.core.forms import CHOOSE, GATHER, THRESHOLDS
from maskc.core.problem import Direction
from maskc.core.target import TARGETS
from maskc.plan.families import sm80, sm80_backward
from maskc.plan.families.family import Along, Family
from maskc.plan.families.gather import SM80_SCORING, sm80_backward_schedule, sm80_schedule

AMPERE = Family(
    "sm80",
    {
        (Direction.forward, ""): sm80.schedule,
        (Direction.forward, CHOOSE): sm80.choose_schedule,
        (Direction.forward, GATHER): sm80_schedule,
        (Direction.backward, ""): sm80_backward.backward_schedule,
        (Direction.backward, THRESHOLDS): sm80_backward.backward_schedule,
        (Direction.backward, GATHER): sm80_backward_schedule,
    },
    along=(Along("sm_80", Direction.backward, ""),),
    limits=sm80.limits,
    by_masks=sm80.for_masks,
    gathered=((Direction.forward, GATHER), (Direction.backward, GATHER)),
    scoring=SM80_SCORING,
    device_data=True,
    topk_shared_bytes=TARGETS["sm_80"].shared_memory,
)
