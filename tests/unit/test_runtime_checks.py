"""Every refusal of a call comes before any launch, and names the argument and the numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import maskc as mc
from maskc.core.errors import (
    BadLength,
    BadOption,
    BadShape,
    DataMissing,
    DataRange,
    DataShape,
    DataType,
    DataUnknown,
    DTypeUnsupported,
    HeadsDoNotDivide,
    Misaligned,
    NotAnArray,
    NotContiguous,
    TargetNotBuilt,
    WrongDevice,
    WrongDType,
)
from maskc.core.expr_text import parse_expr
from maskc.core.problem import Direction, Problem, TileShape
from maskc.core.target import TARGETS
from maskc.core.tensors import Array, contiguous
from maskc.dispatch import checks
from maskc.runtime import CompiledMask
from maskc.runtime.launch.kernels import Kernels
from tests.support.bundles import bundle, cpu_unit

F4 = np.float32


def zeros(*shape, dtype=F4):
    return np.zeros(shape, dtype)


@pytest.fixture(scope="module")
def mask() -> CompiledMask:
    return CompiledMask(bundle("band"), "cpu")


@pytest.fixture(autouse=True)
def no_launch(monkeypatch):
    """A refused call must not get as far as building a kernel."""

    def unexpected(*_):
        pytest.fail("a kernel was asked for")

    monkeypatch.setattr(Kernels, "_make", unexpected)


GOOD = {"q": zeros(2, 4, 5, 32), "k": zeros(2, 2, 7, 32), "v": zeros(2, 2, 7, 48)}
REFUSED = {
    "three dimensions": ({"q": zeros(4, 5, 32)}, BadShape, "q has shape (4, 5, 32)"),
    "batch": ({"k": zeros(3, 2, 7, 32)}, BadShape, "k has shape (3, 2, 7, 32), expected (2, 2,"),
    "head_dim": ({"q": zeros(2, 4, 5, 64)}, BadShape, "(as compiled with head_dim=32)"),
    "head_dim of k": ({"k": zeros(2, 2, 7, 16)}, BadShape, "k has shape (2, 2, 7, 16)"),
    "head_dim_v": ({"v": zeros(2, 2, 7, 32)}, BadShape, "expected (2, 2, 7, 48)"),
    "tokens of v": ({"v": zeros(2, 2, 8, 48)}, BadShape, "v has shape (2, 2, 8, 48)"),
    "heads": (
        {"k": zeros(2, 3, 7, 32), "v": zeros(2, 3, 7, 48)}, HeadsDoNotDivide,
        "q has 4 heads and k has 3",
    ),
    "no key heads": (
        {"k": zeros(2, 0, 7, 32), "v": zeros(2, 0, 7, 48)}, HeadsDoNotDivide, "k has 0",
    ),
    "dtype": (
        {"q": zeros(2, 4, 5, 32, dtype=np.float64)}, WrongDType,
        "q is float64, but this kernel was compiled for float32",
    ),
    "dtype of v": ({"v": zeros(2, 2, 7, 48, dtype=np.int8)}, WrongDType, "v is int8"),
    "byte order": ({"k": zeros(2, 2, 7, 32, dtype=">f4")}, WrongDType, "k is >f4"),
    "last dimension": (
        {"q": zeros(2, 4, 5, 64)[..., ::2]}, NotContiguous, "of q has stride 2, it must be 1",
    ),
    "softcap": ({"softcap": 0}, BadOption, "softcap must be a number in 1e-30 .. 1e+30, found 0"),
    "negative softcap": ({"softcap": -1.5}, BadOption, "found -1.5"),
    "scale": ({"scale": float("inf")}, BadOption, "scale must be a finite number, found inf"),
    "scale beyond fp32": ({"scale": 1e39}, BadOption, "must be a finite number, found 1e+39"),
    "softcap below fp32": ({"softcap": 1e-50}, BadOption, "in 1e-30 .. 1e+30, found 1e-50"),
    "denormal softcap": ({"softcap": 1e-40}, BadOption, "in 1e-30 .. 1e+30, found 1e-40"),
    "softcap far below scale": (
        {"softcap": 1e-25, "scale": 1e10}, BadOption, "softcap must be at least 1e-20 with scale=",
    ),
    "scale beyond fp64": ({"scale": 10**400}, BadOption, "a finite number, found one beyond"),
    "scale minus infinity": ({"scale": -float("inf")}, BadOption, "found -inf"),
    "scale nan": ({"scale": float("nan")}, BadOption, "found nan"),
    "scale text": ({"scale": "1"}, BadOption, "found str '1'"),
    "scale bool": ({"scale": True}, BadOption, "found bool True"),
    "slopes": (
        {"alibi_slopes": zeros(3)}, BadShape,
        "alibi_slopes has shape (3,), expected (4,), one per head of q",
    ),
    "slopes 2-D": ({"alibi_slopes": zeros(2, 2)}, BadShape, "alibi_slopes has shape (2, 2)"),
    "sinks dtype": (
        {"sink_logits": zeros(4, dtype=np.float16)}, WrongDType, "sink_logits is float16",
    ),
    "sinks stride": ({"sink_logits": zeros(8)[::2]}, NotContiguous, "has stride 2"),
    "sinks list": ({"sink_logits": [0.0] * 4}, NotAnArray, "sink_logits is a list"),
    "unknown keyword": ({"window": 3}, DataUnknown, "no data or parameter named 'window'"),
    "parameter": ({"w": 1.5}, DataType, "'w' has dtype float, expected an integer"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(mask, name):
    change, error, text = REFUSED[name]
    given = GOOD | change
    args = [given.pop(key) for key in "qkv"]
    with pytest.raises(error) as caught:
        mask(*args, **given)
    assert text in str(caught.value)
    assert caught.value.at is not None


BACKWARD = GOOD | {"out": zeros(2, 4, 5, 48), "lse": zeros(2, 4, 5), "dout": zeros(2, 4, 5, 48)}
REFUSED_BACKWARD = {
    "out": ({"out": zeros(2, 4, 5, 32)}, BadShape, "out has shape (2, 4, 5, 32), expected (2, 4"),
    "dout": ({"dout": zeros(2, 4, 6, 48)}, BadShape, "dout has shape"),
    "dout dtype": ({"dout": zeros(2, 4, 5, 48, dtype=np.float64)}, WrongDType, "dout is float64"),
    "dout expanded": (
        {"dout": np.broadcast_to(F4(1), (2, 4, 5, 48))}, NotContiguous, "dout has stride 0",
    ),
    "lse": ({"lse": zeros(2, 5, 4)}, BadShape, "lse has shape (2, 5, 4), expected (2, 4, 5)"),
    "lse dtype": ({"lse": zeros(2, 4, 5, dtype=np.float64)}, WrongDType, "lse is float64"),
    "lse order": (
        {"lse": zeros(4, 2, 5).swapaxes(0, 1)}, BadOption, "lse must be contiguous, as the",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED_BACKWARD)
def test_refused_backward(mask, name):
    change, error, text = REFUSED_BACKWARD[name]
    given = BACKWARD | change
    with pytest.raises(error) as caught:
        mask.backward(*(given[key] for key in ("q", "k", "v", "out", "lse", "dout")))
    assert text in str(caught.value)


def test_data_missing_and_of_the_wrong_length():
    mask = CompiledMask(bundle("documents"), "cpu")
    with pytest.raises(DataMissing, match="needs 'doc'"):
        mask(*GOOD.values())
    with pytest.raises(DataShape):
        mask(*GOOD.values(), doc=(np.zeros(5, int), np.zeros(6, int)))
    with pytest.raises(DataShape, match=r"expected 2 \(the sequences of q\) or 1 in place of 3"):
        mask(*GOOD.values(), doc=(np.zeros((3, 5), int), np.zeros(7, int)))
    with pytest.raises(BadShape, match="q has shape"):
        mask(GOOD["q"][0], GOOD["k"], GOOD["v"], doc=np.zeros(5, int))


def test_a_table_for_another_number_of_heads():
    mask = CompiledMask(bundle("table"), "cpu")
    doc = (np.zeros(5, int), np.zeros(7, int))
    with pytest.raises(DataShape, match=r"expected 4 \(the heads of q\) or 1 in place of 3"):
        mask(*GOOD.values(), doc=doc, blocks=np.zeros((3, 1, 1), bool))


@pytest.mark.parametrize(("shape", "what"), [
    ((3, 8, 2), r"\(3, 8, 2\), expected 2 \(the heads of q\) or 1 in place of 3"),
    ((3, 2, 8, 5), r"\(3, 2, 8, 5\), expected 1 \(the sequences of q\) in place of 3"),
])  # fmt: skip
def test_lists_of_keys_for_other_heads_and_sequences(shape, what):
    attn = mc.key_lists("near").compile(16, dtype="float32", target="cpu")
    q = np.zeros((1, 2, 8, 16), np.float32)
    with pytest.raises(DataShape, match=f"'near' has shape {what}"):
        attn(q, q, q, near=np.zeros(shape, int))


def test_a_constant_beyond_64_bits():
    """One beyond 32 bits runs in the 64-bit form, see test_integers."""
    made = bundle("band")
    big = replace(made.variants[0], args=(parse_expr("4000000000000 * param('w', 20)"),))
    mask = CompiledMask(replace(made, variants=(big,)), "cpu")
    with pytest.raises(DataRange):
        mask(*GOOD.values(), w=1000000000)


# ------------------------------------------------------------------ what no host array can show


HALF = Problem(64, 64, bundle("band", dtype="bfloat16").problem.dtype)
CUDA = TARGETS["sm_80"]


def on_gpu(*shape, pointer=4096, strides=None, device=("cuda", 0)):
    return Array(pointer, shape, strides or contiguous(shape), "bfloat16", device)


def gpu_inputs(**change):
    given = {"q": on_gpu(2, 4, 5, 64), "k": on_gpu(2, 2, 7, 64), "v": on_gpu(2, 2, 7, 64)}
    return {**given, **change}.values()


def test_cuda_inputs_pass():
    sizes = checks.check_inputs(*gpu_inputs(), HALF, CUDA)
    assert sizes == checks.Sizes(2, 4, 2, 5, 7)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"q": on_gpu(2, 4, 5, 64, device=("cpu", 0))}, WrongDevice,
         "q is on cpu, but sm_80 runs on cuda"),
        ({"v": on_gpu(2, 2, 7, 64, device=("cuda", 1))}, WrongDevice,
         "v is on cuda:1, but this call runs on cuda:0"),
        ({"k": on_gpu(2, 2, 7, 64, pointer=4104)}, Misaligned, "not multiples of 16 bytes"),
        ({"k": on_gpu(2, 2, 7, 64, strides=(1000, 500, 68, 1))}, Misaligned, "or strides of k are"),
        ({"q": on_gpu(2, 4, 1 << 31, 64)}, BadLength, "n_q must be an integer in 0..1073741824"),
    ],
)  # fmt: skip
def test_cuda_inputs_refused(change, error, text):
    with pytest.raises(error) as caught:
        checks.check_inputs(*gpu_inputs(**change), HALF, CUDA)
    assert text in str(caught.value)


def test_a_size_one_dimension_may_have_any_stride():
    odd = on_gpu(2, 4, 1, 64, strides=(256, 64, 3, 1))
    checks.check_inputs(*gpu_inputs(q=odd), HALF, CUDA)


def test_a_grid_has_a_limit():
    sizes = checks.Sizes(1 << 16, 64, 64, 1 << 16, 1)
    with pytest.raises(BadShape, match=r"at most 2\^31 - 1 blocks of 64 queries"):
        checks.check_grid(sizes, TileShape(64, 64), on_gpu(1 << 16, 64, 1 << 16, 64))


def test_a_cpu_tensor_for_a_cuda_kernel():
    unit = replace(cpu_unit("bfloat16", 64, 64), target="sm_80")
    mask = CompiledMask(bundle("band", dtype="bfloat16", head_dim=64, head_dim_v=64, units=(unit,)))
    q = zeros(1, 1, 8, 64).astype(np.float32)
    with pytest.raises(WrongDevice, match="q is on cpu, but sm_80 runs on cuda"):
        mask(q, q, q)


# ------------------------------------------------------------------ targets


def test_a_target_that_lacks_the_dtype():
    unit = replace(cpu_unit(), target="sm_80")
    with pytest.raises(DTypeUnsupported):
        CompiledMask(bundle("band", units=(unit,)), "sm_80")


def test_no_backward_on_a_target_says_so(monkeypatch):
    forward = replace(TARGETS["sm_80"], directions=(Direction.forward,))
    monkeypatch.setitem(TARGETS, "sm_80", forward)
    unit = replace(cpu_unit("bfloat16", 64, 64), target="sm_80")
    mask = CompiledMask(bundle("band", dtype="bfloat16", head_dim=64, head_dim_v=64, units=(unit,)))
    with pytest.raises(TargetNotBuilt, match="sm_80 has no backward kernels yet"):
        mask.backward(*([None] * 6))


def test_unknown_features():
    mask = CompiledMask(bundle("band"), "cpu")
    with pytest.raises(BadOption, match="names from softcap, alibi, sinks, entmax, nan_safe"):
        mask.warmup(["dropouts"])
