"""The content of a manifest, read from an untrusted folder."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import starmap
from pathlib import Path
from typing import Any, Self

from optkit.facts.codec import from_json
from optkit.facts.errors import InputRefused, IntegrityError, with_nearest_file
from optkit.facts.printable import is_text
from optkit.facts.tensors import TensorInfo
from optkit.ground.artifact.roles import Role, role_of
from optkit.ground.runtimes import BACKENDS, backend
from optkit.ground.store import digest_json, is_shallow

SCHEMA = "optkit.artifact/v1"
MANIFEST = "manifest.json"
SIGNATURE = "model.sig"
"""The signature of all other files, if the artifact is signed; it is in no manifest."""

FLEET = "fleet.json"
"""The document in the folder of a fleet, which lies beside its artifacts."""

MODEL = "model.onnx"
BASELINE = "baseline"
SIMULATION = "simulation.onnx"
SAMPLES = "eval.safetensors"
VNNI = "vnni"
ADAPTERS = "adapters"
"""The folder of the adapters."""

OPERATORS = "operators"
"""The folder of the library of operators that ONNX Runtime lacks."""

PLUGINS = "plugins"
"""The folder of the library of TensorRT plugins."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Characters that are safe in a file name on every system."""

_ADAPTER = re.compile(rf"{ADAPTERS}/({NAME.pattern})\.onnx_adapter")

_AGAIN = "copy the artifact again from an undamaged copy, or build it again"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MANIFEST_BYTES = 64 << 20
_FIGURES = ("engine", "latency", "accuracy", "fidelity", "speedup", "drop", "size")


@dataclass(frozen=True)
class File:
    """The facts in the manifest about one file. An older manifest has no roles."""

    sha256: str
    """The SHA-256 of the file."""
    size: int
    """In bytes."""
    role: Role | None = None
    """Whether it serves, or proves figures."""


@dataclass(frozen=True)
class EngineFile:
    """A compiled engine: its backend, and its file in the artifact."""

    backend: str
    """The backend that runs it."""
    file: str
    """Its file in the artifact."""


@dataclass(frozen=True)
class Manifest:
    """The content of the artifact and the results of its build. `write` fills `files` in."""

    name: str
    """The name of the artifact."""
    target: str
    """The target."""
    precision: str
    """The precision."""
    digest: str
    """Identifies the build: without engine bytes, timings or paths."""
    recipe: Mapping[str, object]
    """The whole recipe."""
    inputs: tuple[TensorInfo, ...]
    """The inputs of the graph."""
    outputs: tuple[TensorInfo, ...]
    """The outputs of the graph."""
    versions: dict[str, str]
    """Library → version."""
    result: dict[str, Any]
    """The result of the build, `optkit.result/v1`."""
    data: dict[str, dict[str, object]] = field(default_factory=dict)
    """The samples by role (`calibration`, `evaluation`): source, args, number and digest."""
    engine: EngineFile | None = None
    """Null if none is compiled yet."""
    instruction_set: str | None = None
    """What the 8-bit products of a graph for CPUs need: `vnni` (or Arm: sums in 32 bits); null: the
    result is the same on any CPU."""
    parts: dict[str, str] = field(default_factory=dict)
    """Folder → digest of the artifacts that this artifact consists of; it then has no graph."""
    own_baseline: bool = False
    """The build is its own baseline, so graph and engine are those of the baseline too, and there
    is no folder `baseline/`."""
    files: dict[str, File] = field(default_factory=dict)
    """Every other file, by its name relative to the folder."""
    omitted: dict[str, File] = field(default_factory=dict)
    """The files of the build that a slim copy does not contain."""

    @property
    def serving(self) -> list[str]:
        """The files that serve; the others prove figures."""
        return [
            name
            for name, file in self.files.items()
            if (file.role or role_of(name, self.parts)) == "serves"
        ]

    @property
    def adapters(self) -> tuple[str, ...]:
        """The names of its adapters."""
        return tuple(match[1] for name in self.files if (match := _ADAPTER.fullmatch(name)))

    @property
    def operators(self) -> str | None:
        """The file with the operators of the graph that ONNX Runtime lacks; None: it has none."""
        return self._only(OPERATORS)

    @property
    def plugins(self) -> str | None:
        """The file with the same operators as plugins of TensorRT; None: it has none."""
        return self._only(PLUGINS)

    def _only(self, folder: str) -> str | None:
        return next((name for name in self.files if name.startswith(f"{folder}/")), None)

    @property
    def axes(self) -> dict[str, int]:
        """The tuned size of each dynamic axis. Raises TypeError, KeyError."""
        ranges = self.recipe.get("axes", {})
        if not isinstance(ranges, dict):
            raise TypeError("axes")
        return {name: span["opt"] for name, span in ranges.items()}

    @property
    def largest_batch(self) -> int | None:
        """The largest size of the axis that is the first one of every input and output; None if
        they have no such axis in common, or if it has no range."""
        first = {info.shape[0] if info.shape else 0 for info in (*self.inputs, *self.outputs)}
        ranges = self.recipe.get("axes", {})
        if len(first) != 1 or not isinstance(ranges, dict):
            return None
        span = ranges.get(first.pop())
        largest = span.get("max") if isinstance(span, dict) else None
        return largest if isinstance(largest, int) else None

    @property
    def evidence(self) -> dict[str, str]:
        """The evidence of each group of figures in the result."""
        figures = {name: self.result.get(name) for name in _FIGURES}
        return {name: figure["evidence"] for name, figure in figures.items() if figure}

    def to_json(self) -> dict[str, Any]:
        body = {"schema": SCHEMA, **asdict(self), "evidence": self.evidence}
        # tuples become lists, as in a manifest that is read
        body = json.loads(json.dumps(body, allow_nan=False))
        return {**body, "check": digest_json(body)}

    def encoded(self) -> bytes:
        """The content of manifest.json."""
        text = json.dumps(self.to_json(), indent=2, sort_keys=True, ensure_ascii=False)
        return f"{text}\n".encode()

    @classmethod
    def of(cls, data: object, where: str) -> Self:
        """Raises IntegrityError (damaged), InputRefused (a schema of another version)."""
        body = _body(data, where)
        check = body.pop("check", None)
        try:
            sound = is_shallow(body) and check == digest_json(body)
        except (ValueError, RecursionError):  # canonical JSON has no form for such numbers
            sound = False
        if not sound:
            raise IntegrityError(
                "damaged: it does not match its own checksum", where=where, hint=_AGAIN
            )
        for key in ("schema", "evidence"):
            body.pop(key, None)
        try:
            manifest = from_json(cls, body)
            _check_types(manifest)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise IntegrityError(
                "damaged: fields are missing or wrong", where=where, hint=_AGAIN
            ) from error
        return manifest

    @property
    def contents(self) -> str:
        """A digest of every file's bytes."""
        return digest_json({name: file.sha256 for name, file in self.files.items()})

    @property
    def compiled(self) -> tuple[str, ...]:
        """The files that are machine code: the engine, and the file of the same name of the
        baseline."""
        return () if self._engine_is_a_graph else self._engines

    @property
    def run_as_graphs(self) -> tuple[str, ...]:
        """The same files, where they are graphs that a runtime compiles when it opens them."""
        return self._engines if self._engine_is_a_graph else ()

    @property
    def _engines(self) -> tuple[str, ...]:
        if self.engine is None:
            return ()
        both = (self.engine.file, f"{BASELINE}/{self.engine.file}")
        return tuple(name for name in both if name in self.files)

    @property
    def _engine_is_a_graph(self) -> bool:
        if self.engine is None or self.engine.backend not in BACKENDS:
            return False
        return backend(self.engine.backend).traits.engine == "graph"


def _other_folder(path: Path) -> str:
    """What to name in place of a folder that holds no artifact."""
    if (path / FLEET).is_file():
        return "it is the folder of a fleet: name one of its artifacts, which are folders beside it"
    if not path.is_dir():
        return with_nearest_file(path, "name the folder of an artifact; `optkit build` writes it")
    return "name the folder of an artifact; `optkit build` writes it"


def read(path: Path) -> Manifest:
    """The manifest of the artifact in folder `path`. Raises the errors of `Manifest.of`, and
    InputRefused if there is none."""
    where = path / MANIFEST
    if not is_text(str(path)):
        hint = "rename it with letters of UTF-8: reports name it, and no runtime opens its files"
        raise InputRefused(f"the folder {str(path)!a} is not UTF-8", where=str(path), hint=hint)
    try:
        descriptor = os.open(where, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        missing = "manifest.json" if path.exists() else "such folder"
        problem = f"not an artifact: there is no {missing}"
        raise InputRefused(problem, where=str(path), hint=_other_folder(path)) from error
    except OSError as error:
        raise IntegrityError(f"cannot be read: {error.strerror}", where=str(where)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise IntegrityError("not a regular file", where=str(where), hint=_AGAIN)
    with os.fdopen(descriptor, "rb") as file:
        text = file.read(_MANIFEST_BYTES)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise IntegrityError("damaged: not JSON", where=str(where), hint=_AGAIN) from error
    return Manifest.of(data, str(where))


def adapter_file(name: str) -> str:
    """The file of an adapter in an artifact."""
    return f"{ADAPTERS}/{name}.onnx_adapter"


def is_safe(name: str) -> bool:
    """Whether a manifest's file name stays inside the artifact's folder."""
    return (
        0 < len(name) <= 255
        and name.isprintable()
        and not set(name) & set("\\:")
        and all(part not in ("", ".", "..") for part in name.split("/"))
    )


def _body(data: object, where: str) -> dict[str, object]:
    """The fields of a manifest of this version."""
    body = dict(data) if isinstance(data, dict) else {}
    schema = body.get("schema")
    if not isinstance(schema, str) or not re.fullmatch(r"optkit\.artifact/v[0-9]+", schema):
        raise IntegrityError("damaged: not a manifest of optkit", where=where, hint=_AGAIN)
    if schema != SCHEMA:
        raise InputRefused(
            f"its schema is {schema}, but this version of optkit reads {SCHEMA}",
            where=where,
            hint="upgrade optkit, or build the artifact again with this one",
        )
    return body


def _check_types(manifest: Manifest) -> None:
    """Raises ValueError for a wrong type. The checksum detects accidents; this detects a manifest
    that another program wrote."""
    for what, sound in _CHECKS:
        if not sound(manifest):
            raise ValueError(what)


def _are(kind: type, values: Iterable[object]) -> bool:
    return all(isinstance(value, kind) for value in values)


def _is_tensor(info: TensorInfo) -> bool:
    return _are(str, (info.name, info.dtype)) and all(
        type(size) is int or isinstance(size, str) for size in info.shape
    )


def _is_file(name: str, file: File) -> bool:
    return (
        is_safe(name)
        and bool(_SHA256.fullmatch(file.sha256))
        and type(file.size) is int
        and file.role in (None, "serves", "proves")
    )


def _has_one_baseline(manifest: Manifest) -> bool:
    """Whether a build that is its own baseline has no other one."""
    return not manifest.own_baseline or not any(
        name.startswith(f"{BASELINE}/") for name in manifest.files
    )


_CHECKS: tuple[tuple[str, Callable[[Manifest], bool]], ...] = (
    ("texts", lambda m: _are(str, (m.name, m.target, m.precision, m.digest))),
    ("versions", lambda m: _are(str, m.versions.values())),
    ("digests of parts", lambda m: _are(str, m.parts.values())),
    ("recipe, result, data", lambda m: _are(dict, (m.recipe, m.result, m.data))),
    (
        "digests of data",
        lambda m: all(isinstance(d.get("digest"), str | None) for d in m.data.values()),
    ),
    ("instruction set", lambda m: m.instruction_set in (None, VNNI)),
    ("names", lambda m: all(map(NAME.fullmatch, (m.name, m.target, *m.parts)))),
    ("inputs, outputs", lambda m: all(map(_is_tensor, (*m.inputs, *m.outputs)))),
    ("axes", lambda m: all(type(size) is int and size >= 0 for size in m.axes.values())),
    ("evidence", lambda m: _are(str, m.evidence.values())),
    ("files", lambda m: all(starmap(_is_file, (*m.files.items(), *m.omitted.items())))),
    ("omitted files", lambda m: not m.files.keys() & m.omitted.keys()),
    ("own baseline", lambda m: type(m.own_baseline) is bool and _has_one_baseline(m)),
    ("engine", lambda m: m.engine is None or m.engine.file in m.files),
)
