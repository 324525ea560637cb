"""Blocks chosen on the device, in emulation: the choice, the lists, and the passes that read them.

Scores are small integers, so exact, and ties are many: the choice must be the reference's.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.dispatch.selector import SourceSelector
from maskc.layout.topk.sizes import turn_of
from maskc.runtime.device_lists import topk_sizes as choosing
from maskc.runtime.device_lists.topk_launch import SelectedPlan
from tests.support import cases
from tests.support.emulated import emulated_card  # noqa: F401
from tests.support.hopper import check, compiled, nan_memory
from tests.support.selected import Capture, blocks_of, faults, integers, work_faults
from tests.support.thorough import alternating, chiefly, more

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def capture(hopper, monkeypatch):
    return Capture().install(monkeypatch)


def made(n_q, n_kv, batch=2, heads=4, kv_heads=2, dim=64, seed=0):
    q = integers(batch, heads, n_q, dim, seed=seed)
    return q, *(integers(batch, kv_heads, n_kv, dim, seed=seed + x) for x in (1, 2))


def given(name, n_q, n_kv, batch=2, heads=4, seed=0):
    """Return what selections of a mask rank by, in several forms."""
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return torch.tensor(rng.integers(-3, 4, shape).astype(np.float32))

    if name == "indexer":
        return {"index_q": draw(batch, 3, n_q, 20), "index_k": draw(1, n_kv, 20).bfloat16(),
                "index_w": draw(batch, 3, n_q).half()}  # fmt: skip
    if name == "bytes":  # each head reads one element of the keys, which are anything in E4M3
        at = rng.integers(0, 20, (batch, 3, n_q))
        keys = torch.tensor(rng.integers(0, 256, (batch, n_kv, 20), np.uint8))
        return {"index_q": torch.tensor(at[..., None] == np.arange(20)).to(torch.float8_e4m3fn),
                "index_k": (keys.view(torch.float8_e4m3fn), draw(1, n_kv)),
                "index_w": draw(batch, 3, n_q)}  # fmt: skip
    forms = {
        "pairs": lambda: draw(n_q, n_kv),
        "heads": lambda: draw(heads, n_q, n_kv).half(),
        "all": lambda: draw(batch, heads, n_kv, n_q).transpose(2, 3).bfloat16(),
        "batch": lambda: draw(batch, 1, n_q, n_kv)[:, :, :, ::1],
    }
    return {"scores": forms[name]()} if name in forms else {}


def on_host(x):
    return tuple(map(on_host, x)) if isinstance(x, tuple) else x.float().numpy()


def dense(mask, q, k, data):
    (batch, heads, n_q, _), n_kv = q.shape, k.shape[2]
    there = {name: on_host(x) for name, x in data.items()}
    found = mask.dense(
        n_q, n_kv, n_heads=heads, heads_kv=k.shape[1], q=q.float().numpy(), k=k.float().numpy(),
        **there,
    )  # fmt: skip
    if found.ndim == 3:
        found = found[:, None] if len(found) == batch else found[None]
    return np.broadcast_to(found, (batch, heads, n_q, n_kv))


def run(attn, tensors, data, backward=False, deterministic=False):
    """A call whose lists the device made."""
    out, lse = attn(*tensors, return_lse=True, **data)
    assert isinstance(attn._last[1], SelectedPlan)
    if backward:
        attn.backward(*tensors, out, lse, out, deterministic=deterministic, **data)


def alone(score, of=None, **options):
    """A mask of the chosen pairs by how many are chosen."""
    return lambda k: mc.topk(k, mc.full() if of is None else of, score=score, **options)


CAUSAL = mc.causal()
ALONE = {
    "products": (alone("qk", block=16), ""),
    "rows": (alone("qk", mc.window(50), block=32, q_block=8), ""),
    "shared": (alone("qk", block=16, share="group"), ""),
    "together": (alone("qk", CAUSAL, block=16, q_block=3, share="all"), ""),
    "odd": (alone("qk", CAUSAL & mc.strided(3), block=24, q_block=5), ""),
    "means": (alone("block_mean", CAUSAL, block=32, q_block=4), ""),
    "means of groups": (alone("block_mean", block=16, share="group"), ""),
    "pairs": (alone("given", CAUSAL, block=16), "pairs"),
    "pairs of heads": (alone("given", block=20, q_block=2), "heads"),
    "pairs of all": (alone("given", block=16, share="group"), "all"),
    "pairs of sequences": (alone("given", mc.window(30, 9), block=16), "batch"),
    "indexer": (alone("indexer", CAUSAL, block=16), "indexer"),
    "indexer in e4m3": (alone("indexer", CAUSAL, block=16, share="group"), "bytes"),
}
SIZES = [(1, 1), (70, 61), (33, 230)]


@pytest.mark.parametrize(
    ("name", "many"),
    alternating(
        chiefly(
            list(ALONE),
            "products",
            "shared",
            "odd",
            "means of groups",
            "pairs",
            "pairs of heads",
            "pairs of sequences",
            "indexer",
            "indexer in e4m3",
        ),
        [0, 1 << 30],
    ),
)  # fmt: skip)
def test_the_choice(capture, monkeypatch, name, many):
    """For four blocks of queries at a time and for sixteen."""
    monkeypatch.setattr(choosing, "MANY_BLOCKS", many)
    topk, form = ALONE[name]
    for k in (2, 0, 1, 1000) if name in ("products", "pairs") else (2,):
        mask = topk(k)
        attn = compiled(mask, 64, heads=4)
        (one,) = attn.bundle.selections
        for seed, (n_q, n_kv) in enumerate(SIZES):
            tensors, data = made(n_q, n_kv, seed=seed), given(form, n_q, n_kv, seed=seed)
            run(attn, tensors, data)
            want = blocks_of(dense(mask, *tensors[:2], data), one.q_block, one.block)
            bits, columns = capture.found[-1].bits[0], want.shape[-1]
            assert not bits[..., columns:].any()
            found = np.broadcast_to(bits[..., :columns], want.shape)
            assert (found == want).all(), (k, n_q, n_kv)


def scores_by_hand(kind, n_q, n_kv):
    rng, shape = np.random.default_rng(3), (n_q, n_kv)
    made = {
        "equal": lambda: np.zeros(shape),
        "nan": lambda: np.where(rng.random(shape) < 0.6, NAN, rng.integers(-2, 2, shape)),
        "only nan": lambda: np.full(shape, NAN),
        "infinite": lambda: rng.choice([-INF, INF, 0.0, -0.0, NAN], shape),
        "least": lambda: np.full(shape, -INF),
        "negative": lambda: -np.abs(rng.standard_normal(shape)),
    }  # fmt: skip
    return made[kind]().astype(np.float32)


@pytest.mark.parametrize("kind", ["equal", "nan", "only nan", "infinite", "least", "negative"])
def test_scores_that_are_odd(capture, kind):
    """Rank blocks, for several rows; ties to the lower index, NaN below every number."""
    mask = mc.topk(3, mc.causal(), score="given", block=16, q_block=8)
    attn = compiled(mask, 64, heads=4)
    n_q, n_kv = 130, 700
    blocks = torch.tensor(scores_by_hand(kind, -(-n_q // 8), -(-n_kv // 16)))
    tensors, data = made(n_q, n_kv, batch=1), {"scores": blocks}
    run(attn, tensors, data)
    want = blocks_of(dense(mask, *tensors[:2], data)[0, 0], 8, 16)
    assert (capture.found[-1].bits[0][0, 0, :, : want.shape[1]] == want).all()


def test_dimensions_that_are_no_whole_slabs(capture):
    mask = mc.topk(2, mc.window(50), block=16, q_block=8)
    attn, tensors = compiled(mask, 96, heads=4), made(120, 120, dim=96)
    run(attn, tensors, {})
    want = blocks_of(dense(mask, *tensors[:2], {}), 8, 16)
    assert (capture.found[-1].bits[0][..., : want.shape[-1]] == want).all()


def test_keys_that_are_not_finite(capture):
    """Spoil the blocks where a query may choose them, and no other."""
    mask = mc.topk(1, mc.window(50), block=16, q_block=8, share="group")
    attn = compiled(mask, 64, heads=4)
    q, k, v = made(120, 120)
    k[:, :, 40], k[:, 0, 75, 3] = NAN, INF
    run(attn, (q, k, v), {})
    with np.errstate(invalid="ignore"):
        want = blocks_of(dense(mask, q, k, {}), 8, 16)
    found = capture.found[-1].bits[0][..., : want.shape[-1]]
    assert (found == want).all()
    assert want[:, :, 4, 2].any()  # keys 32 to 39 for as many queries: what comes next is NaN


@pytest.mark.parametrize("options", [{}, {"q_block": 8}, {"score": "block_mean", "q_block": 4}])
def test_scores_that_round(capture, options):
    """No block is left out that is better than one chosen by more than what fp32 rounds."""
    mask = mc.topk(3, mc.causal(), block=16, share="group", **options)
    attn, q_block = compiled(mask, 64, heads=4), options.get("q_block", 1)
    torch.manual_seed(0)
    q, k = (torch.randn(1, heads, 190, 64).bfloat16() for heads in (4, 2))
    run(attn, (q, k, k), {})
    pairs = q.double().unflatten(1, (2, 2)) @ k.double()[:, :, None].transpose(-1, -2)
    if options.get("score") == "block_mean":
        live = torch.ones(190, 190, dtype=torch.bool)
    else:
        live = torch.ones(190, 190, dtype=torch.bool).tril()
    sums = sum_blocks(torch.where(live, pairs, 0).mean(2), q_block)
    score = sums / sum_blocks(live.double(), q_block)  # NaN where nothing is live
    allowed = sum_blocks(torch.ones(190, 190).tril().double(), q_block) > 0
    bits = torch.tensor(capture.found[-1].bits[0][:, ::2, :, : score.shape[-1]])
    assert not (bits & ~allowed).any()
    assert (bits.sum(-1) == allowed.sum(-1).clamp(max=3)).all()
    worst = torch.where(bits, score, INF).amin(-1)
    rest = torch.where(~bits & allowed, score, -INF).amax(-1)
    assert (worst >= rest - 1e-5).all()


def sum_blocks(x, q_block):
    """Reduce values of pairs [..., n, n] over blocks of queries x 16 keys."""
    n = x.shape[-1]
    rows = torch.nn.functional.pad(x, (0, -n % 16, 0, -n % q_block))
    return rows.unflatten(-1, (-1, 16)).sum(-1).unflatten(-2, (-1, q_block)).sum(-2)


def test_more_blocks_than_wait_side_by_side(capture):
    """Fewer rows at a time."""
    mask = mc.topk(2, mc.full(), score="given", block=16)
    attn = compiled(mask, 64, heads=1)
    n_q, n_kv, blocks = 5, 16 * 5000 - 3, 5000
    scores = torch.tensor(np.random.default_rng(0).permutation(n_q * blocks).astype(np.float32))
    data = {"scores": scores.reshape(n_q, blocks)}
    assert [turn_of(64, n, 227 << 10) for n in (32, blocks, 1 << 14)] == [16, 4, 0]
    run(attn, made(n_q, n_kv, batch=1, heads=1, kv_heads=1), data)
    best = np.sort(np.argsort(-data["scores"].numpy(), axis=1)[:, :2], axis=1)
    found = capture.found[-1].bits[0][0, 0]
    assert (np.stack([np.flatnonzero(row) for row in found]) == best).all()


MASKS = cases.masks(cases.SELECTIONS, cases.EMULATOR)
MIXED = {name: MASKS[name] for name in ("moba", "union", "without", "xor", "two", "heads")}
LENGTHS = ((200, 300), (5, 130), (300, 77))
LISTED = [
    *(
        pytest.param("pairs", source, n, name, marks=each.marks)
        for each in alternating([0, -1], list(MIXED))
        for source, name in [each.values]
        for n in LENGTHS[:1]
    ),
    *(more("pairs", source, n, name) for source in (0, -1) for name in MIXED for n in LENGTHS[1:]),
    ("all", 0, LENGTHS[1], "two"),
    *(more("all", 0, n, name) for n in LENGTHS[::2] for name in ("without", "two")),
]
"""Each mask in large tiles or in small ones, where what masks do is the same text."""


def only(number):
    """A choice between sources in which one of them is alone."""

    def choice(self, unit, wanted, place):
        return (self.bundle.choice(unit.target, wanted.direction)[number],)

    return choice


@pytest.mark.parametrize(("form", "source", "lengths", "name"), LISTED)
def test_lists(capture, monkeypatch, name, form, source, lengths):
    """Check both passes, with a work list and without one, in large tiles and in small ones."""
    monkeypatch.setattr(SourceSelector, "_choice", only(source))
    mask = MIXED[name]
    attn = compiled(mask, 64, heads=4)
    n_q, n_kv = lengths
    tensors = made(n_q, n_kv)
    data = given(form, n_q, n_kv) if name in ("without", "two") else {}
    live = dense(mask, *tensors[:2], data)
    for deterministic in (False, True):
        run(attn, tensors, data, True, deterministic)
        forward, backward = capture.found[-2:]
        assert not faults(forward, live) | faults(backward, live)
        assert not work_faults(forward, False)
        assert set(backward.lines) == ({"row", "col"} if deterministic else {"col"})
        if not deterministic:
            assert not work_faults(backward, True)


@pytest.mark.parametrize(("name", "deterministic"), alternating(["union", "heads"], [False, True]))
def test_both_passes(name, deterministic):
    """Against fp64, in memory full of NaN."""
    mask = MIXED[name]
    attn = compiled(mask, 64, heads=4)
    tensors = *made(150, 190), integers(2, 4, 150, 64, seed=9)
    live = torch.tensor(dense(mask, *tensors[:2], {}).copy())
    check(attn, tensors, live, deterministic=deterministic)
    assert isinstance(attn._last[1], SelectedPlan)


def test_sequences_share_a_choice():
    """The scores are the same for all of them."""
    attn = compiled(ALONE["pairs"][0](2), 64, heads=4)
    made_once, data = made(70, 130, batch=1), given("pairs", 70, 130)
    with nan_memory():
        twice = attn(*(x.repeat(2, 1, 1, 1) for x in made_once), **data)
        assert torch.equal(twice, attn(*made_once, **data).expand_as(twice))


def test_the_forward_of_sm80(monkeypatch):
    mask = MIXED["moba"]
    attn = mask.compile(64, n_heads=4, target="sm_80")
    tensors = made(150, 190)
    out = attn(*tensors)
    assert isinstance(attn._last[1], SelectedPlan)
    attn._planner.lister.active = False
    assert torch.equal(out, attn(*tensors))


def test_parameters_of_the_allowed_pairs(capture):
    mask = mc.topk(2, mc.window(mc.param("width", 20)), block=16)
    attn, tensors = compiled(mask, 64, heads=4), made(90, 90)
    for width in (20, 55):
        run(attn, tensors, {"width": width})
        want = blocks_of(dense(mc.topk(2, mc.window(width), block=16), *tensors[:2], {}), 1, 16)
        assert (capture.found[-1].bits[0][..., : want.shape[-1]] == want).all()


def test_who_chooses(hopper):
    """Where the host does, explain() says why; both give the same bits."""
    nested = mc.topk(1, mc.topk(2, mc.causal(), block=32), block=16)
    told = " ".join(nested.compile(64, n_heads=4, target="sm_90a").explain().split())
    assert "the host chooses blocks" in told
    assert "another selection" in told
    packed = mc.topk(1, mc.causal() & mc.documents("doc"), block=32)
    told = " ".join(packed.compile(64, n_heads=4, target="sm_90a").explain().split())
    assert "the mask reads data" in told
    mask = MIXED["union"]
    attn, tensors = mask.compile(64, n_heads=4, target="sm_90a"), made(150, 190)
    assert "the GPU chooses blocks and builds tile lists" in " ".join(attn.explain().split())
    first = attn(*tensors)
    assert {entry for entry, _ in hopper.launches} >= {"select_join", "select_blocks"}
    attn._planner.lister.active = False
    assert torch.equal(attn(*tensors), first)
    assert not isinstance(attn._last[1], SelectedPlan)
