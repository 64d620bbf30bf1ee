"""The settings with which ONNX Runtime runs the graph of an artifact, for formats that name them:
execution providers, the level of optimization, and what is switched off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from optkit.craft.backends.ort_session import DISABLED
from optkit.facts.errors import UsageError
from optkit.facts.precisions import precision
from optkit.ground.artifact import Artifact
from optkit.ground.devices import target
from optkit.ground.runtimes import Level, backend

_CPU = "CPUExecutionProvider"
_CUDA = "CUDAExecutionProvider"
_TENSORRT = "TensorrtExecutionProvider"
_RTX = "NvTensorRTRTXExecutionProvider"
_COREML = "CoreMLExecutionProvider"


@dataclass(frozen=True)
class Device:
    """The providers of a backend in order of preference, and the kind of its device; None: it may
    be of any kind."""

    providers: tuple[str, ...]
    kind: Literal["cpu", "gpu"] | None

    @property
    def built_in(self) -> tuple[str, ...]:
        """Those that a program can name without registering a plugin. ONNX Runtime 1.32 opens no
        session that names both TensorRT and TensorRT-RTX."""
        return tuple(name for name in self.providers if name != _RTX)


_DEVICES = MappingProxyType(
    {
        "onnxruntime": Device((_CPU,), "cpu"),
        "onnxruntime-cuda": Device((_CUDA, _CPU), "gpu"),
        "onnxruntime-tensorrt": Device((_TENSORRT, _CUDA, _CPU), "gpu"),
        "onnxruntime-coreml": Device((_COREML, _CPU), None),
        "onnxruntime-tensorrt-rtx": Device((_RTX, _CPU), "gpu"),
        "tensorrt": Device((_TENSORRT, _CUDA, _CPU), "gpu"),
        "tensorrt-rtx": Device((_RTX, _TENSORRT, _CUDA, _CPU), "gpu"),
    }
)


@dataclass(frozen=True)
class OrtSettings:
    """`entries`: more configuration of the session, by ONNX Runtime's names."""

    device: Device
    level: Level
    entries: Mapping[str, str]


def settings_of(artifact: Artifact) -> OrtSettings:
    """The settings for the graph of an artifact.

    A graph with Q/DQ for a compiler has the level "basic", because above it ONNX Runtime changes
    the Q/DQ of the nodes that the provider does not take. A graph that was built for ONNX Runtime
    has the level at which it was measured.

    Raises UsageError for a target that no backend serves.
    """
    manifest = artifact.manifest
    options = target(manifest.target).backends
    if manifest.engine is None and not options:
        raise UsageError(
            f"ONNX Runtime has no execution provider for {manifest.target}",
            where=str(artifact.path),
        )
    name = options[0].name if manifest.engine is None else manifest.engine.backend
    plan = backend(name).traits.engine == "plan"
    level: Level = "basic" if plan and precision(manifest.precision).quantized else "all"
    entries = {} if plan else {"optimization.disable_specified_optimizers": ";".join(DISABLED)}
    return OrtSettings(_DEVICES[name], level, MappingProxyType(entries))
