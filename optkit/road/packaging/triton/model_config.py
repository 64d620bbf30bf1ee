"""Messages of Triton's model configuration, as far as optkit writes them (model_config.proto of
triton-inference-server/common, 2026-07-23)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from optkit.road.packaging.triton.pbtxt import Symbol

GPU, CPU = Symbol("KIND_GPU"), Symbol("KIND_CPU")
ONNXRUNTIME = ("onnxruntime_onnx", "onnxruntime")
TENSORRT = ("tensorrt_plan", "tensorrt")
"""Platform and backend. Both are written, because Triton refuses a pair that does not match."""

BASIC = -1
"""`GraphPolicy.level` for ONNX Runtime's basic optimizations; without it, Triton asks for all."""


@dataclass(frozen=True)
class Reshape:
    """The shape that the model sees instead of `dims`."""

    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class ModelTensor:
    """An input or an output. `label_filename`: only of an output."""

    name: str
    data_type: Symbol
    dims: tuple[int, ...]
    reshape: Reshape | None = None
    label_filename: str | None = None


@dataclass(frozen=True)
class Latest:
    num_versions: int = 1


@dataclass(frozen=True)
class VersionPolicy:
    latest: Latest = field(default=Latest())


@dataclass(frozen=True)
class GraphPolicy:
    level: int


@dataclass(frozen=True)
class CudaPolicy:
    graphs: bool


@dataclass(frozen=True)
class Accelerator:
    name: str
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Accelerators:
    gpu_execution_accelerator: tuple[Accelerator, ...]


@dataclass(frozen=True)
class OptimizationPolicy:
    graph: GraphPolicy | None = None
    cuda: CudaPolicy | None = None
    execution_accelerators: Accelerators | None = None


@dataclass(frozen=True)
class DynamicBatching:
    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_microseconds: int = 0


@dataclass(frozen=True)
class EnsembleStep:
    """A model of an ensemble. `input_map`: its input → the ensemble's tensor; `output_map`: its
    output → the ensemble's tensor."""

    model_name: str
    model_version: int
    input_map: Mapping[str, str]
    output_map: Mapping[str, str]


@dataclass(frozen=True)
class Ensembling:
    step: tuple[EnsembleStep, ...]


@dataclass(frozen=True)
class InstanceGroup:
    kind: Symbol
    count: int = 1
    profile: tuple[str, ...] = ()


@dataclass(frozen=True)
class WarmupInput:
    data_type: Symbol
    dims: tuple[int, ...]
    zero_data: bool = True


@dataclass(frozen=True)
class ModelWarmup:
    name: str
    batch_size: int
    inputs: Mapping[str, WarmupInput]


@dataclass(frozen=True)
class ModelParameter:
    string_value: str


@dataclass(frozen=True)
class ModelConfig:
    name: str
    platform: str
    backend: str | None
    max_batch_size: int
    input: tuple[ModelTensor, ...]
    output: tuple[ModelTensor, ...]
    version_policy: VersionPolicy = field(default=VersionPolicy())
    optimization: OptimizationPolicy | None = None
    dynamic_batching: DynamicBatching | None = None
    ensemble_scheduling: Ensembling | None = None
    instance_group: tuple[InstanceGroup, ...] = ()
    default_model_filename: str | None = None
    parameters: Mapping[str, ModelParameter] = field(default_factory=dict)
    model_warmup: tuple[ModelWarmup, ...] = ()
