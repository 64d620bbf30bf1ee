"""The input of a compiler (BuildSpec) and its result (Engine): the fused layers, and the landing of
the planned precisions. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Self

from optkit.facts.dtypes import DTYPES
from optkit.facts.errors import Impossible
from optkit.facts.plain_record import PlainRecord

UNKNOWN_DTYPE = "unknown"  # for a tensor whose type the compiler does not report


@dataclass(frozen=True)
class LayerTensor(PlainRecord):
    """One tensor at the border of a fused layer. A dimension of -1 is dynamic (its size is
    unknown)."""

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
class FusedLayer(PlainRecord):
    """One layer of a compiled engine, as the engine's layer list describes it."""

    name: str
    kind: str
    """gemm, correlation, kgen, …; for ONNX Runtime the type of the ONNX operator."""
    inputs: tuple[LayerTensor, ...]
    constants: tuple[LayerTensor, ...]
    outputs: tuple[LayerTensor, ...]
    nodes: tuple[str, ...]
    """The ONNX nodes from which it was fused."""
    products: tuple[str, ...] = ()
    """The Conv, MatMul and Gemm nodes that this layer computes."""
    dtype: str | None = None  # None: it is no product, or the dtype is not reported
    """The dtype in which it multiplies."""
    weight_dtype: str | None = None  # None: it reads none
    """The dtype of its constant weight."""

    @property
    def bytes_moved(self) -> int | None:
        """Bytes of activations that the layer reads and writes, without weights; None while a
        dimension is dynamic."""
        sizes = [t.bytes for t in (*self.inputs, *self.outputs)]
        return None if any(s is None for s in sizes) else sum(s for s in sizes if s is not None)

    @property
    def constant_bytes(self) -> int:
        return sum(t.bytes or 0 for t in self.constants)


@dataclass(frozen=True)
class LandingRow(PlainRecord):
    """One planned node, and the precision in which it runs."""

    node: str
    op: str
    planned: str
    """The planned precision, such as `int8`."""
    landed: bool | None
    """Null if the compiler does not report it."""
    dtype: str | None
    """The dtype of the first input of the fused layer; for weight-only precisions that of the
    weight. Null: no layer names the node."""
    layer: str | None
    note: str | None = None
    """Why it has not landed although its weight is stored as planned."""


@dataclass(frozen=True)
class Landing:
    """Planned and landed nodes, counted in ONNX nodes (Conv, MatMul, Gemm with a constant weight).
    For nodes in `unknown` the compiler does not report in which dtype they multiply."""

    planned: int
    landed: int
    by_dtype: dict[str, int]
    rows: tuple[LandingRow, ...] = ()
    activations: tuple[LandingRow, ...] = ()  # MatMuls of two activations, listed separately
    unknown: int = 0


SEARCH_MINUTES = "search_minutes"
"""The option of compilers that time kernels on the device: how long they search for faster ones."""


@dataclass(frozen=True)
class BuildSpec:
    """The specification for a backend: pure data, shown before any work, and part of the build's
    digest.

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
        """The specification with these options of the user. Raises Impossible for an option that
        the backend does not have."""
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
    """A compiled engine: its file (relative to the folder of the step), fused layers and landing.

    `layers` are those of the engine in the artifact. `bytes_moved` is counted at the batch size
    `batch`. The layer list of a dynamic engine has no sizes, so the same graph is compiled again
    with static shapes (`static_layers`). None if the backend reports no sizes of tensors.
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
        """The memory on the device according to the builder: weights, and activations (with the
        scratch memory of kernels) at the largest sizes. None if the builder does not report it."""
        kinds = ("weights", "activation", "device_persistent")
        return sum(self.memory.get(kind, 0) for kind in kinds) or None
