"""The format `mlflow`: a model folder that `mlflow.pyfunc.load_model` and `mlflow.onnx.load_model`
load.

MLmodel                      the flavors onnx and python_function, the signature, the figures
model.onnx, …                the graph, and its data files
input_example.json           one sample of zeros; serving_input_example.json is the same request
requirements.txt, conda.yaml, python_env.yaml   what MLflow installs to serve it
extra_files/                 the tokenizer and configuration of the model, if it has some

The fields are those that MLflow 3.17 writes. No sample of the user's data is in the folder.
"""

from __future__ import annotations

import io
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path

import numpy as np
from pydantic import JsonValue

from optkit.facts.errors import UsageError
from optkit.facts.tensors import TensorInfo, batch_axis, size_of
from optkit.ground.artifact import MODEL, VNNI, Manifest
from optkit.ground.intake import COMPANIONS
from optkit.ground.runtimes import ONNXRUNTIME_WHEELS
from optkit.road.packaging.formats import PackageContent
from optkit.road.packaging.graph_files import graph_files
from optkit.road.packaging.ort_settings import OrtSettings, settings_of
from optkit.road.packaging.scalars import facts, scalars
from optkit.road.packaging.variants import PackageSubject, Variant

_EXTRA = "extra_files"
_PYTHON = "3.11"  # MLflow asks for a version; a graph runs under any
_EXAMPLE_VALUES = 1 << 18  # above it JSON has several megabytes
_LEVELS = {"none": 0, "basic": 1, "extended": 2, "all": 99}

Document = dict[str, JsonValue]


def files(subject: PackageSubject, scratch: Path) -> PackageContent:
    """Raises UsageError (a fleet; a dtype that numpy lacks; a target without a provider),
    IntegrityError, InputRefused."""
    variant = subject.only("mlflow")
    artifact, manifest = variant.artifact, variant.artifact.manifest
    for info in (*manifest.inputs, *manifest.outputs):
        _check_dtype(info, artifact.model_path)
    settings, example = settings_of(artifact), _example(manifest)
    companions = [name for name in COMPANIONS if name in manifest.files]
    content: dict[str, Path | bytes] = {
        **graph_files(artifact),
        **{f"{_EXTRA}/{name}": artifact.path / name for name in companions},
        "MLmodel": _yaml(_mlmodel(variant, settings, companions, example is not None)),
        **_environment(_requirements(manifest, settings)),
    }
    if example is not None:
        content["input_example.json"] = _json(example)
        content["serving_input_example.json"] = _json({"inputs": example})
    return PackageContent(content, _notes(manifest, settings, example is not None))


def _check_dtype(info: TensorInfo, where: Path) -> None:
    if np.dtype(info.dtype).kind not in "biuf":
        raise UsageError(
            f"MLflow's signature cannot say the dtype {info.dtype}",
            where=f"{where}: {info.name}",
            hint="cast it to float32 in the model",
        )


def _mlmodel(
    variant: Variant, settings: OrtSettings, companions: Iterable[str], example: bool
) -> Document:
    manifest = variant.artifact.manifest
    extra: list[JsonValue] = [{"path": f"{_EXTRA}/{name}"} for name in companions]
    onnx: Document = {
        "code": None,
        "data": MODEL,
        "onnx_version": manifest.versions.get("onnx"),
        "providers": [*settings.device.built_in],
        "onnx_session_options": {
            "graph_optimization_level": _LEVELS[settings.level],
            "extra_session_config": {**settings.entries},
        },
    }
    if extra:
        onnx["extra_files"] = extra
    function: Document = {
        "data": MODEL,
        "env": {"conda": "conda.yaml", "virtualenv": "python_env.yaml"},
        "loader_module": "mlflow.onnx",
        "python_version": _PYTHON,
    }
    document: Document = {
        "flavors": {"onnx": onnx, "python_function": function},
        "metadata": {"optkit": _about(variant)},
        "model_uuid": manifest.digest[:32],
        "signature": {
            "inputs": _tensors(manifest.inputs),
            "outputs": _tensors(manifest.outputs),
            "params": None,
        },
    }
    if example:
        document["saved_input_example_info"] = {
            "artifact_path": "input_example.json",
            "serving_input_path": "serving_input_example.json",
            "type": "ndarray",
        }
    return document


def _about(variant: Variant) -> Document:
    """What is known about the build: every figure with its evidence."""
    return {
        **facts(variant.artifact.manifest, variant.result),
        "figures": {name: each.to_json() for name, each in scalars(variant.result).items()},
    }


def _tensors(infos: Iterable[TensorInfo]) -> str:
    """A side of the signature, which MLflow keeps as JSON; -1 for an axis of any size."""
    return json.dumps(
        [
            {
                "name": info.name,
                "type": "tensor",
                "tensor-spec": {
                    "dtype": info.dtype,
                    "shape": [size if isinstance(size, int) else -1 for size in info.shape],
                },
            }
            for info in infos
        ]
    )


def _example(manifest: Manifest) -> Document | None:
    """One sample of zeros of the tuned sizes, by the names of the inputs; None if it is large."""
    sizes = defaultdict(lambda: 1, {axis: max(1, size) for axis, size in manifest.axes.items()})
    if isinstance(axis := batch_axis(manifest.inputs), str):
        sizes[axis] = 1
    shapes = {info.name: [size_of(dim, sizes) for dim in info.shape] for info in manifest.inputs}
    if sum(map(prod, shapes.values())) > _EXAMPLE_VALUES:
        return None
    return {info.name: np.zeros(shapes[info.name], info.dtype).tolist() for info in manifest.inputs}


def _requirements(manifest: Manifest, settings: OrtSettings) -> list[str]:
    """The libraries with the versions of the build."""
    known = manifest.versions
    cpu, gpu = ONNXRUNTIME_WHEELS
    wanted = {
        "onnx": known.get("onnx"),
        gpu if settings.device.kind == "gpu" else cpu: known.get(cpu) or known.get(gpu),
    }
    pins = (f"{name}=={version}" if version else name for name, version in wanted.items())
    return ["mlflow", *pins]


def _environment(requirements: list[str]) -> dict[str, Path | bytes]:
    conda: Document = {
        "name": "mlflow-env",
        "channels": ["conda-forge"],
        "dependencies": [f"python={_PYTHON}", "pip", {"pip": [*requirements]}],
    }
    python: Document = {
        "python": _PYTHON,
        "build_dependencies": ["pip"],
        "dependencies": ["-r requirements.txt"],
    }
    return {
        "requirements.txt": "".join(f"{line}\n" for line in requirements).encode(),
        "conda.yaml": _yaml(conda),
        "python_env.yaml": _yaml(python),
    }


def _notes(manifest: Manifest, settings: OrtSettings, example: bool) -> tuple[str, ...]:
    notes = []
    if manifest.compiled:
        notes.append(
            f"the figures are those of the {manifest.target} engine, which this format "
            "does not hold: ONNX Runtime runs the graph"
        )
    if settings.device.kind == "gpu":
        notes.append(
            "without these execution providers MLflow runs the graph on the CPU, with a "
            f"warning: {', '.join(settings.device.built_in[:-1])}"
        )
    if manifest.instruction_set == VNNI:
        notes.append(
            "the graph is for CPUs with VNNI: for other x86 CPUs add to "
            "extra_session_config in MLmodel: session.x64quantprecision: '1'"
        )
    if not example:
        notes.append("there is no input example, because one sample is large")
    return tuple(notes)


def _json(document: Mapping[str, JsonValue]) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")


def _yaml(document: Document) -> bytes:
    from ruamel.yaml import YAML

    buffer = io.BytesIO()
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.dump(document, buffer)
    return buffer.getvalue()
