"""Context parallelism planned from the mask: one sequence on several ranks.

`plan` needs neither a GPU nor torch; the rest runs on torch.distributed, NCCL or gloo.
"""

from typing import TYPE_CHECKING, Any

from maskc.distributed.attending import attention as attention
from maskc.distributed.layouts import zigzag as zigzag
from maskc.distributed.network import Network as Network
from maskc.distributed.parallel import context_parallel as context_parallel
from maskc.distributed.parallel import load_balancer as load_balancer
from maskc.distributed.parallel import model_inputs as model_inputs
from maskc.distributed.parallel import model_masks as model_masks
from maskc.distributed.parallel import sum_gradients as sum_gradients
from maskc.distributed.planning import Plan as Plan
from maskc.distributed.planning import plan as plan
from maskc.distributed.shards import position_ids as position_ids
from maskc.distributed.shards import roll as roll
from maskc.distributed.shards import shard as shard
from maskc.distributed.shards import unshard as unshard

if TYPE_CHECKING:
    ContextParallel: Any


def __getattr__(name: str) -> object:
    """ContextParallel derives from a class of torch, which is loaded when it is asked for."""
    if name == "ContextParallel":
        return context_parallel()
    raise AttributeError(f"module 'maskc.distributed' has no attribute {name!r}")
