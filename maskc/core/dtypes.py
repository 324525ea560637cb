"""The storage types a kernel reads and writes. Arithmetic is always fp32."""

from __future__ import annotations

from enum import Enum

from maskc.core.errors import UnknownDType


class DType(Enum):
    """Storage type of q, k, v and out, but see `of_out`; the value is the name users write."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
    float8_e4m3fn = "float8_e4m3fn"
    """E4M3, of forward passes on Hopper: out is then bfloat16."""

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return {DType.float32: 4, DType.float8_e4m3fn: 1}.get(self, 2)

    @property
    def short(self) -> str:
        """`f32`, `bf16`, `f16` or `e4m3`, as it appears in identifiers and PTX."""
        return _SHORT[self.value]

    @property
    def of_out(self) -> DType:
        """The storage type of out."""
        return DType.bfloat16 if self is DType.float8_e4m3fn else self

    @staticmethod
    def parse(name: object) -> DType:
        """The dtype for `"bfloat16"`, `"bf16"`, `torch.bfloat16`, `np.float32`, ...

        Raises:
            UnknownDType: maskc has no kernels for it (MC501).
        """
        if isinstance(name, DType):
            return name
        text = getattr(name, "__name__", None) or str(name)
        text = text.removeprefix("torch.")
        aliases = {"fp32": "float32", "fp16": "float16", "half": "float16", "float": "float32"}
        aliases |= {kind.short: kind.value for kind in DType}
        text = aliases.get(text, text)
        if text not in DType.__members__:
            raise UnknownDType(str(name), ", ".join(sorted(DType.__members__)), at="dtype")
        return DType[text]


def dtype_name(x: object) -> str:
    """The name of the dtype of an array of any library; empty for anything else."""
    return str(getattr(x, "dtype", "")).rpartition(".")[2]


_SHORT = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "float8_e4m3fn": "e4m3"}

E4M3 = DType.float8_e4m3fn.value
"""The dtype that an indexer's queries and keys may have too: 4 bits of exponent, 3 of mantissa, no
infinity (Micikevicius et al., 2022)."""
