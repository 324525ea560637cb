"""maskc calibrate: fit the cost model to the GPU of this machine."""

from __future__ import annotations

from dataclasses import asdict

import click

from maskc.cli.options import json_option
from maskc.cli.output import echo, told, write_json, write_table


@click.command(short_help="Fit the cost model to this machine's GPU.")
@click.option("--forget", is_flag=True, help="Use the shipped coefficients again.")
@json_option
def calibrate(forget: bool, as_json: bool) -> None:
    """Measure what the kernels cost on the first visible GPU.

    A call can run in several ways: with large or small tiles, persistent or not. maskc takes the
    one with the lowest predicted time. The coefficients of the prediction ship for H100 and
    H200 cards and are interpolated for other Hopper cards. This command measures them, in about
    a minute, and stores them in the cache folder. Masks compiled afterwards use them.
    """
    from datetime import date

    from maskc.core.errors import NoDevice
    from maskc.lab import calibrate as lab
    from maskc.runtime.calibrated import forget as drop
    from maskc.runtime.calibrated import remember
    from maskc.runtime.device import first_card

    if forget:
        gpu = first_card()
        if gpu is None:
            raise NoDevice(f"target {lab.TARGET}", "this machine has none")
        drop(lab.TARGET, gpu)
        echo(f"{gpu.name}: shipped coefficients")
        return
    with told() as progress:
        result = lab.calibrate(progress=progress)
    remember(lab.TARGET, result.gpu, date.today().isoformat(), result.tables)
    if as_json:
        fits = [{**asdict(fit), "cost": asdict(fit.cost)} for fit in result.fits]
        write_json({"gpu": result.gpu.name, "tables": result.tables, "fits": fits})
        return
    echo(f"{result.gpu.name}: coefficients in cycles, in the cache folder from now on\n")
    write_table(
        ("source", "head dim", "mode", "row", "tile", "masked", "lone", "query", "largest error"),
        [
            (fit.source, str(fit.head_dim), fit.cost.mode, *map(str, (
                fit.cost.row, fit.cost.tile, fit.cost.masked, fit.cost.lone, fit.cost.query,
            )), f"{fit.worst:.0%}")
            for fit in result.fits
        ],
        numbers=(1, 3, 4, 5, 6, 7, 8),
    )  # fmt: skip
