"""The words every backend shares: what is asked (BuildSpec), what comes back (Engine), what runs
it (Session).

Pure data and Protocols: importing this module loads no native library. A backend is one module and
one line in BACKENDS; measuring and reporting never ask which backend they hold.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol, Self, runtime_checkable

import ml_dtypes  # noqa: F401  from here on numpy knows bfloat16 by its name
import numpy as np

from optkit.errors import Impossible, unknown_name
from optkit.precision import NumberFormat

_PLUS = " + "

Feed = dict[str, np.ndarray]
"""Input (or output) arrays by name; axis 0 is the batch where the model has one."""

Progress = Callable[[str, float], None]
"""`progress(what, fraction)` with fraction in [0, 1]."""


class Evidence(StrEnum):
    """How a figure is known. Two of them are never blurred."""

    MEASURED = "measured"  # ran on the target
    COMPILED = "compiled"  # an engine for the target exists, not run
    SIMULATED = "simulated"  # the same Q/DQ graph, run by ONNX Runtime on a CPU
    PREDICTED = "predicted"  # a model's value, with its interval
    PENDING = "pending"  # needs a host that has the target


@dataclass(frozen=True)
class TensorInfo:
    """Name, dtype (numpy's name, e.g. "float32") and shape; a str dimension is a dynamic axis, or
    a sum of axes ("past_sequence + sequence")."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


def axes_of(shape: Iterable[int | str]) -> tuple[str, ...]:
    """The axes that a shape names, each once; a dimension may be a sum of them: "past + new"."""
    terms = (term for dim in shape if isinstance(dim, str) for term in dim.split(_PLUS))
    return tuple(dict.fromkeys(term for term in terms if not term.isdecimal()))


def size_of(dim: int | str, sizes: Mapping[str, int]) -> int:
    """The size of one dimension at these sizes of the axes. KeyError: an axis without one."""
    if isinstance(dim, int):
        return dim
    return sum(int(term) if term.isdecimal() else sizes[term] for term in dim.split(_PLUS))


def with_sizes(dim: int | str, sizes: Mapping[str, int]) -> int | str:
    """The dimension with these axes of a fixed size; of a sum, what is known stands behind."""
    free = [axis for axis in axes_of([dim]) if axis not in sizes]
    known = size_of(dim, {**dict.fromkeys(free, 0), **sizes})
    return _PLUS.join([*free, *([str(known)] if known else [])]) if free else known


def batch_axis(inputs: Iterable[TensorInfo]) -> int | str | None:
    """What counts samples: axis 0 of the first input that has axes, its name or its fixed size.

    None where no input has axes: every feed is one sample.
    """
    return next((info.shape[0] for info in inputs if info.shape), None)


def batched(inputs: Collection[TensorInfo]) -> frozenset[str]:
    """The inputs whose axis 0 counts samples: those that share `batch_axis`."""
    axis = batch_axis(inputs)
    return frozenset(info.name for info in inputs if info.shape and info.shape[0] == axis)


def count_samples(feed: Feed) -> int:
    """Samples in a feed whose arrays stand in the order of the inputs, as a spool yields them."""
    return next((len(array) for array in feed.values() if array.ndim), 1)


def narrowed(feed: Feed, inputs: Iterable[TensorInfo]) -> Feed:
    """A feed of the FP32 graph for its cast, which takes the caches of a decoder in half."""
    halves = {info.name: info.dtype for info in inputs if info.dtype in ("float16", "bfloat16")}
    return {**feed, **{name: feed[name].astype(halves[name]) for name in halves.keys() & feed}}


# bits per element by the dtype names that layer lists use
DTYPE_BITS: Mapping[str, int] = MappingProxyType(
    {
        "float64": 64, "float32": 32, "float16": 16, "bfloat16": 16, "float8e4m3fn": 8,
        "float4e2m1": 4, "int64": 64, "int32": 32, "int16": 16, "int8": 8, "int4": 4, "uint64": 64,
        "uint32": 32, "uint16": 16, "uint8": 8, "uint4": 4, "bool": 8,
    }
)  # fmt: skip


UNKNOWN_DTYPE = "unknown"  # of a tensor whose type the compiler does not tell


@dataclass(frozen=True)
class LayerTensor:
    """One tensor at a fused layer's border. A dimension of -1 is dynamic (size unknown)."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # numpy-style name, a key of DTYPE_BITS; or UNKNOWN_DTYPE

    @property
    def bytes(self) -> int | None:
        """Size in bytes; None while a dimension is dynamic or the type is none of DTYPE_BITS."""
        if any(d < 0 for d in self.shape) or self.dtype not in DTYPE_BITS:
            return None
        return (prod(self.shape) * DTYPE_BITS[self.dtype] + 7) // 8


@dataclass(frozen=True)
class FusedLayer:
    """One layer of a compiled engine, as its own layer list states it."""

    name: str
    kind: str  # gemm, correlation, kgen, runtime_fusion, ... or an ONNX op type for ONNX Runtime
    inputs: tuple[LayerTensor, ...]
    constants: tuple[LayerTensor, ...]
    outputs: tuple[LayerTensor, ...]
    nodes: tuple[str, ...]  # names of the ONNX nodes it came from
    products: tuple[str, ...] = ()  # those Conv, MatMul, Gemm among them that it multiplies
    dtype: str | None = None  # what it multiplies in; None: no product, or not told
    weight_dtype: str | None = None  # what it reads of the constant weight; None: it reads none

    @property
    def bytes_moved(self) -> int | None:
        """Activation bytes read and written by the layer (weights apart); None while dynamic."""
        sizes = [t.bytes for t in (*self.inputs, *self.outputs)]
        return None if any(s is None for s in sizes) else sum(s for s in sizes if s is not None)

    @property
    def constant_bytes(self) -> int:
        return sum(t.bytes or 0 for t in self.constants)


@dataclass(frozen=True)
class LandingRow:
    """One planned node and what became of it. `landed` None: the compiler does not tell."""

    node: str
    op: str
    planned: str  # precision name, e.g. "int8"
    landed: bool | None
    dtype: str | None  # dtype of the first input of the fused layer, of weight-only precisions that
    # of the weight (None: no layer names the node)
    layer: str | None
    note: str | None = None  # what keeps it from counting although its weight is stored as planned


@dataclass(frozen=True)
class Landing:
    """Planned against real, counted in ONNX nodes (Conv, MatMul, Gemm with a constant weight).
    Of `unknown` nodes the compiler does not tell what they multiply in."""

    planned: int
    landed: int
    by_dtype: dict[str, int]
    rows: tuple[LandingRow, ...] = ()
    activations: tuple[LandingRow, ...] = ()  # MatMuls of two activations, listed apart
    unknown: int = 0


@dataclass(frozen=True)
class AxisRange:
    """min/opt/max of one dynamic axis (or a fixed size, all three equal). `min` 0: may be empty."""

    min: int
    opt: int
    max: int


@dataclass(frozen=True)
class BuildSpec:
    """What a backend will be asked: pure data, shown before work, hashed into the build's identity.

    `profile`: input name → (min, opt, max) shapes. `reasons`: option → why it has this value.
    """

    backend: str
    target: str
    compute_capability: str | None
    precision: str
    profile: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]
    workspace_bytes: int | None
    options: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def asking(self, wanted: Mapping[str, Any]) -> Self:
        """With these options as somebody wants them. Raises Impossible for one that the backend
        does not have."""
        options = {**self.options, "workspace_bytes": self.workspace_bytes}
        for name in wanted:
            if options.get(name) is None:
                raise Impossible(
                    f"{self.backend} has no option {name}",
                    where=f"compiler.{name} for {self.target}",
                    hint=f"leave it out; {self.backend} is asked {', '.join(options)}",
                )
        asked = {**options, **wanted}
        scratch = asked.pop("workspace_bytes")
        reasons = {**self.reasons, **dict.fromkeys(wanted, "the recipe asks for it")}
        return replace(self, workspace_bytes=scratch, options=asked, reasons=reasons)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        profile = {
            name: tuple(tuple(int(d) for d in shape) for shape in shapes)
            for name, shapes in data["profile"].items()
        }
        return cls(**{**data, "profile": profile})


@dataclass(frozen=True)
class Engine:
    """A compiled engine: its file (relative to the step's folder), fused layers and landing.

    `layers` come from the very engine that is shipped. `bytes_moved` is counted at `batch` (a
    dynamic engine's own list has no sizes, so the same graph is compiled once more with static
    shapes for the count, `static_layers`); None where the backend gives no tensor sizes.
    """

    backend: str
    target: str
    file: str
    bytes: int
    layers: tuple[FusedLayer, ...]
    landing: Landing
    batch: int | None = None
    bytes_moved: int | None = None
    static_layers: tuple[FusedLayer, ...] = ()
    memory: dict[str, int] = field(default_factory=dict)  # bytes by kind, as the builder reported
    versions: dict[str, str] = field(default_factory=dict)
    note: str | None = None

    @property
    def stated_bytes(self) -> int | None:
        """What it takes on its device, as the builder states it: weights, and activations (scratch
        of kernels among them) at the largest sizes. None where it states nothing."""
        kinds = ("weights", "activation", "device_persistent")
        return sum(self.memory.get(kind, 0) for kind in kinds) or None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(
            **{
                **data,
                "layers": layers_from_json(data["layers"]),
                "static_layers": layers_from_json(data["static_layers"]),
                "landing": landing_from_json(data["landing"]),
            }
        )


def layers_from_json(rows: list[dict[str, Any]]) -> tuple[FusedLayer, ...]:
    def tensors(items: list[dict[str, Any]]) -> tuple[LayerTensor, ...]:
        return tuple(LayerTensor(t["name"], tuple(t["shape"]), t["dtype"]) for t in items)

    return tuple(
        FusedLayer(
            r["name"], r["kind"], tensors(r["inputs"]), tensors(r["constants"]),
            tensors(r["outputs"]), tuple(r["nodes"]), tuple(r["products"]), r["dtype"],
            r.get("weight_dtype"),
        )
        for r in rows
    )  # fmt: skip


def landing_from_json(data: dict[str, Any]) -> Landing:
    rows = tuple(LandingRow(**row) for row in data["rows"])
    activations = tuple(LandingRow(**row) for row in data["activations"])
    unknown = data.get("unknown", 0)
    return Landing(data["planned"], data["landed"], data["by_dtype"], rows, activations, unknown)


@dataclass(frozen=True)
class PlacementRules:
    """What a backend wants of one precision in a graph, on one target: pure data, no native code
    behind it. `activation` None: only weights are quantized.

    The quantizer obeys them; the landing report checks them against the compiled engine.
    """

    activation: NumberFormat | None
    weight: NumberFormat
    ops: frozenset[str]  # op types with a constant weight that may be quantized
    residual_adds: bool  # quantize the other input of an Add that follows a quantized Conv (never
    # of one that follows a MatMul: that would put a transformer's residual stream into 8 bits)
    quantize_outputs: frozenset[str]  # op types that only compute in integers when their output
    # (behind a Relu or Add that follows) is quantized too
    float_output: bool  # leave the graph's last layer with a float output
    excluded: Mapping[str, str] = field(default_factory=dict)  # op type -> why never on this target
    min_conv_channels: int = 1  # a Conv with fewer input channels (all groups) stays in float
    thin_conv: str = "float is faster"  # why
    grouped_conv: bool = True  # a Conv in groups may be quantized
    max_kernel: int | None = None  # a Conv whose kernel has more elements stays in float
    blocks: Literal["any", "halving", "powers"] = "any"  # block sizes: any, those that divide the
    # summed axis into two or more, or those that divide it and are powers of two
    free_bias: bool = False  # a product takes a bias at no cost, so one may be added
    embeddings: bool = False  # a table of embeddings may be stored in 8 bits per row
    integer_bias: frozenset[str] = frozenset()  # op types whose bias must be int32 behind a
    # DequantizeLinear of scale activation × weight, or they stay float
    split_scale: frozenset[str] = frozenset()  # op types whose per-channel weight scale is split:
    # a scalar in the weight's DequantizeLinear, the rest a Mul (and the bias an Add) behind it
    tensor_ops: frozenset[str] = frozenset()  # op types whose weights get one scale per tensor
    gemm_for_matrices: bool = False  # write a MatMul of two matrices (rank 2) as Gemm
    nbits_accuracy: int | None = None  # write a product whose weight alone is quantized as
    # MatMulNBits (com.microsoft) of this accuracy level: 0 multiplies in floats, 4 in 8 bits
    last: str | None = None  # the precision of the graph's last layers, where it is another one

    def weight_of(self, op: str) -> NumberFormat:
        """The weight format of an op type."""
        one = op in self.tensor_ops and self.weight.granularity == "channel"
        return replace(self.weight, granularity="tensor") if one else self.weight

    def to_json(self) -> dict[str, Any]:
        sets = {key: sorted(getattr(self, key)) for key in _RULE_SETS}
        return {**asdict(self), **sets, "excluded": dict(self.excluded)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        formats = {key: data[key] and NumberFormat(**data[key]) for key in ("activation", "weight")}
        sets = {key: frozenset(data[key]) for key in _RULE_SETS}
        return cls(**{**data, **formats, **sets})


_RULE_SETS = ("ops", "quantize_outputs", "integer_bias", "split_scale", "tensor_ops")


class Loop(Protocol):
    """A session run again and again on its own outputs. `run` takes the inputs that are not carried
    and returns the outputs that are not."""

    def run(self, feed: Feed) -> Feed: ...


class Session(Protocol):
    """A loaded model that runs. Context manager; `run` takes and returns arrays by name."""

    @property
    def inputs(self) -> tuple[TensorInfo, ...]: ...

    @property
    def outputs(self) -> tuple[TensorInfo, ...]: ...

    def run(self, feed: Feed) -> Feed: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


@dataclass(frozen=True)
class Phases:
    """One run on a device, in milliseconds, as trtexec tells it: inputs copied there, its own work,
    outputs copied back, each timed in the stream; and what the host took to enqueue the work."""

    upload_ms: float
    compute_ms: float
    download_ms: float
    enqueue_ms: float


@runtime_checkable
class Phased(Session, Protocol):
    """A session on a device that times the phases of a run apart."""

    def phases(self, feed: Feed) -> Phases: ...


@runtime_checkable
class Noted(Session, Protocol):
    """A session that may not do all that it was asked for."""

    note: str | None  # what, and why


@runtime_checkable
class Profiled(Session, Protocol):
    """A session on a device that times its own layers apart."""

    def layer_times(
        self, feed: Feed, products: Collection[str], seconds: float
    ) -> list[tuple[FusedLayer, float]]:
        """The engine's layers and the milliseconds of each, the median over runs for about so many
        seconds. `products`: names of the ONNX nodes that multiply (Conv, MatMul, Gemm).

        Closes the session: what was profiled once is no longer what users run."""


class Recurrent(Session, Protocol):
    """A session that can also be run on its own outputs."""

    def loop(self, carried: Mapping[str, str], start: Feed, room: int | None = None) -> Loop:
        """Runs whose outputs come back as inputs, `carried`: output → input of the next run.
        `start`: those inputs of the first run, and any others that stay the same in all of them.
        What is carried never leaves the runtime.

        `room`: the most rows that what grows will have. A graph that can (`decoder.IN_PLACE`) then
        writes into one buffer of that many; another makes a longer tensor in each run."""


class Backend(Protocol):
    """One compiler/runtime. Constructing it loads nothing native; `check` does and may raise."""

    name: str

    def check(self) -> None:
        """Raise ToolchainMissing (naming the extra) unless the library is here and usable."""

    def offline(self, target: Any) -> str | None:
        """None when this machine can compile for the target, else the reason in words. Pure: no
        library is loaded, so it answers also where none is installed."""

    def versions(self) -> dict[str, str]:
        """Distribution name → version of what compiles, read without importing it."""

    def refuses(self, target: Any, precision: str) -> str | None:
        """Why this backend never runs a precision on a target that has it; None where it does.
        Pure. (What the hardware lacks is in the target's matrix.)"""

    def rules(self, target: Any, precision: str) -> PlacementRules:
        """Placement rules of a quantized precision on a target (`target.Target`). Pure.

        Raises Impossible, with the reason, for a precision that this backend does not run.
        """

    def spec(
        self,
        inputs: tuple[TensorInfo, ...],
        target: Any,
        precision: str,
        axes: Mapping[str, AxisRange],
    ) -> BuildSpec:
        """Plan a build. Pure. Raises UsageError for ranges with min > opt or opt > max."""

    def accept(self, model: Path) -> None:
        """Raise InputRefused, with the remedy, for an ONNX file of operators that `compile` would
        refuse, as far as that is known without compiling. Runs in a worker."""

    def compile(
        self,
        model: Path,
        spec: BuildSpec,
        planned: Mapping[str, str],
        out: Path,
        progress: Progress,
        kept: Path | None = None,
    ) -> Engine:
        """Compile `model` (ONNX file) into folder `out`; `planned`: node name → precision; `kept`:
        folder of what a library learned on this device, where it may learn anything.

        Runs in a worker. Raises ToolchainMissing, InputRefused (naming the node) or WorkerFailed.
        """

    def session(self, model: Path, **options: Any) -> Recurrent:
        """Load an engine (or ONNX file) for running on this machine. `target`, an option that all
        take: the one it was built for; what is bound to a device raises ToolchainMissing on
        another."""


BACKENDS: Mapping[str, str] = MappingProxyType(
    {
        "onnxruntime": "optkit.backends.onnxruntime:OnnxRuntime",
        "onnxruntime-coreml": "optkit.backends.ort_providers:CoreMLProvider",
        "onnxruntime-cuda": "optkit.backends.ort_providers:CudaProvider",
        "onnxruntime-tensorrt": "optkit.backends.ort_providers:TensorRTProvider",
        "tensorrt": "optkit.backends.tensorrt:TensorRT",
        "tensorrt-rtx": "optkit.backends.tensorrt_rtx:TensorRTRTX",
    }
)

PROVIDERS = ("onnxruntime-coreml", "onnxruntime-cuda", "onnxruntime-tensorrt")
"""The backends that run any graph on a device, without an engine."""


def backend(name: str) -> Backend:
    """The backend of that name, its module loaded now. Raises UnknownName."""
    if name not in BACKENDS:
        raise unknown_name("backend", name, BACKENDS)
    module, _, attribute = BACKENDS[name].partition(":")
    found: Backend = getattr(importlib.import_module(module), attribute)()
    return found
