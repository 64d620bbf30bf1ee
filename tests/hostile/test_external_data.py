"""A model whose weights stand in another file: no byte of a file outside its folder comes out, by
no entrance of optkit, in nothing that it prints, stores or raises."""

from __future__ import annotations

import base64
import os
import shutil
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import optkit
from optkit.facts.errors import OptkitError, UnsafeFile
from optkit.ground.artifact import write
from optkit.ground.intake import check_onnx, stage_onnx
from optkit.ground.store import default_root
from optkit.ground.workspace import Workspace
from optkit.verbs import api
from tests.figures import Figures
from tests.hostile.onnx_files import CANARY, EXTERNAL_DATA, external_model, secret
from tests.hostile.test_foreign_artifacts import FEED, MANIFEST

Optkit = Callable[..., Any]
GOOD = struct.pack("<4f", 1, 2, 3, 4)
FORMS = (CANARY, CANARY.hex().encode(), base64.b64encode(CANARY)[:-3],
         f"{np.frombuffer(CANARY, np.float32)[1]:.5g}".encode())  # fmt: skip
"""How the secret would look in a file, or in text."""

COMMANDS = (
    "inspect MODEL", "inspect MODEL --json", "doctor MODEL", "diff MODEL MODEL --json",
    "init MODEL", "plan MODEL -t l4 --json", "export MODEL -o OUT", "fuse MODEL -o OUT",
    "build MODEL -t cpu -p fp32 --json --verbose --out OUT",
)  # fmt: skip


def told(error: OptkitError) -> bytes:
    return f"{error.message} {error.where} {error.hint} {error.__cause__!r}".encode()


def holds_no_secret(data: bytes) -> None:
    assert not any(form in data for form in FORMS)


def written(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


class Attack:
    """One hostile model in a folder of its own; what optkit does with it goes beside."""

    def __init__(self, name: str, place: Path, patch: pytest.MonkeyPatch) -> None:
        self.foreign = place / "outside" / "model"
        self.foreign.mkdir(parents=True)
        self.own = place / "own"
        self.own.mkdir()
        self.model = EXTERNAL_DATA[name](self.foreign)
        self._patch = patch

    def by_function(self, entrance: Callable[[Path], object], path: Path) -> None:
        with pytest.raises(UnsafeFile) as caught:
            entrance(path)
        holds_no_secret(told(caught.value))

    def by_bare_name(self, entrance: Callable[[Path], object]) -> None:
        """The folder of the model is the working directory, so its path is empty: a bypass of the
        checks of onnx (CVE-2026-27489)."""
        with self._patch.context() as patch:
            patch.chdir(self.foreign)
            self.by_function(entrance, Path(self.model.name))

    def by_command(self, run: Optkit, line: str) -> None:
        places = {"MODEL": self.model, "OUT": self.own / "out"}
        argv = [places.get(word, word) for word in line.split()]
        done = run(*argv, cwd=self.foreign, cache=self.own / "cache")
        assert done.code == 5, done.err
        holds_no_secret(f"{done.out} {done.err}".encode())

    def by_artifact(self) -> None:
        """The same graph, and what lies beside it, in an artifact of a stranger."""
        files = {"model.onnx": self.model.read_bytes()}
        made = write(self.own / "artifacts", MANIFEST, files)
        shutil.rmtree(default_root() / "known")
        for beside in self.foreign.glob("w.bin"):
            if not beside.is_dir():
                os.link(beside, made.path / beside.name, follow_symlinks=False)
        with pytest.raises(OptkitError) as caught, optkit.load(made.path) as opened:
            opened.run(FEED)
        assert caught.value.exit_code in (5, 7)
        holds_no_secret(told(caught.value))
        shutil.rmtree(made.path)

    def leaves_nothing(self) -> None:
        for path in written(self.own):
            holds_no_secret(path.read_bytes())


@pytest.mark.slow
def test_nothing_outside_the_folder_comes_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optkit_here: Optkit, cache: Path,
    figures: Figures,
) -> None:  # fmt: skip
    tried = 0
    every = figures.times(len(COMMANDS), 1)
    for number, name in enumerate(EXTERNAL_DATA):
        attack = Attack(name, tmp_path / name, monkeypatch)
        store = attack.own / "store" / "objects"
        workspace = Workspace(attack.own / "cache", listener=None)
        functions: list[Callable[[Path], object]] = [
            lambda path, store=store: stage_onnx(path, store),
            check_onnx,
            lambda path, workspace=workspace: api.inspect(path, workspace=workspace),
        ]
        for function in functions:
            attack.by_function(function, attack.model)
            attack.by_bare_name(function)
            tried += 2
        attack.by_artifact()
        tried += 1
        for place, line in enumerate(COMMANDS):
            if (place - number) % every == 0:
                attack.by_command(optkit_here, line)
                tried += 1
        attack.leaves_nothing()
    figures.tell(
        "weights in another file: paths out of the folder", tried,
        "16 kinds of references (links, pipes, devices, `..`, sizes beyond the file), through 3 "
        "functions, each with a path and with a bare name, 9 commands, and an artifact; no byte of "
        "a file outside in any output, log or error",
    )  # fmt: skip


def test_the_libraries_alone_would_follow_a_bare_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the attack is a real one; when this fails, the libraries have become safer."""
    attack = Attack("parent_symlink", tmp_path, monkeypatch)
    monkeypatch.chdir(attack.foreign)
    model = onnx.ModelProto.FromString(attack.model.read_bytes())
    onnx.load_external_data_for_model(model, "")
    assert model.graph.initializer[0].raw_data == CANARY


class Swapper(threading.Thread):
    """Exchanges the data file of a model, `sub/w.bin`, again and again, until it is stopped."""

    def __init__(self, folder: Path, kind: str) -> None:
        super().__init__()
        self.swaps = 0
        self._folder, self._swap = folder, getattr(self, kind)
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.is_set():
            self._swap(self._folder, self._folder.parent / "secret.bin")
            self.swaps += 1

    def __enter__(self) -> Swapper:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self.join()

    @staticmethod
    def symlink(folder: Path, hidden: Path) -> None:
        """A link to the secret, then the good file."""
        (folder / "new").symlink_to(hidden)
        (folder / "new").replace(folder / "sub" / "w.bin")
        (folder / "new").write_bytes(GOOD)
        (folder / "new").replace(folder / "sub" / "w.bin")

    @staticmethod
    def hard_link(folder: Path, hidden: Path) -> None:
        """The secret under a second name, which is gone at once: its count of links is 1 again."""
        (folder / "new").hardlink_to(hidden)
        (folder / "new").replace(folder / "sub" / "w.bin")
        (folder / "new").write_bytes(GOOD)
        (folder / "new").replace(folder / "sub" / "w.bin")

    @staticmethod
    def parent(folder: Path, hidden: Path) -> None:
        """The folder of the file becomes a link to a folder outside, which has a file of the same
        name."""
        (folder / "sub").rename(folder / "aside")
        (folder / "sub").symlink_to(hidden.parent / "outside")
        (folder / "sub").unlink()
        (folder / "aside").rename(folder / "sub")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["symlink", "hard_link", "parent"])
def test_a_swapper_never_wins(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures: Figures
) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)  # what a crash leaves is not the question
    folder, objects = tmp_path / "foreign" / "model", tmp_path / "store" / "objects"
    (folder / "sub").mkdir(parents=True)
    hidden = secret(folder)
    (folder.parent / "outside").mkdir()
    (folder.parent / "outside" / "w.bin").write_bytes(hidden.read_bytes())
    (folder / "sub" / "w.bin").write_bytes(GOOD)
    path = external_model(folder, "sub/w.bin")
    times, accepted, refused = figures.times(300, 10_000), 0, 0
    with Swapper(folder, kind) as swapper:
        while accepted + refused < times or swapper.swaps < times or not accepted or not refused:
            try:
                staged = stage_onnx(path, objects)
            except UnsafeFile as error:
                refused += 1
                holds_no_secret(told(error))
            else:
                accepted += 1
                assert (staged.path.parent / "sub" / "w.bin").read_bytes() == GOOD
    for file in written(objects.parent):
        holds_no_secret(file.read_bytes())
    figures.tell(
        f"weights in another file: {kind.replace('_', ' ')} swapped with the file".replace(
            "parent", "the folder's link"),
        times, "a thread swaps them while optkit reads; at least as many swaps as reads",
        accepted=accepted, refused=refused, swaps=swapper.swaps,
    )  # fmt: skip
