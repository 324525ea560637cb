"""The full text of every refusal of the explorer (MC720 and MC721)."""

from __future__ import annotations

from maskc.core.errors.evidence import ExplorerPort, ExplorerTooLarge


def test_arrays_that_no_page_holds():
    """test_explorer.py makes a page say it."""
    assert str(ExplorerTooLarge(70_000_000, 33_554_432, at="mask")) == (
        "MC720 mask  the arrays of this mask take 70000000 bytes; a page holds at most 33554432\n"
        "    hint: explore a shorter sequence: --n sets the lengths if data are made up"
    )


def test_a_port_that_is_taken():
    assert str(ExplorerPort(80, "Permission denied", at="port")) == (
        "MC721 port  the explorer cannot listen on 127.0.0.1:80: Permission denied\n"
        "    hint: omit --port to use a free one, or write a file with -o mask.html"
    )
