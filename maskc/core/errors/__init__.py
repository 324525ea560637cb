"""One class per mistake: a code, a place, what was found, what to do.

A class holds a message template and a hint; the base formats them. Raise as `NegativeWidth("left",
-3, at=loc)`: positional arguments fill the template in order.
Codes: MC1xx the mask language, MC2xx pattern files, MC3xx lengths and data at call time. MC4xx
tensors and options of a call, MC5xx targets and builds, MC6xx command line and models of other
libraries. MC64x caches for decoding, MC72x the explorer, MC73x evaluations, MC75x reports.
"""

# ruff: noqa: F403  (the classes of all rooms, by one name)

from maskc.core.errors.base import *
from maskc.core.errors.builds import *
from maskc.core.errors.calls import *
from maskc.core.errors.evidence import *
from maskc.core.errors.language import *
from maskc.core.errors.models import *
from maskc.core.errors.scale import *
