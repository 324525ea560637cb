"""Rivals without their hardware: how FlashAttention 4 is asked, turns on a GPU, compiling ahead."""

from __future__ import annotations

import multiprocessing
import sys
import types
from importlib.util import find_spec

import numpy as np
import pytest

import maskc as mc
from benchmarks import fa4, prepare
from benchmarks.contest import Ask
from benchmarks.fa4 import form_of
from benchmarks.rivals import maskc_contenders
from benchmarks.run import bench_case
from maskc.core.dtypes import DType
from maskc.core.target import Target
from maskc.lab.rivals import Missing
from maskc.verify import timing
from maskc.verify.case import Case
from maskc.verify.case_tensors import make_tensors
from maskc.verify.timing import Timed, lead_for, take_turns
from tests.support.thorough import more

needs_torch = pytest.mark.skipif(not find_spec("torch"), reason="the rivals are PyTorch's")


def case_of(mask: mc.Mask, **data) -> Case:
    return Case("c", mask, 2, 4, 2, 60, 60, 16, DType.float32, data)


# ------------------------------------------------------------------ FlashAttention 4


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch):
    """flash_attn.cute in SDPA's clothes: [B, N, H, D], windows as pairs, (out, lse) returned."""
    import torch

    def flash_attn_func(q, k, v, softmax_scale, causal=False, window_size=(None, None)):
        distance = torch.arange(q.shape[1])[:, None] - torch.arange(k.shape[1])
        left, right = window_size
        keep = torch.ones_like(distance, dtype=torch.bool)
        if causal or right is not None:
            keep &= -distance <= (0 if causal else right)
        if left is not None:
            keep &= distance <= left
        out = torch.nn.functional.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in (q, k, v)), attn_mask=keep, scale=softmax_scale,
            enable_gqa=True,
        )  # fmt: skip
        return out.transpose(1, 2).contiguous(), None

    def flash_attn_varlen_func(q, k, v, softmax_scale, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
                               max_seqlen_k, causal):  # fmt: skip
        assert cu_seqlens_q is cu_seqlens_k
        lengths = cu_seqlens_q.diff()
        assert q.shape == (lengths.sum(), *q.shape[1:])
        assert (max_seqlen_q, max_seqlen_k) == (lengths.max(), lengths.max())
        window = None, 0 if causal else None
        parts = zip(*(x[None].split(lengths.tolist(), 1) for x in (q, k, v)), strict=True)
        outs = [flash_attn_func(*x, softmax_scale, window_size=window)[0] for x in parts]
        return torch.cat(outs, 1)[0], None

    names = ("flash_attn", "flash_attn.cute", "flash_attn.cute.interface")
    for name in names:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules[names[-1]].flash_attn_func = flash_attn_func
    sys.modules[names[-1]].flash_attn_varlen_func = flash_attn_varlen_func
    monkeypatch.setattr(fa4, "installed", lambda: True)


IDS = np.repeat([[3, 4, 7], [0, 0, 1]], 20, axis=1)


@needs_torch
@pytest.mark.parametrize(
    ("mask", "data"),
    [
        more(mc.full(), {}),
        (mc.causal(), {}),
        more(mc.window.hf(9), {}),
        (mc.window(7, 3), {}),
        more(mc.window(None, 5), {}),
        (mc.documents("x") & mc.causal(), {"x": IDS}),
        more(mc.documents("x"), {"x": IDS[0]}),
    ],
)
def test_fa4_is_asked_for_the_mask(mask: mc.Mask, data: dict, pretended: None, monkeypatch):
    monkeypatch.setattr("benchmarks.contest.GPU_ONLY", ())
    ask = Ask(Target.named("cpu"), impls=("maskc", "fa4"), repeats=1)
    rows = bench_case(case_of(mask, **data), ask).rows
    assert [(r["impl"], r["direction"], r["ok"]) for r in rows] == [
        ("maskc", "fwd", True), ("fa4", "fwd", True), ("maskc", "bwd", True), ("fa4", "bwd", True)
    ]  # fmt: skip


def test_fa4_has_no_words_for_other_masks():
    assert fa4.options(form_of(case_of(mc.causal() | mc.prefix(3)))) is None
    assert fa4.options(form_of(case_of(mc.documents("x") & mc.window(7), x=IDS))) is None
    assert fa4.options(form_of(case_of(mc.flags("x"), x=IDS > 0))) is None
    assert fa4.options(form_of(case_of(mc.window.hf(9)))) == {
        "causal": True, "window_size": (8, 0)
    }  # fmt: skip


@needs_torch
def test_a_missing_package_is_said_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("benchmarks.contest.GPU_ONLY", ())
    monkeypatch.setattr(fa4, "installed", lambda: False)
    monkeypatch.setattr("benchmarks.fa4.installed", lambda: False)
    case = case_of(mc.causal())
    with pytest.raises(Missing):
        fa4.fa4_contender(case, make_tensors(case, "cpu"), True)
    ask = Ask(Target.named("cpu"), ("fwd",), ("fa4", "flex_flash"), repeats=1)
    found = bench_case(case, ask)
    assert found.rows == []
    assert found.notes == [f"fa4: {fa4.MISSING}", f"flex_flash: {fa4.MISSING}"]


# ------------------------------------------------------------------ maskc itself


def test_repeatable_gradients_are_asked_for_on_a_gpu():
    asked: list[dict] = []

    class Attn:
        def __call__(self, *tensors, return_lse: bool, **data):
            return "out", "lse"

        def backward(self, *tensors, **options):
            asked.append(options)
            return tensors[3:]

    case = case_of(mc.causal())
    tensors = types.SimpleNamespace(qkv=(1, 2, 3), device="cuda")
    usual, repeatable = maskc_contenders(case, tensors, Attn(), True)
    assert usual.backward("dout") == repeatable.backward("dout") == ("out", "lse", "dout")
    assert asked == [{}, {"deterministic": True}]
    assert (repeatable.key, repeatable.forward) == (("maskc", "deterministic"), None)
    assert [c.key for c in maskc_contenders(case, tensors, Attn(), False)] == [("maskc", "")]


# ------------------------------------------------------------------ turns on a GPU


def test_bursts_of_four_take_turns(monkeypatch: pytest.MonkeyPatch):
    bursts: list[tuple[str, int, float]] = []

    def burst(rival: Timed, calls: int) -> float:
        bursts.append((rival.run(), calls, rival.lead))
        return {"slow": 300.0, "fast": 1.0}[rival.run()]

    monkeypatch.setattr(timing, "_cuda_burst", burst)
    monkeypatch.setattr(timing, "_lead", lambda rival, once: once)
    rivals = {name: Timed(lambda name=name: name) for name in ("slow", "fast")}
    assert take_turns(rivals, 20, "cuda", seconds=1.0) == {"slow": 300.0, "fast": 1.0}
    rounds = bursts[2:]
    assert {burst[1:] for burst in rounds} == {(1, 300.0), (4, 1.0)}
    assert {name for name, *_ in rounds[:2]} == {name for name, *_ in rounds[2:4]} == set(rivals)
    assert [name for name, *_ in rounds].count("slow") == 3
    assert [name for name, *_ in rounds].count("fast") == 20


@needs_torch
def test_a_gpu_waits_only_for_a_slower_host():
    assert lead_for(queued=200e-6, call_ms=0.5) == 0
    assert lead_for(queued=400e-6, call_ms=0.05) == pytest.approx(1200e-6)
    assert lead_for(queued=1.0, call_ms=0.05) == 4e-3
    assert timing._lead(Timed(None), call_ms=101.0) == 0  # without a call of it


# ------------------------------------------------------------------ compiling ahead


def test_the_slowest_is_compiled_first():
    work = prepare.jobs("anchors", ["a", "b"], ("maskc", "cudnn", "flex", "fa4"), ("fwd",), "sm_80")
    assert [(case, impl) for _, case, impl, *_ in work] == [
        ("a", "fa4"), ("b", "fa4"), ("a", "flex"), ("b", "flex"), ("a", "maskc"), ("b", "maskc")
    ]  # fmt: skip
    assert work[0][3:] == (("fwd",), "sm_80")


class Results:
    def __init__(self, *found) -> None:
        self.found = list(found)

    def next(self, timeout: float):
        if not self.found or self.found[0] is None:
            raise multiprocessing.TimeoutError
        return self.found.pop(0)


def test_what_is_compiled_is_collected(monkeypatch: pytest.MonkeyPatch):
    told: list[str] = []
    some = Results(("a", "maskc", 12.0), ("a", "flex", 3.0), ("b", "maskc", None))
    assert prepare._collected(some, 3, 60, told.append) == {"a": 12.0}
    assert told[-1] == "compiling ahead: 3 of 3, maskc of b"
    monkeypatch.setattr(prepare, "_SILENCE", 0.05)
    assert prepare._collected(Results(("a", "maskc", 12.0), None), 9, 60, told.append) == {
        "a": 12.0
    }
    assert prepare._collected(Results(None), 9, 0.0, told.append) == {}


@pytest.mark.slow
def test_kernels_are_compiled_in_other_processes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prepare, "cores", lambda: 4)  # two are left alone
    work = prepare.jobs("anchors", ["full_8k", "blockdiag16_4k"], ("maskc",), ("fwd",), "cpu")
    found = prepare.prepare(
        [*work, ("anchors", "none", "maskc", ("fwd",), "cpu")], 60, lambda text: None
    )
    assert set(found) == {"full_8k", "blockdiag16_4k"}
    assert all(np.isfinite(ms) and ms > 0 for ms in found.values())
