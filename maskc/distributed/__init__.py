"""Context parallelism planned from the mask: one sequence on several ranks.

`plan` needs neither a GPU nor torch; `attention` runs on torch.distributed.
"""

from maskc.distributed.network import Network as Network
from maskc.distributed.planning import Plan as Plan
from maskc.distributed.planning import plan as plan
