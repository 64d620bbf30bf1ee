"""A store with a remote: what machines share, and that a bad remote does not change a build."""

from __future__ import annotations

import errno
import hashlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("fsspec")

import fsspec
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.memory import MemoryFileSystem

from optkit.facts.errors import IntegrityError, StorageError, ToolchainMissing, UsageError
from optkit.ground.store import DamagedFile, Remote, RemoteLost, RemoteReadOnly, Store, digest_json
from optkit.ground.store import remote as remotes

URL = "shaky://place"


class Shaky(MemoryFileSystem):
    """Files in memory. Call number `left` and all after it fail; a write leaves half of itself."""

    protocol = "shaky"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    left = sys.maxsize
    failure: type[Exception] = ConnectionError
    writes: ClassVar[list[str]] = []

    def _may(self) -> bool:
        Shaky.left -= 1
        return Shaky.left >= 0

    def _put(self, path: str, data: bytes) -> None:
        good = self._may()
        super().pipe_file(path, data if good else data[: len(data) // 2])
        if not good:
            raise self.failure("no more")
        Shaky.writes.append(path)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        self._put(path, value)

    def put_file(self, lpath: str, rpath: str, *args: Any, **kwargs: Any) -> None:
        self._put(rpath, Path(lpath).read_bytes())

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        if not self._may():
            raise self.failure("no more")
        return dict(super().info(path, **kwargs))

    def cat_file(self, path: str, *args: Any, **kwargs: Any) -> bytes:
        if not self._may():
            raise self.failure("no more")
        return bytes(super().cat_file(path, *args, **kwargs))


def emptied() -> None:
    Shaky.store.clear()
    Shaky.left, Shaky.failure = sys.maxsize, ConnectionError
    Shaky.writes.clear()


@pytest.fixture
def shaky() -> Iterator[type[Shaky]]:
    fsspec.register_implementation("shaky", Shaky, clobber=True)
    emptied()
    yield Shaky
    emptied()


@pytest.fixture(params=["file", "shaky"])
def url(request: pytest.FixtureRequest, tmp_path: Path, shaky: Any) -> str:
    return URL if request.param == "shaky" else f"file://{tmp_path}/remote"


def writing(files: dict[str, bytes]) -> Callable[[Path], dict[str, Any]]:
    def produce(folder: Path) -> dict[str, Any]:
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        return {"files": len(files)}

    return produce


def never(folder: Path) -> dict[str, Any]:
    pytest.fail("ran again")


FILES = {"a.bin": b"alpha" * 9, "deep/b.bin": b"beta", "same": b"beta"}
KEY = "ab12cd"


def test_a_step_of_one_machine_is_a_hit_on_another(url: str, tmp_path: Path) -> None:
    made, _ = Store(tmp_path / "one", Remote(url)).make(KEY, "say", writing(FILES))
    other = Store(tmp_path / "two", Remote(url))
    found, hit = other.make(KEY, "say", never)
    assert hit and (found.files, found.meta, found.seconds) == (made.files, made.meta, made.seconds)
    assert {name: found.file(name).read_bytes() for name in FILES} == FILES
    assert Store(tmp_path / "two").get(KEY) == found and other.warnings == []
    assert not list((tmp_path / "two/tmp").iterdir())
    _, hit = Store(tmp_path / "two", Remote(url)).make("other", "say", writing({"x": b"x"}))
    assert not hit


def test_what_was_made_before_there_was_a_remote_is_shared_too(tmp_path: Path, shaky: Any) -> None:
    Store(tmp_path / "one").make(KEY, "say", writing(FILES))
    Store(tmp_path / "one", Remote(URL)).make(KEY, "say", never)
    assert Store(tmp_path / "two", Remote(URL)).get(KEY) is not None
    once = list(shaky.writes)
    assert len([path for path in once if "/files/" in path]) == 2  # "beta" has two names
    Store(tmp_path / "one", Remote(URL)).make(KEY, "say", never)
    assert shaky.writes == once


def test_the_record_of_an_entry_is_uploaded_after_its_files(tmp_path: Path, shaky: Any) -> None:
    Store(tmp_path, Remote(URL)).make(KEY, "say", writing(FILES))
    mark, *files, record = shaky.writes
    assert mark.endswith("/optkit.json") and "/steps/" in record
    assert all("/files/" in path for path in files)


def test_records_are_shared(url: str, tmp_path: Path) -> None:
    first, second = ({"files": {"/m.py": digest}, "packages": {}} for digest in ("1", "2"))
    one = Store(tmp_path / "one", Remote(url))
    one.remember("zz", first)
    one.share_record("zz", first)
    two = Store(tmp_path / "two", Remote(url))
    two.remember("zz", second)
    assert list(two.recalled("zz")) == [second, first]
    assert list(Store(tmp_path / "three").recalled("zz")) == []


@given(
    files=st.dictionaries(
        st.sampled_from(["a", "b", "c/d", "c/e"]), st.binary(max_size=40), max_size=4
    ),
    calls=st.integers(0, 14),
)
@settings(max_examples=25, deadline=None)
def test_an_interrupted_upload_is_never_an_entry(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], calls: int
) -> None:
    """After any number of calls the machine is gone; the next one finds all or nothing."""
    fsspec.register_implementation("shaky", Shaky, clobber=True)
    emptied()
    root = tmp_path_factory.mktemp("stores")
    remote = Remote(URL)
    Shaky.left = calls
    made, _ = Store(root / "one", remote).make(KEY, "say", writing(files))
    Shaky.left = sys.maxsize
    two = Store(root / "two", Remote(URL))
    found = two.get(KEY)
    assert found is None or dict(found.files) == dict(made.files)
    again, hit = two.make(KEY, "say", writing(files))
    assert hit == (found is not None) and again.digest == made.digest
    three = Store(root / "three", Remote(URL))
    assert three.make(KEY, "say", never)[0].digest == made.digest and three.warnings == []


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _rename_in(record: Path, name: str) -> None:
    """A record that is sound, but for what it names its files."""
    _forge(record, files={name: next(iter(json.loads(record.read_bytes())["files"].values()))})


def _forge(record: Path, without: str = "", **change: Any) -> None:
    """A record with a right check over changed fields."""
    body = {**json.loads(record.read_bytes()), **change}
    body = {key: value for key, value in body.items() if key not in ("check", without)}
    text = json.dumps(body, sort_keys=True)
    body["check"] = hashlib.sha256(text.encode()).hexdigest()
    record.write_text(json.dumps(body))


def _deep(levels: int) -> Any:
    found: Any = 1
    for _ in range(levels):
        found = [found]
    return found


CORRUPTIONS: dict[str, Callable[[Path, Path], object]] = {
    "file flipped": lambda file, record: _flip(file),
    "file cut": lambda file, record: file.write_bytes(b""),
    "file gone": lambda file, record: file.unlink(),
    "record flipped": lambda file, record: _flip(record),
    "record cut": lambda file, record: record.write_bytes(record.read_bytes()[:40]),
    "record is a list": lambda file, record: record.write_text("[]"),
    "name leads out": lambda file, record: _rename_in(record, "../../../out"),
    "name is absolute": lambda file, record: _rename_in(record, "/tmp/out"),
    "name is too long": lambda file, record: _rename_in(record, "a" * 256),
    "names are too long": lambda file, record: _rename_in(record, "a/" * 3000 + "a"),
    "name is half a character": lambda file, record: _rename_in(record, "\ud800"),
    "name holds an escape": lambda file, record: _rename_in(record, "\x1b[2J"),
    "name is the record's": lambda file, record: _rename_in(record, "entry.json"),
    "file and folder of one name": lambda file, record: _forge(
        record, files={"a": file.name, "a/b": file.name}
    ),
    "folder and file of one name": lambda file, record: _forge(
        record, files={"a/b": file.name, "a": file.name}
    ),
    "digest is a number": lambda file, record: _forge(record, files={"a": 5}),
    "files are a list": lambda file, record: _forge(record, files=["a"]),
    "meta is a text": lambda file, record: _forge(record, meta="m"),
    "step is null": lambda file, record: _forge(record, step=None),
    "seconds are a text": lambda file, record: _forge(record, seconds="1"),
    "seconds are endless": lambda file, record: _forge(record, seconds=float("inf")),
    "no seconds": lambda file, record: _forge(record, "seconds"),
    "meta is deep": lambda file, record: _forge(record, meta={"a": _deep(500)}),
    "record is deep": lambda file, record: record.write_text("[" * 100_000),
    "record is no text": lambda file, record: record.write_bytes(b"\xff\xfe\x00"),
}


@pytest.mark.parametrize("how", sorted(CORRUPTIONS))
def test_a_corrupt_entry_is_reported_once_and_replaced(tmp_path: Path, how: str) -> None:
    url = f"file://{tmp_path}/remote"
    made, _ = Store(tmp_path / "one", Remote(url)).make(KEY, "say", writing({"a": b"alpha"}))
    (file,), (record,) = (
        (tmp_path / "remote").glob("files/*/*"),
        (tmp_path / "remote").glob("steps/*/*"),
    )
    CORRUPTIONS[how](file, record)
    two = Store(tmp_path / "two", Remote(url))
    again, hit = two.make(KEY, "say", writing({"a": b"alpha"}))
    assert not hit and again.digest == made.digest
    assert len(two.warnings) == 1 and "of the remote was corrupt" in two.warnings[0]
    three = Store(tmp_path / "three", Remote(url))
    assert three.make(KEY, "say", never)[1] and three.warnings == []
    assert {path.name for path in tmp_path.iterdir()} == {"one", "two", "three", "remote"}


@pytest.mark.parametrize("record", ["[" * 100_000, "\udc80", "5"])
def test_a_bad_record_is_as_none(tmp_path: Path, shaky: Any, record: str) -> None:
    remote = Remote(URL)
    shaky.store.clear()
    Remote(URL)._write("records/zz/zz.json", record.encode("utf-8", "surrogateescape"))
    assert list(Store(tmp_path, remote).recalled("zz")) == []


def test_a_deep_mark_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "optkit.json").write_text("[" * 100_000)
    with pytest.raises(RemoteLost, match="not a store in this format"):
        Remote(f"file://{tmp_path}")


def test_progress_is_told_until_it_is_forgotten(url: str) -> None:
    one, two = Remote(url), Remote(url)
    assert two.told("task") is None
    one.tell("task", {"done": 1})
    one.tell("task", {"done": 2})
    assert two.told("task") == {"done": 2}
    two.forget("task")
    assert one.told("task") is None
    one.forget("task")  # a second time, as both ends of a task do


def test_deep_progress_is_none(tmp_path: Path, shaky: Any) -> None:
    remote = Remote(URL)
    remote._write("progress/a.json", b"[" * 100_000)
    assert remote.told("a") is None


def test_a_remote_that_is_lost_is_reported_once_and_the_work_goes_on(
    tmp_path: Path, shaky: Any
) -> None:
    store = Store(tmp_path, Remote(URL))
    shaky.left = 0
    for key in ("aa", "bb", "cc"):
        assert not store.make(key, "say", writing(FILES))[1]
    assert len(store.warnings) == 1 and "going on without it" in store.warnings[0]


def test_a_remote_that_takes_nothing_is_read(tmp_path: Path, shaky: Any) -> None:
    Store(tmp_path / "one", Remote(URL)).make(KEY, "say", writing(FILES))
    two = Store(tmp_path / "two", Remote(URL))
    real = shaky._put

    def refused(self: Shaky, path: str, data: bytes) -> None:
        raise PermissionError("Access Denied")

    shaky._put = refused
    try:
        for key in ("aa", "bb"):
            two.make(key, "say", writing(FILES))
    finally:
        shaky._put = real
    assert two.make(KEY, "say", never)[1]
    assert len(two.warnings) == 1 and "only reading from it" in two.warnings[0]
    shaky.left = 0
    for key in ("cc", "dd"):
        two.make(key, "say", writing(FILES))
    assert len(two.warnings) == 2 and "going on without it" in two.warnings[1]


def test_that_a_remote_refuses_and_that_it_is_lost_is_reported_once_each(
    tmp_path: Path, shaky: Any
) -> None:
    sharing = Store(tmp_path, Remote(URL)).sharing
    for error in (RemoteReadOnly("refuses"), RemoteLost("is gone")):
        for _ in range(3):
            sharing.lose(error)
    assert sharing.warnings == [
        "refuses; only reading from it", "is gone; going on without it",
    ]  # fmt: skip


class Cloud(AsyncFileSystemWrapper):
    """The same files behind a client as those of object stores: it has many connections."""

    protocol = "cloud"

    def __init__(self, **options: Any) -> None:
        super().__init__(Shaky(), **options)


def test_an_object_store_answers_one_thread_while_another_one_waits(
    shaky: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answer, real = threading.Event(), threading.Event(), Shaky.cat_file

    def late(self: Shaky, path: str, *args: Any, **kwargs: Any) -> bytes:
        if "slow" in path:
            asked.set()
            answer.wait()
        return real(self, path, *args, **kwargs)

    monkeypatch.setattr(Shaky, "cat_file", late)
    fsspec.register_implementation("cloud", Cloud, clobber=True)
    remote = Remote("cloud://place")
    for key in ("slow", "fast"):
        remote.keep("records", key, key)
    with ThreadPoolExecutor(1) as thread:
        slow = thread.submit(remote.record, "records", "slow")
        try:
            assert asked.wait(300)
            assert remote.record("records", "fast") == "fast" and not slow.done()
        finally:
            answer.set()
        assert slow.result() == "slow"


def test_a_remote_that_never_answers_is_lost(
    tmp_path: Path, shaky: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, waiting = Store(tmp_path, Remote(URL)), threading.Event()
    monkeypatch.setattr(remotes, "_ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(Shaky, "cat_file", lambda *args, **kwargs: waiting.wait())
    store.make(KEY, "say", writing(FILES))
    waiting.set()
    assert len(store.warnings) == 1 and "no answer" in store.warnings[0]


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        ("shaky://bob:p%40ss@host/place?token=tkn123", ("p%40ss", "p@ss", "tkn123")),
        ("shaky://hunter2@host/place", ("hunter2",)),
    ],
)
def test_no_secret_of_a_url_is_reported(
    url: str, secrets: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, shaky: Any
) -> None:
    def failing(self: Shaky, *args: Any, **kwargs: Any) -> bytes:
        raise RuntimeError(f"GET {url} as {' and '.join(secrets)}")

    monkeypatch.setattr(Shaky, "cat_file", failing)
    with pytest.raises(RemoteLost, match="GET") as caught:
        Remote(url)
    told = json.dumps(caught.value.to_json())
    assert not [part for part in secrets if part in told]
    assert "host/place" in told and caught.value.exit_code == StorageError.exit_code
    assert caught.value.__suppress_context__ and caught.value.__cause__ is None  # in a traceback


@pytest.mark.parametrize(
    ("url", "error", "hint"),
    [
        ("ftp://127.0.0.1:1/place", RemoteLost, "is it up"),
        ("nosuch://place", UsageError, "s3://"),
        ("place", UsageError, "s3://"),
        ("file:///proc/place", RemoteLost, "is it up"),
        ("file://mnt/place", UsageError, "file:///mnt"),
        ("ftp://127.0.0.1:port/place", RemoteLost, "is it up"),
    ],
)
def test_a_wrong_url_is_reported_at_once(url: str, error: type[Exception], hint: str) -> None:
    with pytest.raises(error) as caught:
        Remote(url)
    assert hint in str(getattr(caught.value, "hint", ""))


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "adlfs", None)
    with pytest.raises(ToolchainMissing, match="adlfs"):
        Remote("abfs://place")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ToolchainMissing) as caught:
        Remote("s3://place")
    assert "optkit[remote]" in str(caught.value.hint)


def test_another_form_of_remote_is_refused(tmp_path: Path) -> None:
    (tmp_path / "optkit.json").write_text('{"schema": "optkit.remote/v9"}')
    with pytest.raises(RemoteLost, match="form"):
        Remote(f"file://{tmp_path}")


def test_files_go_by_their_digest(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/remote"
    one, two = (Store(tmp_path / name, Remote(url)) for name in ("one", "two"))
    (tmp_path / "tree/deep").mkdir(parents=True)
    (tmp_path / "tree/deep/x").write_bytes(b"x")
    sent = one.sharing.send(tmp_path / "tree")
    assert list(sent) == ["tree/deep/x"]
    for place in ("first", "second"):
        two.sharing.bring(sent, tmp_path / place)
        assert (tmp_path / place / "tree/deep/x").read_bytes() == b"x"
    copies = list((tmp_path / "two/objects").glob("*/*"))
    assert len(copies) == 1 and copies[0].stat().st_nlink == 3
    assert copies[0].stat().st_mode & 0o777 == 0o444
    with pytest.raises(DamagedFile) as caught:
        two.sharing.bring({"y": digest_json("absent")}, tmp_path / "third")
    assert isinstance(caught.value, IntegrityError) and caught.value.sha256


def sent(store: Store, file: Path) -> dict[str, str]:
    file.write_bytes(b"sent")
    return store.sharing.send(file)


def test_a_file_that_has_changed_since_it_was_sent_is_fetched(tmp_path: Path) -> None:
    store = Store(tmp_path / "one", Remote(f"file://{tmp_path}/remote"))
    files = sent(store, tmp_path / "x")
    (tmp_path / "x").write_bytes(b"then")
    store.sharing.bring(files, tmp_path / "back")
    assert (tmp_path / "back/x").read_bytes() == b"sent"


def test_a_file_that_this_machine_has_sent_is_not_fetched(tmp_path: Path) -> None:
    store = Store(tmp_path / "one", Remote(f"file://{tmp_path}/remote"))
    files = sent(store, tmp_path / "x")
    (there,) = (tmp_path / "remote").glob("files/*/*")
    there.unlink()
    store.sharing.bring(files, tmp_path / "back")
    assert (tmp_path / "back/x").samefile(tmp_path / "x")
    assert store.glob("objects/*/*") == []


def test_a_file_that_another_machine_found_damaged_is_sent_again(tmp_path: Path) -> None:
    remote = Remote(f"file://{tmp_path}/remote")
    one, two = Store(tmp_path / "one", remote), Store(tmp_path / "two", Remote(remote.url))
    files = sent(one, tmp_path / "x")
    (there,) = (tmp_path / "remote").glob("files/*/*")
    there.write_bytes(b"then")
    with pytest.raises(DamagedFile, match="does not match its digest") as caught:
        two.sharing.bring(files, tmp_path / "first")
    remote.doubt_file(caught.value.sha256)
    assert sent(one, tmp_path / "x") == files
    Store(tmp_path / "three", Remote(remote.url)).sharing.bring(files, tmp_path / "second")
    assert (tmp_path / "second/x").read_bytes() == b"sent"


def test_nothing_is_sent_to_a_remote_that_was_lost(tmp_path: Path, shaky: Any) -> None:
    store = Store(tmp_path / "one", Remote(URL))
    shaky.left = 0
    store.make(KEY, "say", writing(FILES))
    shaky.left = sys.maxsize  # it is up again, for the next command
    with pytest.raises(RemoteLost, match="was given up"):
        sent(store, tmp_path / "x")
    assert sent(Store(tmp_path / "one", Remote(URL)), tmp_path / "x")


def test_a_copy_that_has_changed_is_fetched_again(tmp_path: Path) -> None:
    one, two = (Store(tmp_path / n, Remote(f"file://{tmp_path}/remote")) for n in ("one", "two"))
    files = sent(one, tmp_path / "x")
    two.sharing.bring(files, tmp_path / "first")
    (copy,) = two.glob("objects/*/*")
    copy.chmod(0o644)
    copy.write_bytes(b"then")
    two.sharing.bring(files, tmp_path / "second")
    assert (tmp_path / "second/x").read_bytes() == b"sent"


def test_a_name_that_leads_out_is_not_brought(tmp_path: Path) -> None:
    one, two = (Store(tmp_path / n, Remote(f"file://{tmp_path}/remote")) for n in ("one", "two"))
    (sha256,) = sent(one, tmp_path / "x").values()
    with pytest.raises(DamagedFile, match="not a valid name"):
        two.sharing.bring({"../out": sha256}, tmp_path / "folder")
    assert not (tmp_path / "out").exists()


def test_where_a_disk_has_no_links_files_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (Store(tmp_path / n, Remote(f"file://{tmp_path}/remote")) for n in ("one", "two"))
    files = sent(one, tmp_path / "x")

    def refused(self: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr(Path, "hardlink_to", refused)
    two.sharing.bring(files, tmp_path / "copied")
    assert (tmp_path / "copied/x").read_bytes() == b"sent"


def test_half_of_a_record_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = Remote(f"file://{tmp_path}/remote")

    def half(path: str, data: bytes) -> None:
        Path(path).write_bytes(data[: len(data) // 2])
        raise ConnectionError("half way")

    monkeypatch.setattr(remote._files, "pipe_file", half)
    store = Store(tmp_path / "one", remote)
    store.make(KEY, "say", writing(FILES))
    assert len(store.warnings) == 1
    assert not list((tmp_path / "remote/steps").glob("*/*.json"))


def test_that_the_disk_of_this_machine_is_full_is_no_fault_of_the_remote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path}/remote"
    Store(tmp_path / "one", Remote(url)).make(KEY, "say", writing(FILES))
    remote = Remote(url)

    def full(*paths: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", paths[-1])

    monkeypatch.setattr(remote._files, "get_file", full)
    two = Store(tmp_path / "two", remote)
    with pytest.raises(StorageError) as caught:
        two.get(KEY)
    assert "optkit cache gc" in str(caught.value.hint) and two.warnings == []
