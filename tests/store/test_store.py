from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE
from typing import BinaryIO

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from optkit.facts.errors import InputRefused, IntegrityError, OptkitError, StorageError
from optkit.ground import store as stores
from optkit.ground.store import (
    Store,
    default_root,
    digest_json,
    digests,
    durably,
    eviction,
    io_cause,
    is_scarce,
    own_name,
)
from optkit.ground.store.entry import Entry


def write(text: str):
    def produce(folder: Path) -> dict[str, object]:
        (folder / "a.txt").write_text(text)
        (folder / "deep").mkdir()
        (folder / "deep" / "b.txt").write_text(text * 2)
        return {"said": text}

    return produce


def test_second_make_is_a_hit(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first, hit = store.make("k" * 8, "say", write("x"))
    assert not hit and first.meta == {"said": "x"}
    second, hit = store.make("k" * 8, "say", lambda folder: pytest.fail("ran again"))
    assert hit and second == first
    assert second.file("deep/b.txt").read_text() == "xx"


def test_the_store_is_where_the_user_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OPTKIT_CACHE", "~/named")
    assert default_root() == tmp_path / "named"
    monkeypatch.setenv("OPTKIT_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert default_root() == tmp_path / "caches/optkit"


def test_a_failing_step_leaves_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def fail(folder: Path) -> dict[str, object]:
        (folder / "half").write_text("half")
        raise InputRefused("no")

    with pytest.raises(InputRefused):
        store.make("kk", "say", fail)
    assert store.get("kk") is None
    assert not list((tmp_path / "tmp").iterdir())


def test_verify_counts_and_quarantines(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.make("aa", "say", write("1"))
    bad, _ = store.make("bb", "say", write("2"))
    bad.file("a.txt").write_text("!")
    assert store.verify() == (1, ["bb"])


def test_equal_results_are_one_entry(tmp_path: Path) -> None:
    """Its name is known only after the work, when another command may have stored the same."""
    store, named = Store(tmp_path), []

    def name(meta: stores.Meta, files: object) -> str:
        named.append(files)
        return digest_json([meta, files])

    first = store.add("say", write("x"), name)
    assert store.add("say", write("x"), name) == first
    assert store.add("say", write("y"), name) != first
    assert named[0] == named[1] == first.files and len(list(store.entries())) == 2
    assert store.glob("tmp/*") == []


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_result_that_cannot_be_read_back_is_refused(kind: str, tmp_path: Path) -> None:
    store = Store(tmp_path)

    def produce(folder: Path) -> dict[str, object]:
        if kind == "pipe":
            os.mkfifo(folder / "odd")
        else:
            (folder / "odd").symlink_to("nowhere")
        return {}

    with pytest.raises(IntegrityError, match="result of step 'say' changed while"):
        store.make("kk", "say", produce)
    assert list(store.entries()) == []
    assert not store.make("kk", "say", write("x"))[1]


def _race(root: str, log: str) -> None:
    def produce(folder: Path) -> dict[str, object]:
        with Path(log).open("a") as file:
            file.write("built\n")
        time.sleep(0.2)
        (folder / "x").write_text("x")
        return {}

    Store(Path(root)).make("cc", "say", produce)


def test_two_processes_build_one_key_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    context = multiprocessing.get_context("spawn")
    racers = [context.Process(target=_race, args=(str(tmp_path / "s"), str(log))) for _ in range(4)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert [racer.exitcode for racer in racers] == [0] * 4
    assert log.read_text() == "built\n"


def test_disk_full_is_a_storage_error_and_a_rerun_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    real = os.fsync
    calls = 0

    def full(fd: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(errno.ENOSPC, "No space left on device", "somewhere")
        real(fd)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError) as caught:
        store.make("dd", "say", write("x"))
    assert caught.value.exit_code == 8 and "gc" in (caught.value.hint or "")
    monkeypatch.setattr(os, "fsync", real)
    assert store.get("dd") is None
    _, hit = store.make("dd", "say", write("x"))
    assert not hit


@pytest.mark.parametrize("name", ["fsync", "rename", "mkdir", "open"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_every_kth_fault_survives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    """Fail the k-th call for k = 1, 2, … until a run passes: never a torn entry."""
    owner = os if name == "fsync" else Path
    real = getattr(owner, name)
    for k in range(1, 60):
        store = Store(tmp_path / f"{k}")
        left = k

        def faulty(*args: object, **kwargs: object) -> object:
            nonlocal left
            left -= 1
            if left == 0:
                raise OSError(code, os.strerror(code), str(args[0]))
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, faulty)
        try:
            store.make("ee", "say", write("x"))
        except (OptkitError, OSError):
            failed = True
        else:
            failed = False
        monkeypatch.setattr(owner, name, real)
        if left > 0:
            assert k > 1
            return
        entry, hit = store.make("ee", "say", write("x"))
        assert entry.file("a.txt").read_text() == "x"
        assert failed or hit or not store.warnings
    pytest.fail("the faults never ran out")


KILLED = """
import sys, pathlib
from optkit.ground.store import Store
def produce(folder):
    for i in range(20):
        (folder / f"{i}.bin").write_bytes(bytes([i]) * 4096)
    return {"n": 20}
store = Store(pathlib.Path(sys.argv[1]))
print("ready", flush=True)
for n in range(1000):
    store.make(f"{n:04d}", "say", produce)
"""


def test_kill_at_random_instants_leaves_whole_entries(tmp_path: Path) -> None:
    root = tmp_path / "s"
    rng = random.Random(5)
    for _ in range(8):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(root)], stdout=PIPE)
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        time.sleep(rng.random() * 0.3)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    store = Store(root)
    sound, corrupt = store.verify()
    assert sound > 0 and corrupt == []
    eviction.gc(store, max_bytes=1 << 40)
    assert not list((root / "tmp").iterdir())


def test_gc_drops_the_least_recently_used(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for n, age in (("aa", 9000), ("bb", 8000), ("cc", 0)):
        entry, _ = store.make(n, "say", write("x" * 1000))
        then = time.time() - age
        os.utime(entry.path / "entry.json", (then, then))
    eviction.gc(store, max_bytes=0)
    assert [key for key, *_ in store.entries()] == ["cc"]  # used within the hour
    freed, kept = eviction.clear(store)
    assert freed > 0 and kept == 0 and list(store.entries()) == []


def test_gc_leaves_no_locks_behind_that_nobody_can_hold(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.make("aa", "say", write("x"))
    eviction.gc(Store(tmp_path), max_bytes=1 << 30)
    assert [path.name for path in store.glob("locks/*")] == ["aa.lock"]  # `store` is a user
    eviction.gc(store, max_bytes=1 << 30)
    assert store.glob("locks/*") == []
    assert store.make("aa", "say", write("x"))[1]


def test_the_results_of_one_kind_of_step_can_be_forgotten(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for key, step in (("aa", "bench"), ("bb", "fuse")):
        store.make(key, step, write("x" * 1000))
    assert eviction.forget(store, "bench") >= 1000
    assert [step for _, step, *_ in store.entries()] == ["fuse"]
    assert eviction.forget(store, "bench") == 0


def test_records_are_remembered(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.recall("zz") is None
    store.remember("zz", {"files": {"a": "1"}, "packages": {}})
    assert store.recall("zz") == {"files": {"a": "1"}, "packages": {}}
    (tmp_path / "records" / "zz.json").write_text("{")
    assert store.recall("zz") is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


@given(json_values)
@settings(max_examples=60, deadline=None)
def test_digest_ignores_key_order_and_survives_json(value: object) -> None:
    def turned(item: object) -> object:
        if isinstance(item, dict):
            return {k: turned(item[k]) for k in reversed(list(item))}
        return [turned(i) for i in item] if isinstance(item, list) else item

    assert digest_json(value) == digest_json(turned(json.loads(json.dumps(value))))


def test_write_durably_keeps_the_old_file_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    stores.write_durably(path, b"old")

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "io")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError):
        stores.write_durably(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_a_large_file_is_read_once_under_all_its_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One command verifies a linked file of several entries once, another one anew."""
    monkeypatch.setattr(digests, "_LARGE", 1000)
    monkeypatch.setattr(digests, "_digests", {})
    read = []
    real = hashlib.file_digest

    def counted(file: BinaryIO, name: str) -> object:
        read.append(os.fstat(file.fileno()).st_ino)
        return real(file, name)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    store = Store(tmp_path)
    data = b"x" * 5000

    def produce(folder: Path) -> dict[str, object]:
        (folder / "w.data").write_bytes(data)
        return {}

    first, _ = store.make("aa", "say", produce)

    def link(folder: Path) -> dict[str, object]:
        (folder / "w.data").hardlink_to(first.file("w.data"))
        return {}

    second, _ = store.make("bb", "say", link)
    assert store.get("aa") == first and store.get("bb") == second
    inode = first.file("w.data").stat().st_ino
    assert read.count(inode) == 1
    digests._digests.clear()  # the next command
    assert Store(tmp_path).verify() == (2, [])
    assert read.count(inode) == 2


def test_a_large_file_that_changed_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "_LARGE", 1000)
    monkeypatch.setattr(digests, "_digests", {})
    store = Store(tmp_path)
    entry, _ = store.make("aa", "say", write("x" * 5000))
    with entry.file("a.txt").open("r+b") as file:
        file.write(b"y")
    assert store.get("aa") is None
    assert "corrupt" in store.warnings[0]


def test_gc_counts_a_linked_file_once(tmp_path: Path) -> None:
    """Removing one of its names frees nothing, the last one all."""
    store = Store(tmp_path)
    first, _ = store.make("aa", "say", write("x" * 50_000))

    def link(folder: Path) -> dict[str, object]:
        (folder / "w.data").hardlink_to(first.file("a.txt"))
        (folder / "own").write_bytes(bytes(10_000))
        return {}

    store.make("bb", "say", link)
    for key, age in (("aa", 9000), ("bb", 8000)):
        then = time.time() - age
        os.utime(store.get(key).path / "entry.json", (then, then))
    shared = 50_000
    removed, freed = eviction.gc(store, max_bytes=shared + 20_000)
    assert removed == 1 and 150_000 < freed < 160_000  # of aa: b.txt and entry.json, not a.txt
    assert [key for key, *_ in store.entries()] == ["bb"]
    then = time.time() - 8000
    os.utime(store.get("bb").path / "entry.json", (then, then))
    removed, freed = eviction.gc(store, max_bytes=0)
    assert removed == 1 and freed >= shared + 10_000


def test_work_of_another_machine_is_abandoned_when_it_is_old(tmp_path: Path) -> None:
    """A process id of another machine or container says nothing here."""
    _, here, token = own_name().split("-")
    names = [
        own_name(),
        f"999999999-{here}-{token}",
        "999999999-0000dead-1",
        "999999999-0000dead-2",
    ]
    for name in names:
        (tmp_path / "tmp" / name).mkdir(parents=True)
    then = time.time() - 48 * 3600
    os.utime(tmp_path / "tmp" / names[3], (then, then))
    eviction.gc(Store(tmp_path), max_bytes=1 << 30)
    assert sorted(path.name for path in (tmp_path / "tmp").iterdir()) == sorted(
        [names[0], names[2]]
    )


def test_two_that_write_one_file_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with durably(path) as one, durably(path) as other:
        one.write_text("one")
        other.write_text("other")
    assert path.read_text() == "one" and list(tmp_path.iterdir()) == [path]


def test_abandoned_links_free_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    entry, _ = store.make("aa", "say", write("x" * 50_000))
    left = tmp_path / "tmp" / f"999999999-{own_name().partition('-')[2]}"
    left.mkdir(parents=True)
    (left / "w.data").hardlink_to(entry.file("a.txt"))
    assert eviction.gc(store, max_bytes=1 << 30) == (1, 0)
    assert store.get("aa") == entry


# --- what the store says of its entries -----------------------------------------------------------


def test_the_past_cost_of_each_step_is_known(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for key, step in (("aa", "bench"), ("bb", "bench"), ("cc", "fuse"), ("dd", "fuse")):
        store.make(key, step, write("x" * 1000))
    (store.place("dd") / "entry.json").write_text("{")  # its step is not known any more
    history = store.history()
    assert {step: len(past) for step, past in history.items()} == {"bench": 2, "fuse": 1}
    assert all(seconds >= 0 and size > 3000 for past in history.values() for seconds, size in past)


@pytest.mark.parametrize("record", ["", "[]", "{}", "[" * 100_000, None])
def test_an_entry_without_a_sound_record_is_listed_as_corrupt(
    record: str | None, tmp_path: Path
) -> None:
    store = Store(tmp_path)
    entry, _ = store.make("aa", "say", write("x" * 1000))
    entry.file("entry.json").unlink()
    if record is not None:
        entry.file("entry.json").write_text(record)
    ((key, step, size, used),) = store.entries()
    assert (key, step, used) == ("aa", "(corrupt)", 0.0) and size >= 3000


def test_only_the_bytes_of_files_count(tmp_path: Path) -> None:
    store = Store(tmp_path)
    entry, _ = store.make("aa", "say", write("x"))
    ((*_, before, _),) = store.entries()
    os.mkfifo(entry.file("pipe"))
    entry.file("link").symlink_to("a.txt")
    ((*_, after, _),) = store.entries()
    assert before == after == eviction.disk_bytes(entry.path)


# --- another process removes something meanwhile --------------------------------------------------


class Overtaken(Store):
    """What it has just listed, another process removes."""

    def glob(self, pattern: str) -> list[Path]:
        found = super().glob(pattern)
        for path in found:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return found


@pytest.mark.parametrize(
    ("work", "found"),
    [
        (Store.verify, (0, [])),
        (Store.history, {}),
        (lambda store: eviction.gc(store, 0), (0, 0)),
        (lambda store: eviction.forget(store, "say"), 0),
        (lambda store: eviction.clear(store)[1], 0),
    ],
    ids=["verify", "history", "gc", "forget", "clear"],
)
def test_what_another_process_removes_meanwhile_is_passed_over(
    work: Callable[[Store], object], found: object, tmp_path: Path
) -> None:
    Store(tmp_path).make("aa", "say", write("x"))
    (tmp_path / "tmp/999999999-0000dead-1").mkdir()  # of another machine, by its name
    store = Overtaken(tmp_path)
    assert work(store) == found
    assert store.warnings == []


class Slow(Store):
    """Another process finds the same damage and moves the entry away first."""

    def peek(self, key: str) -> Entry | None:
        try:
            return super().peek(key)
        finally:
            Store(self.root).get(key)


def test_an_entry_that_two_processes_find_corrupt_is_moved_and_reported_once(
    tmp_path: Path,
) -> None:
    entry, _ = Store(tmp_path).make("aa", "say", write("x"))
    entry.file("a.txt").write_text("!")
    slow = Slow(tmp_path)
    assert slow.get("aa") is None and slow.warnings == []
    assert [path.name[:3] for path in slow.glob("quarantine/*")] == ["aa-"]


# --- errors of the system -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("root", "problem"),
    [
        ("/dev/null", "it cannot be used: Not a directory"),
        ("dangling", "it cannot be used: File exists"),
        ("file", "/file' is a file, not a folder"),
    ],
)
def test_a_place_that_can_be_no_store_is_named(root: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "not mounted")
    with pytest.raises(StorageError) as caught:
        Store(tmp_path / root).make("kk", "say", write("x"))
    assert caught.value.message.endswith(problem)
    assert str(caught.value.where).startswith(str(tmp_path / root))
    assert "choose another --cache" in str(caught.value.hint)


def test_a_store_in_a_working_folder_that_was_removed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    with pytest.raises(StorageError) as caught:
        Store(Path("cache")).make("kk", "say", write("x"))
    assert caught.value.message == "this folder does not exist, and it cannot be created"
    assert caught.value.where == "cache"


def test_the_error_of_the_system_is_found_in_that_of_a_library(tmp_path: Path) -> None:
    """Each writes to a folder, as to a file."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[N] x) => (float[N] y) {y = Relu(x)}'
    )
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(tmp_path), 4
    libraries: list[Callable[[], object]] = [
        lambda: save_file({"w": np.zeros(3)}, tmp_path),
        lambda: onnxruntime.InferenceSession(
            model.SerializeToString(), options, ["CPUExecutionProvider"], enable_fallback=0
        ),
    ]
    for library in libraries:
        with pytest.raises(Exception, match="21") as caught:
            library()
        cause = io_cause(caught.value)
        assert cause is not None and not isinstance(caught.value, OSError)
        assert (cause.errno, cause.strerror) == (errno.EISDIR, os.strerror(errno.EISDIR))


@pytest.mark.parametrize(
    ("message", "code", "scarce"),
    [
        ("write failed: No space left on device", errno.ENOSPC, False),
        ("cannot open w.bin: Too many open files (os error 24)", errno.EMFILE, True),
        ("open w.bin failed (system error number 12)", errno.ENOMEM, True),
        ("shapes 24 and 12 do not match", None, False),
    ],
)
def test_the_text_of_a_library_tells_what_the_machine_lacks(
    message: str, code: int | None, scarce: bool
) -> None:
    cause = io_cause(RuntimeError(message))
    assert (cause and cause.errno) == code
    assert is_scarce(RuntimeError(message)) == scarce
