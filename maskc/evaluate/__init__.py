"""Evidence for a mask: what it loses, in three layers, each of which says what it cannot show.

1. `information_loss`: retained attention, output error and divergence on real q, k and v, exact.
2. `evaluate`: perplexity of a language model with the mask and without training, ablations,
   retrieval, with intervals and tests.
3. `train`: small models trained with the mask beside models trained without.

Results are frozen values with `to_json` and `from_json`. Importing this loads no torch.
"""

from maskc.evaluate.ablations import ablations as ablations
from maskc.evaluate.ablations import permuted as permuted
from maskc.evaluate.evaluating import Candidate as Candidate
from maskc.evaluate.evaluating import Inputs as Inputs
from maskc.evaluate.evaluating import evaluate as evaluate
from maskc.evaluate.families import FAMILIES as FAMILIES
from maskc.evaluate.families import Solved as Solved
from maskc.evaluate.families import at_budget as at_budget
from maskc.evaluate.information import information_loss as information_loss
from maskc.evaluate.models import load as load
from maskc.evaluate.models import losses as losses
from maskc.evaluate.results import Evaluated as Evaluated
from maskc.evaluate.results import Evaluation as Evaluation
from maskc.evaluate.results import InformationLoss as InformationLoss
from maskc.evaluate.results import Interval as Interval
from maskc.evaluate.results import LayerLoss as LayerLoss
from maskc.evaluate.results import Perplexity as Perplexity
from maskc.evaluate.results import Retrieval as Retrieval
from maskc.evaluate.results import Trained as Trained
from maskc.evaluate.tensors import LayerTensors as LayerTensors
from maskc.evaluate.tensors import Tensors as Tensors
from maskc.evaluate.tensors import capture as capture
from maskc.evaluate.tensors import read_npz as read_npz
from maskc.evaluate.tensors import tensors as tensors
from maskc.evaluate.training import Recipe as Recipe
from maskc.evaluate.training import Task as Task
from maskc.evaluate.training import train as train
