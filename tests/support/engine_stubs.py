"""Classes of vLLM, SGLang, Megatron-Core and torchtitan for tests: the package's own if it is
installed, else stand-ins with the names, arguments and defaults that attention meets.

tests/golden/engines.txt has the interfaces that the stand-ins follow, with the versions."""

# ruff: noqa: B024, B027 - stand-ins have empty methods

from __future__ import annotations

import enum
import importlib.util
import os
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import pytest

Stubs = dict[str, dict[str, object]]
"""The contents of modules by dotted name."""
INSTALLED = {
    name: importlib.util.find_spec(name) is not None
    for name in ("vllm", "sglang", "megatron", "torchtitan")
}


def imported(module: str) -> ModuleType:
    """Import a module; engines warn about what this machine lacks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(module)


def classes(stubs: Stubs) -> SimpleNamespace:
    """Return the contents of modules by name: the installed package's, else the stand-ins."""
    contents: dict[str, object] = {}
    for module, names in stubs.items():
        if INSTALLED[module.partition(".")[0]]:
            loaded = imported(module)
            contents |= {name: getattr(loaded, name) for name in names}
        else:
            contents |= names
    return SimpleNamespace(**contents)


@contextmanager
def installed(modules: Stubs, loaded: str) -> Iterator[ModuleType]:
    """Let a module of maskc import stand-ins while the block lasts, unless the package is there.

    Args:
        modules: the stand-ins; parents are added.
        loaded: the module of maskc that imports them, which is imported anew.
    """
    if INSTALLED[next(iter(modules)).partition(".")[0]]:
        yield imported(loaded)
        return
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
    def get_supported_kernel_block_sizes(kv_cache_spec=None):
        return [MultipleOf(1)]

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
    def supports_head_size(cls, head_size):
        return True

    @classmethod
    def supports_sink(cls):
        return False

    @classmethod
    def supports_sliding_window(cls):
        return False

    @classmethod
    def supports_mm_prefix(cls):
        return False

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls):
        return True

    @classmethod
    def supports_compute_capability(cls, capability):
        return True


class AttentionMetadata:
    pass


@dataclass
class CommonAttentionMetadata:
    query_start_loc: Any
    query_start_loc_cpu: Any
    seq_lens: Any
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: Any
    slot_mapping: Any
    causal: Any = True


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
    def __init__(
        self,
        num_heads,
        head_size,
        scale,
        num_kv_heads=None,
        alibi_slopes=None,
        sliding_window=None,
        kv_cache_dtype="auto",
        logits_soft_cap=None,
        attn_type="decoder",
        kv_sharing_target_layer_name=None,
    ): ...

    @abstractmethod
    def forward(
        self,
        layer,
        query,
        key,
        value,
        kv_cache,
        attn_metadata,
        output,
        output_scale=None,
        output_block_scale=None,
    ): ...


class AttentionBackendEnum:
    """vLLM's is an Enum whose metaclass lets `register` add members."""

    __members__: ClassVar[dict[str, Any]] = {}

    def __init__(self, path):
        self.get_path = lambda: path

    def __class_getitem__(cls, name):
        return cls.__members__[name]

    @classmethod
    def register(cls, name, value):
        if name in cls.__members__:
            raise ValueError(f"Backend {name} already exists")
        cls.__members__[name] = cls(value)


def register_backend(backend, class_path=None, is_mamba=False):
    AttentionBackendEnum.register(backend, class_path)
    return lambda cls: cls


VLLM = {
    "vllm.v1.attention.backend": {
        "AttentionBackend": VllmAttentionBackend, "AttentionCGSupport": AttentionCGSupport,
        "AttentionImpl": AttentionImpl, "AttentionMetadata": AttentionMetadata,
        "AttentionMetadataBuilder": AttentionMetadataBuilder, "MultipleOf": MultipleOf,
        "CommonAttentionMetadata": CommonAttentionMetadata,
    },
    "vllm.v1.attention.backends.registry": {
        "AttentionBackendEnum": AttentionBackendEnum, "register_backend": register_backend,
    },
}  # fmt: skip


# ------------------------------------------------------------------ SGLang


class ForwardMode(enum.IntEnum):
    EXTEND, DECODE, MIXED, IDLE, TARGET_VERIFY, DRAFT_EXTEND_V2 = range(1, 7)
    PREBUILT, SPLIT_PREFILL, DLLM_EXTEND = range(7, 10)

    def is_decode(self):
        return self == ForwardMode.DECODE

    def is_idle(self):
        return self == ForwardMode.IDLE

    def is_decode_or_idle(self):
        return self.is_decode() or self.is_idle()

    def is_dllm_extend(self):
        return self == ForwardMode.DLLM_EXTEND


@dataclass
class ForwardBatch:
    forward_mode: ForwardMode
    batch_size: int
    input_ids: Any
    req_pool_indices: Any
    seq_lens: Any
    out_cache_loc: Any
    seq_lens_sum: int
    seq_lens_cpu: Any = None
    spec_info: Any = None
    extend_seq_lens: Any = None
    extend_prefix_lens: Any = None
    extend_seq_lens_cpu: Any = None


class SglangAttentionBackend(ABC):
    def init_forward_metadata(self, forward_batch):
        self.init_forward_metadata_out_graph(forward_batch)

    def init_forward_metadata_out_graph(self, forward_batch, in_capture=False): ...

    def init_cuda_graph_state(self, max_bs, max_num_tokens): ...

    def get_cuda_graph_seq_len_fill_value(self): ...

    def forward(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        if forward_batch.forward_mode.is_idle():
            return q.new_empty(q.shape[0], layer.tp_q_head_num * layer.v_head_dim)
        decodes = forward_batch.forward_mode.is_decode()
        run = self.forward_decode if decodes else self.forward_extend
        return run(q, k, v, layer, forward_batch, save_kv_cache=save_kv_cache, **kwargs)

    def forward_decode(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs): ...

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs): ...


class RadixAttention:
    def __init__(
        self, num_heads, head_dim, scaling, num_kv_heads, layer_id, logit_cap=0.0, v_head_dim=-1,
        sliding_window_size=-1, is_cross_attention=False, pos_encoding_mode="NONE",
        logit_capping_method="tanh", quant_config=None, attn_type="decoder", use_irope=False,
        prefix="", use_prefill_attention_wrapper=True,
    ):  # fmt: skip
        self.tp_q_head_num, self.tp_k_head_num = num_heads, num_kv_heads
        self.qk_head_dim = self.head_dim = head_dim
        self.v_head_dim = v_head_dim if v_head_dim != -1 else head_dim
        self.scaling, self.layer_id, self.logit_cap = scaling, layer_id, logit_cap
        self.sliding_window_size = sliding_window_size or -1
        self.is_cross_attention, self.attn_type = is_cross_attention, attn_type
        self.k_scale = self.v_scale = self.k_scale_float = self.v_scale_float = None
        self.pos_encoding_mode, self.xai_temperature_len = pos_encoding_mode, -1
        self.logit_capping_method, self.use_irope = logit_capping_method, use_irope


class MHATokenToKVPool:
    def __init__(
        self, size, page_size, dtype, head_num, head_dim, layer_num, device, enable_memory_saver,
        v_head_dim=None,
    ):  # fmt: skip
        import torch

        in_hnd = os.environ.get("SGLANG_USE_HND_KVCACHE") == "1"
        self.kv_cache_layout, self.page_size = "hnd" if in_hnd else "nhd", page_size
        slots = size + page_size
        shape = (slots // page_size, head_num, page_size) if in_hnd else (slots, head_num)
        self.k, self.v = (
            torch.zeros(layer_num, *shape, dim).to(dtype)
            for dim in (head_dim, v_head_dim or head_dim)
        )

    def get_key_buffer(self, layer_id):
        return self.k[layer_id]

    def get_value_buffer(self, layer_id):
        return self.v[layer_id]

    def set_kv_buffer(self, layer, loc_info, cache_k, cache_v, k_scale=None, v_scale=None):
        for pool, rows, scale in ((self.k, cache_k, k_scale), (self.v, cache_v, v_scale)):
            rows = (rows if scale is None else rows / scale).to(pool.dtype)
            if self.kv_cache_layout == "nhd":
                pool[layer.layer_id][loc_info] = rows
            else:
                page, offset = loc_info // self.page_size, loc_info % self.page_size
                pool[layer.layer_id][page, :, offset] = rows


ATTENTION_BACKENDS: dict[str, object] = {}
ATTENTION_BACKEND_CHOICES: list[str] = []


def register_attention_backend(name):
    def decorator(function):
        ATTENTION_BACKENDS[name] = function
        return function

    return decorator


SGLANG = {
    "sglang": {"__version__": "0.5.23"},
    "sglang.srt.layers.attention.base_attn_backend": {"AttentionBackend": SglangAttentionBackend},
    "sglang.srt.layers.attention.attention_registry": {
        "ATTENTION_BACKENDS": ATTENTION_BACKENDS,
        "register_attention_backend": register_attention_backend,
    },
    "sglang.srt.server_args": {
        "ATTENTION_BACKEND_CHOICES": ATTENTION_BACKEND_CHOICES,
        "add_attention_backend_choices": ATTENTION_BACKEND_CHOICES.extend,
    },
    "sglang.srt.layers.radix_attention": {"RadixAttention": RadixAttention},
    "sglang.srt.mem_cache.memory_pool": {"MHATokenToKVPool": MHATokenToKVPool},
    "sglang.srt.model_executor.forward_batch_info": {
        "ForwardBatch": ForwardBatch, "ForwardMode": ForwardMode,
    },
}  # fmt: skip


# ------------------------------------------------------------------ Megatron-Core


class AttnMaskType(enum.Enum):
    padding, causal, no_mask, padding_causal, arbitrary, causal_bottom_right = range(1, 7)


@dataclass
class PackedSeqParams:
    qkv_format: Any = None
    cu_seqlens_q: Any = None
    cu_seqlens_kv: Any = None
    cu_seqlens_q_padded: Any = None
    cu_seqlens_kv_padded: Any = None
    max_seqlen_q: Any = None
    max_seqlen_kv: Any = None
    local_cp_size: Any = None
    cp_group: Any = None


MEGATRON = {
    "megatron.core.transformer.enums": {"AttnMaskType": AttnMaskType},
    "megatron.core.packed_seq_params": {"PackedSeqParams": PackedSeqParams},
}


# ------------------------------------------------------------------ torchtitan


def torchtitan() -> Stubs:
    """Stand-ins for classes of torchtitan, which derive from torch's modules."""
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

        def forward(
            self,
            q_BLNH,
            k_BLNH,
            v_BLNH,
            *,
            attention_masks,
            scale=None,
            out_transform=None,
            **kwargs,
        ): ...

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
