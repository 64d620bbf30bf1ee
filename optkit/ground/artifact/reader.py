"""An artifact on disk: it is verified, and then run by a runtime of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from threading import Lock
from typing import Any, Self, TypedDict

from optkit.facts.errors import InputRefused, ToolchainMissing, UnsafeFile, UsageError, unknown_name
from optkit.facts.evidence import Evidence
from optkit.facts.tensors import Feed
from optkit.ground import trust
from optkit.ground.artifact import integrity
from optkit.ground.artifact.manifest import (
    BASELINE,
    MODEL,
    SIMULATION,
    VNNI,
    Manifest,
    adapter_file,
    read,
)
from optkit.ground.artifact.running import Running
from optkit.ground.devices import cpu, names, target
from optkit.ground.devices.machine import sums_in_16_bits
from optkit.ground.intake import check_onnx
from optkit.ground.operator_library import OperatorLibrary
from optkit.ground.runtimes import SIMULATOR, Level, SessionOptions, backend, simulator
from optkit.ground.store import digest_json


class SessionArguments(TypedDict, total=False):
    """The arguments of `Artifact.session`, for a function that forwards them."""

    threads: int | None
    spinning: bool
    level: Level | None
    pooled: bool
    cuda_graph: bool
    kept: Path | None
    adapter: str | None


class Artifact:
    """An artifact on disk. `load` trusts nothing; `verify` compares every byte, which detects
    damage but does not show who wrote the files. `trusted`: the caller knows the author."""

    def __init__(self, path: Path, manifest: Manifest, *, trusted: bool = False) -> None:
        self.path = path
        self.manifest = manifest
        self.trusted = trusted
        self._running: Running | None = None
        self._opening, self._process = Lock(), os.getpid()

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
        integrity.verify(self.path, self.manifest.files, added=added)

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
        added = self._adapter(adapter)
        self.verify()
        with self._held() as folder:
            if self.trusted:
                self._trust_operators()
            options = SessionOptions(
                threads,
                spinning,
                level or "all",
                pooled,
                self.manifest.target,
                cuda_graph,
                kept,
                None if added is None else folder / added,
                self.plugins,
            )
            return self._opened(folder, options, level)

    @contextmanager
    def _held(self) -> Iterator[Path]:
        """The folder from which the files that serve are opened. They cannot change between the
        check and their use, unless their author is trusted."""
        if self.trusted:
            yield self.path
            return
        with integrity.held(self.path, self.manifest.files, self.manifest.serving) as folder:
            yield folder

    def _opened(self, folder: Path, options: SessionOptions, level: Level | None) -> Running:
        """What can run here of the files in `folder`. Raises as `session` does."""
        reasons = [] if self.manifest.engine else ["no engine was compiled"]
        for name, file in self._on_target():
            if file in self.manifest.compiled and self._foreign_engine() is not None:
                reasons.append(f"its engine is not opened: {trust.FOREIGN}; {trust.HINT}")
                continue
            self._admit(folder / file, file, options)
            try:
                session = backend(name).session(folder / file, options)
            except ToolchainMissing as error:
                reasons.append(error.message)
            else:
                graph = f"{reasons[0]}; {file} runs on the device" if reasons else None
                note = graph or self._slower()
                batch = self.manifest.largest_batch if file in self.manifest.compiled else None
                return Running.of(session, name, Evidence.MEASURED, note, batch)
        return self._simulated(folder, reasons[0], options, level)

    def _simulated(
        self, folder: Path, note: str, options: SessionOptions, level: Level | None
    ) -> Running:
        """The graph on the CPU. `note`: why nothing else runs. Raises as `session` does."""
        if SIMULATION in self.manifest.omitted:
            raise ToolchainMissing(
                f"nothing of it runs here: {note}; and a slim copy has no {SIMULATION}",
                where=str(self.path),
                hint=f"run it on a host with {self.manifest.target} and its runtime, or use the "
                "whole artifact",
            )
        graph = SIMULATION if SIMULATION in self.manifest.files else MODEL
        self._admit(folder / graph, graph, options)
        basic = replace(options, level=level or "basic")
        session = simulator().session(folder / graph, basic)
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

    def admit_graph(self) -> None:
        """Raise InputRefused or WorkerFailed unless its graph may be opened in this process."""
        self._admit(self.model_path, MODEL, SessionOptions())

    def trust_here(self) -> None:
        """Record that this user trusts the artifact on this machine: later, no command refuses its
        engines, and its graphs are not tried first. The caller has verified who made it."""
        for manifest in (self.manifest, *(part.manifest for part in self.parts.values())):
            trust.know(manifest.contents)
            for name in manifest.compiled:
                trust.know(manifest.files[name].sha256)
        self._trust_operators()

    def _trust_operators(self) -> None:
        """Let this user's programs open the libraries of the graph's own operators."""
        for library in (self.manifest.operators, self.manifest.plugins):
            if library is not None:
                OperatorLibrary.trust(self.path / library)

    @property
    def plugins(self) -> OperatorLibrary | None:
        """The library of plugins that its engine needs; None: it needs none."""
        name = self.manifest.plugins
        if name is None:
            return None
        return OperatorLibrary(name.rpartition("/")[2], self.manifest.files[name].sha256)

    def require_own_engine(self) -> None:
        """Raise UnsafeFile for an engine of machine code that was not compiled here, or that
        another user may replace, and for a graph as an engine that the intake refuses, unless the
        caller trusts it."""
        foreign = self._foreign_engine()
        if foreign is not None:
            where = str(self.path / foreign)
            raise UnsafeFile(f"it is not opened: {trust.FOREIGN}", where=where, hint=trust.HINT)
        place = (
            None if self.trusted or not self.manifest.compiled else integrity.changeable(self.path)
        )
        if place is not None:
            raise UnsafeFile(
                "its engine is not opened: another user may replace it after it was checked",
                where=str(place),
                hint="copy the artifact into a folder that only you may write; or, if you trust "
                "all who may write it, optkit.load(path, trusted=True), or --trusted",
            )
        for name in () if self.trusted else self.manifest.run_as_graphs:
            check_onnx(self.path / name)

    def _foreign_engine(self) -> str | None:
        """The first engine of machine code that was not compiled here, as far as is known."""
        if self.trusted:
            return None
        listed = self.manifest.files
        foreign = (name for name in self.manifest.compiled if not trust.knows(listed[name].sha256))
        return next(foreign, None)

    def _adapter(self, name: str | None) -> str | None:
        """The name of an adapter's file. Raises UnknownName, UsageError (it has none)."""
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
        return adapter_file(name)

    def _admit(self, place: Path, file: str, options: SessionOptions) -> None:
        """Raise unless the graph `file`, which is at `place`, may be opened in this process.
        Engines are not checked."""
        whole = self.manifest.contents
        adapter = options.adapter and options.adapter.name
        tried = digest_json([whole, file, *([adapter] if adapter else [])])
        if self.trusted or file in self.manifest.compiled:
            return
        if trust.knows(whole) or trust.knows(tried):
            return
        trust.try_graph(
            place,
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

        The session of the first call stays open until `close`. Threads share it.
        """
        return self._shared().run(feed)

    def _shared(self) -> Running:
        """The session that `run` uses, opened by the first thread that needs it."""
        if self._process != os.getpid():  # the lock of the parent process may never be released
            self._opening, self._process = Lock(), os.getpid()
        with self._opening:
            if self._running is None:
                self._running = self.session()
            return self._running

    def __repr__(self) -> str:
        gate = (self.result.get("gate") or {}).get("verdict")
        return f"Artifact({str(self.path)!r}, gate={gate!r}, digest={self.digest[:12]!r})"

    def _repr_html_(self) -> str | None:
        """The head of the report, which a notebook shows."""
        head: Callable[[Artifact], str | None] = resolve_name("optkit.show.report.head:of_artifact")
        return head(self)

    def close(self) -> None:
        """Close the session that `run` opened. It may be called twice. A call of `run` that begins
        in another thread meanwhile raises UsageError, or opens a session."""
        running, self._running = self._running, None
        if running is not None:
            running.close()

    def __getstate__(self) -> dict[str, object]:
        """What a copy has, also one in another process: everything but the session."""
        return {"path": self.path, "manifest": self.manifest, "trusted": self.trusted}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
