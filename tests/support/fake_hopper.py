"""A stand-in for a Hopper machine: what would be built and launched, and calls to make there."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

from maskc.core.bundle import Grid, Launch, Mode, SourceUnit, TensorMap, WorkList
from maskc.core.problem import Direction, Feature, TileShape
from maskc.runtime import CompiledMask
from maskc.runtime.arrays.known import LIBRARIES
from maskc.runtime.launch import cuda as launch_cuda
from maskc.runtime.launch import kernels, tensor_maps
from tests.support.bundles import bundle
from tests.support.fake_cuda import Driver, Tensor, Tensors

TILE = TileShape(64, 64)
QKVO = tuple(TensorMap(name, rows) for name, rows in (("q", 64), ("k", 64), ("v", 64), ("out", 32)))


def mode(*launches, macro="") -> Mode:
    return Mode(launches, macro)


FORWARD = SourceUnit(
    "sm_90a", "forward", TILE, False, (Direction.forward,),
    (
        ("default", mode(Launch("attention_forward", Grid.items, 384, 1000))),
        (
            "persistent",
            mode(Launch("attention_forward", Grid.stream, 384, 2000), macro="PERSISTENT"),
        ),
    ),
    QKVO, WorkList(1 << 16),
)  # fmt: skip
MAIN = Launch("attention_backward", Grid.items, 256, 3000)
BACKWARD = SourceUnit(
    "sm_90a", "backward", TILE, False, (Direction.backward,),
    (
        ("default", mode(
            Launch("attention_rows", Grid.queries, 128, per_block=128),
            Launch("attention_mean", Grid.queries, 384, per_block=64, feature=Feature.entmax), MAIN,
            Launch("attention_keys", Grid.keys, 128, per_block=16),
        )),
        ("deterministic", mode(MAIN, macro="DETERMINISTIC")),
    ),
    (TensorMap("dout", 64), TensorMap("dk", 64)), WorkList(1 << 16, 1), 66, 128,
)  # fmt: skip
SPARE = SourceUnit(
    "sm_80", "spare", TileShape(128, 64), False,
    modes=(("default", mode(Launch("attention_forward", Grid.rows, 128, 64 * 1024))),),
)  # fmt: skip


class Machine:
    """Everything that was built and launched."""

    def __init__(self, monkeypatch):
        self.driver, self.library, self.built = Driver(current=100), Tensors(), []
        wrapped = launch_cuda._Bindings(self.driver, 0)
        monkeypatch.setattr(launch_cuda, "_driver", lambda index: wrapped)
        monkeypatch.setattr(kernels, "build", self.build)
        monkeypatch.setattr(kernels, "device_arch", lambda target, device: target)
        monkeypatch.setattr("maskc.runtime.planner.current_device", lambda: 0)
        monkeypatch.setitem(LIBRARIES, Tensor, self.library)
        tensor_maps.encoded.cache_clear()

    def build(self, unit, features, directions, arch, mode):
        self.built.append((unit.source, mode, sorted(f.name for f in features)))
        return SimpleNamespace(code=b"", report=f"{unit.source} {mode}")

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
