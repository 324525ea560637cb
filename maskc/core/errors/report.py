"""Mistakes around reports (MC750 to MC759)."""

from __future__ import annotations

from maskc.core.errors.base import MaskcError


class BadEvaluation(MaskcError):
    """A file that should hold results of `maskc evaluate` does not."""

    code = "MC750"
    exit_code = 2
    message = "cannot take quality from {0}: {1}"
    hint = "write the file with `maskc evaluate PATTERN -o quality.json`"
