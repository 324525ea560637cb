"""Layers of published models: both definitions of a mask agree, and the judge sees mistakes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks import layers
from benchmarks.layers import IMPLS, LAYERS, MODELS, Judge, measured
from tests.support.cli import benchmarks
from tests.support.thorough import more


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
