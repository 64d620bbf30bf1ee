"""A recording contains the modules and files on which user code depends, and nothing else."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from optkit import user_code
from optkit.data.reads import Reads, note, record
from optkit.execute.reads import Now, installed_folders

SOURCE = """
import json
import os
from pathlib import Path

import reads_neighbour

HERE = Path(__file__).parent


def samples():
    scratch = HERE / "scratch.txt"
    scratch.write_text("made here")
    return (
        (HERE / "data.json").read_text(),
        os.read(os.open(HERE / "raw.bin", os.O_RDONLY), 9),
        scratch.read_text(),
        Path("/proc/self/status").read_text(),
    )
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "reads_neighbour", raising=False)
    (tmp_path / "source.py").write_text(SOURCE)
    (tmp_path / "reads_neighbour.py").write_text("VALUE = 1\n")
    (tmp_path / "data.json").write_text("{}")
    (tmp_path / "raw.bin").write_bytes(b"raw")
    (tmp_path / "unread.txt").write_text("never opened")
    return tmp_path


def names(reads: Reads, folder: Path) -> set[str]:
    return {Path(path).name for path in reads.answers["content"] if path.startswith(str(folder))}


def test_modules_and_opened_files_are_recorded_with_their_digests(folder: Path) -> None:
    with record() as reads:
        user_code.load_factory(f"{folder / 'source.py'}:samples")()
    assert names(reads, folder) == {"source.py", "reads_neighbour.py", "data.json", "raw.bin"}
    data = str(folder / "data.json")
    assert (
        reads.answers["content"][data]
        == hashlib.sha256((folder / "data.json").read_bytes()).hexdigest()
    )


def test_a_module_imported_earlier_counts_and_a_file_opened_earlier_does_not(folder: Path) -> None:
    samples = user_code.load_factory(f"{folder / 'source.py'}:samples")
    samples()
    with record() as reads:
        pass
    assert names(reads, folder) == {"source.py", "reads_neighbour.py"}


def test_installed_code_is_reported_by_version_and_not_by_file(folder: Path) -> None:
    with record() as reads:
        import numpy

        json.loads("{}")
    assert reads.answers["package"]["numpy"] == numpy.__version__
    assert not any("site-packages" in path for path in reads.answers["content"])
    package = str(Path(user_code.__file__).parent) + os.sep
    assert not any(path.startswith((package, "/proc/")) for path in reads.answers["content"])


def test_recordings_nest_and_end(folder: Path) -> None:
    with record() as outer:
        with record() as inner:
            (folder / "data.json").read_text()
        (folder / "raw.bin").read_bytes()
    (folder / "unread.txt").read_text()
    assert "data.json" in names(inner, folder) and "raw.bin" not in names(inner, folder)
    assert {"data.json", "raw.bin"} <= names(outer, folder)
    assert "unread.txt" not in names(outer, folder)


def test_nothing_is_filled_in_when_the_code_fails(folder: Path) -> None:
    with pytest.raises(ZeroDivisionError), record() as reads:
        (folder / "data.json").read_text()
        1 / 0  # noqa: B018
    assert reads.answers == {} and not reads.relative().about("content")


def test_a_listed_folder_counts_by_its_names(folder: Path) -> None:
    (folder / "pictures").mkdir()
    (folder / "pictures" / "a.png").write_bytes(b"a")
    with record() as reads:
        list((folder / "pictures").glob("*.png"))
        user_code.load_factory(f"{folder / 'source.py'}:samples")  # its imports list folders too
    found = reads.relative()
    assert list(found.about("names")) == [str(folder / "pictures")]
    assert Now([], os.environ).agrees(found)
    (folder / "pictures" / "a.png").write_bytes(b"other")
    assert Now([], os.environ).agrees(found)
    (folder / "pictures" / "b.png").write_bytes(b"b")
    assert not Now([], os.environ).agrees(found)


def test_the_processs_own_scratch_is_not_recorded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(folder))
    (folder / "inner").mkdir()
    with record() as reads:
        list((folder / "inner").iterdir())
    assert not reads.answers["names"]


def test_what_a_native_library_opens_can_be_noted(folder: Path) -> None:
    with record() as reads:
        note(folder / "raw.bin")
    assert names(reads, folder) == {"raw.bin"}


def test_the_given_folder_is_importable_but_hides_nothing(folder: Path) -> None:
    (folder / "json.py").write_text("raise RuntimeError('hides the standard library')\n")
    code = (
        "import sys, json\n"
        "from optkit.data.reads import record\n"
        f"with record([{str(folder)!r}]) as reads:\n"
        "    import reads_neighbour\n"
        "print(json.dumps(reads.relative().to_json()))\n"
    )
    root = str(Path(user_code.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": root},
        cwd=folder.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert list(found["content"]) == [str(folder / "reads_neighbour.py")]


def test_a_recording_starts_where_nothing_was_asked_for_yet(tmp_path: Path) -> None:
    """Where packages lie is looked up through the very functions that are wrapped meanwhile."""
    installed_folders.cache_clear()
    with record():
        assert tmp_path.is_dir()
