"""Slim: a copy of each artifact with the files that serve, and without those that prove its
figures.

    <artifact>/manifest.json                  the manifest; `omitted` lists what was left out
    <artifact>/model.onnx, engine, tokenizer …

Each folder is an artifact: `load`, `generate`, `inspect`, `verify`, `sign` and the other packages
take it. The figures and their evidence are still in the manifest.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from optkit.ground.artifact import MANIFEST, Artifact, File, Manifest
from optkit.ground.artifact.roles import role_of
from optkit.road.packaging.formats import PackageContent
from optkit.road.packaging.variants import PackageSubject


def files(subject: PackageSubject, scratch: Path) -> PackageContent:
    packed: dict[str, Path | bytes] = {}
    notes = []
    for variant in subject.variants:
        artifact = variant.artifact
        manifest, content = slim(artifact)
        content[MANIFEST] = manifest.encoded()
        packed |= {f"{artifact.name}/{name}": each for name, each in content.items()}
        notes.append(_note(artifact.name, manifest))
    return PackageContent(packed, (*notes, _UNFIT))


def slim(artifact: Artifact) -> tuple[Manifest, dict[str, Path | bytes]]:
    """The manifest of the slim copy, and its files."""
    whole = artifact.manifest
    content: dict[str, Path | bytes] = {name: artifact.path / name for name in whole.serving}
    facts = {name: whole.files[name] for name in whole.serving}
    for folder, part in artifact.parts.items():
        name, data = f"{folder}/{MANIFEST}", slim(part)[0].encoded()
        content[name] = data
        facts[name] = File(sha256(data).hexdigest(), len(data))
    facts = {name: replace(file, role=role_of(name, whole.parts)) for name, file in facts.items()}
    omitted = whole.omitted | {
        name: replace(file, role="proves")
        for name, file in whole.files.items()
        if name not in facts
    }
    return replace(whole, files=facts, omitted=omitted), content


def _note(name: str, manifest: Manifest) -> str:
    serving = sum(file.size for file in manifest.files.values())
    omitted = sum(file.size for file in manifest.omitted.values())
    return (
        f"{name}: {len(manifest.files)} files serve, {serving / 2**20:.2f} MiB; "
        f"{len(manifest.omitted)} files that prove its figures are left out, "
        f"{omitted / 2**20:.2f} MiB"
    )


_UNFIT = (
    "finish, explain and diff need the files that were left out: keep the whole artifact; its "
    "signature is not in the copy, which is signed by itself"
)
