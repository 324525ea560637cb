"""Texts for numbers and places in pictures, shared by the terminal and figures."""

from __future__ import annotations

from maskc.layout.tiles.numbers import Numbers
from maskc.viz.picture import Picture


def cut(text: str, most: int, end: str = " ...") -> str:
    """The text, or its first `most` characters and how it is said that there are more."""
    return text if len(text) <= most else text[:most] + end


def percent(share: float) -> str:
    """`12.3 %`, with as many digits as small shares need; exactly 0 and 100 are said plainly."""
    if share in (0.0, 1.0):
        return f"{share:.0%}".replace("%", " %")
    digits = 1 if share >= 0.1 else 2 if share >= 0.001 else 4
    text = f"{100 * share:.{digits}f}"
    if float(text) >= 100:
        text = "99.9"
    return f"{text} %" if float(text) else "under 0.0001 %"


def scaled(value: float, unit: str) -> str:
    """`1.23 GFLOP`, `640 B`: three digits and a decimal prefix."""
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            short = value / size
            return f"{short:.{2 if short < 9.995 else 1 if short < 99.95 else 0}f} {prefix}{unit}"
    return f"{value:.0f} {unit}"


def of_all(part: int, whole: int) -> str:
    """`32,896 of 65,536`; the part is always exact, a whole beyond a billion has three digits."""
    return f"{part:,} of " + (f"{whole:,}" if whole < 10**9 else f"{whole:.2e}".replace("e+", "e"))


def facts(numbers: Numbers) -> tuple[tuple[str, str], ...]:
    """The (label, value) lines next to a panel, without tile classes."""
    return (
        ("live", percent(numbers.live_share)),
        ("pairs", of_all(numbers.live, numbers.pairs)),
        ("computed", f"{numbers.waste:.2f} x the live pairs" if numbers.live else "nothing runs"),
        ("forward", f"{scaled(numbers.flops, 'FLOP')} a head"),
        ("traffic", f"{scaled(numbers.bytes, 'B')} a head"),
    )


def lengths(picture: Picture) -> str:
    """The lengths that are drawn, as `4096 queries x 4096 keys` or as a range."""
    whole = f"{picture.n_q} queries x {picture.n_kv} keys"
    if picture.whole:
        return whole
    span = picture.span
    return f"queries {span.q0}:{span.q1}, keys {span.k0}:{span.k1} of {whole}"


def tiles(picture: Picture, numbers: Numbers) -> str:
    """The tiles that are counted, and whose they are."""
    whose = f", {picture.kernel}" if picture.kernel else ""
    return f"tiles of {numbers.tile[0]} x {numbers.tile[1]}{whose or ' tokens'}"


def setting(picture: Picture) -> str:
    """The setting that costs are computed for."""
    dims = f"{picture.head_dim}"
    if picture.head_dim_v != picture.head_dim:
        dims += f"/{picture.head_dim_v}"
    return f"head_dim {dims}, {picture.dtype.value}"


def heads(ids: tuple[int, ...]) -> str:
    """`head 3`, `heads 0-3, 7`; '' where all heads share the set."""
    if not ids:
        return ""
    runs: list[list[int]] = []
    for head in ids:
        if runs and head == runs[-1][-1] + 1:
            runs[-1].append(head)
        else:
            runs.append([head])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"head{'s' if len(ids) > 1 else ''} {', '.join(texts)}"


def ticks(first: int, stop: int, most: int) -> list[int]:
    """At most `most` evenly spaced token indices in first .. stop - 1, from `first` on.

    Steps are powers of two where the length is a multiple of 64 or a power of two itself, 1, 2 or
    5 times a power of ten where it is a multiple of 1000 or neither.
    """
    length = stop - first
    return list(range(first, stop, _step(length, max(1, most)))) if length > 0 else []


def _step(length: int, most: int) -> int:
    least = -(-length // most)
    if length % 1000 and (length % 64 == 0 or length & (length - 1) == 0):
        return 1 << (least - 1).bit_length()
    size = 1
    while True:
        for factor in (1, 2, 5):
            if factor * size >= least:
                return factor * size
        size *= 10
