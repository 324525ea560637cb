"""Which source a pass has whose blocks of keys are chosen at run time."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from maskc.core.bundle import Bundle, SourceUnit
from maskc.core.cost import Tally, cheapest
from maskc.core.sizes import Sizes
from maskc.layout import expected, tile_codes

_MOST_TILES = 1 << 20
"""Of larger tiles that are counted; longer sequences have the first source."""
_REMEMBERED = 256
"""Lengths and parameters of which it is known which source suits them."""


class Foreseen:
    """The one predicted to take least for choices at random; the same whatever is chosen, and
    wherever it is."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._known: dict[Hashable, SourceUnit] = {}

    def unit(
        self, units: Sequence[SourceUnit], params: Mapping[str, int], sizes: Sizes
    ) -> SourceUnit:  # fmt: skip
        """One of `units`, the first of which has the largest tiles.

        Args:
            params: a value for every parameter.
            sizes: of the call.
        """
        first, lengths = units[0], (sizes.n_q, sizes.n_kv)
        rows, columns = first.tiles(*lengths)
        if len(units) == 1 or rows * columns > _MOST_TILES:
            return first
        own = {name: params[name] for name, _ in self._bundle.params}
        key = (*(unit.key for unit in units), *own.values(), *lengths)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            found = cheapest(units, lambda unit: self._tally(unit, own, lengths), sizes.n_kv)
            self._known[key] = found
        return found

    def _tally(
        self, unit: SourceUnit, params: Mapping[str, int], lengths: tuple[int, int]
    ) -> Tally:
        """Of all masks, as heads have them."""
        chosen, bundle = self._bundle.selections, self._bundle
        tallies = [
            expected(tile_codes(v.keep, chosen, unit.tile, *lengths, params), chosen, unit.tile)
            for v in bundle.variants
        ]
        return Tally(
            sum(each.rows for each in tallies),
            sum(each.tiles for each in tallies),
            sum(each.masked for each in tallies),
        )
