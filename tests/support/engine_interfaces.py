"""The interfaces of engines that the adapters implement, in tests/golden/engines.txt.

`python -m tests.support.engine_interfaces` rewrites the lines of the engines that are installed.
"""

from __future__ import annotations

import inspect
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tests.support import engine_stubs

GOLDEN = Path(__file__).parents[1] / "golden" / "engines.txt"
_DISTRIBUTION = {"megatron": "megatron-core"}
_CALLED = {
    "vllm": (
        engine_stubs.VLLM, "CommonAttentionMetadata",
        "AttentionBackend.get_name", "AttentionBackend.get_impl_cls",
        "AttentionBackend.get_builder_cls", "AttentionBackend.get_supported_kernel_block_sizes",
        "AttentionBackend.supports_head_size", "AttentionBackend.supports_sink",
        "AttentionBackend.supports_sliding_window", "AttentionBackend.supports_compute_capability",
        "AttentionBackend.supports_device_cpu_query_lens_mismatch",
        "AttentionMetadataBuilder.__init__", "AttentionMetadataBuilder.build",
        "AttentionMetadataBuilder.build_for_cudagraph_capture",
        "AttentionImpl.__init__", "AttentionImpl.forward",
        "AttentionBackendEnum.register", "register_backend",
    ),
    "sglang": (
        engine_stubs.SGLANG, "ForwardBatch",
        "AttentionBackend.init_forward_metadata",
        "AttentionBackend.init_forward_metadata_out_graph",
        "AttentionBackend.init_cuda_graph_state",
        "AttentionBackend.get_cuda_graph_seq_len_fill_value",
        "AttentionBackend.forward", "AttentionBackend.forward_decode",
        "AttentionBackend.forward_extend", "RadixAttention.__init__",
        "MHATokenToKVPool.set_kv_buffer", "MHATokenToKVPool.get_key_buffer",
        "MHATokenToKVPool.get_value_buffer", "register_attention_backend",
    ),
    "megatron": (engine_stubs.MEGATRON, "PackedSeqParams", "AttnMaskType"),
    "torchtitan": (
        engine_stubs.torchtitan(), "VarlenMetadata", "VarlenAttention.__init__",
        "VarlenAttention.forward",
    ),
}  # fmt: skip
"""The stand-ins of each engine, and the names that adapters call or override."""


def stated() -> dict[str, tuple[str, list[str]]]:
    """Return version and lines of each engine in the golden text."""
    blocks = [block.splitlines() for block in GOLDEN.read_text().split("\n\n") if block.strip()]
    return {head.split()[0]: (head.split()[1], lines) for head, *lines in blocks}


def stands_in(engine: str) -> dict[str, str]:
    """Return the interface of the stand-ins by name."""
    modules, *names = _CALLED[engine]
    contents = {name: x for module in modules.values() for name, x in module.items()}
    return {name: _line(contents, name) for name in names}


def installed(engine: str) -> tuple[str, dict[str, str]]:
    """Return the installed version, and its interface by name."""
    modules, *names = _CALLED[engine]
    contents = vars(engine_stubs.classes(modules))
    try:
        number = version(_DISTRIBUTION.get(engine, engine))
    except PackageNotFoundError:
        number = "unknown"
    return number, {name: _line(contents, name) for name in names}


def parts(line: str) -> list[str]:
    """Return the arguments or fields of a line."""
    return line.partition("(")[2].removesuffix(")").split(", ")


def _line(contents: dict[str, object], name: str) -> str:
    """Return a name with its arguments, fields or members; "=" marks defaults."""
    thing = contents[name.partition(".")[0]]
    if "." in name:
        thing = getattr(thing, name.partition(".")[2])
    if members := getattr(thing, "__members__", None):
        return f"{name}({', '.join(members)})"
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    words = [
        marks.get(x.kind, "") + x.name + "=" * (x.default is not inspect.Parameter.empty)
        for x in inspect.signature(thing).parameters.values()
    ]
    return f"{name}({', '.join(words)})"


def main() -> None:
    """Rewrite the lines of the engines that are installed."""
    blocks = stated() if GOLDEN.exists() else {}
    for engine in _CALLED:
        if engine_stubs.INSTALLED[engine]:
            number, lines = installed(engine)
            blocks[engine] = number, list(lines.values())
    text = "\n\n".join(
        "\n".join([f"{engine} {blocks[engine][0]}", *blocks[engine][1]])
        for engine in _CALLED if engine in blocks
    )  # fmt: skip
    GOLDEN.write_text(text + "\n")


if __name__ == "__main__":
    main()
