"""What is packaged: an artifact, or the artifacts of a fleet, verified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Self

from optkit.facts.documents.fleet import Fleet
from optkit.facts.documents.report import Report
from optkit.facts.documents.result import Result
from optkit.facts.errors import InputRefused, IntegrityError, UsageError
from optkit.ground.artifact import MANIFEST, Artifact, check_name
from optkit.ground.artifact.manifest import FLEET
from optkit.ground.store import digest_json
from optkit.show.report.contract import conform, parsed, report_of, result_of

PACKAGE_FILE = "optkit-package.json"
"""The document of a package, in its folder. It says that optkit may replace the folder."""


@dataclass(frozen=True)
class Variant:
    """One artifact of the subject: one target and one precision."""

    artifact: Artifact

    @property
    def name(self) -> str:
        """The target; a package names its variants by it."""
        return self.artifact.manifest.target

    @cached_property
    def parts(self) -> Mapping[str, Variant]:
        """The graphs of which it consists, by name; empty if it is one graph."""
        return {name: Variant(part) for name, part in self.artifact.parts.items()}

    @cached_property
    def result(self) -> Result:
        """The figures of the build, with their evidence. Raises IntegrityError."""
        return result_of(self.artifact)

    @cached_property
    def report(self) -> Report:
        """The whole report of the build. Raises IntegrityError."""
        return report_of(self.artifact)


@dataclass(frozen=True)
class PackageSubject:
    """A model's artifacts. `check_one_per_target` for a format that names them by target.

    `name`: the name of the model in the package; it is safe as a file name. `adapters`: by name,
    the folders of adapters that the package gets in addition. `compiled`: whether it also gets what
    this machine compiles. `dynamic`: whether inputs get their scales at run time.
    """

    name: str
    variants: tuple[Variant, ...]
    adapters: Mapping[str, Path] = field(default_factory=dict)
    compiled: bool = False
    dynamic: bool = False

    @property
    def digest(self) -> str:
        """The digest of the artifacts' digests; the same builds give the same digest."""
        return digest_json(sorted(variant.artifact.digest for variant in self.variants))

    def only(self, form: str) -> Variant:
        """The one variant, for a format that holds one. Raises UsageError."""
        if len(self.variants) == 1:
            return self.variants[0]
        raise UsageError(
            f"the format {form} holds one artifact, and this is a fleet for "
            + ", ".join(variant.name for variant in self.variants),
            hint="name the folder of one artifact of the fleet",
        )

    def check_one_per_target(self) -> None:
        """Raises UsageError if a target has several precisions."""
        by_target: dict[str, list[str]] = {}
        for variant in self.variants:
            by_target.setdefault(variant.name, []).append(variant.artifact.manifest.precision)
        for target, precisions in by_target.items():
            if len(precisions) > 1:
                raise UsageError(
                    f"the fleet has {' and '.join(precisions)} for {target}, and this format holds "
                    "one precision for each target",
                    where=self.name,
                    hint=f"choose one, e.g. --precision {precisions[0]}",
                )

    @classmethod
    def of(
        cls,
        path: Path,
        name: str | None = None,
        precision: str | None = None,
        *,
        parts: bool = False,
        adapters: Mapping[str, Path] = MappingProxyType({}),
        compiled: bool = False,
        dynamic: bool = False,
    ) -> Self:
        """The subject in folder `path`: an artifact, a fleet, or a slim package. Every file is
        verified.

        name: None: the name of the model, of its recipe.
        precision: chooses among the artifacts of a fleet.
        parts: whether an artifact may consist of several graphs.
        adapters, compiled, dynamic: those of the subject.

        Raises InputRefused (neither, or nothing was built), IntegrityError (damaged), UsageError
        (the name; an artifact of several graphs).
        """
        artifacts = _artifacts(path)
        if precision is not None:
            built = sorted({artifact.manifest.precision for artifact in artifacts})
            artifacts = [one for one in artifacts if one.manifest.precision == precision]
            if not artifacts:
                raise UsageError(
                    f"nothing in it has the precision {precision}, only {', '.join(built)}",
                    where=str(path),
                    hint="choose one of these, or build it and package its folder",
                )
        for artifact in artifacts:
            if not parts:
                _check_one_graph(artifact)
            artifact.verify()
        variants = tuple(Variant(artifact) for artifact in artifacts)
        where = f"--name {name}" if name else None
        name = name or variants[0].result.model or variants[0].artifact.name
        check_name("model", name, where)
        return cls(name, variants, adapters, compiled, dynamic)


def _artifacts(path: Path) -> list[Artifact]:
    if (path / FLEET).is_file():
        return _fleet(path)
    if (path / PACKAGE_FILE).is_file():
        return _slim(path)
    return [Artifact.load(path)]


def _slim(path: Path) -> list[Artifact]:
    """The artifacts in a package of the format slim."""
    folders = sorted(each.parent for each in path.glob(f"*/{MANIFEST}"))
    if not folders:
        raise InputRefused("a package that contains no artifact", where=str(path))
    return [Artifact.load(folder) for folder in folders]


def _fleet(path: Path) -> list[Artifact]:
    """The artifacts that a fleet names: beside its folder, or where they were built."""
    where = path / FLEET
    try:
        fleet = conform(parsed(where), Fleet)
    except ValueError as error:  # a Mismatch is one
        raise IntegrityError("damaged: not the document of a fleet", where=str(where)) from error
    if not fleet.artifacts:
        hint = "its report.html says why; build it again"
        raise InputRefused("nothing of this fleet was built", where=str(path), hint=hint)
    found = []
    for built in fleet.artifacts.values():
        beside = path.parent / Path(built.path).name
        artifact = Artifact.load(beside if beside.is_dir() else Path(built.path))
        if artifact.digest != built.digest:
            raise IntegrityError(
                "it is another build than the one that the fleet names",
                where=str(artifact.path),
                hint="build the fleet again",
            )
        found.append(artifact)
    return found


def _check_one_graph(artifact: Artifact) -> None:
    if artifact.manifest.parts:
        raise UsageError(
            f"it consists of {' and '.join(artifact.manifest.parts)}",
            where=str(artifact.path),
            hint="package one of its parts: each is an artifact in a folder of that name",
        )
