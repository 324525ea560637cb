"""Attention backend of SGLang; `register` makes its name known.

Written from the interface of SGLang 0.5.10 (`sglang.srt.layers.attention.base_attn_backend`), where
the pools of a layer are [slots, heads, D] and `req_to_token` has the slot of each token.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.attention.attention_registry import (
    ATTENTION_BACKENDS,
    register_attention_backend,
)
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend

from maskc.core.errors import NotServed
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
_ENGINE = "SGLang"


def register() -> None:
    """Make the attention backend "maskc" known to SGLang.

    SGLang's plug-in loader calls this. Versions without one need a call at the top level of the
    program that starts the engine, because SGLang's workers import that file again.
    """
    from sglang.srt.server_args import add_attention_backend_choices

    if NAME not in ATTENTION_BACKENDS:
        register_attention_backend(NAME)(SglangBackend)
        add_attention_backend_choices([NAME])


class SglangBackend(AttentionBackend):
    """Attention of all layers of a model in SGLang, for prompts, chunks of prompts and decoding.

    CUDA graphs hold batches with one query per request; for these, a step is kept and updated.
    """

    def __init__(self, model_runner: Any) -> None:
        """Read the model's options.

        Args:
            model_runner: SGLang's ModelRunner.

        Raises:
            NotServed: the model or an option needs attention that does not run here (MC665).
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
        self._page_size, self._longest = options.page_size, model.context_len
        self._slots_of_tokens = model_runner.req_to_token_pool.req_to_token
        self._layers: dict[int, PagedAttention] = {}
        self._kept: dict[int, ServedStep] = {}
        self._step: ServedStep | None = None

    # -------------------------------------------------------------- steps

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Read the tables of a step.

        Raises:
            NotServed: the step checks a draft (MC665).
        """
        mode = forward_batch.forward_mode
        if mode.is_idle():
            return
        refuse(_ENGINE, {"drafts": forward_batch.spec_info is not None})
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

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Do nothing: steps bring their memory."""

    def init_forward_metadata_capture_cuda_graph(
        self, bs: int, num_tokens: int, req_pool_indices: Any, seq_lens: Any, encoder_lens: Any,
        forward_mode: Any, spec_info: Any,
    ) -> None:  # fmt: skip
        """Make the step that a CUDA graph for `bs` requests will hold.

        Raises:
            NotServed: the graph is not one of decoding (MC665).
        """
        self._check_graph(encoder_lens, forward_mode, spec_info)
        tables = self._decoding(bs, req_pool_indices, seq_lens)
        self._step = self._kept[bs] = ServedStep(tables)

    def init_forward_metadata_replay_cuda_graph(
        self, bs: int, req_pool_indices: Any, seq_lens: Any, seq_lens_sum: int, encoder_lens: Any,
        forward_mode: Any, spec_info: Any, seq_lens_cpu: Any,
    ) -> None:  # fmt: skip
        """Give the step of a CUDA graph the tables of its next replay.

        Raises:
            NotServed: as for the capture (MC665).
        """
        self._check_graph(encoder_lens, forward_mode, spec_info)
        self._step = self._kept[bs]
        self._step.update(self._decoding(bs, req_pool_indices, seq_lens))

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        """Return the length of requests that only fill up a graph."""
        return 1

    def _check_graph(self, encoder_lens: Any, mode: Any, spec_info: Any) -> None:
        decodes = mode.is_decode_or_idle() and encoder_lens is None and spec_info is None
        refuse(_ENGINE, {"CUDA graphs of anything except decoding": not decodes})

    def _decoding(self, count: int, requests: Any, lens: Any) -> StepTables:
        """Tables of a graph, with room for the longest request of the model."""
        table = self._pages(requests[:count], self._longest)
        return StepTables.of_decode(table, lens[:count], self._longest)

    def _pages(self, requests: Any, keys: int) -> Any:
        """Return the pages [requests, pages] of the first keys of requests."""
        first = self._slots_of_tokens[:, : keys : self._page_size][requests]
        return first if self._page_size == 1 else first // self._page_size

    # -------------------------------------------------------------- layers

    def forward_decode(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True,
        **others: Any,
    ) -> Any:  # fmt: skip
        """Attention of one layer for one query per request; see `_forward`."""
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache, **others)

    def forward_extend(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True,
        **others: Any,
    ) -> Any:  # fmt: skip
        """Attention of one layer for prompts and chunks of prompts; see `_forward`."""
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache, **others)

    def _forward(
        self, q: Any, k: Any, v: Any, layer: Any, batch: Any, save: bool, sinks: Any = None,
        **others: Any,
    ) -> Any:  # fmt: skip
        """Write new keys and values into the pools, and compute attention.

        Args:
            q: [tokens, heads * D].
            k, v: [tokens, heads, D]; None if another layer has written them.
            layer: SGLang's RadixAttention.
            batch: SGLang's ForwardBatch.
            save: whether to write k and v.
            sinks: sink logits [heads].

        Returns:
            [tokens, heads * Dv]; rows of no request are 0.

        Raises:
            NotServed: an argument would change the result and is not computed (MC665).
        """
        if any(x is not None for x in others.values()):
            raise NotServed(_ENGINE, f"the arguments {sorted(others)} of a layer")
        if self._step is None:
            raise NotServed(_ENGINE, "a layer outside of a step")
        pool = batch.token_to_kv_pool
        if save and k is not None:
            scales = layer.k_scale, layer.v_scale
            pool.set_kv_buffer(layer, batch.out_cache_loc, k, v, *scales)
        k_pool, v_pool = (
            x.view(-1, self._page_size, *x.shape[1:])
            for x in (pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id))
        )
        attn = self._attention(layer, k_pool)
        plan = self._step.plan(attn)
        q = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        options: dict[str, Any] = {"scale": layer.scaling}
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
        """Return the kernels of a layer.

        Raises:
            NotServed: the layer needs attention that does not run here (MC665).
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
            "temperatures by length": layer.xai_temperature_len > 0,
            "chunked local attention": getattr(layer, "use_irope", False),
            "pools of E5M2": k_pool.dtype == torch.float8_e5m2,
        })  # fmt: skip
        before = layer.sliding_window_size
        attn = ServedLayer(
            layer.tp_q_head_num, layer.tp_k_head_num, layer.qk_head_dim, layer.v_head_dim,
            self._page_size, "NHD", before if before is not None and before >= 0 else None,
            k_pool.dtype == torch.float8_e4m3fn, k_pool.device.type == "cpu",
        ).attention()  # fmt: skip
        self._layers[layer.layer_id] = attn
        return attn
