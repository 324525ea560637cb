"""Captured arrays in a generated module, which holds them as constants."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from maskc.core.bundle import Bundle
from maskc.core.captured import Held
from maskc.layout.inputs.captured import with_content


def filled(bundle: Bundle, held: Held) -> Bundle:
    """The bundle with the content of its captured arrays."""
    data = tuple(with_content(decl, held) for decl in bundle.data)
    return replace(bundle, data=data).with_inner(partial(filled, held=held))
