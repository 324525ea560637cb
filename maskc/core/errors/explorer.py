"""Mistakes around the explorer."""

from __future__ import annotations

from maskc.core.errors.base import MaskcError


class ExplorerTooLarge(MaskcError):
    """The arrays of a mask are larger than a page may hold."""

    code = "MC720"
    message = "the arrays of this mask take {0} bytes; a page holds at most {1}"
    hint = "explore a shorter sequence: --n sets the lengths where data are made up"


class ExplorerPort(MaskcError):
    """The local server cannot listen where it was asked to."""

    code = "MC721"
    exit_code = 2
    message = "the explorer cannot listen on 127.0.0.1:{0}: {1}"
    hint = "leave --port out for a free one, or write a file with -o mask.html"
