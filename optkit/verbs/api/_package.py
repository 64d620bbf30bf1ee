"""Writes an artifact or a fleet in the layout of another program: `package`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from optkit.facts.documents.package import Package
from optkit.road.packaging import formats
from optkit.road.packaging.variants import PackageSubject


def package(
    path: str | Path,
    *,
    format: str,
    out: str | Path = "packages",
    name: str | None = None,
    precision: str | None = None,
    adapters: Mapping[str, str | Path] | None = None,
    compiled: bool = False,
    dynamic: bool = False,
) -> Package:
    """Write the artifact or the fleet in folder `path` in a deploy format, to the folder
    `out/<name>-<format>`. An older package of this name is replaced in one operation.

    format: a name of `optkit.road.packaging.formats.FORMATS`.
    name: the name of the model in the package; None: that of its recipe.
    precision: chooses among the artifacts of a fleet that has several for a target.
    adapters: for the format lora: name → the folder of a LoRA adapter that PEFT has saved.
    compiled: for the format ort-package: also the engine that ONNX Runtime's TensorRT-RTX provider
        compiles on this machine, which has the device.
    dynamic: for the format compressed-tensors: inputs of int8 and fp8 layers get a scale for each
        token at run time, in place of the artifact's constant scales.

    Raises InputRefused (no artifact), IntegrityError (damaged), UsageError (what the format cannot
    hold, or a folder of this name that is no package), ToolchainMissing (a library of the format,
    a device), StorageError.
    """
    parts = format in formats.OF_PARTS
    folders = {adapter: Path(folder) for adapter, folder in (adapters or {}).items()}
    subject = PackageSubject.of(
        Path(path),
        name,
        precision,
        parts=parts,
        adapters=folders,
        compiled=compiled,
        dynamic=dynamic,
    )
    return formats.package(subject, format, Path(out))
