"""Artifacts with right checksums and wrong contents: each command says so, none meets a bug.

One place of manifest.json, report.json or recipe.yaml is changed and all checksums are made anew;
of ONNX files some bytes are.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import optkit
from optkit.facts.errors import InputRefused, OptkitError
from optkit.ground.artifact import Artifact
from optkit.ground.intake import stage_onnx
from optkit.ground.store import digest_file, digest_json
from tests.hostile import onnx_files

Optkit = Callable[..., Any]
COMMANDS = ("inspect", "explain", "diff", "finish")
VALUES = [
    None, True, -1, 0, 2.5, 1e308, "", "text", "\x1b[31m", [], [None], [1e308, 1e308], {},
    {"a": 1}, [{}], [[]],
]  # fmt: skip
NO_JSON = [float("nan"), float("inf"), 1 << 70, "\ud800"]  # a checksum takes none of them
FILES = ("manifest.json", "report.json")
# 0: the command does not need it; what is told else has a code of its own, 1 is a bug
ENDS = {0, 2, 4, 5, 7}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if not isinstance(value, dict | list):
        return
    for key, one in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, key)
        yield from _places(one, (*path, key))


def _sealed(folder: Path, manifest: dict[str, Any]) -> None:
    """With the checksums of what is there now."""
    files = manifest.get("files")
    for name in ("report.json", "recipe.yaml") if isinstance(files, dict) else ():
        if isinstance(facts := files.get(name), dict):
            path = folder / name
            facts |= {"sha256": digest_file(path), "size": path.stat().st_size}
    body = {key: value for key, value in manifest.items() if key != "check"}
    text = json.dumps({**body, "check": digest_json(body)})
    (folder / "manifest.json").write_text(text)


def _changed(sound: Path, folder: Path, name: str, path: tuple[Any, ...], value: Any) -> Path:
    """A copy of the artifact with another value at one place of a file; `...`: without it."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sound, folder)
    data = json.loads((folder / name).read_text())
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = copy.deepcopy(value)
    (folder / name).write_text(json.dumps(data))
    _sealed(folder, data if name == "manifest.json" else _manifest(folder))
    return folder


def _manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return found


def _no_bug(run: Optkit, command: str, changed: Path, sound: Path, cache: Path) -> Any:
    others = [sound] if command == "diff" else []
    done = run(command, changed, *others, cache=cache)
    assert done.code in ENDS, f"{command}: {done.code} {done.err}"
    assert "Traceback" not in done.err
    return done


@pytest.mark.usefixtures("in_this_process")
def test_the_sound_artifact_is_taken(optkit_here: Optkit, sound: Path, cache: Path) -> None:
    for command in ("inspect", "explain"):
        assert optkit_here(command, sound, cache=cache).code == 0
    assert optkit_here("diff", sound, sound, cache=cache).code == 0


GATE = ("result", "gate")
PAST = "provenance"


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("command", "name", "path", "value", "told"),
    [
        ("inspect", "manifest.json", GATE, ["pass"], "result.gate: it should be an object"),
        ("inspect", "manifest.json", ("result", "size", "bytes"), "7", "size.bytes: it should be"),
        ("inspect", "manifest.json", ("result", "pending"), ..., "result.pending: is missing"),
        ("explain", "manifest.json", ("result", "model"), 3, "result.model: it should be"),
        ("explain", "manifest.json", ("result",), {}, "result.schema: is missing"),
        ("explain", "report.json", ("layers",), None, "layers: it should be an object"),
        ("explain", "report.json", ("landing", 0), "x", "landing[0]: it should be an object"),
        ("explain", "report.json", (PAST, "build_spec"), {}, "engine: is missing"),
        ("explain", "report.json", (PAST, "recipe", "quantization"), [], "quantization"),
        ("diff", "report.json", ("latencies", "engine", 0, "batch"), "8", "engine[0].batch"),
        ("diff", "manifest.json", ("data", "evaluation", "digest"), [], "fields are missing"),
        ("finish", "manifest.json", ("result", "latency"), [], "result.latency: it should"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_field(
    command: str, name: str, path: Any, value: Any, told: str,
    optkit_here: Optkit, sound: Path, cache: Path, tmp_path: Path,
) -> None:  # fmt: skip
    changed = _changed(sound, tmp_path / "net", name, path, value)
    done = _no_bug(optkit_here, command, changed, sound, cache)
    assert done.code == 7 and told in " ".join(done.err.split()), done.err


@pytest.mark.usefixtures("in_this_process")
def test_an_older_artifact_lacks_what_may_be_null(
    optkit_here: Optkit, sound: Path, cache: Path, tmp_path: Path
) -> None:
    changed = _changed(sound, tmp_path / "net", "manifest.json", ("result", "calibration"), ...)
    done = optkit_here("inspect", changed, "--json", cache=cache)
    assert done.code == 0 and done.json["artifact"]["result"]["calibration"] is None


def _any_change(sound: Path, data: st.DataObject) -> tuple[str, tuple[Any, ...], Any]:
    name = data.draw(st.sampled_from(FILES))
    places = list(_places(json.loads((sound / name).read_text())))
    values = VALUES if name == "manifest.json" else [*VALUES, *NO_JSON]
    return name, data.draw(st.sampled_from(places)), data.draw(st.sampled_from([..., *values]))


def _check_any_change(run: Optkit, sound: Path, cache: Path, folder: Path, data: Any) -> None:
    changed = _changed(sound, folder, *_any_change(sound, data))
    for command in COMMANDS:
        _no_bug(run, command, changed, sound, cache)
    try:
        found = Artifact.load(changed)
        assert found.measurement.keys() and optkit.load(changed).name == found.name
    except OptkitError as error:
        assert error.exit_code in ENDS


ANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)


@pytest.mark.usefixtures("in_this_process")
@settings(ANY, max_examples=15)
@given(data=st.data())
def test_no_change_of_a_value_is_a_bug(
    optkit_here: Optkit, sound: Path, cache: Path, tmp_path: Path, data: st.DataObject
) -> None:
    _check_any_change(optkit_here, sound, cache, tmp_path / "net", data)


@pytest.mark.slow
@pytest.mark.usefixtures("in_this_process")
@settings(ANY, max_examples=1500, derandomize=False)
@given(data=st.data())
def test_none_of_many_changes_is_a_bug(
    optkit_here: Optkit, sound: Path, cache: Path, tmp_path: Path, data: st.DataObject
) -> None:
    _check_any_change(optkit_here, sound, cache, tmp_path / "net", data)


RECIPES = st.one_of(
    st.binary(max_size=60),
    st.sampled_from([b"[" * 5000, b"name: &a [*a]\n", b"a: " + b"9" * 5000, b"\xff\xfe", b""]),
)


@pytest.mark.usefixtures("in_this_process")
@settings(ANY, max_examples=5)
@given(recipe=RECIPES)
def test_the_recipe_is_a_record_that_nothing_reads(
    optkit_here: Optkit, sound: Path, cache: Path, tmp_path: Path, recipe: bytes
) -> None:
    changed = _changed(sound, tmp_path / "net", "report.json", ("conditions",), {})
    (changed / "recipe.yaml").write_bytes(recipe)
    _sealed(changed, _manifest(changed))
    for command in ("inspect", "explain", "diff"):
        assert _no_bug(optkit_here, command, changed, sound, cache).code == 0


EDITS = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 3), st.binary(max_size=4)),
    min_size=1, max_size=4,
)  # fmt: skip


def _edited(edits: list[tuple[float, int, bytes]]) -> bytes:
    """A small model in which at some places a few bytes are replaced by others."""
    content = bytes(onnx_files.plain_model().SerializeToString())
    for place, length, other in edits:
        at = int(place * len(content))
        content = content[:at] + other + content[at + length :]
    return content


@settings(ANY, max_examples=60)
@given(edits=EDITS)
def test_no_changed_bytes_of_a_graph_are_a_bug(tmp_path: Path, edits: Any) -> None:
    """The intake alone, which is what reads a foreign graph in the caller's process."""
    file = tmp_path / "model.onnx"
    file.write_bytes(_edited(edits))
    try:
        stage_onnx(file, tmp_path / "objects")
    except InputRefused as error:
        assert error.where is not None


@pytest.mark.slow
@settings(ANY, max_examples=120, derandomize=False)
@given(edits=EDITS)
def test_none_of_many_changed_graphs_is_a_bug(
    optkit_here: Optkit, sound: Path, cache: Path, tmp_path: Path, edits: Any
) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(_edited(edits))
    for command in (["inspect", file], ["diff", file, sound / "model.onnx"]):
        done = optkit_here(*command, cache=cache)
        assert done.code in {*ENDS, 6} and "Traceback" not in done.err, done.err
