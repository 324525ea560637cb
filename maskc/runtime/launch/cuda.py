"""Load cubins on a device, and launch them asynchronously on the caller's stream."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from maskc.build import Binary
from maskc.build.toolchain import gpus
from maskc.core.abi import ATTENTION, SCORE, TABLES_LEFT, Numbers, Pointers
from maskc.core.bundle import Launch, Mode, SourceUnit
from maskc.core.errors import ExtraMissing, NoDevice, not_imported
from maskc.core.problem import Features
from maskc.core.target import Target
from maskc.core.tensors import PAPER, Shape
from maskc.dispatch.launch_plan import LaunchPlan
from maskc.runtime.launch.prepared import (
    PER_THREAD,
    PreparedLaunch,
    Sent,
    fill_numbers,
    fill_pointers,
    fill_scale,
    prepared,
)
from maskc.runtime.launch.recording import PaperDriver
from maskc.runtime.launch.tensor_maps import BYTES, Encode, Maps, encode_with

_SHARED = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""
_MULTIPROCESSORS = 16
"""CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, and the same of the runtime."""
_EARLY = 6
"""CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION."""
_FREE_SHARED = 48 * 1024
"""Dynamic shared memory a kernel may use without asking."""
_WORD, _PORTABLE_MAPPED = 4, 3
"""Bytes; CU_MEMHOSTALLOC_PORTABLE and CU_MEMHOSTALLOC_DEVICEMAP."""
_LINE = 64
"""Bytes: alignment of tensor maps."""
_BLOCK = ctypes.sizeof(ATTENTION)
_MAPS = -(-ctypes.sizeof(ATTENTION) // _LINE) * _LINE
"""The offset at which tensor maps start behind the argument block."""
_OF_TABLES = ("attention_backward_pairs", "attention_backward_tables")
"""Launches that only add gradients of tables of a score formula."""
_FLAGS, _SCORE_FLAGS = struct.Struct("i"), SCORE.score_pairs.offset
_KEPT = 256
"""Sets of addresses whose arguments stay filled in, per plan and stream."""


def device_arch(target: str, device: int) -> str:
    """Return the architecture to compile for: the target's own if it is tied to one, else the
    device's.

    Raises:
        NoDevice: there is none, or it cannot run the target.
    """
    cards, subject = gpus(), f"target {target}"
    device %= PAPER
    if device >= len(cards):
        raise NoDevice(subject, f"there is none with index {device}", at="target")
    specific = target.endswith("a")
    needed = Target.named(target).capability
    have = cards[device].capability
    if specific and have != needed:
        raise NoDevice(subject, f"device {device} is an sm_{have}, not an sm_{needed}", at="target")
    if have < needed:
        raise NoDevice(subject, f"device {device} is only an sm_{have}", at="target")
    return target if specific else f"sm_{have}"


def current_device() -> int:
    """The device that new CUDA work of this thread goes to; 0 where none was chosen.

    Raises:
        NoDevice: there is no GPU.
    """
    if not gpus():
        raise NoDevice("this kernel", "there is none", at="target")
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return int(torch.cuda.current_device())
    import cupy

    return int(cupy.cuda.runtime.getDevice())


def multiprocessors(device: int) -> int:
    """Return the number of multiprocessors of a device."""
    return _driver(device).multiprocessors()


def host_words(device: int, count: int) -> ctypes.Array[ctypes.c_int32]:
    """Numbers in memory of the host, 0, that kernels of a device may write; kept for good."""
    words = (ctypes.c_int32 * count).from_address(_driver(device).host_words(count))
    ctypes.memset(words, 0, ctypes.sizeof(words))
    return words


def host_word(device: int) -> ctypes.c_int32:
    """One such number."""
    return ctypes.c_int32.from_address(ctypes.addressof(host_words(device, 1)))


class Step(NamedTuple):
    """One launch without its arguments."""

    function: Any
    blocks: int
    threads: int
    shared: int
    """Bytes of dynamic shared memory."""
    overlaps: bool = False
    """See `Launch.overlaps`."""


class Sendable(Protocol):
    """The arguments of a launch."""

    address: int
    """The address of the array of addresses that a launch takes."""

    def arguments(self) -> tuple[bytes, ...]:
        """The bytes that the argument addresses point to."""


class Memory:
    """Arguments of one launch: `struct Attention`, behind it tensor maps, both aligned."""

    def __init__(self, maps: int, template: bytes) -> None:
        room = max(_MAPS, -(-len(template) // _LINE) * _LINE)  # more with a score formula
        held = ctypes.create_string_buffer(room + maps + _LINE)
        base = -(-ctypes.addressof(held) // _LINE) * _LINE
        first = base - ctypes.addressof(held)
        self.view = memoryview(held).cast("B")[first : first + room + maps]
        self._pointers = (ctypes.c_void_p * 2)(base, base + room)
        self._sizes, self._maps = (len(template), maps), room
        self.address = ctypes.addressof(self._pointers)
        """The address of the array of addresses that a launch takes."""
        self.view[: len(template)] = template
        self.block = b""
        """The bytes behind `struct Attention`."""
        self.steps: tuple[Step, ...] = ()
        """The launches that the block needs, if there is one."""

    def fill(self, pointers: Pointers, maps: Maps | None) -> None:
        """Write what depends on where the tensors of a call lie.

        Raises:
            NotAddressable: a tensor is not where a map can start.
        """
        if maps is not None:
            self.view[self._maps :] = maps.at(pointers)
        fill_pointers(self.view, pointers)

    def arguments(self) -> tuple[bytes, ...]:
        block, maps = self._sizes
        return bytes(self.view[:block]), *((bytes(self.view[-maps:]),) if maps else ())


class Arguments:
    """The block of a launch that makes lists or moves rows, as `struct Lists`: its pointers come
    first."""

    def __init__(
        self, numbers: bytes, layout: struct.Struct, pointers: tuple[int, ...] = ()
    ) -> None:
        """`numbers` is the block without its pointers, which `layout` writes."""
        self.block = ctypes.create_string_buffer(numbers, len(numbers))
        """The block, to be written while no launch reads it."""
        self._write = layout.pack_into
        if pointers:
            self.fill(pointers)
        self._places = (ctypes.c_void_p * 1)(ctypes.addressof(self.block))
        self.address = ctypes.addressof(self._places)
        """The address of the array of addresses that a launch takes."""

    def fill(self, pointers: tuple[int, ...]) -> None:
        """Write all pointers, while no launch reads them."""
        self._write(self.block, 0, *pointers)

    def arguments(self) -> tuple[bytes, ...]:
        return (self.block.raw,)


class CudaKernel:
    """The entry points of one mode of a source in one device's primary context."""

    def __init__(
        self, unit: SourceUnit, mode: Mode, binary: Binary | None, device: int,
        features: Features = frozenset(),
    ) -> None:  # fmt: skip
        """Load it: the only place that may wait for the device.

        Without a binary the kernel can be planned with, and cannot run.
        """
        self._driver = driver = _driver(device)
        self._target, self._launches = unit.target, mode.launched(features)
        names = (name for name, known in unit.modes if known is mode)
        self.name = f"{unit.key} {next(names, '')}".strip()
        shared = {launch.entry: 0 for launch in self._launches}
        for launch in self._launches:
            room = max(launch.shared_bytes, launch.roomy_bytes)
            shared[launch.entry] = max(shared[launch.entry], room)
        self._functions: Mapping[str, Any] = (
            dict.fromkeys(shared) if binary is None else driver.load(binary.code, shared)
        )
        self._of_tables = [f for name, f in self._functions.items() if name in _OF_TABLES]
        self.launch, self.capturing, self.usable = driver.launch, driver.capturing, driver.usable
        self._map_bytes = BYTES * len(unit.maps)

    def steps(
        self, blocks: Callable[[Launch, int], int],
        shared_bytes: Callable[[Launch], int] = lambda launch: launch.shared_bytes,
    ) -> tuple[Step, ...]:  # fmt: skip
        """The launches; `blocks` counts a launch's blocks, given the multiprocessors."""
        processors = self._driver.multiprocessors()
        counted = ((launch, blocks(launch, processors)) for launch in self._launches)
        return tuple(
            Step(
                self._functions[launch.entry],
                count,
                launch.threads,
                shared_bytes(launch),
                launch.overlaps,
            )
            for launch, count in counted
            if count
        )

    def prepare(self, plan: LaunchPlan) -> PreparedLaunch:
        """A plan with its launches and tensor maps.

        Raises:
            ExtraMissing: CuPy alone cannot make tensor maps.
        """
        maps = None
        if plan.maps:
            maps = Maps(plan.maps, self._target, self._driver.encoder(self._target))
        return prepared(plan, self, plan.outputs, self.steps(plan.blocks, plan.shared_bytes), maps)

    def run(
        self, plan: PreparedLaunch, sent: Sent, pointers: Pointers, numbers: Numbers, stream: int,
    ) -> None:  # fmt: skip
        """Enqueue; the driver copies the arguments."""
        memory = sent.free.pop(pointers, None)  # of this launch until it is put back
        if memory is None:
            memory = self._filled(plan, sent, pointers)
        if sent.block is not memory.block:
            memory.view[_BLOCK : len(sent.template)] = memory.block = sent.block
            memory.steps = self._needed(plan.steps, sent.block)
        steps = memory.steps or plan.steps
        if numbers is None:
            self.launch(steps, stream, memory)
        else:
            fill_numbers(memory.view, numbers)
            self.launch(steps, stream, memory)
            fill_scale(memory.view, sent.template)
        sent.free[pointers] = memory

    def _needed(self, steps: tuple[Step, ...], block: bytes) -> tuple[Step, ...]:
        """Leave out launches for gradients of tables that a call with this block needs not."""
        if not self._of_tables or _FLAGS.unpack_from(block, _SCORE_FLAGS)[0] & TABLES_LEFT:
            return steps
        return tuple(step for step in steps if not any(step.function is f for f in self._of_tables))

    def read(self, stream: int, address: int, count: int) -> np.ndarray | None:
        """Copy int32 words from the device, when everything before on the stream is done.

        Returns:
            None if launches are written down for later, as those of a CUDA graph are.
        """
        if self._driver.capturing(stream):
            return None
        words: np.ndarray | None = self._driver.read(stream, address, count)
        return words

    def _filled(self, plan: PreparedLaunch, sent: Sent, pointers: Pointers) -> Memory:
        """Fill in arguments for tensors at new addresses."""
        free, memory = sent.free, None
        if len(free) >= _KEPT:
            with suppress(KeyError, RuntimeError, StopIteration):  # another thread took it
                memory = free.pop(next(iter(free)))  # unused for longest
        if memory is None:
            memory = Memory(self._map_bytes, sent.template)
        memory.fill(pointers, plan.maps)
        return memory


class _Bindings:
    """Launches through cuda.bindings, which takes less time than CuPy."""

    def __init__(self, driver: Any, device: int) -> None:
        self._driver = driver
        self._check(driver.cuInit(0))
        self._device = self._check(driver.cuDeviceGet(device))
        self._context = self._check(driver.cuDevicePrimaryCtxRetain(self._device))
        self._context_id = int(self._context)
        self._current, self._start = driver.cuCtxGetCurrent, driver.cuLaunchKernel
        self._capturing = driver.cuStreamIsCapturing
        self._start_early = driver.cuLaunchKernelEx
        self._early = lru_cache(_KEPT)(self._launch_early)
        self.multiprocessors = cache(self._multiprocessors)
        self.encoder = cache(self._encoder)

    def _check(self, result: tuple[Any, ...]) -> Any:
        if result[0]:
            raise RuntimeError(f"CUDA driver: {result[0]!r}")
        return result[1] if len(result) > 1 else None

    def _multiprocessors(self) -> int:
        attribute = self._driver.CUdevice_attribute(_MULTIPROCESSORS)
        return int(self._check(self._driver.cuDeviceGetAttribute(attribute, self._device)))

    def load(self, code: bytes, shared: Mapping[str, int]) -> dict[str, Any]:
        """Functions by entry point, allowed the dynamic shared memory they need."""
        driver, check = self._driver, self._check
        with self._entered():
            module = check(driver.cuModuleLoadData(code))
            functions = {}
            for entry, size in shared.items():
                function = check(driver.cuModuleGetFunction(module, entry.encode()))
                if size > _FREE_SHARED:
                    attribute = driver.CUfunction_attribute(_SHARED)
                    check(driver.cuFuncSetAttribute(function, attribute, size))
                functions[entry] = function
            return functions

    def host_words(self, count: int) -> int:
        """Address of words of the host, for good, that kernels reach under the same one."""
        driver = self._driver
        # A capture of a CUDA graph forbids it by default, because replays would not repeat it.
        relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        with self._entered():
            before = self._check(driver.cuThreadExchangeStreamCaptureMode(relaxed))
            try:
                return int(self._check(driver.cuMemHostAlloc(_WORD * count, _PORTABLE_MAPPED)))
            finally:
                driver.cuThreadExchangeStreamCaptureMode(before)

    @contextmanager
    def _entered(self) -> Iterator[None]:
        """The device's context is current."""
        self._check(self._driver.cuCtxPushCurrent(self._context))
        try:
            yield
        finally:
            self._driver.cuCtxPopCurrent()

    def _encoder(self, target: str) -> Encode:
        def encode(address: int, dims: Shape, strides: Shape, box: Shape, dtype: str) -> bytes:
            with self._entered():
                made = encode_with(self._driver, address, dims, strides, box, dtype)
            return ctypes.string_at(int(self._check(made).getPtr()), BYTES)

        return encode

    def capturing(self, stream: int) -> bool:
        status, mode = self._capturing(stream)
        return bool(mode) and not status

    def read(self, stream: int, address: int, count: int) -> np.ndarray:
        """Copy int32 words from the device; see CudaKernel.read."""
        words = np.empty(count, np.int32)
        with self._entered():
            self._check(self._driver.cuStreamSynchronize(stream or None))
            self._check(self._driver.cuMemcpyDtoH(words.ctypes.data, address, words.nbytes))
        return words

    def usable(self, stream: int) -> int:
        """Multiprocessors that work of a stream may run on: a green context has some of them."""
        driver, context = self._driver, 0
        if stream > PER_THREAD and hasattr(driver, "cuStreamGetGreenCtx"):
            status, context = driver.cuStreamGetGreenCtx(stream)
            context = 0 if status else context  # an older driver knows none
        if not int(context):
            return self.multiprocessors()
        kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        return int(self._check(driver.cuGreenCtxGetDevResource(context, kind)).sm.smCount)

    def _launch_early(self, blocks: int, threads: int, shared: int, stream: int) -> Any:
        """Return the configuration of a launch that starts while the launch before it ends."""
        driver = self._driver
        attribute, config = driver.CUlaunchAttribute(), driver.CUlaunchConfig()
        attribute.id = driver.CUlaunchAttributeID(_EARLY)
        attribute.value.programmaticStreamSerializationAllowed = 1
        config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes, config.hStream = shared, stream
        config.attrs, config.numAttrs = [attribute], 1
        return config

    def launch(self, steps: tuple[Step, ...], stream: int, memory: Sendable) -> None:
        foreign = int(self._current()[1]) != self._context_id
        if foreign:  # another device is current, or this thread never touched CUDA
            self._check(self._driver.cuCtxPushCurrent(self._context))
        try:
            start, address = self._start, memory.address
            on = stream or None  # bindings make an object of 0
            for function, blocks, threads, shared, overlaps in steps:
                if overlaps:
                    config = self._early(blocks, threads, shared, stream)
                    (status,) = self._start_early(config, function, address, 0)
                else:
                    (status,) = start(function, blocks, 1, 1, threads, 1, 1, shared, on, address, 0)
                if status:
                    self._check((status,))
        finally:
            if foreign:
                self._driver.cuCtxPopCurrent()


class _CuPy:
    """Launches through CuPy, where cuda.bindings is not installed."""

    def __init__(self, cupy: Any, device: int) -> None:
        self._cupy, self._device = cupy, device
        self._words: list[Any] = []

    def multiprocessors(self) -> int:
        runtime = self._cupy.cuda.runtime
        return int(runtime.deviceGetAttribute(_MULTIPROCESSORS, self._device))

    def encoder(self, target: str) -> Encode:
        raise ExtraMissing(f"target {target}", "cuda-bindings", "cuda13", at="target")

    def host_words(self, count: int) -> int:
        with self._cupy.cuda.Device(self._device):
            self._words.append(self._cupy.cuda.alloc_pinned_memory(_WORD * count))
        return int(self._words[-1].ptr)

    def load(self, code: bytes, shared: Mapping[str, int]) -> dict[str, Any]:
        cuda = self._cupy.cuda
        with cuda.Device(self._device):
            module = cuda.function.Module()
            module.load(code)
            functions = {entry: module.get_function(entry) for entry in shared}
            for entry, size in shared.items():
                if size > _FREE_SHARED:
                    cuda.driver.funcSetAttribute(functions[entry].ptr, _SHARED, size)
        return functions

    def read(self, stream: int, address: int, count: int) -> np.ndarray:
        """Copy int32 words from the device; see CudaKernel.read."""
        runtime, words = self._cupy.cuda.runtime, np.empty(count, np.int32)
        with self._cupy.cuda.Device(self._device):
            runtime.streamSynchronize(stream)
            to_host = runtime.memcpyDeviceToHost
            runtime.memcpy(words.ctypes.data, address, words.nbytes, to_host)
        return words

    def usable(self, stream: int) -> int:
        return self.multiprocessors()  # CuPy knows of no green contexts

    def capturing(self, stream: int) -> bool:
        return bool(self._cupy.cuda.runtime.streamIsCapturing(stream))

    def launch(self, steps: tuple[Step, ...], stream: int, memory: Sendable) -> None:
        runtime = self._cupy.cuda.runtime
        before = runtime.getDevice()
        runtime.setDevice(self._device)
        try:
            values = tuple(map(_by_value, memory.arguments()))
            for function, blocks, threads, shared, _ in steps:
                function((blocks,), (threads,), values, shared, self._stream(stream))
        finally:
            runtime.setDevice(before)

    def _stream(self, pointer: int) -> Any:
        """CuPy's view of the caller's stream."""
        streams = self._cupy.cuda
        if hasattr(streams.Stream, "from_external"):
            return streams.Stream.from_external(_Borrowed(pointer))
        return streams.ExternalStream(pointer)


def _by_value(argument: bytes) -> np.ndarray:
    """Bytes in the form CuPy passes by value."""
    value = np.zeros((), np.dtype({"names": ["b"], "formats": [f"V{len(argument)}"]}))
    value["b"] = argument
    return value


class _Borrowed:
    """A stream of another library, with the CUDA stream protocol."""

    def __init__(self, pointer: int) -> None:
        self.pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.pointer


@cache
def _driver(device: int) -> _Bindings | _CuPy | PaperDriver:
    if device >= PAPER:
        return PaperDriver(_driver(device - PAPER))
    try:
        from cuda.bindings import driver
    except ImportError:
        try:
            import cupy
        except ImportError as error:
            raise not_imported(error, "a CUDA target", "CuPy", "cuda13") from error
        return _CuPy(cupy, device)
    return _Bindings(driver, device)
