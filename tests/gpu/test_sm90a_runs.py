"""sm_90a kernels on a Hopper: poison, equal bits, streams, graphs, and what is refused.

Run with `make test-gpu`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import maskc as mc
from maskc.core.errors import Misaligned, NotAddressable, NotContiguous
from maskc.runtime.launch import kernels
from tests.support.exact_attention import (
    DEVICE,
    called,
    exact_and_rough,
    live_pairs,
    tensors,
    vectors,
    wrong,
)
from tests.support.hopper import (
    BACKWARD,
    BAND,
    DIMS,
    WAYS,
    check,
    compiled,
    modes,
    nan_memory,
    needs_backward,
)

PATTERNS = Path(__file__).parents[2] / "patterns"


# ------------------------------------------------------------------ poison


@pytest.mark.parametrize("mode", WAYS)
@pytest.mark.parametrize("dim", DIMS)
def test_dead_tiles_are_never_read(dim, mode):
    """NaN in every row of every tensor that no live tile holds; 384 is a multiple of all tiles."""
    mask = mc.where(lambda q, k: (q >= 400) & (q < 700) & (k >= 420) & (k < 760))
    attn = compiled(mask, dim, mode=mode)
    clean = tensors(1200, 1200, dim, torch.bfloat16, 2)
    poisoned = [x.clone() for x in clean]
    for x in poisoned:
        x[:, :, :384] = x[:, :, 768:] = torch.nan
    dirty = clean[3] if BACKWARD else None
    want = called(attn, *clean[:3], dirty, deterministic=True)
    with nan_memory():
        computed = called(
            attn, *poisoned[:3], poisoned[3] if BACKWARD else None, deterministic=True
        )  # fmt: skip
    for name, x in want.items():
        assert torch.equal(computed[name], x), name
        assert not x.isnan().any(), name


@pytest.mark.parametrize("dim", DIMS)
def test_poison_stays_where_it_is_seen(dim):
    mask, n, block = mc.block_diagonal(384), 1000, slice(384, 768)
    q, k, v, _ = tensors(n, n, dim, torch.bfloat16, 2)
    attn = compiled(mask, dim)
    clean = attn(q, k, v)
    for poisoned in (k, v):
        kept = poisoned[:, :, 390].clone()
        poisoned[:, :, 390] = torch.nan
        out = attn(q, k, v)
        assert out[:, :, block].isnan().any(-1).all()
        for rest in (slice(0, 384), slice(768, n)):
            assert torch.equal(out[:, :, rest], clean[:, :, rest])
        poisoned[:, :, 390] = kept


@pytest.mark.parametrize("dim", [64, 128])
def test_poisoned_keys_inside_a_tile(dim):
    """A key that is NaN reaches the queries that see it, and none of their neighbours."""
    for mask in (mc.causal(), mc.causal() & mc.strided(3, 2)):
        attn, n = compiled(mask, dim), 300
        q, k, v, _ = tensors(n, n, dim, torch.bfloat16, 2)
        clean = attn(q, k, v)
        k[:, :, 77] = torch.nan
        out = attn(q, k, v)
        assert torch.equal(out[:, :, :77], clean[:, :, :77])
        assert out[:, :, 77:].isnan().all()


def test_nan_safe_runs_elsewhere():
    attn, n = compiled(mc.causal(), 64), 300
    q, k, v, _ = tensors(n, n, 64, torch.bfloat16, 3)
    clean = attn(q, k, v, nan_safe=True)
    assert {source for source, _ in modes(attn)} == {"sm_80"}
    v[:, :, 77] = torch.inf
    out = attn(q, k, v, nan_safe=True)
    assert torch.equal(out[:, :, :77], clean[:, :, :77])
    assert (out[:, :, 77:] == torch.inf).all()


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_nan_safe_keeps_a_bad_key_from_rows_that_do_not_see_it(target, bad):
    """Bad values leave their bits alone; a bad logit may move the base of its warp's exponentials,
    so out is rounded elsewhere."""
    name, n = "sparse_transformer_strided", 600
    mask = mc.load(PATTERNS / f"{name}.py")[name]()
    made = tensors(n, n, 64, torch.bfloat16, 4)
    live = live_pairs(mask, n, n)
    blind = ~torch.from_numpy(mask.dense(n, n)[:, 0].copy()).to(made[0].device)
    assert blind.any()
    attn = mask.compile(64, target=target)

    def seen(found):
        return {name: x[:, :, blind] if x.ndim else x for name, x in found.items()}

    q, k, v, _ = made
    clean = seen(called(attn, q, k, v, nan_safe=True))
    sides = [seen(side) for side in exact_and_rough(*made, live, backward=False)]
    bad_k, bad_v = k.clone(), v.clone()
    bad_k[:, :, 0], bad_v[:, :, 0] = bad, bad
    found = seen(called(attn, q, k, bad_v, nan_safe=True))
    assert all(torch.equal(found[name], clean[name]) for name in clean)
    assert not wrong(seen(called(attn, q, bad_k, bad_v, nan_safe=True)), *sides)


# ------------------------------------------------------------------ bits


@pytest.mark.parametrize("mode", WAYS)
@pytest.mark.parametrize("dim", DIMS)
def test_forward_repeats(dim, mode):
    mask = BAND | mc.strided(64) & mc.causal()
    attn = compiled(mask, dim, mode=mode)
    q, k, v, _ = tensors(1500, 1500, dim, torch.bfloat16, 1, heads=8)
    want, lse = attn(q, k, v, return_lse=True)
    for _ in range(20):
        with nan_memory():
            out, again = attn(q, k, v, return_lse=True)
        assert torch.equal(out, want)
        assert torch.equal(again, lse)


@pytest.mark.parametrize("mode", WAYS)
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_a_sequence_ignores_its_batch(dim, mode):
    """Alone or in company, whatever the others hold; gradients too, where they are determined."""
    attn = compiled(BAND, dim, mode=mode)
    made = tensors(700, 800, dim, torch.bfloat16, 1, batch=5)
    options = {"deterministic": True}
    whole = called(attn, *made[:3], made[3] if BACKWARD else None, **options)
    for rows in (slice(0, 1), slice(3, 5)):
        part = [x[rows] for x in made]
        alone = called(attn, *part[:3], part[3] if BACKWARD else None, **options)
        for name, x in alone.items():
            assert torch.equal(x, whole[name][rows]), name


@needs_backward
@pytest.mark.parametrize("most_tiles", [256, 2])
@pytest.mark.parametrize("dim", DIMS)
def test_deterministic_backward_repeats(dim, most_tiles):
    """A hundred times, now and then during other work."""
    mask = mc.causal() & (mc.window(300) | mc.strided(5))
    attn = compiled(mask, dim, most_tiles=most_tiles)
    q, k, v, dout = tensors(1000, 1000, dim, torch.bfloat16, 1, heads=8)
    extra = vectors(["alibi_slopes", "sink_logits"], 8)
    out, lse = attn(q, k, v, return_lse=True, **extra)
    side, other = torch.cuda.Stream(), torch.randn(2048, 2048, device=DEVICE)
    want = None
    for turn in range(100):
        if turn % 3:
            with torch.cuda.stream(side):
                other @ other
        with nan_memory():
            gradients = attn.backward(q, k, v, out, lse, dout, deterministic=True, **extra)
        want = want or gradients
        assert all(torch.equal(x, y) for x, y in zip(gradients, want, strict=True)), turn
    torch.cuda.synchronize()


def test_equal_masks_equal_bits():
    q, k, v, dout = tensors(500, 500, 128, torch.bfloat16)
    pairs = [
        (mc.causal() & mc.window(70, 9), mc.window(70)),
        (mc.where(lambda q, k: (k <= q) | (k < 9)), mc.prefix(9) | mc.causal()),
        (~(~mc.causal() | mc.strided(3)), mc.causal() - mc.strided(3)),
    ]
    for left, right in pairs:
        one, two = (
            called(compiled(m, 128), q, k, v, dout if BACKWARD else None, deterministic=True)
            for m in (left, right)
        )
        for name, x in one.items():
            assert torch.equal(x, two[name]), (str(left), name)


# ------------------------------------------------------------------ launches


def both(attn, q, k, v, dout):
    return called(attn, q, k, v, dout if BACKWARD else None, deterministic=True)


def captured(attn, *given_tensors):
    """(graph, its results) of both passes."""
    both(attn, *given_tensors)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        computed = both(attn, *given_tensors)
    return graph, computed


def same(found, want):
    return all(torch.equal(found[name], x) for name, x in want.items())


@pytest.mark.parametrize("mode", WAYS)
def test_streams(mode):
    """Inputs arrive late on a stream of one's own."""
    attn = compiled(mc.causal(), 64, mode=mode)
    made = tensors(700, 700, 64, torch.bfloat16, 4)
    want = both(attn, *made)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        late = [torch.zeros_like(x) for x in made]
        torch.cuda._sleep(50_000_000)
        for x, y in zip(late, made, strict=True):
            x.copy_(y)
        computed = both(attn, *late)
    stream.synchronize()
    assert same(computed, want)


def enqueued(attn, made, place):
    """Results of calls right behind what writes their inputs: a kernel, a copy, another stream."""
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    found = []
    for number, each in enumerate(made):
        for to, x in zip(place, each, strict=True):
            if number % 3 == 0:
                torch.mul(x, 1, out=to)
            elif number % 3 == 1:
                to.copy_(x)
            else:
                side.wait_stream(current)
                with torch.cuda.stream(side):
                    to.copy_(x)
                current.wait_stream(side)
        results = both(attn, *place)
        found.append({name: x.clone() for name, x in results.items()})
        for x in results.values():  # its memory goes to the next call
            x.zero_()
    return found


@pytest.mark.parametrize("form", [None, "small"])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_calls_follow_what_is_enqueued_before_them(dim, form):
    """Nothing is read before it is written, nor written before it is read; as nodes of a graph
    too."""
    attn = compiled(BAND, dim, mode=form and f"{form} default", most_tiles=2, row_tiles=2)
    made = [tensors(700, 700, dim, torch.bfloat16, i) for i in range(12)]
    want = []
    for each in made:
        want.append(both(attn, *each))
        torch.cuda.synchronize()
    place = [torch.empty_like(x) for x in made[0]]
    for _ in range(20):
        found = enqueued(attn, made, place)
        assert all(map(same, found, want))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = enqueued(attn, made, place)
    for _ in range(20):
        for made_before in found:
            for x in made_before.values():
                x.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert all(map(same, found, want))


@pytest.mark.parametrize("mode", WAYS)
def test_streams_at_the_same_time(mode):
    """Launches of several streams share nothing that they write."""
    attn = compiled(BAND, 64, mode=mode)
    made = [tensors(900, 900, 64, torch.bfloat16, i) for i in range(4)]
    want = [both(attn, *each) for each in made]
    streams = [torch.cuda.Stream() for _ in made]
    torch.cuda.synchronize()
    found = []
    for _ in range(10):
        for stream, each in zip(streams, made, strict=True):
            with torch.cuda.stream(stream):
                found.append(both(attn, *each))
    torch.cuda.synchronize()
    assert all(same(x, want[i % 4]) for i, x in enumerate(found))


@pytest.mark.parametrize("mode", WAYS)
def test_a_graph(mode):
    attn = compiled(BAND, 128, mode=mode)
    made = tensors(500, 500, 128, torch.bfloat16, 4)
    graph, found = captured(attn, *made)
    for number in range(5):
        for x, fresh in zip(made, tensors(500, 500, 128, torch.bfloat16, number), strict=True):
            x.copy_(fresh)
        graph.replay()
        torch.cuda.synchronize()
        assert same(found, both(attn, *made)), number


@pytest.mark.parametrize("mode", WAYS)
def test_two_graphs_at_the_same_time(mode):
    attn = compiled(BAND, 128, mode=mode)
    made = [tensors(1000, 1000, 128, torch.bfloat16, i, heads=16, kv_heads=4) for i in (1, 2)]
    want = [both(attn, *each) for each in made]
    graphs = [captured(attn, *each) for each in made]
    streams = [torch.cuda.Stream() for _ in made]
    torch.cuda.synchronize()
    for _ in range(20):
        for stream, (graph, _) in zip(streams, graphs, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    for (_, found), expected in zip(graphs, want, strict=True):
        assert same(found, expected)


def test_many_lengths_one_binary(monkeypatch):
    """A hundred lengths, nothing compiled after the warm-up."""
    mask = mc.causal() & mc.window(mc.param("w", 50))
    attn = compiled(mask, 64)
    attn.warmup()
    built = set(attn.all_reports)

    def refused(*_, **__):
        raise AssertionError("compiled after the warm-up")

    monkeypatch.setattr(kernels, "build", refused)
    for n in range(1, 601, 6):
        made = tensors(n, n + n % 5, 64, torch.bfloat16, n)
        computed = called(attn, *made[:3], made[3] if BACKWARD else None, data={"w": n // 2})
        assert computed["out"].isfinite().all()
        if n % 25 == 1:
            check(attn, made, live_pairs(mask, n, n + n % 5, {"w": n // 2}), {"w": n // 2})
    assert set(attn.all_reports) == built


# ------------------------------------------------------------------ refusals


def refuses(monkeypatch, error, call, name):
    """A coded error that names the tensor, and not one launch."""
    with monkeypatch.context() as patch:
        patch.setattr(
            "maskc.runtime.launch.cuda.CudaKernel.run", lambda *_: pytest.fail("launched")
        )
        with pytest.raises(error) as raised:
            call()
    assert name in str(raised.value)
    torch.cuda.synchronize()


@pytest.mark.parametrize("place", range(3))
def test_misaligned(monkeypatch, place):
    attn = compiled(mc.causal(), 64)
    made = tensors(130, 130, 64, torch.bfloat16)
    before = attn(*made[:3])  # a plan that such a call could meet
    odd = torch.empty(made[place].numel() + 1, dtype=torch.bfloat16, device=DEVICE)[1:]
    off_grid = list(made)
    off_grid[place] = odd.view(made[place].shape).copy_(made[place])
    refuses(monkeypatch, Misaligned, lambda: attn(*off_grid[:3]), "qkv"[place])
    wide = torch.zeros((*made[place].shape[:3], 68), dtype=torch.bfloat16, device=DEVICE)
    wide_rows = list(made)
    wide_rows[place] = wide[..., :64]
    refuses(monkeypatch, Misaligned, lambda: attn(*wide_rows[:3]), "qkv"[place])
    apart = list(made)
    apart[place] = made[place].transpose(2, 3).contiguous().transpose(2, 3)
    refuses(monkeypatch, NotContiguous, lambda: attn(*apart[:3]), "qkv"[place])
    assert torch.equal(attn(*made[:3]), before)


def test_tokens_without_a_stride(monkeypatch):
    """No tensor map has them: forward passes run elsewhere, backward passes are refused."""
    attn = compiled(mc.causal(), 64)
    q, k, v, dout = tensors(200, 200, 64, torch.bfloat16)
    one = k[:, :, :1].expand(k.shape)
    live = live_pairs(mc.causal(), 200, 200)
    computed = called(attn, q, one, v)
    assert "sm_80" in {source for source, _ in modes(attn)}
    sides = exact_and_rough(q, one, v, dout, live, backward=False)
    assert not wrong(computed, *sides)
    if BACKWARD:
        out, lse = computed["out"], computed["lse"]
        call = lambda: attn.backward(q, one, v, out, lse, dout)  # noqa: E731
        refuses(monkeypatch, NotAddressable, call, "k")
