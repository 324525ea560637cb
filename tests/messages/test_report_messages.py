"""The full text of every refusal of reports (MC750 and MC755)."""

from __future__ import annotations

from maskc.core.errors.evidence import BadEvaluation, BadNotes


def test_a_file_that_is_no_evaluation():
    """test_report.py reads such files."""
    assert str(BadEvaluation("x.json", "No such file or directory", at="--evaluation")) == (
        "MC750 --evaluation  cannot read quality results from x.json: No such file or directory\n"
        "    hint: write the file with `maskc evaluate PATTERN -o quality.json`"
    )


def test_notes_that_hold_something_else():
    """test_report.py reads such files."""
    assert str(BadNotes("notes.md", "it has the heading 'Method'", at="--notes")) == (
        "MC755 --notes  cannot take motivation and discussion from notes.md: it has the heading "
        "'Method'\n    hint: write Markdown with the headings `# Motivation` and `# Discussion`, "
        "or one of them"
    )
