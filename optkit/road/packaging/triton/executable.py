"""What Triton runs for an artifact: an engine of full TensorRT, or the graph by its ONNX Runtime
backend; the settings that each of them needs, and notes for the user.

A graph for a GPU gets TensorRT as ONNX Runtime's accelerator, because optkit made the graph for it:
CUDA kernels would compute quantized layers in floats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from optkit.craft.backends.ort_session import DISABLED
from optkit.craft.backends.shape_profile import Profile
from optkit.facts.documents.report import Report
from optkit.facts.errors import UsageError
from optkit.facts.precisions import precision
from optkit.ground import graph
from optkit.ground.artifact import MODEL, VNNI, Artifact, Manifest
from optkit.ground.devices import target
from optkit.road.packaging.graph_files import graph_files
from optkit.road.packaging.ort_settings import settings_of
from optkit.road.packaging.stamp import PREFIX
from optkit.road.packaging.triton.model_config import (
    BASIC,
    CPU,
    GPU,
    ONNXRUNTIME,
    TENSORRT,
    Accelerator,
    Accelerators,
    CudaPolicy,
    GraphPolicy,
    InstanceGroup,
    ModelParameter,
    OptimizationPolicy,
)
from optkit.road.packaging.triton.releases import table
from optkit.road.packaging.variants import Variant

_TENSORRT = "tensorrt"
"""The backend whose engines Triton loads, its distribution, and ONNX Runtime's accelerator."""


@dataclass(frozen=True)
class Executable:
    """`files`: those of the version folder. `main`: the one that Triton opens. `figures`: whose
    figures the report has. `release`: a release of Triton that runs it; None: not known."""

    runtime: tuple[str, str]  # platform and backend
    files: Mapping[str, Path | bytes]
    main: str
    instance: InstanceGroup
    figures: str
    release: str | None
    notes: tuple[str, ...]
    optimization: OptimizationPolicy | None = None
    parameters: Mapping[str, ModelParameter] = field(default_factory=dict)


def executable(
    variant: Variant, report: Report | None, model: graph.Graph, profile: Profile, stem: str
) -> Executable:
    """`report`: None in a slim copy. `model`: the graph. `profile`: the shapes of its inputs with
    dynamic axes. `stem`: of the names of its files.

    Raises UsageError for a device on which Triton does not run, InputRefused, IntegrityError."""
    artifact, told = variant.artifact, variant.result.engine
    manifest, device = artifact.manifest, target(artifact.manifest.target)
    if device.vendor != "nvidia" and not device.is_cpu:
        raise UsageError(f"Triton does not run on {device.title}", where=str(artifact.path))
    if device.is_cpu:
        return _on_cpu(artifact, model, stem)
    engine = manifest.engine
    figures = (
        "the graph" if engine is None else f"the {(told and told.serving) or engine.backend} engine"
    )
    unfit = _why_no_engine(report, manifest)
    if engine is not None and unfit is None:
        return _engine(artifact, report, engine.file, stem, figures)
    why = f"{device.name}: {unfit}"
    return _on_gpu(artifact, report, model, profile, stem, figures, why)


def _on_cpu(artifact: Artifact, model: graph.Graph, stem: str) -> Executable:
    manifest = artifact.manifest
    release = _first_release(model)
    notes = [*_needs(model, manifest.target, release)]
    if manifest.instruction_set == VNNI:
        notes.append(
            f"{manifest.target}: serve it on CPUs with VNNI only: on other x86 CPUs its sums "
            "overflow, and Triton cannot set ONNX Runtime's session.x64quantprecision"
        )
    scheme = precision(manifest.precision)
    if scheme.quantized and not scheme.weight_codes_only:
        notes.append(
            f"{manifest.target}: {scheme} was measured without ONNX Runtime's "
            f"{' and '.join(DISABLED)}, which Triton cannot switch off: measure latency and "
            "accuracy again on the server"
        )
    level = _level(artifact, model)
    return Executable(
        ONNXRUNTIME,
        _graph_files(artifact, stem),
        f"{stem}.onnx",
        InstanceGroup(CPU),
        "ONNX Runtime",
        release,
        tuple(notes),
        OptimizationPolicy(graph=level) if level else None,
        {"intra_op_thread_count": ModelParameter(_threads(manifest))},
    )


def _on_gpu(
    artifact: Artifact,
    report: Report | None,
    model: graph.Graph,
    profile: Profile,
    stem: str,
    figures: str,
    reason: str,
) -> Executable:
    manifest = artifact.manifest
    release = _first_release(model)
    # the cache is known by the artifact: ONNX Runtime finds an engine by the names in a graph, and
    # would take that of other weights
    cache = {
        "trt_engine_cache_enable": "true",
        "trt_engine_cache_path": f"/var/cache/optkit-{artifact.digest[:16]}",
    }
    accelerator = Accelerator(_TENSORRT, {**_options(report), **cache, **_shapes(profile)})
    compiled = f"; the figures are those of {figures}" if manifest.compiled else ""
    note = (
        f"{reason}: ONNX Runtime's TensorRT accelerator compiles the graph when the server first "
        f"starts{compiled}. It keeps the engine in {cache['trt_engine_cache_path']}: mount a "
        "volume there, so that a new container does not compile again"
    )
    return Executable(
        ONNXRUNTIME,
        _graph_files(artifact, stem),
        f"{stem}.onnx",
        InstanceGroup(GPU),
        figures,
        release,
        (note, *_needs(model, manifest.target, release)),
        OptimizationPolicy(
            graph=_level(artifact, model), execution_accelerators=Accelerators((accelerator,))
        ),
    )


def _engine(
    artifact: Artifact, report: Report | None, file: str, stem: str, figures: str
) -> Executable:
    name, version = f"{stem}.plan", _tensorrt_version(report, artifact.manifest)
    releases = table().with_tensorrt(version or "")
    rows = () if report is None else report.latencies.engine
    note = (
        f"{artifact.manifest.target}: its engine is TensorRT {version}'s and runs in no other "
        f"version: use Triton {' or '.join(releases)}"
    )
    return Executable(
        TENSORRT,
        {name: artifact.path / file},
        name,
        InstanceGroup(GPU, profile=("0",)),
        figures,
        releases[-1],
        (note,),
        OptimizationPolicy(cuda=CudaPolicy(graphs=True))
        if any(row.phases for row in rows)
        else None,
    )


def _graph_files(artifact: Artifact, stem: str) -> dict[str, Path | bytes]:
    """The graph and its data files under new names. Raises IntegrityError, InputRefused."""
    file, locations = f"{stem}.onnx", [name for name in graph_files(artifact) if name != MODEL]
    if not locations:
        return {file: artifact.model_path}
    renamed = {old: f"{file}.data{at or ''}" for at, old in enumerate(locations)}
    data: dict[str, Path | bytes] = {new: artifact.path / old for old, new in renamed.items()}
    return {file: graph.with_data_at(artifact.model_path, renamed), **data}


def _level(artifact: Artifact, model: graph.Graph) -> GraphPolicy | None:
    """The level of ONNX Runtime's optimizations; None: all. The graph's metadata names the level at
    which it was evaluated."""
    said = model.metadata_props.get(f"{PREFIX}optimization_level")
    return GraphPolicy(BASIC) if (said or settings_of(artifact).level) == "basic" else None


def _why_no_engine(report: Report | None, manifest: Manifest) -> str | None:
    """Why Triton cannot load the artifact's engine; None if it can."""
    engine = manifest.engine
    if engine is None or not manifest.compiled:
        return "no engine was compiled"
    if engine.backend != _TENSORRT:
        return f"Triton does not load engines of {engine.backend}"
    if not all(info.shape for info in (*manifest.inputs, *manifest.outputs)):
        return "Triton's TensorRT backend has no scalars"
    version = _tensorrt_version(report, manifest)
    if version is None:
        return "the version of TensorRT that built its engine is not known"
    if table().with_tensorrt(version):
        return None
    return (
        f"no release of Triton is known to have the engine's TensorRT {version} "
        f"(known: {table().known_tensorrt})"
    )


def _tensorrt_version(report: Report | None, manifest: Manifest) -> str | None:
    """The version that built the engine, on this machine or on the one that finished the build."""
    finished = None if report is None else report.provenance.finished
    versions = manifest.versions if finished is None else finished.versions
    return versions.get(_TENSORRT)


def _options(report: Report | None) -> dict[str, str]:
    """The memory and the effort that optkit gave, or would give, full TensorRT. The accelerator
    gets no precision: then it compiles the types of the graph."""
    if report is None:
        return {}
    specs = [s for role, s in report.provenance.build_spec.items() if role.startswith("engine")]
    spec = next((s for s in specs if s.backend == _TENSORRT), None)
    if spec is None:
        return {}
    level = spec.options.get("optimization_level")
    given = {
        "max_workspace_size_bytes": spec.workspace_bytes,
        "trt_builder_optimization_level": level if isinstance(level, int) else None,
    }
    return {name: str(value) for name, value in given.items() if value is not None}


def _shapes(profile: Profile) -> dict[str, str]:
    """The profile in ONNX Runtime's form, which cannot say a name with one of its separators."""
    if not profile or any(set(name) & set(":,") for name in profile):
        return {}
    return {
        f"trt_profile_{end}_shapes": ",".join(
            f"{name}:{'x'.join(map(str, shapes[place]))}" for name, shapes in profile.items()
        )
        for place, end in enumerate(("min", "opt", "max"))
    }


def _threads(manifest: Manifest) -> str:
    """The threads with which latency was measured; "0": all cores, as ONNX Runtime chooses."""
    bench = manifest.recipe.get("bench")
    threads = bench.get("threads") if isinstance(bench, dict) else None
    return str(threads or 0)


def _first_release(model: graph.Graph) -> str | None:
    """The first release that runs the graph, by its opset; None: not known."""
    opset = model.opset_imports.get("")
    return None if opset is None else table().first_with_opset(opset)


def _needs(model: graph.Graph, name: str, release: str | None) -> list[str]:
    if release is None:
        return []
    opset = model.opset_imports[""]
    return [f"{name}: the graph has opset {opset}, which Triton runs from {release} on"]
