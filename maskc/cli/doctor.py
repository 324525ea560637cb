"""maskc doctor: what this machine has, and what each gap costs."""

from __future__ import annotations

import click

from maskc.cli.options import json_option
from maskc.cli.output import echo, now, write_json, write_table
from maskc.core.target import TARGETS, Target

COSTS = {
    "C compiler": "CPU kernels run in NumPy, much slower: install gcc or clang, or set CC",
    "cache": "every process builds its kernels again: set MASKC_CACHE_DIR to a writable folder",
    "CUDA driver": "no CUDA kernel can run here; the CPU target works",
    "GPUs": "no CUDA kernel can run here; the CPU target works",
    "NVRTC": "no CUDA kernel can be built: pip install 'maskc[cuda13]'",
    "CUDA headers": "no CUDA kernel can be built: pip install 'maskc[cuda13]'",
    "CuPy": "no CUDA kernel can be built or run: pip install 'maskc[cuda13]'",
    "cuda.core": "arrays of other libraries are read through NumPy, CUDA arrays not at all",
    "cuda.bindings": "no CUDA kernel can run here: pip install 'maskc[cuda13]'",
    "torch": "no torch tensors, no autograd, and bench has nothing to compare with",
    "ml_dtypes": "no bfloat16 in NumPy: pip install ml_dtypes",
    "numpy": "nothing works",
    "matplotlib": "no PNG and SVG pictures, the terminal draws: pip install 'maskc[figures]'",
}
"""Consequences of each missing component, and the remedy."""
CARDS = {
    70: "V100", 75: "T4, RTX 20", 80: "A100", 86: "A10, RTX 30", 89: "L4, RTX 40", 90: "H100, H200",
    100: "B200", 120: "RTX 50",
}  # fmt: skip
"""Compute capability -> cards that have it."""
_SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


@click.command(short_help="Report what this machine has, and what is missing.")
@json_option
def doctor(as_json: bool) -> None:
    """Report the compiler, driver, NVRTC, CuPy, torch and cache, the effect of each missing part,
    and the targets of each card.
    """
    from maskc import __version__
    from maskc.build.toolchain import ToolchainCheck, probes
    from maskc.runtime.device import default_target

    now("looking for compilers, GPUs and libraries")
    rows = [
        (probe.name, probe.ok, probe.finding, "" if probe.ok else COSTS.get(probe.name, ""))
        for probe in (*probes(), ToolchainCheck("matplotlib", *_matplotlib()))
    ]
    target = default_target()
    if as_json:
        write_json({
            "maskc": __version__,
            "target": target,
            "cost_model": _cost_model(),
            "cards": {
                f"{capability / 10:.1f}": [target.name for target in targets_of(capability)]
                for capability in CARDS
            },
            "probes": [
                dict(zip(("name", "ok", "found", "cost"), row, strict=True)) for row in rows
            ],
        })  # fmt: skip
        return
    echo(f"maskc {__version__}; the default target is {target!r}\n")
    write_table(
        ("looked for", "", "found", "effect if missing"),
        [(name, "ok" if ok else "missing", *rest) for name, ok, *rest in rows],
    )
    if model := _cost_model():
        echo(f"\nkernels are chosen by predicted time, with coefficients {model}")
    echo("\neach pass runs on the first target of its row that has a kernel:\n")
    write_table(
        ("card", "capability", "targets"),
        [
            (names, f"{capability / 10:.1f}", ", ".join(map(_told, targets_of(capability))))
            for capability, names in CARDS.items()
        ],
    )


def targets_of(capability: int) -> tuple[Target, ...]:
    """The CUDA targets that a card of this compute capability runs, the preferred one first."""
    from maskc.runtime.device import CUDA, runs_on

    return tuple(TARGETS[name] for name in CUDA if runs_on(TARGETS[name], capability))


def _cost_model() -> str:
    """Return where the cost model of this machine's card comes from; empty without a choice."""
    from maskc.core.coefficients import cards
    from maskc.runtime.calibrated import calibration
    from maskc.runtime.device import default_target, first_card

    gpu, target = first_card(), default_target()
    names = cards(target)
    if gpu is None or not names:
        return ""
    stored = calibration(target, gpu)
    if stored is not None:
        return f"that `maskc calibrate` measured on this {gpu.name} on {stored.get('day')}"
    if gpu.name in names:
        return f"that ship for this card, {gpu.name}"
    return f"between the shipped ones of {', '.join(names)}; `maskc calibrate` measures this card's"


def _told(target: Target) -> str:
    dtypes = [_SHORT.get(dtype.value, dtype.value) for dtype in target.dtypes]
    if target.fp8_dims:
        dtypes.append("E4M3")
    most = target.head_dims[-1] if target.head_dims else target.widest
    return f"{target.name} ({', '.join(dtypes)}; head_dim to {most})"


def _matplotlib() -> tuple[bool, str]:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return True, version("matplotlib")
    except PackageNotFoundError:
        return False, "not installed"
