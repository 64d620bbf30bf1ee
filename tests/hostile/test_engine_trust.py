"""An engine is machine code: none that was not compiled on this machine is opened, by no entrance,
whatever its artifact says about it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from onnx import helper

import optkit
from optkit.craft.backends.ort_providers import CudaProvider
from optkit.craft.backends.tensorrt import TensorRT
from optkit.facts.errors import OptkitError, ToolchainMissing
from optkit.ground import trust
from optkit.ground.store import digest_file, digest_json
from optkit.ground.workspace import Workspace
from optkit.verbs import api
from optkit.verbs.api import _bench_against
from tests.figures import Figures
from tests.hostile import onnx_files

Change = Callable[[Path, dict[str, Any]], object]
ENGINE, OTHER = "model.engine", "baseline/model.engine"


def sealed(folder: Path, manifest: dict[str, Any]) -> None:
    """The manifest with right checksums, of itself and of every file that it lists."""
    for name, facts in manifest["files"].items():
        file = folder / name
        if file.is_file() and not file.is_symlink():
            facts |= {"sha256": digest_file(file), "size": file.stat().st_size}
    body = {key: value for key, value in manifest.items() if key != "check"}
    (folder / "manifest.json").write_text(json.dumps({**body, "check": digest_json(body)}))


def _run_by(name: str) -> Change:
    return lambda folder, manifest: manifest["engine"].update(backend=name)


def _reported_by(name: str) -> Change:
    """Manifest and report name different backends."""

    def change(folder: Path, manifest: dict[str, Any]) -> None:
        report = json.loads((folder / "report.json").read_text())
        for spec in report["provenance"]["build_spec"].values():
            spec["backend"] = name
        (folder / "report.json").write_text(json.dumps(report))

    return change


def _another(file: str, content: bytes = b"foreign") -> Change:
    return lambda folder, manifest: (folder / file).write_bytes(content)


def _named(file: str) -> Change:
    """The engine is another file of the artifact."""

    def change(folder: Path, manifest: dict[str, Any]) -> None:
        if file not in manifest["files"]:
            (folder / file).write_bytes(b"foreign")
            manifest["files"][file] = {"sha256": "", "size": 0, "role": None}
        manifest["engine"]["file"] = file

    return change


def _with_baseline(folder: Path, manifest: dict[str, Any]) -> None:
    (folder / OTHER).write_bytes(b"foreign")
    manifest["files"][OTHER] = {"sha256": "", "size": 0, "role": None}


def _linked(folder: Path, manifest: dict[str, Any]) -> None:
    (folder / ENGINE).rename(folder.parent / "elsewhere")
    (folder / ENGINE).symlink_to(folder.parent / "elsewhere")


def _planted(make: Callable[[Path], object]) -> Change:
    """What is at the place where this machine would remember the engine, is not a file."""

    def change(folder: Path, manifest: dict[str, Any]) -> None:
        (folder / ENGINE).write_bytes(b"foreign")
        place = Path(os.environ["OPTKIT_CACHE"]) / "known" / digest_file(folder / ENGINE)
        place.parent.mkdir(parents=True, exist_ok=True)
        make(place)

    return change


def _embedded(folder: Path, manifest: dict[str, Any]) -> None:
    """A graph whose only node holds an engine, for a provider of ONNX Runtime."""
    model = onnx_files.plain_model()
    model.ir_version = 10
    node = helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", embed_mode=1,
                            ep_cache_context=b"foreign", main_context=1)  # fmt: skip
    model.graph.node[0].CopyFrom(node)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    (folder / ENGINE).write_bytes(model.SerializeToString())
    manifest["engine"]["backend"] = "onnxruntime-cuda"


def _known_graph(folder: Path, manifest: dict[str, Any]) -> None:
    """The file is also the name of a graph: what is known of graphs must not count for engines."""
    (folder / ENGINE).write_bytes(b"foreign")
    sealed(folder, manifest)
    contents = {name: facts["sha256"] for name, facts in sorted(manifest["files"].items())}
    trust.know(digest_json(contents))


HOSTILE: dict[str, Change] = {
    "foreign": _another(ENGINE),
    "of_the_same_size": _another(ENGINE, b"ENGINE"),
    "empty": _another(ENGINE, b""),
    "a_graph_inside": _another(ENGINE, onnx_files.plain_model().SerializeToString()),
    "foreign_baseline": _with_baseline,
    "linked": _linked,
    "known_folder": _planted(lambda place: place.mkdir()),
    "known_link": _planted(lambda place: place.symlink_to("/nowhere")),
    "known_contents": _known_graph,
    "embedded": _embedded,
    "run_by_tensorrt": _run_by("tensorrt"),
    "run_by_nothing": _run_by("nothing"),
    "no_engine": lambda folder, manifest: manifest.update(engine=None),
    "named_report": _named("report.json"),
    "named_recipe": _named("recipe.yaml"),
    "named_new": _named("other.plan"),
    "named_baseline": _named(OTHER),
    "for_another_device": lambda folder, manifest: manifest.update(target="h100"),
    "for_the_cpu": lambda folder, manifest: manifest.update(target="cpu"),
    "no_files": lambda folder, manifest: manifest["files"].pop(ENGINE),
    "own_baseline": lambda folder, manifest: manifest.update(own_baseline=True),
    **{f"graph_{name}": _run_by(f"onnxruntime{name}") for name in ("", "-cuda", "-tensorrt")},
    **{f"reported_{name}": _reported_by(name) for name in ("tensorrt", "onnxruntime-cuda")},
}


OWN = ("foreign_baseline", "for_another_device", "known_contents", "embedded")
"""Artifacts of which the engine before the change was compiled here."""


def own_engine(sound: Path) -> str:
    return digest_file(sound / ENGINE)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The digests of what would have been deserialised; this machine seems to have an L4 and every
    library."""
    calls: list[str] = []

    def session(self: Any, path: Path, *options: Any) -> Any:
        calls.append(digest_file(path))
        raise ToolchainMissing("opened", where=str(path))

    monkeypatch.setattr(TensorRT, "session", session)
    monkeypatch.setattr(CudaProvider, "session", session)
    here = SimpleNamespace(devices=[SimpleNamespace(target="l4")])
    for module in ("optkit.road.pipeline.layer_times", "optkit.verbs.api._finish"):
        monkeypatch.setattr(f"{module}.gpus", lambda: here)
    return calls


def entrances(sound: Path, workspace: Workspace) -> dict[str, Callable[[Path], object]]:
    return {
        "session": lambda path: optkit.load(path).session(),
        "run": lambda path: optkit.load(path).run({}),
        "explain": lambda path: api.explain(path, workspace=workspace),
        "against": lambda path: _bench_against.bench_against(path, sound, workspace=workspace),
    }


@pytest.mark.usefixtures("in_this_process")
def test_its_own_engine_is_opened_by_every_entrance(
    sound: Path, opened: list[str], cache: Path
) -> None:
    """Without this, no engine might ever be opened, and the next test would prove nothing."""
    trust.know(own_engine(sound))
    for name, entrance in entrances(sound, Workspace(cache, listener=None)).items():
        opened.clear()
        with contextlib.suppress(OptkitError):
            entrance(sound)
        assert own_engine(sound) in opened, name


@pytest.mark.slow
@pytest.mark.usefixtures("in_this_process")
def test_no_foreign_engine_is_opened(
    sound: Path, opened: list[str], cache: Path, tmp_path: Path, figures: Figures
) -> None:
    ways = entrances(sound, Workspace(cache, listener=None))
    tried = 0
    for number, (name, change) in enumerate(HOSTILE.items()):
        shutil.rmtree(cache / "known", ignore_errors=True)
        folder = tmp_path / name / sound.name
        shutil.copytree(sound, folder)
        manifest = json.loads((folder / "manifest.json").read_text())
        change(folder, manifest)
        sealed(folder, manifest)
        harmless = {digest_file(sound / "model.onnx")}  # a graph, which is tried first
        if name in OWN:
            trust.know(own_engine(sound))
            harmless.add(own_engine(sound))
        for place, (entrance, enter) in enumerate(ways.items()):
            if (place - number) % figures.times(2, 1):
                continue
            opened.clear()
            try:
                enter(folder)
            except OptkitError as error:
                assert error.exit_code in (2, 4, 5, 6, 7), f"{name}, {entrance}: {error!r}"
            assert harmless.issuperset(opened), (name, entrance)
            tried += 1
    figures.tell(
        "foreign engines", tried,
        f"{len(HOSTILE)} artifacts (changed engines, forged manifests and reports, links, graphs "
        "that embed an engine, planted records of trust), each through session, run, explain and "
        "bench --against, with backends that record what they deserialise: nothing",
    )  # fmt: skip
