"""Fifty steps of training on real text: the loss is that of eager attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.support import models

pytestmark = models.QUIET
STEPS, N, BATCH = 50, 64, 4
TEXT = (Path(__file__).parents[2] / "docs" / "language.md").read_bytes()
"""The language's page, byte by byte."""
OPTIONS = {"vocab_size": 256, "layer_types": ["sliding_attention", "full_attention"],
           "sliding_window": 16, "use_sliding_window": True}  # fmt: skip


def rows() -> Any:
    """Bytes [STEPS * BATCH, N], from everywhere in the text."""
    text = torch.tensor(list(TEXT), dtype=torch.long)
    places = torch.linspace(0, len(text) - N, STEPS * BATCH).long()
    return torch.stack([text[place : place + N] for place in places.tolist()])


def pair() -> models.Pair:
    return models.pair("Qwen3Config", "AutoModelForCausalLM", models.BASE | OPTIONS)


def near(ours: list[float], eager: list[float]) -> None:
    """Rounding grows with the steps; a wrong mask would be seen in the second digit."""
    assert len(ours) == len(eager) >= STEPS
    assert ours[-1] < 0.8 * ours[0]
    for step, (mine, right) in enumerate(zip(ours, eager, strict=True)):
        assert mine == pytest.approx(right, rel=2e-4), step


def test_a_plain_loop() -> None:
    text, losses = rows(), []
    for model in pair():
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        found = []
        for step in range(STEPS):
            ids = text[step::STEPS]
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        losses.append(found)
    near(*losses)


@pytest.mark.filterwarnings("ignore")
def test_the_trainer(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    data = [{"input_ids": row, "labels": row} for row in rows()]
    losses = []
    for model in pair():
        arguments = transformers.TrainingArguments(
            str(tmp_path), max_steps=STEPS, per_device_train_batch_size=BATCH, learning_rate=1e-3,
            lr_scheduler_type="constant", logging_steps=1, save_strategy="no", report_to=[],
            use_cpu=True, disable_tqdm=True, seed=0,
        )  # fmt: skip
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data)
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    near(*losses)
