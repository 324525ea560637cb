"""Kernels with tensor maps, work lists and modes: all but the kernels themselves."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from maskc.core.bundle import (
    Grid,
    Launch,
    LayoutRecipe,
    Mode,
    SourceUnit,
    TensorMap,
    Variant,
    WorkList,
)
from maskc.core.dtypes import DType
from maskc.core.errors import CheckFailed, ExtraMissing, Misaligned, NotAddressable, TargetNotBuilt
from maskc.core.expr_text import parse_expr
from maskc.core.problem import Direction, Problem, TileShape
from maskc.core.target import TARGETS
from maskc.layout import Spans, build, range_spans
from maskc.runtime import CompiledMask, kernels, launch_cuda, tensor_maps
from maskc.runtime.arrays import LIBRARIES
from maskc.runtime.checks import Sizes
from maskc.runtime.tables import check_spans
from tests.support.bundles import bundle
from tests.support.fake_cuda import Driver, Tensor, Tensors

BOTH = (Direction.forward, Direction.backward)
TILE = TileShape(64, 64)
QKVO = tuple(TensorMap(name, rows) for name, rows in (("q", 64), ("k", 64), ("v", 64), ("out", 32)))


def mode(*launches, macro="") -> Mode:
    return Mode(launches, macro)


FORWARD = SourceUnit(
    "sm_90a", "forward", TILE, False, (Direction.forward,),
    (
        ("usual", mode(Launch("attention_forward", Grid.items, 384, 1000))),
        ("stream", mode(Launch("attention_forward", Grid.stream, 384, 2000), macro="STREAM")),
    ),
    QKVO, WorkList(1 << 16, 0, 2),
)  # fmt: skip
MAIN = Launch("attention_backward", Grid.items, 256, 3000)
BACKWARD = SourceUnit(
    "sm_90a", "backward", TILE, False, (Direction.backward,),
    (
        ("usual", mode(
            Launch("attention_rows", Grid.queries, 128, per_block=128), MAIN,
            Launch("attention_keys", Grid.keys, 128, per_block=16),
        )),
        ("deterministic", mode(MAIN, macro="DETERMINISTIC")),
    ),
    (TensorMap("dout", 64), TensorMap("dk", 64)), WorkList(1 << 16, 1), 66, 128,
)  # fmt: skip
SPARE = SourceUnit(
    "sm_80", "spare", TileShape(128, 64), False,
    modes=(("usual", mode(Launch("attention_forward", Grid.rows, 128, 64 * 1024))),),
)  # fmt: skip


class Machine:
    """What was built and launched."""

    def __init__(self, monkeypatch):
        self.driver, self.library, self.built = Driver(current=100), Tensors(), []
        wrapped = launch_cuda._Bindings(self.driver, 0)
        monkeypatch.setattr(launch_cuda, "_driver", lambda index: wrapped)
        monkeypatch.setattr(kernels, "build", self.build)
        monkeypatch.setattr(kernels, "device_arch", lambda target, device: target)
        monkeypatch.setattr("maskc.runtime.compiled.current_device", lambda: 0)
        monkeypatch.setitem(LIBRARIES, Tensor, self.library)
        monkeypatch.setitem(TARGETS, "sm_90a", replace(TARGETS["sm_90a"], directions=BOTH))
        tensor_maps.encoded.cache_clear()

    def build(self, unit, features, directions, arch, mode):
        self.built.append((unit.text, mode, sorted(f.name for f in features)))
        return SimpleNamespace(code=b"", report=f"{unit.text} {mode}")

    def launched(self) -> list[tuple[str, int, int]]:
        """(entry, blocks, threads) since the last time."""
        found = [(c[1], c[2], c[5]) for c in self.driver.calls if c[0] == "launch"]
        self.driver.calls.clear()
        return found

    def maps(self, number: int) -> list[bytes]:
        """First bytes of the maps of the last launch."""
        text = ctypes.string_at(self.driver.maps, 128 * number)
        assert all(len(set(text[i : i + 128])) == 1 for i in range(0, len(text), 128))
        return list(text[::128])


@pytest.fixture
def machine(monkeypatch) -> Machine:
    return Machine(monkeypatch)


def compiled(*names: str, units=(FORWARD, BACKWARD, SPARE), **more) -> CompiledMask:
    made = bundle(
        *(names or ("band",)), dtype="bfloat16", head_dim=64, head_dim_v=64, units=units, **more
    )
    return CompiledMask(made, "sm_90a")


def given(n=150, n_kv=None, batch=2, heads=(4, 2), **more) -> list[Tensor]:
    n_kv = n if n_kv is None else n_kv
    shapes = ((batch, heads[0], n, 64), *((batch, heads[1], n_kv, 64),) * 2)
    return [Tensor(shape, pointer=(i + 1) << 20, **more) for i, shape in enumerate(shapes)]


def backward(mask, q, k, v, **options):
    out = Tensor(q.array.shape, pointer=4 << 20)
    dout = Tensor(q.array.shape, pointer=5 << 20)
    lse = Tensor(q.array.shape[:3], pointer=6 << 20, dtype="float32")
    return mask.backward(q, k, v, out, lse, dout, **options)


# ------------------------------------------------------------------ tensor maps


def test_a_call_encodes_its_tensors_once(machine):
    mask, (q, k, v) = compiled(), given()
    out = mask(q, k, v)
    rows, tokens = (128, 128 * 150, 128 * 150 * 4), (128, 128 * 150, 128 * 150 * 2)
    assert machine.driver.encoded == [
        ("bf16", 1 << 20, (64, 150, 4, 2), rows, (64, 64, 1, 1)),
        ("bf16", 2 << 20, (64, 150, 2, 2), tokens, (64, 64, 1, 1)),
        ("bf16", 3 << 20, (64, 150, 2, 2), tokens, (64, 64, 1, 1)),
        ("bf16", out.array.pointer, (64, 150, 4, 2), rows, (64, 32, 1, 1)),
    ]
    assert machine.maps(4) == [1, 2, 3, 4]
    assert machine.driver.maps % 64 == 0
    machine.library.empty = lambda *_: (out, out.array.pointer)
    mask(q, k, v)
    assert len(machine.driver.encoded) == 4
    mask(q, v, k)  # other tensors, and the maps of known ones
    assert machine.maps(4) == [1, 3, 2, 4]
    assert len(machine.driver.encoded) == 4
    block = machine.driver.block
    assert (block.q, block.k, block.out) == (1 << 20, 3 << 20, out.array.pointer)


def test_remembered_maps_are_bounded(machine, monkeypatch):
    monkeypatch.setattr(tensor_maps, "_KEPT", 3)
    mask, (q, k, v) = compiled(), given()
    for _ in range(10):
        mask(q, k, v)
    (plan,) = mask._plans._values.values()
    assert len(plan.maps.known) <= 3


PROBLEM = Problem(64, 64, DType.float16)


def spec(name, strides, sizes=Sizes(2, 4, 2, 100, 80)):  # noqa: B008
    return tensor_maps.tensor(TensorMap(name, 128), strides, sizes, PROBLEM, "sm_90a")


def test_dimensions_of_a_map():
    swapped = spec("q", (4 * 100 * 64, 64, 4 * 64))
    assert (swapped.dims, swapped.strides) == ((64, 100, 4, 2), (512, 128, 51200))
    for name, heads, tokens in (("dk", 2, 80), ("v", 2, 80), ("dout", 4, 100), ("dq", 4, 100)):
        assert spec(name, (1 << 16, 1 << 14, 64)).dims == (64, tokens, heads, 2)
    wide = Problem(64, 128, DType.float16)
    for name, width in (("q", 64), ("v", 128), ("dv", 128), ("out", 128), ("dk", 64)):
        sizes = Sizes(2, 4, 2, 100, 80)
        strides = (1 << 16, 1 << 14, 128)
        found = tensor_maps.tensor(TensorMap(name, 64), strides, sizes, wide, "sm_90a")
        assert found.dims[0] == width


def test_a_shared_key_is_one_key():
    """Expanded along the batch or the heads: the kernel leaves that coordinate at 0."""
    shared = spec("k", (0, 80 * 64, 64))
    assert (shared.dims, shared.strides[:2]) == ((64, 80, 2, 1), (128, 10240))
    assert shared.strides[2] % 16 == 0 < shared.strides[2]
    assert spec("v", (80 * 64, 0, 64)).dims == (64, 80, 1, 2)
    single = spec("k", (7, 3, 1), Sizes(1, 4, 1, 100, 1))
    assert single.dims == (64, 1, 1, 1)
    assert all(stride > 0 and stride % 16 == 0 for stride in single.strides)


@pytest.mark.parametrize(
    ("strides", "text"),
    [
        ((1 << 16, 80 * 64, 68), "tokens are 136 bytes apart"),
        ((1 << 16, 80 * 64, 0), "tokens are 0 bytes apart"),
        ((1 << 16, -80 * 64, 64), "heads are -10240 bytes apart"),
        ((1 << 39, 80 * 64, 64), f"sequences are {1 << 40} bytes apart"),
    ],
)
def test_what_no_map_can_describe(strides, text):
    with pytest.raises(NotAddressable, match=text):
        spec("k", strides)


def test_tensors_without_elements_borrow_an_address(machine):
    mask, (q, k, v) = compiled(), given(n=5, n_kv=0)
    k.array = v.array = k.array._replace(pointer=0)
    mask(q, k, v)
    assert [one[1] for one in machine.driver.encoded[:2]] == [1 << 20, 1 << 20]
    assert machine.driver.encoded[1][2] == (64, 1, 1, 1)
    assert (machine.driver.block.items, machine.driver.block.empty) == (0, 8)
    assert machine.launched() == [("attention_forward", 1, 384)]


def test_a_forward_pass_no_map_describes_runs_elsewhere(machine):
    q, k, v = given()
    flipped = k.array._replace(strides=(k.array.strides[0], -(150 * 64), 64, 1))
    k.array = flipped
    compiled()(q, k, v)
    assert machine.launched() == [("attention_forward", 2 * 4 * 2, 128)]
    alone = compiled(units=(FORWARD, BACKWARD))
    with pytest.raises(NotAddressable, match="its heads are -19200 bytes apart"):
        alone(q, k, v)
    with pytest.raises(NotAddressable):
        backward(compiled(units=(replace(BACKWARD, maps=QKVO), FORWARD, SPARE)), q, k, v)
    assert machine.launched() == []


def test_a_result_off_the_grid_is_refused_before_a_launch(machine):
    mask, (q, k, v) = compiled(), given()
    odd = Tensor(q.array.shape, pointer=(9 << 20) + 8)
    machine.library.empty = lambda *_: (odd, odd.array.pointer)
    with pytest.raises(NotAddressable, match="does not start at a multiple of 16"):
        mask(q, k, v)
    assert machine.launched() == []
    q.array = q.array._replace(pointer=(1 << 20) + 8)
    with pytest.raises(Misaligned):
        mask(q, k, v)


def test_cupy_alone_has_no_maps(machine, monkeypatch):
    cupy = launch_cuda._CuPy(SimpleNamespace(), 0)
    cupy.load = lambda code, shared: dict.fromkeys(shared)
    cupy.multiprocessors = lambda: 1
    monkeypatch.setattr(launch_cuda, "_driver", lambda index: cupy)
    with pytest.raises(ExtraMissing, match="target sm_90a needs cuda-bindings"):
        compiled()(*given())


def test_the_real_bindings_have_what_a_map_needs():
    real = pytest.importorskip("cuda.bindings.driver")
    for kind in vars(Driver).values():
        for name in getattr(kind, "__dict__", {}):
            if name.startswith("CU_TENSOR_MAP"):
                assert any(
                    hasattr(getattr(real, kind), name)
                    for kind in dir(real)
                    if kind.startswith("CUtensorMap")
                ), name
    assert real.CUtensorMap().getPtr()
    assert int(real.cuuint64_t(1 << 39)) == 1 << 39


# ------------------------------------------------------------------ work and modes


def test_blocks_follow_the_work(machine):
    mask, arrays = compiled(), given(n=600)
    mask(*arrays)
    block = machine.driver.block
    assert (block.items, block.empty, block.shared_items) == (10 * 4 * 2, 0, 0)
    assert machine.launched() == [("attention_forward", 80, 384)]
    assert block.counter - block.work == 4 * 8 * 80
    (tables,) = mask._tables._values.values()
    assert tables.work.mean >= 2
    items = np.ctypeslib.as_array((ctypes.c_int32 * 640).from_address(block.work)).reshape(80, 8)
    np.testing.assert_array_equal(items, tables.work.items)
    pointers = tables.packed[1]
    assert block.counter - block.work == pointers["counter"] - pointers["work"]


def test_short_work_streams(machine):
    mask, arrays = compiled("gaps"), given(n=128)
    mask(*arrays)
    assert machine.built == [("forward", "stream", [])]
    (tables,) = mask._tables._values.values()
    assert (tables.work.mean, tables.work.filled, tables.work.empty) == (1.0, 8, 8)
    assert machine.launched() == [("attention_forward", 8, 384)]
    mask(*given(n=128, batch=50))
    assert machine.launched() == [("attention_forward", 132, 384)]
    mask(*given(n=60))
    assert machine.driver.block.empty == 8
    assert machine.launched() == [("attention_forward", 1, 384)]
    assert len(machine.built) == 1


def test_work_follows_heads_and_batch(machine):
    """The same lengths with other heads are another work list."""
    mask = compiled()
    for batch, heads in ((1, (2, 1)), (2, (2, 2)), (2, (4, 2)), (1, (4, 4))):
        mask(*given(n=600, batch=batch, heads=heads))
        assert machine.driver.block.items == 10 * batch * heads[0]


WINDOW = LayoutRecipe(TILE, parse_expr("(k <= q) & (k >= q - 150)"), None)


def test_ranges_need_no_lists(machine, monkeypatch):
    """A closed-form source gets its tiles from the work list, and they can be checked."""
    monkeypatch.setenv("MASKC_CHECK", "1")
    units = (replace(FORWARD, ranges=True), replace(BACKWARD, ranges=True))
    mask, (q, k, v) = compiled(units=units), given(n=600)
    variant = Variant(WINDOW.keep, 0, (), (WINDOW,))
    made = replace(mask.bundle, variants=(variant,), params=())
    mask = CompiledMask(made, "sm_90a")
    mask(q, k, v)
    assert not machine.driver.block.row_ptr
    (tables,) = mask._tables._values.values()
    np.testing.assert_array_equal(tables.work.items[-1], [0, 7, 0, 1, 0, 0, 1, 0])
    backward(mask, q, k, v)
    assert not machine.driver.block.col_ptr
    assert machine.driver.block.items == 2 * 2 * sum(min(4, 10 - i) for i in range(10))
    wrong = Spans(*(x.copy() for x in vars(range_spans(WINDOW, 64, 64, {}, {}, False)).values()))
    layout = build(WINDOW, 64, 64, {}, {})
    check_spans(wrong, layout)
    wrong.full_last[...] = 1
    with pytest.raises(CheckFailed, match="tile row 0 is said to have tiles 0 to 0, of which 0"):
        check_spans(wrong, layout)


def test_a_backward_launches_in_order(machine):
    mask, (q, k, v) = compiled(), given(n=600)
    dq, dk, dv = backward(mask, q, k, v)
    block = machine.driver.block
    assert (dq.array.pointer, dv.array.pointer) == (block.dq, block.dv)
    assert block.shared_items == 1  # columns of more than one tile are cut
    rows = 2 * 4 * 640
    assert machine.launched() == [
        ("attention_rows", rows // 128, 128),
        ("attention_backward", block.items, 256),
        ("attention_keys", 2 * 2 * 640 // 16, 128),
    ]
    assert block.row_ptr
    assert block.col_ptr
    assert machine.maps(2) == [1, 2]
    assert machine.driver.encoded[1][1] == dk.array.pointer
    (plan,) = mask._plans._values.values()
    assert plan.outputs[3].shape == (rows * 66 + 2 * 2 * 640 * 128,)
    assert machine.built == [("backward", "usual", [])]


def test_keys_are_left_out_where_nobody_shares_a_column(machine):
    alone = replace(BACKWARD, work=WorkList(1 << 16))
    mask, (q, k, v) = compiled(units=(FORWARD, alone)), given(n=600)
    backward(mask, q, k, v)
    assert [entry for entry, *_ in machine.launched()] == ["attention_rows", "attention_backward"]
    (plan,) = mask._plans._values.values()
    assert plan.outputs[3].shape == (2 * 4 * 640 * 66,)
    assert machine.driver.block.shared_items == 0


def test_counts_beyond_32_bits(machine):
    """The workspace of a large batch is counted without overflow."""
    mask, (q, k, v) = compiled(), given(n=64, batch=40000, heads=(16, 16))
    backward(mask, q, k, v)
    (plan,) = mask._plans._values.values()
    assert plan.outputs[3].shape == (40000 * 16 * 64 * 66,)
    assert plan.outputs[3].shape[0] > 1 << 31


def test_deterministic_is_a_mode(machine):
    mask, (q, k, v) = compiled(), given()
    backward(mask, q, k, v, deterministic=True)
    assert [entry for entry, *_ in machine.launched()] == ["attention_backward"]
    backward(mask, q, k, v)
    assert len(machine.launched()) == 3
    assert [name for _, name, _ in machine.built] == ["deterministic", "usual"]
    without = replace(BACKWARD, modes=BACKWARD.modes[:1])
    backward(compiled(units=(FORWARD, without)), q, k, v, deterministic=True)
    assert len(machine.launched()) == 3


def test_warmup_builds_every_mode_of_both_passes(machine):
    mask, (q, k, v) = compiled(), given(n=600)
    mask.warmup(["sinks"])
    assert sorted(machine.built) == [
        ("backward", "deterministic", ["sinks"]), ("backward", "usual", ["sinks"]),
        ("forward", "stream", ["sinks"]), ("forward", "usual", ["sinks"]),
    ]  # fmt: skip
    assert list(mask.reports.values()) == ["forward usual"]
    assert set(mask.all_reports) == {
        (source, name, frozenset({*mask.reports}.pop()))
        for source, name in (
            ("sm_90a", "usual"), ("sm_90a", "stream"), ("sm_90a_backward", "usual"),
            ("sm_90a_backward", "deterministic"),
        )
    }  # fmt: skip
    sinks = Tensor((4,), pointer=7 << 20, dtype="float32")
    mask(q, k, v, sink_logits=sinks)
    assert machine.driver.block.sink_logits == 7 << 20
    gradients = backward(mask, q, k, v, sink_logits=sinks)
    assert machine.driver.block.dsink == gradients[3].array.pointer
    assert len(machine.built) == 4


# ------------------------------------------------------------------ nan_safe


def test_nan_safe_runs_on_the_spare_kernel(machine):
    mask, (q, k, v) = compiled(), given()
    mask(q, k, v, nan_safe=True)
    assert machine.built == [("spare", "usual", ["nan_safe"])]
    assert machine.launched() == [("attention_forward", 2 * 4 * 2, 128)]
    assert not machine.driver.encoded
    assert not machine.driver.block.work
    mask(q, k, v)
    assert machine.driver.block.work
    mask.warmup(["nan_safe"])
    assert len(machine.built) == 2


def test_nan_safe_that_nobody_has(machine):
    arrays = given()
    with pytest.raises(TargetNotBuilt, match=r"no nan_safe forward kernels.*\n.*target='sm_80'"):
        compiled(units=(FORWARD,))(*arrays, nan_safe=True)
    with pytest.raises(TargetNotBuilt, match=r"no nan_safe backward kernels.*\n.*target='cpu'"):
        backward(compiled(), *arrays, nan_safe=True)
    with pytest.raises(TargetNotBuilt, match="sm_90a has no backward kernels"):
        backward(compiled(units=(FORWARD, SPARE)), *arrays)
    assert machine.launched() == []
