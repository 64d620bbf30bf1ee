"""Memory, a stream and recorded launches on the GPU, through the driver's own library.

`libcuda.so.1` comes with the driver, so nothing has to be installed for it, and its C interface
keeps old names working (CUDA Driver API). cuda-bindings would need a wheel for the right CUDA
version, for two dozen functions whose types are in one table here (`PROTOTYPES`, as in cuda.h).
TensorRT uses the same device through its primary context. The status of every call is checked, and
the first error is reported. Its calls ran on an H200 (docs/studies/gpu_hosts.md).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from contextlib import suppress
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from types import MappingProxyType
from typing import Self

import numpy as np

from optkit.facts.errors import OptkitError, ToolchainMissing, WorkerFailed
from optkit.ground.devices import Gpu, driver_version

_Number = c_int | c_size_t | c_uint64 | c_void_p

_LIBRARY = "libcuda.so.1"
_WSL = "/usr/lib/wsl/lib/libcuda.so.1"  # the driver of the Windows system on which this Linux runs
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
# CUDA_ERROR_NOT_INITIALIZED, STUB_LIBRARY, NO_DEVICE, INVALID_DEVICE, SYSTEM_NOT_READY,
# SYSTEM_DRIVER_MISMATCH, COMPAT_NOT_SUPPORTED_ON_DEVICE: the driver or the device is not there
_ABSENT = frozenset({3, 34, 100, 101, 802, 803, 804})
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED: the library may allocate during the recording
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR

# Every function that is called, with the types of its parameters; all return a status. Device
# pointers have 64 bits, handles are pointers, and 0 means none.
PROTOTYPES: Mapping[str, tuple[type, ...]] = MappingProxyType(
    {
        "cuInit": (c_uint,),
        "cuDriverGetVersion": (POINTER(c_int),),
        "cuDeviceGet": (POINTER(c_int), c_int),
        "cuDeviceGetName": (c_char_p, c_int, c_int),
        "cuDeviceTotalMem_v2": (POINTER(c_size_t), c_int),
        "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
        "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
        "cuDevicePrimaryCtxRelease_v2": (c_int,),
        "cuCtxSetCurrent": (c_void_p,),
        "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
        "cuMemFree_v2": (c_uint64,),
        "cuMemGetInfo_v2": (POINTER(c_size_t), POINTER(c_size_t)),
        "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
        "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
        "cuStreamCreate": (POINTER(c_void_p), c_uint),
        "cuStreamSynchronize": (c_void_p,),
        "cuStreamDestroy_v2": (c_void_p,),
        "cuStreamBeginCapture_v2": (c_void_p, c_int),
        "cuStreamEndCapture": (c_void_p, POINTER(c_void_p)),
        "cuGraphInstantiateWithFlags": (POINTER(c_void_p), c_void_p, c_uint64),
        "cuGraphLaunch": (c_void_p, c_void_p),
        "cuGraphDestroy": (c_void_p,),
        "cuGraphExecDestroy": (c_void_p,),
        "cuEventCreate": (POINTER(c_void_p), c_uint),
        "cuEventRecord": (c_void_p, c_void_p),
        "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
        "cuEventDestroy_v2": (c_void_p,),
        "cuGetErrorString": (c_int, POINTER(c_char_p)),
    }
)


class Cuda:
    """The first device that this process sees, with one stream. It is a context manager; closing it
    frees the memory that is still allocated. Raises ToolchainMissing if there is no driver or no
    device."""

    def __init__(self) -> None:
        self._library = load()
        self._pointers: set[int] = set()
        self._events: list[int] = []
        self.stream = 0
        self._call("cuInit", 0)
        self._device = self._asked(c_int, "cuDeviceGet", 0)
        self.gpu = self._describe()
        self._context = self._asked(c_void_p, "cuDevicePrimaryCtxRetain", self._device)
        try:
            self.enter()
            self.stream = self._asked(c_void_p, "cuStreamCreate", 0)
        except OptkitError:
            self.close(quietly=True)
            raise

    def enter(self) -> None:
        """Make this thread use the device, because a context belongs to one thread at a time."""
        self._call("cuCtxSetCurrent", self._context)

    def allocate(self, size: int) -> int:
        """The address of `size` bytes of device memory (at least one byte, because an address is
        never 0)."""
        pointer = self._asked(c_uint64, "cuMemAlloc_v2", max(size, 1))
        self._pointers.add(pointer)
        return pointer

    def free(self, pointer: int) -> None:
        self._pointers.discard(pointer)
        self._call("cuMemFree_v2", pointer)

    def free_bytes(self) -> int:
        """The free memory of the device, which no process uses."""
        free, total = c_size_t(), c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def upload(self, pointer: int, array: np.ndarray) -> None:
        """Copy a contiguous array to the device, in the stream."""
        if array.nbytes:
            source = array.ctypes.data
            self._call("cuMemcpyHtoDAsync_v2", pointer, source, array.nbytes, self.stream)

    def download(self, array: np.ndarray, pointer: int) -> None:
        """Fill a contiguous array from the device, in the stream; `synchronize` before reading."""
        if array.nbytes:
            to = array.ctypes.data
            self._call("cuMemcpyDtoHAsync_v2", to, pointer, array.nbytes, self.stream)

    def synchronize(self) -> None:
        """Wait until the stream is empty."""
        self._call("cuStreamSynchronize", self.stream)

    def record(self, launch: Callable[[], None]) -> int:
        """A handle of all work that `launch` puts into the stream. The work does not run yet.
        Raises the errors of `launch`, and WorkerFailed if a part of it cannot be recorded; the
        stream then accepts launches again."""
        self._call("cuStreamBeginCapture_v2", self.stream, _RELAXED)
        try:
            launch()
        except BaseException:
            with suppress(OptkitError):  # the recording is not valid: the first error shows why
                self._dropped(self._asked(c_void_p, "cuStreamEndCapture", self.stream, last=True))
            raise
        graph = self._asked(c_void_p, "cuStreamEndCapture", self.stream, last=True)
        try:
            return self._asked(c_void_p, "cuGraphInstantiateWithFlags", graph, 0)
        finally:
            self._dropped(graph)

    def replay(self, handle: int) -> None:
        """Put the recorded work into the stream."""
        self._call("cuGraphLaunch", handle, self.stream)

    def forget(self, handle: int) -> None:
        self._call("cuGraphExecDestroy", handle)

    def events(self, count: int) -> list[int]:
        """This number of events for `stamp`, the same ones in every call."""
        while len(self._events) < count:
            self._events.append(self._asked(c_void_p, "cuEventCreate", 0))
        return self._events[:count]

    def stamp(self, event: int) -> None:
        """Put an event into the stream. It records the time when the stream reaches it."""
        self._call("cuEventRecord", event, self.stream)

    def elapsed_ms(self, start: int, stop: int) -> float:
        """Milliseconds between two events that the stream has passed."""
        found = c_float()
        self._call("cuEventElapsedTime", ctypes.byref(found), start, stop)
        return found.value

    def close(self, *, quietly: bool = False) -> None:
        """Free everything, even if a part of it fails. It may be called twice. Raises the first
        error; with `quietly` none, because an earlier error has to be reported."""
        if not self._context:
            return
        held = [
            *(("cuEventDestroy_v2", event) for event in self._events),
            *(("cuMemFree_v2", pointer) for pointer in self._pointers),
            *((("cuStreamDestroy_v2", self.stream),) if self.stream else ()),
            ("cuDevicePrimaryCtxRelease_v2", self._device),
        ]
        self._events, self._pointers, self.stream, self._context = [], set(), 0, 0
        errors = []
        for name, handle in held:
            try:
                self._call(name, handle)
            except OptkitError as error:
                errors.append(error)
        if errors and not quietly:
            raise errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close(quietly=exc[0] is not None)

    def _describe(self) -> Gpu:
        name = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", name, len(name), self._device)
        size = self._asked(c_size_t, "cuDeviceTotalMem_v2", self._device)
        major, minor = (
            self._asked(c_int, "cuDeviceGetAttribute", attribute, self._device)
            for attribute in (_MAJOR, _MINOR)
        )
        driver = driver_version() or f"of CUDA {self._asked(c_int, 'cuDriverGetVersion')}"
        return Gpu(0, name.value.decode(), size, f"{major}.{minor}", driver)

    def _asked(self, kind: type[_Number], name: str, *arguments: object, last: bool = False) -> int:
        """The value that a function writes to its first parameter (with `last`: to its last
        one)."""
        found = kind()
        out = ctypes.byref(found)
        self._call(name, *((*arguments, out) if last else (out, *arguments)))
        return int(found.value or 0)

    def _dropped(self, graph: int) -> None:
        if graph:
            self._call("cuGraphDestroy", graph)

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise self._refusal(name, status)

    def _refusal(self, name: str, status: int) -> OptkitError:
        text = c_char_p()
        self._library.cuGetErrorString(status, ctypes.byref(text))
        told = f"{name}: {(text.value or b'error').decode()} ({status})"
        if status == _OUT_OF_MEMORY:
            return WorkerFailed(told, verdict="oom", where="GPU memory")
        if status in _ABSENT:
            hint = "`optkit devices` lists the GPUs"
            return ToolchainMissing(told, where="CUDA driver", hint=hint)
        return WorkerFailed(told, verdict="crashed", where="CUDA driver")


def check_device(gpu: Gpu, target: str | None, where: str) -> None:
    """Raise ToolchainMissing unless the GPU is the target for which an engine was built. On another
    model, the speed of the kernels, if they run, says nothing about the target."""
    if target is None or gpu.target == target:
        return
    here = f"{gpu.name} ({gpu.target})" if gpu.target else f"{gpu.name}, which no target describes"
    other = f"optkit build --target {gpu.target}" if gpu.target else "`optkit targets` lists others"
    raise ToolchainMissing(
        f"it is built for {target}, but the device of this machine is {here}",
        where=where,
        hint=f"run it on a host with {target}, or build for this one: {other}",
    )


def load() -> ctypes.CDLL:
    """The driver's library with typed functions. Raises ToolchainMissing if there is none."""
    errors = []
    for path in (_LIBRARY, _WSL):
        try:
            return typed(ctypes.CDLL(path))
        except OSError as error:
            errors.append(error)
    raise ToolchainMissing(
        f"no NVIDIA driver: {_LIBRARY} does not load", hint="run this on a host with the GPU"
    ) from errors[0]


def typed(library: ctypes.CDLL) -> ctypes.CDLL:
    """The library with the types of PROTOTYPES. Raises ToolchainMissing if it lacks a function,
    because its driver is older than CUDA 11.4."""
    for name, parameters in PROTOTYPES.items():
        try:
            function = getattr(library, name)
        except AttributeError as error:
            raise ToolchainMissing(
                f"the NVIDIA driver is too old: it has no {name}",
                hint="install driver 470 or later",
            ) from error
        function.argtypes, function.restype = list(parameters), c_int
    return library
