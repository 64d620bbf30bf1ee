"""The formats of `optkit package`, and how a package is written.

A format is a module of this package with a function

    files(subject: PackageSubject, scratch: Path) -> PackageContent

which gives the files of the package by name, and notes. It writes nothing outside `scratch`, so
that an error leaves nothing half-written: the folder appears only when it is complete, or replaces
an older package in one operation. Its libraries are imported only when it is used.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from optkit.facts.documents.package import PACKAGE, Package, PackagedFile, PackagedVariant
from optkit.facts.errors import UsageError, unknown_name
from optkit.ground.artifact import create, prepare
from optkit.ground.artifact.manifest import is_safe
from optkit.ground.exchange import replacing
from optkit.ground.store import OUT_OPTION, digest_file, digest_json, storage_errors, write_durably
from optkit.road.packaging.variants import PACKAGE_FILE, PackageSubject

MARKER = PACKAGE_FILE

FORMATS: Mapping[str, str] = {
    "compressed-tensors": "a checkpoint for vLLM, SGLang and transformers",
    "gguf": "a decoder in one file for llama.cpp",
    "huggingface": "a model repository of the Hugging Face hub",
    "lora": "an artifact whose LoRA adapters are switched at run time",
    "mlflow": "a model folder of MLflow",
    "mlx": "a decoder as mlx-lm reads it, for Apple's computers",
    "oci": "an OCI image layout, for registries: ModelPack of the CNCF",
    "ort-package": "a model package of ONNX Runtime, which selects the variant itself",
    "slim": "artifacts with the files that serve, without those that prove their figures",
    "triton": "a model repository of Triton Inference Server",
}
"""Name of a format → what it is. The module has the same name, with _ for -."""

BY_PRECISION = frozenset({"huggingface", "slim"})
"""The formats that hold several precisions for one target."""

HOLDS_ADAPTERS = frozenset({"lora", "oci", "slim"})
"""The formats whose packages have the adapters of an artifact."""

HOLDS_OPERATORS = frozenset({"oci", "slim"})
"""The formats whose packages have the library of a graph's own operators."""

OF_PARTS = frozenset({"slim", "triton"})
"""The formats that hold artifacts of several graphs."""


@dataclass(frozen=True)
class PackageContent:
    """The content of a package: name → the file to copy, or its bytes; and notes for the user."""

    files: Mapping[str, Path | bytes]
    notes: tuple[str, ...] = field(default=())


class _Format(Protocol):
    def files(self, subject: PackageSubject, scratch: Path) -> PackageContent: ...


def package(subject: PackageSubject, form: str, out: Path) -> Package:
    """Write the package `out/<name>-<format>`; it replaces an older one in one operation.

    Raises UnknownName (the format), UsageError (a folder of this name that is no package; what the
    format cannot hold), ToolchainMissing (its library), StorageError, IntegrityError.
    """
    if form not in FORMATS:
        raise unknown_name("format", form, tuple(FORMATS))
    _check_options(subject, form)
    if form not in HOLDS_OPERATORS:
        _check_operators(subject, form)
    if form not in BY_PRECISION:
        subject.check_one_per_target()
    module = cast(_Format, import_module(f"optkit.road.packaging.{form.replace('-', '_')}"))
    folder_name = f"{subject.name}-{form}"
    prepare(out, folder_name, "package", MARKER)
    with _scratch(out) as scratch:
        packed = module.files(subject, scratch)
        create(out)
        with replacing(out / folder_name) as folder:
            rows = tuple(
                _put(folder, name, content, scratch)
                for name, content in sorted(packed.files.items())
            )
            notes = (*packed.notes, *_without_adapters(subject, form))
            document = _document(subject, form, out / folder_name, rows, notes)
            text = json.dumps(document.to_json(), indent=1, ensure_ascii=False)
            write_durably(folder / MARKER, f"{text}\n".encode())
    return document


def _check_options(subject: PackageSubject, form: str) -> None:
    """Raises UsageError for an option of another format."""
    options = (
        (subject.adapters, "--adapter", "lora", "takes no adapters"),
        (subject.compiled, "--compiled", "ort-package", "holds nothing that a machine compiles"),
        (subject.dynamic, "--dynamic", "compressed-tensors", "holds a graph with its own scales"),
    )
    for given, option, own, reason in options:
        if given and form != own:
            raise UsageError(
                f"the format {form} {reason}", where=option, hint=f"choose the format {own}"
            )


def _check_operators(subject: PackageSubject, form: str) -> None:
    for variant in subject.variants:
        if (library := variant.artifact.manifest.operators) is not None:
            raise UsageError(
                f"the format {form} has no place for the graph's own operators ({library})",
                where=variant.artifact.name,
                hint="choose slim or oci; a program that serves the graph must register the "
                "library itself",
            )


def _without_adapters(subject: PackageSubject, form: str) -> list[str]:
    """A note for each artifact whose adapters are not in the package."""
    if form in HOLDS_ADAPTERS:
        return []
    return [
        f"{artifact.name}: its adapters are not in the package, which computes the model without "
        f"one: {', '.join(artifact.adapters)}"
        for artifact in (variant.artifact for variant in subject.variants)
        if artifact.adapters
    ]


@contextmanager
def _scratch(out: Path) -> Iterator[Path]:
    """A folder on the disk of the packages, whose files need no copy: weights may be larger than
    memory, and than the place for temporary files."""
    place = next(each for each in (out, *out.absolute().parents) if each.is_dir())
    with storage_errors(out, OUT_OPTION):
        scratch = tempfile.TemporaryDirectory(prefix=".optkit-", dir=place)
    with scratch as folder:
        yield Path(folder)


def _put(folder: Path, name: str, content: Path | bytes, scratch: Path) -> PackagedFile:
    if not is_safe(name) or name == MARKER:
        raise ValueError(f"{name!r} cannot name a file of a package")
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        write_durably(file, content)
    elif content.is_relative_to(scratch):
        _link(content, file)
    else:
        shutil.copyfile(content, file)
    return PackagedFile(name=name, sha256=digest_file(file), bytes=file.stat().st_size)


def _link(content: Path, file: Path) -> None:
    """A second name of the file, or a copy on a file system that gives no second names."""
    try:
        os.link(content, file)
    except OSError:
        shutil.copyfile(content, file)


def _document(
    subject: PackageSubject,
    form: str,
    folder: Path,
    rows: tuple[PackagedFile, ...],
    notes: tuple[str, ...],
) -> Package:
    variants = tuple(
        PackagedVariant(
            target=variant.artifact.manifest.target,
            precision=variant.artifact.manifest.precision,
            artifact=str(variant.artifact.path),
            digest=variant.artifact.digest,
        )
        for variant in subject.variants
    )
    return Package(
        schema=PACKAGE,
        status="ok",
        format=form,
        name=subject.name,
        folder=str(folder),
        digest=digest_json({row.name: row.sha256 for row in rows}),
        variants=variants,
        files=rows,
        notes=notes,
    )
