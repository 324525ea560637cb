"""Attention on arrays of JAX, on a card: results against jnp in fp64 on the host."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import maskc as mc
from maskc.integrations.jax import attention
from tests.support import jax_oracle as oracle

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(jax.default_backend() != "gpu", reason="JAX has no GPU here"),
]
CASES = {**oracle.MASKS, **oracle.DATA_MASKS}


def reference(q, k, v, dout, keep, **options):
    """(out, lse, gradients of q, k, v and further arrays) on the host, in fp64."""
    names = [name for name in ("slopes", "sinks") if name in options]
    rest = [options.pop(name) for name in names]

    def both(q, k, v, dout, *rest):
        def run(q, k, v, *rest):
            return oracle.attended(q, k, v, keep, **dict(zip(names, rest, strict=True)), **options)

        (out, lse), back = jax.vjp(run, q, k, v, *rest)
        return out, lse, back((dout, jnp.zeros_like(lse)))

    with jax.default_device(jax.devices("cpu")[0]):
        return oracle.in_double(both, *map(np.asarray, (q, k, v, dout, *rest)))


def check(found, wanted, tolerance):
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert oracle.error(one, other) < tolerance, number


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_both_passes(name, dtype):
    mask, data = CASES[name]
    q, k, v, dout = oracle.inputs(dtype)
    out, lse, wanted = reference(q, k, v, dout, oracle.dense_of(mask, oracle.TOKENS, **data))

    @jax.jit
    def run(q, k, v, dout, data):
        known = {key: x for key, x in CASES[name][1].items() if isinstance(x, int)}
        found, back = jax.vjp(
            partial(attention, mask=mask, return_lse=True, **data, **known), q, k, v
        )
        return found, back((dout, jnp.zeros_like(found[1])))

    traced = {key: x for key, x in data.items() if not isinstance(x, int)}
    for _ in range(2):  # counters and lists serve again
        (found, found_lse), own = run(q, k, v, dout, traced)
        check((found, *own), (out, *wanted), 2e-2)
        check((found_lse,), (lse,), 1e-2)


def test_slopes_sinks_and_softcap():
    q, k, v, dout = oracle.inputs("bfloat16")
    slopes, sinks = jnp.linspace(0.05, 0.2, 4), jnp.asarray([0.5, -1.0, 2.0, 0.0])
    mask = mc.causal() & (mc.sinks(4) | mc.window(16))
    keep = oracle.dense_of(mask, oracle.TOKENS)
    out, _, wanted = reference(q, k, v, dout, keep, softcap=3.0, slopes=slopes, sinks=sinks)

    def run(q, k, v, slopes, sinks):
        return attention(q, k, v, mask, softcap=3.0, alibi_slopes=slopes, sink_logits=sinks)

    found, back = jax.vjp(jax.jit(run), q, k, v, slopes, sinks)
    check((found, *back(dout)), (out, *wanted), 2e-2)


def test_a_score_with_tables():
    q, k, v, dout = oracle.inputs("bfloat16")
    bias = jnp.asarray(np.random.default_rng(1).standard_normal((4, oracle.TOKENS)), jnp.float32)
    mask, keep = mc.causal(), oracle.dense_of(mc.causal(), oracle.TOKENS)
    score = mc.score(lambda s, q, k, h: s + mc.table("bias")[h, k])

    def both(q, k, v, dout, bias):
        def run(q, k, v, bias):
            return oracle.attended(q, k, v, keep, change=lambda s: s + bias[:, None, :])[0]

        out, back = jax.vjp(run, q, k, v, bias)
        return out, *back(dout)

    with jax.default_device(jax.devices("cpu")[0]):
        wanted = oracle.in_double(both, *map(np.asarray, (q, k, v, dout, bias)))
    found, back = jax.vjp(
        jax.jit(lambda q, k, v, bias: attention(q, k, v, mask, score=score, bias=bias)),
        q, k, v, bias,
    )  # fmt: skip
    check((found, *back(dout)), wanted, 2e-2)


def test_deterministic_gradients_have_equal_bits():
    q, k, v, dout = oracle.inputs("bfloat16")

    @jax.jit
    def run(q, k, v):
        return jax.vjp(partial(attention, mask=mc.causal(), deterministic=True), q, k, v)[1](dout)

    first = run(q, k, v)
    for _ in range(5):
        jax.tree.map(np.testing.assert_array_equal, run(q, k, v), first)


def test_vmap_scan_and_donation():
    q, k, v, _ = oracle.inputs("bfloat16")
    mask = mc.causal() & mc.window(40)
    plain = attention(q, k, v, mask)
    several = jax.vmap(partial(attention, mask=mask))(*(jnp.stack([x, x]) for x in (q, k, v)))
    np.testing.assert_array_equal(several[1], plain)

    def layer(x, _):
        return attention(x, k, v, mask), None

    found = jax.jit(lambda x: jax.lax.scan(layer, x, None, length=4)[0], donate_argnums=0)(q + 0)
    x = q
    for _ in range(4):
        x = attention(x, k, v, mask)
    np.testing.assert_array_equal(found, x)


def test_new_documents_make_new_lists_without_a_new_program():
    q, k, v, _ = oracle.inputs("bfloat16")
    mask = mc.causal() & mc.documents("doc")
    run = jax.jit(partial(attention, mask=mask))
    for size in (150, 30, 7):
        documents = np.arange(oracle.TOKENS) // size
        result = run(q, k, v, doc=jnp.asarray(documents))
        keep = oracle.dense_of(mask, oracle.TOKENS, doc=documents)
        out, *_ = reference(q, k, v, q, keep)
        check((result,), (out,), 2e-2)
    assert run._cache_size() == 1


def test_dropout_is_what_numpy_drops():
    from maskc.reference.dropout import factors

    q, k, _, _ = oracle.inputs("bfloat16", tokens=64)
    eye = jnp.broadcast_to(jnp.eye(64, dtype=q.dtype)[None, :, None], k.shape)
    out = attention(q, k, eye, mc.full(), dropout_p=0.25, dropout_seed=11)
    share = factors(0.25, 11, oracle.BATCH, oracle.HEADS, 64, 64) > 0
    np.testing.assert_array_equal(np.asarray(out, np.float32).transpose(0, 2, 1, 3) > 0, share)
