"""`optkit build` and `optkit init` with the command of another tool."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optkit.ground.recipe import Recipe
from tests.cli.conftest import contents

Optkit = Callable[..., Any]

COMMAND = (
    "trtexec --onnx=small.onnx --fp16 --int8 --minShapes=x:1x16 --optShapes=x:4x16"
    " --maxShapes=x:8x16 --memPoolSize=workspace:64 --avgRuns=10"
)
OPTIONS = (
    "small.onnx", "--precision", "int8", "--min-shapes", "x:1x16", "--opt-shapes", "x:4x16",
    "--max-shapes", "x:8x16", "--set", "compiler.workspace_bytes=67108864",
)  # fmt: skip


def test_a_trtexec_command_builds_what_its_options_build(
    project: Path, store: Path, optkit_here: Optkit
) -> None:
    def built(folder: str) -> tuple[object, dict[str, object]]:
        """The recipe, and the digest of each file; reports have the seconds of their build."""
        (file,) = (project / folder).glob("*/manifest.json")
        manifest = json.loads(file.read_text())
        files = {name: row for name, row in manifest["files"].items() if "report" not in name}
        return manifest["recipe"], files

    fixed = ("build", "-t", "l4", "--calibration", "source.py", "--json")
    ours = optkit_here(*fixed, *OPTIONS, "-o", "ours", cwd=project, cache=store)
    assert ours.code == 0, ours.err
    theirs = optkit_here(*fixed, "--trtexec", COMMAND, "-o", "theirs", cwd=project, cache=store)
    assert theirs.code == 0, theirs.err
    result, same = json.loads(theirs.out), json.loads(ours.out)
    assert result["cache_hits"] >= len(result["seconds"]) - 1  # all steps but "total"
    assert "translation" not in same
    account = result["translation"]
    assert account["tool"] == "trtexec" and account["command"] == COMMAND
    fates = [flag["fate"] for flag in account["flags"]]
    assert fates == ["done"] * 7 + ["meaningless"]
    assert "--avgRuns=10" in theirs.err and "in optkit's options: small.onnx" in theirs.err
    assert built("ours") == built("theirs")
    spelled = optkit_here(*fixed, "--dry-run", "--trtexec", COMMAND, cwd=project, cache=store)
    assert json.loads(spelled.out)["translation"] == account


def test_a_refused_flag_stops_the_build(project: Path, store: Path, optkit_here: Optkit) -> None:
    before = contents(project)
    asked = ("build", "-t", "l4", "--json", "--trtexec")
    done = optkit_here(*asked, "--int8 --plugins=a.so --safe", cwd=project, cache=store)
    result = json.loads(done.out)
    assert done.code == 2 and result["status"] == "error" and contents(project) == before
    assert [flag["fate"] for flag in result["translation"]["flags"]] == [
        "done", "refused", "refused"
    ]  # fmt: skip
    assert "2 flags cannot be followed" in done.err and "functional safety" in done.err
    dry = optkit_here("build", "-t", "l4", "--dry-run", "--trtexec", "--safe", cwd=project)
    assert dry.code == 2 and "functional safety" in dry.err
    unknown = optkit_here(*asked, "--fp61", cwd=project, cache=store)
    assert unknown.code == 2 and "did you mean --fp16" in unknown.err


@pytest.mark.parametrize(
    ("option", "command", "precision"),
    [
        ("--trtexec", "--onnx=small.onnx --int8 --optShapes=x:4x16 --memPoolSize=workspace:64",
         "int8"),
        ("--modelopt", "--onnx_path small.onnx --quantize_mode int4 --override_shapes x:4x16",
         "int4"),
    ],
)  # fmt: skip
def test_init_writes_the_recipe_of_a_command(
    option: str, command: str, precision: str, project: Path, store: Path, optkit_here: Optkit
) -> None:
    np.savez(project / "samples.npz", x=np.zeros((2, 16), np.float32))
    done = optkit_here("init", option, command, "--calibration", "samples.npz", "-o", "new.yaml",
                       cwd=project, cache=store)  # fmt: skip
    assert done.code == 0, done.err
    assert f"--precision {precision}" in done.out
    recipe = Recipe.load(project / "new.yaml")
    assert recipe.axes["batch"].model_dump() == {"min": 4, "opt": 4, "max": 4}
    assert recipe.compiler.workspace_bytes == (2**26 if option == "--trtexec" else None)
    comment = "# --memPoolSize=workspace:64"
    assert (comment in (project / "new.yaml").read_text()) == (option == "--trtexec")


def test_init_needs_a_model_and_flags_that_are_done(project: Path, optkit_here: Optkit) -> None:
    for argv, told in (
        (("--trtexec", "--int8"), "there is no MODEL"),
        (("small.onnx", "--trtexec", "--safe"), "functional safety"),
        (("small.onnx", "--trtexec", "--fp16", "--modelopt", ""), "one command"),
    ):
        done = optkit_here("init", *argv, "-o", "new.yaml", cwd=project)
        assert done.code == 2 and told in done.err and not (project / "new.yaml").exists()
