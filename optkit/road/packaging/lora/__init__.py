"""The format `lora`: a slim artifact whose LoRA adapters are switched at run time.

    <artifact>/model.onnx                  the same codes, and a branch of two matrices beside each
                                           layer that an adapter changes
    <artifact>/adapters/NAME.onnx_adapter  the matrices of an adapter, as ONNX Runtime and ONNX
                                           Runtime GenAI read them

peft_folder   the adapter that PEFT has saved
branches      the places of adapters in the graph

The matrices in the graph have rank 0, so a session without an adapter computes what was built, and
the figures of the artifact hold for it. A package of this format takes further adapters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from optkit.craft.backends import ort_adapter
from optkit.facts.errors import InputRefused, UsageError
from optkit.ground import graph
from optkit.ground.artifact import MANIFEST, MODEL, Artifact, File, adapter_file, check_name
from optkit.ground.store import digest_file
from optkit.road.packaging import genai
from optkit.road.packaging.formats import PackageContent
from optkit.road.packaging.graph_files import graph_files
from optkit.road.packaging.lora import branches
from optkit.road.packaging.lora.peft_folder import Lora, read
from optkit.road.packaging.slim import slim
from optkit.road.packaging.variants import PackageSubject, Variant
from optkit.show.report.contract import REPORT_FILE

_MODEL_ONLY = (
    "the figures are those of the artifact, which a session without an adapter computes: the "
    "branches cost some time, and the accuracy with an adapter is not measured"
)
_ERRORS = 3  # ONNX Runtime warns about each matrix that a run may replace


def files(subject: PackageSubject, scratch: Path) -> PackageContent:
    """Raises UsageError (no adapter, a target that is no CPU, a build that rescaled layers, a layer
    that takes no adapter), InputRefused (a folder that holds no LoRA adapter)."""
    variant = subject.only("lora")
    artifact = variant.artifact
    _check(variant, subject.adapters)
    loaded = {
        name: read(folder, scratch / f"{name}.staged")
        for name, folder in sorted(subject.adapters.items())
    }
    content = _graph(artifact, loaded, scratch)
    for name, adapter in loaded.items():
        file = scratch / f"{name}.onnx_adapter"
        ort_adapter.write(file, branches.parameters(adapter))
        content[adapter_file(name)] = file
    manifest, kept = slim(artifact)
    others = {name: file for name, file in kept.items() if name not in graph_files(artifact)}
    content = {**others, **content}
    facts = {
        name: manifest.files[name] if kept.get(name) == file else _facts(file)
        for name, file in content.items()
    }
    manifest = replace(manifest, files=facts)
    packed = {f"{artifact.name}/{name}": file for name, file in content.items()}
    packed[f"{artifact.name}/{MANIFEST}"] = manifest.encoded()
    return PackageContent(
        packed, (f"adapters: {', '.join(sorted(manifest.adapters))}", _MODEL_ONLY)
    )


def _check(variant: Variant, adapters: Mapping[str, Path]) -> None:
    """Raise unless the artifact can take adapters."""
    artifact = variant.artifact
    where = str(artifact.path)
    if not adapters:
        raise UsageError(
            "the format lora holds adapters, and none is given",
            where=where,
            hint="--adapter FOLDER, where PEFT has saved one; repeat it for several",
        )
    for name in adapters:
        check_name("adapter", name, "--adapter")
    manifest = artifact.manifest
    if manifest.engine is None or manifest.engine.file != MODEL:
        raise UsageError(
            f"an engine for {manifest.target} takes no adapters at run time",
            where=where,
            hint="build for cpu, where ONNX Runtime runs the graph; or merge one adapter before "
            "the build: `model.adapter`",
        )
    if artifact.adapters:
        return  # its build was checked when it got the first one, and its report is left out
    artifact.require(REPORT_FILE)
    for row in variant.report.preparation:
        if row.get("outcome") != "declined":
            raise UsageError(
                f"its build rescaled the value {row.get('value')!r}, which adapters read or change",
                where=where,
                hint="build it with `quantization: {smooth: off, equalize: off, outlier_channels: "
                "off}`, and with other `weights` than awq",
            )


def _graph(
    artifact: Artifact, loaded: Mapping[str, Lora], scratch: Path
) -> dict[str, Path | bytes]:
    """The files of the graph with all branches, by their names in the artifact."""
    model = graph.load(artifact.model_path)
    for name, adapter in loaded.items():
        try:
            branches.attach(model, adapter)
        except InputRefused as error:
            error.where = f"adapter {name!r}: {error.where}"
            raise
    graph.save(model, scratch / MODEL)
    names = (MODEL, *graph.data_locations(scratch / MODEL))
    content: dict[str, Path | bytes] = {name: scratch / name for name in names}
    if genai.FILE in artifact.manifest.files:
        config = json.loads((artifact.path / genai.FILE).read_bytes())
        config["model"]["decoder"]["session_options"]["log_severity_level"] = _ERRORS
        (scratch / genai.FILE).write_text(f"{json.dumps(config, indent=2)}\n")
        content[genai.FILE] = scratch / genai.FILE
    return content


def _facts(file: Path | bytes) -> File:
    assert isinstance(file, Path)
    return File(digest_file(file), file.stat().st_size, "serves")
