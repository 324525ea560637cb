"""Tile lists of any data, made on an emulated card: results, and lists that are kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.layout.work import work_list
from maskc.runtime.device_lists.data import DataLists
from maskc.runtime.device_lists.lists_launch import ListsPlan
from maskc.runtime.device_lists.watched import Watched
from tests.support.cases import LISTS, LISTS_BY_HEAD, LISTS_OF_TARGETS, N, padding
from tests.support.emulated import emulated_card  # noqa: F401
from tests.support.exact_attention import exact, tensors
from tests.support.hopper import with_rules
from tests.support.judged_lists import dense, judged, on_device
from tests.support.thorough import alternating, chiefly, more, pairwise

CAUSAL = mc.causal()


def made(n_q=N, n_kv=N, *, batch=2, heads=4, kv_heads=2, dim=64, seed=0):
    return tensors(
        n_q, n_kv, dim, torch.bfloat16, seed, batch=batch, heads=heads, kv_heads=kv_heads,
        device="cpu",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "deterministic"),
    alternating(
        chiefly(
            list(LISTS),
            "pages of a pool",
            "distances off the grid, or flagged keys",
            "padding flags",
            "prefix",
            "tree",
            "block table",
        ),
        [False, True],
    ),
)
def test_results(hopper, name, deterministic):
    """Results with the device's lists are those with the host's, and near fp64's."""
    judged(LISTS[name], made(), 1, deterministic=deterministic)


_SOME = (
    "padding, documents and a window", "tree", "block table", "documents", "lengths of documents",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "target"),
    alternating(
        chiefly(_SOME, "padding, documents and a window", "tree", "lengths of documents"),
        ["sm_80", "simt"],
    ),
)
def test_of_every_target(hopper, name, target):
    """On other targets blocks find their work from their index; they have the bits of lists that
    the host made."""
    judged(LISTS_OF_TARGETS[name], made(), 1, target, same_bits="all")


# ------------------------------------------------------------------ heads with lists of their own


@pytest.mark.parametrize(
    ("name", "target", "deterministic"),
    pairwise(
        list(LISTS_BY_HEAD),
        ["sm_90a", "sm_80", "simt"],
        [False, True],
        tried=[
            ("tables", "sm_90a", True),
            ("tables of all sequences", "sm_80", False),
            ("masks", "simt", False),
            ("two masks", "sm_90a", False),
        ],
    ),
)
def test_heads_with_lists_of_their_own(hopper, name, target, deterministic):
    same_bits = () if target == "sm_90a" else "all"
    judged(LISTS_BY_HEAD[name], made(), 3, target, by_head=True, same_bits=same_bits, bound=3e-2,
           deterministic=deterministic)  # fmt: skip


@pytest.mark.parametrize(
    ("target", "options"),
    alternating(
        ["sm_90a", "sm_80", "simt"], [{"nan_safe": True}, {"normalizer": "entmax", "alpha": 1.5}]
    ),
)
def test_with_other_normalizers_and_safe_values(hopper, target, options):
    mask = mc.flags("x") & mc.window(100)
    attn, (q, k, v, dout) = mask.compile(head_dim=64, target=target), made()
    data = {"x": padding(np.random.default_rng(1))}
    there = {key: on_device(value) for key, value in data.items()}
    results = attn(q, k, v, return_lse=True, **options, **there)
    assert isinstance(attn._last[1], ListsPlan)
    want = attn(q, k, v, return_lse=True, **options, **data)
    assert all(map(torch.equal, results, want))
    if target == "simt" or "alpha" in options:
        rest = (q, k, v, *results, dout)
        gradients = attn.backward(*rest, **options, **there)
        assert isinstance(attn._last[1], ListsPlan)
        for mine, its in zip(gradients, attn.backward(*rest, **options, **data), strict=True):
            torch.testing.assert_close(mine, its, atol=2e-2, rtol=2e-2)


@pytest.fixture
def launched(monkeypatch):
    """Return how often lists were made."""
    counts, launch = {"data_bounds": 0}, ListsPlan._launch

    def counted(self, given, lists, *rest):
        counts["data_bounds"] += lists.fresh
        launch(self, given, lists, *rest)

    monkeypatch.setattr(ListsPlan, "_launch", counted)
    return counts


SCORED = {
    "formula": (lambda s, q, k, h: s + mc.table("bias")[h, q - k], {}),
    "dropout": (None, {"dropout_p": 0.2, "dropout_seed": 5}),
    "both": (lambda s, q, k, h: s * mc.table("bias")[h, k], {"dropout_p": 0.2, "dropout_seed": 5}),
}


@pytest.mark.parametrize(
    ("name", "target", "kind"),
    pairwise(["padding, documents and a window", "tree", "documents"], ["sm_90a", "sm_80", "simt"],
             list(SCORED), never=[("both", "tree"), ("both", "simt")],
             tried=[("documents", "sm_90a", "both"), ("tree", "sm_90a", "formula"),
                    ("tree", "sm_80", "formula"), ("documents", "simt", "formula"),
                    ("padding, documents and a window", "sm_80", "dropout")]),
)  # fmt: skip
def test_formulas_and_dropout(hopper, launched, name, target, kind):
    """The device makes the lists, and keeps them, whatever softmax sees; of what is both, the parts
    are enough on some."""
    mask, data = LISTS_OF_TARGETS[name].drawn(1)
    there = {key: on_device(value) for key, value in data.items()}
    function, options = SCORED[kind]
    score = function and mc.score(function)
    if score:
        options = options | {"bias": torch.randn(4, 2 * N, generator=torch.manual_seed(0))}
    attn, (q, k, v, dout) = mask.compile(64, target=target, score=score), made()
    assert attn.target.name == target
    results = attn(q, k, v, return_lse=True, **options, **there)
    again = attn(q, k, v, return_lse=True, **options, **there)
    assert all(map(torch.equal, results, again))
    assert launched["data_bounds"] == 1
    gradients = attn.backward(q, k, v, *results, dout, **options, **there)
    assert launched["data_bounds"] == 2
    want = attn(q, k, v, return_lse=True, **options, **data)
    exact_ = attn.backward(q, k, v, *want, dout, **options, **data)
    assert launched["data_bounds"] == 2
    for number, (one, two) in enumerate(zip((*results, *gradients), (*want, *exact_), strict=True)):
        # shares of a table's entry cancel: the largest entry tells the rounding of them all
        largest = max(1.0, two.abs().max().item()) if number == 5 else 1.0
        torch.testing.assert_close(one, two, atol=3e-2 * largest, rtol=3e-2)


# ------------------------------------------------------------------ lists that are kept


def test_unchanged_arrays_make_no_lists(hopper, launched):
    attn, given = (mc.flags("x") & CAUSAL).compile(head_dim=64, target="sm_90a"), made()
    flags = torch.ones(2, N, dtype=torch.bool)
    flags[:, 200:] = False
    first = attn(*given[:3], x=flags)
    assert torch.equal(attn(*given[:3], x=flags), first)  # the next layer
    assert launched["data_bounds"] == 1
    flags[:, 100:] = False  # the same array, written into
    second = attn(*given[:3], x=flags)
    assert launched["data_bounds"] == 2
    want = attn(*given[:3], x=flags.numpy())
    torch.testing.assert_close(second, want, atol=2e-2, rtol=2e-2)
    other = flags.clone()  # equal, but another one: nobody has compared them
    assert torch.equal(attn(*given[:3], x=other), second)
    assert launched["data_bounds"] == 3
    assert torch.equal(attn(*given[:3], x=flags), second)  # of two both are kept
    assert launched["data_bounds"] == 3


def test_unchanged_documents_make_no_lists(hopper, launched):
    attn, given = (mc.documents("x") & CAUSAL).compile(head_dim=64, target="sm_90a"), made(120, 120)
    ends = torch.tensor([0, 50, 70, 120])
    first, again = (attn(*given[:3], x=mc.cu_seqlens(ends, max_seqlen=60)) for _ in range(2))
    assert torch.equal(first, again)
    assert launched["data_bounds"] == 1
    ends[1] = 20
    changed = attn(*given[:3], x=mc.cu_seqlens(ends, max_seqlen=60))
    assert launched["data_bounds"] == 2
    assert torch.equal(changed, attn(*given[:3], x=mc.cu_seqlens(ends.numpy(), max_seqlen=60)))


def test_a_call_like_the_last_one_is_known_again(hopper, monkeypatch):
    """Data are read anew only where a layout or a number differs, or one array served twice."""
    read, bind = [], DataLists.bind
    monkeypatch.setattr(DataLists, "bind", lambda *args: read.append(1) or bind(*args))
    w = mc.param("w", 40)
    mask = mc.intervals("x") & mc.flags("f") & mc.where(lambda q, k: q - k < w) & CAUSAL
    attn, given = mask.compile(head_dim=64, target="sm_90a"), made()
    low, high = (torch.full((2, N), each, dtype=torch.int32) for each in (0, N - 1))
    flags = torch.ones(N, dtype=torch.bool)

    def called(reads, **data):
        data = {"x": (low, high), "f": flags, "w": 40} | data
        out = attn(*given[:3], **data)
        assert len(read) == reads
        on_host = {name: value if name == "w" else _on_host(value) for name, value in data.items()}
        want, _ = exact(*given[:3], dense(mask, on_host))
        torch.testing.assert_close(out.double(), want, atol=2e-2, rtol=2e-2)

    called(1)
    called(1)
    low[1] = 30  # written into
    called(1)
    flags[100:120] = False
    called(1)
    called(2, w=50)
    called(2, w=50)
    called(3, x=(high, low))  # the other way round: nothing is seen
    called(3, x=(low, high.clone() - 70), f=flags.clone())
    called(3, x=(high, low))
    called(3, x=(low, low))
    called(3)
    called(4, x=(low.long(), high))
    called(5, x=(low, low), w=30)
    called(6, x=(low, high), w=30)  # other arrays in the places of one
    called(7, x=(low.repeat(1, 2)[:, :N], high), w=30)
    called(7, x=((low + 20).repeat(1, 2)[:, :N], high.clone()), w=30)


def test_arrays_whose_writes_nobody_counts(hopper, launched, monkeypatch):
    """Every call makes lists, in memory of earlier ones."""
    new, memories = ListsPlan._new, []
    monkeypatch.setattr(ListsPlan, "_new", lambda *given: memories.append(0) or new(*given))
    attn, given = (mc.flags("x") & CAUSAL).compile(head_dim=64, target="sm_90a"), made()
    with torch.inference_mode():
        flags = torch.ones(N, dtype=torch.bool)
    for number in range(4):
        with torch.inference_mode():
            flags[:] = torch.arange(N) % 4 <= number
        out = attn(*given[:3], x=flags)
        want, _ = exact(*given[:3], dense(mc.flags("x") & CAUSAL, {"x": flags.numpy()}))
        torch.testing.assert_close(out.double(), want, atol=2e-2, rtol=2e-2)
        assert launched["data_bounds"] == number + 1
    assert len(memories) == 2


def _on_host(value):
    return tuple(map(_on_host, value)) if isinstance(value, tuple) else value.numpy()


@pytest.mark.parametrize("written", [False, True])
def test_captured_arrays_that_are_written_into(hopper, launched, written):
    keys = torch.tensor([N // 2, N])
    mask = mc.from_mask_mod(lambda b, h, q, k: (k < keys[b]) & (k <= q))
    attn, given = mask.compile(head_dim=64, target="sm_90a"), made()
    first = attn(*given[:3])
    if written:
        keys[1] = 40
    again = attn(*given[:3])
    assert launched["data_bounds"] == 1 + written
    assert torch.equal(first[1], again[1]) is not written
    assert torch.equal(first[0], again[0])


def test_what_holds_arrays_is_told_apart():
    x = torch.zeros(4)
    held = [(x,), [x], mc.cu_seqlens(x, max_seqlen=1), x, (x, x), mc.cu_seqlens(x)]
    told = [Watched.of({"x": each}, None) for each in held]
    for number, mine in enumerate(told):
        again = [mine.again({"x": each}, None) for each in held]
        assert [found is mine for found in again] == [each is held[number] for each in held]


def test_arrays_that_are_gone_are_not_mistaken(hopper):
    attn, given = (mc.flags("x") & CAUSAL).compile(head_dim=64, target="sm_90a"), made()
    for keys in (100, 250, 30, 299):
        flags = torch.arange(N) < keys  # may lie where the last one lay
        out = attn(*given[:3], x=flags)
        want = attn(*given[:3], x=flags.numpy())
        torch.testing.assert_close(out, want, atol=2e-2, rtol=2e-2)
        del flags


def test_values_beyond_32_bits_are_spoilt_and_said(hopper):
    mask = mc.documents("doc") & mc.flags("x") & CAUSAL
    attn, given = mask.compile(head_dim=64, target="sm_90a"), made()
    flags, ids_ = torch.ones(N, dtype=torch.bool), torch.zeros(N, dtype=torch.int64)
    fine = attn(*given[:3], x=flags, doc=ids_)
    assert not fine.isnan().any()
    ids_[17] = 1 << 40
    assert attn(*given[:3], x=flags, doc=ids_).isnan().all()
    with pytest.raises(mc.MaskcError, match="did not fit 32 bits"):
        attn(*given[:3], x=flags, doc=ids_)
    ids_[17] = 0
    assert torch.equal(attn(*given[:3], x=flags, doc=ids_), fine)


@pytest.mark.parametrize("beside", [more(mc.flags("x")), CAUSAL])
def test_lists_that_were_found_right_are_not_doubted_again(hopper, beside):
    """Whatever is of 64 bits may be wrong: results are spoilt by a launch behind the pass, until
    the host has seen that they need not be."""
    data = {"doc": torch.zeros(2, N, dtype=torch.int64)}
    if beside is not CAUSAL:
        data["x"] = torch.ones(2, N, dtype=torch.bool)
    attn, given = (mc.documents("doc") & beside).compile(head_dim=64, target="sm_90a"), made()

    def launches(spoilt=0):
        before = len(hopper.launches)
        out = attn(*given[:3], **data)
        assert int(out.isnan().all()) == spoilt
        return [entry.rsplit("_", 1)[-1] for entry, _ in hopper.launches[before:]]

    assert launches()[-2:] == ["forward", "results"]
    assert launches() == ["forward"]
    data["doc"][0, 9] = 1 << 40
    assert launches(1)[-2:] == ["forward", "results"]
    with pytest.raises(mc.MaskcError, match="did not fit 32 bits"):
        launches()
    assert launches(1) == ["forward", "results"]  # kept, and still wrong
    data["doc"][0, 9] = 0
    assert launches()[-2:] == ["forward", "results"]
    assert launches() == ["forward"]


def test_a_repeated_call_is_the_latest(hopper):
    """`last_sources` follows it, though its lists and its plan were kept."""
    attn, given = mc.flags("x").compile(head_dim=64, target="sm_90a"), made()
    data = {"x": on_device(padding(np.random.default_rng(0)))}
    results = attn(*given[:3], return_lse=True, **data)
    forward = attn.last_sources
    attn.backward(*given[:3], *results, given[3], **data)
    backward = attn.last_sources
    assert forward != backward
    for _ in range(2):
        attn(*given[:3], return_lse=True, **data)
        assert attn.last_sources == forward
        attn.backward(*given[:3], *results, given[3], **data)
        assert attn.last_sources == backward


@pytest.mark.parametrize("n_q", [1, 9])
def test_few_queries_share_a_tile(hopper, n_q):
    """Query heads of a key/value head are rows of one tile, as they are with data on the host."""
    mask = mc.flags("x") & mc.flags("y", on="q") & CAUSAL
    attn, given = mask.compile(head_dim=64, target="sm_90a"), made(n_q, N)
    rng = np.random.default_rng(0)
    data = {"x": rng.random((2, N)) < 0.5, "y": rng.random((2, N)) < 0.8}
    out = attn(*given[:3], **{key: on_device(value) for key, value in data.items()})
    assert attn.last_sources[-1].endswith("pack_gqa")
    live = mask.dense(n_q, N, **data)[:, None]
    torch.testing.assert_close(out.double(), exact(*given[:3], live)[0], atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("number", [1, 132])
@pytest.mark.parametrize("shared", [False, True])
def test_rows_of_few_queries_are_cut(hopper, monkeypatch, number, shared):
    """Results have the bits of data on the host: lengths from none of all keys to all."""
    monkeypatch.setattr(work_list, "_MULTIPROCESSORS", number)
    mask, n = mc.flags("x") & CAUSAL, 1300
    attn = with_rules(
        mask.compile(head_dim=64, target="sm_90a"), {"few_tiles": 1, "uneven_tiles": 4}, {}
    )
    given = made(2, n, batch=5)
    data = np.arange(n) < np.array([[0], [1], [130], [700], [n]])
    data = data[3:4] if shared else data
    before = len(hopper.launches)
    found, lse = attn(*given[:3], return_lse=True, x=on_device(data))
    assert [entry for entry, _ in hopper.launches[before:]].count("attention_forward") == 1
    assert attn.last_sources[-1].endswith("pack_gqa")
    live = mask.dense(2, n, x=data)
    live = live[:, None] if live.ndim == 3 else live
    torch.testing.assert_close(found.double(), exact(*given[:3], live)[0], atol=2e-2, rtol=2e-2)
    host, level = attn(*given[:3], return_lse=True, x=data)
    assert torch.equal(found, host)
    assert torch.equal(lse, level)
    again, _ = attn(*given[:3], return_lse=True, x=on_device(data))
    assert torch.equal(found, again)


# ------------------------------------------------------------------ arrays that formulas captured


def captured_masks(n, heads):
    """mask_mods over tensors of a batch, as FlexAttention users write them."""
    rng = np.random.default_rng(0)
    doc = torch.tensor(np.sort(rng.integers(0, 4, (2, n)), axis=1))
    lengths = torch.tensor([n // 3, n - 5])
    table = torch.tensor(rng.random((2, heads, -(-n // 64), -(-n // 64))) < 0.5)
    ids = torch.tensor(rng.integers(-1, 3, (2, n)))
    kept = torch.arange(n + 3) < torch.tensor([[0], [n - 9]])
    low, high = (torch.tensor(rng.integers(-9, n + 9, (2, n)), dtype=torch.int32) for _ in "ab")
    times = torch.arange(n), torch.tensor(np.minimum(np.arange(n) + rng.integers(1, 60, n), n))
    tree = torch.tensor(rng.random((2, n, n)) < 0.5)
    return {
        "packed documents": lambda b, h, q, k: (doc[b, q] == doc[b, k]) & (k <= q),
        "ids in no order": lambda b, h, q, k: ids[b, q] == ids[b, k],
        "ids of one side": lambda b, h, q, k: doc[b, q] == ids[b, k],
        "padding": lambda b, h, q, k: kept[b, k] & (k <= q),
        "padding of both sides": lambda b, h, q, k: kept[b, k] & kept[b, q],
        "intervals": lambda b, h, q, k: (low[b, q] <= k) & (k < high[b, q]),
        "times": lambda b, h, q, k: (times[0][k] <= times[0][q]) & (times[0][q] < times[1][k]),
        "a padded tree": lambda b, h, q, k: tree[b, q, k] & (k < lengths[b]),
        "lengths": lambda b, h, q, k: (k < lengths[b]) & (doc[b, q] == doc[b, k]) & (k <= q),
        "a table of every head": lambda b, h, q, k: table[b, h, q // 64, k // 64] & (k <= q),
    }


@pytest.mark.parametrize("name", captured_masks(9, 1))
def test_captured_arrays_are_read_where_they_are(hopper, name):
    n, heads = 100 if name == "a padded tree" else 150, 2
    mask_mod = captured_masks(n, heads)[name]
    mask, given = mc.from_mask_mod(mask_mod), made(n, n, heads=heads, kv_heads=1)
    attn = mask.compile(head_dim=64, target="sm_90a", n_heads=heads)
    out = attn(*given[:3])
    assert isinstance(attn._last[1], ListsPlan)
    place = [torch.arange(size) for size in (2, heads, n, n)]
    live = mask_mod(*(x.reshape([-1] + [1] * (3 - i)) for i, x in enumerate(place)))
    want, _ = exact(*given[:3], live)
    torch.testing.assert_close(out.double(), want, atol=2e-2, rtol=2e-2)


def test_tables_of_pairs_with_many_queries_are_read_on_the_host(hopper):
    """A list of the device keeps all their tiles; the host drops those without a pair."""
    n = 200
    tree = torch.ones(n, n, dtype=torch.bool).tril()
    attn = mc.from_mask_mod(lambda b, h, q, k: tree[q, k]).compile(head_dim=64, target="sm_90a")
    q, k, v = made(n, n)[:3]
    attn(q[:, :, :128], k, v)
    assert isinstance(attn._last[1], ListsPlan)
    out = attn(q, k, v)
    assert not isinstance(attn._last[1], ListsPlan)
    torch.testing.assert_close(out.double(), exact(q, k, v, tree)[0], atol=2e-2, rtol=2e-2)
