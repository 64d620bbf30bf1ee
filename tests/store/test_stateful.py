"""Any order of what commands do to a store: it always says what a dictionary would say, as far as
nobody has removed or damaged it."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from optkit.ground.store import Meta, Store, eviction
from tests.figures import Figures

KEYS = ("aa", "ab", "bb")
FORK = multiprocessing.get_context("fork")
PRESENT, ABSENT, UNKNOWN, DAMAGED = "present", "absent", "unknown", "damaged"

keys = st.sampled_from(KEYS)


def contents(key: str) -> dict[str, bytes]:
    return {"a": key.encode() * 100, "deep/b": b"", "deep/c": key.encode()}


def producing(key: str) -> Callable[[Path], Meta]:
    def produce(folder: Path) -> Meta:
        for name, data in contents(key).items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)
        return {"key": key}

    return produce


def serve(root: Path, pipe: Connection) -> None:
    """Another process with the store: it uses what it is told to, and holds on to it."""
    store = Store(root)

    def stuck(folder: Path) -> Meta:
        (folder / "a").write_bytes(b"half")
        pipe.send("stuck")
        time.sleep(600)
        return {}

    while True:
        order, key = pipe.recv()
        if order == "make":
            store.make(key, "say", producing(key))
            pipe.send("made")
        else:
            store.make(key, "say", stuck)
            pipe.send("made")  # it was there


class Commands(RuleBasedStateMachine):
    """`state`: what is known of each entry; `records`: of each record (None: unknown)."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp()) / "store"
        self.store = Store(self.root)
        self.state = dict.fromkeys(KEYS, ABSENT)
        self.aged: set[str] = set()
        self.records: dict[str, Any] = {key: {} for key in KEYS}
        self.held: set[str] = set()  # by the other process
        self.other: Any = None
        self.pipe: Any = None

    # --- what a command does ---------------------------------------------------------------------

    @rule(key=keys)
    def make(self, key: str) -> None:
        entry, hit = self.store.make(key, "say", producing(key))
        self.assert_right(entry, key)
        assert self.state[key] == UNKNOWN or hit == (self.state[key] == PRESENT)
        self.used(key)

    @rule(key=keys)
    def get(self, key: str) -> None:
        entry = self.store.get(key)
        assert self.state[key] == UNKNOWN or (entry is not None) == (self.state[key] == PRESENT)
        if entry is None:
            self.state[key] = ABSENT
        else:
            self.assert_right(entry, key)
            self.used(key)

    @rule(key=keys, value=st.integers(0, 3))
    def remember(self, key: str, value: int) -> None:
        self.store.remember(key, {"value": value})
        self.records[key] = {"value": value}

    @rule(key=keys)
    def recall(self, key: str) -> None:
        found = self.store.recall(key) or {}
        assert self.records[key] is None or found == self.records[key]
        self.records[key] = found

    @rule()
    def reopen(self) -> None:
        self.store = Store(self.root)
        gc.collect()  # the lease of the one before ends

    # --- what else happens -----------------------------------------------------------------------

    @rule(key=keys)
    def damage(self, key: str) -> None:
        file = self.store.place(key) / "a"
        if file.exists():
            file.write_bytes(b"x" + file.read_bytes()[1:])
            self.state[key] = DAMAGED

    @rule(key=keys)
    def grow_old(self, key: str) -> None:
        record = self.store.place(key) / "entry.json"
        if record.exists():
            then = time.time() - 9000
            os.utime(record, (then, then))
            self.aged.add(key)
            self.held.discard(key)  # nothing says any more that it is in use

    @rule(most=st.sampled_from([0, 1 << 40]))
    def collect(self, most: int) -> None:
        eviction.gc(self.store, most)
        if most == 0:
            for key in self.aged:
                self.state[key] = ABSENT
            self.aged = set()
        self.assert_no_remains()

    @rule()
    def clear(self) -> None:
        eviction.clear(self.store)
        self.removed_all()
        for key in KEYS:
            self.records[key] = {} if self.other is None else None

    @rule()
    def forget(self) -> None:
        eviction.forget(self.store, "say")
        self.removed_all()

    @rule()
    def verify(self) -> None:
        _, corrupt = self.store.verify()
        for key in KEYS:
            assert (key in corrupt) <= (self.state[key] == DAMAGED)
            if self.state[key] == DAMAGED:
                self.state[key] = ABSENT
            elif self.state[key] == PRESENT:
                self.used(key)

    # --- another process -------------------------------------------------------------------------

    @precondition(lambda self: self.other is None)
    @rule()
    def start(self) -> None:
        self.pipe, theirs = FORK.Pipe()
        self.other = FORK.Process(target=serve, args=(self.root, theirs), daemon=True)
        self.other.start()
        theirs.close()

    @precondition(lambda self: self.other is not None)
    @rule(key=keys)
    def other_makes(self, key: str) -> None:
        self.pipe.send(("make", key))
        assert self.pipe.recv() == "made"
        self.used(key)
        self.held.add(key)

    @precondition(lambda self: self.other is not None)
    @rule(key=keys)
    def other_is_killed_while_it_makes(self, key: str) -> None:
        self.pipe.send(("hang", key))
        stuck = self.pipe.recv() == "stuck"
        assert self.state[key] == UNKNOWN or stuck == (self.state[key] != PRESENT)
        if stuck:
            self.state[key] = ABSENT
        else:
            self.used(key)
        self.kill()

    @precondition(lambda self: self.other is not None)
    @rule()
    def kill(self) -> None:
        os.kill(self.other.pid, signal.SIGKILL)
        self.other.join()
        self.pipe.close()
        self.other, self.held = None, set()

    # --- what holds ------------------------------------------------------------------------------

    def used(self, key: str) -> None:
        self.state[key] = PRESENT
        self.aged.discard(key)

    def removed_all(self) -> None:
        """But for what the other process uses, as far as that is known."""
        for key in KEYS:
            if key not in self.held:
                if self.other is None:
                    self.state[key] = ABSENT
                elif self.state[key] == PRESENT:
                    self.state[key] = UNKNOWN
                self.aged.discard(key)

    def assert_right(self, entry: Any, key: str) -> None:
        assert {name: entry.file(name).read_bytes() for name in entry.files} == contents(key)
        assert entry.meta == {"key": key}

    def assert_no_remains(self) -> None:
        living = 0 if self.other is None else 1
        assert len(list(self.root.glob("tmp/*"))) <= living
        assert not list(self.root.glob("quarantine/*"))

    @invariant()
    def no_entry_is_half(self) -> None:
        for place in self.root.glob("steps/*/*"):
            assert (place / "entry.json").is_file() and place.name in KEYS

    def teardown(self) -> None:
        if self.other is not None:
            self.kill()
        eviction.gc(self.store, 1 << 40)
        self.assert_no_remains()
        shutil.rmtree(self.root.parent)


@pytest.mark.slow
def test_the_store_is_a_dictionary(figures: Figures) -> None:
    runs = figures.times(20, 2000)
    chosen = settings(max_examples=runs, stateful_step_count=25, deadline=None, database=None,
                      suppress_health_check=list(HealthCheck))  # fmt: skip
    run_state_machine_as_test(Commands, settings=chosen)
    how = "sequences of up to 25: make, get, gc, clear, damage, kills of another process"
    figures.tell("any order of what commands do to a store", runs, how)
