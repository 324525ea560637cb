"""Evidence for a mask: its losses, in three layers. Each layer says what it cannot show.

1. `information_loss`: retained attention, output error and divergence on real q, k and v, exact.
2. `evaluate`: perplexity of a language model with the mask and without training, ablations,
    retrieval, with intervals and tests.
3. `train`: small models trained with the mask, compared with models trained without.

Results are frozen values with `to_json` and `from_json`. Importing this loads no torch.
Users import the names from `maskc.evaluate`.
"""

from maskc.lab.evaluate.ablations import ablations as ablations
from maskc.lab.evaluate.ablations import permuted as permuted
from maskc.lab.evaluate.evaluating import Candidate as Candidate
from maskc.lab.evaluate.evaluating import Inputs as Inputs
from maskc.lab.evaluate.evaluating import evaluate as evaluate
from maskc.lab.evaluate.families import FAMILIES as FAMILIES
from maskc.lab.evaluate.families import Solved as Solved
from maskc.lab.evaluate.families import at_budget as at_budget
from maskc.lab.evaluate.information import information_loss as information_loss
from maskc.lab.evaluate.models import load as load
from maskc.lab.evaluate.models import losses as losses
from maskc.lab.evaluate.results import Evaluated as Evaluated
from maskc.lab.evaluate.results import Evaluation as Evaluation
from maskc.lab.evaluate.results import InformationLoss as InformationLoss
from maskc.lab.evaluate.results import Interval as Interval
from maskc.lab.evaluate.results import LayerLoss as LayerLoss
from maskc.lab.evaluate.results import Perplexity as Perplexity
from maskc.lab.evaluate.results import Retrieval as Retrieval
from maskc.lab.evaluate.results import Trained as Trained
from maskc.lab.evaluate.tensors import LayerTensors as LayerTensors
from maskc.lab.evaluate.tensors import Tensors as Tensors
from maskc.lab.evaluate.tensors import capture as capture
from maskc.lab.evaluate.tensors import read_npz as read_npz
from maskc.lab.evaluate.tensors import tensors as tensors
from maskc.lab.evaluate.training import Recipe as Recipe
from maskc.lab.evaluate.training import Task as Task
from maskc.lab.evaluate.training import train as train
