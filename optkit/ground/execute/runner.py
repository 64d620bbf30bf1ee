"""Runs a step unless the store already has its result. Only this module computes keys.

key = digest(step, its version, digests of its inputs, parameters, versions of its tools). Settings
that do not change the result (absolute paths, memory, threads) are passed with the parameters and
are not in the key.

A step that runs the user's Python runs in every command that needs it, once. Its entry is found by
what the code yielded: key = digest(the key above, digests of its files, its facts). So all later
steps are hits if the code yields what it yielded before. If the user declares what the code depends
on, its step is a hit too, as long as the content of these files and variables is the same.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from optkit.facts.codec import from_json
from optkit.facts.errors import OptkitError, StorageError
from optkit.facts.listed_steps import StepTaken
from optkit.ground import store as stores
from optkit.ground.execute.cluster import Cluster
from optkit.ground.execute.installed import versions
from optkit.ground.execute.step import R, Resumes, RunsCode, Shards, Step, StepResult
from optkit.ground.execute.task import Executor, Task, TaskLimits
from optkit.ground.execute.warm_workers import Workers
from optkit.ground.store import Entry, Meta, Store

_TOLD = 5  # the number of warnings of one step that are shown
_LONG = 10.0  # seconds of the user's code, from which its cost is told
_YIELDED = "optkit.yielded/v1"


class Steps(Protocol):
    """The methods of a Runner, or of a Rehearsal, that the pipeline needs."""

    @property
    def objects(self) -> Path:
        """The folder into which foreign files are staged."""

    @property
    def limits(self) -> TaskLimits: ...

    def recalled(self, result: StepResult) -> bool:
        """Whether a step's result was in the store before this run began."""

    def note(self, text: str) -> None:
        """Pass a text to the listener."""

    def tell_cost(self) -> None:
        """Tell the listener how long the user's code ran, if that was long."""

    def do(self, step: Step[R], label: str) -> R:
        """The result of a step, from the store or from a run."""


class Listener(Protocol):
    """Receives the events of a run. `optkit.ground.progress` has listeners that show them."""

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


@dataclass
class Runner:
    """Runs steps through the store, each in a worker. `records` lists the steps of this run.
    `fresh`: the user's code runs although what it depends on is unchanged."""

    store: Store
    limits: TaskLimits
    listener: Listener
    executor: Executor = field(default_factory=Workers)
    records: list[StepTaken] = field(default_factory=list)
    fresh: bool = False
    _cost_told: bool = False
    _yielded: dict[str, Entry] = field(default_factory=dict)  # by the user's code in this run
    _locks: dict[str, threading.Lock] = field(default_factory=dict)

    @property
    def objects(self) -> Path:
        return self.store.objects

    @property
    def cluster(self) -> Cluster | None:
        """The executor, if it has several machines; else None."""
        return self.executor if isinstance(self.executor, Cluster) else None

    def recalled(self, result: StepResult) -> bool:
        """See `Steps`."""
        key = result.folder.key if isinstance(result.folder, Entry) else None
        known = [record.hit for record in self.records if record.key == key]
        return bool(known) and all(known)

    def note(self, text: str) -> None:
        """See `Steps`."""
        self.listener.note(text)

    def do(self, step: Step[R], label: str) -> R:
        """See `Steps`. A step of the kind `Resumes` gets the checkpoint of a killed run."""
        if runs_code(step):
            return step.result(self._running_code(step, label))
        key = key_of(step)

        def find(produce: Callable[[Path], Meta]) -> tuple[Entry, bool]:
            return self.store.make(key, step.name, produce, self._waiting(label))

        return step.result(self._resumed(step, key, lambda step: self._make(step, label, find)))

    def _running_code(self, step: Step[StepResult], label: str) -> Entry:
        """The entry with what the user's code yields. The code runs once in this run; it does not
        run if what it depends on is declared and unchanged."""
        base, memory = key_of(step), memory_of(step)
        now = stores.digest_json({"base": base, "beside": step.beside})
        # several trials or targets of one command may need it at the same time
        with self._locks.setdefault(now, threading.Lock()):
            entry = self._yielded.get(now)
            if entry is None:
                entry = self._remembered(step, memory, label) or self._run(step, label, base)
                self._remember(step, memory, entry)
                self._yielded[now] = entry
        return entry

    def _remembered(self, step: Step[StepResult], memory: str, label: str) -> Entry | None:
        """What the code yielded in an earlier run, if all that it depends on is declared and
        unchanged."""
        assert isinstance(step, RunsCode)
        if step.depends is None or self.fresh:
            return None
        for record in self.store.recalled(memory):
            entry = self.store.get(key) if (key := yielded(record)) else None
            if entry is not None:
                self._done(step, label, entry, hit=True, seconds=0.0)
                self.listener.note(f"{label}: not run, because its `depends` are unchanged")
                return entry
        return None

    def _run(self, step: Step[StepResult], label: str, base: str) -> Entry:
        """It begins anew after a kill, because the code may be another one now."""

        def find(produce: Callable[[Path], Meta]) -> tuple[Entry, bool]:
            entry = self.store.add(
                step.name,
                produce,
                lambda meta, files: stores.digest_json({"base": base, "yielded": [files, meta]}),
            )
            return entry, False

        return self._make(step, label, find, runs_code=True)

    def _remember(self, step: Step[StepResult], memory: str, entry: Entry) -> None:
        """For later runs; with `depends`, on the remote too."""
        assert isinstance(step, RunsCode)
        record = {"schema": _YIELDED, "key": entry.key}
        if self.store.recall(memory) != record:
            self.store.remember(memory, record)
        if step.depends is not None:
            self.store.share_record(memory, record)

    def tell_cost(self) -> None:
        """See `Steps`."""
        ran = [record for record in self.records if record.ran_code]
        seconds = sum(record.seconds for record in ran)
        if seconds > _LONG and not self._cost_told:
            self._cost_told = True
            self.note(
                f"your code took {seconds:.0f} s ({_longest(ran)}). Declare in the recipe what it "
                "`depends` on, and it runs only if that changes"
            )

    def _resumed(
        self, step: Step[StepResult], key: str, make: Callable[[Step[StepResult]], Entry]
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
        step: Step[StepResult],
        label: str,
        make: Callable[[Callable[[Path], Meta]], tuple[Entry, bool]],
        *,
        runs_code: bool = False,
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
                here=isinstance(step, RunsCode) and step.here,
                variables=step.variables if isinstance(step, RunsCode) else (),
                versions=versions(step.tools),
            )
            try:
                limits = self.limits.of(step.limit_seconds)
                return self.executor(
                    task, limits, self.listener.progress, scratch_root=self.store.root / "tmp"
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
        ran_code = (
            runs_code and isinstance(step, RunsCode) and step.depends is None and not step.own
        )
        self._done(step, label, entry, hit=hit, seconds=seconds, ran_code=ran_code)
        return entry

    def _done(
        self,
        step: Step[StepResult],
        label: str,
        entry: Entry,
        *,
        hit: bool,
        seconds: float,
        ran_code: bool = False,
    ) -> None:
        self.records.append(StepTaken(step.name, label, entry.key, hit, seconds, ran_code))
        self.listener.done(step.name, label, hit, seconds)
        for warning in (*_taken(self.store.warnings), *_some(_warnings(entry.meta))):
            self.listener.note(warning)

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


def key_of(step: Step[StepResult]) -> str:
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


def runs_code(step: Step[StepResult]) -> bool:
    """Whether it runs the user's Python."""
    return isinstance(step, RunsCode) and step.runs_code


def memory_of(step: Step[StepResult]) -> str:
    """The key under which the store remembers what the user's code yielded last. It is the same on
    every machine if all that the code depends on is declared."""
    assert isinstance(step, RunsCode)
    known = {"depends": step.depends} if step.depends is not None else {"home": step.home}
    return stores.digest_json({"base": key_of(step), **known})


def yielded(record: Mapping[str, object] | None) -> str | None:
    """The key of the entry that `Runner` has remembered; None for a record of another form."""
    if record is None or record.get("schema") != _YIELDED:
        return None
    key = record.get("key")
    return key if isinstance(key, str) else None


def _longest(ran: Sequence[StepTaken]) -> str:
    """The labels of the longest steps, with their seconds."""
    longest = sorted(ran, key=lambda record: -record.seconds)[:3]
    return ", ".join(f"{record.label}: {record.seconds:.0f} s" for record in longest)
