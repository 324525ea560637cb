"""A sample of the sweep over every architecture, see tests/support/architectures and its page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.support import architectures, models
from tests.support.architectures import NOTHING, REFUSED, RIGHT, Outcome, examine

pytestmark = [*models.QUIET, pytest.mark.filterwarnings("ignore")]

SAMPLE = {
    "llama": RIGHT, "gpt_oss": RIGHT, "minimax": RIGHT, "doge": RIGHT, "bert": RIGHT,
    "layoutlm": RIGHT, "markuplm": RIGHT, "t5": RIGHT, "t5gemma2": RIGHT,
    "switch_transformers": RIGHT, "canary": RIGHT, "whisper": RIGHT, "parakeet_encoder": RIGHT,
    "vit": RIGHT, "pixtral": RIGHT, "mistral3": RIGHT, "mllama": RIGHT, "timesfm": RIGHT,
    "mamba": NOTHING, "longformer": REFUSED, "git": REFUSED, "unlimited_ocr": REFUSED,
    "deepseek_v32": REFUSED,
}  # fmt: skip
CODES = {"longformer": "MC605", "git": "MC605", "unlimited_ocr": "MC614", "deepseek_v32": "MC606"}


@pytest.mark.parametrize("name", SAMPLE)
def test_an_architecture(name: str) -> None:
    outcome = examine(name, gradients=name in ("llama", "pixtral", "t5"))
    assert outcome.status == SAMPLE[name], outcome
    assert outcome.detail[:5] == CODES.get(name, ""), outcome
    assert "plain" in outcome.ran or outcome.status == REFUSED


def test_the_page_says_what_the_sample_says() -> None:
    page = architectures.PAGE.read_text(encoding="utf-8")
    for name, status in SAMPLE.items():
        assert (f"| {name} | {status} |" in page) == (status == REFUSED), name
    assert "| wrong | 0 |" in page
    assert "| crashed | 0 |" in page


def test_a_sweep_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, seen = tmp_path / "outcomes.jsonl", list[str]()

    def made_up(name: str, gradients: bool = False) -> Outcome:
        seen.append(name)
        return Outcome(name, "Model", REFUSED if name == "b" else RIGHT, ran=("plain",))

    monkeypatch.setattr(architectures, "examine", made_up)
    monkeypatch.setattr(architectures, "architectures", lambda: ["a", "b", "c"])
    architectures.sweep(path, ["a", "b"], [])
    architectures.sweep(path, [], [])
    assert seen == ["a", "b", "c"]
    architectures.sweep(path, [], [REFUSED])
    assert seen == ["a", "b", "c", "b"]
    path.with_suffix(".begun").write_text("d")  # a process that died in it
    architectures.sweep(path, ["d"], [])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(x["architecture"], x["status"]) for x in lines][-1] == ("d", "crashed")
    monkeypatch.setattr(architectures, "PAGE", tmp_path / "page.md")
    architectures.table(path)
    assert "| b | refused |" in (tmp_path / "page.md").read_text()
    capsys.readouterr()
