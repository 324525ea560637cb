"""Attention backend for vLLM 0.32 or later. `serving.register_vllm` registers it as "MASKC".

Tested on the CPU with the classes of vLLM 0.33.0: AttentionBackend, AttentionMetadataBuilder,
AttentionImpl, CommonAttentionMetadata, the registry of backends and the Attention layer. Nobody has
run it inside a vLLM server.

vLLM passes the cache of a layer as [blocks, heads, tokens of a block, 2 D], with any strides. The
first D elements of a row are the key.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    MultipleOf,
)

from maskc.core.errors import NotServed
from maskc.integrations.serving import (
    VLLM_NAME,
    ServedLayer,
    ServedStep,
    StepTables,
    own_mask,
    refuse,
    rounded_keys,
)
from maskc.paging import PagedAttention

_LARGEST_HEAD = 256
_OLDEST = (7, 5)
"""The oldest compute capability."""
_E4M3 = ("fp8", "fp8_e4m3")


class VllmBackend(AttentionBackend):
    """The properties by which vLLM decides whether this backend can run a model."""

    supported_dtypes: ClassVar[list[Any]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "float16", "bfloat16", *_E4M3]
    forward_includes_kv_cache_update = False

    @staticmethod
    def get_name() -> str:
        """Return the name that `--attention-backend` takes."""
        return VLLM_NAME

    @staticmethod
    def get_impl_cls() -> type[VllmLayer]:
        """Return the class of a layer's attention."""
        return VllmLayer

    @staticmethod
    def get_builder_cls() -> type[VllmSteps]:
        """Return the class that makes the metadata of a step."""
        return VllmSteps

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        """Return how many tokens a block of the cache may have."""
        return [MultipleOf(16)]

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        """Whether heads may have `head_size` elements."""
        return head_size % 8 == 0 and head_size <= _LARGEST_HEAD

    @classmethod
    def supports_sink(cls) -> bool:
        """Whether layers may have sink logits."""
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        """Whether layers may have windows."""
        return True

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        """Whether a card has compute capability 7.5 or later."""
        return (capability.major, capability.minor) >= _OLDEST

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        """Whether requests may have more queries on the card than vLLM says on the host: never.

        Plans take the most queries of a request from the host.
        """
        return False


class VllmMetadata(AttentionMetadata):
    """The plans of one step. All layers of a cache group share them."""

    def __init__(self, step: ServedStep) -> None:
        """Keep the plans of a step."""
        self.step = step


class VllmSteps(AttentionMetadataBuilder):
    """The builder of the metadata of each step.

    CUDA graphs hold batches with one query per request. The builder keeps one step for each batch
    size of a graph, and writes the tables of each replay into the arrays that the graph reads.
    """

    _cudagraph_support: ClassVar[Any] = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any
    ) -> None:
        """Read the options of the model. vLLM's base class describes the arguments.

        Raises:
            NotServed: the cache has another dtype than the model, or the layers attend to chunks
                and MASKC_SERVING_MASK has a mask (MC665).
        """
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        model = vllm_config.model_config
        is_chunked = getattr(kv_cache_spec, "attention_chunk_size", None) is not None
        refuse("vLLM", {
            f"a cache of {kv_cache_spec.dtype} for a model of {model.dtype}":
                kv_cache_spec.dtype not in (model.dtype, torch.uint8, torch.float8_e4m3fn),
            "a mask of one's own in layers with chunked local attention": is_chunked and own_mask(),
        })  # fmt: skip
        self._page_size, self._longest = kv_cache_spec.block_size, model.max_model_len
        self._kept: dict[int, ServedStep] = {}

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> VllmMetadata:
        """Make the metadata of a step.

        Args:
            common_prefix_len: not read; vLLM passes 0.
            common_attn_metadata: vLLM's CommonAttentionMetadata.
            fast_build: not read.

        Raises:
            NotServed: the step is not causal (MC665).
        """
        kept = self._kept.get(common_attn_metadata.num_reqs)
        if kept is None or not _decodes(common_attn_metadata):
            return VllmMetadata(ServedStep(self._tables(common_attn_metadata, False)))
        kept.update(self._tables(common_attn_metadata, True))
        return VllmMetadata(kept)

    def build_for_cudagraph_capture(self, common_attn_metadata: Any) -> VllmMetadata:
        """Make the metadata of a step that a CUDA graph will hold.

        Raises:
            NotServed: as `build`.
        """
        count = common_attn_metadata.num_reqs
        if _decodes(common_attn_metadata) and count not in self._kept:
            self._kept[count] = ServedStep(self._tables(common_attn_metadata, True))
        return self.build(0, common_attn_metadata)

    def _tables(self, given: Any, for_graph: bool) -> StepTables:
        """Read vLLM's tables; a graph has room for the longest request of the model."""
        refuse("vLLM", {"attention that is not causal": given.causal is not True})
        table = given.block_table_tensor
        room = table.shape[1] * self._page_size
        most = self._longest if for_graph else rounded_keys(given.max_seq_len, room)
        table = table[:, : -(-most // self._page_size)]
        if _decodes(given):
            return StepTables.of_decode(table, given.seq_lens, most)
        return StepTables(
            table, None, given.seq_lens, given.query_start_loc, given.num_actual_tokens,
            given.max_query_len, most,
        )  # fmt: skip


def _decodes(given: Any) -> bool:
    """Whether each request has one query. Requests that pad a graph have no keys, so their rows of
    the output become 0."""
    return bool(given.max_query_len == 1 and given.num_actual_tokens == given.num_reqs)


class VllmLayer(AttentionImpl):
    """Attention of one layer of vLLM."""

    def __init__(
        self, num_heads: int, head_size: int, scale: float, num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None, sliding_window: int | None = None,
        kv_cache_dtype: str = "auto", logits_soft_cap: float | None = None,
        attn_type: str = "decoder", kv_sharing_target_layer_name: str | None = None,
        sinks: Any = None, **others: Any,
    ) -> None:  # fmt: skip
        """Read the options of a layer. vLLM's base class describes the arguments.

        A `sliding_window` of n lets a query see its own key and the n - 1 keys before it.

        Raises:
            NotServed: an argument would change the result and maskc does not run it (MC665).
        """
        kind = getattr(attn_type, "value", attn_type)
        unknown = [name for name, x in others.items() if x is not None and x is not False]
        refuse("vLLM", {
            f"{kind} layers": kind != "decoder",
            f"the arguments {unknown} of a layer": unknown,
        })  # fmt: skip
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.sliding_window, self.kv_cache_dtype = sliding_window, kv_cache_dtype
        self.kv_sharing_target_layer_name, self.sinks = kv_sharing_target_layer_name, sinks
        self._in_e4m3 = kv_cache_dtype in _E4M3
        self._attn: PagedAttention | None = None
        self._options: dict[str, Any] = {"scale": self.scale}
        if logits_soft_cap:
            self._options["softcap"] = float(logits_soft_cap)
        if alibi_slopes is not None:
            self._options["alibi_slopes"] = torch.tensor(alibi_slopes, dtype=torch.float32)

    def forward(
        self, layer: Any, query: Any, key: Any, value: Any, kv_cache: Any, attn_metadata: Any,
        output: Any, output_scale: Any = None, output_block_scale: Any = None,
    ) -> Any:  # fmt: skip
        """Compute attention of one layer.

        vLLM has called `do_kv_cache_update` before, so the cache has the keys of this step.

        Args:
            layer: vLLM's Attention, whose `_k_scale` and `_v_scale` are read for E4M3 caches.
            query: [tokens, heads, D].
            key, value: not read.
            kv_cache: [blocks, heads, tokens of a block, 2 D], with any strides.
            attn_metadata: the metadata of this step. If None, vLLM measures memory only, and the
                output becomes 0.
            output: [tokens, heads, D], written in place.
            output_scale, output_block_scale: must be None.

        Returns:
            output.

        Raises:
            NotServed: vLLM wants the output in FP8 or FP4 (MC665).
            MaskcError: as `PagedAttention.run`.
        """
        if output_scale is not None or output_block_scale is not None:
            raise NotServed("vLLM", "output in FP8 or FP4")
        if attn_metadata is None:
            return output.fill_(0)
        attn, k_pool, v_pool = self._pools(kv_cache)
        plan = attn_metadata.step.plan(attn)
        options = {**self._options, **self._scales(layer)}
        if self.sinks is not None:
            options["sink_logits"] = self.sinks.float()
        out = output[: plan.tokens]
        attn.run(query[: plan.tokens], k_pool, v_pool, plan, out=out, **options)
        return output

    def do_kv_cache_update(
        self, layer: Any, key: Any, value: Any, kv_cache: Any, slot_mapping: Any
    ) -> None:
        """Write the keys and values of a step into the cache, in one launch.

        Args:
            layer: as in `forward`.
            key, value: [tokens, heads, D].
            kv_cache: as in `forward`.
            slot_mapping: int64, the slot of each row; rows with -1 are not stored.

        Raises:
            NotServed: the cache has another shape than that of vLLM 0.32 and later (MC665).
        """
        attn, k_pool, v_pool = self._pools(kv_cache)
        rows = slot_mapping.shape[0]
        attn.append(
            key[:rows], value[:rows], k_pool, v_pool, slots=slot_mapping, **self._scales(layer)
        )

    def _pools(self, cache: Any) -> tuple[PagedAttention, Any, Any]:
        """Return the kernels for a cache, and its keys and values [blocks, heads, tokens, D].

        Raises:
            NotServed: the cache has another shape than that of vLLM 0.32 and later (MC665).
        """
        refuse("vLLM", {f"a cache of {cache.ndim} dimensions": cache.ndim != 4})
        if self._in_e4m3:
            cache = cache.view(torch.float8_e4m3fn)
        dim, attn = self.head_size, self._attn
        if attn is None or attn.page_size != cache.shape[2]:
            before = None if self.sliding_window is None else self.sliding_window - 1
            attn = self._attn = ServedLayer(
                self.num_heads, self.num_kv_heads, dim, cache.shape[3] - dim, cache.shape[2],
                "HND", before, self._in_e4m3, cache.device.type == "cpu",
            ).attention()  # fmt: skip
        return attn, cache[..., :dim], cache[..., dim:]

    def _scales(self, layer: Any) -> dict[str, Any]:
        if not self._in_e4m3:
            return {}
        return {"k_scale": layer._k_scale, "v_scale": layer._v_scale}
