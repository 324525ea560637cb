"""Evidence for a mask: the public names of `maskc.lab.evaluate`.

1. `information_loss`: retained attention, output error and divergence on real q, k and v, exact.
2. `evaluate`: perplexity of a language model with the mask and without training, ablations,
    retrieval, with intervals and tests.
3. `train`: small models trained with the mask, compared with models trained without.

Results are frozen values with `to_json` and `from_json`. Importing this loads no torch.
"""

import sys

from maskc.lab.evaluate import (
    FAMILIES,
    Candidate,
    Evaluated,
    Evaluation,
    InformationLoss,
    Inputs,
    Interval,
    LayerLoss,
    LayerTensors,
    Perplexity,
    Recipe,
    Retrieval,
    Solved,
    Task,
    Tensors,
    Trained,
    ablations,
    at_budget,
    capture,
    evaluate,
    information_loss,
    load,
    losses,
    permuted,
    read_npz,
    tensors,
    train,
)
from maskc.lab.evaluate import matrices as matrices
from maskc.lab.evaluate import statistics as statistics
from maskc.lab.evaluate import texts as texts

__all__ = [
    "FAMILIES",
    "Candidate",
    "Evaluated",
    "Evaluation",
    "InformationLoss",
    "Inputs",
    "Interval",
    "LayerLoss",
    "LayerTensors",
    "Perplexity",
    "Recipe",
    "Retrieval",
    "Solved",
    "Task",
    "Tensors",
    "Trained",
    "ablations",
    "at_budget",
    "capture",
    "evaluate",
    "information_loss",
    "load",
    "losses",
    "permuted",
    "read_npz",
    "tensors",
    "train",
]

# Programs also import from these files by name.
for _file in ("ablations", "matrices", "statistics", "tensors", "texts"):
    sys.modules[f"{__name__}.{_file}"] = sys.modules[f"maskc.lab.evaluate.{_file}"]
