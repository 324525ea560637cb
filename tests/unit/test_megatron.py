"""Core attention of Megatron's layers, called as Megatron calls it, against PyTorch. With
Megatron-Core installed, its own mask types and packed parameters are used."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

import maskc as mc
from maskc.core.errors import MaskcError
from maskc.integrations.megatron import DotProductAttention
from tests.support import engine_stubs, exact_attention, rank_threads

MEGATRON = engine_stubs.classes(engine_stubs.MEGATRON)
AttnMaskType, PackedSeqParams = MEGATRON.AttnMaskType, MEGATRON.PackedSeqParams


def layer(
    kind=AttnMaskType.causal, cls=DotProductAttention, pg_collection=None, number=1, **config
):
    layer_config = SimpleNamespace(
        **{"attention_dropout": 0.1, "context_parallel_size": 1, **config}
    )
    return cls(
        layer_config, number, kind, "self", softmax_scale=0.3, cp_comm_type=None,
        pg_collection=pg_collection,
    ).eval()  # fmt: skip


def drawn(*shape):
    return (torch.randn(*shape, heads, 16, requires_grad=True) for heads in (4, 2, 2))


def exact(q, k, v, keep):
    """[n_q, B, H * D] of [n, B, H, D]."""
    q, k, v = (x.permute(1, 2, 0, 3) for x in (q, k, v))
    out = sdpa(q, k, v, keep, scale=0.3, enable_gqa=True).nan_to_num()
    return out.permute(2, 0, 1, 3).flatten(2)


def same(got, want, tensors):
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    seed = torch.randn_like(want)
    for x, y in zip(*(torch.autograd.grad(o, tensors, seed) for o in (got, want)), strict=True):
        torch.testing.assert_close(x, y.nan_to_num(), atol=1e-4, rtol=1e-4)


def test_types_of_masks():
    tensors = q, k, v = tuple(drawn(40, 2))
    place = torch.arange(40)
    causal = place[:, None] >= place
    hidden = torch.rand(2, 1, 40, 40) < 0.4
    for kind, keep in (
        (AttnMaskType.causal, causal), (AttnMaskType.no_mask, causal | True),
        (AttnMaskType.causal_bottom_right, causal), (AttnMaskType.arbitrary, ~hidden),
        (AttnMaskType.padding_causal, causal & ~hidden),
    ):  # fmt: skip
        got = layer(kind)(q, k, v, hidden, attn_mask_type=None)
        assert got.shape == (40, 2, 64)
        same(got, exact(q, k, v, keep), tensors)
    windowed = type("Windowed", (DotProductAttention,), {"mask": mc.window(5)})
    near = causal & (place[:, None] - place <= 5)
    same(layer(cls=windowed)(q, k, v, None), exact(q, k, v, near), tensors)


@pytest.mark.parametrize(("skip", "number"), [(None, 1), (2, 1), (2, 2), ([0, 1], 1), ([0, 1], 2)])
def test_windows_of_the_configuration(skip, number):
    tensors = q, k, v = tuple(drawn(24, 1))
    away = torch.arange(24)[:, None] - torch.arange(24)
    has_window = skip is None or (number % skip if isinstance(skip, int) else skip[number - 1])
    keep = (away >= 0) & (away <= 5) if has_window else away >= 0
    attend = layer(number=number, window_size=(5, 0), window_attn_skip_freq=skip)
    same(attend(q, k, v, None), exact(q, k, v, keep), tensors)


@pytest.mark.parametrize("kind", ["off-by-one", "learnable"])
def test_sinks_of_the_configuration(kind):
    """A sink logit per head joins the sum of weights; the checkpoint has learnable ones only."""
    q, k, v = drawn(24, 1)
    attend = layer(softmax_type=kind, params_dtype=torch.float32, num_attention_heads=4,
                   perform_initialization=True, init_method=torch.nn.init.ones_)  # fmt: skip
    learns = kind == "learnable"
    assert list(attend.state_dict()) == ["softmax_offset"] * learns
    offset = torch.full((4,), float(learns), requires_grad=True)
    scores = 0.3 * torch.einsum("qbhd,kbhd->bhqk", q, k.repeat_interleave(2, 2))
    scores = scores.masked_fill(torch.ones(24, 24, dtype=torch.bool).triu(1), -torch.inf)
    sink = offset.view(1, 4, 1, 1).expand(1, 4, 24, 1)
    weights = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
    want = torch.einsum("bhqk,kbhd->qbhd", weights, v.repeat_interleave(2, 2)).flatten(2)
    got = attend(q, k, v, None)
    if learns:
        same(got, want, (q, k, v))
        seed = torch.randn_like(want)
        (x,) = torch.autograd.grad(attend(q, k, v, None), [attend.softmax_offset], seed)
        scores = scores.detach()
        weights = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
        want = torch.einsum("bhqk,kbhd->qbhd", weights, v.detach().repeat_interleave(2, 2))
        torch.testing.assert_close(x, torch.autograd.grad(want.flatten(2), [offset], seed)[0])
    else:
        same(got, want, (q, k, v))


@pytest.mark.parametrize("padded", [False, True])
def test_packed_sequences(padded):
    ends = torch.tensor([0, 7, 8, 30], dtype=torch.int32)
    stored = torch.tensor([0, 8, 16, 40], dtype=torch.int32) if padded else None
    tokens = 44 if padded else 30  # some belong to nobody
    tensors = q, k, v = tuple(drawn(tokens))
    keep = torch.zeros(tokens, tokens, dtype=torch.bool)
    for number in range(3):
        first = int((stored if padded else ends)[number])
        own = slice(first, first + int(ends[number + 1] - ends[number]))
        n = own.stop - own.start
        keep[own, own] = torch.ones(n, n, dtype=torch.bool).tril()
    params = PackedSeqParams(
        qkv_format="thd", cu_seqlens_q=ends, cu_seqlens_kv=ends, cu_seqlens_q_padded=stored,
        cu_seqlens_kv_padded=stored, max_seqlen_q=22,
    )  # fmt: skip
    got = layer(AttnMaskType.padding_causal)(q, k, v, None, packed_seq_params=params)
    want = exact(*(x[:, None] for x in tensors), keep)[:, 0]
    assert got.shape == (tokens, 64)
    same(got, want, tensors)
    if not padded:
        params.max_seqlen_q = 21
        with pytest.raises(MaskcError, match="has 22 tokens, and max_seqlen promises 21"):
            layer(AttnMaskType.padding_causal)(q, k, v, None, packed_seq_params=params)


@pytest.mark.parametrize("kind", [AttnMaskType.causal_bottom_right, AttnMaskType.padding])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("window", [None, 2])
def test_packed_sequences_with_other_keys(kind, padded, window):
    """Cross attention: the last tokens of each sequence meet."""
    ends, of_k = (torch.tensor(x, dtype=torch.int32) for x in ([0, 3, 4, 9], [0, 5, 7, 20]))
    stored = torch.tensor([0, 4, 8, 16], dtype=torch.int32) if padded else None
    q, (_, k, v) = next(drawn(16 if padded else 9)), drawn(20)
    keep = torch.zeros(len(q), 20, dtype=torch.bool)
    for number in range(3):
        first, count = int((ends if stored is None else stored)[number]), int(ends.diff()[number])
        for i in range(count):
            end, place = int(of_k[number + 1]), int(of_k[number + 1]) - count + i
            last = end if kind is AttnMaskType.padding else place + 1
            begin = int(of_k[number]) if window is None else max(place - window, int(of_k[number]))
            keep[first + i, begin:last] = True
    params = PackedSeqParams(qkv_format="thd", cu_seqlens_q=ends, cu_seqlens_kv=of_k,
                             cu_seqlens_q_padded=stored)  # fmt: skip
    options = {} if window is None else {"window_size": (window, -1)}
    got = layer(kind, **options)(q, k, v, None, packed_seq_params=params)
    same(got, exact(*(x[:, None] for x in (q, k, v)), keep)[:, 0], (q, k, v))
    windowed = type("Windowed", (DotProductAttention,), {"mask": mc.window(5)})
    for attend, why in (
        (layer(kind, cls=windowed), "mask must be left out where cu_seqlens_q and"),
        (layer(AttnMaskType.padding_causal), "attn_mask_type must be padding, no_mask or causal_"),
    ):
        with pytest.raises(MaskcError, match=f"MC407.*{why}"):
            attend(q, k, v, None, packed_seq_params=params)


def slices(x, lengths, size, rank):
    """The tokens of a rank [tokens, ..] as Megatron cuts them: slices `rank` and 2 * size - 1 -
    rank of each sequence."""
    parts = [y.view(2 * size, -1, *y.shape[1:])[[rank, 2 * size - 1 - rank]].flatten(0, 1)
             for y in x.split(lengths)]  # fmt: skip
    return torch.cat(parts)


@pytest.mark.parametrize(("packed", "window"), [(False, None), (True, None), (True, 9)])
def test_context_parallelism(packed, window, monkeypatch):
    """Each rank gives its slices and gets theirs back, with gradients."""
    rank_threads.patch(monkeypatch)
    size, lengths = 2, [8, 16, 24] if packed else [48]
    tensors = tuple(drawn(48) if packed else drawn(48, 2))
    place = torch.arange(48)
    keep = place[:, None] >= place
    keep = keep if window is None else keep & (place[:, None] - place <= window)
    mask = None if window is None else mc.window(window)
    windowed = type("Windowed", (DotProductAttention,), {"mask": mask})
    config, params = {"context_parallel_size": size, "attention_dropout": 0.0}, None
    if packed:
        ends, stored = torch.tensor([0, 7, 23, 40]), torch.tensor([0, 8, 24, 48])
        number = torch.searchsorted(stored[1:], place, right=True)
        stays = place - stored[number] < (ends[1:] - ends[:-1])[number]
        keep = keep & (number[:, None] == number) & stays & stays[:, None]
        params = PackedSeqParams(cu_seqlens_q=ends, cu_seqlens_kv=ends, cu_seqlens_q_padded=stored,
                                 cu_seqlens_kv_padded=stored)  # fmt: skip
    groups = SimpleNamespace(cp=object())
    if window is not None:  # the batch chooses ranks and group
        config["context_parallel_size"] = 1
        params.local_cp_size, params.cp_group = size, groups.cp
    whole = [x[:, None] for x in tensors] if packed else tensors
    want = exact(*whole, keep)
    want = want[:, 0] if packed else want
    seed = torch.randn_like(want)
    wanted = torch.autograd.grad(want, tensors, seed)

    def job(rank):
        parts = [slices(x.detach(), lengths, size, rank).requires_grad_() for x in tensors]
        attend = layer(AttnMaskType.padding_causal if packed else AttnMaskType.causal, windowed,
                       pg_collection=groups, **config)  # fmt: skip
        out = attend(*parts, None, packed_seq_params=params)
        return [out.detach(), *torch.autograd.grad(out, parts, slices(seed, lengths, size, rank))]

    for rank, results in enumerate(rank_threads.run(size, job)):
        for got, exactly in zip(results, (want, *wanted), strict=True):
            part = slices(exactly.detach().nan_to_num(), lengths, size, rank)
            torch.testing.assert_close(got, part, atol=1e-4, rtol=1e-4)


def test_what_context_parallelism_refuses():
    q, k, v = drawn(8, 1)
    groups = SimpleNamespace(cp=object())

    def shared(kind=AttnMaskType.causal, dropout=0.0):
        return layer(kind, context_parallel_size=2, attention_dropout=dropout, pg_collection=groups)

    ends = torch.tensor([0, 6, 16])
    params = PackedSeqParams(cu_seqlens_q=ends, cu_seqlens_kv=ends)
    other = PackedSeqParams(cu_seqlens_q=ends, cu_seqlens_kv=ends.clone())
    for call, why in (
        (lambda: layer(softmax_type="off-by-one", params_dtype=torch.float32, num_attention_heads=4,
                       context_parallel_size=2, pg_collection=groups)(q, k, v),
         "softmax_type must be vanilla with"),
        (lambda: shared(AttnMaskType.arbitrary)(q, k, v, q > 0), "attention_mask must be None"),
        (lambda: shared(dropout=0.1).train()(q, k, v), "attention_dropout must be 0 with"),
        (lambda: shared(AttnMaskType.no_mask)(q, k[:4], v[:4]),
         "attention_type must be 'self' with"),
        (lambda: shared()(q[:, 0], k[:, 0], v[:, 0], packed_seq_params=params),
         "must be multiples of 4"),
        (lambda: shared()(q[:, 0], k[:, 0], v[:, 0], packed_seq_params=other),
         "cu_seqlens_kv must be the tensor of queries with"),
        (lambda: layer(context_parallel_size=2), "context_parallel_size must be 1, or pg_coll"),
    ):  # fmt: skip
        with pytest.raises(MaskcError, match=f"MC407.*{why}"):
            call()


def test_what_is_refused():
    q, k, v = drawn(4, 1)
    with pytest.raises(MaskcError, match="attention_bias must be None"):
        layer()(q, k, v, None, attention_bias=q)
    for name in ("qk_clip", "log_max_attention_logit", "apply_query_key_layer_scaling"):
        with pytest.raises(MaskcError, match=f"{name} must be False"):
            layer(**{name: True})
    with pytest.raises(MaskcError, match="attn_mask_type must be causal_bottom_right"):
        layer()(q[2:], k, v, None)
    with pytest.raises(MaskcError, match="window_size must be unset with an attention_mask"):
        layer(AttnMaskType.arbitrary, window_size=(5, 0))(q, k, v, q[..., 0] > 0)
    with pytest.raises(MaskcError, match="attn_mask_type must be causal or"):
        layer()(q, k, v, None, attn_mask_type="other")
    ends = torch.tensor([0, 4])
    packed = PackedSeqParams(cu_seqlens_q=ends, cu_seqlens_kv=ends)
    windowed = {"window_size": (2, 0)}
    for call, why in (
        (lambda: layer(AttnMaskType.arbitrary)(q, k, v), "attention_mask must be a tensor of bool"),
        (lambda: layer(AttnMaskType.padding)(q, k, v, q[..., 0]), "attention_mask .* torch.float"),
        (lambda: layer(AttnMaskType.padding)(q, k, v, (q, q)), "attention_mask .* found tuple"),
        (lambda: layer(AttnMaskType.arbitrary)(q[:, 0], k[:, 0], v[:, 0], packed_seq_params=packed),
         "attention_mask must be a tensor of booleans for attn_mask_type arbitrary"),
        (lambda: layer(softmax_type="relu"), "softmax_type must be vanilla or"),
        (lambda: layer(window_size=4), "window_size must be a pair"),
        (lambda: layer(window_attn_skip_freq=0, **windowed), "skip_freq must be a positive"),
        (lambda: layer(number=3, window_attn_skip_freq=[0, 1], **windowed), "at least 3 entries"),
    ):  # fmt: skip
        with pytest.raises(MaskcError, match=f"MC407.*{why}"):
            call()


def test_the_deterministic_mode_of_the_configuration(monkeypatch):
    options = []
    monkeypatch.setattr(
        "maskc.integrations.megatron.attention",
        lambda q, *_, **given: options.append(given["deterministic"]) or q,
    )
    for mode in (True, False):
        layer(deterministic_mode=mode)(*drawn(4, 1))
    assert options == [True, False]


# ------------------------------------------------------------------ torchtitan


VarlenMetadata = engine_stubs.classes(engine_stubs.torchtitan()).VarlenMetadata
B, L = 2, 20
ENDS = torch.tensor([0, 7, 20, 23, 40], dtype=torch.int32)
"""Documents of both rows one after another."""


@pytest.fixture(scope="module")
def module():
    stubs = engine_stubs.torchtitan()
    with engine_stubs.installed(stubs, "maskc.integrations.torchtitan") as loaded:
        yield loaded


def exact_titan(q, k, v, keep, scale):
    """out [B, L, N, H] and lse [B, L, N]."""
    results = exact_attention.exact(*(x.transpose(1, 2) for x in (q, k, v)), keep, scale=scale)
    return tuple(x.transpose(1, 2) for x in results)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("window", [(-1, 0), (4, 0), (-1, -1)])
@pytest.mark.parametrize("mask", [None, mc.strided(3)])
def test_documents_windows_and_masks(module, packed, window, mask):
    layer = module.InnerAttention.Config(window_size=window, mask=mask).build()
    tensors = q, k, v = [torch.randn(B, L, heads, 16, requires_grad=True) for heads in (4, 2, 2)]
    metadata = VarlenMetadata(ENDS, ENDS, 17, 17) if packed else None
    place = torch.arange(L)
    away = place[:, None] - place
    keep = torch.ones(B, 1, L, L, dtype=torch.bool)
    if window[1] == 0:
        keep = keep & (away >= 0)
    if window[0] > 0:
        keep = keep & (away <= window[0])
    if mask is not None:
        keep = keep & (packed_place(packed)[:, None, None] % 3 == 0)
    if packed:
        document = torch.searchsorted(ENDS[1:], torch.arange(B * L), right=True).view(B, 1, L)
        keep = keep & (document[..., None] == document[..., None, :])
    seen = keep.any(-1).transpose(1, 2)[..., None].expand(B, L, 4, 1)
    options = {"attention_masks": metadata, "scale": 0.3, "enable_gqa": True}
    out = layer(q, k, v, **options)
    want, lse = exact_titan(q, k, v, keep, 0.3)
    want = torch.where(seen, want, 0)
    torch.testing.assert_close(out.double(), want, atol=1e-5, rtol=1e-5)
    seed = torch.randn_like(out)
    for got, wanted in zip(
        torch.autograd.grad(out, tensors, seed), torch.autograd.grad(want, tensors, seed.double()),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(got, wanted.nan_to_num(), atol=1e-4, rtol=1e-4)
    pair = layer(q, k, v, **options, out_transform=lambda *x: x)
    torch.testing.assert_close(pair[0], out)
    torch.testing.assert_close(pair[1].double(), lse, atol=1e-5, rtol=1e-5)


def packed_place(packed):
    """The positions [B, L] by which a mask counts: rows one after another if packed."""
    places = torch.arange(B * L).view(B, L)
    return places if packed else places % L


def test_what_torchtitan_refuses(module):
    layer = module.InnerAttention.Config().build()
    x = torch.zeros(1, 4, 2, 16)
    for options, why in (
        ({"attention_masks": {}}, "attention_masks of type dict"),
        ({"attention_masks": VarlenMetadata(ENDS, ENDS.clone(), 4, 4)}, "other documents of keys"),
        ({"score_mod": max}, r"the arguments \['score_mod'\]"),
    ):
        with pytest.raises(MaskcError, match=f"MC665.*{why}"):
            layer(x, x, x, **options)


@pytest.mark.skipif(engine_stubs.INSTALLED["torchtitan"], reason="has the class")
def test_older_versions():
    stubs = {"torchtitan.models.common.attention": {}}
    with (
        pytest.raises(MaskcError, match=r"MC613.*needs torchtitan 0\.3 or later"),
        engine_stubs.installed(stubs, "maskc.integrations.torchtitan"),
    ):
        pass


def test_the_order_of_tokens_for_context_parallelism():
    """Zigzag: rank r has chunk r from the front and chunk r from the back."""
    ranks, n = 4, 1024
    plan = mc.distributed.plan(mc.causal(), n, ranks, layout="zigzag")
    balancer = mc.distributed.load_balancer(plan)
    chunks = torch.arange(n).view(2 * ranks, -1)
    order = torch.cat([x for r in range(ranks) for x in (chunks[r], chunks[2 * ranks - 1 - r])])
    assert torch.equal(balancer.generate_permutation(), order[None])
    back = balancer.generate_permutation(restore=True)
    assert torch.equal(order[back[0]], torch.arange(n))
