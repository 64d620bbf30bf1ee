"""A graph loaded by ONNX Runtime: single runs, runs on its own outputs, and errors that name the
node.

Every feed is checked before it reaches native code.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Self

import numpy as np

from optkit.craft.backends.feed_checks import check_feed, closed, fits
from optkit.craft.backends.kernel_list import NUMPY
from optkit.craft.backends.ort_objects import (
    Binding,
    InferenceSession,
    NativeOptions,
    NodeArg,
    Value,
)
from optkit.facts.errors import InputRefused, OptkitError, ToolchainMissing, WorkerFailed
from optkit.facts.tensors import Feed, TensorInfo, batch_axis, batched, count_samples, leading
from optkit.ground.decoder import IN_PLACE, WINDOW, Decoder, is_state, require_codes
from optkit.ground.operator_library import OperatorLibrary
from optkit.ground.store import io_cause, storage_errors

Providers = Sequence[tuple[str, Mapping[str, str]]]
CPU = ("CPUExecutionProvider", MappingProxyType[str, str]({}))

# GroupQueryAttention, with several new rows after a past
_SINGLE = "batch_size must be 1 when sequence_length > 1 and past context is given"

# The first runs before Q/DQ pairs are absorbed: the Gemm that it makes of MatMul + Add stays in
# float. The second gives a float weight between Q/DQ pairs codes of one scale for the whole tensor:
# the session would not compute what its graph says.
DISABLED = ("MatMulAddFusion", "WeightBiasQuantization")


class OrtSession:
    """A loaded graph. `providers`: the execution providers of its nodes, in order of preference,
    with options; those of a plugin are in `options` already. `device`: the place of a loop's
    values."""

    def __init__(
        self,
        model: Path,
        options: NativeOptions,
        providers: Providers = (CPU,),
        device: str = "cpu",
        disabled: Sequence[str] = DISABLED,
    ) -> None:
        ort, asked = library(), [name for name, _ in providers]
        named = [] if options.has_providers() else providers
        self._where = str(model)
        open_session = partial(
            ort.InferenceSession,
            str(model),
            options,
            providers=[(name, dict(settings)) for name, settings in named],
            disabled_optimizers=list(disabled),
            enable_fallback=0,
        )
        self._loaded: InferenceSession | None
        try:
            self._loaded = _with_operators(open_session, model, options)
        except OptkitError:
            raise
        except Exception as error:  # ONNX Runtime's exceptions derive directly from Exception
            with storage_errors(model):
                raise io_cause(error) or refusal(error, str(model)) from error
        if (given := self._session.get_providers()) != asked:
            raise ToolchainMissing(
                f"the requested providers are {asked}, but the session has {given}",
                where=str(model),
            )
        self._device = device
        self.inputs = tuple(_info(node) for node in self._session.get_inputs())
        self.outputs = tuple(_info(node) for node in self._session.get_outputs())
        self._adapter: Feed = {}
        decoder = Decoder.of(self.inputs, self.outputs)
        if decoder is not None and decoder.codes is not None:
            require_codes(library().__version__, self._where)

    def adapt(self, parameters: Feed) -> None:
        """From now on, run with these values instead of initializers of the graph. Raises
        InputRefused for a name or a shape that the graph does not have."""
        replaceable = map(_info, self._session.get_overridable_initializers())
        places = {info.name: info for info in replaceable}
        for name, array in parameters.items():
            if name not in places or not fits(array.shape, places[name].shape, {}):
                shape = f" of shape {list(array.shape)}" if name in places else ""
                raise InputRefused(
                    f"the graph has no place for {name}{shape}", where=self._where,
                    hint="the adapter is one of another graph",
                )  # fmt: skip
        self._adapter = parameters

    def run(self, feed: Feed) -> Feed:
        """Outputs by name. Raises InputRefused, with the name of the input, for a feed that does
        not fit."""
        session = self._session  # it stays loaded until this run ends, even if `close` is called
        check_feed(feed, self.inputs)
        names = [tensor.name for tensor in self.outputs]
        try:
            found = session.run(names, {**feed, **self._adapter})
        except Exception as error:
            if _SINGLE in str(error) and isinstance(batch_axis(self.inputs), str):
                return self._one_by_one(feed)
            raise refusal(error, self._where) from error
        return dict(zip(names, found, strict=True))

    def _one_by_one(self, feed: Feed) -> Feed:
        """The outputs of each sample, one run per sample."""
        many = batched(self.inputs)
        found = [
            self.run({name: x[at : at + 1] if name in many else x for name, x in feed.items()})
            for at in range(count_samples({name: feed[name] for name in many}))
        ]
        return {name: np.concatenate([one[name] for one in found]) for name in found[0]}

    def loop(self, carried: Mapping[str, str], start: Feed, room: int | None = None) -> OrtLoop:
        """Runs in which the outputs `carried` are inputs of the next run; see `runtimes.Recurrent`.
        Raises InputRefused for a `start` that does not fit."""
        taken = set(carried.values())
        check_feed(start, [info for info in self.inputs if info.name in taken | start.keys()])
        given = [info for info in self.inputs if info.name not in start]
        returned = [info for info in self.outputs if info.name not in carried]
        placed = {} if room is None else self._placed(carried)
        widened = {name: _widened(start[name], room or 0) for name in placed.values()}
        start = {**start, **widened, **self._adapter}
        window = self._noted.get(WINDOW) if placed and self._device == "cpu" else None
        return OrtLoop(
            self._session, given, returned, carried, start, placed, self._where, self._device,
            None if window is None else int(window),
        )  # fmt: skip

    def profile(self) -> list[dict[str, Any]]:
        """End profiling (which the options must have turned on) and return its events."""
        path = Path(self._session.end_profiling())
        events: list[dict[str, Any]] = json.loads(path.read_text())
        return events

    def close(self) -> None:
        """Forget the graph. Runs in other threads end as usual; a later one raises UsageError."""
        self._loaded = None

    @property
    def _session(self) -> InferenceSession:
        loaded = self._loaded
        if loaded is None:
            raise closed(self._where)
        return loaded

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def _noted(self) -> Mapping[str, str]:
        return self._session.get_modelmeta().custom_metadata_map

    def _placed(self, carried: Mapping[str, str]) -> dict[str, str]:
        """Those of the carried outputs that grow in place: all but states, or none."""
        grown = {out: into for out, into in carried.items() if not is_state(into)}
        return grown if grown.keys() <= set(json.loads(self._noted.get(IN_PLACE, "[]"))) else {}


class OrtLoop:
    """A graph that runs on its own outputs. They stay where the kernels wrote them: `placed`
    outputs in the buffer from which they were read, the others in new tensors in each run.
    `window`: that of the values in place, if a new row does not read all rows before it."""

    def __init__(
        self,
        session: InferenceSession,
        given: Sequence[TensorInfo],
        returned: Sequence[TensorInfo],
        carried: Mapping[str, str],
        start: Feed,
        placed: Mapping[str, str],
        where: str,
        device: str,
        window: int | None = None,
    ) -> None:
        self._session, self._given, self._where = session, given, where
        self._window = window
        self._device = device
        self._binding = session.io_binding()
        self._grown = {out: into for out, into in carried.items() if out not in placed}
        self._placed = placed
        self._returned = [info.name for info in returned]
        self._axes = [dim for info in returned for dim in info.shape if isinstance(dim, str)]
        self._fed: Feed = {}
        self._sizes: list[int | None] | None = None  # of the bound outputs
        self._found: dict[str, Value] = {}
        # owns the memory
        self._state = {name: held(array, device) for name, array in start.items()}
        for name, value in self._state.items():
            self._binding.bind_ortvalue_input(name, value)
        for out, into in self._placed.items():
            self._binding.bind_ortvalue_output(out, self._state[into])

    def run(self, feed: Feed) -> Feed:
        """The outputs that are not carried. Raises InputRefused, as a session does."""
        sizes = check_feed(feed, self._given)
        for name, array in feed.items():
            bound = self._fed.get(name)
            if bound is not None and bound.shape == array.shape:
                bound[...] = array
            else:
                self._bind(name, np.array(array, order="C"))
        wanted = [sizes.get(axis) for axis in self._axes]
        anew = bool(self._grown) or None in wanted or wanted != self._sizes
        if anew:  # otherwise the bound buffer has the right size, and is written again
            for name in (*self._returned, *self._grown):
                self._binding.bind_output(name, self._device)
        run_bound(self._session, self._binding, self._where)
        if anew:
            made = [*self._returned, *self._grown]
            # in the order in which they were bound
            found = self._binding.get_outputs_as_ortvaluevector()
            first = len(found) - len(made)
            self._found = {name: found[first + at] for at, name in enumerate(made)}
            self._sizes = wanted
        for out, into in self._grown.items():
            self._binding.bind_ortvalue_input(into, library().OrtValue(self._found[out]))
        # a view; the next run overwrites its memory
        return {name: self._found[name].numpy().copy() for name in self._returned}

    def cut(self, rows: int, axis: int) -> None:
        """Keep only the first rows; see `runtimes.Loop`. On a device they pass through the host."""
        for out, into in self._grown.items():
            cache = self._found.get(out, self._state[into]).numpy()  # a view
            self._state[into] = held(leading(cache, rows, axis).copy(), self._device)
            self._binding.bind_ortvalue_input(into, self._state[into])

    @property
    def sliding(self) -> Self | None:
        return None if self._window is None else self

    @property
    def window(self) -> int:
        assert self._window is not None
        return self._window

    def slide(self, filled: int, kept: int, room: int) -> None:
        """Keep only the last rows; see `runtimes.Sliding`."""
        for out, into in self._placed.items():
            cache = self._state[into].numpy()  # a view
            rows = cache[:, :, filled - kept : filled]
            if cache.shape[2] == room:
                cache[:, :, :kept] = rows.copy()
                continue
            self._state[into] = held(_widened(rows, room), self._device)
            self._binding.bind_ortvalue_input(into, self._state[into])
            self._binding.bind_ortvalue_output(out, self._state[into])

    def _bind(self, name: str, array: np.ndarray) -> None:
        """Bind an array of optkit. On the CPU it is read in place, so it may be overwritten."""
        self._binding.bind_cpu_input(name, array)
        if self._device == "cpu":
            self._fed[name] = array


def run_bound(session: InferenceSession, binding: Binding, where: str) -> None:
    """Run with the bound values. Raises InputRefused or WorkerFailed, with the name of the node."""
    try:
        session.run_with_iobinding(binding)
    except Exception as error:
        raise refusal(error, where) from error


def held(array: np.ndarray, device: str) -> Value:
    """A value on the device. On the CPU it uses the memory of the array, and keeps the array
    alive."""
    value: Value = library().OrtValue.ortvalue_from_numpy(np.asarray(array, order="C"), device, 0)
    return value


def _widened(cache: np.ndarray, rows: int) -> np.ndarray:
    """[B, G, P, D] → a buffer [B, G, rows, D] whose first P rows are the same."""
    batch, heads, past, size = cache.shape
    found = np.zeros((batch, heads, max(rows, past), size), cache.dtype)
    found[:, :, :past] = cache
    return found


def library() -> ModuleType:
    """The module. Raises ToolchainMissing if it does not load."""
    try:
        return importlib.import_module("onnxruntime")
    except ImportError as error:
        raise ToolchainMissing(
            f"ONNX Runtime does not load: {error}", hint="pip install 'optkit[cpu]'"
        ) from error


# the library neither takes nor returns them as numpy arrays
_NOT_ARRAYS = ("bfloat16", "float8", "float4", "int4", "uint4", "int2")


def _info(node: NodeArg) -> TensorInfo:
    dtype = NUMPY.get(node.type.removeprefix("tensor(").removesuffix(")"))
    if dtype is None or dtype.startswith(_NOT_ARRAYS):
        raise InputRefused(
            f"type {node.type} is not supported",
            where=f"value {node.name!r}",
            hint="inputs and outputs must be arrays of numbers or bools: cast it in the model",
        )
    dims = (dim or f"{node.name}.{axis}" for axis, dim in enumerate(node.shape))
    return TensorInfo(node.name, dtype, tuple(dims))


_UNKNOWN = "is not a registered function/op"
_NODE = re.compile(
    r"Name:'(.*?)' |node with name '(.*?)'|[Nn]ode:? ?\((\S+?)\)|Node, \(\"(.*?)\", "
)
_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
_PLACE = re.compile(r"/onnxruntime_src/\S+ .*?\) ")  # a file, a line and a C++ signature


def _with_operators(
    open_session: Callable[[], InferenceSession], model: Path, options: NativeOptions
) -> InferenceSession:
    """The session; if the graph has an operator that ONNX Runtime lacks, with the library that the
    graph names. Raises UnsafeFile unless it is trusted, InputRefused if it does not load, and
    exceptions of ONNX Runtime."""
    try:
        return open_session()
    except Exception as error:
        operators = OperatorLibrary.of(model) if _UNKNOWN in str(error) else None
        if operators is None:
            raise
    place = operators.open_path(str(model))
    try:
        options.register_custom_ops_library(str(place))
    except Exception as error:
        raise InputRefused(
            f"ONNX Runtime does not load the library of its operators: {error}",
            where=operators.file,
            hint="it must export RegisterCustomOps, and be built for this or an older version of "
            "ONNX Runtime",
        ) from error
    return open_session()


def refusal(error: Exception, where: str) -> OptkitError:
    """The typed error for an exception of ONNX Runtime, with the node that it names."""
    text = _PLACE.sub("", _PREFIX.sub("", str(error).strip()))
    lowered = text.lower()
    if "max supported ir version" in lowered or "under development" in lowered:
        return ToolchainMissing(text, where=where, hint="a newer onnxruntime is needed")
    if "failed to allocate memory" in lowered or "bad_alloc" in lowered:
        return WorkerFailed(text, verdict="oom", where=where)
    match = _NODE.search(text)
    node = next((name for name in match.groups() if name), None) if match else None
    hint = None
    if "out of data bounds" in lowered:
        hint = (
            "an index of the inputs is outside the table of this node: give indices within its "
            "range, or tokens of the model's tokenizer"
        )
    if _UNKNOWN in text:
        hint = (
            "it is an operator that ONNX Runtime lacks: name the library that has it, with "
            "--set model.custom_ops=FILE.so --trust"
        )
    return InputRefused(text, where=f"{where}: node {node!r}" if node else where, hint=hint)
