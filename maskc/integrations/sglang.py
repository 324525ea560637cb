"""Attention backend for SGLang 0.5.14 or later. `register` adds it to SGLang's list of backends.

Tested on the CPU with the classes of SGLang 0.5.23: AttentionBackend, RadixAttention, ForwardBatch
and MHATokenToKVPool. Nobody has run it inside an SGLang server.

SGLang stores the keys and values of a layer as [slots, heads, D], or as [pages, heads, tokens of a
page, D] with SGLANG_USE_HND_KVCACHE. The table `req_to_token` has the slot of each token.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.attention.attention_registry import (
    ATTENTION_BACKENDS,
    register_attention_backend,
)
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend

from maskc.core.errors import LibraryTooOld, NotServed
from maskc.integrations.serving import (
    ServedLayer,
    ServedStep,
    StepTables,
    refuse,
    rounded_keys,
)
from maskc.paging import PagedAttention

NAME = "maskc"
"""The name that `--attention-backend` takes."""
OLDEST = "0.5.14"
"""The oldest version of SGLang. Earlier ones prepare CUDA graphs by two other methods, and pass the
pools with each batch."""
_ENGINE = "SGLang"


def register() -> None:
    """Add the attention backend "maskc" to SGLang. Calling it again does nothing.

    SGLang calls this function itself when it loads its plug-ins.

    Raises:
        LibraryTooOld: the installed SGLang is older than 0.5.14 (MC613).
    """
    import sglang
    from sglang.srt.server_args import add_attention_backend_choices

    if not hasattr(AttentionBackend, "init_forward_metadata_out_graph"):
        raise LibraryTooOld("sglang", OLDEST, getattr(sglang, "__version__", "another one"))

    if NAME not in ATTENTION_BACKENDS:
        register_attention_backend(NAME)(SglangBackend)
        add_attention_backend_choices([NAME])


class SglangBackend(AttentionBackend):
    """Attention of all layers of a model: prompts, chunks of prompts and decoding.

    CUDA graphs hold batches with one query per request. The backend keeps one step for each batch
    size of a graph, and writes the tables of each replay into the arrays that the graph reads.
    """

    def __init__(self, model_runner: Any) -> None:
        """Read the options of the model and of the server.

        Args:
            model_runner: SGLang's ModelRunner, after it has allocated its pools.

        Raises:
            NotServed: the model or an option needs attention that maskc does not run (MC665).
        """
        super().__init__()
        model, options = model_runner.model_config, model_runner.server_args
        refuse(_ENGINE, {
            "multi-head latent attention": getattr(model_runner, "use_mla_backend", False),
            "encoders and cross attention": getattr(model, "is_encoder_decoder", False),
            "speculative decoding":
                getattr(options, "speculative_algorithm", None) is not None,
            "a second pool for windows; start with --disable-hybrid-swa-memory":
                getattr(model_runner, "is_hybrid_swa", False),
        })  # fmt: skip
        self._page_size, self._longest = model_runner.page_size, model.context_len
        self._slots_of_tokens = model_runner.req_to_token_pool.req_to_token
        self._pool = model_runner.token_to_kv_pool
        self._layout = getattr(self._pool, "kv_cache_layout", "nhd").upper()
        refuse(_ENGINE, {f"the pool layout {self._layout}": self._layout not in ("NHD", "HND")})
        self._deterministic = bool(getattr(options, "enable_deterministic_inference", False))
        self._layers: dict[int, PagedAttention] = {}
        self._kept: dict[int, ServedStep] = {}
        self._step: ServedStep | None = None

    # -------------------------------------------------------------- steps

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Read the tables of a step that runs outside CUDA graphs.

        Args:
            forward_batch: SGLang's ForwardBatch.

        Raises:
            NotServed: the step verifies drafts or denoises a block of a diffusion model (MC665).
        """
        mode = forward_batch.forward_mode
        if mode.is_idle():
            return
        refuse(_ENGINE, {
            "drafts": forward_batch.spec_info is not None,
            "blocks of diffusion models": mode.is_dllm_extend(),
        })  # fmt: skip
        lens = forward_batch.seq_lens
        on_host = forward_batch.seq_lens_cpu
        longest = self._longest if on_host is None else int(on_host.max())
        most = rounded_keys(longest, self._longest)
        table = self._pages(forward_batch.req_pool_indices, most)
        if mode.is_decode():
            tables = StepTables.of_decode(table, lens, most)
        else:
            counts = forward_batch.extend_seq_lens_cpu
            tables = StepTables(
                table, forward_batch.extend_seq_lens, lens, None, int(sum(counts)),
                int(max(counts)), most,
            )  # fmt: skip
        self._step = ServedStep(tables)

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        """Write the tables of a step into the arrays that a CUDA graph reads.

        SGLang calls this before it captures a graph and before each replay.

        Args:
            forward_batch: SGLang's ForwardBatch, padded to the batch size of the graph.
            in_capture: not read; a capture and a replay need the same arrays.

        Raises:
            NotServed: the graph holds anything except decoding (MC665).
        """
        mode = forward_batch.forward_mode
        decodes = mode.is_decode_or_idle() and forward_batch.spec_info is None
        refuse(_ENGINE, {"CUDA graphs of anything except decoding": not decodes})
        count = forward_batch.batch_size
        table = self._pages(forward_batch.req_pool_indices[:count], self._longest)
        tables = StepTables.of_decode(table, forward_batch.seq_lens[:count], self._longest)
        if count in self._kept:  # several graphs may have the same batch size
            self._kept[count].update(tables)
        else:
            self._kept[count] = ServedStep(tables)
        self._step = self._kept[count]

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Do nothing: a step allocates its arrays when its first layer runs."""

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        """Return the length of the requests that pad a batch to the size of its graph."""
        return 1

    def _pages(self, requests: Any, keys: int) -> Any:
        """Return the pages [requests, pages] that hold the first `keys` keys of requests."""
        first = self._slots_of_tokens[:, : keys : self._page_size][requests]
        return first if self._page_size == 1 else first // self._page_size

    # -------------------------------------------------------------- layers

    def forward_decode(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True,
        **others: Any,
    ) -> Any:  # fmt: skip
        """Compute attention of one layer for one query per request. See `_forward`."""
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache, **others)

    def forward_extend(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True,
        **others: Any,
    ) -> Any:  # fmt: skip
        """Compute attention of one layer for prompts and chunks of prompts. See `_forward`."""
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache, **others)

    def _forward(
        self, q: Any, k: Any, v: Any, layer: Any, batch: Any, save: bool, sinks: Any = None,
        **others: Any,
    ) -> Any:  # fmt: skip
        """Write the new keys and values into the pools, then compute attention.

        Args:
            q: queries, [tokens, heads * D].
            k, v: keys and values, [tokens, heads, D]; None if another layer has written them.
            layer: SGLang's RadixAttention.
            batch: SGLang's ForwardBatch.
            save: whether to write k and v.
            sinks: one sink logit per head, [heads].
            others: further arguments of the model; they must be None or False.

        Returns:
            [tokens, heads * Dv], with zeros in rows that belong to no request.

        Raises:
            NotServed: an argument would change the result and maskc does not run it (MC665).
        """
        unknown = sorted(name for name, x in others.items() if x is not None and x is not False)
        if unknown:
            raise NotServed(_ENGINE, f"the arguments {unknown} of a layer")
        if self._step is None:
            raise NotServed(_ENGINE, "a layer outside of a step")
        pool = self._pool
        if save and k is not None:
            pool.set_kv_buffer(layer, batch.out_cache_loc, k, v, layer.k_scale, layer.v_scale)
        k_pool, v_pool = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
        if self._layout == "NHD":
            k_pool, v_pool = (x.view(-1, self._page_size, *x.shape[1:]) for x in (k_pool, v_pool))
        attn = self._attention(layer, k_pool)
        plan = self._step.plan(attn)
        q = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        options: dict[str, Any] = {"scale": layer.scaling, "deterministic": self._deterministic}
        if layer.logit_cap:
            options["softcap"] = layer.logit_cap
        if sinks is not None:
            options["sink_logits"] = sinks.float()
        if attn.in_e4m3 and layer.k_scale is not None:
            options |= {"k_scale": layer.k_scale_float, "v_scale": layer.v_scale_float}
        out, _ = attn.run(q[: plan.tokens], k_pool, v_pool, plan, **options)
        out = out.reshape(plan.tokens, -1)
        if plan.tokens == q.shape[0]:
            return out
        padded = out.new_zeros(q.shape[0], out.shape[1])
        padded[: plan.tokens] = out
        return padded

    def _attention(self, layer: Any, k_pool: Any) -> PagedAttention:
        """Return the kernels of a layer; they are compiled when the layer first runs.

        Raises:
            NotServed: the layer needs attention that maskc does not run (MC665).
        """
        attn = self._layers.get(layer.layer_id)
        if attn is not None:
            return attn
        kind = getattr(layer.attn_type, "value", layer.attn_type)
        refuse(_ENGINE, {
            f"{kind} layers": kind != "decoder" or layer.is_cross_attention,
            f"soft-caps by {layer.logit_capping_method}":
                bool(layer.logit_cap) and layer.logit_capping_method != "tanh",
            f"positions of kind {layer.pos_encoding_mode}": layer.pos_encoding_mode != "NONE",
            "temperatures by length": (layer.xai_temperature_len or 0) > 0,
            "chunked local attention": getattr(layer, "use_irope", False),
            "pools of E5M2": k_pool.dtype == torch.float8_e5m2,
        })  # fmt: skip
        before = layer.sliding_window_size
        attn = ServedLayer(
            layer.tp_q_head_num, layer.tp_k_head_num, layer.qk_head_dim, layer.v_head_dim,
            self._page_size, self._layout, before if before is not None and before >= 0 else None,
            k_pool.dtype == torch.float8_e4m3fn, k_pool.device.type == "cpu",
        ).attention()  # fmt: skip
        self._layers[layer.layer_id] = attn
        return attn
