"""Evidence for a mask: its losses, in three layers. Each layer says what it cannot show.

1. `information_loss`: retained attention, output error and divergence on real q, k and v, exact.
2. `evaluate`: perplexity of a language model with the mask and without training, ablations,
    retrieval, with intervals and tests.
3. `train`: small models trained with the mask, compared with models trained without.

Results are frozen values with `to_json` and `from_json`. Importing this loads no torch.
Users import the names from `maskc.evaluate`.
"""

from maskc.lab.evaluate.ablations import ablations, permuted
from maskc.lab.evaluate.evaluating import Candidate, Inputs, evaluate
from maskc.lab.evaluate.families import FAMILIES, Solved, at_budget
from maskc.lab.evaluate.information import information_loss
from maskc.lab.evaluate.models import load, losses
from maskc.lab.evaluate.results import (
    Evaluated,
    Evaluation,
    InformationLoss,
    Interval,
    LayerLoss,
    Perplexity,
    Retrieval,
    Trained,
)
from maskc.lab.evaluate.tensors import LayerTensors, Tensors, capture, read_npz, tensors
from maskc.lab.evaluate.training import Recipe, Task, train

__all__ = [
    "FAMILIES", "Candidate", "Evaluated", "Evaluation", "InformationLoss", "Inputs", "Interval",
    "LayerLoss", "LayerTensors", "Perplexity", "Recipe", "Retrieval", "Solved", "Task", "Tensors",
    "Trained", "ablations", "at_budget", "capture", "evaluate", "information_loss", "load",
    "losses", "permuted", "read_npz", "tensors", "train",
]  # fmt: skip
