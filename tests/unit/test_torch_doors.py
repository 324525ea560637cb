"""Every way to call: mc.attention, a compiled mask, a generated module, on torch tensors.

Each has the gradients of dense attention, and torch's compilers, checkpoints and modes see it. The
oracle is dense attention in fp64, differentiated by torch itself.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import maskc as mc
from maskc import driver
from maskc.core.errors import (
    BadOption,
    BadShape,
    MixedLibraries,
    NestedTensor,
    NoGradient,
    NotAnArray,
    TargetNotBuilt,
)
from maskc.core.problem import Direction
from maskc.core.target import Target
from tests.support.exact_attention import exact
from tests.support.thorough import more
from tests.support.torch_oracle import (
    DIM,
    DIM_V,
    HEADS,
    MASKS,
    close,
    data_of,
    loss_of,
    tensors,
    vectors,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]

Door = Callable[..., object]
KERNELS = "compiled", "generated"
DOORS = "attention", "bshd", *KERNELS


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Door]:
    """(way to call, mask) -> the callable of q, k, v; each is made once."""
    made: dict[tuple[str, mc.Mask, str], Door] = {}

    def module(mask: mc.Mask, dtype: str) -> Door:
        folder = tmp_path_factory.mktemp("generated")
        problem = driver.problem(DIM, DIM_V, HEADS, dtype)
        plan, own = driver.plan_module(mask, problem, Target.named("cpu")), f"made_{len(made)}"
        for name, text in driver.generate(mask, own, [plan], "A mask.").items():
            (folder / name).write_text(text)
        spec = importlib.util.spec_from_file_location(own, folder / f"{own}.py")
        sys.modules[own] = found = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
        return found.attention

    def attention(mask: mc.Mask) -> Door:
        def call(q, k, v, **options):
            return mc.attention(q, k, v, mask, **options)

        return call

    def tokens_first(mask: mc.Mask) -> Door:
        def call(q, k, v, **options):
            turned = (x.swapaxes(1, 2) for x in (q, k, v))
            results = mc.attention(*turned, mask, layout="bshd", **options)
            if isinstance(results, tuple):
                return results[0].swapaxes(1, 2), *results[1:]
            return results.swapaxes(1, 2)

        return call

    def get(way: str, mask: mc.Mask, dtype: str = "float32") -> Door:
        key = way, mask, dtype
        if key not in made:
            made[key] = {
                "attention": lambda: attention(mask),
                "bshd": lambda: tokens_first(mask),
                "compiled": lambda: mask.compile(DIM, DIM_V, HEADS, dtype, "cpu"),
                "generated": lambda: module(mask, dtype),
            }[way]()
        return made[key]

    return get


# ------------------------------------------------------------------ gradients


@pytest.mark.parametrize("way", DOORS)
@pytest.mark.parametrize("parts", ["out", "lse", "out and lse"])
@pytest.mark.parametrize("name", ["causal", "empty rows", "documents", "per head"])
def test_gradients(door, way: str, name: str, parts: str):
    n = 13
    data = data_of(name, n)
    options = {"softcap": 3.0, **vectors()} if name != "causal" else {}
    inputs = [*tensors(n), *(x for x in options.values() if torch.is_tensor(x))]
    want = exact(*inputs[:3], MASKS[name].dense(n, n_heads=HEADS, **data), **options)
    found = door(way, MASKS[name])(*inputs[:3], return_lse=True, **options, **data)
    for a, b in zip(found, want, strict=True):
        close(a, b)
    wanted = torch.autograd.grad(loss_of(*want, parts), inputs, allow_unused=True)
    for a, b in zip(torch.autograd.grad(loss_of(*found, parts), inputs), wanted, strict=True):
        close(a, torch.zeros_like(a) if b is None else b)


@pytest.mark.parametrize("one", ["q", "k", "v", "alibi_slopes", "sink_logits"])
def test_one_tensor_that_requires_grad_is_enough(door, one: str):
    given = dict(zip("qkv", tensors(9), strict=True)) | vectors()
    given = {name: x if name == one else x.detach() for name, x in given.items()}
    out = door("compiled", MASKS["causal"])(**given)
    (found,) = torch.autograd.grad(out.square().sum(), given[one])
    want, _ = exact(
        *(given[name] for name in "qkv"), MASKS["causal"].dense(9),
        alibi_slopes=given["alibi_slopes"], sink_logits=given["sink_logits"],
    )  # fmt: skip
    (wanted,) = torch.autograd.grad(want.square().sum(), given[one])
    close(found, wanted)


def test_the_first_example_of_the_readme_has_gradients():
    text = Path(mc.__file__).parent.parent.joinpath("README.md").read_text()
    example = text.split("```python\n")[1].split("```")[0]
    scope: dict = {}
    exec(example, scope)
    q, k, v = (scope[name][:, :2, :40].clone().requires_grad_() for name in "qkv")
    out, lse = scope["attn"](q, k, v, return_lse=True)
    (out.square().sum() + lse.sum()).backward()
    assert all(x.grad is not None and x.grad.abs().sum() > 0 for x in (q, k, v))


class Block(torch.nn.Module):
    """Attention and a residual, as in a transformer."""

    def __init__(self, attend: Door):
        super().__init__()
        torch.manual_seed(0)
        width = HEADS * DIM
        self.attend = attend
        self.project = torch.nn.ModuleList(
            torch.nn.Linear(width, heads * dim, bias=False)
            for heads, dim in ((HEADS, DIM), (HEADS // 2, DIM), (HEADS // 2, DIM_V))
        )
        self.out = torch.nn.Linear(HEADS * DIM_V, width, bias=False)

    def forward(self, x):
        batch, tokens, _ = x.shape
        dims = (DIM, DIM, DIM_V)
        q, k, v = (
            project(x).view(batch, tokens, -1, dim).transpose(1, 2)
            for project, dim in zip(self.project, dims, strict=True)
        )
        return x + self.out(self.attend(q, k, v).transpose(1, 2).reshape(batch, tokens, -1))


def losses(attend: Door) -> list[float]:
    """Of twenty steps of training."""
    block = Block(attend)
    optimizer = torch.optim.SGD(block.parameters(), 0.3)
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(2, 21, HEADS * DIM, generator=generator) for _ in range(2))
    found = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (block(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("way", DOORS)
def test_a_block_trains_as_with_dense_attention(door, way: str):
    mask = MASKS["causal"]
    live = mask.dense(21)

    def with_dense(q, k, v):
        return exact(q, k, v, live)[0].float()

    found, wanted = losses(door(way, mask)), losses(with_dense)
    assert wanted[-1] < 0.98 * wanted[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


# ------------------------------------------------------------------ modes


@pytest.mark.parametrize("way", DOORS)
def test_without_gradients(door, way: str):
    inputs = tensors(8)
    call = door(way, MASKS["causal"])
    want = call(*inputs)
    assert want.requires_grad
    assert not call(*(x.detach() for x in inputs)).requires_grad
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            out = call(*inputs)
        assert not out.requires_grad
        assert out.is_inference() == (mode is torch.inference_mode)
        assert torch.equal(out, want)


@pytest.mark.parametrize("way", DOORS)
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(door, way: str, reentrant: bool):
    inputs, call = tensors(11), door(way, MASKS["documents"])
    doc = torch.arange(11) // 4

    def layer(q, k, v):
        return call(q.sin(), k, v, doc=doc)

    wanted = torch.autograd.grad(layer(*inputs).square().sum(), inputs)
    checkpoint(layer, *inputs, use_reentrant=reentrant).square().sum().backward()
    for x, grad in zip(inputs, wanted, strict=True):
        torch.testing.assert_close(x.grad, grad, atol=0, rtol=0)


@pytest.mark.parametrize("way", ["attention", *KERNELS])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_autocast_casts_to_the_dtype_of_the_kernel(door, way: str, dtype: str):
    """Without a kernel the dtype is autocast's; float32 is where autocast is off."""
    inputs, call = tensors(10), door(way, MASKS["causal"], dtype)
    enabled = way != "attention" or dtype == "bfloat16"
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
        out = call(*inputs)
        with torch.no_grad():
            assert torch.equal(call(*inputs), out)
        assert torch.equal(call(*(x.detach() for x in inputs)), out)
    own = getattr(torch, dtype)
    want = mc.attention(*(x.to(own) for x in inputs), MASKS["causal"])
    assert out.dtype == own
    assert torch.equal(out, want)
    found, wanted = (torch.autograd.grad(x.float().square().sum(), inputs) for x in (out, want))
    assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("penalty", [False, True])
@pytest.mark.parametrize("way", DOORS)
def test_a_second_derivative_is_refused(door, way: str, penalty: bool):
    """The gradients of a penalty arrive as constants, so q alone tells what is asked."""
    q, k, v = tensors(6)
    out = door(way, MASKS["causal"])(q, k, v)
    loss = out.sum() if penalty else out.square().sum()
    (dq,) = torch.autograd.grad(loss, q, create_graph=True)
    with pytest.raises(BadOption, match="differentiated once"):
        (loss + dq.square().sum() if penalty else dq.sum()).backward()


def test_a_second_derivative_of_the_operator_is_refused():
    class Watched(torch.Tensor):
        pass

    q = tensors(6)[0]
    out = mc.attention(*(x.as_subclass(Watched) for x in (q, q, q)), MASKS["causal"])
    (dq,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(BadOption, match="differentiated once"):
        dq.sum().backward()


@pytest.mark.parametrize("way", DOORS)
def test_gradients_under_vmap_are_refused(door, way: str):
    q, k, v = tensors(6)
    out = door(way, MASKS["causal"])(q, k, v)
    with pytest.raises(BadOption, match="is_grads_batched"):
        torch.autograd.grad(out, q, torch.stack([out, out]).detach(), is_grads_batched=True)


@pytest.mark.parametrize("name", ["scale", "softcap"])
def test_a_number_that_requires_grad_is_refused(name: str):
    q, k, v = tensors(6)
    number = {name: torch.tensor(2.0, requires_grad=True)}
    with pytest.raises(BadOption, match=f"{name} must be a number, found a tensor that requires"):
        mc.attention(q, k, v, MASKS["causal"], **number)


@pytest.mark.parametrize("way", DOORS)
def test_what_is_traced_reads_its_own_arguments(door, way: str):
    """torch.jit.trace records operators; without one, a trace would return memory nobody wrote."""
    call = door(way, MASKS["causal"])
    first, second = ([x.detach() for x in tensors(n)] for n in (6, 9))
    if way == "generated":
        with pytest.raises(mc.MaskcError, match="a generated module cannot be serialized"):
            torch.jit.trace(call, first, check_trace=False)
        return
    traced = torch.jit.trace(lambda *qkv: call(*qkv) * 2, first, check_trace=False)
    for qkv in (first, second):
        assert torch.equal(traced(*qkv), call(*qkv) * 2)


def test_formulas_of_the_score_are_traced():
    score, mask = mc.scores.bias(), MASKS["causal"]
    (q, k, v), (p, *_) = ([x.detach() for x in tensors(6)] for _ in range(2))
    biases = torch.randn(2, 6, 6)
    attn = mask.compile(DIM, DIM_V, dtype="float32", target="cpu", score=score)
    for call in (attn, lambda *qkv, bias: mc.attention(*qkv, mask, score=score, bias=bias)):
        run = lambda q, bias, call=call: call(q, k, v, bias=bias)  # noqa: E731
        traced = torch.jit.trace(run, (q, biases[0]), check_trace=False)
        assert torch.equal(traced(p, biases[1]), run(p, biases[1]))


def test_what_no_trace_can_hold_is_refused():
    q, k, v = (x.detach() for x in tensors(6))
    chosen = mc.topk(2, of=mc.causal())
    alpha = torch.full((q.shape[1],), 1.5)
    for call, name in (
        (lambda q: mc.attention(q, k, v, chosen, return_selection=True)[0], "return_selection"),
        (lambda q: mc.attention(q, k, v, mc.causal(), normalizer="entmax", alpha=alpha), "alpha"),
    ):
        with pytest.raises(BadOption, match=f"{name} must be"):
            torch.jit.trace(call, (q,), check_trace=False)


@pytest.mark.parametrize("way", DOORS)
def test_transforms_are_refused(door, way: str):
    q, k, v = (x.detach() for x in tensors(6))
    call = door(way, MASKS["causal"])
    with pytest.raises(BadOption, match=r"torch\.func"):
        torch.func.vmap(lambda q: call(q, k, v))(torch.stack([q, q]))
    with pytest.raises(BadOption, match=r"torch\.func"):
        torch.func.grad(lambda q: call(q, k, v).sum())(q)
    with pytest.raises(BadOption, match=r"torch\.func"):
        torch.func.jvp(lambda q: call(q, k, v), (q,), (q,))
    of_data = door(way, mc.causal() & mc.documents("doc"))
    with pytest.raises(BadOption, match=r"torch\.func"):
        torch.func.vmap(lambda doc: of_data(q, k, v, doc=doc))(torch.zeros(2, 6, dtype=torch.int64))
    with pytest.raises(BadOption, match=r"(?s)symbolic_trace.*torch\.export"):
        torch.fx.symbolic_trace(lambda q, k, v: call(q, k, v))
    with torch.autograd.forward_ad.dual_level():
        assert torch.equal(call(q, k, v), mc.attention(q, k, v, MASKS["causal"]))
        with pytest.raises(BadOption, match="forward-mode"):
            call(torch.autograd.forward_ad.make_dual(q, torch.ones_like(q)), k, v)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("door", [
    mc.attention, mc.flex_attention, mc.scaled_dot_product_attention, mc.nn.Attention(mc.causal()),
    mc.nn.SplashAttention(DIM),
])  # fmt: skip
def test_scripts_are_refused(door) -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.door = door if isinstance(door, torch.nn.Module) else torch.nn.Identity()

        def forward(self, q, k, v):
            return door(q, k, v)

    for scripted in (door, Layer()):
        with pytest.raises(BadOption, match=r"(?s)jit\.script.*torch\.export"):
            torch.jit.script(scripted)


@pytest.mark.parametrize("way", DOORS)
def test_determinism_is_an_option_everywhere(door, way: str):
    inputs, call = tensors(9), door(way, MASKS["causal"])
    runs = [call(*inputs, deterministic=flag) for flag in (False, True)]
    found = [torch.autograd.grad(out.square().sum(), inputs) for out in runs]
    assert all(map(torch.equal, *found))
    plain = [x.detach().numpy() for x in inputs]
    np.testing.assert_array_equal(call(*plain, deterministic=True), runs[0].detach().numpy())


@pytest.mark.parametrize("way", KERNELS)
def test_no_backward_kernels_is_said_at_the_call(door, way: str, monkeypatch):
    call = door(way, MASKS["causal"])
    attn = call if way == "compiled" else call.__globals__["_MASK"].on(np.zeros(1))
    missing = replace(attn.target, directions=(Direction.forward,), missing="none yet")
    monkeypatch.setattr(attn, "target", missing)
    inputs = tensors(5)
    with pytest.raises(TargetNotBuilt, match="no backward kernels"):
        call(*inputs)
    with torch.no_grad():
        assert torch.equal(call(*inputs), mc.attention(*inputs, MASKS["causal"]))


# ------------------------------------------------------------------ torch.compile


class Layer(torch.nn.Module):
    """A module around one door."""

    def __init__(self, attend: Door):
        super().__init__()
        self.attend = attend
        self.scale = torch.nn.Parameter(torch.tensor(1.5))

    def forward(self, q, k, v, **options):
        return self.attend(q * self.scale, k, v, **options)


@pytest.mark.parametrize("way", DOORS)
@pytest.mark.parametrize("dynamic", [more(False), True])
def test_compile(door, graphs, way: str, dynamic: bool):
    layer = Layer(door(way, MASKS["documents"]))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=dynamic or None)
    for n in (12, 19, 8) if dynamic else (14,):
        inputs, options = tensors(n, seed=n), {**vectors(), **data_of("documents", n)}
        every = [*inputs, options["alibi_slopes"], options["sink_logits"]]
        results = [run(*inputs, return_lse=True, **options) for run in (layer, compiled)]
        assert all(map(torch.equal, *results))
        gradients = [torch.autograd.grad(loss_of(*r, "out and lse"), every) for r in results]
        assert all(map(torch.equal, *gradients))
    assert graphs() == 1


@pytest.mark.parametrize("way", KERNELS)
def test_compile_without_gradients_under_autocast(door, graphs, way: str):
    layer = Layer(door(way, MASKS["causal"], "bfloat16"))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        found, want = compiled(*tensors(9)), layer(*tensors(9))
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, want)


# ------------------------------------------------------------------ others who need an operator


@pytest.mark.parametrize("way", DOORS)
def test_meta_tensors_have_shapes_and_gradients(door, way: str):
    shapes = ((2, HEADS, 9, DIM), (2, 2, 9, DIM), (2, 2, 9, DIM_V))
    inputs = [torch.empty(s, device="meta", requires_grad=True) for s in shapes]
    out, lse = door(way, MASKS["causal"])(*inputs, return_lse=True)
    (out.sum() + lse.sum()).backward()
    assert out.is_meta
    assert (out.shape, lse.shape) == ((2, HEADS, 9, DIM_V), (2, HEADS, 9))
    assert [x.grad.shape for x in inputs] == [x.shape for x in inputs]
    with torch.no_grad():
        assert door(way, MASKS["causal"])(*inputs).is_meta
    with pytest.raises(BadShape, match="k has shape"):
        door(way, MASKS["causal"])(inputs[0], inputs[1][..., 1:], inputs[2])


@pytest.mark.parametrize("way", DOORS)
def test_fake_tensors_have_shapes_and_gradients(door, way: str):
    from torch._subclasses.fake_tensor import FakeTensorMode

    call = door(way, MASKS["causal"])
    with FakeTensorMode():
        inputs = [torch.empty_like(x, requires_grad=True) for x in tensors(9)]
        call(*inputs).sum().backward()
    assert [x.grad.shape for x in inputs] == [x.shape for x in inputs]


def masked(x):
    return torch.masked.masked_tensor(x, torch.ones_like(x, dtype=torch.bool))


def fake(x):
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode().from_tensor(x)


@pytest.mark.parametrize("way", DOORS)
@pytest.mark.parametrize(
    ("name", "wrap"),
    [*product(("q", "doc"), (masked, fake)), ("k", fake), ("k", torch._to_functional_tensor)],
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # of torch.masked
def test_tensors_that_cannot_run_attention_are_named(door, way: str, name: str, wrap):
    q, k, v = (x.detach() for x in tensors(9))
    given = {"q": q, "k": k, "v": v, "doc": torch.arange(9) // 4}
    given[name] = wrap(given[name])
    with pytest.raises(NotAnArray, match=rf"{name} is a [\s\S]*pass a"):
        door(way, MASKS["documents"])(given["q"], given["k"], given["v"], doc=given["doc"])


@pytest.mark.parametrize("way", DOORS)
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_tensors_are_refused_with_what_to_do(door, way: str, layout):
    sequences = [torch.ones(n, HEADS, DIM) for n in (3, 5)]
    x = torch.nested.nested_tensor(sequences, layout=layout).transpose(1, 2)
    for mode in (torch.enable_grad, torch.no_grad):
        with mode(), pytest.raises(NestedTensor, match=r"documents[\s\S]*cu_seqlens"):
            door(way, MASKS["causal"])(x, x, x)


# ------------------------------------------------------------------ nothing gets lost


@pytest.mark.parametrize("way", DOORS)
def test_a_gradient_between_libraries_is_refused(door, way: str):
    (q, k, v), call = tensors(7), door(way, MASKS["causal"])
    plain = [x.detach().numpy() for x in (q, k, v)]
    for given, options, named in (
        ((plain[0], k, v), {}, "q is a numpy.ndarray, and k is a torch.Tensor that requires grad"),
        ((q, k, plain[2]), {}, "q is a torch.Tensor, and v is a numpy.ndarray"),
        ((q, k, v), {"sink_logits": np.zeros(HEADS, np.float32)}, "sink_logits is a numpy.ndarray"),
    ):
        with pytest.raises(MixedLibraries, match=re.escape(named)):
            call(*given, **options)
    want = call(q, k, v)
    with torch.no_grad():
        np.testing.assert_array_equal(call(plain[0], k, v), want.numpy())
    assert isinstance(call(plain[0], k.detach(), v.detach()), np.ndarray)
    assert torch.equal(call(q.detach(), *plain[1:]), want)


def test_what_ranks_keys_has_no_gradient():
    q, k, v = (x.detach() for x in tensors(8))
    scores = torch.randn(8, 8, requires_grad=True)
    mask = mc.topk(2, of=mc.causal(), score="given")
    with pytest.raises(NoGradient, match=r"scores requires grad[\s\S]*scores\.detach\(\)"):
        mc.attention(q, k, v, mask, scores=scores)
    with torch.no_grad():
        want = mc.attention(q, k, v, mask, scores=scores)
    assert torch.equal(mc.attention(q, k, v, mask, scores=scores.detach()), want)
