"""Calls of masks with run-time selections: what they refuse, remember and hand to torch."""

from __future__ import annotations

import importlib.util
import math

import ml_dtypes
import numpy as np
import pytest

import maskc as mc
from maskc import driver
from maskc.core import errors
from maskc.core.dtypes import DType
from maskc.core.target import TARGETS
from maskc.core.tensors import Array
from maskc.layout import choose
from maskc.reference.attention import attention
from maskc.reference.ranking import scores_of
from maskc.runtime.arrays.foreign import Foreign
from maskc.runtime.device_lists import topk_host as selecting
from maskc.runtime.launch.numpy_kernel import FallbackWarning

RNG = np.random.default_rng(5)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


def integers(*shape: int) -> np.ndarray:
    return RNG.integers(-2, 3, shape).astype(np.float32)


def compiled(mask: mc.Mask, dtype: str = "float32", **more: object):
    return mask.compile(16, dtype=dtype, target="cpu", **more)


# ------------------------------------------------------------------ definitions


def test_scores_by_their_definitions():
    q, k = integers(2, 4, 7, 3), integers(2, 2, 9, 3)
    iq, ik, iw = integers(2, 3, 7, 5), integers(2, 9, 5), integers(2, 3, 7)
    tensors = {"q": q, "k": k, "index_q": iq, "index_k": ik, "index_w": iw}
    qk = scores_of(mc.topk(1, mc.full()), tensors)
    means = scores_of(mc.topk(1, mc.full(), score="block_mean", block=4, q_block=2), tensors)
    index = scores_of(mc.topk(1, mc.full(), score="indexer"), tensors)
    assert (qk.shape, means.shape, index.shape) == ((2, 4, 7, 9), (2, 4, 4, 3), (2, 1, 7, 9))
    for b, h, i, j in [(0, 0, 0, 0), (1, 3, 6, 8), (1, 1, 2, 5)]:
        assert qk[b, h, i, j] == sum(q[b, h, i] * k[b, h // 2, j])
        heads = range(3)
        total = sum(iw[b, n, i] * max(0.0, float(sum(iq[b, n, i] * ik[b, j]))) for n in heads)
        assert index[b, 0, i, j] == total
        with_factors = {**tensors, "index_k": (ik, np.arange(18).reshape(2, 9) - 4)}
        found = scores_of(mc.topk(1, mc.full(), score="indexer"), with_factors)
        assert found[b, 0, i, j] == total * (9 * b + j - 4)
    last = math.fsum(q[1, 2, 6] * k[1, 1, 8])  # one query, one key
    assert means[1, 2, 3, 2] == pytest.approx(last)
    of_two, of_four = q[0, 3, 2:4].mean(axis=0), k[0, 1, 4:8].mean(axis=0)
    assert means[0, 3, 1, 1] == pytest.approx(float(of_two @ of_four))


def test_each_selection_of_a_mask_ranks_by_its_own_score():
    mask = mc.topk(2, mc.causal()) | mc.topk(1, mc.full(), score="block_mean", block=8)
    q, k, v = integers(1, 2, 40, 16), integers(1, 1, 40, 16), normal(1, 1, 40, 16)
    keep = mask.dense(40, q=q, k=k)
    parts = [mc.topk(2, mc.causal()), mc.topk(1, mc.full(), score="block_mean", block=8)]
    assert (keep == (parts[0].dense(40, q=q, k=k) | parts[1].dense(40, q=q, k=k))).all()
    found = compiled(mask)(q, k, v)
    assert np.abs(found - attention(q, k, v, keep[0])[0]).max() < 1e-5


def test_a_selection_among_what_another_chose():
    inner = mc.topk(3, mc.causal(), score="block_mean", block=8)
    mask = mc.topk(5, inner | mc.window(2))
    q, k, v = integers(1, 2, 64, 16), integers(1, 2, 64, 16), normal(1, 2, 64, 16)
    keep = mask.dense(64, q=q, k=k)[0]
    assert (keep.sum(axis=2) <= 5).all()
    found = compiled(mask)(q, k, v)
    assert np.abs(found - attention(q, k, v, keep)[0]).max() < 1e-5


# ------------------------------------------------------------------ numbers


@pytest.mark.parametrize("k", [0, 1, 70, 1000])
def test_few_all_and_more_than_all(k):
    q, keys, v = integers(1, 1, 70, 16), integers(1, 1, 70, 16), normal(1, 1, 70, 16)
    out, lse = compiled(mc.topk(k, mc.causal()))(q, keys, v, return_lse=True)
    if k >= 70:
        assert np.array_equal(out, compiled(mc.causal())(q, keys, v))
    elif k == 0:
        assert (out == 0).all()
        assert np.isneginf(lse).all()
    else:
        best = np.where(np.tril(np.ones((70, 70), bool)), q[0, 0] @ keys[0, 0].T, -np.inf)
        assert np.abs(out[0, 0] - v[0, 0, best.argmax(axis=1)]).max() < 1e-6


@pytest.mark.parametrize("n", [(0, 0), (0, 5), (5, 0), (1, 1), (65, 3)])
def test_short_lengths(n):
    q, k, v = normal(1, 2, n[0], 16), normal(1, 2, n[1], 16), normal(1, 2, n[1], 16)
    attn = compiled(mc.topk(2, mc.causal()) | mc.sinks(1))
    out, lse = attn(q, k, v, return_lse=True)
    assert out.shape == q.shape
    gradients = attn.backward(q, k, v, out, lse, out)
    assert [g.shape for g in gradients] == [x.shape for x in (q, k, v)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_ranks_the_stored_numbers(dtype):
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(integers(1, 2, 100, 16)).to(getattr(torch, dtype))
               for _ in range(3))  # fmt: skip
    mask = mc.topk(6, mc.causal())
    keep = mask.dense(100, q=q, k=k)[0]
    found = compiled(mask, dtype)(q, k, v).float().numpy()
    wanted = attention(*(x.float().numpy() for x in (q, k, v)), keep)[0]
    assert np.abs(found - wanted).max() < 2e-2


def test_nan_never_wins_and_stays_with_its_key():
    q, k, v = integers(1, 1, 40, 16), integers(1, 1, 40, 16), normal(1, 1, 40, 16)
    k[0, 0, 7] = np.nan
    out = compiled(mc.topk(3, mc.causal()))(q, k, v)[0, 0]
    assert np.isnan(out[7:]).any(axis=1).sum() == 0
    q[0, 0, 20] = np.nan  # all of its scores are NaN: the lowest keys, 7 not among them
    found = compiled(mc.topk(3, mc.causal()))(q, k, v)[0, 0]
    assert np.isnan(found[20]).all()
    assert np.array_equal(np.delete(found, 20, 0), np.delete(out, 20, 0))
    keep = mc.topk(3, mc.causal()).dense(40, q=q, k=k)[0]
    assert np.flatnonzero(keep[20]).tolist() == [0, 1, 2]


def test_the_same_bits_on_every_run_and_any_number_of_threads(monkeypatch):
    q, k, v = normal(2, 4, 200, 16), normal(2, 2, 200, 16), normal(2, 2, 200, 16)
    attn = compiled(mc.topk(9, mc.causal(), share="group") | mc.window(3))
    first = attn(q, k, v)
    for threads in ("1", "3"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        assert np.array_equal(attn(q, k, v), first)


# ------------------------------------------------------------------ calls


def test_without_a_compiler(monkeypatch, tmp_path):
    q, k, v = integers(1, 2, 90, 16), integers(1, 1, 90, 16), normal(1, 1, 90, 16)
    mask = mc.topk(2, mc.causal(), block=16, q_block=4) | mc.window(3)
    usual = compiled(mask)(q, k, v)
    monkeypatch.setenv("MASKC_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CC", "/nonexistent/cc")
    with pytest.warns(FallbackWarning):
        found = compiled(mask)(q, k, v)
    assert np.abs(found - usual).max() < 1e-5


def test_little_of_a_call_is_kept():
    attn = compiled(mc.topk(4, mc.causal()))
    for n in (30, 30, 31):
        attn(normal(1, 2, n, 16), normal(1, 2, n, 16), normal(1, 2, n, 16))
    assert not attn._plans._values
    assert not attn._planner.whole.selector.tables._values
    assert attn._last == (None, None)


def test_a_backward_pass_does_not_choose_again(monkeypatch):
    chosen = []
    monkeypatch.setattr(
        "maskc.runtime.device_lists.topk_host.choose",
        lambda *args: chosen.append(1) or choose(*args),
    )
    attn = compiled(mc.topk(4, mc.causal()) | mc.topk(1, mc.causal(), score="given", block=8))
    q, k, v = (normal(1, 2, 40, 16) for _ in range(3))
    ranked = normal(1, 2, 40, 5)
    out, lse = attn(q, k, v, return_lse=True, scores=ranked)
    gradients = attn.backward(q.copy(), k.copy(), v, out, lse, out, scores=ranked)
    assert len(chosen) == 2
    for x in (k, ranked):  # changed in place: other content
        x[..., 3, 0] += 1
        before = len(chosen)
        out, lse = attn(q, k, v, return_lse=True, scores=ranked)
        assert len(chosen) == before + 2
    keep = (
        mc.topk(4, mc.causal()).dense(40, q=q, k=k)[0]
        | mc.topk(1, mc.causal(), score="given", block=8).dense(40, n_heads=2, scores=ranked)[0]
    )
    assert np.abs(out - attention(q, k, v, keep)[0]).max() < 1e-5
    assert [g.shape for g in gradients] == [q.shape] * 3


def test_torch_gradients_are_those_of_the_chosen_pairs():
    torch = pytest.importorskip("torch")
    mask = mc.topk(5, mc.causal(), score="indexer", share="all") | mc.window(2)
    index = {
        "index_q": torch.from_numpy(integers(1, 2, 50, 8)),
        "index_k": torch.from_numpy(integers(1, 50, 8)),
        "index_w": torch.from_numpy(integers(1, 2, 50)),
    }
    tensors = [torch.from_numpy(normal(1, 2, 50, 16)).requires_grad_() for _ in range(3)]
    mc.attention(*tensors, mask, **index).square().sum().backward()
    found = [x.grad.clone() for x in tensors]
    wanted = {**index, "index_w": index["index_w"].clone().requires_grad_()}
    with pytest.raises(errors.NoGradient, match="index_w"):
        mc.attention(*tensors, mask, **wanted)
    keep = torch.from_numpy(mask.dense(50, **index))
    for x in tensors:
        x.grad = None
    q, k, v = tensors
    scores = (q @ k.transpose(2, 3) / 4).masked_fill(~keep, -torch.inf)
    (scores.softmax(-1) @ v).square().sum().backward()
    for x, gradient in zip(tensors, found, strict=True):
        assert (x.grad - gradient).abs().max() < 1e-4


E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)


@pytest.mark.parametrize("factors", [None, np.array([-1, 0.5, 1, 2, 3] * 10, np.float32)[None]])
def test_an_indexer_in_e4m3(factors):
    """Every number that it has ranks as it is, together with factors of keys."""
    mask = mc.topk(5, mc.causal(), score="indexer")
    every = np.arange(256, dtype=np.uint8).view(E4M3)
    numbers = every[np.isfinite(every.astype(np.float32))]
    keys = RNG.choice(numbers, (1, 50, 16))
    index = {"index_q": RNG.choice(numbers[:8], (1, 3, 50, 16)), "index_k": (keys, factors),
             "index_w": integers(1, 3, 50)}  # fmt: skip
    q, k, v = (normal(1, 2, 50, 16) for _ in range(3))
    found = compiled(mask)(q, k, v, **index)
    assert np.abs(found - attention(q, k, v, mask.dense(50, **index)[0])[0]).max() < 1e-5


def test_an_indexer_in_e4m3_of_torch():
    torch = pytest.importorskip("torch")
    mask = mc.topk(5, mc.causal(), score="indexer", share="all") | mc.window(2)
    q, k, v = (torch.from_numpy(normal(1, 2, 50, 16)) for _ in range(3))
    index = [torch.from_numpy(integers(*shape)) for shape in ((1, 2, 50, 8), (1, 50, 8))]
    index += [torch.from_numpy(x) for x in (integers(1, 50), integers(1, 2, 50))]

    def attend(q, k, v, index_q, index_k, factors, index_w):
        keys = index_k, factors
        return mc.attention(q, k, v, mask, index_q=index_q, index_k=keys, index_w=index_w)

    wide = attend(q, k, v, *index)
    narrow = [x.to(torch.float8_e4m3fn) for x in index[:2]]
    assert torch.equal(attend(q, k, v, *narrow, *index[2:]), wide)
    inside = torch.compile(attend, fullgraph=True, backend="eager")
    assert torch.equal(inside(q, k, v, *narrow, *index[2:]), wide)


def test_inside_torch_compile():
    torch = pytest.importorskip("torch")
    mask = mc.topk(5, mc.causal()) | mc.window(2)
    q, k, v = (torch.from_numpy(normal(1, 2, 50, 16)) for _ in range(3))
    inside = torch.compile(lambda *x: mc.attention(*x, mask), fullgraph=True, backend="eager")
    assert torch.equal(inside(q, k, v), mc.attention(q, k, v, mask))


def test_generated_modules_choose_too(tmp_path):
    mask = mc.per_head([
        mc.topk(3, mc.causal() & mc.documents("doc"), score="indexer"),
        mc.topk(1, mc.per_head([mc.causal(), mc.window(mc.param("w", 9))]), block=8, q_block=2),
    ])  # fmt: skip
    problem = driver.problem(16, None, 2, "float32")
    plan = driver.plan_module(mask, problem, TARGETS["cpu"])
    for name, text in driver.generate(mask, "made", [plan], "A.").items():
        (tmp_path / name).write_text(text)
        assert name.endswith(".json") or max(map(len, text.splitlines())) <= 100
    spec = importlib.util.spec_from_file_location("made", tmp_path / "made.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    q, k, v = integers(1, 2, 60, 16), integers(1, 2, 60, 16), normal(1, 2, 60, 16)
    index = {"index_q": integers(1, 2, 60, 4), "index_k": integers(1, 60, 4),
             "index_w": integers(1, 2, 60)}  # fmt: skip
    doc = np.repeat(np.arange(3), 20)
    keep = mask.dense(60, n_heads=2, q=q, k=k, doc=doc, w=5, **index)[0]
    out = module.attention(q, k, v, doc=doc, w=5, **index)
    assert np.abs(out - attention(q, k, v, keep)[0]).max() < 1e-5
    scores = integers(2, 60, 60)
    dense = mask.dense(60, n_heads=2, scores=scores, doc=doc)
    assert (module.dense(60, scores=scores, doc=doc) == dense).all()
    tiles = module.layout(60, head=1, scores=scores, doc=doc, block=(8, 8))
    assert tiles.to_dense().astype(bool).sum() == sum(
        dense[1, i : i + 8, j : j + 8].any() for i in range(0, 60, 8) for j in range(0, 60, 8)
    )


# ------------------------------------------------------------------ refusals


def index_tensors() -> dict[str, np.ndarray]:
    return {"index_q": normal(1, 2, 20, 4), "index_k": normal(1, 20, 4),
            "index_w": normal(1, 2, 20)}  # fmt: skip


WRONG = {
    "missing": ("indexer", {"index_w": None}, errors.DataMissing),
    "too many": ("qk", {"scores": normal(20, 20)}, errors.DataUnknown),
    "keys": ("indexer", {"index_k": normal(1, 19, 4)}, errors.DataShape),
    "width": ("indexer", {"index_k": normal(1, 20, 5)}, errors.DataShape),
    "heads": ("indexer", {"index_w": normal(1, 3, 20)}, errors.DataShape),
    "rank": ("indexer", {"index_q": normal(2, 20, 4)}, errors.DataShape),
    "batch": ("indexer", {"index_q": normal(3, 2, 20, 4)}, errors.DataShape),
    "no pair": ("indexer", {"index_k": (normal(1, 20, 4),) * 3}, errors.DataType),
    "factors": ("indexer", {"index_k": (normal(1, 20, 4), normal(1, 19))}, errors.DataShape),
    "weights": ("indexer", {"index_w": normal(1, 2, 20).astype(E4M3)}, errors.DataType),
    "integers": ("given", {"scores": np.zeros((20, 20), int)}, errors.DataType),
    "double": ("given", {"scores": np.zeros((20, 20))}, errors.DataType),
    "no array": ("given", {"scores": "best"}, errors.DataType),
    "shape": ("given", {"scores": normal(20, 21)}, errors.DataShape),
    "score heads": ("given", {"scores": normal(3, 20, 20)}, errors.DataShape),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused(name):
    score, change, error = WRONG[name]
    tensors = {**(index_tensors() if score == "indexer" else {}), **change}
    q = normal(1, 2, 20, 16)
    with pytest.raises(error):
        compiled(mc.topk(2, mc.causal(), score=score))(q, q, q, **tensors)


def test_questions_need_scores():
    with pytest.raises(errors.DataMissing, match="scores"):
        mc.topk(2, mc.causal()).layout(20)
    with pytest.raises(errors.DataMissing, match="scores"):
        mc.topk(2, mc.causal()).dense(20, q=normal(1, 1, 20, 4))
    assert mc.topk(2, mc.causal()).count(20, scores=normal(20, 20)) == 39


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_gpus_choose_no_small_blocks(target):
    with pytest.raises(errors.SelectionNotCompiled, match="blocks of 15 keys"):
        mc.topk(2, mc.causal(), block=15).compile(64, target=target)
    assert mc.topk(2, mc.causal(), block=16).compile(64, target=target).target.name == target


ONE = mc.topk(2, mc.causal())
BY_SCORES = mc.topk(2, mc.causal(), score="given")


@pytest.mark.parametrize(
    ("target", "mask", "found"),
    [
        ("sm_80", BY_SCORES, "single keys by scores of each head"),
        ("sm_80", ONE | mc.topk(1, mc.full()), "single keys together with another selection"),
        ("sm_90a", BY_SCORES, "single keys by scores of each head"),
        ("sm_90a", ONE | mc.topk(1, mc.full()), "single keys together with another selection"),
        ("sm_90a", mc.topk(2, mc.full(), share="all"), "single keys that heads share"),
        ("sm_90a", mc.causal() - ONE, "single keys that are taken away"),
    ],
)
def test_single_keys_that_gpus_do_not_choose(target, mask, found):
    with pytest.raises(errors.SelectionNotCompiled, match=f"{target}.*{found}"):
        mask.compile(64, target=target)


def test_what_a_device_hides_is_refused():
    view = Array(1 << 20, (1, 1, 4, 8), (32, 32, 8, 1), "float16", ("cuda", 0))
    with pytest.raises(errors.NotAnArray, match="object on a GPU, from which nothing"):
        selecting._floats("q", Foreign(view, object(), None), view, DType.float16)


def test_keys_chosen_one_by_one_have_no_nan_safe_pass_on_gpus(monkeypatch):
    torch = pytest.importorskip("torch")
    from maskc.testing.emulator import machine

    machine.install(monkeypatch)
    q = torch.zeros(1, 1, 8, 64, dtype=torch.bfloat16)
    with pytest.raises(errors.TargetNotBuilt, match=r"nan_safe forward(.|\n)*target='simt'"):
        ONE.compile(64, target="sm_90a")(q, q, q, nan_safe=True)
