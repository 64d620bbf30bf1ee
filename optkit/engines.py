"""What a compiler is asked for (BuildSpec) and what comes back (Engine): its fused layers, and
where the planned precisions landed. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Self

from optkit.dtypes import DTYPES
from optkit.errors import Impossible

UNKNOWN_DTYPE = "unknown"  # of a tensor whose type the compiler does not tell


@dataclass(frozen=True)
class LayerTensor:
    """One tensor at a fused layer's border. A dimension of -1 is dynamic (size unknown)."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # a key of DTYPES, or UNKNOWN_DTYPE

    @property
    def bytes(self) -> int | None:
        """Size in bytes; None while a dimension is dynamic or the type is none of DTYPES."""
        if any(d < 0 for d in self.shape) or self.dtype not in DTYPES:
            return None
        return (prod(self.shape) * DTYPES[self.dtype].bits + 7) // 8


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
    options: Mapping[str, object] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def asking(self, wanted: Mapping[str, object]) -> Self:
        """With these options as somebody wants them. Raises Impossible for one that the backend
        does not have."""
        options = {**self.options, "workspace_bytes": self.workspace_bytes}
        for name in wanted:
            if options.get(name) is None:
                raise Impossible(
                    f"{self.backend} has no option {name}",
                    where=f"compiler.{name} for {self.target}",
                    hint=f"remove it; the options of {self.backend} are {', '.join(options)}",
                )
        asked = {**options, **wanted}
        given = asked.pop("workspace_bytes")
        scratch = given if isinstance(given, int) else None
        reasons = {**self.reasons, **dict.fromkeys(wanted, "the recipe asks for it")}
        return replace(self, workspace_bytes=scratch, options=asked, reasons=reasons)


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
