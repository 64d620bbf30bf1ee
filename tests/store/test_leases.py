"""What a running command has used stays, whatever others remove; what ended commands have used may
go."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from optkit.ground.store import Lease, Meta, Store, eviction, leases, own_name

REMOVALS: dict[str, Callable[[Store], object]] = {
    "gc": lambda store: eviction.gc(store, 0),
    "clear": eviction.clear,
    "forget": lambda store: eviction.forget(store, "say"),
}
HOUR = 3600.0


def produce(folder: Path) -> Meta:
    (folder / "a").write_bytes(b"a")
    return {}


def aged(path: Path, seconds: float) -> Path:
    """A file that was last used so long ago."""
    then = time.time() - seconds
    os.utime(path, (then, then))
    return path


def old_entry(root: Path, seconds: float) -> Path:
    """The record of an entry of a command that has ended."""
    return aged(Store(root).make("aa", "say", produce)[0].path / "entry.json", seconds)


@pytest.mark.parametrize("how", REMOVALS)
@pytest.mark.parametrize("seconds", [600.0, 9 * HOUR])
def test_an_old_entry_that_a_running_command_has_read_stays(
    seconds: float, how: str, tmp_path: Path
) -> None:
    entry = old_entry(tmp_path, seconds)
    running = Store(tmp_path)
    assert running.get("aa") is not None
    REMOVALS[how](Store(tmp_path))
    assert entry.is_file()
    del running


@pytest.mark.parametrize("how", REMOVALS)
def test_the_oldest_running_command_counts(how: str, tmp_path: Path) -> None:
    """It has used an entry before another command began."""
    entry = old_entry(tmp_path, 0.0)
    older, younger = Store(tmp_path), Store(tmp_path)
    older.lease.begin()
    younger.lease.begin()
    for user, seconds in ((older, 5 * HOUR), (younger, HOUR)):
        aged(tmp_path / "users" / user.lease._name, seconds)
    aged(entry, 3 * HOUR)
    REMOVALS[how](Store(tmp_path))
    assert entry.is_file()
    del older, younger


def test_a_record_and_a_file_of_a_running_command_stay(tmp_path: Path) -> None:
    running = Store(tmp_path)
    place = running.objects / "ab/abcd"
    place.parent.mkdir(parents=True)
    place.write_bytes(b"copied in")
    running.remember("zz", {"a": 1})
    Store(tmp_path).remember("old", {"a": 1})
    aged(tmp_path / "records/old.json", HOUR)
    eviction.clear(Store(tmp_path))
    assert place.is_file() and running.recall("zz") == {"a": 1}
    assert running.recall("old") is None


def test_a_file_stays_for_an_hour_after_its_last_use_by_a_long_command(tmp_path: Path) -> None:
    entry = old_entry(tmp_path, 1.5 * HOUR)
    running = Store(tmp_path)
    running.lease.begin()
    running.lease._began -= 2 * HOUR
    assert running.get("aa") is not None
    assert time.time() - entry.stat().st_mtime < 60


@pytest.mark.parametrize(
    ("seconds", "alive"), [(60.0, True), (23 * HOUR, True), (25 * HOUR, False)]
)
def test_a_user_on_another_machine_counts_for_a_day(
    seconds: float, alive: bool, tmp_path: Path
) -> None:
    user = tmp_path / "users" / "1-0000dead-1"
    user.parent.mkdir()
    user.touch()
    aged(user, seconds)
    entry = old_entry(tmp_path, seconds - 1)
    eviction.clear(Store(tmp_path))
    assert entry.is_file() == user.exists() == alive


def test_a_killed_command_keeps_nothing(tmp_path: Path) -> None:
    entry = old_entry(tmp_path, 0.0)
    _, here, token = own_name().split("-")
    user = tmp_path / "users" / f"999999999-{here}-{token}"
    user.touch()
    aged(user, HOUR)
    assert eviction.clear(Store(tmp_path))[1] == 0
    assert not entry.exists()


FORKS = """
import gc, os, sys
from pathlib import Path
from optkit.ground.store import Store

running = [Store(Path(sys.argv[1]))]
running[0].lease.begin()
name = running[0].lease._name
child = os.fork()
if child == 0:
    running.clear()
    gc.collect()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert (Path(sys.argv[1]) / "users" / name).is_file()
"""


def test_a_forked_child_does_not_end_the_use_of_its_parent(tmp_path: Path) -> None:
    """In a process of its own: a child of pytest would also collect the sessions of other tests,
    whose threads it does not have."""
    subprocess.run([sys.executable, "-c", FORKS, str(tmp_path)], check=True)


def test_what_a_library_compiles_stays_while_it_is_used(tmp_path: Path) -> None:
    """`gc` removes it with the entries; the folder is there again for the next command."""
    old, new = (eviction.compiled_folder(tmp_path / "devices", key) for key in ("old", "new"))
    for folder in (old, new):
        (folder / "engine").write_bytes(bytes(1000))
        aged(folder / "entry.json", 5 * HOUR)
    assert eviction.compiled_folder(tmp_path / "devices", "new") == new  # it is used again
    assert eviction.gc(Store(tmp_path), 0) == (1, 1000)
    assert not old.exists() and (new / "engine").is_file()
    assert list(eviction.compiled_folder(tmp_path / "devices", "old").iterdir()) == [
        old / "entry.json"
    ]


# --- locks ---------------------------------------------------------------------------------------


def is_free(root: Path, how: int) -> bool:
    """Whether another process could lock the users in this way now."""
    descriptor = os.open(root / "users/lock", os.O_RDWR)
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def test_nobody_begins_to_use_anything_while_something_is_removed(tmp_path: Path) -> None:
    with Lease(tmp_path).removing():
        assert not is_free(tmp_path, fcntl.LOCK_SH)
    assert is_free(tmp_path, fcntl.LOCK_EX)


def test_nothing_is_removed_while_a_use_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = old_entry(tmp_path, HOUR)
    real, seen = os.utime, []

    def marked(path: Path, *times: object) -> None:
        seen.append(is_free(tmp_path, fcntl.LOCK_EX))
        real(path)

    def touched(path: Path) -> None:
        seen.append(is_free(tmp_path, fcntl.LOCK_EX))
        path.open("x").close()

    monkeypatch.setattr(leases.os, "utime", marked)
    monkeypatch.setattr(Path, "touch", touched)
    assert Lease(tmp_path).use(entry)
    assert seen == [False, False]
