"""The sm_90a family: WGMMA and TMA kernels for Hopper."""

from __future__ import annotations

from functools import partial

from maskc.core.forms import CHOOSE, GATHER, MEDIUM, SMALL, THRESHOLDS, TINY, TOGETHER, WIDE
from maskc.core.problem import Direction
from maskc.core.target import TARGETS
from maskc.plan.families import gather, sm90a, sm90a_mma16
from maskc.plan.families.family import Along, Family
from maskc.plan.families.sm90a_backward import backward_schedule, small_backward_schedule

_FORWARD, _BACKWARD = Direction.forward, Direction.backward


HOPPER = Family(
    "sm90a",
    {
        (_FORWARD, ""): sm90a.forward_schedule,
        (_FORWARD, MEDIUM): sm90a.medium_schedule,
        (_FORWARD, SMALL): sm90a.small_schedule,
        (_FORWARD, TINY): sm90a_mma16.forward_schedule,
        (_FORWARD, CHOOSE): sm90a.choose_schedule,
        (_FORWARD, GATHER): partial(gather.gather_schedule, wide=False),
        (_FORWARD, WIDE): partial(gather.gather_schedule, wide=True),
        (_BACKWARD, ""): backward_schedule,
        (_BACKWARD, THRESHOLDS): partial(backward_schedule, thresholds=True),
        (_BACKWARD, SMALL): small_backward_schedule,
        (_BACKWARD, TOGETHER): partial(small_backward_schedule, separate_dq=False),
        (_BACKWARD, TINY): sm90a_mma16.backward_schedule,
        (_BACKWARD, GATHER): gather.backward_schedule,
    },
    limits=sm90a.limits,
    along=(
        Along("sm_90a", _FORWARD, MEDIUM),
        Along("sm_90a", _FORWARD, SMALL),
        Along("sm_90a", _FORWARD, TINY),
        Along("sm_90a", _BACKWARD, ""),
        Along("sm_90a", _BACKWARD, SMALL),
        Along("sm_90a", _BACKWARD, TINY),
        Along("sm_80", _FORWARD, ""),
    ),
    head_dims={
        MEDIUM: sm90a.MEDIUM_HEAD_DIMS,
        SMALL: sm90a.SMALL_HEAD_DIMS,
        TINY: sm90a_mma16.HEAD_DIMS,
    },
    tables=True,
    grid=sm90a.grid_schedules,
    gathered=((_FORWARD, GATHER), (_FORWARD, WIDE), (_BACKWARD, GATHER)),
    scoring=gather.SM90A_SCORING,
    device_documents=True,
    device_data=True,
    topk_shared_bytes=TARGETS["sm_90a"].shared_memory,
)
