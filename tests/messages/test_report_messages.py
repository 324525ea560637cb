"""The full text of every refusal of reports (MC750)."""

from __future__ import annotations

from maskc.core.errors.evidence import BadEvaluation


def test_a_file_that_is_no_evaluation():
    """test_report.py reads such files."""
    assert str(BadEvaluation("x.json", "No such file or directory", at="--evaluation")) == (
        "MC750 --evaluation  cannot read quality results from x.json: No such file or directory\n"
        "    hint: write the file with `maskc evaluate PATTERN -o quality.json`"
    )
