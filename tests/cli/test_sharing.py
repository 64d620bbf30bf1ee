"""Two machines with one remote, on the command line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fsspec")

import optkit
from optkit.ground.workspace import Silent, Workspace

SECRET = "hunter2"


class Ears(Silent):
    def __init__(self) -> None:
        self.hits: dict[str, bool] = {}
        self.notes: list[str] = []

    def done(self, step: str, label: str, hit: bool, seconds: float) -> None:
        self.hits[step] = hit

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_another_machine_makes_nothing_again(project: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(project, elsewhere)
    heard = {}
    for folder in (project, elsewhere):
        heard[folder] = Ears()
        optkit.fuse(
            None,
            recipe=str(folder / "optkit.yaml"),
            out=tmp_path / f"out-{folder.name}",
            workspace=Workspace(
                tmp_path / f"cache-{folder.name}",
                remote=f"memory://bob:{SECRET}@team/place",
                listener=heard[folder],
            ),
        )
    assert heard[project].hits == {"export": False, "fuse": False}
    assert heard[elsewhere].hits == {"export": True, "fuse": True}
    assert heard[elsewhere].notes == []
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    one, two = (tmp_path / f"out-{folder.name}/model.onnx" for folder in (project, elsewhere))
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (("--cache", "s3://bucket/place"), 2, "--remote"),
        (("--remote", "nosuch://place"), 2, "nosuch://"),
        (("--remote", f"ftp://me:{SECRET}@127.0.0.1:1/place", "--verbose"), 8, "127.0.0.1:1"),
    ],
)
def test_what_cannot_be_shared_is_reported_at_once(
    options: tuple[str, ...], code: int, told: str, project: Path, optkit_here: Callable[..., Any]
) -> None:
    done = optkit_here("build", "--target", "l4", "--json", *options, cwd=project)
    assert done.code == code
    error = json.loads(done.out)["error"]
    assert told in json.dumps(error) and told in done.err
    assert SECRET not in done.out + done.err


def test_the_environment_may_name_it(
    project: Path, optkit_here: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPTKIT_REMOTE", "nosuch://place")
    assert optkit_here("build", "--target", "l4", cwd=project, cache=tmp_path / "c").code == 2
    listed = optkit_here("build", "--target", "l4", "--dry-run", cwd=project, cache=tmp_path / "c")
    assert listed.code == 0 and not (tmp_path / "c").exists()  # which looks at the folder alone
