"""Types of public calls, for a type checker. `make check` reads this file and nobody runs it: a
line that is wrong on purpose has an `ignore`, which mypy refuses where there is nothing to
ignore."""

from typing import Any, assert_type

import numpy as np

import maskc as mc


@mc.pattern
def local(left: int = 4, *, wide: bool = False) -> mc.Mask:
    return mc.window(left)


q = np.zeros((1, 1, 8, 16), dtype=np.float32)
attn = local().compile(16)
flag = bool(input())

assert_type(local(2, wide=True), mc.Mask)
assert_type(local.with_text({"left": "2"}), mc.Mask)
assert_type(attn, mc.CompiledMask)
assert_type(attn(q, q, q), Any)
assert_type(attn(q, q, q, return_lse=True), tuple[Any, Any])
assert_type(attn(q, q, q, return_lse=flag), Any)
assert_type(mc.attention(q, q, q, local()), Any)
assert_type(mc.attention(q, q, q, local(), return_lse=True), tuple[Any, Any])
assert_type(mc.attention(q, q, q, local(), return_lse=flag), Any)
assert_type(local().count(8), int)
assert_type(local().equals(mc.causal()), bool | None)
assert_type(mc.causal() & mc.sinks(4) | ~mc.full(), mc.Mask)
assert_type(local().dense(8).shape, tuple[Any, ...])
assert_type(local().layout(8).row_ptr.shape, tuple[Any, ...])

local(right=2)  # type: ignore[call-arg]
local("2")  # type: ignore[arg-type]
local(2, True)  # type: ignore[call-arg]
mc.causal().layout(8, block=128)  # type: ignore[arg-type]
mc.causal().compile()  # type: ignore[call-arg]
mc.attention(1, 2, 3, local)  # type: ignore[call-overload]

assert_type(mc.patterns.longformer(window=4), mc.Mask)
assert_type(mc.patterns.names(), tuple[str, ...])
assert_type(mc.testing.check(local(), examples=1), int)
assert_type(mc.scaled_dot_product_attention(q, q, q, None, 0.0, True, scale=0.5), Any)
assert_type(mc.nn.Attention(mc.causal()), mc.nn.Attention)
assert_type(mc.evaluate.load("name"), tuple[Any, Any])
assert_type(mc.distributed.plan(mc.causal(), 8, 2), mc.distributed.Plan)

mc.scaled_dot_product_attention(q, q, q, None, 0.0, True, 0.5)  # type: ignore[call-arg]
mc.attention(q, q, q, local(), 0.5)  # type: ignore[call-overload]
mc.paterns.longformer()  # type: ignore[attr-defined]
