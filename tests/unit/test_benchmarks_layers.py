"""Rows of the benchmarks that are named by models: layers, and `benchmarks.batches`.

Both definitions of a mask agree, every implementation computes the row, the judge sees mistakes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import maskc as mc
from benchmarks import batches, layers
from benchmarks.batch_rows import ROWS
from benchmarks.layers import IMPLS, LAYERS, MODELS, Judge, measured
from maskc.core.dtypes import DType
from maskc.reference.attention import attention
from maskc.verify.case import Case
from maskc.verify.case_tensors import host, make_tensors
from tests.support.cli import benchmarks
from tests.support.thorough import more, without_inductor


@pytest.mark.parametrize("layer", MODELS, ids=lambda layer: layer.name)
def test_masks_are_what_flex_and_the_judge_read(layer: layers.Layer) -> None:
    n, index = 9000, torch.arange(9000)
    rows = torch.tensor([0, 1, 127, 128, 1024, 4096, 8191, 8192, 8999])
    kept = layer.keep(rows[:, None], index[None])
    assert torch.equal(kept, torch.from_numpy(layer.mask.dense(n)[rows.numpy()]))


def small(name: str) -> layers.Layer:
    layer = next(layer for layer in LAYERS if layer.name == name)
    return replace(layer, heads=4, kv_heads=2, head_dim=16)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", [
    "gpt_oss_window", "gemma2_full", more("gemma3_window"), "score_alibi_option",
    "score_relative_learned", more("score_alibi_learned"), more("score_t5_learned"), "score_t5",
    more("score_cap"),
])  # fmt: skip
def test_every_implementation_computes_the_layer(name: str) -> None:
    impls = [impl for impl in IMPLS if "flex" not in impl]  # it has no backward pass on a CPU
    rows = measured(small(name), 200, impls, 0, "cpu", "float32")
    ran = [row for row in rows if not row["why"]]
    assert {row["impl"] for row in ran} >= {"eager", "maskc"}
    assert all(row["ok"] for row in ran), rows
    assert all(row["fwd_ms"] is None for row in rows)


def test_the_judge_sees_a_sink_that_is_left_out() -> None:
    layer = small("gpt_oss_full")
    given, dout, tables = layers.make_tensors(layer, 64, torch.float32, "cpu")
    judge = Judge(layer, given, tables, dout)
    wrong = list(layers._both(IMPLS["maskc"](layer, 64, "cpu", tables), given, [], dout, True))
    assert max(judge.errors(wrong).values()) <= 1
    wrong[0] = IMPLS["maskc"](replace(layer, sinks=False), 64, "cpu", tables)(*given[:3])
    assert judge.errors(wrong)["out"] > 100


def test_the_judge_sees_a_wrong_entry_of_a_table() -> None:
    layer = small("score_relative_learned")
    given, dout, tables = layers.make_tensors(layer, 64, torch.float32, "cpu")
    judge, call = Judge(layer, given, tables, dout), IMPLS["maskc"](layer, 64, "cpu", tables)
    found = list(layers._both(call, given, [*tables.values()], dout, True))
    assert list(judge.errors(found)) == ["out", "dq", "dk", "dv", "dbias"]
    found[-1] = found[-1].clone()
    found[-1][3, 70] *= 1.5
    assert judge.errors(found)["dbias"] > 100


def test_layers_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "LAYERS", (small("gemma3_window"),))
    on_cpu = ("--device", "cpu", "--dtype", "float32")
    options = ("--n", 64, "--impl", "maskc", "--repeats", 0, *on_cpu)
    assert "gemma3_window at 64, maskc: out" in benchmarks("layers", *options).output
    benchmarks("layers", "--impl", "nothing", code=2)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_models_on_the_command_line() -> None:
    pytest.importorskip("transformers")
    done = benchmarks("models", "gpt_oss", "--device", "cpu", "--dtype", "float32", "--n", 150)
    assert done.output.count(": ok") == 3


# ------------------------------------------------------------------ batches


SHORT = [row for row in ROWS if not row.n_q and row.data(np.random.default_rng(0), 2, 768)]


@pytest.mark.parametrize("row", SHORT, ids=[row.name for row in SHORT])
def test_the_mask_is_its_mask_mod(row):
    n, batch = 768, 2
    data = row.data(np.random.default_rng(0), batch, n)
    given = {
        name: tuple(map(torch.tensor, x)) if isinstance(x, tuple) else torch.tensor(x)
        for name, x in data.items()
    }
    keep = row.mask_mod(given)
    tokens = torch.arange(n)
    for b in range(batch):
        own = {
            name: tuple(part[b] for part in x) if isinstance(x, tuple) else x[b]
            for name, x in data.items()
        }
        kept = keep(torch.tensor(b), torch.tensor(0), tokens[:, None], tokens[None])
        expected = mc.Mask.dense(row.mask(), n, n, **own)
        np.testing.assert_array_equal(kept.numpy(), expected.reshape(-1, n, n)[0])
    if row.promised:
        (ids,), (name,) = data.values(), data
        by_lengths = batches._by_lengths(ids, "cpu")
        live = row.mask().dense(n, n, **{name: by_lengths})
        np.testing.assert_array_equal(live, row.mask().dense(n, n, **data))
        counts = [np.unique(one, return_counts=True)[1] for one in ids]
        assert by_lengths.max_seqlen == max(map(max, counts))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["padding, intervals", "decoding, window 4096 of 32k"])
def test_peers_compute_the_row(name: str, monkeypatch: pytest.MonkeyPatch):
    """Peers of a CPU do; the others say why they do not run."""
    without_inductor(monkeypatch)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    row = next(row for row in ROWS if row.name == name)
    n = 4224 if row.last else 160
    row = replace(row, sizes=(2, 4, 2, n, 16))
    if row.last:  # its formula is of 32k keys
        row = replace(row, mask_mod=lambda d: lambda b, h, q, k: k >= n - 4096 + 0 * q)
    drawn, (n_q, _) = row.data(np.random.default_rng(0), 2, n), row.lengths
    case = Case(row.name, row.mask(), 2, 4, 2, n_q, n, 16, DType.float32, drawn, row.mask_mod)
    tensors, said = make_tensors(case, "cpu"), dict[str, str]()
    found = batches._peers(row, case, tensors, "fwd", said)
    assert set(found) >= {"flex"}
    assert {"flex_flash", "cudnn_flex"} <= set(said)
    keep = case.mask.dense(n_q, n, **drawn)
    right, _ = attention(*map(host, tensors.qkv), keep[:, None] if keep.ndim == 3 else keep)
    for peer in found.values():
        with peer.scope():
            np.testing.assert_allclose(host(peer.run()), right, atol=1e-5)
