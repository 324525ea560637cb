"""The full text of every refusal of a call (MC4xx) and of targets and builds (MC5xx), in builds.txt.

Each text comes from the code that raises it, not from the class.
"""

# ruff: noqa: E501 - messages stand here as they are printed

from __future__ import annotations

import ast
import sys
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from string import Formatter
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

import maskc as mc
from maskc import portable
from maskc.build import build, nvrtc
from maskc.core import errors
from maskc.core.attention_call import AttentionCall, CallOptions
from maskc.core.bundle import SourceUnit, TensorMap
from maskc.core.dtypes import DType
from maskc.core.errors import MaskcError, SharedMemoryExceeded, not_imported
from maskc.core.problem import Direction, Problem, TileShape
from maskc.core.sizes import Sizes
from maskc.core.source import SourceLoc
from maskc.core.target import TARGETS, Target
from maskc.core.tensors import Array, contiguous
from maskc.dispatch import checks
from maskc.dispatch.tensor_maps import tensor
from maskc.dsl.checked import placed
from maskc.dsl.nodes import Causal
from maskc.integrations import serving
from maskc.layout.inputs import host
from maskc.runtime import CompiledMask, merge
from maskc.runtime.arrays.known import LIBRARIES
from maskc.runtime.launch import cuda as launch_cuda
from maskc.runtime.launch.prepared import PreparedLaunch
from maskc.runtime.launch.recording import Blank
from maskc.runtime.torch_calls import through_torch
from tests.support.bundles import bundle

HALF = DType.bfloat16
HALVES = Problem(64, 64, HALF)


def narrowed(name, x):
    """A table of integers as a call on a GPU takes it."""
    score = mc.score(lambda s, q, k: s + mc.table("bias")[mc.table("ids", integer=True)[k]])
    attn = mc.causal().compile(16, dtype="float32", target="cpu", score=score)
    return attn._score._narrowed(name, x)


def beside_fake():
    """A tensor of torch without content, in a call with others."""
    torch = pytest.importorskip("torch")
    fake = import_module("torch._subclasses.fake_tensor").FakeTensorMode()
    q = torch.ones(1, 2, 5, 16)
    return mc.attention(q, fake.from_tensor(q), q, mc.causal())


def read_in_graph(name):
    """An array of a GPU that the host reads while a CUDA graph is captured."""
    with mock.patch.object(host, "_captures", return_value=True):
        return host.to_host(SimpleNamespace(is_cuda=True), name)


def in_jax(name=""):
    """The door for arrays of JAX, or a part of it."""
    pytest.importorskip("jax")
    return import_module(f"maskc.integrations.jax{name and '.'}{name}")


def selected(mask, target="cpu", **asked):
    """A call that asks about what the mask selects."""
    given = [np.zeros((1, 1, 5, 64), np.float16)] * 3
    return mask.compile(64, dtype="float16", target=target)(*given, **asked)


def selected_by(alpha, mask, target, module=False):
    """A call with an alpha for each head, perhaps of what nothing compiles anew."""
    given = [torch().zeros(1, 1, 5, 64, dtype=torch().float16)] * 3
    attn = mask.compile(64, dtype="float16", target=target)
    attn = CompiledMask(attn.bundle, target) if module else attn
    return attn(*given, normalizer="entmax", alpha=alpha)


def call(**change):
    """A call that would be fine without the change."""
    shapes = {"q": (2, 4, 5, 32), "k": (2, 2, 7, 32), "v": (2, 2, 7, 48)}
    given = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()} | change
    tensors = [given.pop(name) for name in "qkv"]
    CompiledMask(bundle("band"), "cpu")(*tensors, **given)


def on_gpu(**change):
    """Checks of a call on a GPU."""
    shape = (2, 4, 5, 64)
    good = Array(4096, shape, contiguous(shape), "bfloat16", ("cuda", 0))
    given = [good._replace(**change), good, good]
    checks.check_inputs(*given, Problem(64, 64, HALF), TARGETS["sm_80"])


def compile_c(text, origins=()):
    build(SourceUnit("cpu", text, TileShape(64, 64), False, origins=origins))


def transformed():
    torch = pytest.importorskip("torch")
    x = torch.zeros(2, 1, 2, 8, 16)
    torch.func.vmap(lambda q: mc.attention(q, q, q, mc.causal()))(x)


def zeros(*shape):
    return np.zeros(shape, np.float32)


def on_stream(usable):
    """The first call of a plan whose columns wait for each other both ways."""
    kernel = SimpleNamespace(usable=lambda stream: usable)
    tables = SimpleNamespace(multiprocessors=128)
    plan = SimpleNamespace(kernel=kernel, device=("cuda", 0), sent={}, tables=tables)
    plan._first = partial(PreparedLaunch._first, plan)
    PreparedLaunch.place(plan, SimpleNamespace(stream=lambda device: 7), None)


def torch():
    return pytest.importorskip("torch")


def pages(table, keys=16):
    """A plan over a page table, of sequences with so many keys in pages of 8."""
    attn = mc.paged(mc.causal(), page_size=8, head_dim=16, n_heads=2, target="cpu")
    return attn.plan(np.array(table), 1, [keys] * len(table))


def learned():
    return torch().zeros(2, 2, requires_grad=True)


def nested():
    rows = [torch().zeros(n, 4) for n in (2, 3)]
    return torch().nested.nested_tensor(rows, layout=torch().jagged)


def sharded():
    """A stand-in that a call takes for a DTensor."""

    class DTensor(torch().Tensor):
        __torch_dispatch__ = classmethod(lambda cls, *call: None)
        to_local = None

    return torch().zeros(4).as_subclass(DTensor)


def scored(**options: object) -> None:
    """A call of a mask with a score formula."""
    score = mc.score(lambda s, q, k, h: s + mc.table("table")[h, q])
    attn = mc.causal().compile(16, dtype="float32", target="cpu", score=score)
    x = np.zeros((1, 2, 5, 16), np.float32)
    attn(x, x, x, **{"table": np.zeros((2, 5), np.float32), **options})


def dropping(**options: object) -> None:
    """A call with dropout."""
    x = np.zeros((1, 2, 5, 16), np.float32)
    mc.causal().compile(16, dtype="float32", target="cpu")(x, x, x, **options)


TEXTS = {
    "MC401": lambda: call(k=zeros(2, 2, 7, 16)),
    "MC402": lambda: call(k=zeros(2, 3, 7, 32), v=zeros(2, 3, 7, 48)),
    "MC403": lambda: call(q=np.zeros((2, 4, 5, 32))),
    "MC404": lambda: on_gpu(device=("cpu", 0)),
    "MC405": lambda: call(q=zeros(2, 4, 5, 64)[..., ::2]),
    "MC406": lambda: call(q=[[1.0, 2.0]]),
    "MC407": lambda: call(softcap=-1),
    "MC652": transformed,
    "MC408": lambda: on_gpu(pointer=4104),
    "MC409": lambda: tensor(
        TensorMap("k", 64), (512, 0, 68), Sizes(1, 2, 2, 5, 5), HALVES, "sm_90a"
    ),
    "MC410": lambda: on_stream(16),
    "MC411": lambda: merge([zeros(1, 1, 2, 8)], [torch().zeros(1, 1, 2)]),
    "MC412": lambda: through_torch(
        None, None, AttentionCall(*[torch().zeros(1)] * 3, data={"scores": learned()})
    ),
    "MC424": lambda: through_torch(
        None, None, AttentionCall(*[torch().zeros(1)] * 3, CallOptions(sink_logits=sharded()))
    ),
    "MC425": lambda: merge([zeros(1, 4, 6, 8)], [zeros(1, 4, 5)]),
    "MC416": lambda: scored(table=np.zeros((2, 3, 4), np.float32)),
    "MC417": lambda: scored(table=np.zeros((2, 3), np.float32)),
    "MC460": lambda: selected(mc.causal(), return_selection=True),
    "MC461": lambda: selected(mc.topk(3, mc.causal()), "sm_90a", return_selection=True),
    "MC462": lambda: selected(mc.topk(3, mc.causal()), indexer_loss=True),
    "MC463": lambda: selected_by(learned() + 1, mc.topk(3, mc.causal()), "sm_90a", module=True),
    "MC464": lambda: mc.paged(mc.causal(), page_size=0, head_dim=16, n_heads=4),
    "MC465": lambda: pages([[0, 1]], 17),
    "MC660": lambda: pages([[0, 3]]).check(3),
    "MC661": lambda: pages([[2, 2]]).check(3),
    "MC662": lambda: pages([[0, 2]]).check(3, freed=[2]),
    "MC663": lambda: pages([[0, 2], [1, 2]]).check_slots(),
    "MC667": lambda: (
        mc.paged(mc.causal(), page_size=8, head_dim=16, n_heads=4, dtype="float32", target="cpu")
        .plan(np.array([[0, 2], [1, 3]]), 1, [9, 9], shared_keys=8)
        .check(4)
    ),
    "MC664": lambda: mc.slices([[0, 4]], [[3, 2]]),
    "MC665": lambda: serving.refuse("vLLM", {"attention that is not causal": True}),
    "MC666": lambda: serving._compiled(
        serving.ServedLayer(4, 2, 16, 16, 16, "HND", None, False, True), "documents('d')"
    ),
    "MC466": lambda: mc.paged(
        mc.causal(),
        page_size=8,
        head_dim=16,
        n_heads=4,
        score=mc.score(lambda s, q, k: s * mc.n_kv),
    ),
    "MC418": lambda: scored(softcap=2.0),
    "MC419": scored,
    "MC430": lambda: dropping(dropout_p=1.5),
    "MC431": lambda: dropping(dropout_p=0.5),
    "MC432": lambda: CompiledMask(bundle("band"), "cpu")(
        *[zeros(1, 1, 5, 32)] * 3, dropout_p=0.5, dropout_seed=1
    ),
    "MC437": lambda: mc.scaled_dot_product_attention(
        *3 * [zeros(2, 2, 5, 16)], np.ones((5, 5), int)
    ),
    "MC438": lambda: call(v=np.zeros((2, 2, 7, 48))),
    "MC439": lambda: mc.attention(*3 * [zeros(1, 2, 5, 16)], mc.causal(), 0.0, True),
    "MC440": lambda: mc.documents("doc").dense(32, doc=np.array([0, 16, 32])),
    "MC441": lambda: mc.attention(*3 * [zeros(2, 5, 16)], mc.causal()),
    "MC442": lambda: mc.causal()(zeros(1, 2, 5, 16)),
    "MC443": lambda: narrowed("ids", np.zeros(3, np.int64)),
    "MC444": lambda: mc.flags("kept").dense(3, kept=np.ma.masked_array([1, 1, 0], [0, 0, 1])),
    "MC445": lambda: read_in_graph("keys"),
    "MC446": beside_fake,
    "MC447": lambda: mc.causal()[0, 1],
    "MC433": lambda: mc.window(3).cache().given([9, 4]),
    "MC413": lambda: through_torch(None, None, AttentionCall(*[nested()] * 3)),
    "MC420": lambda: portable.to_graph(CompiledMask(bundle("band"), "cpu"), "an exported program"),
    "MC421": lambda: portable.from_graph("[]"),
    "MC480": lambda: LIBRARIES[Blank].clear(None),
    "MC481": lambda: in_jax().attention(
        *[np.zeros((1, 4, 1, 8), "f4")] * 3, mc.documents("doc"), doc="all"
    ),
    "MC482": lambda: in_jax().lowered.ad.primitive_jvps[in_jax().lowered.BACKWARD]((), ()),
    "MC483": lambda: in_jax().native.opened("libnothing.so"),
    "MC484": lambda: in_jax("splash").from_splash("causal"),
    "MC501": lambda: DType.parse("float8"),
    "MC502": lambda: CompiledMask(bundle("band"), "sm_80"),
    "MC490": lambda: mc.causal().compile(128, target="sm_90a", tile=(192, 128), stages=2),
    "MC491": lambda: mc.causal().compile(128, target="sm_90a", tile=(128, 0)),
    "MC492": lambda: placed("causal", Causal(), "q_idx", SourceLoc("mask.py", 2, 8)),
    "MC503": lambda: replace(
        Target.named("sm_80"), directions=(Direction.forward,), missing="of a family to come"
    ).check(Problem(64, 64, HALF), Direction.backward),
    "MC504": lambda: Target.named("sm_80").check(Problem(44, 44, HALF)),
    "MC505": lambda: Target.named("sm_80").check(Problem(64, 64, DType.float32)),
    "MC506": lambda: compile_c("int x;"),
    "MC507": lambda: build(SourceUnit("sm_80", "", TileShape(64, 64), False)),
    "MC509": lambda: launch_cuda.device_arch("sm_80", 0),
}


@pytest.fixture(autouse=True)
def surroundings(request, monkeypatch, tmp_path):
    """A cache of its own, and a machine that lacks things."""
    monkeypatch.setenv("MASKC_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(launch_cuda, "gpus", lambda: [SimpleNamespace(capability=75)])
    if request.node.name.endswith(("[MC506]", "[MC419]")):
        monkeypatch.setenv("CC", "no-such-cc")
    if request.node.name.endswith("[MC507]"):
        for package in ("cuda.bindings", "cupy.cuda"):
            monkeypatch.setitem(sys.modules, package, None)
        nvrtc.library.cache_clear()


def test_a_package_that_cannot_be_imported():
    """The error names its cause and keeps it; a missing cause is MC507."""
    broken = ImportError("operator torchvision::nms does not exist\nsecond line")
    assert str(not_imported(broken, "mc.x", "transformers", "hf")) == (
        "MC644  mc.x needs transformers, which is installed and cannot be imported: "
        "operator torchvision::nms does not exist\n"
        "    hint: its dependencies may have incompatible versions: pip install --upgrade "
        "'maskc[hf]', or see what `import transformers` prints"
    )
    missing = ModuleNotFoundError("No module named 'transformers'", name="transformers")
    assert str(not_imported(missing, "mc.x", "transformers", "hf")) == (
        "MC507  mc.x needs transformers, which is not installed\n    hint: pip install 'maskc[hf]'"
    )
    dependency = ModuleNotFoundError("No module named 'tokenizers'", name="tokenizers")
    assert str(not_imported(dependency, "mc.x", "numpy", "hf")).startswith(
        "MC644  mc.x needs numpy, which is installed and cannot be imported: No module named 'tok"
    )
    assert str(not_imported(dependency, "mc.x", "no_such_package", "hf")).startswith("MC507")


@pytest.mark.parametrize("code", TEXTS)
def test_text(code, message):
    with pytest.raises(MaskcError) as caught:
        TEXTS[code]()
    message("builds", code, str(caught.value))


def test_mc508_quotes_the_source_and_the_pattern(tmp_path, monkeypatch):
    pattern = tmp_path / "mask.py"
    pattern.write_text("import maskc as mc\nmask = mc.window(3)\n")
    place = SourceLoc(str(pattern), 2, 8, 20)
    with pytest.raises(errors.BuildFailed) as caught:
        compile_c("int a;\nint b = oops;\n", ((1, place, "window(3, 0)"),))
    first, *rest = str(caught.value).splitlines()
    assert first.startswith(f"MC508 {pattern}:2:8  ")
    assert " refused the generated source: line 2: " in first
    assert "oops" in first
    assert rest == [
        "        int b = oops;",
        "    mask = mc.window(3)",
        "           ^^^^^^^^^^^^",
        "    hint: this is a defect of maskc, not of your mask: please report it with this text",
    ]


def test_mc510():
    text = str(SharedMemoryExceeded(120000, "sm_80", 101376, at="target"))
    assert text == (
        "MC510 target  the plan needs 120000 bytes of shared memory, target sm_80 has 101376\n"
        "    hint: choose a smaller tile"
    )


def test_every_class_of_a_call_has_its_text_here():
    """MC511 and above belong to planning, whose tests have them."""
    codes = {
        kind.code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, MaskcError)
    }
    wanted = {code for code in codes if "MC400" < code <= "MC510" or "MC660" <= code <= "MC679"}
    wanted.add("MC652")
    assert wanted == {*TEXTS, "MC508", "MC510", "MC414", "MC415"}  # pickles: see test_objects


def test_the_place_of_a_build_error_may_be_unknown():
    with pytest.raises(errors.BuildFailed) as caught:
        compile_c("int a = ;\n")
    assert caught.value.at is None
    unit = replace(bundle("band").units[0], text="int a = ;\n")
    with pytest.raises(errors.BuildFailed, match="MC508  "):
        CompiledMask(bundle("band", units=(unit,)), "cpu").warmup()


def test_errors_are_raised_with_what_their_texts_show():
    """Raising one with too few arguments ends in an IndexError where its text is read."""
    classes = {
        name: kind for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, MaskcError) and kind is not MaskcError
        and kind.__init__ is MaskcError.__init__
    }  # fmt: skip
    wrong, seen = [], 0
    for file in (Path(mc.__file__).parent).rglob("*.py"):
        for call in ast.walk(ast.parse(file.read_text())):
            if not isinstance(call, ast.Call) or any(isinstance(x, ast.Starred) for x in call.args):
                continue
            name = getattr(call.func, "id", getattr(call.func, "attr", None))
            if name in classes:
                seen, shown = seen + 1, _shown(classes[name])
                more = {shown + 1} if classes[name].hint_at == shown else set()  # an own hint
                if len(call.args) not in {shown, *more}:
                    wrong.append(f"{file.name}:{call.lineno} {name}")
    assert seen > 300
    assert wrong == []


def _shown(kind: type[MaskcError]) -> int:
    """The number of arguments that the message and the hint of an error show."""
    fields = [f for text in (kind.message, kind.hint) for _, f, _, _ in Formatter().parse(text)]
    return 1 + max((int(f[0]) for f in fields if f), default=-1)
