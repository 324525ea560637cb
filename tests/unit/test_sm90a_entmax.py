"""The entmax kernels for Hopper compile under NVRTC without a spill, and run as they should.

No GPU is needed; tests/gpu/test_entmax_hopper.py judges their numbers.
"""

from __future__ import annotations

import pytest

from maskc.core.problem import Feature
from tests.support import sass
from tests.unit import test_sm90a_sources as sources
from tests.unit.test_sm90a_sources import FORWARD, MIXED, Job, gate, unit

ENTMAX = frozenset({Feature.entmax})
LOGITS = frozenset({Feature.softcap, Feature.alibi})


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Passes have nothing to overlap: what the gate asks of a softmax does not hold."""
    monkeypatch.setattr(sources, "overlap_faults", lambda job, main: [])


@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
def test_sources(head_dim: int) -> None:
    units = [unit(name, FORWARD, head_dim) for name in MIXED[FORWARD]]
    gate([Job(u, features, "usual") for u in units for features in (ENTMAX, ENTMAX | LOGITS)])


def test_float16() -> None:
    gate([Job(unit("causal", FORWARD, 64, "float16"), ENTMAX, "usual")])


def test_weights_of_alpha_three_halves_take_few_instructions() -> None:
    """The mask's product by one fused and saturating instruction; powers only for other alphas."""
    if sass.disassembler() is None:
        pytest.skip("nvdisasm comes with the nvidia-cuda-nvdisasm wheel")
    from maskc.build import build

    source = unit("causal", FORWARD, 64)
    main = sass.functions(sass.disassemble(build(source, ENTMAX, source.directions).code))
    text = main["attention_forward"]
    scores = source.tile.k // 2
    kinds, sweeps = 4, 3  # the fourth kind has no x; a first, a middle and a last pass
    assert sass.count(text, r"FFMA\.SAT") == (kinds - 1) * sweeps * scores
    assert sass.count(text, "FMNMX") >= scores
