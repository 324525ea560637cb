"""Stand-ins for classes of vLLM 0.33, SGLang 0.5.10 and torchtitan 0.3.0, written from their
interfaces: names, arguments and defaults that attention meets, and nothing else."""

from __future__ import annotations

import enum
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import pytest


@contextmanager
def installed(modules: dict[str, dict[str, object]], loaded: str) -> Iterator[ModuleType]:
    """Give modules to imports while the block lasts.

    Args:
        modules: the contents of each, by dotted name; parents are added.
        loaded: the module of maskc that imports them, which is imported anew.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, contents in modules.items():
            parts = name.split(".")
            for end in range(1, len(parts) + 1):
                path = ".".join(parts[:end])
                if path not in sys.modules or end == len(parts):
                    patch.setitem(sys.modules, path, ModuleType(path))
            vars(sys.modules[name]).update(contents)
        patch.delitem(sys.modules, loaded, raising=False)
        __import__(loaded)
        yield sys.modules[loaded]
        patch.delitem(sys.modules, loaded)


# ------------------------------------------------------------------ vLLM


class MultipleOf:
    def __init__(self, base):
        self.base = base


class AttentionCGSupport(enum.Enum):
    ALWAYS, UNIFORM_BATCH, UNIFORM_SINGLE_TOKEN_DECODE, NEVER = 3, 2, 1, 0


class VllmAttentionBackend(ABC):
    supported_dtypes, supported_kv_cache_dtypes = (), ()
    forward_includes_kv_cache_update = True

    @staticmethod
    @abstractmethod
    def get_name(): ...

    @staticmethod
    @abstractmethod
    def get_impl_cls(): ...

    @staticmethod
    @abstractmethod
    def get_builder_cls(): ...

    @classmethod
    def supports_sink(cls):
        return False

    @classmethod
    def supports_sliding_window(cls):
        return False

    @classmethod
    def supports_mm_prefix(cls):
        return False


class AttentionMetadata:
    pass


class AttentionMetadataBuilder(ABC):
    _cudagraph_support = AttentionCGSupport.NEVER

    @abstractmethod
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device): ...

    @abstractmethod
    def build(self, common_prefix_len, common_attn_metadata, fast_build=False): ...

    def build_for_cudagraph_capture(self, common_attn_metadata):
        return self.build(0, common_attn_metadata)


class AttentionImpl(ABC):
    @abstractmethod
    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, *scales): ...


class AttentionBackendEnum(enum.Enum):
    FLASH_ATTN = "vllm.v1.attention.backends.flash_attn.FlashAttentionBackend"


VLLM_PATHS: dict[str, str] = {}
"""Registered class paths by name."""


class _WithRegistered:
    __members__ = {"FLASH_ATTN": AttentionBackendEnum.FLASH_ATTN}


def register_backend(backend, class_path=None, is_mamba=False):
    if backend in VLLM_PATHS:
        raise ValueError(f"Backend {backend} already exists")
    VLLM_PATHS[backend] = class_path
    _WithRegistered.__members__ = {**_WithRegistered.__members__, backend: class_path}
    return lambda cls: cls


VLLM = {
    "vllm.v1.attention.backend": {
        "AttentionBackend": VllmAttentionBackend, "AttentionCGSupport": AttentionCGSupport,
        "AttentionImpl": AttentionImpl, "AttentionMetadata": AttentionMetadata,
        "AttentionMetadataBuilder": AttentionMetadataBuilder, "MultipleOf": MultipleOf,
    },
    "vllm.v1.attention.backends.registry": {
        "AttentionBackendEnum": _WithRegistered, "register_backend": register_backend,
    },
}  # fmt: skip


# ------------------------------------------------------------------ SGLang


class ForwardMode(enum.Enum):
    EXTEND, DECODE, MIXED, IDLE, TARGET_VERIFY = range(1, 6)

    def is_decode(self):
        return self == ForwardMode.DECODE

    def is_idle(self):
        return self == ForwardMode.IDLE

    def is_decode_or_idle(self):
        return self.is_decode() or self.is_idle()


class SglangAttentionBackend(ABC):
    @abstractmethod
    def init_forward_metadata(self, forward_batch): ...

    def forward(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        if forward_batch.forward_mode.is_idle():
            return q.new_empty(q.shape[0], layer.tp_q_head_num * layer.v_head_dim)
        decodes = forward_batch.forward_mode.is_decode()
        run = self.forward_decode if decodes else self.forward_extend
        return run(q, k, v, layer, forward_batch, save_kv_cache=save_kv_cache, **kwargs)


class RadixAttention:
    def __init__(self, heads, dim, kv_heads, **options):
        self.tp_q_head_num, self.tp_k_head_num, self.tp_v_head_num = heads, kv_heads, kv_heads
        self.qk_head_dim = self.head_dim = self.v_head_dim = dim
        self.scaling, self.layer_id, self.logit_cap = dim**-0.5, 0, 0.0
        self.sliding_window_size, self.is_cross_attention = -1, False
        self.k_scale = self.v_scale = self.k_scale_float = self.v_scale_float = None
        self.attn_type, self.pos_encoding_mode = "decoder", "NONE"
        self.logit_capping_method, self.xai_temperature_len, self.use_irope = "tanh", -1, False
        vars(self).update(options)


SGLANG_BACKENDS: dict[str, object] = {}
SGLANG_CHOICES: list[str] = []


def register_attention_backend(name):
    def decorator(function):
        SGLANG_BACKENDS[name] = function
        return function

    return decorator


SGLANG = {
    "sglang.srt.layers.attention.base_attn_backend": {"AttentionBackend": SglangAttentionBackend},
    "sglang.srt.layers.attention.attention_registry": {
        "ATTENTION_BACKENDS": SGLANG_BACKENDS,
        "register_attention_backend": register_attention_backend,
    },
    "sglang.srt.server_args": {"add_attention_backend_choices": SGLANG_CHOICES.extend},
}


# ------------------------------------------------------------------ torchtitan


def torchtitan() -> dict[str, dict[str, object]]:
    """Stand-ins for classes of torchtitan 0.3.0; they derive from torch's modules."""
    import torch

    class Module(torch.nn.Module):
        @dataclass(kw_only=True, slots=True)
        class Config:
            owner: ClassVar[type]

            def build(self):
                return self.owner(config=replace(self))

        def __init_subclass__(cls):
            cls.Config.owner = cls

    class VarlenAttention(Module):
        @dataclass(kw_only=True, slots=True)
        class Config(Module.Config):
            window_size: tuple[int, int] = (-1, 0)

        def __init__(self, config):
            raise RuntimeError("chooses a kernel of flash-attn")

    return {
        "torchtitan.models.common.attention": {
            "VarlenAttention": VarlenAttention, "VarlenMetadata": VarlenMetadata,
        }
    }  # fmt: skip


class VarlenMetadata(NamedTuple):
    cu_seq_q: Any
    cu_seq_k: Any
    max_q: int
    max_k: int
    cu_seq_q_host: tuple[int, ...] | None = None
