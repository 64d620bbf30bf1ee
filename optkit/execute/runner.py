"""Run a step unless the store already holds its result: the one place where keys are made.

key = digest(step, its version, digests of its inputs, parameters, versions of its tools). What is
only *where* (absolute paths, memory, threads that do not change the result) travels beside the
parameters as `here` and never enters a key.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from optkit import store as stores
from optkit.errors import OptkitError, StorageError
from optkit.execute.local import Limits
from optkit.execute.staying import Workers
from optkit.store import Entry, Store

_TOLD = 5  # warnings of one step


class Input(Protocol):
    """Anything a step can read: an Entry, or a staged foreign file."""

    @property
    def path(self) -> Path: ...

    @property
    def digest(self) -> str: ...


@dataclass(frozen=True)
class StepKind:
    """Name, version (raise it when the step's meaning changes), and the distributions whose
    versions belong to its identity.

    `resumes`: it goes on where a killed try of it ended. `stays`: it runs no foreign code and
    leaves nothing behind, so that the next may use its worker. `shards`: with params["shard"] =
    [i, n] it does a part of the work, and with the folders of all parts as inputs shard-0,
    shard-1, … it puts them together, to the bits of one run.
    """

    name: str
    version: int
    tools: tuple[str, ...] = ()
    resumes: bool = False
    stays: bool = False
    shards: bool = False


class Made(Protocol):
    """What a step left: an Entry of the store, or a Planned one in a rehearsal."""

    @property
    def path(self) -> Path: ...

    @property
    def digest(self) -> str: ...

    @property
    def meta(self) -> Mapping[str, Any]: ...

    @property
    def files(self) -> Mapping[str, str]: ...

    def file(self, name: str) -> Path: ...


class Steps(Protocol):
    """What the pipeline needs of a Runner, or of a Rehearsal."""

    @property
    def objects(self) -> Path:
        """Where foreign files are staged."""

    @property
    def limits(self) -> Limits: ...

    def recalled(self, made: Made) -> bool:
        """Whether a step's result was in the store before this run began."""

    def step(
        self,
        kind: StepKind,
        label: str,
        inputs: Mapping[str, Input],
        params: dict[str, Any],
        here: Mapping[str, Any] | None = None,
    ) -> Made: ...

    def step_reading_code(
        self,
        kind: StepKind,
        label: str,
        inputs: Mapping[str, Input],
        params: dict[str, Any],
        here: Mapping[str, Any] | None = None,
        *,
        place: str = "",
    ) -> Made: ...


class Listener(Protocol):
    """Who is told what happens; the CLI draws it, the API ignores it."""

    def start(self, step: str, label: str) -> None: ...

    def progress(self, what: str, fraction: float) -> None: ...

    def done(self, step: str, label: str, hit: bool, seconds: float) -> None: ...

    def note(self, text: str) -> None: ...


@dataclass(frozen=True)
class Record:
    """One step of this run, for the report's provenance."""

    step: str
    label: str
    key: str
    hit: bool
    seconds: float


@dataclass
class Runner:
    """Runs steps through the store, each in a worker. `records` tells what was done."""

    store: Store
    limits: Limits
    listener: Listener
    carry: Callable[..., dict[str, Any]] = field(default_factory=Workers)
    records: list[Record] = field(default_factory=list)

    @property
    def objects(self) -> Path:
        return self.store.objects

    def recalled(self, made: Made) -> bool:
        """See `Steps`."""
        key = made.key if isinstance(made, Entry) else None
        known = [record.hit for record in self.records if record.key == key]
        return bool(known) and all(known)

    def step(
        self,
        kind: StepKind,
        label: str,
        inputs: Mapping[str, Input],
        params: dict[str, Any],
        here: Mapping[str, Any] | None = None,
    ) -> Entry:
        """The step's entry, from the store or freshly made in a worker. One that `resumes` finds in
        params["checkpoint"] the folder in which a killed try of it left how far it came."""
        key = key_of(kind, inputs, params)
        checkpoint = self.store.root / "tmp" / f"resume-{key}"
        if kind.resumes:
            here = {**(here or {}), "checkpoint": str(checkpoint)}
        try:
            entry = self._make(kind, label, lambda produce: self.store.make(
                key, kind.name, produce, self._waiting(label)
            ), inputs, params, here)  # fmt: skip
        except StorageError:  # a full disk needs the room more than the next try its head start
            shutil.rmtree(checkpoint, ignore_errors=True)
            raise
        if kind.resumes:
            shutil.rmtree(checkpoint, ignore_errors=True)
        return entry

    def step_reading_code(
        self,
        kind: StepKind,
        label: str,
        inputs: Mapping[str, Input],
        params: dict[str, Any],
        here: Mapping[str, Any] | None = None,
        *,
        place: str = "",
    ) -> Entry:
        """A step that runs the user's Python: its key also holds all that the code read.

        The step's meta has `reads`: {"files": {path: sha256}, "packages": {name: version}}. The
        next run of the code at that `place` (two projects may name theirs alike) rehashes that
        list; only when something in it changed does the code run again.
        """
        base = key_of(kind, inputs, params)
        memory = memory_of(base, place)

        def find() -> Entry | None:
            for reads in self.store.recalled(memory):
                entry = self.store.get(late_key(base, reads)) if is_current(reads) else None
                if entry is not None:
                    self.store.share_reads(memory, reads)
                    return entry
            return None

        def late(meta: dict[str, Any]) -> str:
            self.store.remember(memory, meta["reads"])
            self.store.share_reads(memory, meta["reads"])
            return late_key(base, meta["reads"])

        return self._make(kind, label, lambda produce: self.store.make_late(
            base, kind.name, find, produce, late, self._waiting(label)
        ), inputs, params, here, reads_code=True)  # fmt: skip

    def _make(
        self,
        kind: StepKind,
        label: str,
        make: Callable[[Callable[[Path], dict[str, Any]]], tuple[Entry, bool]],
        inputs: Mapping[str, Input],
        params: dict[str, Any],
        here: Mapping[str, Any] | None,
        *,
        reads_code: bool = False,
    ) -> Entry:
        def produce(folder: Path) -> dict[str, Any]:
            self.listener.start(kind.name, label)
            task = {
                "step": kind.name,
                "inputs": {name: str(value.path) for name, value in inputs.items()},
                "params": {**params, **(here or {})},
                "out": str(folder),
                "stays": kind.stays,
                "shards": kind.shards,
                "reads_code": reads_code,
                "versions": versions(kind.tools),
            }
            try:
                return self.carry(
                    task, self.limits, self.listener.progress, scratch_root=self.store.root / "tmp"
                )
            except OptkitError as error:
                error.where = error.where or label
                raise

        started = time.monotonic()
        entry, hit = make(produce)
        seconds = round(time.monotonic() - started, 3)
        self.records.append(Record(kind.name, label, entry.key, hit, seconds))
        self.listener.done(kind.name, label, hit, seconds)
        for warning in (*_taken(self.store.warnings), *_some(entry.meta.get("warnings", ()))):
            self.listener.note(warning)
        return entry

    def _waiting(self, label: str) -> Callable[[], None]:
        return lambda: self.listener.note(f"{label}: another process is making it; waiting")


def _taken(warnings: list[str]) -> Iterator[str]:
    """One by one: other threads add to them and take from them meanwhile."""
    with suppress(IndexError):
        while True:
            yield warnings.pop(0)


def _some(warnings: Sequence[str]) -> Iterator[str]:
    yield from warnings[:_TOLD]
    if len(warnings) > _TOLD:
        yield f"and {len(warnings) - _TOLD} more of that kind"


def key_of(kind: StepKind, inputs: Mapping[str, Input], params: dict[str, Any]) -> str:
    """The step's identity in the store."""
    return stores.digest_json(
        {
            "step": kind.name,
            "version": kind.version,
            "inputs": {name: value.digest for name, value in inputs.items()},
            "params": params,
            "tools": versions(kind.tools),
        }
    )


def versions(distributions: tuple[str, ...]) -> dict[str, str | None]:
    """Installed version by distribution name; None when absent. Imports none of them."""
    return {name: installed(name) for name in distributions}


def installed(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def is_current(reads: Mapping[str, Any]) -> bool:
    """Whether every file, listed folder and package of a `reads` record is still what it was."""
    folders = reads.get("folders", {})
    try:
        return (
            all(installed(n) == v for n, v in reads["packages"].items())
            and all(stores.digest_names(Path(path)) == sha for path, sha in folders.items())
            and all(stores.digest_file(Path(path)) == sha for path, sha in reads["files"].items())
        )
    except (OSError, KeyError, AttributeError, TypeError, ValueError):
        return False


def memory_of(base: str, place: str) -> str:
    """Under which key is remembered what the code at `place` read."""
    return stores.digest_json({"base": base, "place": place})


def late_key(base: str, reads: Mapping[str, Any]) -> str:
    """Where the files lie does not matter, only their names and what they hold."""
    return stores.digest_json(
        {
            "base": base,
            "files": sorted([Path(p).name, sha] for p, sha in reads["files"].items()),
            "packages": reads["packages"],
        }
    )
