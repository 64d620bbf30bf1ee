"""The files of an artifact: folders in their places, and users who may change them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import optkit
from optkit.facts.errors import IntegrityError, UnsafeFile
from optkit.ground.artifact import Artifact, integrity, reader, write
from optkit.ground.runtimes import backend
from tests.artifact.test_artifact import MANIFEST, contents, model

FEED = {"x": np.arange(8, dtype=np.float32).reshape(2, 4)}


@pytest.fixture
def made(tmp_path: Path, cache: Path) -> Artifact:
    return write(tmp_path / "artifacts", MANIFEST, contents())


def test_a_folder_in_place_of_the_manifest(made: Artifact) -> None:
    (made.path / "manifest.json").unlink()
    (made.path / "manifest.json").mkdir()
    with pytest.raises(IntegrityError, match="not a regular file") as caught:
        optkit.load(made.path)
    assert "manifest.json" in str(caught.value.where)


@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize("name", ["model.onnx", "baseline/model.onnx", "empty"])
def test_a_folder_in_place_of_a_file(name: str, filled: bool, made: Artifact) -> None:
    (made.path / name).unlink()
    (made.path / name).mkdir()
    if filled:
        (made.path / name / "x").touch()
    with pytest.raises(IntegrityError, match=rf"{name} is a link or a folder"):
        made.verify()


@pytest.mark.parametrize("name", ["extra", "baseline/extra", "extra/inner"])
def test_an_added_folder_is_named(name: str, made: Artifact) -> None:
    (made.path / name).mkdir(parents=True)
    with pytest.raises(IntegrityError, match=rf"'{name}' was added") as caught:
        made.verify()
    assert "remove what was added" in str(caught.value.hint)
    made.verify(added=True)


def test_a_folder_in_place_of_the_signature(made: Artifact) -> None:
    (made.path / "model.sig").mkdir()
    with pytest.raises(IntegrityError, match=r"'model.sig' was added"):
        made.verify()


@pytest.mark.parametrize(
    ("name", "mode"), [("", 0o777), ("baseline", 0o777), ("model.onnx", 0o666), ("..", 0o777)]
)
def test_what_others_may_write_is_found(name: str, mode: int, made: Artifact) -> None:
    assert integrity.changeable(made.path) is None
    place = (made.path / name).resolve()
    place.chmod(mode)
    assert integrity.changeable(made.path) == place


def test_in_a_sticky_folder_others_cannot_rename(made: Artifact) -> None:
    made.path.parent.chmod(0o1777)
    assert integrity.changeable(made.path) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_groups_and_other_owners(made: Artifact) -> None:
    made.path.chmod(0o775)
    assert integrity.changeable(made.path) is None  # the group of the same name as the user
    os.chown(made.path, 0, 12_345)
    assert integrity.changeable(made.path) == made.path.resolve()
    made.path.chmod(0o755)
    assert integrity.changeable(made.path) is None
    os.chown(made.path / "model.onnx", 12_345, 0)
    assert integrity.changeable(made.path) == made.path.resolve() / "model.onnx"


def _swapped(made: Artifact, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Another user replaces the graph after it was verified and before it is opened. The places
    from which it was opened."""
    opened: list[Path] = []
    real = backend("onnxruntime")

    class Late:
        traits = real.traits

        def session(self, path: Path, options: Any) -> Any:
            opened.append(path)
            (made.path / "model.onnx").write_bytes(model(100.0))
            return real.session(path, options)

    monkeypatch.setattr(reader, "simulator", Late)
    return opened


def test_a_graph_that_others_may_replace_is_opened_from_a_private_copy(
    made: Artifact, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    opened = _swapped(made, monkeypatch)
    made.path.chmod(0o777)
    with made.session() as session:
        assert np.array_equal(session.run(FEED)["y"], FEED["x"] + 1)
    assert opened[0].is_relative_to(cache) and not opened[0].exists()


def test_an_own_folder_and_a_trusted_author_need_no_copy(
    made: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = _swapped(made, monkeypatch)
    made.session().close()
    assert opened == [made.path / "model.onnx"]
    shutil.copytree(made.path, other := made.path.with_name("other"))
    other.chmod(0o777)
    with pytest.raises(IntegrityError, match=r"model.onnx was changed"):
        optkit.load(other, trusted=True).session()  # verified nevertheless


def test_a_change_while_the_copy_is_made_is_found(
    made: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.path.chmod(0o777)
    real = integrity.copy_in

    def late(source: int, target: Path, **rest: Any) -> Any:
        if target.name == "model.onnx":
            (made.path / "model.onnx").write_bytes(model(100.0))
        return real(source, target, **rest)

    monkeypatch.setattr(integrity, "copy_in", late)
    with pytest.raises(IntegrityError, match="changed while it was opened"):
        made.session()


def test_an_engine_that_others_may_replace_is_not_timed(
    made: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(made.manifest), "compiled", ("engine.plan",))
    made.path.chmod(0o777)
    monkeypatch.setattr(made, "_foreign_engine", lambda: None)
    with pytest.raises(UnsafeFile, match="another user may replace it"):
        made.require_own_engine()
    made.trusted = True
    made.require_own_engine()
