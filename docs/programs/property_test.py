"""Test your own pattern against its definition, and its kernels against dense attention."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import maskc as mc
from maskc import testing


@mc.pattern
def dialogue(*, window: int = 40, n_system: int = 10) -> mc.Mask:
    """Causal: the own turn of a token, a window, and the system prompt."""
    return mc.causal() & (mc.documents("turn") | mc.window(window) | mc.sinks(n_system))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 80), st.integers(0, 50), st.integers(0, 12), st.randoms())
def test_the_mask_matches_its_definition(n, window, n_system, random):
    turn = np.sort([random.randrange(5) for _ in range(n)])
    kept = dialogue(window=window, n_system=n_system).dense(n, turn=turn)
    for q in range(n):
        for k in range(n):
            near = turn[q] == turn[k] or q - k <= window or k < n_system
            assert kept[q, k] == (k <= q and near)


def test_the_kernels_compute_it():
    """Random lengths, batches, grouped heads, strides and data, forward and backward."""
    testing.check(dialogue, target="cpu", head_dim=16)


if __name__ == "__main__":
    test_the_mask_matches_its_definition()
    test_the_kernels_compute_it()
    print("both tests pass")
