"""Entmax on random masks, in C and in NumPy, against the fp64 reference."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import maskc as mc
from maskc import driver
from maskc.core import expr as E
from maskc.core.abi import MAX_ARRAYS
from maskc.core.target import TARGETS
from maskc.runtime import FallbackWarning
from maskc.testing.strategies import masks
from maskc.verify.samples import sample_data
from tests.support.cpu_harness import NUMPY
from tests.support.entmax_oracle import Problem
from tests.support.thorough import examples

SIZES = [(0, 0), (1, 1), (63, 63), (64, 64), (65, 65), (40, 150), (150, 40), (129, 128), (1, 90)]
HEADS = 8
"""Each with a random mask of its own: compiling takes longest, and all are in one source."""
ALPHAS = st.one_of(st.sampled_from([1.5, 2.0]), st.floats(1.0, 2.0, exclude_min=True))


@pytest.fixture(params=["c", "numpy"])
def path(request, monkeypatch) -> str:
    """The compiled kernel, and its stand-in."""
    if request.param == "numpy":
        monkeypatch.setenv("CC", "/nowhere/cc")
    return request.param


def arrays_read(mask: mc.Mask) -> int:
    heads = [driver.lowered(mask, head, HEADS).keep for head in range(HEADS)]
    return len({name for keep in heads for name in E.arrays(keep)})


def tensors(rng: np.random.Generator, n_q: int, n_kv: int, dim: int) -> tuple[np.ndarray, ...]:
    """q with HEADS heads, k and v with half as many."""
    shapes = ((1, HEADS, n_q, dim), *((1, HEADS // 2, n_kv, dim),) * 2)
    return tuple(rng.standard_normal(shape, dtype=np.float32) for shape in shapes)


@settings(max_examples=examples(6))
@given(st.data(), st.lists(masks(max_depth=2), min_size=HEADS, max_size=HEADS))
def test_random_masks_forward_and_backward(path, data, parts):
    mask = mc.per_head(parts)
    assume(arrays_read(mask) <= MAX_ARRAYS)
    dtype = data.draw(st.sampled_from(TARGETS["cpu"].dtypes))
    attn = mask.compile(head_dim=20, dtype=dtype.value, n_heads=HEADS, target="cpu")
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 16)))
    options = data.draw(
        st.sampled_from([{}, {"softcap": 2.0}, {"alibi_slopes": rng.random(HEADS)}])
    )
    if "alibi_slopes" in options:
        options["alibi_slopes"] = options["alibi_slopes"].astype(np.float32)
    for n_q, n_kv in data.draw(st.lists(st.sampled_from(SIZES), min_size=3, max_size=3)):
        alpha = data.draw(ALPHAS)
        given_data = sample_data(mask, n_q, n_kv, seed=data.draw(st.integers(0, 99)))
        dense = np.broadcast_to(mask.dense(n_q, n_kv, n_heads=HEADS, **given_data),
                                (HEADS, n_q, n_kv))  # fmt: skip
        q, k, v = (x.astype(NUMPY[dtype]) for x in tensors(rng, n_q, n_kv, 20))
        dout = rng.standard_normal(q.shape).astype(q.dtype)
        call = {"normalizer": "entmax", "alpha": alpha, **options, **given_data}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            out, lse = attn(q, k, v, return_lse=True, **call)
            gradients = attn.backward(q, k, v, out, lse, dout, **call)
        alpha_used = 1 + float(np.float32(alpha - 1))
        problem = Problem(q, k, v, dense, dout, alpha_used, options)
        problem.check_forward(out, lse)
        names = ["dq", "dk", "dv", *(["dalibi"] if "alibi_slopes" in options else [])]
        problem.check_backward(dict(zip(names, gradients, strict=True)))
