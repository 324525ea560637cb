"""The arrays that a mask reads: files named with --data, and made-up ones for the others."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maskc.cli.entries import MaskEntry, check_known
from maskc.cli.output import echo
from maskc.core.errors import UsageMistake
from maskc.core.unreadable import UNREADABLE, reason

if TYPE_CHECKING:
    from maskc.core.data import DataDecl

_HOW = "give *.npy, *.npz, *.npz:NAME or *.json, for example --data doc=ids.npy"


@dataclass(frozen=True)
class Arrays:
    """The source of a mask's data."""

    seed: int
    """The seed of made-up data."""
    given: Mapping[str, object] = field(default_factory=dict)
    """Data by name, as a call of the mask takes them."""

    def of(
        self,
        entry: MaskEntry,
        n_q: int,
        n_kv: int,
        quiet: bool = False,
        leave: Collection[str] = (),
    ) -> dict[str, object]:
        """Return the arrays that a mask reads, made up if not given, and the parameters that were
        set.

        Args:
            entry: the mask.
            n_q, n_kv: lengths of made-up arrays.
            quiet: do not report made-up arrays.
            leave: names to leave out.
        """
        from maskc.verify.samples import sample_data

        made = sample_data(entry.mask, n_q, n_kv, self.seed)
        read = {name: self.given[name] for name in names(entry) if name in self.given}
        without = [name for name in made if name not in read and name not in leave]
        if without and not quiet:
            echo(f"{entry.name}: random {', '.join(without)}, seed {self.seed}", err=True)
        return {**{name: made[name] for name in without}, **read, **entry.params}

    def shape(self, entries: Sequence[MaskEntry]) -> tuple[int, int] | None:
        """Queries and keys that the given arrays are for; None if they do not say.

        Arrays with an entry per token, a query or a key speak of both where nothing else does.
        """
        from maskc.dsl.nodes import data_of_calls

        n_q = n_kv = None
        for entry in entries:
            for decl in data_of_calls(entry.mask):
                if decl.name in self.given:
                    of_q, of_kv = _lengths_of(decl, self.given[decl.name])
                    n_q, n_kv = n_q or of_q, n_kv or of_kv
        if n_q is None and n_kv is None:
            return None
        return (n_q or n_kv or 0), (n_kv or n_q or 0)


def read_all(
    texts: Sequence[str], entries: Sequence[MaskEntry], extra: Collection[str] = ()
) -> dict[str, object]:
    """Read the arrays of all --data options.

    Args:
        texts: NAME=FILE each.
        entries: the masks; every name must be that of data of one of them.
        extra: further names that a command takes.

    Raises:
        UsageMistake: a name that no mask has, or a file that cannot be read (MC603).
    """
    from maskc.dsl.nodes import data_of_calls

    declared = {decl.name: decl for entry in entries for decl in data_of_calls(entry.mask)}
    known = sorted({*extra, *(name for entry in entries for name in names(entry))})
    given: dict[str, object] = {}
    for text in texts:
        name, equals, source = (part.strip() for part in text.partition("="))
        if not equals or not name or not source:
            raise UsageMistake(f"--data expects NAME=FILE, found {text!r}", _HOW, at="--data")
        check_known(name, known, "--data", "no data", most=1)
        given[name] = _read(source, declared.get(name))
    return given


def names(entry: MaskEntry) -> list[str]:
    """Names of all arrays that a call of the mask takes."""
    from maskc.verify.samples import sample_data

    return list(sample_data(entry.mask, 1, 1))


# ------------------------------------------------------------------ files


def _read(source: str, decl: DataDecl | None) -> object:
    """The array of a file; of cumulated lengths and parents also numbers as they are written."""
    import numpy as np

    from maskc.core.data import CuSeqlens, Parents

    name, _, text = source.partition(":")
    kind = {"cu_seqlens": CuSeqlens, "parents": Parents}.get(name)
    if kind is None or not text:
        return _from_file(source, decl)
    try:
        return kind(np.array([int(part) for part in text.split(",")], dtype=np.int64))
    except (ValueError, OverflowError):
        return kind(_from_file(text, decl))


def _from_file(source: str, decl: DataDecl | None) -> object:
    """An array, or arrays by their names in the file, in the order of the declaration."""
    import numpy as np

    path, _, inner = source.partition(".npz:")
    path, suffix = (f"{path}.npz", ".npz") if inner else (source, Path(source).suffix.lower())
    if suffix not in (".json", ".npy", ".npz"):
        raise UsageMistake(f"--data cannot tell what {source!r} holds", _HOW, at="--data")
    try:
        with open(path, "rb") as file:
            value = json.load(file) if suffix == ".json" else np.load(file, allow_pickle=False)
            if suffix == ".npz":
                value = dict(value)
        if isinstance(value, dict):
            return _one_or_pair(value, inner, path, decl)
        return np.asarray(value)
    except UNREADABLE as error:  # lists of several lengths, a pickle, ...
        raise UsageMistake(f"cannot read {path}: {reason(error)}", _HOW, at="--data") from None


def _one_or_pair(arrays: dict[str, Any], inner: str, path: str, decl: DataDecl | None) -> object:
    """The array called `inner`, the only one, or the pair that the declaration names."""
    import numpy as np

    ends = [name.rpartition(".")[2] for name in decl.arrays] if decl else []
    if not inner and len(arrays) == 2 and set(ends) == set(arrays):
        return tuple(np.asarray(arrays[end]) for end in ends)
    if not inner and len(arrays) == 1:
        return np.asarray(next(iter(arrays.values())))
    if inner in arrays:
        return np.asarray(arrays[inner])
    holds = ", ".join(arrays) or "nothing"
    pair = f", or a file with {' and '.join(ends)}" if len(ends) == 2 else ""
    wrong = f"{path} holds {holds}" + (f", not {inner}" if inner else "")
    raise UsageMistake(wrong, f"choose one with {path}:NAME{pair}", at="--data")


# ------------------------------------------------------------------ lengths


def _lengths_of(decl: DataDecl, value: object) -> tuple[int | None, int | None]:
    """Queries and keys that one array speaks of."""
    import numpy as np

    from maskc.core.data import CuSeqlens, DataKind, Parents

    if isinstance(value, CuSeqlens):
        ends = np.asarray(value.array)
        return (None, int(ends[-1])) if ends.ndim == 1 and ends.size else (None, None)
    if isinstance(value, Parents):
        return None, _last(value.array)
    if isinstance(value, tuple) and decl.kind is DataKind.documents:
        return _last(value[0]), _last(value[1])
    array = value[0] if isinstance(value, tuple) else value
    match decl.kind:
        case DataKind.documents | DataKind.tree:
            return None, _last(array)
        case DataKind.flags | DataKind.positions:
            return (_last(array), None) if decl.on_queries else (None, _last(array))
        case DataKind.intervals:
            return _last(array), None
    return None, None


def _last(array: object) -> int | None:
    """The size of the last dimension."""
    import numpy as np

    shape = np.asarray(array).shape
    return int(shape[-1]) if shape else None
