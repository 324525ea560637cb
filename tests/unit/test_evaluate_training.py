"""Tasks say what they say, and training with a mask that hides nothing is dense training."""

from __future__ import annotations

import numpy as np
import pytest

import maskc as mc
from maskc.lab.evaluate import Recipe, train
from maskc.lab.evaluate import training as T


def test_copies_are_copies():
    task = T.copying(32, 8)
    tokens, targets, counts, _ = task.draw(np.random.default_rng(0), 5, False)
    assert np.array_equal(tokens[:, 16:], tokens[:, :16])
    assert np.array_equal(targets[:, :-1], tokens[:, 1:])
    # What is asked at place i stands at i + 1 - 16.
    asked = np.flatnonzero(counts)[:-1]
    assert np.array_equal(targets[:, asked], tokens[:, asked - 15])


def test_recall_asks_for_what_was_shown():
    task = T.recall(64, keys=32, values=8)
    tokens, targets, counts, _ = task.draw(np.random.default_rng(0), 4, False)
    assert tokens.shape == (4, 64)
    assert counts.sum() == 16
    for row, right in zip(tokens, targets, strict=True):
        shown = {row[i]: row[i + 1] - 32 for i in range(0, 32, 2)}
        assert len(shown) == 16
        for place in np.flatnonzero(counts):
            assert right[place] == shown[row[place]] == row[place + 1] - 32


def test_text_holds_its_end_out():
    task = T.text("a" * 900 + "b" * 100, n=20)
    for held_out, letter in ((False, "a"), (True, "b")):
        batch = task.draw(np.random.default_rng(0), 3, held_out)
        assert set(batch.tokens.flatten()) == set(batch.targets.flatten()) == {ord(letter)}
    assert task.chance == pytest.approx(-0.9 * np.log(0.9) - 0.1 * np.log(0.1))


def test_trees_are_those_of_the_syntax():
    """The ancestors that the mask keeps are the chain of parents."""
    task = T.code_trees(48)
    batch = task.draw(np.random.default_rng(3), 2, False)
    parents = batch.data["tree"].array
    keep = mc.tree("tree").dense(48, **batch.data)
    for row, kept in zip(parents, keep, strict=True):
        for node in range(48):
            chain, above = {node}, node
            while (above := int(row[above])) >= 0:
                assert above < node
                chain.add(above)
            assert set(np.flatnonzero(kept[node])) == chain
    assert np.array_equal(batch.targets[:, :-1], batch.tokens[:, 1:])


def test_a_mask_that_hides_nothing_changes_nothing():
    pytest.importorskip("torch")
    pytest.importorskip("scipy")
    recipe = Recipe(steps=3, batch=4, width=16, heads=2, layers=1, held_out=1)
    found = train(mc.full(), T.copying(16, 4), seeds=(0, 1), recipe=recipe)
    assert found.masked == found.dense
    assert (found.difference.value, found.p_value, found.p_equivalence) == (0, 1, 0)
    assert found.tokens == 3 * 4 * 16
    assert type(found).from_json(found.to_json()) == found


def test_models_trained_together_are_those_trained_alone():
    """Stacked weights keep apart: losses, clipping and steps of one model are its own."""
    pytest.importorskip("torch")
    recipe = Recipe(steps=4, batch=3, width=16, heads=2, layers=2, held_out=2)
    task = T.text("the mask is a set of integers, " * 90, n=24)
    masks = {"dense": None, "window": mc.window(3), "sinks": mc.sinks(1) | mc.window(1)}
    together = T.measured(masks, task, (0, 5), recipe)
    for name, mask in masks.items():
        for place, seed in enumerate((0, 5)):
            (alone,) = T.measured({name: mask}, task, (seed,), recipe)[name]
            assert together[name][place] == pytest.approx(alone, abs=2e-5), (name, seed)
    assert len({round(value, 6) for values in together.values() for value in values}) == 6


def test_trees_of_all_batches_are_read():
    """Masks with data: the arrays of the batches of all seeds come one after the other."""
    pytest.importorskip("torch")
    recipe = Recipe(steps=2, batch=2, width=16, heads=2, layers=1, held_out=1)
    task = T.code_trees(32)
    mask = mc.tree("tree") | mc.window(2)
    both = T.measured({"tree": mask}, task, (0, 1), recipe)["tree"]
    for seed in (0, 1):
        assert T.measured({"tree": mask}, task, (seed,), recipe)["tree"] == pytest.approx(
            [both[seed]], abs=2e-5
        )
