"""Evidence for a mask: the public names of `maskc.lab.evaluate`.

1. `information_loss`: retained attention, output error and divergence on real q, k and v, exact.
2. `evaluate`: perplexity of a language model with the mask and without training, ablations,
    retrieval, with intervals and tests.
3. `train`: small models trained with the mask, compared with models trained without.

Results are frozen values with `to_json` and `from_json`. Importing this loads no torch.
"""

import sys

from maskc.lab.evaluate import *  # noqa: F403 - its __all__
from maskc.lab.evaluate import __all__ as __all__
from maskc.lab.evaluate import matrices as matrices
from maskc.lab.evaluate import statistics as statistics
from maskc.lab.evaluate import texts as texts

# Programs also import from these files by name.
for _file in ("ablations", "matrices", "statistics", "tensors", "texts"):
    sys.modules[f"{__name__}.{_file}"] = sys.modules[f"maskc.lab.evaluate.{_file}"]
