"""The benchmark over pages: each library gets the arguments that describe the step. Libraries are
stubs that compute attention from these arguments, sequence by sequence."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from benchmarks import paging
from benchmarks.paging import Row, Step, measure, rows

SMALL = {"heads": (4, 2), "dim": 16, "device": "cpu", "dtype": torch.float32}
STEPS = [
    Row("decode", (40, 40, 40), 1, 16, **SMALL),
    Row("ragged", (40, 7, 33), 1, 8, **SMALL),
    Row("chunks", (40, 9, 33), 5, 16, **SMALL),
    Row("trees", (40, 9, 33), 7, 16, is_tree=True, **SMALL),
]


def attention(q, k, v, keep):
    """fp64; q [new, heads, D], k and v [keys, kv heads, D], keep [new, keys]."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * q.shape[-1] ** -0.5
    weights = scores.masked_fill(~keep, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v).float()


def rows_of(pages, n, k_pool, v_pool):
    return (pool[pages.long()].flatten(0, 1)[:n] for pool in (k_pool, v_pool))


def last(new, n):
    return torch.arange(n) <= torch.arange(n - new, n)[:, None]


class FlashAttention:
    """flash_attn_varlen_func with q [S, new, heads, D], pools and tables."""

    @staticmethod
    def run(q, k, v, *, seqused_k, page_table, max_seqlen_q, max_seqlen_k, causal=False,
            mask_mod=None, aux_tensors=()):  # fmt: skip
        assert page_table.dtype == seqused_k.dtype == torch.int32
        assert max_seqlen_q == q.shape[1]
        assert max_seqlen_k == seqused_k.max()
        out = []
        for sequence, n in enumerate(seqused_k.tolist()):
            keep = last(q.shape[1], n) if causal else torch.tensor(
                [[mask_mod(sequence, i, key, *aux_tensors) for key in range(n)]
                 for i in range(q.shape[1])]
            )  # fmt: skip
            out.append(attention(q[sequence], *rows_of(page_table[sequence], n, k, v), keep))
        return torch.stack(out), None


class FlashInfer:
    """A wrapper; CSR page tables, and the tokens of each sequence's last page."""

    def __init__(self, space, layout, **options):
        assert (space.dtype, layout) == (torch.uint8, "NHD")

    def plan(self, *arrays, q_data_type, kv_data_type, causal=True, custom_mask=None):
        *queries, starts, pages, last_page, heads, kv_heads, dim, page = arrays
        assert (heads, kv_heads, dim, q_data_type) == (4, 2, 16, kv_data_type)
        counts = starts.diff()
        self.q_starts = queries[0] if queries else torch.arange(len(starts))
        self.pages = [pages[a : a + n] for a, n in zip(starts, counts, strict=False)]
        self.lengths = ((counts - 1) * page + last_page).tolist()
        self.keep = [last(n, m) for n, m in zip(self.q_starts.diff(), self.lengths, strict=True)]
        if custom_mask is not None:
            parts = custom_mask.split([keep.numel() for keep in self.keep])
            self.keep = [x.view_as(keep) for x, keep in zip(parts, self.keep, strict=True)]

    def run(self, q, pools):
        parts = zip(q.split(self.q_starts.diff().tolist()), self.pages, self.lengths, self.keep,
                   strict=True)  # fmt: skip
        return torch.cat([attention(x, *rows_of(pages, n, *pools), keep)
                          for x, pages, n, keep in parts])  # fmt: skip


class Node:
    """A tensor of a graph."""

    def __init__(self, is_result):
        self.is_result = is_result

    def set_output(self, value):
        return self

    set_dim = set_stride = set_output


class Graph:
    """cuDNN's graph: heads before tokens, lengths and tables of rank 4."""

    def __init__(self, io_data_type, **kinds):
        assert io_data_type == "float32"

    def tensor_like(self, x):
        return Node(is_result=False)

    def sdpa(self, **options):
        self.options = options
        return Node(is_result=True), None

    def get_workspace_size(self):
        return 0

    def __getattr__(self, name):  # stages of building
        return lambda *plans: None

    def execute(self, places, space):
        nodes = self.options
        q, k, v, table, lens = (places[nodes[name]] for name in (
            "q", "k", "v", "paged_attention_k_table", "seq_len_kv"))  # fmt: skip
        assert nodes["use_padding_mask"]
        assert nodes["use_causal_mask_bottom_right"] == (q.shape[2] > 1)
        assert (places[nodes["seq_len_q"]] == q.shape[2]).all()
        (out,) = (x for node, x in places.items() if node.is_result)
        for sequence, n in enumerate(lens.flatten().tolist()):
            pages = table[sequence].flatten()
            rows = rows_of(pages, n, k.transpose(1, 2), v.transpose(1, 2))
            result = attention(q[sequence].transpose(0, 1), *rows, last(q.shape[2], n))
            out[sequence] = result.transpose(0, 1)


@pytest.fixture
def libraries(monkeypatch):
    def install(name, **contents):
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    for name in ("flash_attn", "flash_attn.cute"):
        install(name)
    install("flash_attn.cute.interface", flash_attn_varlen_func=FlashAttention.run)
    install("flashinfer", BatchDecodeWithPagedKVCacheWrapper=FlashInfer,
            BatchPrefillWithPagedKVCacheWrapper=FlashInfer)  # fmt: skip
    install("cudnn", pygraph=Graph, heur_mode=SimpleNamespace(A=0),
            data_type=SimpleNamespace(FLOAT="float32"))  # fmt: skip
    monkeypatch.setattr("benchmarks.paged_rivals._fa4_tree", lambda: _tree)
    return install


def _tree(sequence, query, key, enter, leave, of_query):
    time = of_query[sequence, query]
    return bool(enter[sequence, key] <= time < leave[sequence, key])


@pytest.mark.parametrize("row", STEPS, ids=lambda row: row.name)
def test_every_library_computes_the_row(libraries, row):
    report = measure(row, rounds=1)
    names = {"kept", "made", "fa4", "flashinfer"}
    names |= set() if row.is_tree else {"contiguous", "cudnn"}
    names |= {"sdpa"} if row.name == "decode" else set()
    assert set(report["ms"]) == set(report["error"]) == names
    assert set(report["skipped"]) == ({"cudnn"} if row.is_tree else set())
    assert report["ratio"] > 0
    assert max(report["error"].values()) < 1e-5


def test_libraries_that_are_missing_or_wrong_are_named(libraries, monkeypatch):
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    libraries("flash_attn.cute.interface", flash_attn_varlen_func=lambda q, *_, **__: q + 1)
    libraries("cudnn")
    report = measure(STEPS[1], rounds=1)
    assert report["skipped"]["fa4"].startswith("wrong by")
    assert "flashinfer" in report["skipped"]["flashinfer"]
    assert "AttributeError" in report["skipped"]["cudnn"]
    assert report["ratio"] is None
    assert set(report["ms"]) == {"kept", "made", "contiguous"}


def test_a_wrong_result_of_maskc_ends_the_run(monkeypatch):
    wrong = {"kept": lambda: torch.ones(3, 4, 16)}
    monkeypatch.setattr(paging, "over_pages", lambda step: wrong)
    with pytest.raises(SystemExit, match="kept is wrong by"):
        measure(STEPS[0], rounds=1)


def test_trees_are_trees():
    """Each new token sees the context, itself, and what its parent sees."""
    step = Step(STEPS[3])
    for sequence, n in enumerate(step.row.lengths):
        keep = step.kept(sequence)
        first = n - step.row.new
        assert keep[:, :first].all()
        among_new = keep[:, first:]
        assert among_new.diagonal().all()
        assert not among_new.triu(1).any()
        sets = [set(x.nonzero().flatten().tolist()) for x in among_new]
        for i, seen in enumerate(sets):
            above = seen - {i}
            assert not above or sets[max(above)] == above


def test_the_rows():
    labels = [row.label for row in rows()]
    assert len(set(labels)) == len(labels)
    assert {row.page for row in rows() if row.name == "decode 32 x 8192"} >= {16, 64, 256}
    sizes = {row.name: (len(row.lengths), row.new, row.heads) for row in rows()}
    assert sizes["decode 1 x 8192, 28 / 4 heads"] == (1, 1, (28, 4))
    assert sizes["6 x 512 behind 4k to 32k"] == (6, 512, (32, 8))
    assert sizes["16 trees of 64 behind 1k to 8k"] == (16, 64, (32, 8))
