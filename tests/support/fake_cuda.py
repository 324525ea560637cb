"""A GPU in name only: streams, the driver's calls, and arrays that are mere addresses."""

from __future__ import annotations

import ctypes
from itertools import count
from types import SimpleNamespace

import numpy as np

from maskc.core.abi import ATTENTION
from maskc.core.tensors import Array, contiguous
from maskc.runtime.device_lists.lists_launch import LISTS


class Streams:
    """A library with CUDA streams that exist in name only."""

    graphs_own, lent = False, False

    def __init__(self):
        self.current, self.sent, self.held, self.cleared = 7, [], [], 0

    def stream(self, device):
        return self.current

    def lends(self, stream):
        return self.lent

    def empty(self, x, wanted):
        made = np.empty(wanted.shape, np.float32)
        self.held.append(made)
        return made, made.ctypes.data

    def clear(self, made):
        self.cleared += 1

    def send(self, x, host):
        self.sent.append(self.current)
        copy = host.copy()
        self.held.append(copy)
        return copy, copy.ctypes.data


class Tensor:
    """An array that is only described."""

    def __init__(self, shape, strides=None, pointer=1 << 20, dtype="bfloat16"):
        strides = contiguous(shape) if strides is None else strides
        self.array = Array(pointer, shape, strides, dtype, ("cuda", 0))

    @property
    def shape(self):
        return self.array.shape


class Tensors(Streams):
    """The library of `Tensor`; new ones never share an address."""

    ordered = True

    def __init__(self):
        super().__init__()
        self._addresses = count(1 << 24, 1 << 12)

    def read_all(self, arrays):
        return tuple(x.array[1:] for x in arrays), tuple(x.array.pointer for x in arrays)

    def plain(self, x):
        return x

    def view(self, x, name):
        return x.array

    def watch(self, x):
        return None

    def empty(self, x, wanted):
        dtype = wanted.dtype or x.array.dtype
        made = Tensor(wanted.shape, pointer=next(self._addresses), dtype=dtype)
        return made, made.array.pointer


class Driver:
    """The few calls of cuda.bindings.driver that a launch makes."""

    def __init__(self, current=0):
        self.calls, self.encoded, self.current = [], [], current

    def cuInit(self, _):
        return (0,)

    def cuDeviceGet(self, index):
        return 0, index

    def cuDevicePrimaryCtxRetain(self, device):
        return 0, 100 + device

    def cuCtxGetCurrent(self):
        return 0, self.current

    def cuCtxPushCurrent(self, context):
        self.calls.append(("push", context))
        return (0,)

    def cuCtxPopCurrent(self):
        self.calls.append(("pop",))
        return 0, 0

    def cuModuleLoadData(self, code):
        return 0, "module"

    def cuModuleGetFunction(self, module, name):
        return 0, name.decode()

    def CUfunction_attribute(self, value):
        return value

    def cuFuncSetAttribute(self, function, attribute, value):
        self.calls.append(("attribute", function, attribute, value))
        return (0,)

    def cuStreamIsCapturing(self, stream):
        return 0, int(stream == 3)

    def CUdevice_attribute(self, value):
        return value

    def cuDeviceGetAttribute(self, attribute, device):
        self.calls.append(("asked", attribute, device))
        return 0, 132

    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)
    capture_mode = 0

    def cuThreadExchangeStreamCaptureMode(self, mode):
        before, self.capture_mode = self.capture_mode, mode
        return 0, before

    def cuMemHostAlloc(self, size, flags):
        assert self.capture_mode == 2, "a capture forbids it"
        assert (size % 4, flags) == (0, 3)
        self.words = (ctypes.c_int32 * (size // 4))()
        return 0, ctypes.addressof(self.words)

    def cuLaunchKernel(self, function, *rest):
        if function in ("make_lists", "lists_of_lengths", "spoil_results"):
            (place,) = ctypes.cast(rest[8], ctypes.POINTER(ctypes.c_void_p))[:1]
            self.listed = LISTS.from_buffer_copy(ctypes.string_at(place, ctypes.sizeof(LISTS)))
            self.calls.append(("launch", function, *rest[:8], self.listed.n[0]))
            return (self.status,)
        arguments = ctypes.cast(rest[8], ctypes.POINTER(ctypes.c_void_p))[:2]
        self.block = ATTENTION.from_buffer_copy(
            ctypes.string_at(arguments[0], ctypes.sizeof(ATTENTION))
        )
        self.maps = arguments[1]
        n_q = self.block.n_q
        self.calls.append(("launch", function, *rest[:8], n_q))
        return (self.status,)

    def cuLaunchKernelEx(self, how, function, arguments, extra):
        (early,) = how.attrs
        assert (early.id, early.value.programmaticStreamSerializationAllowed) == (6, 1)
        grid = how.gridDimX, how.gridDimY, how.gridDimZ
        block = how.blockDimX, how.blockDimY, how.blockDimZ
        rest = how.sharedMemBytes, how.hStream or None, arguments, extra
        return self.cuLaunchKernel(function, *grid, *block, *rest)

    CUlaunchAttributeID = int

    def CUlaunchAttribute(self):
        return SimpleNamespace(value=SimpleNamespace())

    def CUlaunchConfig(self):
        return SimpleNamespace()

    def cuTensorMapEncodeTiled(self, kind, rank, address, dims, strides, box, steps, *rest):
        assert (steps, rest) == ([1] * rank, (0, 3, 0, 0))
        assert len(dims) == len(box) == len(strides) + 1 == rank
        self.encoded.append((kind, address, tuple(dims), tuple(strides), tuple(box)))
        return 0, Map(bytes([len(self.encoded)]) * 128)

    CUtensorMapDataType = staticmethod({9: "bf16", 6: "fp16"}.__getitem__)
    CUtensorMapInterleave = CUtensorMapSwizzle = int
    CUtensorMapL2promotion = CUtensorMapFloatOOBfill = int
    cuuint32_t = cuuint64_t = int

    status = 0


class Map:
    """A CUtensorMap."""

    def __init__(self, content: bytes):
        self._held = ctypes.create_string_buffer(content, 128)

    def getPtr(self):
        return ctypes.addressof(self._held)
