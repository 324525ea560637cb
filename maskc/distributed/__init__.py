"""Context parallelism planned from the mask: one sequence on several ranks.

`plan` needs neither a GPU nor torch; the rest runs on torch.distributed, NCCL or gloo.
"""

from maskc.distributed.attending import attention as attention
from maskc.distributed.network import Network as Network
from maskc.distributed.planning import Plan as Plan
from maskc.distributed.planning import plan as plan
from maskc.distributed.shards import position_ids as position_ids
from maskc.distributed.shards import roll as roll
from maskc.distributed.shards import shard as shard
from maskc.distributed.shards import unshard as unshard
