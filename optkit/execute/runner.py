"""Runs a step unless the store already has its result. Only this module computes keys.

key = digest(step, its version, digests of its inputs, parameters, versions of its tools). Settings
that do not change the result (absolute paths, memory, threads) are passed with the parameters and
are not in the key.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from optkit import store as stores
from optkit.codec import from_json, to_json
from optkit.errors import OptkitError, StorageError
from optkit.execute import reads
from optkit.execute.cluster import Cluster
from optkit.execute.local import environment
from optkit.execute.reads import Known
from optkit.execute.step import R, ReadsCode, Result, Resumes, Shards, Step
from optkit.execute.task import Executor, Limits, Task
from optkit.execute.warm_workers import Workers
from optkit.store import Entry, Meta, Store

_TOLD = 5  # the number of warnings of one step that are shown
_REMEMBERED = 16  # records of one step: branches, checkouts and projects can have different ones


class Steps(Protocol):
    """The methods of a Runner, or of a Rehearsal, that the pipeline needs."""

    @property
    def objects(self) -> Path:
        """The folder into which foreign files are staged."""

    @property
    def limits(self) -> Limits: ...

    def recalled(self, result: Result) -> bool:
        """Whether a step's result was in the store before this run began."""

    def note(self, text: str) -> None:
        """Pass a text to the listener."""

    def do(self, step: Step[R], label: str) -> R:
        """The result of a step, from the store or from a run."""


class Listener(Protocol):
    """Receives the events of a run. `optkit.progress` has listeners that show them."""

    def start(self, step: str, label: str) -> None:
        """A step runs: its result is not in the store."""

    def progress(self, what: str, fraction: float) -> None:
        """The step of this thread is at `fraction`, from 0 to 1."""

    def done(self, step: str, label: str, hit: bool, seconds: float) -> None:
        """A step has its result. `hit`: it was in the store, and the step did not start."""

    def failed(self, step: str, label: str) -> None:
        """A step ended without a result. It may not have started."""

    def note(self, text: str) -> None:
        """A text for the user."""


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
    """Runs steps through the store, each in a worker. `records` lists the steps of this run."""

    store: Store
    limits: Limits
    listener: Listener
    executor: Executor = field(default_factory=Workers)
    records: list[Record] = field(default_factory=list)
    # results that may be used only in this run
    _unkept: dict[str, Entry] = field(default_factory=dict)

    @property
    def objects(self) -> Path:
        return self.store.objects

    @property
    def cluster(self) -> Cluster | None:
        """The executor, if it has several machines; else None."""
        return self.executor if isinstance(self.executor, Cluster) else None

    def recalled(self, result: Result) -> bool:
        """See `Steps`."""
        key = result.folder.key if isinstance(result.folder, Entry) else None
        known = [record.hit for record in self.records if record.key == key]
        return bool(known) and all(known)

    def note(self, text: str) -> None:
        """See `Steps`."""
        self.listener.note(text)

    def do(self, step: Step[R], label: str) -> R:
        """See `Steps`. A step of the kind `Resumes` gets the checkpoint of a killed run."""
        if isinstance(step, ReadsCode) and step.reads_code:
            return step.result(self._reading_code(step, label))
        key = key_of(step)

        def find(produce: Callable[[Path], Meta]) -> tuple[Entry, bool]:
            return self.store.make(key, step.name, produce, self._waiting(label))

        return step.result(self._resumed(step, key, lambda step: self._make(step, label, find)))

    def _reading_code(self, step: Step[Result], label: str) -> Entry:
        """The entry of a step that runs the user's Python. Its key also contains everything on
        which the code depended.

        The facts of the step have `reads`, a record of `optkit.execute.reads`, in which paths below
        `roots` are relative to them. The code runs, unless there is a record whose questions all
        have the same answers now. The new result is then used. If its record is incomplete, only
        this run uses it.
        """
        assert isinstance(step, ReadsCode)
        roots, anywhere = step.roots, step.anywhere
        base = key_of(step)
        memory = memory_of(base)

        def find() -> Entry | None:
            if memory in self._unkept:
                return self._unkept[memory]
            now = reads.Now(roots, environment())
            for known in self._records(memory):
                entry = self.store.get(known.key) if now.agrees(known.reads) else None
                if entry is not None:
                    self._remember(memory, known)
                    return entry
            return None

        def late(meta: Meta, files: Mapping[str, str]) -> tuple[str, Meta]:
            record, rest = reads.of(meta), {k: v for k, v in meta.items() if k != "reads"}
            key = reads.late_key(base, record, [files, rest])
            if not record.unseen:
                self._remember(memory, Known(key, record))
                return key, meta
            what = f"the result of {label!r} serves this run and is not kept"
            return key, {**meta, "warnings": [*_warnings(meta), f"{what}: {record.unseen[0]}"]}

        step = step.for_store(self.store.root)
        entry = self._resumed(step, base, lambda step: self._make(
            step, label, lambda produce: self.store.make_late(
                base, step.name, find, produce, late, self._waiting(label), shared=_is_kept
            ), reads_code=not anywhere,
        ))  # fmt: skip
        if not _is_kept(entry):
            # the warning about its record is shown only once
            self._unkept[memory] = replace(entry, meta={**entry.meta, "warnings": []})
        return entry

    def _records(self, memory: str) -> Iterator[Known]:
        """The records of earlier runs, here and then on the remote, the latest first."""
        for saved in self.store.recalled(memory):
            yield from reads.remembered(saved)

    def _remember(self, memory: str, known: Known) -> None:
        """Save a record in front of the others, here and on the remote."""
        others = [other for other in self._records(memory) if other.reads != known.reads]
        rows = [to_json(row) for row in (known, *others)]
        saved = {"schema": reads.SCHEMA, "records": rows[:_REMEMBERED]}
        if self.store.recall(memory) != saved:
            self.store.remember(memory, saved)
        self.store.share_reads(memory, saved)

    def _resumed(
        self, step: Step[Result], key: str, make: Callable[[Step[Result]], Entry]
    ) -> Entry:
        """The result of `make`. A step that can resume gets the folder with the state of a killed
        run of this key."""
        if not isinstance(step, Resumes):
            return make(step)
        checkpoint = self.store.root / "tmp" / f"resume-{key}"
        try:
            entry = make(step.resuming(checkpoint))
        # free the space on a full disk, although the next run then starts from the beginning
        except StorageError:
            shutil.rmtree(checkpoint, ignore_errors=True)
            raise
        shutil.rmtree(checkpoint, ignore_errors=True)
        return entry

    def _make(
        self,
        step: Step[Result],
        label: str,
        make: Callable[[Callable[[Path], Meta]], tuple[Entry, bool]],
        *,
        reads_code: bool = False,
    ) -> Entry:
        def produce(folder: Path) -> Meta:
            self.listener.start(step.name, label)
            task = Task(
                step.name,
                inputs={name: str(value.path) for name, value in step.inputs.items()},
                params={**step.params, **step.beside},
                out=str(folder),
                stays=step.shares_worker,
                shards=isinstance(step, Shards),
                reads_code=reads_code,
                versions=versions(step.tools),
            )
            try:
                return self.executor(
                    task, self.limits, self.listener.progress, scratch_root=self.store.root / "tmp"
                )
            except OptkitError as error:
                error.where = error.where or label
                raise

        started = time.monotonic()
        try:
            entry, hit = make(produce)
        except BaseException:  # also an interrupt: nothing must go on drawing
            self.listener.failed(step.name, label)
            raise
        seconds = round(time.monotonic() - started, 3)
        self.records.append(Record(step.name, label, entry.key, hit, seconds))
        self.listener.done(step.name, label, hit, seconds)
        for warning in (*_taken(self.store.warnings), *_some(_warnings(entry.meta))):
            self.listener.note(warning)
        return entry

    def _waiting(self, label: str) -> Callable[[], None]:
        return lambda: self.listener.note(
            f"{label}: another process runs this step; waiting for its result"
        )


def _taken(warnings: list[str]) -> Iterator[str]:
    """Take them one by one, because other threads add and take warnings at the same time."""
    with suppress(IndexError):
        while True:
            yield warnings.pop(0)


def _warnings(meta: Meta) -> tuple[str, ...]:
    return from_json(tuple[str, ...], meta.get("warnings", ()))


def _some(warnings: Sequence[str]) -> Iterator[str]:
    yield from warnings[:_TOLD]
    if len(warnings) > _TOLD:
        yield f"and {len(warnings) - _TOLD} more of that kind"


def key_of(step: Step[Result]) -> str:
    """The key of the step in the store."""
    return stores.digest_json(
        {
            "step": step.name,
            "version": step.version,
            "inputs": {name: value.digest for name, value in step.inputs.items()},
            "params": step.params,
            "tools": versions(step.tools),
        }
    )


def versions(distributions: tuple[str, ...]) -> dict[str, str | None]:
    """Distribution → its installed version, or None. Imports none of them."""
    return {name: reads.installed(name) for name in distributions}


def memory_of(base: str) -> str:
    """The key under which the store saves the records of a step with user code."""
    return stores.digest_json({"base": base, "schema": reads.SCHEMA})


def _is_kept(entry: Entry) -> bool:
    return not reads.of(entry.meta).unseen
