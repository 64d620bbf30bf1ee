"""The folders that a command reads and writes: --out, --cache, HOME, odd names, dry runs, second
runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optkit.ground.artifact import Artifact

Optkit = Callable[..., Any]


def contents(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Everything below a folder with its times and sizes: what a dry run must leave as it is."""
    return {
        str(path.relative_to(folder)): (info.st_mtime_ns, info.st_ctime_ns, info.st_size)
        for path in sorted(folder.rglob("*"))
        for info in [path.lstat()]
    }


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/nonexistent"])
@pytest.mark.parametrize("option", ["--out", "--cache"])
def test_a_folder_that_cannot_be_written_is_exit_8(
    option: str, place: str, optkit_here: Optkit, small: Path, store: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / place  # an absolute place stays what it is
    other = ["--out", tmp_path / "out"] if option == "--cache" else []
    line = ["build", "--target", "cpu", option, folder, *other, "--json"]
    done = optkit_here(*line, cwd=small, cache=store).told(f"error: {folder}", "hint: choose")
    assert (done.code, done.result["error"]["code"]) == (8, "storage")
    hint = done.result["error"]["hint"]
    assert option in hint and {"--out": "--cache", "--cache": "--out"}[option] not in hint
    assert ("is a file, not a folder" in done.err) == place.startswith("file")


def test_something_else_of_the_artifacts_name_is_not_overwritten(
    optkit_here: Optkit, small: Path, store: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "out/small-cpu-int8"
    mine.mkdir(parents=True)
    (mine / "thesis.tex").write_text("years of work")
    done = optkit_here("build", "--target", "cpu", "--out", mine.parent, cwd=small, cache=store)
    assert done.told("small-cpu-int8", "is not an optkit artifact", "--out").code == 2
    assert [path.name for path in mine.iterdir()] == ["thesis.tex"]


def test_an_artifact_of_another_model_is_not_replaced_in_silence(
    optkit_here: Optkit, small: Path, store: Path, tmp_path: Path
) -> None:
    shutil.copyfile(small / "small.onnx", small / "other.onnx")
    line = ["--recipe", "optkit.yaml", "--target", "cpu", "--precision", "fp32", "--out", tmp_path]

    def build(model: str) -> str:
        done = optkit_here("build", model, *line, cwd=small, cache=store)
        assert done.code == 0, done.err
        return str(done.err)

    said = "small-cpu-fp32 is of another model (small.onnx), and this build replaces it"
    assert "another model" not in build("small.onnx")
    assert "another model" not in build("small.onnx")
    assert said in " ".join(build("other.onnx").split())


def test_the_cache_is_in_the_users_folder_also_without_home(
    optkit_apart: Optkit, tmp_path: Path
) -> None:
    found = optkit_apart("cache", "ls", "--json", env={"HOME": str(tmp_path)})
    assert found.json["root"] == str(tmp_path / ".cache/optkit")
    assert not (tmp_path / ".cache").exists()
    homeless = optkit_apart("cache", "ls", "--json", env={"HOME": None})
    assert homeless.code == 0 and homeless.json["root"].endswith("/.cache/optkit")
    named = optkit_apart("cache", "ls", "--json", env={"OPTKIT_CACHE": "~/c", "HOME": "/h"})
    assert named.json["root"] == "/h/c"


@pytest.mark.slow
def test_evaluation_samples_are_embedded_as_far_as_they_may(
    optkit_here: Optkit, small: Path, store: Path, tmp_path: Path
) -> None:
    for size, embedded in (("64M", True), ("1K", False), ("0", False)):
        line = ["build", "--target", "cpu", "--out", tmp_path, "--embed-eval", size]
        assert optkit_here(*line, cwd=small, cache=store).code == 0
        assert (tmp_path / "small-cpu-int8/eval.safetensors").exists() == embedded
    assert (tmp_path / ".gitignore").read_text() == "*\n"


@pytest.mark.slow
def test_paths_with_spaces_and_other_letters(
    optkit_here: Optkit, project: Path, store: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "mon modèle 模型"
    shutil.copytree(project, folder)
    (folder / "small.onnx").rename(folder / "le réseau 1.onnx")
    line = ["build", "le réseau 1.onnx", "--recipe", "optkit.yaml"]
    out = tmp_path / "aus gabe"
    line += ["--precision", "fp32", "--out", out, "--json", "--target"]
    done = optkit_here(*line, "cpu", cwd=folder, cache=store)
    assert done.code == 0, done.err
    assert done.result["artifact"] == str(out / "small-cpu-fp32")
    Artifact.load(out / "small-cpu-fp32").verify()
    done = optkit_here(*line, "h100", cwd=folder, cache=store)
    assert done.result["pending"][0]["finish"] == f"optkit finish '{out / 'small-h100-sxm-fp32'}'"


@pytest.mark.slow
def test_a_dry_run_writes_nothing_anywhere(
    optkit_here: Optkit, small: Path, project: Path, store: Path, tmp_path: Path
) -> None:
    cache, warm = tmp_path / "cache", tmp_path / "warm"  # nobody else is at work in these
    shutil.copytree(store, warm)
    store = warm
    assert optkit_here("build", "--target", "cpu", cwd=small, cache=store).code == 0
    line = ["build", "--target", "cpu", "--dry-run"]
    before = contents(tmp_path)
    cold = optkit_here(*line, "--json", cwd=project, cache=cache)
    assert cold.code == 0, cold.err
    assert contents(tmp_path) == before
    plan = cold.json["plans"][0]
    assert cold.json["evidence"] == "predicted" and cold.json["schema"] == "optkit.rehearsal/v1"
    assert (plan["target"], plan["precision"]) == ("cpu", "int8")
    assert {step["hit"] for step in plan["steps"]} == {False}
    assert {step["seconds"] for step in plan["steps"]} == {None}  # no history, no estimate
    before = contents(store), contents(small)
    warm = optkit_here(*line, "--json", cwd=small, cache=store).json["plans"][0]["steps"]
    changed = [set(old.items()) ^ set(contents(root).items())
               for old, root in zip(before, (store, small), strict=True)]  # fmt: skip
    assert changed == [set(), set()]
    # What was timed on a busy machine is timed again. How many samples there are, and so whether
    # some of them are drawn to be compared and outputs are kept, is known once they are collected.
    warm = [step for step in warm if step["step"] not in ("bench", "draw", "outputs")]
    steady = [step["step"] for step in plan["steps"]]
    assert [step["step"] for step in warm] == [name for name in steady if name != "bench"]
    # the source and the task are the user's code, which runs in every command
    assert {step["step"] for step in warm if not step["hit"]} == {"collect", "evaluate"}
    assert {(step["seconds"], step["bytes"]) for step in warm if step["hit"]} == {(0.0, 0)}
    other = optkit_here(*line, "--set", "calibration.samples=32", cwd=small, cache=store)
    assert (contents(store), contents(small)) == before
    assert "fuse" in other.out and "nothing was written" in other.out
    steps = {row.split()[0]: row.split()[1:5] for row in other.out.splitlines() if "  " in row}
    assert steps["fuse"][0] == "hit" and steps["calibrate"][0] == "run"
    assert steps["calibrate"][2] == "s"  # about as long as the same step took here before


def test_a_dry_run_refuses_what_a_build_refuses(optkit_here: Optkit, tmp_path: Path) -> None:
    for argv, code in ((["--target", "t4", "--precision", "fp8"], 5), (["--target", "t44"], 2)):
        done = optkit_here("build", "--dry-run", "--json", *argv, cache=tmp_path / "cache")
        assert (done.code, done.result["error"]["message"] in done.err) == (code, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_corrupt_entry_is_reported_and_made_again(
    optkit_here: Optkit, small: Path, store: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(store, cache)
    line = ["build", "--target", "cpu", "--json"]
    first = optkit_here(*line, "--out", tmp_path / "one", cwd=small, cache=cache)
    report = json.loads((tmp_path / "one/small-cpu-int8/report.json").read_text())
    [key] = [step["key"] for step in report["provenance"]["steps"] if step["step"] == "quantize"]
    with (cache / "steps" / key[:2] / key / "model.onnx").open("r+b") as file:
        file.write(b"\0\0\0\0")
    again = optkit_here(*line, "--out", tmp_path / "two", cwd=small, cache=cache)
    assert (first.code, again.code) == (0, 0)
    report = json.loads((tmp_path / "two/small-cpu-int8/report.json").read_text())
    anew = [step["step"] for step in report["provenance"]["steps"] if not step["hit"]]
    # the user's code runs in every command; bench: on a busy machine
    assert set(anew) - {"bench", "collect", "evaluate"} == {"quantize"}
    again.told("was corrupt", "rebuilding")
    assert len(list((cache / "quarantine").iterdir())) == 1
    one, two = (Artifact.load(tmp_path / n / "small-cpu-int8") for n in ("one", "two"))
    assert one.digest == two.digest
