"""Heatmaps of attention weights: the numbers of their cells, against a definition in fp64."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import maskc as mc
from maskc.core.errors import BadWeightTensors, NoSuchWeights, TooManyWeights, WeightsNotFinite
from maskc.reference.attention import attention
from maskc.viz import weights as module
from maskc.viz.weight_drawings import MASKED, WeightScale, colors, svg, text
from tests.support.cli import maskc, maskc_json

MASK = mc.causal() & (mc.sinks(3) | mc.window(20))


def tensors(heads: int, heads_kv: int, n_q: int, n_kv: int, dim: int = 8):
    rng = np.random.default_rng(heads + n_q)
    return rng.standard_normal((heads, n_q, dim)), rng.standard_normal((heads_kv, n_kv, dim))


def by_reference(q: np.ndarray, k: np.ndarray, kept: np.ndarray, **more: float) -> np.ndarray:
    """Weights [heads, n_q, n_kv]: attention to values that are the unit vectors."""
    units = np.broadcast_to(np.eye(k.shape[1]), (1, len(k), k.shape[1], k.shape[1]))
    return attention(q[None], k[None], units, kept, **more)[0][0]


def cell_by_cell(weights: np.ndarray, kept: np.ndarray, unit: tuple[int, int], how) -> np.ndarray:
    """Reduce the weights of the kept pairs of each cell; NaN without such a pair."""
    rows, columns = (-(-n // u) for n, u in zip(kept.shape, unit, strict=True))
    found = np.full((rows, columns), np.nan)
    for i, j in np.ndindex(rows, columns):
        box = slice(i * unit[0], (i + 1) * unit[0]), slice(j * unit[1], (j + 1) * unit[1])
        if kept[box].any():
            found[i, j] = how(weights[box][kept[box]])
    return found


def compare(shown: module.WeightMap, expected: np.ndarray) -> None:
    cells = shown.cells()
    np.testing.assert_array_equal(cells.masked, np.isnan(expected))
    np.testing.assert_allclose(cells.values, np.nan_to_num(expected), atol=1e-13)


# ------------------------------------------------------------------ numbers


@pytest.mark.parametrize("head", [0, 3])
@pytest.mark.parametrize("shape", [(50, 50), (20, 70)])
def test_weights_of_pairs_are_those_of_the_reference(head: int, shape: tuple[int, int]):
    q, k = tensors(4, 2, *shape)
    kept = MASK.dense(*shape)
    expected = by_reference(q, k, kept, scale=0.3)[head]
    shown = MASK.weights(q=q, k=k, head=head, scale=0.3)
    compare(shown, np.where(kept, expected, np.nan))
    assert shown.cells().covers == (1, 1)
    assert shown.source == "given q and k"


@pytest.mark.parametrize(("reduce", "how"), [("mean", np.mean), ("max", np.max)])
def test_cells_of_several_pairs(reduce: str, how, monkeypatch: pytest.MonkeyPatch):
    """Rows are computed some at a time, which changes nothing."""
    q, k = tensors(1, 1, 531, 700)
    kept = MASK.dense(531, 700)
    expected = cell_by_cell(by_reference(q, k, kept)[0], kept, (3, 3), how)
    whole = MASK.weights(q=q[0], k=k[0], reduce=reduce)
    monkeypatch.setattr(module, "_AT_ONCE", 5000)
    for shown in (whole, MASK.weights(q=q[0], k=k[0], reduce=reduce)):
        assert shown.unit == (3, 3)
        compare(shown, expected)


def test_fewer_cells_reduce_pairs_and_not_cells():
    q, k = tensors(1, 1, 60, 60)
    kept = MASK.dense(60)
    weights = by_reference(q, k, kept)[0]
    cells = MASK.weights(q=q, k=k).cells(7, 20)
    assert cells.covers == (9, 3)
    expected = cell_by_cell(weights, kept, (9, 3), np.mean)
    np.testing.assert_allclose(cells.values, np.nan_to_num(expected), atol=1e-13)


def test_rows_of_weights_add_up_to_one_or_to_nothing():
    """Queries that see nothing have no weights and no cells."""
    mask = mc.causal() & mc.where(lambda q, k: q % 3 != 1)
    shown = mask.weights(40)
    np.testing.assert_allclose(shown.total.sum(axis=1), np.arange(40) % 3 != 1, atol=1e-12)
    assert shown.cells().masked[1::3].all()
    assert "blank: masked" in str(mc.where(lambda q, k: k < 0).weights(8))


def test_heads_and_sequences_of_the_mask_and_of_the_tensors():
    q, k = tensors(4, 4, 30, 30)
    mask = mc.per_head([mc.causal(), mc.window(5), mc.window(5), mc.full()])
    for head in range(4):
        kept = mask.dense(30, head=head)
        shown = mask.weights(q=q, k=k, head=head)
        compare(shown, np.where(kept, by_reference(q, k, kept)[head], np.nan))
    documents = np.array([np.repeat([0, 1], 15), np.repeat([0, 1, 2], 10)])
    two = mc.documents("doc").weights(q=q[:2, None], k=k[:2, None], sequence=1, doc=documents)
    kept = documents[1][:, None] == documents[1]
    compare(two, np.where(kept, by_reference(q[1:2], k[1:2], kept)[0], np.nan))


def test_selections_choose_by_the_given_tensors():
    q, k = tensors(2, 2, 40, 40)
    allowed = np.tri(40, dtype=bool)
    kept = np.zeros((2, 40, 40), bool)
    for h, i in np.ndindex(2, 40):
        scores = np.where(allowed[i], k[h] @ q[h, i], -np.inf)
        kept[h, i, np.argsort(-scores)[:5]] = True
    kept &= allowed
    shown = mc.topk(5, of=mc.causal()).weights(q=q, k=k, head=1)
    compare(shown, np.where(kept[1], by_reference(q, k, kept)[1], np.nan))
    assert "random scores" not in shown.formula
    given = mc.topk(5, of=mc.causal(), score="given").weights(q=q, k=k)
    assert given.formula.endswith("(random scores, seed 0)")
    assert given.kept.sum() == kept[0].sum()


def test_synthetic_tensors_are_the_same_for_a_seed():
    one, same, other = (MASK.weights(64, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.total, same.total)
    assert (one.total != other.total).any()
    assert one.source == "synthetic q and k, seed 0"
    assert (MASK.weights().n_q, mc.patterns.streaming().weights().n_q) == (256, 512)


# ------------------------------------------------------------------ drawings


def test_text_has_a_shade_per_power_of_ten():
    q, k = np.ones((4, 1)), np.log([[0.9], [0.0899], [0.0097], [0.0004]])
    drawn = text(mc.full().weights(q=q, k=k, scale=1))
    assert re.findall(r"[│┤](.*)│", drawn) == ["█▓▒░"] * 2
    assert "mean of the kept pairs of 2 x 1; largest 0.9" in drawn
    assert re.findall(r"[│┤](.*)│", text(mc.causal().weights(q=q, k=k, scale=1)))[0][2:] == "  "


def test_the_scale_is_logarithmic_and_masked_pairs_have_a_colour_of_their_own():
    scale = WeightScale(1e-4, 1.0)
    places = scale.place(np.array([0.0, 1e-9, 1e-4, 1e-2, 1.0]))
    np.testing.assert_allclose(places, [0, 0, 0, 0.5, 1])
    np.testing.assert_allclose(scale.ticks(), [1e-4, 1e-3, 1e-2, 1e-1, 1])
    grey = [int(MASKED[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    assert np.abs(colors(np.linspace(0, 1, 256)) - grey).max(axis=1).min() > 0.3
    assert WeightScale.of(mc.full().weights(8).cells()).low > 0


def test_svg_paints_every_kept_cell_once():
    shown = MASK.weights(60)
    drawn = svg(shown, "a <label>")
    inner = drawn[drawn.index("<path") : drawn.index("</svg>")]
    painted = np.zeros((60, 60), int)
    for x, y, width in re.findall(r"M(\d+) (\d+)h(\d+)v1H", inner):
        painted[int(y), int(x) : int(x) + int(width)] += 1
    np.testing.assert_array_equal(painted, MASK.dense(60))
    assert "a &lt;label&gt;" in drawn
    assert ">masked<" in drawn
    assert drawn in shown._repr_html_().replace("Attention weights", "a &lt;label&gt;")


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_figures_are_the_same_bytes(tmp_path: Path, suffix: str):
    pytest.importorskip("matplotlib")
    first, second = tmp_path / f"one.{suffix}", tmp_path / f"two.{suffix}"
    for path in (first, second):
        MASK.weights(40).save(path)
    assert first.read_bytes() == second.read_bytes()


# ------------------------------------------------------------------ mistakes


def test_tensors_that_do_not_fit():
    q, k = tensors(4, 2, 10, 10)
    for wrong in (
        {"q": q}, {"k": k}, {"q": q[0, 0], "k": k}, {"q": q, "k": k[..., :3]},
        {"q": q[:3], "k": k}, {"q": q, "k": k, "n": 11}, {"q": q, "k": k, "n_kv": 9},
        {"q": q[:, :0], "k": k}, {"q": q.astype(complex), "k": k}, {"q": q[None][[0, 0]], "k": k},
    ):  # fmt: skip
        with pytest.raises(BadWeightTensors):
            MASK.weights(**wrong)  # type: ignore[arg-type]


def test_weights_that_there_are_not():
    q, k = tensors(4, 2, 10, 10)
    for wrong in ({"head": 4}, {"head": -1}, {"reduce": "sum"}):
        with pytest.raises(NoSuchWeights):
            MASK.weights(q=q, k=k, **wrong)  # type: ignore[arg-type]
    with pytest.raises(NoSuchWeights):
        MASK.weights(q=q[None][[0, 0]], k=k[None][[0, 0]], sequence=2)
    for mask, n in ((mc.causal(), 1 << 15), (mc.topk(2, of=mc.causal()), 1 << 13)):
        with pytest.raises(TooManyWeights):
            mask.weights(n)


def test_scores_that_are_no_numbers():
    """Only scores of kept pairs matter."""
    q, k = tensors(1, 1, 10, 10)
    k[0, 7] = np.nan
    with pytest.raises(WeightsNotFinite, match="query 7"):
        mc.causal().weights(q=q, k=k)
    shown = (mc.causal() & mc.where(lambda q, k: k != 7)).weights(q=q, k=k)
    assert np.isfinite(shown.total).all()


# ------------------------------------------------------------------ the command line


def test_the_command_reads_tensors_and_draws(tmp_path: Path):
    q, k = tensors(2, 1, 30, 30)
    np.save(tmp_path / "q.npy", q)
    np.save(tmp_path / "k.npy", k)
    words = ("visualize", "--expr", "causal() & window(9)", "--weights", "--head", 1, "--data",
             f"q={tmp_path}/q.npy", "--data", f"k={tmp_path}/k.npy")  # fmt: skip
    (found,) = maskc_json(*words)["weights"]
    kept = (mc.causal() & mc.window(9)).dense(30)
    expected = by_reference(q, np.repeat(k, 2, axis=0), kept)[1]
    cells = np.array(found["cells"], dtype=float)
    np.testing.assert_array_equal(np.isnan(cells), ~kept)
    np.testing.assert_allclose(cells[kept], expected[kept], rtol=1e-5)
    assert (found["head"], found["source"]) == (1, "given q and k")
    assert "30 queries x 30 keys, head 1; given q and k" in maskc(*words).stdout
    if pytest.importorskip("matplotlib"):
        path = tmp_path / "weights.png"
        assert maskc(*words, "-o", path).stdout == f"{path}\n"
        assert path.read_bytes()[:4] == b"\x89PNG"


def test_options_that_go_with_weights_or_without(tmp_path: Path):
    np.save(tmp_path / "q.npy", np.ones((4, 2)))
    causal = ("visualize", "--expr", "causal()")
    given = f"q={tmp_path}/q.npy"
    assert "add --weights" in maskc(*causal, "--data", given, code=2).stderr
    assert "MC751" in maskc(*causal, "--weights", "--data", given, code=1).stderr
    for more in (("--range", "0:4"), ("--tile", "8,8"), ("--target", "cpu")):
        assert f"{more[0]} has no meaning" in maskc(*causal, "--weights", *more, code=2).stderr
    (found,) = maskc_json("visualize", "streaming", "--weights", "--n", 600)["weights"]
    assert (found["n_q"], found["pairs_per_cell"]) == (600, [12, 12])
