"""Attention on arrays of JAX, on CPUs: transformations, and results against jnp in fp64."""

from __future__ import annotations

import warnings
from contextlib import suppress
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

with suppress(RuntimeError):  # somebody has asked for devices before
    jax.config.update("jax_num_cpu_devices", 4)

import maskc as mc
from maskc.core.errors import (
    BadOption,
    BadShape,
    DataMissing,
    DataRange,
    DataShape,
    DataType,
    DataUnknown,
    DropoutSeed,
    DTypesDiffer,
    HeadsDoNotDivide,
    NoCompiler,
    NotAMask,
    NotAnArray,
    NotASplashMask,
    NotExported,
    NotRecorded,
    NotTraced,
    OnlyOneDerivative,
    WrongRank,
)
from maskc.integrations.jax import attention, attention_fn
from tests.support import jax_oracle as oracle

MASK = mc.causal() & (mc.sinks(4) | mc.window(16))
TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 3e-3}


def expected(q, k, v, dout, keep, dlse=None, **options):
    """(out, lse, gradients of q, k, v and of further arrays) in fp64."""
    names = [name for name in ("slopes", "sinks") if options.get(name) is not None]
    rest = [options.pop(name) for name in names]

    def run(q, k, v, *rest):
        return oracle.attended(q, k, v, keep, **dict(zip(names, rest, strict=True)), **options)

    def both(q, k, v, dout, dlse, *rest):
        (out, lse), back = jax.vjp(run, q, k, v, *rest)
        finite = jnp.where(jnp.isfinite(lse), dlse, 0)
        return out, lse, back((dout, finite))

    if dlse is None:
        dlse = np.zeros((q.shape[0], q.shape[2], q.shape[1]))
    return oracle.in_double(both, q, k, v, dout, dlse, *rest)


def made(arguments):
    """Make the arrays of a case. At import they would start JAX, whose threads no fork copies."""
    return {name: x() if callable(x) else x for name, x in arguments.items()}


def gradients(function, q, k, v, dout, *rest):
    """(out, gradients) of a function of q, k, v and further arrays."""
    out, back = jax.vjp(function, q, k, v, *rest)
    return out, back(dout)


def check(found, wanted, tolerance):
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert oracle.error(one, other) < tolerance, number


@pytest.mark.parametrize("name", [*oracle.MASKS, *oracle.DATA_MASKS])
def test_both_passes_are_those_of_dense_attention(name):
    mask, data = {**oracle.MASKS, **oracle.DATA_MASKS}[name]
    q, k, v, dout = oracle.inputs()
    keep = oracle.dense_of(mask, oracle.TOKENS, **data)
    out, lse, wanted = expected(q, k, v, dout, keep)
    traced = {key: x for key, x in data.items() if not isinstance(x, int)}
    known = {key: x for key, x in data.items() if isinstance(x, int)}

    def run(q, k, v, data):
        return attention(q, k, v, mask, return_lse=True, **data, **known)

    (found, found_lse), back = jax.vjp(partial(jax.jit(run), data=traced), q, k, v)
    check((found, found_lse), (out, lse), 2e-5)
    check(back((dout, jnp.zeros_like(found_lse))), wanted, 2e-5)


@pytest.mark.parametrize("name", ["sinks and window", "documents"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(name, dtype):
    mask, data = {**oracle.MASKS, **oracle.DATA_MASKS}[name]
    q, k, v, dout = oracle.inputs(dtype)
    out, _, wanted = expected(q, k, v, dout, oracle.dense_of(mask, oracle.TOKENS, **data))
    found, found_gradients = gradients(
        lambda q, k, v: attention(q, k, v, mask, **data), q, k, v, dout
    )
    assert found.dtype == found_gradients[1].dtype == q.dtype
    check((found, *found_gradients), (out, *wanted), TOLERANCE[dtype])


def test_it_is_jax_nn_dot_product_attention_with_the_dense_mask():
    q, k, v, _ = oracle.inputs()
    keep = oracle.dense_of(MASK, oracle.TOKENS)
    wanted = jax.nn.dot_product_attention(q, k, v, mask=jnp.asarray(keep))
    assert oracle.error(jax.jit(partial(attention, mask=MASK))(q, k, v), wanted) < 2e-5


def test_lengths_that_differ_and_one_sequence_of_keys_for_all():
    q, k, v, dout = oracle.inputs(tokens=40, keys=130)
    k, v = k[:1], v[:1]
    wide = [jnp.broadcast_to(x, (q.shape[0], *x.shape[1:])) for x in (k, v)]
    out, _, (dq, dk, dv) = expected(q, *wide, dout, oracle.dense_of(MASK, 40, 130))
    found, own = gradients(partial(attention, mask=MASK), q, k, v, dout)
    check((found, *own), (out, dq, dk.sum(0)[None], dv.sum(0)[None]), 2e-5)


@pytest.mark.parametrize("spelling", ["bhnd", "bhsd"])
def test_layout_with_heads_first(spelling):
    q, k, v, _ = oracle.inputs()
    turned = [x.swapaxes(1, 2) for x in (q, k, v)]
    out = attention(*turned, MASK, layout=spelling).swapaxes(1, 2)
    with pytest.warns(mc.LayoutWarning, match="layout='bhnd'"):
        attention(*turned, MASK)
    attention(*(x[:, : oracle.HEADS] for x in (q, q, q)), mc.causal())  # [N, H] or [H, N]: silent
    np.testing.assert_array_equal(out, attention(q, k, v, MASK))
    np.testing.assert_array_equal(out, attention(q, k, v, MASK, layout="bshd"))


def test_softcap_slopes_and_sinks_with_their_gradients():
    q, k, v, dout = oracle.inputs()
    slopes, sinks = np.float32([0.1, 0.2, 0.0, 0.05]), np.float32([0.5, -1.0, 2.0, 0.0])
    keep = oracle.dense_of(MASK, oracle.TOKENS)
    out, _, wanted = expected(
        q, k, v, dout, keep, scale=0.2, softcap=3.0, slopes=slopes, sinks=sinks
    )

    def run(q, k, v, slopes, sinks):
        return attention(
            q, k, v, MASK, scale=0.2, softcap=3.0, alibi_slopes=slopes, sink_logits=sinks
        )

    found, own = gradients(run, q, k, v, dout, jnp.asarray(slopes), jnp.asarray(sinks))
    check((found, *own), (out, *wanted), 3e-5)


@pytest.mark.parametrize("name", ["sinks and window", "empty rows", "documents"])
def test_lse_has_gradients(name):
    mask, data = {**oracle.MASKS, **oracle.DATA_MASKS}[name]
    q, k, v, dout = oracle.inputs()
    sinks = np.float32([0.5, -1.0, 2.0, 0.0])
    dlse = np.random.default_rng(3).standard_normal((2, oracle.HEADS, oracle.TOKENS))
    keep = oracle.dense_of(mask, oracle.TOKENS, **data)
    out, lse, wanted = expected(q, k, v, dout, keep, dlse=dlse, sinks=sinks)

    def run(q, k, v, sinks):
        return attention(q, k, v, mask, sink_logits=sinks, return_lse=True, **data)

    found, back = jax.vjp(run, q, k, v, jnp.asarray(sinks))
    check(found, (out, lse), 2e-5)
    check(back((dout, jnp.asarray(dlse, np.float32))), wanted, 3e-5)


def test_a_score_with_a_captured_table_and_those_that_calls_give():
    q, k, v, dout = oracle.inputs()
    draws = np.random.default_rng(5)
    bias = draws.standard_normal((oracle.HEADS, oracle.TOKENS)).astype(np.float32)
    gain = draws.random(oracle.HEADS).astype(np.float32)
    shift = draws.standard_normal(oracle.TOKENS).astype(np.float32)
    keep = oracle.dense_of(MASK, oracle.TOKENS)
    score = mc.score(
        lambda s, q, k, h: s * mc.table("gain")[h] + mc.table("bias")[h, k] + shift[q - k]
    )

    def run(q, k, v, bias, gain):
        return attention(q, k, v, MASK, score=score, gain=gain, bias=bias)

    def reference(q, k, v, dout, bias, gain):
        def own(q, k, v, bias, gain):
            behind = np.subtract.outer(np.arange(oracle.TOKENS), np.arange(oracle.TOKENS))

            def change(s):
                return s * gain[:, None, None] + bias[:, None, :] + shift[behind]

            return oracle.attended(q, k, v, keep, change=change)[0]

        out, back = jax.vjp(own, q, k, v, bias, gain)
        return out, *back(dout)

    found, own = gradients(jax.jit(run), q, k, v, dout, jnp.asarray(bias), jnp.asarray(gain))
    check((found, *own), oracle.in_double(reference, q, k, v, dout, bias, gain), 3e-5)


PARENTS = np.array([-1, *(i // 3 for i in range(59))])
LISTS = np.random.default_rng(4).integers(-1, 60, (60, 7))


@pytest.mark.parametrize(
    ("mask", "data"),
    [
        (mc.tree("tree"), {"tree": mc.parents(PARENTS)}),
        (mc.key_lists("lists"), {"lists": LISTS}),
        (mc.documents("doc"), {"doc": mc.cu_seqlens(np.array([0, 13, 41, 60]))}),
    ],
    ids=["parents", "lists", "lengths"],
)
def test_data_of_numpy_inside_of_jit(mask, data):
    q, k, v, _ = oracle.inputs(tokens=60)
    result = jax.jit(lambda q: attention(q, k, v, mask, **data))(q)
    out, *_ = expected(q, k, v, q, oracle.dense_of(mask, 60, **data))
    check((result,), (out,), 2e-5)


def test_traced_parents():
    q, k, v, _ = oracle.inputs(tokens=60)
    result = jax.jit(lambda x: attention(q, k, v, mc.tree("tree"), tree=mc.parents(x)))(PARENTS)
    out, *_ = expected(q, k, v, q, oracle.dense_of(mc.tree("t"), 60, t=mc.parents(PARENTS)))
    check((result,), (out,), 2e-5)


@pytest.mark.filterwarnings("ignore::maskc.dsl.matrices.DenseWarning")
def test_formulas_capture_arrays_of_jax_and_call_its_functions():
    ids = jnp.arange(60) // 13
    mask = mc.from_mask_mod(
        lambda b, h, q, k: jnp.logical_and(ids[q] == ids[k], jnp.where(q > k, True, q == k))
    )
    rows = np.arange(60)[:, None]
    keep = (rows // 13 == rows.T // 13) & (rows >= rows.T)
    np.testing.assert_array_equal(mask.dense(60), keep)
    matrix = jnp.asarray(keep)
    np.testing.assert_array_equal(mc.from_bool(matrix).dense(60), keep)

    q, k, v, _ = oracle.inputs(tokens=60)
    bias = jnp.linspace(-1, 1, 60)
    score = mc.score(lambda s, q, k: 5 * jnp.tanh(s / 5) + bias[k])
    result = jax.jit(lambda q: attention(q, k, v, mask, score=score))(q)

    def change(s):
        return 5 * jnp.tanh(s / 5) + np.asarray(bias)

    out, *_ = expected(q, k, v, q, keep[None, None], change=change)
    check((result,), (out,), 2e-5)


def test_formulas_do_not_capture_what_is_traced():
    made = (
        lambda x: mc.from_bool(x[:, None] >= x),
        lambda x: mc.where(lambda q, k: x[q] == x[k]),
        lambda x: mc.score(lambda s, q, k: s + x[k]),
    )
    for make in made:
        with pytest.raises(NotTraced, match="go by name"):
            jax.jit(lambda x, make=make: make(x) and 0)(jnp.arange(60))


@pytest.mark.filterwarnings("ignore::maskc.double.ReferenceWarning")
def test_double_precision():
    args = [np.asarray(x, np.float64) for x in oracle.inputs(tokens=40)]
    out, _, exact = expected(*args, oracle.dense_of(MASK, 40))
    with jax.enable_x64(True):
        q, k, v, dout = map(jnp.asarray, args)
        result, grads = gradients(jax.jit(partial(attention, mask=MASK)), q, k, v, dout)
        assert result.dtype == grads[0].dtype == np.float64
        check((result, *grads), (out, *exact), 1e-12)


def test_without_a_compiler_the_host_is_called(monkeypatch):
    from maskc.integrations.jax import native

    def missing():
        raise NoCompiler("cc")

    q, k, v, dout = oracle.inputs(tokens=83)
    monkeypatch.setattr(native, "runner", missing)
    run = jax.jit(lambda q, k, v: attention(q, k, v, MASK))
    assert "callback" in run.lower(q, k, v).as_text()
    out, _, exact = expected(q, k, v, dout, oracle.dense_of(MASK, 83))
    result, grads = gradients(run, q, k, v, dout)
    check((result, *grads), (out, *exact), 2e-5)


# ------------------------------------------------------------------ transformations


def loss(q, k, v, mask=MASK, **options):
    return (attention(q, k, v, mask, **options) ** 2).sum()


GRADIENT = jax.grad(loss, (0, 1, 2))


@pytest.mark.parametrize("axes", [(0, 0, 0), (0, None, None), (2, 1, None)])
def test_vmap_folds_into_sequences(axes):
    q, k, v, _ = oracle.inputs()
    several = [
        x if axis is None else jnp.stack([x, 2 * x, -x], axis)
        for x, axis in zip((q, k, v), axes, strict=True)
    ]
    made = jax.make_jaxpr(jax.vmap(partial(attention, mask=MASK), in_axes=axes))(*several)
    assert not {"while", "scan"}.intersection(str(made).split())
    one = [
        [x if axis is None else jnp.take(x, i, axis) for x, axis in zip(several, axes, strict=True)]
        for i in range(3)
    ]
    for function in (partial(attention, mask=MASK), GRADIENT):
        out = jax.vmap(function, in_axes=axes)(*several)
        wanted = jax.tree.map(lambda *x: jnp.stack(x), *(function(*each) for each in one))
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), out, wanted)


def test_vmap_over_slopes_and_data_runs_one_after_another():
    q, k, v, _ = oracle.inputs(tokens=60)
    slopes = jnp.linspace(0, 1, 3)[:, None] * jnp.ones(oracle.HEADS)
    documents = jnp.stack([jnp.arange(60) // size for size in (7, 20, 60)])

    def run(slopes, doc):
        return attention(q, k, v, mc.documents("doc"), alibi_slopes=slopes, doc=doc)

    out = jax.vmap(run)(slopes, documents)
    for i in range(3):
        np.testing.assert_allclose(out[i], run(slopes[i], documents[i]), rtol=1e-5, atol=1e-5)


def test_vmap_of_a_score_that_reads_the_sequence_runs_one_after_another():
    q, k, v, _ = oracle.inputs(tokens=40)
    score = mc.score(lambda s, q, k, h, b: s + mc.scores.where(b == 1, 0.1 * k, 0.0))
    run = partial(attention, mask=MASK, score=score)
    out = jax.vmap(run)(*(jnp.stack([x, 2 * x]) for x in (q, k, v)))
    np.testing.assert_allclose(out[1], run(2 * q, 2 * k, 2 * v), rtol=1e-5, atol=1e-6)


def test_vmap_over_nothing():
    q, k, v, _ = oracle.inputs(tokens=20)
    several = jnp.zeros((0, *q.shape))
    result, grads = jax.vjp(jax.vmap(lambda q: attention(q, k, v, MASK)), several)
    assert result.shape == grads(result)[0].shape == several.shape


@pytest.mark.parametrize("sizes", [(0, 5, 5), (2, 0, 5), (2, 5, 0)])
def test_nothing_to_compute(sizes):
    batch, n_q, n_kv = sizes
    q, k = jnp.ones((batch, n_q, 2, 32)), jnp.ones((batch, n_kv, 2, 32))
    (out, lse), back = jax.vjp(lambda q, k: attention(q, k, k, MASK, return_lse=True), q, k)
    np.testing.assert_array_equal(out, np.zeros(q.shape))
    np.testing.assert_array_equal(lse, np.full((batch, 2, n_q), -np.inf))
    for found, x in zip(back((out, lse)), (q, k), strict=True):
        np.testing.assert_array_equal(found, np.zeros(x.shape))


def test_scan_and_checkpoint():
    q, k, v, _ = oracle.inputs()
    plain = GRADIENT(q, k, v)
    kept = jax.jit(jax.grad(jax.checkpoint(loss), (0, 1, 2)))(q, k, v)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6), kept, plain)

    def layers(x, k, v):
        def layer(x, _):
            return x + attention(x, k, v, MASK), None

        return (jax.lax.scan(layer, x, None, length=3)[0] ** 2).sum()

    def unrolled(x, k, v):
        for _ in range(3):
            x = x + attention(x, k, v, MASK)
        return (x**2).sum()

    found = jax.jit(jax.grad(layers, (0, 1, 2)))(q, k, v)
    wanted = jax.grad(unrolled, (0, 1, 2))(q, k, v)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), found, wanted)


@pytest.mark.parametrize("switch", ["disable_jit", "debug_nans"])
def test_switches_for_debugging(switch):
    q, k, v, _ = oracle.inputs(tokens=60)
    mask = mc.causal() & mc.flags("keep")  # the first rows are empty: lse is -inf

    def run(q):
        return attention(q, k, v, mask, keep=jnp.arange(60) > 9, return_lse=True)[0].sum()

    exact = jax.value_and_grad(run)(q)
    with getattr(jax, switch)(True):
        jax.tree.map(np.testing.assert_array_equal, jax.value_and_grad(run)(q), exact)
        if switch == "debug_nans":
            with pytest.raises(FloatingPointError):
                run(q.at[0, 20, 0, 0].set(np.nan))
    with jax.debug_infs(True), pytest.raises(FloatingPointError, match="inf"):
        run(q)


def test_donated_buffers():
    q, k, v, _ = oracle.inputs()
    wanted = np.asarray(attention(q, k, v, MASK))
    found = jax.jit(partial(attention, mask=MASK), donate_argnums=0)(q + 0, k, v)
    np.testing.assert_array_equal(found, wanted)


def test_wide_integers_and_numbers():
    q, k, v, _ = oracle.inputs()
    mask = mc.causal() & mc.documents("doc")
    wanted = np.asarray(attention(q, k, v, mask, doc=oracle.DOCUMENTS))
    with jax.enable_x64(True):
        documents = jnp.asarray(oracle.DOCUMENTS)
        assert documents.dtype == np.int64
        found = jax.jit(partial(attention, mask=mask))(q, k, v, doc=documents)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, wanted)
        jax.tree.map(
            partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6),
            GRADIENT(q, k, v), jax.grad(loss, (0, 1, 2))(q, k, v),
        )  # fmt: skip


@pytest.mark.parametrize("checked", [True, False])
def test_shard_map_over_sequences_and_heads(checked):
    shape = (2, 2) if len(jax.devices()) > 3 else (1, 1)
    mesh = jax.make_mesh(shape, ("data", "heads"), (jax.sharding.AxisType.Auto,) * 2)
    q, k, v, _ = oracle.inputs()
    slopes = jnp.linspace(0.1, 1, oracle.HEADS)
    rows = jax.sharding.PartitionSpec("data", None, "heads")
    heads = jax.sharding.PartitionSpec("heads")

    def run(q, k, v, slopes):
        return attention(q, k, v, MASK, alibi_slopes=slopes)

    cut = jax.shard_map(
        run, mesh=mesh, in_specs=(rows, rows, rows, heads), out_specs=rows, check_vma=checked
    )
    np.testing.assert_array_equal(jax.jit(cut)(q, k, v, slopes), run(q, k, v, slopes))

    def summed(function, *arrays):
        return (function(*arrays) ** 2).sum()

    found = jax.jit(jax.grad(partial(summed, cut), (0, 1, 2, 3)))(q, k, v, slopes)
    wanted = jax.grad(partial(summed, run), (0, 1, 2, 3))(q, k, v, slopes)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), found, wanted)


def test_shard_map_with_data_of_all_sequences():
    mesh = jax.make_mesh((len(jax.devices()) // 2 or 1,), ("data",), (jax.sharding.AxisType.Auto,))
    q, k, v, _ = oracle.inputs()
    rows, whole = jax.sharding.PartitionSpec("data"), jax.sharding.PartitionSpec()

    def run(q, k, v, sinks, doc):
        return attention(q, k, v, mc.documents("doc"), sink_logits=sinks, doc=doc)

    cut = jax.shard_map(run, mesh=mesh, in_specs=(*[rows] * 3, whole, whole), out_specs=rows)
    given = q, k, v, jnp.linspace(-1, 1, oracle.HEADS), jnp.asarray(oracle.DOCUMENTS)

    def summed(function, sinks):
        return (function(*given[:3], sinks, given[4]) ** 2).sum()

    found = jax.jit(jax.value_and_grad(partial(summed, cut)))(given[3])
    wanted = jax.value_and_grad(partial(summed, run))(given[3])
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), found, wanted)


def test_shapes_are_known_without_running_anything():
    q, k, v, _ = oracle.inputs()
    out, lse = jax.eval_shape(partial(attention, mask=MASK, return_lse=True), q, k, v)
    assert out.shape == q.shape
    assert lse.shape == (oracle.BATCH, oracle.HEADS, oracle.TOKENS)


def test_nothing_of_python_runs_in_a_call_without_data():
    q, k, v, _ = oracle.inputs()
    text = jax.jit(GRADIENT).lower(q, k, v).as_text()
    assert text.count("maskc_on_host") == 2
    assert "callback" not in text


def test_a_mask_is_a_static_argument():
    q, k, v, _ = oracle.inputs(tokens=60)
    drawn = np.random.default_rng(0).random((60, 60)) < 0.5
    run = jax.jit(attention, static_argnames="mask")
    masks = [
        lambda: MASK,
        lambda: mc.from_bool(drawn),
        lambda: mc.per_head([mc.causal(), mc.window(3), mc.full(), mc.global_tokens([1])]),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # small masks are dense
        for number, make in enumerate(masks, 1):
            for _ in range(2):  # equal masks, made twice, are one
                result = run(q, k, v, mask=make())
            assert run._cache_size() == number
            out, *_ = expected(q, k, v, q, oracle.dense_of(make(), 60))
            check((result,), (out,), 2e-5)


def test_equal_calls_share_a_program():
    from maskc.integrations.jax import native

    q, k, v, _ = oracle.inputs(tokens=77)
    jax.jit(partial(attention, mask=MASK))(q, k, v)
    before = len(native._kept)
    jax.jit(lambda *x: attention(*x, mask=mc.causal() & (mc.sinks(4) | mc.window(16))))(q, k, v)
    assert len(native._kept) == before


# ------------------------------------------------------------------ dropout


def test_dropout_keeps_and_drops_as_the_reference_does():
    from maskc.reference.dropout import factors

    q, k, *_ = oracle.inputs(tokens=64)
    share = np.asarray(factors(0.25, 11, oracle.BATCH, oracle.HEADS, 64, 64)) > 0
    assert 0.7 < share.mean() < 0.8
    seeds = [11, jnp.int32(11), jnp.asarray([11], jnp.uint32)]
    eye = jnp.broadcast_to(jnp.eye(64)[None, :, None], (2, 64, oracle.KV_HEADS, 64))
    for seed in seeds:
        out = attention(q, k, eye, mc.full(), dropout_p=0.25, dropout_seed=seed)
        np.testing.assert_array_equal(np.asarray(out).transpose(0, 2, 1, 3) > 0, share)


def test_dropout_takes_keys_and_has_gradients():
    q, k, v, dout = oracle.inputs()
    key = jax.random.key(3)

    def run(v, key):
        return attention(q, k, v, MASK, dropout_p=0.5, dropout_seed=key)

    out, back = jax.vjp(partial(jax.jit(run), key=key), v)
    step = jax.random.normal(jax.random.key(1), v.shape)
    np.testing.assert_allclose(  # out is linear in v
        (dout * (run(v + step, key) - out)).sum(), (back(dout)[0] * step).sum(), rtol=1e-3
    )
    assert not np.array_equal(out, run(v, jax.random.key(4)))
    np.testing.assert_array_equal(out, run(v, jax.random.PRNGKey(3)))
    rbg = jax.random.key_data(jax.random.key(3, impl="rbg"))
    with jax.default_prng_impl("rbg"):
        assert not np.array_equal(out, run(v, rbg))


# ------------------------------------------------------------------ mistakes


def test_other_derivatives_are_refused():
    q, k, v, _ = oracle.inputs(tokens=20)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(partial(attention, k=k, v=v, mask=MASK), (q,), (q,))
    with pytest.raises(OnlyOneDerivative, match="no derivative"):
        jax.grad(lambda q: (jax.grad(loss)(q, k, v) ** 2).sum())(q)


def test_export_is_refused():
    q, k, v, _ = oracle.inputs(tokens=20)
    with pytest.raises(NotExported, match=r"jax\.export"):
        jax.export.export(jax.jit(partial(attention, mask=MASK)))(q, k, v)


def test_mistakes_are_named():
    q, k, v, _ = oracle.inputs(tokens=20)
    with pytest.raises(NotAnArray, match=r"q is a [\s\S]*integrations\.jax\.attention"):
        jax.jit(lambda q: mc.attention(q, q, q, mc.causal()))(jnp.zeros((1, 2, 5, 16)))
    with pytest.raises(NotAMask):
        attention(q, k, v, jnp.ones((20, 20), bool))
    with pytest.raises(WrongRank):
        attention(q[0], k, v, MASK)
    with pytest.raises(DTypesDiffer):
        attention(q, k.astype(jnp.bfloat16), v, MASK)
    with pytest.raises(BadOption):
        attention(q, k, v, MASK, layout="sbhd")
    with pytest.raises(DropoutSeed):
        attention(q, k, v, MASK, dropout_p=0.1)
    with pytest.raises(NotTraced):
        jax.jit(lambda scale: attention(q, k, v, MASK, scale=scale))(0.1)
    with pytest.raises(mc.MaskcError, match=r"mc\.param\('w', 64\)"):
        jax.jit(lambda w: attention(q, k, v, mc.window(w)))(3)
    with pytest.raises(mc.MaskcError, match=r"jax\.numpy has some that do not"):
        mc.score(lambda s: jax.nn.relu(s))
    with pytest.raises(NotTraced):
        attention(q, k, v, mc.documents("doc"), doc="all")
    with pytest.raises(mc.MaskcError, match="doc"):
        attention(q, k, v, mc.documents("doc"))
    with pytest.raises(DataRange, match="32 bits"):
        attention(q, k, v, mc.documents("doc"), doc=np.arange(20) << 40)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"is_causal": True}, DataUnknown, 'align="start"'),
        ({"cu_seqlens_q": np.array([0, 20])}, DataUnknown, r"mc\.cu_seqlens\(ends\)"),
        ({"implementation": "cudnn"}, NotTraced, "determine the kernel"),
        ({"normalizer": "entmax"}, NotTraced, "softmax only"),
        ({"dropout_rng": partial(jax.random.key, 0)}, NotTraced, "dropout_seed="),
        ({"softcapp": 3.0}, DataUnknown, "did you mean 'softcap'"),
        ({"mask": None}, NotAMask, r"mc\.full"),
        ({"layout": "sbhd"}, BadOption, r"integrations\.jax\.attention"),
        ({"scale": "wide"}, BadOption, "a number"),
        (dict.fromkeys("qkv", partial(jnp.ones, (2, 20, 4, 64), int)), mc.MaskcError, "astype"),
        ({"q": partial(jnp.ones, (20, 4, 64))}, WrongRank, r"x\[None\]"),
        ({"k": partial(jnp.ones, (2, 20, 2, 32))}, BadShape,
         r"\(2, 20, 2, 64\) .*\n.*\[B, N, Hq, D\]"),
        ({"v": partial(jnp.ones, (2, 9, 2, 64))}, BadShape, r"v has shape \(2, 9, 2, 64\)"),
        ({"q": partial(jnp.ones, (2, 20, 3, 64))}, HeadsDoNotDivide, "[B, N, Hq, D]"),
        ({"layout": "bhnd"}, HeadsDoNotDivide, r"\[B, Hq, N, D\]"),
        ({"dropout_p": 0.1, "dropout_seed": 1 << 70}, DropoutSeed, "1180591620717411303424"),
        ({"dropout_p": 0.1, "dropout_seed": lambda: jax.random.split(jax.random.key(0))},
         DropoutSeed, r"\[2\]"),
        ({"doc": np.zeros(20, int)}, DataUnknown, "'doc'"),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_words_of_jax(change, error, match):
    q, k, v, _ = oracle.inputs(tokens=20, kv_heads=2)
    args = {"q": q, "k": k, "v": v, "mask": MASK, **made(change)}
    if change.get("layout") == "bhnd":
        args |= {"k": k[:, :19], "v": v[:, :19]}
    for run in (lambda: attention(**args), lambda: jax.jit(lambda: attention(**args))()):
        with pytest.raises(error, match=match) as raised:
            run()
        assert "torch tensors" not in str(raised.value)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ({}, DataMissing),
        ({"docs": partial(jnp.zeros, 20, int)}, DataUnknown),
        ({"doc": partial(jnp.zeros, 21, int)}, DataShape),
        ({"doc": partial(jnp.zeros, (3, 20), int)}, DataShape),
        ({"doc": partial(jnp.zeros, 20)}, DataType),
        ({"doc": partial(jnp.zeros, 20, int), "other": partial(jnp.zeros, 20, int)}, DataUnknown),
    ],
)
def test_data_that_do_not_fit_are_refused_before_anything_runs(data, error):
    q, k, v, _ = oracle.inputs(tokens=20)
    run = partial(attention, mask=mc.documents("doc"))
    with pytest.raises(error):
        run(q, k, v, **made(data))
    with pytest.raises(error):
        jax.jit(run).lower(q, k, v, **made(data))


def test_values_that_do_not_fit():
    q, k, v, _ = oracle.inputs(tokens=20)

    def run(ends):
        return attention(q, k, v, mc.documents("doc"), doc=mc.cu_seqlens(ends))

    with pytest.raises(DataRange, match="end at 21"):
        run(jnp.array([0, 21]))
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=r"MC305.*end at 21"):
        jax.block_until_ready(jax.jit(run)(jnp.array([0, 21])))


def test_what_must_be_known_is_not_traced():
    q, k, v, _ = oracle.inputs(tokens=20)
    for name in ("deterministic", "return_lse"):
        with pytest.raises(NotTraced, match=name):
            jax.jit(lambda x, name=name: attention(q, k, v, MASK, **{name: x}))(True)


@pytest.fixture
def card(monkeypatch):
    """Paper that stands for a Hopper."""
    from maskc.core.tensors import PAPER
    from maskc.runtime.launch import cuda
    from maskc.runtime.launch.recording import PaperDriver
    from maskc.testing.emulator import machine

    driver = machine.install(monkeypatch)
    paper = PaperDriver(driver)
    monkeypatch.setattr(cuda, "_driver", lambda device: paper if device >= PAPER else driver)
    yield
    machine.installed.clear()


@pytest.mark.parametrize(
    ("mask", "data", "error", "match"),
    [
        (mc.causal() & mc.window(mc.param("w", 8)), {"w": 3}, None, ""),
        (
            mc.causal() & mc.window(mc.param("w", 8)),
            {"w": partial(jnp.int32, 3)},
            NotTraced,
            "on GPUs",
        ),
        (mc.documents("doc"), {"doc": partial(jnp.zeros, 60, int)}, None, ""),
        (mc.documents("doc"), {"doc": partial(jnp.zeros, 61, int)}, DataShape, "doc"),
        (mc.documents("doc"), {"doc": partial(jnp.zeros, 60)}, DataType, "float32"),
        (mc.tree("tree"), {"tree": lambda: mc.parents(jnp.asarray(PARENTS))}, NotRecorded, "tree"),
        (mc.key_lists("lists"), {"lists": partial(jnp.asarray, LISTS)}, NotRecorded, "lists"),
    ],
)
def test_programs_of_a_card(card, monkeypatch, mask, data, error, match):
    from maskc.integrations.jax import jax_attention, lowered

    seen = []

    class Noted:
        """The operation, which notes what it is given."""

        @staticmethod
        def bind(*arrays, call):
            seen.append((arrays, call))
            return lowered.FORWARD.bind(*arrays, call=call)

    monkeypatch.setattr(jax_attention, "FORWARD", Noted)
    q, k, v, _ = oracle.inputs("bfloat16", tokens=60)
    jax.eval_shape(lambda q: attention(q, k, v, mask, **made(data)), q)
    ((arrays, call),) = seen
    if error is None:
        recorded, results = lowered._recorded("forward", call, "cuda", arrays)
        assert recorded.steps
        assert len(results) == 2
        return
    with pytest.raises(error, match=match):
        lowered._recorded("forward", call, "cuda", arrays)


# ------------------------------------------------------------------ doors


def splash_masks():
    """(name, a mask of Splash) over 60 queries and 60 or 90 keys."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as splash

    shape = (60, 60)
    drawn = np.random.default_rng(2).random(shape) < 0.3

    class Striped(splash._ComputableMask):
        def __init__(self):
            super().__init__(shape, lambda q, k: ((q - k) % 3 == 0) & (q >= k))

    causal = splash.CausalMask(shape)
    return {
        "causal": causal,
        "causal, offset": splash.CausalMask((60, 90), offset=30),
        "causal, negative offset": splash.CausalMask(shape, offset=-5),
        "local": splash.LocalMask(shape, (7, 3), offset=0),
        "local, one side": splash.LocalMask(shape, (None, 4), offset=2),
        "local, offset": splash.LocalMask((60, 90), (11, 0), offset=30),
        "chunked": splash.ChunkedCausalMask(shape, 13),
        "full": splash.FullMask(shape),
        "array": splash.NumpyMask(drawn),
        "and": causal & splash.LocalMask(shape, (9, None), offset=0),
        "or": (causal & splash.NumpyMask(drawn)) | splash.LocalMask(shape, (2, 2), offset=0),
        "function": Striped(),
        "heads": splash.MultiHeadMask([causal, splash.FullMask(shape), splash.NumpyMask(drawn)]),
    }


@pytest.mark.parametrize("name", splash_masks())
def test_masks_of_splash_pair_by_pair(name):
    from maskc.integrations.jax.splash import from_splash

    mask = splash_masks()[name]
    rows = (slice(None),) * len(mask.shape)
    expected = np.asarray(mask[rows])
    found = np.asarray(from_splash(mask).dense(*mask.shape[-2:]))
    np.testing.assert_array_equal(found, expected)


def test_what_is_no_mask_of_splash():
    from maskc.integrations.jax.splash import from_splash

    for mask in ("causal", np.ones((3, 3)), jnp.ones((3, 3), bool)):
        with pytest.raises(NotASplashMask):
            from_splash(mask)
    cut = splash_masks()["causal"]
    cut.q_sequence = np.arange(60)[::-1]
    with pytest.raises(NotASplashMask, match="some of the queries"):
        from_splash(cut)


@pytest.mark.parametrize("library", ["linen", "nnx"])
def test_layers_of_flax(library):
    pytest.importorskip("flax")
    from flax import linen, nnx

    x = jnp.asarray(np.random.default_rng(1).standard_normal((2, 50, 32)), jnp.float32)
    keep = jnp.asarray(oracle.dense_of(MASK, 50))
    door = attention_fn(MASK)
    if library == "linen":
        layer = partial(linen.MultiHeadAttention, num_heads=4)
        weights = jax.jit(layer().init)(jax.random.key(0), x)
        found = jax.jit(layer(attention_fn=door).apply)(weights, x)
        wanted = layer().apply(weights, x, mask=keep)
        refused = partial(layer(attention_fn=door).apply, weights, x, mask=keep)
    else:
        parts = {"num_heads": 4, "in_features": 32, "decode": False}
        layer, plain = (
            nnx.MultiHeadAttention(**parts, **own, rngs=nnx.Rngs(0))
            for own in ({"attention_fn": door}, {})
        )
        found, wanted = nnx.jit(lambda m, x: m(x))(layer, x), plain(x, mask=keep)
        refused = partial(layer, x, mask=keep)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(BadOption, match=r"mask.*\n.*mc\.flags"):
        refused()


def test_options_that_a_layer_decides():
    for name, value in (
        ("layout", "bhnd"), ("return_lse", True), ("dropout_p", 0.1), ("dropout_seed", 3),
    ):  # fmt: skip
        with pytest.raises(BadOption, match=name):
            attention_fn(MASK, **{name: value})
    with pytest.raises(NotAMask):
        attention_fn(np.ones((3, 3), bool))


def test_dropout_of_a_layer_takes_old_keys():
    linen = pytest.importorskip("flax.linen")
    x = jnp.ones((2, 12, 32))
    layer = linen.MultiHeadAttention(
        num_heads=4, dropout_rate=0.5, deterministic=False, attention_fn=attention_fn(MASK)
    )
    weights = layer.init(jax.random.PRNGKey(0), x)
    one, other = (layer.apply(weights, x, rngs={"dropout": jax.random.PRNGKey(n)}) for n in (1, 2))
    assert not np.array_equal(one, other)


def test_a_small_transformer_trains_as_with_the_dense_mask():
    pytest.importorskip("flax")
    optax = pytest.importorskip("optax")
    from flax import linen

    mask, n = mc.causal() & (mc.sinks(2) | mc.window(8)), 48
    keep = jnp.asarray(oracle.dense_of(mask, n))

    class Model(linen.Module):
        ours: bool

        @linen.compact
        def __call__(self, tokens):
            own = {"attention_fn": attention_fn(mask)} if self.ours else {}
            x = linen.Embed(16, 32)(tokens)
            layer = linen.MultiHeadAttention(num_heads=2, **own)
            x = x + layer(linen.LayerNorm()(x), mask=None if self.ours else keep)
            x = x + linen.Dense(32)(jax.nn.gelu(linen.Dense(64)(linen.LayerNorm()(x))))
            return linen.Dense(16)(x)

    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 16, (4, n)))
    steps = optax.adam(2e-3)
    weights = jax.jit(Model(False).init)(jax.random.key(1), tokens)

    def losses(ours):
        model = Model(ours)

        def loss(weights):
            logits = model.apply(weights, tokens)[:, :-1]
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        def step(kept, _):
            weights, state = kept
            found, gradient = jax.value_and_grad(loss)(weights)
            change, state = steps.update(gradient, state)
            return (optax.apply_updates(weights, change), state), found

        return jax.jit(lambda x: jax.lax.scan(step, x, None, length=50)[1])(
            (weights, steps.init(weights))
        )

    ours, dense = losses(True), losses(False)
    assert ours[-1] < 0.8 * ours[0]
    np.testing.assert_allclose(ours, dense, rtol=1e-3)
