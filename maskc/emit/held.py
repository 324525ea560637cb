"""Captured arrays in a generated module, which holds them as constants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from maskc.core.bundle import Bundle
from maskc.core.captured import Held
from maskc.core.data import DataDecl, DataKind


def filled(bundle: Bundle, held: Held) -> Bundle:
    """The bundle with the content of its captured arrays."""
    values = {name: (rank, captured.array) for name, rank, captured in held.tables}

    def fill(decl: DataDecl) -> DataDecl:
        if not decl.held:
            return decl
        rank, array = values[decl.name]
        front = array.shape[: array.ndim - rank]
        if rank > 2:
            array = array.reshape(*front, -1, array.shape[-1])
        own = decl.options if len(front) else ()
        content = np.ascontiguousarray(array, dtype="<i4").tobytes()
        return DataDecl(decl.name, DataKind.constant, decl.arrays, options=own, values=content,
                        shape=array.shape)  # fmt: skip

    parts = tuple(replace(part, bundle=filled(part.bundle, held)) for part in bundle.parts)
    return replace(bundle, data=tuple(map(fill, bundle.data)), parts=parts)
