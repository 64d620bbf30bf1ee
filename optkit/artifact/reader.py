"""An artifact on disk: it is verified, and then run by a runtime of this machine."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Self, TypedDict

import numpy as np

from optkit import trust
from optkit.artifact.manifest import (
    BASELINE,
    MANIFEST,
    MODEL,
    SIGNATURE,
    SIMULATION,
    VNNI,
    Manifest,
    adapter_file,
    read,
)
from optkit.devices import cpu, names, target
from optkit.devices.machine import sums_in_16_bits
from optkit.errors import (
    InputRefused,
    IntegrityError,
    ToolchainMissing,
    UnsafeFile,
    UsageError,
    unknown_name,
)
from optkit.evidence import Evidence
from optkit.execute.proxy import by_name
from optkit.intake.files import show
from optkit.runtimes import SIMULATOR, Level, Loop, Recurrent, SessionOptions, backend, simulator
from optkit.store import digest_file, digest_json
from optkit.tensors import Feed, TensorInfo


class SessionArguments(TypedDict, total=False):
    """The arguments of `Artifact.session`, for a function that forwards them."""

    threads: int | None
    spinning: bool
    level: Level | None
    pooled: bool
    cuda_graph: bool
    kept: Path | None
    adapter: str | None


@dataclass(frozen=True)
class Running:
    """A loaded artifact as a Session, with the backend that runs and the evidence of its
    figures."""

    session: Recurrent
    backend: str
    evidence: Evidence  # measured: the target's own engine; simulated: its graph on another device
    note: str | None
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    batch: int | None = None  # the largest batch of the engine; None: any

    @classmethod
    def of(
        cls,
        session: Recurrent,
        backend: str,
        evidence: Evidence,
        note: str | None,
        batch: int | None = None,
    ) -> Self:
        return cls(session, backend, evidence, note, session.inputs, session.outputs, batch)

    def run(self, feed: Feed) -> Feed:
        """Outputs for one feed. A batch that is larger than the engine's largest one runs in
        parts, and the outputs are joined."""
        arrays = by_name(feed, [info.name for info in self.inputs])
        rows = {len(array) if array.ndim else 0 for array in arrays.values()}
        if self.batch is None or len(rows) != 1 or max(rows) <= self.batch:
            return self.session.run(arrays)
        parts = [
            self.session.run({name: array[i : i + self.batch] for name, array in arrays.items()})
            for i in range(0, max(rows), self.batch)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def loop(self, carried: Mapping[str, str], start: Feed, room: int | None = None) -> Loop:
        return self.session.loop(carried, start, room)

    def close(self) -> None:
        self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Artifact:
    """An artifact on disk. `load` trusts nothing; `verify` compares every byte, which detects
    damage but does not show who wrote the files. `trusted`: the caller knows the author."""

    def __init__(self, path: Path, manifest: Manifest, *, trusted: bool = False) -> None:
        self.path = path
        self.manifest = manifest
        self.trusted = trusted
        self._running: Running | None = None

    @classmethod
    def load(cls, path: Path, *, trusted: bool = False) -> Self:
        """Read the manifest of the artifact in folder `path`.

        Raises InputRefused (not an artifact, or of another version), IntegrityError (damaged).
        """
        return cls(path, read(path), trusted=trusted)

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
        """The artifacts of which this one consists, by name; empty if it is one graph."""
        load, trusted = type(self).load, self.trusted
        return {name: load(self.path / name, trusted=trusted) for name in self.manifest.parts}

    @property
    def adapters(self) -> tuple[str, ...]:
        """The names of the adapters that `session` may use."""
        return self.manifest.adapters

    @property
    def measurement(self) -> dict[str, Any]:
        """latency, accuracy and fidelity, each with its evidence (or None)."""
        return {figure: self.result.get(figure) for figure in ("latency", "accuracy", "fidelity")}

    @property
    def model_path(self) -> Path:
        return self.path / MODEL

    @property
    def baseline_path(self) -> Path:
        """The folder of the baseline's graph and engine: the artifact itself if the build is its
        own baseline. Raises InputRefused if this is a slim copy without it."""
        if self.manifest.own_baseline:
            return self.path
        self.require(f"{BASELINE}/{MODEL}")
        return self.path / BASELINE

    def require(self, name: str) -> Path:
        """The path of a file. Raises InputRefused if this is a slim copy without it."""
        if name in self.manifest.omitted:
            raise InputRefused(
                f"this is a slim copy, without {name}",
                where=str(self.path),
                hint="use the whole artifact, of which `optkit package --format slim` made it",
            )
        return self.path / name

    def verify(self, *, added: bool = False) -> None:
        """Raise IntegrityError with the names of files that are missing, changed, added or not
        regular. A signature may be there; it is not verified here. `added`: whether other files may
        be there too."""
        present, listed = dict(_walk(self.path)), self.manifest.files
        others = [] if added else sorted(present.keys() - listed.keys())
        problems = [f"{show(name)} was added" for name in others]
        for name, facts in listed.items():
            info = present.get(name)
            if info is None:
                problems.append(f"{name} is missing")
            elif not stat.S_ISREG(info.st_mode):
                problems.append(f"{name} is a link, or not a regular file")
            elif info.st_size != facts.size or digest_file(self.path / name) != facts.sha256:
                problems.append(f"{name} was changed")
        if problems:
            rest = "build the artifact again, or copy it again from an undamaged copy"
            if len(others) == len(problems):
                rest = "remove what was added: all other files are as the manifest lists them"
            more = f", and {len(problems) - 5} more" if len(problems) > 5 else ""
            raise IntegrityError(
                ", ".join(problems[:5]) + more,
                where=str(self.path),
                hint=rest,
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
        adapter: str | None = None,
    ) -> Running:
        """Verify the artifact, then open what can run here: the engine if its backend can run it;
        otherwise, on the target, the graph through ONNX Runtime's provider for the device;
        otherwise the graph on the CPU, if this is no slim copy.

        Unless the artifact is `trusted` or was written on this machine, an engine of machine code
        is skipped, and a graph is checked by the intake and run once in a child with limits.
        `trust` records the success. The session itself runs in this process, without limits.

        Options are those of `runtimes.SessionOptions`. `level`: None: all optimizations for an
        engine, basic ones for a simulation, which keeps its Q/DQ as written. `adapter`: one of
        `adapters`; None: the model without one.

        Raises IntegrityError, ToolchainMissing, UsageError (several graphs, no adapters),
        UnknownName (the adapter), InputRefused and WorkerFailed (a foreign graph).
        """
        if self.manifest.parts:
            raise UsageError(
                f"it consists of {' and '.join(self.manifest.parts)}",
                where=str(self.path),
                hint="open one of its `parts`, or run all parts with `optkit generate`",
            )
        self.verify()
        options = SessionOptions(
            threads, spinning, level or "all", pooled, self.manifest.target, cuda_graph, kept,
            self._adapter(adapter),
        )  # fmt: skip
        reasons = [] if self.manifest.engine else ["no engine was compiled"]
        for name, file in self._on_target():
            if file in self.manifest.compiled and self._foreign_engine() is not None:
                reasons.append(f"its engine is not opened: {trust.FOREIGN}; {trust.HINT}")
                continue
            self._admit(file, options)
            try:
                session = backend(name).session(self.path / file, options)
            except ToolchainMissing as error:
                reasons.append(error.message)
            else:
                graph = f"{reasons[0]}; {file} runs on the device" if reasons else None
                note = graph or self._slower()
                batch = self.manifest.largest_batch if file in self.manifest.compiled else None
                return Running.of(session, name, Evidence.MEASURED, note, batch)
        return self._simulated(reasons[0], options, level)

    def _simulated(self, note: str, options: SessionOptions, level: Level | None) -> Running:
        """The graph on the CPU. `note`: why nothing else runs. Raises as `session` does."""
        if SIMULATION in self.manifest.omitted:
            raise ToolchainMissing(
                f"nothing of it runs here: {note}; and a slim copy has no {SIMULATION}",
                where=str(self.path),
                hint=f"run it on a host with {self.manifest.target} and its runtime, or use the "
                "whole artifact",
            )
        graph = SIMULATION if SIMULATION in self.manifest.files else MODEL
        self._admit(graph, options)
        basic = replace(options, level=level or "basic")
        session = simulator().session(self.path / graph, basic)
        return Running.of(session, SIMULATOR, Evidence.SIMULATED, f"{note}; {graph} runs")

    def _slower(self) -> str | None:
        """A note on an engine for CPUs with VNNI, on a CPU without it."""
        here = cpu()
        if self.manifest.instruction_set != VNNI or not sums_in_16_bits(
            here.machine, here.features
        ):
            return None
        return (
            "its 8-bit weights were made for VNNI, which this CPU lacks: the results are the same, "
            "but the kernels are slower; build it again on this machine for faster ones"
        )

    def trust_here(self) -> None:
        """Record that this user trusts the artifact on this machine: later, no command refuses its
        engines, and its graphs are not tried first. The caller has verified who made it."""
        for manifest in (self.manifest, *(part.manifest for part in self.parts.values())):
            trust.know(manifest.contents)
            for name in manifest.compiled:
                trust.know(manifest.files[name].sha256)

    def require_own_engine(self) -> None:
        """Raise UnsafeFile for an engine of machine code that was not compiled here, unless the
        caller trusts it."""
        foreign = self._foreign_engine()
        if foreign is not None:
            where = str(self.path / foreign)
            raise UnsafeFile(f"it is not opened: {trust.FOREIGN}", where=where, hint=trust.HINT)

    def _foreign_engine(self) -> str | None:
        """The first engine of machine code that was not compiled here, as far as is known."""
        if self.trusted:
            return None
        files = self.manifest.files
        foreign = (name for name in self.manifest.compiled if not trust.knows(files[name].sha256))
        return next(foreign, None)

    def _adapter(self, name: str | None) -> Path | None:
        """The file of an adapter. Raises UnknownName, UsageError (it has none)."""
        if name is None:
            return None
        if not self.adapters:
            raise UsageError(
                f"it has no adapters, so none is named {name!r}",
                where=str(self.path),
                hint="`optkit package --format lora --adapter FOLDER` writes an artifact with them",
            )
        if name not in self.adapters:
            raise unknown_name("adapter", name, self.adapters)
        return self.path / adapter_file(name)

    def _admit(self, file: str, options: SessionOptions) -> None:
        """Raise unless the graph may be opened in this process. Engines are not checked."""
        whole = self.manifest.contents
        adapter = options.adapter and options.adapter.name
        tried = digest_json([whole, file, *([adapter] if adapter else [])])
        if self.trusted or file in self.manifest.compiled:
            return
        if trust.knows(whole) or trust.knows(tried):
            return
        trust.try_graph(
            self.path / file,
            self.manifest.inputs,
            self.manifest.axes,
            {
                "level": "basic",
                **({} if options.threads is None else {"threads": options.threads}),
                **({} if options.adapter is None else {"adapter": str(options.adapter.absolute())}),
            },
        )
        trust.know(tried)

    def _on_target(self) -> Iterator[tuple[str, str]]:
        """Backend and file of everything that runs on the target itself, the engine first."""
        engine = self.manifest.engine
        if engine is not None:
            yield engine.backend, engine.file
        if self.manifest.target not in names():
            return
        for option in target(self.manifest.target).backends:
            traits = backend(option.name).traits
            runs_engine = engine is not None and option.name == engine.backend
            if traits.engine == "graph" and not traits.on_cpu and not runs_engine:
                yield option.name, MODEL

    def run(self, feed: Feed) -> Feed:
        """Outputs for one feed: arrays by name, or objects that `np.asarray` accepts (a CPU
        tensor). Raises UsageError for anything else.

        The session of the first call stays open until `close`.
        """
        if self._running is None:
            self._running = self.session()
        return self._running.run(feed)

    def __repr__(self) -> str:
        gate = (self.result.get("gate") or {}).get("verdict")
        return f"Artifact({str(self.path)!r}, gate={gate!r}, digest={self.digest[:12]!r})"

    def _repr_html_(self) -> str | None:
        """The head of the report, which a notebook shows."""
        head: Callable[[Artifact], str | None] = resolve_name("optkit.report.head:of_artifact")
        return head(self)

    def close(self) -> None:
        """Close the session that `run` opened. It may be called twice."""
        if self._running is not None:
            self._running.close()
            self._running = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _walk(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    """(relative name, lstat) of everything but folders, the manifest and the signature; follows no
    link."""
    for folder, folders, files in os.walk(path):
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in (*files, *links):
            file = Path(folder) / name
            relative = file.relative_to(path).as_posix()
            info = file.lstat()
            signature = relative == SIGNATURE and stat.S_ISREG(info.st_mode)
            if relative != MANIFEST and not signature:
                yield relative, info
