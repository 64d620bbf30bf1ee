"""The format `ort-package`: a model package of ONNX Runtime, which 1.32 and later open, and in
which they select the variant for an execution provider.

manifest.json                        the components
model/component.json                 one component: the variants, one per target
model/l4/model.onnx, …               the graph of a variant, and its data files
model/l4-compiled/model.onnx         on request: the graph as this machine's provider compiled it
shared_assets/sha256-…/              a folder that the variants name by its digest: the tokenizer
                                     and configuration, and data files that several variants use

ONNX Runtime selects by execution provider. It cannot tell apart two targets of one provider, e.g.
two GPUs: then each target is a component of its own, which the user names.

Schema 1.0, as in ONNX Runtime's `model_package/README.md`; what belongs to `executor_info.ort` is
in `onnxruntime/core/session/model_package/README.md`.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from optkit.craft.backends.ort_rtx import PROVIDER, TensorRTRTXProvider
from optkit.facts.errors import ToolchainMissing, UsageError
from optkit.ground.artifact import MODEL, VNNI
from optkit.ground.devices import target
from optkit.ground.intake import COMPANIONS
from optkit.road.packaging.formats import PackageContent
from optkit.road.packaging.graph_files import graph_files
from optkit.road.packaging.ort_settings import OrtSettings, settings_of
from optkit.road.packaging.scalars import facts, scalars
from optkit.road.packaging.variants import PackageSubject, Variant

COMPONENT = "model"
"""The component of a package in which ONNX Runtime can select by itself."""

_SCHEMA = "1.0"
_DATA_FOLDER = "session.model_external_initializers_file_folder_path"
_LEVELS = {
    "all": "enable_all",
    "extended": "enable_extended",
    "basic": "enable_basic",
    "none": "disable_all",
}


@dataclass(frozen=True)
class _Asset:
    """A folder that variants name by its digest: name in it → (file, SHA-256)."""

    files: Mapping[str, tuple[Path, str]]

    @property
    def digest(self) -> str:
        """ONNX Runtime's digest of the folder: SHA-256 of the sorted lines of `sha256sum`."""
        lines = (f"{sha256}  {name}\n" for name, (_, sha256) in sorted(self.files.items()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    @property
    def uri(self) -> str:
        return f"sha256:{self.digest}"

    def content(self) -> dict[str, Path | bytes]:
        folder = f"shared_assets/sha256-{self.digest}"
        return {f"{folder}/{name}": file for name, (file, _) in self.files.items()}


@dataclass(frozen=True)
class _Member:
    """A variant with its settings and files."""

    variant: Variant
    settings: OrtSettings
    data: _Asset
    companions: _Asset


@dataclass(frozen=True)
class _Compiled:
    """A context graph of a variant, and what its provider tells of the devices that it fits."""

    file: Path
    fits: str


def files(subject: PackageSubject, scratch: Path) -> PackageContent:
    """Raises UsageError (a target without a provider), IntegrityError, InputRefused; and where
    something is to be compiled, ToolchainMissing and WorkerFailed (a foreign graph)."""
    members = [_member(variant) for variant in sorted(subject.variants, key=lambda one: one.name)]
    compiled = _compiled(members, scratch) if subject.compiled else {}
    components = _components(members)
    uses = Counter(member.data.uri for member in members if member.data.files)
    content: dict[str, Path | bytes] = {}
    for component, variants in components.items():
        bodies: dict[str, JsonValue] = {}
        for member in variants:
            shared = uses[member.data.uri] > 1
            bodies[member.variant.name] = _body(member, shared)
            content |= _files(member, f"{component}/{member.variant.name}", shared)
            if (one := compiled.get(member.variant.name)) is not None:
                name = f"{member.variant.name}-compiled"
                bodies[name] = {**_body(member, False), "compatibility_string": one.fits}
                content[f"{component}/{name}/{MODEL}"] = one.file
        content[f"{component}/component.json"] = _json(
            {"component_name": component, "variants": bodies}
        )
    content["manifest.json"] = _json(
        {
            "schema_version": _SCHEMA,
            "package_name": subject.name,
            "components": {name: name for name in components},
            "additional_metadata": {"optkit": {"digest": subject.digest}},
        }
    )
    return PackageContent(content, _notes(members, components, compiled))


def _compiled(members: Sequence[_Member], scratch: Path) -> dict[str, _Compiled]:
    """By target, the context graphs of the variants whose device this machine has.

    ONNX Runtime gives the best mark to a variant whose provider says that it fits the device, and
    none to the graph; so it takes the graph only where no context graph fits.
    """
    provider = TensorRTRTXProvider()
    provider.check()
    found: dict[str, _Compiled] = {}
    reasons: list[ToolchainMissing] = []
    for member in members:
        if member.settings.device.providers[0] != PROVIDER:
            continue
        artifact, name = member.variant.artifact, member.variant.name
        artifact.admit_graph()
        file = scratch / f"{name}.onnx"
        try:
            fits = provider.write_context(artifact.model_path, target(name), file)
        except ToolchainMissing as error:  # another device
            reasons.append(error)
        else:
            found[name] = _Compiled(file, fits)
    if reasons and not found:
        raise reasons[0]
    if not found:
        raise UsageError(
            f"it has no variant for {PROVIDER}, the only provider that compiles for a package",
            where="--compiled",
            hint="`optkit targets NAME` lists the backends of a target: tensorrt-rtx is needed",
        )
    return found


def _member(variant: Variant) -> _Member:
    artifact = variant.artifact
    known = artifact.manifest.files
    companions = [name for name in COMPANIONS if name in known]
    graph = graph_files(artifact)
    data = [name for name in graph if name != MODEL]
    return _Member(
        variant,
        settings_of(artifact),
        _Asset({name: (graph[name], known[name].sha256) for name in data}),
        _Asset({name: (artifact.path / name, known[name].sha256) for name in companions}),
    )


def _components(members: Sequence[_Member]) -> dict[str, list[_Member]]:
    """The variants by component: one component if each has another provider, otherwise one
    component per target."""
    providers = {member.settings.device.providers[0] for member in members}
    if len(providers) == len(members):
        return {COMPONENT: [*members]}
    return {member.variant.name: [member] for member in members}


def _body(member: _Member, shared: bool) -> dict[str, JsonValue]:
    """The entry of a variant in component.json. `shared`: its data files are a shared asset."""
    settings, manifest = member.settings, member.variant.artifact.manifest
    options: dict[str, JsonValue] = {**settings.entries}
    if settings.level != "all":  # the default of ONNX Runtime
        options["graph_optimization_level"] = _LEVELS[settings.level]
    if shared:
        options[_DATA_FOLDER] = member.data.uri
    # a provider whose devices ONNX Runtime 1.32 does not list matches no kind of device
    device: dict[str, JsonValue] = {"device": "cpu"} if settings.device.kind == "cpu" else {}
    result = member.variant.result
    about: dict[str, JsonValue] = {
        **facts(manifest, result),
        "figures": {name: each.to_json() for name, each in scalars(result).items()},
    }
    if member.companions.files:
        about["companions"] = member.companions.uri
    return {
        "ep": settings.device.providers[0],
        **device,
        "executor_info": {"ort": {"model_file": MODEL, "session_options": options}},
        "additional_metadata": {"optkit": about},
    }


def _files(member: _Member, folder: str, shared: bool) -> dict[str, Path | bytes]:
    """The files of a variant by their names in the package."""
    content: dict[str, Path | bytes] = {f"{folder}/{MODEL}": member.variant.artifact.model_path}
    if shared:
        content |= member.data.content()
    else:
        content |= {f"{folder}/{name}": file for name, (file, _) in member.data.files.items()}
    if member.companions.files:
        content |= member.companions.content()
    return content


def _notes(
    members: Sequence[_Member], components: Mapping[str, object], compiled: Mapping[str, object]
) -> tuple[str, ...]:
    notes = []
    for name in compiled:
        notes.append(
            f"{name}-compiled has machine code for devices like that of this machine: ONNX Runtime "
            f"takes it where the provider says that it fits, and {name} elsewhere"
        )
    if COMPONENT not in components:
        notes.append(
            "ONNX Runtime selects by execution provider and cannot tell apart two targets of one "
            f"provider: each target is a component, so name one of {', '.join(components)}"
        )
    for member in members:
        manifest = member.variant.artifact.manifest
        if manifest.compiled:
            notes.append(
                f"the figures of {manifest.target} are those of an engine, which this "
                "format does not hold: ONNX Runtime compiles the graph again"
            )
        if manifest.instruction_set == VNNI:
            notes.append(
                f"the variant {manifest.target} is for CPUs with VNNI: on other x86 CPUs "
                "set session.x64quantprecision to 1"
            )
    return tuple(notes)


def _json(document: Mapping[str, JsonValue]) -> bytes:
    return f"{json.dumps(document, indent=2, ensure_ascii=False)}\n".encode("utf-8", "replace")
