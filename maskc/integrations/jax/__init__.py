"""Attention on arrays of JAX: eager, under jit, grad, vmap, scan and shard_map.

`attention` runs the kernels of `maskc.attention` inside of the program that XLA compiles. On GPUs
they are launched on XLA's stream; on CPUs the C kernel runs in XLA's threads. No Python runs in the
call, except on CPUs where a mask reads data: there the host makes lists of tiles.

    from maskc.integrations.jax import attention

    out = jax.jit(partial(attention, mask=mc.causal() & mc.window(256)))(q, k, v)
"""

from __future__ import annotations

from maskc.integrations.jax.jax_attention import attention as attention
from maskc.integrations.jax.layers import attention_fn as attention_fn
