"""A graph loaded by ONNX Runtime: runs, runs on its own outputs, errors that say which node.

Every feed is checked before native code sees it.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from optkit.backends.kernel_list import NUMPY
from optkit.decoder import IN_PLACE
from optkit.errors import InputRefused, OptkitError, ToolchainMissing, WorkerFailed
from optkit.runtime import Feed, TensorInfo

_PROVIDERS = ["CPUExecutionProvider"]

# MatMul + Add → Gemm runs before Q/DQ are absorbed; such a Gemm has a float bias and stays float.
DISABLED = ("MatMulAddFusion",)


class OrtSession:
    """A loaded graph."""

    def __init__(self, model: Path, options: Any) -> None:
        ort = library()
        try:
            self._session = ort.InferenceSession(
                str(model),
                options,
                providers=_PROVIDERS,
                disabled_optimizers=list(DISABLED),
                enable_fallback=0,
            )
        except Exception as error:  # ORT's own types derive from Exception directly
            raise _refusal(error, str(model)) from error
        if self._session.get_providers() != _PROVIDERS:
            raise ToolchainMissing(
                f"asked for {_PROVIDERS}, got {self._session.get_providers()}", where=str(model)
            )
        self.inputs = tuple(_info(node) for node in self._session.get_inputs())
        self.outputs = tuple(_info(node) for node in self._session.get_outputs())
        self._where = str(model)

    def run(self, feed: Feed) -> Feed:
        """Outputs by name. Raises InputRefused, naming the input, for a feed that does not fit."""
        check_feed(feed, self.inputs)
        names = [tensor.name for tensor in self.outputs]
        try:
            found = self._session.run(names, feed)
        except Exception as error:
            raise _refusal(error, self._where) from error
        return dict(zip(names, found, strict=True))

    def loop(self, carried: Mapping[str, str], start: Feed, room: int | None = None) -> OrtLoop:
        """Runs in which the outputs `carried` come back as inputs; see `runtime.Recurrent`. Raises
        InputRefused for a `start` that does not fit."""
        taken = set(carried.values())
        check_feed(start, [info for info in self.inputs if info.name in taken])
        given = [info for info in self.inputs if info.name not in taken]
        returned = [info.name for info in self.outputs if info.name not in carried]
        if room is not None and self._in_place(carried):
            start = {name: _widened(array, room) for name, array in start.items()}
        else:
            room = None
        return OrtLoop(
            self._session, given, returned, carried, start, room is not None, self._where
        )

    def profile(self) -> list[dict[str, Any]]:
        """End profiling (asked for in the options) and return its events."""
        path = Path(self._session.end_profiling())
        events: list[dict[str, Any]] = json.loads(path.read_text())
        return events

    def close(self) -> None:
        self._session = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _in_place(self, carried: Mapping[str, str]) -> bool:
        noted = self._session.get_modelmeta().custom_metadata_map.get(IN_PLACE, "[]")
        return carried.keys() <= set(json.loads(noted))


class OrtLoop:
    """A graph run on its own outputs, which stay where the kernels wrote them: `in_place`, where
    they were read from, else in tensors that are longer each time."""

    def __init__(
        self,
        session: Any,
        given: Sequence[TensorInfo],
        returned: Sequence[str],
        carried: Mapping[str, str],
        start: Feed,
        in_place: bool,
        where: str,
    ) -> None:
        self._session, self._given, self._where = session, given, where
        self._binding = session.io_binding()
        self._grown = {} if in_place else carried
        self._made = [*returned, *self._grown]  # anew in each run
        self._returned = returned
        self._state = {name: _held(array) for name, array in start.items()}  # owns the memory
        for out, into in carried.items():
            self._binding.bind_ortvalue_input(into, self._state[into])
            if in_place:
                self._binding.bind_ortvalue_output(out, self._state[into])

    def run(self, feed: Feed) -> Feed:
        """The outputs that are not carried. Raises InputRefused, as a session does."""
        check_feed(feed, self._given)
        held = {name: _held(array) for name, array in feed.items()}
        for name, value in held.items():
            self._binding.bind_ortvalue_input(name, value)
        for name in self._made:
            self._binding.bind_output(name)
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:
            raise _refusal(error, self._where) from error
        found = self._binding.get_outputs()[-len(self._made) :]
        outputs = dict(zip(self._made, found, strict=True))
        for out, into in self._grown.items():
            self._binding.bind_ortvalue_input(into, outputs[out])
        return {name: outputs[name].numpy() for name in self._returned}


def _held(array: np.ndarray) -> Any:
    """Backed by the array's memory, which it keeps."""
    return library().OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))


def _widened(cache: np.ndarray, rows: int) -> np.ndarray:
    """[B, G, P, D] → a buffer [B, G, rows, D] that begins with it."""
    batch, heads, past, size = cache.shape
    found = np.zeros((batch, heads, max(rows, past), size), cache.dtype)
    found[:, :, :past] = cache
    return found


def check_feed(feed: Feed, inputs: Sequence[TensorInfo]) -> None:
    """Raise InputRefused unless names, dtypes, ranks and sizes are those of the inputs, and a named
    axis has one size throughout."""
    known = {tensor.name: tensor for tensor in inputs}
    if missing := sorted(known.keys() - feed.keys()):
        raise InputRefused("the feed lacks this input", where=f"input {missing[0]!r}")
    if extra := sorted(feed.keys() - known.keys()):
        raise InputRefused(
            f"the model has no such input; it has {', '.join(known)}", where=f"input {extra[0]!r}"
        )
    sizes: dict[str, int] = {}
    for name, tensor in known.items():
        array, where = feed[name], f"input {name!r}"
        if array.dtype.name != tensor.dtype:
            raise InputRefused(f"dtype {array.dtype.name}, not {tensor.dtype}", where=where)
        fits = len(array.shape) == len(tensor.shape) and all(
            size == (dim if isinstance(dim, int) else sizes.setdefault(dim, size))
            for size, dim in zip(array.shape, tensor.shape, strict=True)
        )
        if not fits:
            known_sizes = "".join(f", {axis} = {size}" for axis, size in sizes.items())
            wanted = f"({', '.join(map(str, tensor.shape))})"
            raise InputRefused(
                f"shape {array.shape} does not fit {wanted}{known_sizes}", where=where
            )


def library() -> Any:
    """The module. Raises ToolchainMissing where it does not load."""
    try:
        return importlib.import_module("onnxruntime")
    except ImportError as error:
        raise ToolchainMissing(
            f"ONNX Runtime does not load: {error}", hint="pip install 'optkit[cpu]'"
        ) from error


def _info(node: Any) -> TensorInfo:
    dtype = NUMPY.get(node.type.removeprefix("tensor(").removesuffix(")"))
    if dtype is None:
        raise InputRefused(f"type {node.type} is not supported", where=f"value {node.name!r}")
    dims = (dim or f"{node.name}.{axis}" for axis, dim in enumerate(node.shape))
    return TensorInfo(node.name, dtype, tuple(dims))


_NODE = re.compile(
    r"Name:'(.*?)' |node with name '(.*?)'|[Nn]ode:? ?\((\S+?)\)|Node, \(\"(.*?)\", "
)
_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
_PLACE = re.compile(r"/onnxruntime_src/\S+ .*?\) ")  # a file, a line and a C++ signature


def _refusal(error: Exception, where: str) -> OptkitError:
    """The typed error for one of ONNX Runtime's, with the node it names."""
    text = _PLACE.sub("", _PREFIX.sub("", str(error).strip()))
    lowered = text.lower()
    if "max supported ir version" in lowered or "under development" in lowered:
        return ToolchainMissing(text, where=where, hint="a newer onnxruntime is needed")
    if "failed to allocate memory" in lowered or "bad_alloc" in lowered:
        return WorkerFailed(text, verdict="oom", where=where)
    match = _NODE.search(text)
    node = next((name for name in match.groups() if name), None) if match else None
    return InputRefused(text, where=f"{where}: node {node!r}" if node else where)
