"""Measurements of masks that commands share: `bench`, its suite, its tiles, and `report`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from maskc.cli.entries import MaskEntry
from maskc.cli.options import KernelOptions
from maskc.core.errors import CheckFailed

if TYPE_CHECKING:
    from maskc.lab.sweep import Measurement
    from maskc.verify.case import Case

Row = dict[str, Any]


@dataclass(frozen=True)
class How:
    """Options of the timing, for all masks."""

    asked: KernelOptions
    kv_heads: int | None
    batch: int
    directions: tuple[str, ...]
    repeats: int
    nvtx: bool = False

    def case(self, entry: MaskEntry, n: int, n_kv: int, data: dict[str, object]) -> Case:
        """One mask at one length."""
        from maskc.ir.heads import HEADS
        from maskc.verify.case import Case

        heads = self.asked.heads_for(entry.mask) or HEADS
        return Case(
            entry.name, entry.mask, self.batch, heads, self.kv_heads or heads, n, n_kv,
            self.asked.head_dim, self.asked.problem(entry.mask).dtype, data,
            tile=self.asked.tile, stages=self.asked.stages,
        )  # fmt: skip


def measured(
    entries: Sequence[MaskEntry], how: How, lengths: Sequence[int], n_kv: int | None,
    data_at: Callable[..., dict[str, object]], progress: Callable[[str], object],
    without: Collection[str] = (),
) -> Measurement:  # fmt: skip
    """Time and check masks at all lengths, each with as many keys unless `n_kv` is given.

    Args:
        data_at: the arrays that a mask reads, called as `Arrays.of` is.
        without: rivals to leave out.
    """
    from maskc import driver
    from maskc.lab.environment import environment
    from maskc.lab.rivals import RIVALS
    from maskc.lab.sweep import Measurement, growths, sweep
    from maskc.verify.case_tensors import device_of

    rows: list[Row] = []
    notes: list[str] = []
    orders: dict[str, tuple[str, int] | None] = {}
    about: dict[str, object] = {}
    for entry in entries:
        target = how.asked.target_for(entry.mask)
        about = about or environment(device_of(target))

        def case_at(n: int, entry: MaskEntry = entry) -> Case:
            keys = n if n_kv is None else n_kv
            return how.case(entry, n, keys, data_at(entry, n, keys, quiet=n != lengths[0]))

        timed, said = sweep(
            case_at, lengths, target, how.directions, how.repeats, progress, nvtx=how.nvtx,
            without=without,
        )  # fmt: skip
        rows += [row | {"target": target.name} for row in timed]
        notes += said
        if len(lengths) > 1 and how.repeats:
            orders[entry.name] = driver.order(entry.mask, case_at(lengths[0]).heads)
    about |= {"rivals": RIVALS, "repeats": how.repeats}
    return Measurement(rows, notes, growths(rows, orders) if orders else [], about)


def refuse_wrong(rows: Sequence[Row]) -> None:
    """Exit with 3 where a result of maskc is wrong.

    Raises:
        CheckFailed: it names the cases.
    """
    wrong = [row for row in rows if row["impl"] == "maskc" and not row["ok"]]
    if wrong:
        cases = ", ".join(dict.fromkeys(f"{row['case']} {row['direction']}" for row in wrong))
        raise CheckFailed(f"{len(wrong)} results of maskc are wrong: {cases}")
