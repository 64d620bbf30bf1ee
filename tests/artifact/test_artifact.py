from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from optkit.facts.errors import InputRefused, IntegrityError, StorageError, UsageError
from optkit.facts.evidence import Evidence
from optkit.facts.tensors import TensorInfo
from optkit.ground import exchange
from optkit.ground.artifact import (
    Artifact,
    EngineFile,
    Manifest,
    Running,
    check_name,
    create,
    prepare,
    write,
)
from optkit.ground.store import digest_json
from tests.synced import renames

NAME = "net-l4-int8"
RESULT = {
    "schema": "optkit.result/v1",
    "status": "ok",
    "engine": {"backend": "tensorrt-rtx", "evidence": "compiled", "bytes": 7},
    "latency": {"evidence": "predicted", "p50_ms": 0.25, "band": [0.1, 0.5]},
    "accuracy": None,
    "fidelity": {"evidence": "simulated", "cosine": 0.999},
}
MANIFEST = Manifest(
    name=NAME,
    target="l4",
    precision="int8",
    digest="d" * 64,
    recipe={"name": "net", "axes": {"batch": {"min": 1, "opt": 8, "max": 32}}},
    inputs=(TensorInfo("x", "float32", ("batch", 4)),),
    outputs=(TensorInfo("y", "float32", ("batch", 4)),),
    versions={"onnx": "1.23.2"},
    result=RESULT,
)


def model(addend: float = 1.0) -> bytes:
    """y = x + addend."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])
    one = helper.make_tensor("one", TensorProto.FLOAT, [], [addend])
    graph = helper.make_graph([helper.make_node("Add", ["x", "one"], ["y"])], "g", [x], [y], [one])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return bytes(made.SerializeToString())


def contents(mark: bytes = b"") -> dict[str, Path | bytes]:
    return {
        "model.onnx": model(),
        "engine.plan": b"engine" + mark,
        "baseline/model.onnx": model(2.0),
        "report.json": b"{}",
        "empty": b"",
    }


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "artifacts"


@pytest.fixture
def made(out: Path) -> Artifact:
    return write(out, MANIFEST, contents())


def leftovers(out: Path) -> list[str]:
    return [p.name for p in out.iterdir() if p.name not in (NAME, ".gitignore")]


# --- writing and reading ------------------------------------------------------------------------


def test_what_is_written_is_read(made: Artifact, out: Path) -> None:
    read = Artifact.load(out / NAME)
    read.verify()
    assert read.path == made.path == out / NAME
    assert (read.name, read.digest) == (NAME, "d" * 64)
    assert read.manifest == made.manifest
    assert read.manifest.inputs == MANIFEST.inputs
    assert read.manifest.files.keys() == contents().keys()
    assert read.model_path.read_bytes() == model()
    assert read.result["latency"] == {"evidence": "predicted", "p50_ms": 0.25, "band": [0.1, 0.5]}
    assert read.measurement == {
        "latency": read.result["latency"], "accuracy": None, "fidelity": RESULT["fidelity"],
    }  # fmt: skip
    assert leftovers(out) == []


def test_the_manifest_on_disk_has_the_documented_form(made: Artifact) -> None:
    data = json.loads((made.path / "manifest.json").read_text())
    assert data["schema"] == "optkit.artifact/v1"
    assert data["evidence"] == {
        "engine": "compiled", "latency": "predicted", "fidelity": "simulated",
    }  # fmt: skip
    assert data["files"]["report.json"] == {
        "sha256": "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a", "size": 2,
        "role": "proves",
    }  # fmt: skip
    assert data["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["batch", 4]}]


def test_files_are_copied_from_where_they_lie(out: Path, tmp_path: Path) -> None:
    source = tmp_path / "big"
    source.write_bytes(os.urandom(3 << 20))
    source.chmod(0o444)
    made = write(out, MANIFEST, {**contents(), "deep/er/big": source})
    copy = made.path / "deep" / "er" / "big"
    assert copy.read_bytes() == source.read_bytes()
    assert copy.stat().st_ino != source.stat().st_ino
    assert copy.stat().st_mode & 0o777 == 0o644


def test_the_same_build_gives_the_same_bytes(tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        made = write(tmp_path / name, MANIFEST, contents())
        paths = sorted(p for p in made.path.rglob("*") if p.is_file())
        found.append([(p.relative_to(made.path), p.read_bytes()) for p in paths])
    assert found[0] == found[1]


def test_an_artifact_may_be_moved(made: Artifact, tmp_path: Path) -> None:
    made.path.rename(tmp_path / "elsewhere")
    Artifact.load(tmp_path / "elsewhere").verify()


def test_a_new_folder_is_kept_out_of_git(out: Path, tmp_path: Path) -> None:
    prepare(out, NAME)
    assert not out.exists()  # what is refused later leaves nothing
    create(out)
    assert (out / ".gitignore").read_text() == "*\n"
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "notes.txt").touch()
    create(tmp_path / "own")
    assert not (tmp_path / "own" / ".gitignore").exists()


@pytest.mark.parametrize("text", ["a", "rtx4090", "A.b_c-d", "9" * 128])
def test_sound_names(text: str) -> None:
    check_name("target", text)


@pytest.mark.parametrize(
    "text", ["", ".", "..", ".a", "-a", "a/b", "a\\b", "a b", "é", "a\n", "a\0", "9" * 129]
)
def test_names_that_could_lead_elsewhere(text: str, out: Path) -> None:
    for change in ({"name": text}, {"target": text}):
        with pytest.raises(UsageError, match="cannot be the name"):
            write(out, dataclasses.replace(MANIFEST, **change), contents())
    assert not out.exists() or leftovers(out) == []


@pytest.mark.parametrize(
    "name", ["", "/etc/x", "../x", "a/../x", "a//b", "./a", "a\\b", "C:a", "a\n", "manifest.json"]
)
def test_file_names_that_could_lead_elsewhere(name: str, out: Path, made: Artifact) -> None:
    with pytest.raises(UsageError):
        write(out, MANIFEST, {**contents(), name: b"x"})
    made.verify()
    assert leftovers(out) == []


def test_figures_that_are_not_finite_are_not_written(out: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        write(out, dataclasses.replace(MANIFEST, result={"seconds": float("nan")}), contents())
    assert leftovers(out) == []


# --- replacing ----------------------------------------------------------------------------------


def test_a_newer_artifact_replaces_the_older(made: Artifact, out: Path) -> None:
    files = contents(b"2")
    del files["report.json"]
    write(out, dataclasses.replace(MANIFEST, digest="e" * 64), files)
    read = Artifact.load(out / NAME)
    read.verify()
    assert read.digest == "e" * 64
    assert not (read.path / "report.json").exists()
    assert leftovers(out) == []


def test_where_names_cannot_be_exchanged(
    made: Artifact, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Path) -> None:
        raise OSError(errno.EINVAL, "no such flag")

    monkeypatch.setattr(exchange, "_exchange", refuse)
    write(out, dataclasses.replace(MANIFEST, digest="e" * 64), contents(b"2"))
    read = Artifact.load(out / NAME)
    read.verify()
    assert read.digest == "e" * 64
    assert leftovers(out) == []


def test_a_folder_of_results_is_on_the_disk_before_its_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = renames(monkeypatch)
    with exchange.replacing(tmp_path / "net") as folder:
        (folder / "a").write_bytes(b"a")
    source, before, after = around(tmp_path / "net")
    assert before >= {source, source / "a"} and tmp_path in after


def test_where_the_older_artifact_vanishes_meanwhile(
    made: Artifact, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanish(_: Path, place: Path) -> None:
        shutil.rmtree(place)
        raise FileNotFoundError

    monkeypatch.setattr(exchange, "_exchange", vanish)
    write(out, MANIFEST, contents(b"2")).verify()
    assert leftovers(out) == []


def test_a_private_folder_that_another_build_swept(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, swept = exchange._lock, []

    def lock_late(folder: Path, how: int) -> int:
        if len(swept) == 0:  # gone before the lock
            swept.append(folder)
            folder.rmdir()
        descriptor = real(folder, how)
        if len(swept) == 1:  # gone while the lock was waited for
            swept.append(folder)
            folder.rmdir()
        return descriptor

    monkeypatch.setattr(exchange, "_lock", lock_late)
    write(out, MANIFEST, contents()).verify()
    assert len(set(swept)) == 2
    assert leftovers(out) == []


def test_a_place_that_cannot_lock(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StorageError, match="no locks"):
        write(out, MANIFEST, contents())
    assert leftovers(out) == []


def test_what_a_killed_build_left_is_swept_and_a_living_one_kept(out: Path) -> None:
    out.mkdir()
    dead, alive = out / f".{NAME}.dead.part", out / f".{NAME}.alive.part"
    for folder in (dead, alive):
        (folder / "baseline").mkdir(parents=True)
    lock = os.open(alive, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    write(out, MANIFEST, contents())
    assert leftovers(out) == [alive.name]
    os.close(lock)
    write(out, MANIFEST, contents())
    assert leftovers(out) == []


@pytest.mark.parametrize("kind", ["folder", "file", "link", "dangling"])
def test_what_is_no_artifact_is_not_replaced(kind: str, out: Path, tmp_path: Path) -> None:
    place = out / NAME
    out.mkdir()
    if kind == "folder":
        place.mkdir()
        (place / "thesis.tex").write_text("mine")
    elif kind == "file":
        place.write_text("mine")
    elif kind == "link":
        write(tmp_path / "other", MANIFEST, contents())
        place.symlink_to(tmp_path / "other" / NAME)
    else:
        place.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="not an optkit artifact"):
        prepare(out, NAME)
    with pytest.raises(UsageError, match="not an optkit artifact"):
        write(out, MANIFEST, contents())
    assert place.is_symlink() or place.is_file() or (place / "thesis.tex").read_text() == "mine"


def test_concurrent_writers_and_a_reader(made: Artifact, out: Path) -> None:
    """Whoever comes last wins; a reader never finds nothing, nor a half."""
    stop, seen = threading.Event(), set()

    def read() -> None:
        while not stop.is_set():
            seen.add(Artifact.load(out / NAME).digest)

    def build(letter: str) -> None:
        for _ in range(15):
            changed = dataclasses.replace(MANIFEST, digest=letter * 64)
            write(out, changed, contents(letter.encode() * 1000))

    failures: list[BaseException] = []

    def guarded(work: Any, *args: Any) -> None:
        try:
            work(*args)
        except BaseException as error:
            failures.append(error)

    reader = threading.Thread(target=guarded, args=(read,))
    writers = [threading.Thread(target=guarded, args=(build, letter)) for letter in "abc"]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    assert failures == []
    assert seen <= {letter * 64 for letter in "abcd"}
    last = Artifact.load(out / NAME)
    last.verify()
    assert (last.path / "engine.plan").read_bytes() == b"engine" + last.digest[:1].encode() * 1000
    assert leftovers(out) == []


# --- tampering ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", contents().keys())
@pytest.mark.parametrize("how", ["flip", "cut", "grow", "remove", "link", "folder", "fifo", "swap"])
def test_every_change_to_a_file_is_found(how: str, name: str, made: Artifact) -> None:
    path = made.path / name
    data = path.read_bytes()
    if how in ("flip", "cut") and not data:
        pytest.skip("nothing to change")
    if how == "flip":
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif how == "cut":
        path.write_bytes(data[:-1])
    elif how == "grow":
        path.write_bytes(data + b"\0")
    elif how == "swap":
        path.write_bytes(b"x" * len(data) or b"x")
    else:
        path.rename(made.path.parent / "moved")
        if how == "link":
            path.symlink_to(made.path.parent / "moved")
        elif how == "folder":
            path.mkdir()
        elif how == "fifo":
            os.mkfifo(path)
    with pytest.raises(IntegrityError, match=name) as caught:
        Artifact.load(made.path).verify()
    assert caught.value.exit_code == 7
    with pytest.raises(IntegrityError):
        made.session()


@pytest.mark.parametrize("how", ["file", "hidden", "inner", "link", "linked_folder", "rename"])
def test_every_addition_is_found(how: str, made: Artifact, tmp_path: Path) -> None:
    if how == "file":
        (made.path / "plugin.so").write_bytes(b"")
    elif how == "hidden":
        (made.path / ".gitattributes").write_bytes(b"")
    elif how == "inner":
        (made.path / "baseline" / "x").write_bytes(b"")
    elif how == "link":
        (made.path / "x").symlink_to("/etc/passwd")
    elif how == "linked_folder":
        (made.path / "x").symlink_to(tmp_path)
    else:
        (made.path / "empty").rename(made.path / "void")
    with pytest.raises(IntegrityError, match="was added"):
        made.verify()


def test_a_folder_behind_a_link_is_found(made: Artifact, tmp_path: Path) -> None:
    (made.path / "baseline").rename(tmp_path / "baseline")
    (made.path / "baseline").symlink_to(tmp_path / "baseline")
    with pytest.raises(
        IntegrityError, match=r"'baseline' was added, baseline/model.onnx is missing"
    ):
        made.verify()


def test_every_flipped_bit_of_the_manifest_is_found(made: Artifact) -> None:
    path = made.path / "manifest.json"
    data = path.read_bytes()
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 << (at % 8)
        path.write_bytes(changed)
        with pytest.raises((IntegrityError, InputRefused)):
            Artifact.load(made.path)


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"schema": 1}']
)
def test_what_is_no_manifest(text: bytes, made: Artifact) -> None:
    (made.path / "manifest.json").write_bytes(text)
    with pytest.raises(IntegrityError, match="damaged") as caught:
        Artifact.load(made.path)
    assert str(made.path / "manifest.json") in str(caught.value)


def forged(made: Artifact, change: dict[str, Any]) -> None:
    """A manifest with a right checksum over changed fields."""
    path = made.path / "manifest.json"
    body = {**json.loads(path.read_text()), **change}
    body.pop("check")
    path.write_text(json.dumps({**body, "check": digest_json(body)}))


FACTS = {"sha256": "0" * 64, "size": 0}


@pytest.mark.parametrize(
    "change",
    [
        {"files": {"../secret": FACTS}},
        {"files": {"/etc/passwd": FACTS}},
        {"files": {"a/../../b": FACTS}},
        {"files": {"a\\b": FACTS}},
        {"files": {"\x1b[2J": FACTS}},
        {"files": {"a": {**FACTS, "sha256": "0" * 63}}},
        {"files": {"a": {**FACTS, "sha256": 0}}},
        {"files": {"a": {**FACTS, "size": "0"}}},
        {"files": {"a": {**FACTS, "size": True}}},
        {"files": {"a": {**FACTS, "mode": 0o777}}},
        {"files": {"a": None}},
        {"files": []},
        {"name": "../up"},
        {"name": 7},
        {"target": ""},
        {"digest": None},
        {"versions": {"onnx": 1}},
        {"versions": []},
        {"recipe": []},
        {"result": "ok"},
        {"inputs": [{"name": "x"}]},
        {"inputs": 7},
        {"engine": {"backend": "tensorrt", "file": "not listed"}},
        {"engine": {"backend": "tensorrt", "file": "engine.plan", "plugin": "x.so"}},
        {"engine": ["tensorrt"]},
        {"unknown": 1},
    ],
    ids=str,
)
def test_a_manifest_is_read_strictly(change: dict[str, Any], made: Artifact) -> None:
    forged(made, {})
    Artifact.load(made.path).verify()
    forged(made, change)
    with pytest.raises(IntegrityError, match=r"manifest\.json: damaged"):
        Artifact.load(made.path)


def test_a_later_schema_is_told_apart(made: Artifact) -> None:
    forged(made, {"schema": "optkit.artifact/v2"})
    with pytest.raises(InputRefused, match="schema is optkit\\.artifact/v2") as caught:
        Artifact.load(made.path)
    assert "upgrade" in str(caught.value.hint)


@pytest.mark.parametrize("kind", ["missing", "empty", "file", "link", "fifo"])
def test_what_is_no_artifact(kind: str, tmp_path: Path, made: Artifact) -> None:
    path = tmp_path / "x"
    expected: type[Exception] = InputRefused
    if kind == "empty":
        path.mkdir()
    elif kind == "file":
        path.touch()
    elif kind == "link":
        path.mkdir()
        (path / "manifest.json").symlink_to(made.path / "manifest.json")
        expected = IntegrityError
    elif kind == "fifo":
        path.mkdir()
        os.mkfifo(path / "manifest.json")
        expected = IntegrityError
    with pytest.raises(expected):
        Artifact.load(path)


@given(st.recursive(st.none() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5))
def test_nothing_in_a_manifest_breaks_its_reader(value: Any) -> None:
    good = json.loads(json.dumps(dataclasses.replace(MANIFEST, files={}).to_json()))
    for key in good:
        data = {k: v for k, v in {**good, key: value}.items() if k != "check"}
        try:
            data["check"] = digest_json(data)
        except ValueError:
            data["check"] = "none"
        try:
            Manifest.of(data, "here")
        except (IntegrityError, InputRefused):
            continue


# --- failing disks ------------------------------------------------------------------------------


def test_an_unwritable_place_is_reported_before_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "inner", Path("/proc/artifacts")):
        with pytest.raises(StorageError):
            prepare(out, NAME)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(out: Path) -> None:
    out.mkdir(mode=0o500)
    with pytest.raises(StorageError) as caught:
        prepare(out, NAME)
    assert "--out" in str(caught.value.hint)


@pytest.mark.parametrize(
    "call", ["fsync", "mkdir", "rename", "replace", "fchmod", "chmod", "open", "listdir"]
)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=["full", "io"])
def test_a_fault_at_any_call_keeps_the_older_artifact(
    call: str, number: int, made: Artifact, out: Path, tmp_path: Path
) -> None:
    """The k-th call fails, for k = 1, 2, … until a write comes through."""
    source = tmp_path / "weights"
    source.write_bytes(b"w" * 1000)
    newer = dataclasses.replace(MANIFEST, digest="e" * 64)
    files = {**contents(b"2"), "weights": source}
    real = getattr(os, call)
    for k in range(1, 200):
        left = k

        def fail(*args: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if not left:
                raise OSError(number, os.strerror(number))
            return real(*args, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, call, fail)
            try:
                write(out, newer, files)
            except StorageError as error:
                assert error.exit_code == 8
            except IntegrityError:
                assert call == "open"  # reading back what was just written
        if left > 0:
            break
        found = Artifact.load(out / NAME)
        found.verify()
        # those two may also fail while the private folder is removed: the next write sweeps it
        assert leftovers(out) == [] or call in ("open", "listdir")
    else:
        pytest.fail("it never came through")
    assert Artifact.load(out / NAME).digest == "e" * 64
    assert leftovers(out) == []


def test_a_full_disk_keeps_the_older_artifact(made: Artifact, out: Path, tmp_path: Path) -> None:
    """In a child: the limit on file size stands in for a disk that is full."""
    code = (
        "import resource, sys\nfrom pathlib import Path\n"
        "from optkit.errors import StorageError\n"
        "from optkit.ground.artifact import Artifact, write\n"
        "out = Path(sys.argv[1])\nold = Artifact.load(out / sys.argv[2])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "try: write(out, old.manifest, {'model.onnx': bytes(2 << 20)})\n"
        "except StorageError: sys.exit(8)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(out), NAME], check=False)
    assert done.returncode == 8
    made.verify()
    assert leftovers(out) == []


def kill_while_writing(out: Path, delay: float) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom optkit.ground.artifact import Artifact, write\n"
        "out, name = Path(sys.argv[1]), sys.argv[2]\nold = Artifact.load(out / name)\n"
        "print('ready', flush=True)\n"
        "while True: write(out, old.manifest, {f: old.path.joinpath(f).read_bytes()"
        " for f in old.manifest.files})\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(out), NAME], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    time.sleep(delay)
    child.send_signal(signal.SIGKILL)
    child.communicate()


def check_kills(count: int, made: Artifact, out: Path) -> None:
    chance = random.Random(0)
    for _ in range(count):
        kill_while_writing(out, chance.uniform(0, 0.05))
        Artifact.load(out / NAME).verify()
    write(out, made.manifest, contents())
    assert leftovers(out) == []


def test_a_kill_leaves_a_whole_artifact(made: Artifact, out: Path) -> None:
    check_kills(4, made, out)


@pytest.mark.slow
def test_many_kills_leave_a_whole_artifact(made: Artifact, out: Path) -> None:
    check_kills(100, made, out)


# --- running ------------------------------------------------------------------------------------


def feed() -> dict[str, np.ndarray]:
    return {"x": np.arange(8, dtype=np.float32).reshape(2, 4)}


def test_without_an_engine_the_graph_is_simulated(made: Artifact) -> None:
    with made.session() as running:
        assert (running.backend, running.evidence) == ("onnxruntime", Evidence.SIMULATED)
        assert running.note == "no engine was compiled; model.onnx runs"
        assert [i.name for i in running.inputs] == ["x"]
        assert [o.name for o in running.outputs] == ["y"]
        assert np.array_equal(running.run(feed())["y"], feed()["x"] + 1)


def test_an_engine_that_runs_here_is_measured(out: Path) -> None:
    engine = EngineFile("onnxruntime", "baseline/model.onnx")
    made = write(out, dataclasses.replace(MANIFEST, engine=engine), contents())
    with made.session(threads=1) as running:
        assert (running.backend, running.evidence) == ("onnxruntime", Evidence.MEASURED)
        assert np.array_equal(running.run(feed())["y"], feed()["x"] + 2)


def test_an_engine_that_cannot_run_here_gives_way_to_its_simulation(out: Path) -> None:
    engine = EngineFile("tensorrt-rtx", "engine.plan")
    files = {**contents(), "simulation.onnx": model(3.0)}
    made = write(out, dataclasses.replace(MANIFEST, engine=engine), files)
    with made.session() as running:
        assert (running.backend, running.evidence) == ("onnxruntime", Evidence.SIMULATED)
        assert "simulation.onnx runs" in str(running.note)
        assert np.array_equal(running.run(feed())["y"], feed()["x"] + 3)


def test_run_keeps_its_session_until_closed(made: Artifact) -> None:
    with Artifact.load(made.path) as opened:
        first = opened.run(feed())["y"]
        shutil.rmtree(made.path)
        assert np.array_equal(opened.run(feed())["y"], first)
    opened.close()
    with pytest.raises(IntegrityError, match="missing"):
        opened.run(feed())


class Engine:
    """A session with a largest batch, as an engine has it: y = x + 1."""

    inputs = MANIFEST.inputs
    outputs = MANIFEST.outputs

    def __init__(self) -> None:
        self.batches: list[int] = []

    def run(self, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.batches.append(len(feed["x"]))
        return {"y": feed["x"] + 1}


@given(rows=st.integers(0, 40), largest=st.integers(1, 9))
def test_a_batch_larger_than_the_engines_runs_in_parts(rows: int, largest: int) -> None:
    engine, x = Engine(), np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    running = Running.of(engine, "tensorrt-rtx", Evidence.MEASURED, None, largest)  # type: ignore[arg-type]
    assert np.array_equal(running.run({"x": x})["y"], x + 1)
    assert sum(engine.batches) == rows and max(engine.batches) <= largest
    assert len(engine.batches) == max(1, -(-rows // largest))


def test_the_largest_batch_is_that_of_the_axis_that_all_have_in_common() -> None:
    assert MANIFEST.largest_batch == 32
    table = TensorInfo("table", "float32", (7, 4))
    for change in (
        {"inputs": (*MANIFEST.inputs, table)},
        {"outputs": (TensorInfo("y", "float32", ()),)},
        {"recipe": {"axes": {"batch": 3}}},
        {"recipe": {}},
    ):
        assert dataclasses.replace(MANIFEST, **change).largest_batch is None  # type: ignore[arg-type]


_LIGHT = """
import sys
import numpy as np

class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "onnx", "pydantic", "jinja2", "rich", "click"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Gone())
import optkit
print(optkit.load(sys.argv[1]).run({"x": np.zeros((2, 4), np.float32)})["y"].tolist())
"""


@pytest.mark.parametrize("elsewhere", [False, True])
def test_serving_needs_the_runtime_and_numpy_alone(
    elsewhere: bool, made: Artifact, tmp_path: Path
) -> None:
    """Also on a machine that did not build the artifact, which first tries the graph in a child."""
    line = [sys.executable, "-c", _LIGHT, str(made.path)]
    env = {**os.environ, **({"OPTKIT_CACHE": str(tmp_path / "elsewhere")} if elsewhere else {})}
    done = subprocess.run(line, capture_output=True, text=True, env=env)
    assert done.stdout == "[[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]\n", done.stderr
