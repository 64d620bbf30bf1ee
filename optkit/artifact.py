"""The artifact: a folder with `manifest.json`, written last, that stands alone.

    manifest.json     schema optkit.artifact/v1: files with sha256 and size, recipe, inputs, tool
                      versions, the result with its evidence, and a checksum of all that
    model.onnx, engine, baseline/, report.*, recipe.yaml, …   whatever the build put in
    encoder/, decoder/   of a model that is two graphs: an artifact each, instead of all these

Written aside and exchanged with the old one (`exchange`): a reader sees one of the two, whole.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from optkit import trust
from optkit.devices import cpu, names, target
from optkit.devices.machine import sums_in_16_bits
from optkit.errors import (
    InputRefused,
    IntegrityError,
    ToolchainMissing,
    UnsafeFile,
    UsageError,
)
from optkit.evidence import Evidence
from optkit.exchange import replacing
from optkit.execute.proxy import by_name
from optkit.intake.files import copy_in, show
from optkit.runtimes import (
    BACKENDS,
    SIMULATOR,
    Level,
    Loop,
    Recurrent,
    SessionOptions,
    backend,
    simulator,
)
from optkit.store import digest_file, digest_json, is_shallow, storage_errors, write_durably
from optkit.tensors import Feed, TensorInfo

SCHEMA = "optkit.artifact/v1"
MANIFEST = "manifest.json"
MODEL = "model.onnx"
SIMULATION = "simulation.onnx"
SAMPLES = "eval.safetensors"
VNNI = "vnni"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MANIFEST_BYTES = 64 << 20
_FIGURES = ("engine", "latency", "accuracy", "fidelity", "speedup", "drop", "size")


@dataclass(frozen=True)
class File:
    """What the manifest knows of one file."""

    sha256: str
    size: int  # bytes


@dataclass(frozen=True)
class Manifest:
    """What is built here and what is known of it.

    `digest` identifies the build (no engine bytes, timings or paths go into it). `engine`: the
    compiled engine's backend and its file in the artifact; None while there is no engine. `data`:
    the samples used, by role ("calibration", "evaluation"): source, args, number and digest.
    `instruction_set`: what the 8-bit products
    of a graph for CPUs assume: "vnni" (or Arm: sums in 32 bits), None: any CPU computes the same.
    `parts`: folder → digest of the artifacts that this one consists of; it has no graph then.
    `files`: every other file by its relative name; `write` fills them in.
    """

    name: str
    target: str
    precision: str
    digest: str
    recipe: dict[str, Any]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    versions: dict[str, str]
    result: dict[str, Any]  # optkit.result/v1
    data: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, str] | None = None  # {"backend", "file"}
    instruction_set: str | None = None
    parts: dict[str, str] = field(default_factory=dict)
    files: dict[str, File] = field(default_factory=dict)

    @property
    def evidence(self) -> dict[str, str]:
        """How each group of figures in the result is known."""
        found = {name: self.result.get(name) for name in _FIGURES}
        return {name: figure["evidence"] for name, figure in found.items() if figure}

    def to_json(self) -> dict[str, Any]:
        body = {"schema": SCHEMA, **asdict(self), "evidence": self.evidence}
        body = json.loads(json.dumps(body, allow_nan=False))  # tuples become lists, as when read
        return {**body, "check": digest_json(body)}

    @classmethod
    def from_json(cls, data: Any, where: str) -> Self:
        """Raises IntegrityError (damaged), InputRefused (a schema of another version)."""
        _check_schema(data, where)
        body = {key: value for key, value in data.items() if key != "check"}
        try:
            sound = is_shallow(body) and data.get("check") == digest_json(body)
        except (ValueError, RecursionError):  # canonical JSON has no form for such numbers
            sound = False
        if not sound:
            raise IntegrityError("damaged: it does not match its own checksum", where=where)
        for key in ("schema", "evidence"):
            body.pop(key, None)
        try:
            body["files"] = {name: File(**facts) for name, facts in body["files"].items()}
            for key in ("inputs", "outputs"):
                body[key] = tuple(
                    TensorInfo(i["name"], i["dtype"], tuple(i["shape"])) for i in body[key]
                )
            manifest = cls(**body)
            manifest._check_types()
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise IntegrityError("damaged: fields are missing or wrong", where=where) from error
        return manifest

    def _check_types(self) -> None:
        """Raises ValueError. The checksum finds accidents; this, a manifest made by other means."""
        texts = (self.name, self.target, self.precision, self.digest, *self.versions.values(),
                 *self.parts.values())  # fmt: skip
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("text")
        if not all(isinstance(one, dict) for one in (self.recipe, self.result, self.data)):
            raise ValueError("recipe, result, data")
        for samples in self.data.values():
            if not isinstance(samples.get("digest"), str | None):
                raise ValueError("data")
        if self.instruction_set not in (None, VNNI):
            raise ValueError("instruction set")
        if not all(map(_NAME.fullmatch, (self.name, self.target, *self.parts))):
            raise ValueError("name")
        for info in (*self.inputs, *self.outputs):
            if not isinstance(info.name, str) or not isinstance(info.dtype, str):
                raise ValueError("inputs, outputs")
            if not all(type(d) is int or isinstance(d, str) for d in info.shape):
                raise ValueError("shape")
        for span in self.recipe.get("axes", {}).values():
            if type(span["opt"]) is not int or span["opt"] < 0:
                raise ValueError("axes")
        if not all(isinstance(evidence, str) for evidence in self.evidence.values()):
            raise ValueError("evidence")
        for name, file in self.files.items():
            if not _safe(name) or not _SHA256.fullmatch(file.sha256) or type(file.size) is not int:
                raise ValueError(name)
        if self.engine is not None and (
            set(self.engine) != {"backend", "file"} or self.engine["file"] not in self.files
        ):
            raise ValueError("engine")


@dataclass(frozen=True)
class Running:
    """A loaded artifact as a Session that also says what runs, and what its figures are worth."""

    session: Recurrent
    backend: str
    evidence: Evidence  # measured: the target's own engine; simulated: its graph elsewhere
    note: str | None
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]

    def run(self, feed: Feed) -> Feed:
        return self.session.run(by_name(feed, [info.name for info in self.inputs]))

    def loop(self, carried: Mapping[str, str], start: Feed, room: int | None = None) -> Loop:
        return self.session.loop(carried, start, room)

    def close(self) -> None:
        self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Artifact:
    """An artifact on disk. `load` trusts nothing; `verify` compares every byte, which finds damage
    and tells nothing of who made them. `trusted`: the caller knows that."""

    def __init__(self, path: Path, manifest: Manifest, *, trusted: bool = False) -> None:
        self.path = path
        self.manifest = manifest
        self.trusted = trusted
        self._running: Running | None = None

    @classmethod
    def load(cls, path: Path, *, trusted: bool = False) -> Self:
        """Read the manifest of the artifact in folder `path`.

        Raises InputRefused (no artifact, or one of another version), IntegrityError (damaged).
        """
        return cls(path, _read_manifest(path), trusted=trusted)

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def digest(self) -> str:
        """Identity of the build: the same inputs give the same digest, on any machine."""
        return self.manifest.digest

    @property
    def result(self) -> dict[str, Any]:
        """The optkit.result/v1 object that the build printed."""
        return self.manifest.result

    @property
    def parts(self) -> dict[str, Self]:
        """The artifacts that this one consists of, by name; none where it is one graph."""
        load, trusted = type(self).load, self.trusted
        return {name: load(self.path / name, trusted=trusted) for name in self.manifest.parts}

    @property
    def measurement(self) -> dict[str, Any]:
        """latency, accuracy and fidelity, each with its evidence (or None)."""
        return {figure: self.result.get(figure) for figure in ("latency", "accuracy", "fidelity")}

    @property
    def model_path(self) -> Path:
        return self.path / MODEL

    def verify(self) -> None:
        """Raise IntegrityError naming the files that are missing, changed, added or no files."""
        present, listed = dict(_walk(self.path)), self.manifest.files
        problems = [f"{show(name)} was added" for name in sorted(present.keys() - listed.keys())]
        for name, facts in listed.items():
            info = present.get(name)
            if info is None:
                problems.append(f"{name} is missing")
            elif not stat.S_ISREG(info.st_mode):
                problems.append(f"{name} is a link or no regular file")
            elif info.st_size != facts.size or digest_file(self.path / name) != facts.sha256:
                problems.append(f"{name} was changed")
        if problems:
            more = f", and {len(problems) - 5} more" if len(problems) > 5 else ""
            raise IntegrityError(
                ", ".join(problems[:5]) + more,
                where=str(self.path),
                hint="build the artifact again, or copy it again from where it is sound",
            )

    def session(
        self,
        *,
        threads: int | None = None,
        spinning: bool = True,
        level: Level | None = None,
        pooled: bool = True,
        cuda_graph: bool = False,
        kept: Path | None = None,
    ) -> Running:
        """Verify, then load: the engine where its backend can run; else, on the target itself, its
        graph through ONNX Runtime's provider for that device; else the graph on the CPU.

        Unless it is `trusted` or was written here, an engine that is machine code is passed over,
        and a graph is checked by the intake and run once in a child with limits, which is then
        noted (`trust`): the session itself runs in this process, without limits.

        Options are those of `runtimes.SessionOptions`; `level` None: all of an engine, basic of a
        simulation, which keeps its Q/DQ as written. Raises IntegrityError, ToolchainMissing,
        UsageError (several graphs), InputRefused and WorkerFailed (a foreign graph).
        """
        if self.manifest.parts:
            raise UsageError(
                f"it consists of {' and '.join(self.manifest.parts)}",
                where=str(self.path),
                hint="open one of its `parts`, or run all by `optkit generate`",
            )
        self.verify()
        options = SessionOptions(
            threads, spinning, level or "all", pooled, self.manifest.target, cuda_graph, kept
        )
        reasons = [] if self.manifest.engine else ["no engine was compiled"]
        for name, file in self._on_target():
            if file in _engines(self.manifest) and self._foreign_engine() is not None:
                reasons.append(f"its engine is not opened: {trust.FOREIGN}; {trust.HINT}")
                continue
            self._admit(file, threads)
            try:
                session = backend(name).session(self.path / file, options)
            except ToolchainMissing as error:
                reasons.append(error.message)
            else:
                graph = f"{reasons[0]}; {file} runs on the device" if reasons else None
                return _running(session, name, Evidence.MEASURED, graph or self._slower())
        note = reasons[0]
        graph = SIMULATION if SIMULATION in self.manifest.files else MODEL
        self._admit(graph, threads)
        basic = replace(options, level=level or "basic")
        session = simulator().session(self.path / graph, basic)
        return _running(session, SIMULATOR, Evidence.SIMULATED, f"{note}; {graph} runs")

    def _slower(self) -> str | None:
        """What is to be known of an engine for CPUs with VNNI on one without."""
        here = cpu()
        if self.manifest.instruction_set != VNNI or not sums_in_16_bits(
            here.machine, here.features
        ):
            return None
        return (
            "its 8-bit weights were made for VNNI, which this CPU lacks: results are the same, by "
            "slower kernels; build it again here for the faster ones"
        )

    def require_own_engine(self) -> None:
        """Raise UnsafeFile unless every engine in it that is machine code was compiled here, or the
        caller trusts it."""
        foreign = self._foreign_engine()
        if foreign is not None:
            where = str(self.path / foreign)
            raise UnsafeFile(f"it is not opened: {trust.FOREIGN}", where=where, hint=trust.HINT)

    def _foreign_engine(self) -> str | None:
        """The first engine that is machine code of somebody else, as far as is known."""
        files, engines = self.manifest.files, _engines(self.manifest)
        return next(
            (name for name in engines if not self.trusted and not trust.knows(files[name].sha256)),
            None,
        )

    def _admit(self, file: str, threads: int | None) -> None:
        """Raise unless that graph may be opened in this process; engines pass."""
        whole = _contents(self.manifest)
        tried = digest_json([whole, file])
        if self.trusted or file in _engines(self.manifest):
            return
        if trust.knows(whole) or trust.knows(tried):
            return
        axes = self.manifest.recipe.get("axes", {})
        trust.try_graph(
            self.path / file,
            self.manifest.inputs,
            {axis: span["opt"] for axis, span in axes.items()},
            {"level": "basic", **({} if threads is None else {"threads": threads})},
        )
        trust.know(tried)

    def _on_target(self) -> Iterator[tuple[str, str]]:
        """Backend and file of all that runs on the target itself, the engine first."""
        engine = self.manifest.engine
        if engine is not None:
            yield engine["backend"], engine["file"]
        if self.manifest.target not in names():
            return
        for option in target(self.manifest.target).backends:
            traits = backend(option.name).traits
            own = engine is not None and option.name == engine["backend"]
            if traits.engine == "graph" and not traits.on_cpu and not own:
                yield option.name, MODEL

    def run(self, feed: Feed) -> Feed:
        """Outputs for one feed: arrays by name, or what `np.asarray` takes (a CPU tensor). Raises
        UsageError for anything else.

        The session of the first call stays open until `close`.
        """
        if self._running is None:
            self._running = self.session()
        return self._running.run(feed)

    def __repr__(self) -> str:
        gate = (self.result.get("gate") or {}).get("verdict")
        return f"Artifact({str(self.path)!r}, gate={gate!r}, digest={self.digest[:12]!r})"

    def close(self) -> None:
        """Close what `run` opened. May be called twice."""
        if self._running is not None:
            self._running.close()
            self._running = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _contents(manifest: Manifest) -> str:
    """A digest of every file's bytes."""
    return digest_json({name: file.sha256 for name, file in manifest.files.items()})


def _engines(manifest: Manifest) -> tuple[str, ...]:
    """The files that are machine code: the engine, and the baseline's of the same name."""
    if manifest.engine is None:
        return ()
    maker = manifest.engine["backend"]
    if maker in BACKENDS and backend(maker).traits.engine == "graph":
        return ()
    file = manifest.engine["file"]
    return tuple(name for name in (file, f"baseline/{file}") if name in manifest.files)


def _running(session: Recurrent, name: str, evidence: Evidence, note: str | None) -> Running:
    return Running(session, name, evidence, note, session.inputs, session.outputs)


def prepare(out: Path, name: str, kind: str = "artifact", marker: str = MANIFEST) -> None:
    """Make sure, before any work, that an artifact `name` can be written into folder `out` (or what
    else is a folder of that `kind`, known by the file `marker` in it).

    Nothing is left there. Raises StorageError (not writable), UsageError (the name, or something of
    that name that is no artifact and would be lost).
    """
    check_name(kind, name)
    place = out / name
    with storage_errors(out):
        try:
            with tempfile.TemporaryFile(dir=_existing(out)):
                pass
        except OSError as error:
            error.filename = str(out)
            raise
        taken = place.is_symlink() or place.exists()
        if taken and (place.is_symlink() or not (place / marker).is_file()):
            raise UsageError(
                f"exists and is no {kind} of optkit",
                where=str(place),
                hint="move it away, or choose another --out",
            )


def create(out: Path) -> None:
    """The folder for artifacts. A new or empty one gets a .gitignore, one with other content is
    left as it is. Raises StorageError."""
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        if not any(out.iterdir()):
            (out / ".gitignore").write_text("*\n")


def _existing(out: Path) -> Path:
    """The folder itself, or the nearest around it that is there."""
    return next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())


def check_name(kind: str, name: str) -> None:
    """Raise UsageError unless `name` is safe as a file name anywhere."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{show(name)} cannot name {'an' if kind[0] in 'aeiou' else 'a'} {kind}",
            hint="use letters, digits, '.', '_' and '-', at most 128, a letter or digit first",
        )


def write(out: Path, manifest: Manifest, files: Mapping[str, Path | bytes]) -> Artifact:
    """Write the artifact `out/<name>`, replacing an older one of that name at once.

    `files`: name in the artifact (may have folders) → the file to copy, or its bytes. On any error
    nothing is visible and the older artifact stays. Raises StorageError, UsageError.
    """
    check_name("target", manifest.target)
    prepare(out, manifest.name)
    create(out)
    place = out / manifest.name
    with replacing(place) as folder:
        facts = {name: _put(folder, name, files[name]) for name in sorted(files)}
        manifest = replace(manifest, files=facts)
        text = json.dumps(manifest.to_json(), indent=2, sort_keys=True, ensure_ascii=False)
        write_durably(folder / MANIFEST, f"{text}\n".encode())
    for known in (_contents(manifest), *(facts[name].sha256 for name in _engines(manifest))):
        trust.know(known)
    return Artifact(place, manifest)


def _put(folder: Path, name: str, content: Path | bytes) -> File:
    """Write one file durably."""
    if not _safe(name) or name == MANIFEST:
        raise UsageError(f"{show(name)} cannot name a file of an artifact")
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        write_durably(target, content)
        return File(digest_file(target), len(content))
    with content.open("rb") as source:
        limit = os.fstat(source.fileno()).st_size
        sha256, size = copy_in(source.fileno(), target, limit_bytes=limit, where=str(content))
    target.chmod(0o644)
    return File(sha256, size)


def _safe(name: str) -> bool:
    """Whether a manifest's file name stays inside the artifact's folder."""
    return (
        0 < len(name) <= 255
        and name.isprintable()
        and not set(name) & set("\\:")
        and all(part not in ("", ".", "..") for part in name.split("/"))
    )


def _read_manifest(path: Path) -> Manifest:
    where = path / MANIFEST
    try:
        descriptor = os.open(where, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputRefused(
            "no artifact: there is no manifest.json", where=str(path), hint="name its folder"
        ) from error
    except OSError as error:
        raise IntegrityError(f"cannot be read: {error.strerror}", where=str(where)) from error
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise IntegrityError("not a regular file", where=str(where))
        text = file.read(_MANIFEST_BYTES)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise IntegrityError("damaged: not JSON", where=str(where)) from error
    return Manifest.from_json(data, str(where))


def _check_schema(data: Any, where: str) -> None:
    schema = data.get("schema") if isinstance(data, dict) else None
    if not isinstance(schema, str) or not re.fullmatch(r"optkit\.artifact/v[0-9]+", schema):
        raise IntegrityError("damaged: not a manifest of optkit", where=where)
    if schema != SCHEMA:
        raise InputRefused(
            f"schema {schema}, this optkit reads {SCHEMA}",
            where=where,
            hint="upgrade optkit, or build the artifact again with this one",
        )


def _walk(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    """(relative name, lstat) of everything but folders and the manifest; follows no link."""
    for folder, folders, files in os.walk(path):
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in (*files, *links):
            found = Path(folder) / name
            relative = found.relative_to(path).as_posix()
            if relative != MANIFEST:
                yield relative, found.lstat()
