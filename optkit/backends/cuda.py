"""Memory, a stream and recorded launches on the GPU, over the driver's own library.

`libcuda.so.1` comes with the driver itself, so nothing has to be installed for it, and its C
interface keeps old names working (CUDA Driver API). TensorRT uses the same device through its
primary context. Every call's status is checked. Unverified on a card: see docs/targets.md.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from optkit.errors import OptkitError, ToolchainMissing, WorkerFailed
from optkit.target import Gpu

_LIBRARY = "libcuda.so.1"
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
# CUDA_ERROR_NOT_INITIALIZED, STUB_LIBRARY, NO_DEVICE, INVALID_DEVICE, SYSTEM_NOT_READY,
# SYSTEM_DRIVER_MISMATCH, COMPAT_NOT_SUPPORTED_ON_DEVICE: the driver or the device is not there
_ABSENT = frozenset({3, 34, 100, 101, 802, 803, 804})
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED: the library may allocate meanwhile
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR


class Cuda:
    """The first device that this process sees, with one stream. A context manager; closing frees
    what is still allocated. Raises ToolchainMissing where there is no driver or no device."""

    def __init__(self) -> None:
        self._library = load()
        self._call("cuInit", 0)
        self._device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(self._device), 0)
        self.gpu = self._describe()
        self._context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        self.enter()
        stream = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(stream), 0)
        self.stream = stream.value or 0
        self._pointers: set[int] = set()
        self._events: list[ctypes.c_void_p] = []

    def enter(self) -> None:
        """Make this thread use the device: a context belongs to threads, one by one."""
        self._call("cuCtxSetCurrent", self._context)

    def allocate(self, size: int) -> int:
        """The address of `size` bytes of device memory (at least one: an address is never 0)."""
        pointer = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(size, 1)))
        self._pointers.add(pointer.value)
        return pointer.value

    def free(self, pointer: int) -> None:
        self._pointers.discard(pointer)
        self._call("cuMemFree_v2", ctypes.c_uint64(pointer))

    def free_bytes(self) -> int:
        """What of the device's memory nobody uses, this process or another."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def upload(self, pointer: int, array: np.ndarray) -> None:
        """Copy a contiguous array to the device, in the stream."""
        if array.nbytes:
            self._call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(pointer),
                       ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes),
                       ctypes.c_void_p(self.stream))  # fmt: skip

    def download(self, array: np.ndarray, pointer: int) -> None:
        """Fill a contiguous array from the device, in the stream; `synchronize` before reading."""
        if array.nbytes:
            self._call("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(array.ctypes.data),
                       ctypes.c_uint64(pointer), ctypes.c_size_t(array.nbytes),
                       ctypes.c_void_p(self.stream))  # fmt: skip

    def synchronize(self) -> None:
        """Wait until the stream is empty."""
        self._call("cuStreamSynchronize", ctypes.c_void_p(self.stream))

    def record(self, launch: Callable[[], None]) -> int:
        """A handle of all that `launch` puts into the stream, which does not run yet."""
        graph, handle = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuStreamBeginCapture_v2", ctypes.c_void_p(self.stream), _RELAXED)
        try:
            launch()
        finally:
            self._call("cuStreamEndCapture", ctypes.c_void_p(self.stream), ctypes.byref(graph))
        try:
            self._call("cuGraphInstantiateWithFlags", ctypes.byref(handle), graph,
                       ctypes.c_uint64(0))  # fmt: skip
        finally:
            self._call("cuGraphDestroy", graph)
        return handle.value or 0

    def replay(self, handle: int) -> None:
        """Put what was recorded into the stream."""
        self._call("cuGraphLaunch", ctypes.c_void_p(handle), ctypes.c_void_p(self.stream))

    def forget(self, handle: int) -> None:
        self._call("cuGraphExecDestroy", ctypes.c_void_p(handle))

    def events(self, count: int) -> list[ctypes.c_void_p]:
        """As many events, the same in every call, for `stamp`."""
        while len(self._events) < count:
            event = ctypes.c_void_p()
            self._call("cuEventCreate", ctypes.byref(event), 0)
            self._events.append(event)
        return self._events[:count]

    def stamp(self, event: ctypes.c_void_p) -> None:
        """Put an event into the stream, which notes the time when it gets there."""
        self._call("cuEventRecord", event, ctypes.c_void_p(self.stream))

    def elapsed_ms(self, start: ctypes.c_void_p, stop: ctypes.c_void_p) -> float:
        """Between two events that the stream has passed."""
        found = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(found), start, stop)
        return found.value

    def close(self) -> None:
        """Free everything. May be called twice."""
        if not self.stream:
            return
        while self._events:
            self._call("cuEventDestroy_v2", self._events.pop())
        for pointer in list(self._pointers):
            self.free(pointer)
        self._call("cuStreamDestroy_v2", ctypes.c_void_p(self.stream))
        self._call("cuDevicePrimaryCtxRelease_v2", self._device)
        self.stream = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _describe(self) -> Gpu:
        name, size, version = ctypes.create_string_buffer(256), ctypes.c_size_t(), ctypes.c_int()
        self._call("cuDeviceGetName", name, 256, self._device)
        self._call("cuDeviceTotalMem_v2", ctypes.byref(size), self._device)
        self._call("cuDriverGetVersion", ctypes.byref(version))
        parts = []
        for attribute in (_MAJOR, _MINOR):
            value = ctypes.c_int()
            self._call("cuDeviceGetAttribute", ctypes.byref(value), attribute, self._device)
            parts.append(str(value.value))
        return Gpu(0, name.value.decode(), size.value, ".".join(parts), str(version.value))

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise self._refusal(name, status)

    def _refusal(self, name: str, status: int) -> OptkitError:
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(status, ctypes.byref(text))
        told = f"{name}: {(text.value or b'error').decode()} ({status})"
        if status == _OUT_OF_MEMORY:
            return WorkerFailed(told, verdict="oom", where="GPU memory")
        if status in _ABSENT:
            hint = "`optkit devices` lists the GPUs"
            return ToolchainMissing(told, where="CUDA driver", hint=hint)
        return WorkerFailed(told, verdict="crashed", where="CUDA driver")


def check_device(gpu: Gpu, target: str | None, where: str) -> None:
    """Raise ToolchainMissing unless the GPU is the target that an engine was built for: on another
    model the same kernels run, if at all, at a speed that says nothing."""
    if target is None or gpu.target == target:
        return
    here = f"{gpu.name} ({gpu.target})" if gpu.target else f"{gpu.name}, which no target describes"
    other = f"optkit build --target {gpu.target}" if gpu.target else "`optkit targets` lists others"
    raise ToolchainMissing(
        f"built for {target}, and the device here is {here}",
        where=where,
        hint=f"run it on a host with {target}, or build for this one: {other}",
    )


def load() -> Any:
    """The driver's library. Raises ToolchainMissing where there is none."""
    try:
        return ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise ToolchainMissing(
            f"no NVIDIA driver: {_LIBRARY} does not load",
            hint="run this on a host with the GPU",
        ) from error
