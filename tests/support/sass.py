"""Contents of a cubin: machine instructions as text, without a GPU.

nvdisasm comes from the nvidia-cuda-nvdisasm wheel, which `cuda.pathfinder` finds.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path

_FUNCTION = re.compile(r"^\.text\.(\w+):", re.MULTILINE)


@cache
def disassembler() -> str | None:
    """Path of nvdisasm; None where it is not installed."""
    try:
        from cuda.pathfinder import find_nvidia_binary_utility
    except ImportError:
        return None
    return find_nvidia_binary_utility("nvdisasm")


def disassemble(cubin: bytes) -> str:
    """All functions of a cubin, one instruction a line, with labels."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        done = subprocess.run(
            [disassembler(), "-c", str(file)], capture_output=True, text=True, check=True
        )
    return done.stdout


def functions(sass: str) -> dict[str, str]:
    """The text of each function by its entry point."""
    _, *parts = _FUNCTION.split(sass)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def count(sass: str, opcode: str) -> int:
    """Instructions whose opcode is `opcode` (a regular expression), with any suffixes."""
    return len(re.findall(rf"(?:^|\s){opcode}(?:\.[\w.]+)?(?=\s|;)", sass, re.MULTILINE))


def among_products(sass: str) -> list[str]:
    """The text from the first matrix product of a function to the last, in program order."""
    match = re.search(r"HGMMA.*HGMMA", sass, re.DOTALL)
    return [match[0]] if match else []


def under_products(sass: str) -> list[str]:
    """What runs while the older of two groups of products is done and the younger is not: the
    text between each wait for all groups but one and the next wait for all, in program order."""
    waits = r"WARPGROUP\.DEPBAR\.LE gsb0, 0x1\b(.*?)WARPGROUP\.DEPBAR\.LE gsb0, 0x0\b"
    return re.findall(waits, sass, re.DOTALL)


def operands_of_two_kinds(sass: str) -> list[str]:
    """Registers of left operands that outlive a step (q, dout) which are those of one that does
    not (ds), too, as ptxas of CUDA 13.0 would have it where both have as many."""
    products = re.findall(r"HGMMA\S+ R\d+, R(\d+), gdesc\[UR\d+\](\.tnspB)?", sass)
    kept, made = ({int(first) for first, of_ds in products if bool(of_ds) == own}
                  for own in (False, True))  # fmt: skip
    return [f"R{first}" for first in sorted(kept & made)]


PARTS = {
    "": lambda sass: [sass],
    "among products": among_products,
    "under products": under_products,
    "operands of two kinds": operands_of_two_kinds,
}
"""Parts of a function's text by the name that the ledger knows them by."""
