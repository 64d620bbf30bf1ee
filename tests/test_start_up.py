"""Start-up: nothing heavy is loaded before it is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ["numpy", "pydantic", "torch", "onnx", "onnx_ir", "onnxscript", "onnxruntime", "tensorrt",
         "tensorrt_rtx", "ruamel", "rich", "psutil", "safetensors", "jinja2"]  # fmt: skip
TOOLCHAIN = ["torch", "onnx", "onnx_ir", "onnxscript", "onnxruntime", "tensorrt", "tensorrt_rtx"]

LOADED = """\
import json, sys
try:
{code}
finally:
    print("LOADED", json.dumps(sorted({{name.partition(".")[0] for name in sys.modules}})))
"""


def loaded(code: str, tmp_path: Path) -> set[str]:
    """Top-level modules after running the code in a fresh interpreter."""
    body = LOADED.format(code="\n".join(f"    {line}" for line in code.splitlines()))
    env = {"PYTHONPATH": str(ROOT), "OPTKIT_CACHE": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", body], capture_output=True, text=True, check=False, env=env,
        cwd=tmp_path,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("LOADED ")]
    assert lines, done.stderr
    return set(json.loads(lines[-1].removeprefix("LOADED ")))


def command(*argv: str) -> str:
    return f"from optkit.cli import main\nmain({list(argv)!r})"


def completing(line: str) -> str:
    """What the shell runs to complete the last word of the line."""
    asked = {"_OPTKIT_COMPLETE": "zsh_complete", "COMP_WORDS": line,
             "COMP_CWORD": str(len(line.split(" ")) - 1)}  # fmt: skip
    return f"import os\nos.environ.update({asked!r})\n{command()}"


@pytest.mark.parametrize(
    "code",
    [
        "import optkit",
        "import optkit\noptkit.errors.UsageError('no')\ndir(optkit)",
        command("--help"),
        command("build", "--help"),
        "from optkit.ground import store\nfrom optkit.ground.execute import local, runner",
    ],
)
def test_starting_up_loads_nothing_heavy(code: str, tmp_path: Path) -> None:
    assert not loaded(code, tmp_path) & set(HEAVY)


@pytest.mark.parametrize(
    "code",
    [
        "import optkit\noptkit.build, optkit.load, optkit.Recipe, optkit.Target, optkit.Artifact",
        command("targets"),
        command("cache", "ls"),
        command("completion", "fish"),
        completing("optkit build --target "),
        completing("optkit build --precision fp16,"),
        completing("optkit build --recipe "),
        command("build", "--target", "t4", "--precision", "fp8"),
        command("build", "--target", "nosuch"),
        "import optkit.road.worker, optkit.road.steps.step_table",
        "from optkit.runtimes import BACKENDS, backend\n[backend(name) for name in BACKENDS]",
    ],
)
def test_the_parent_loads_no_toolchain(code: str, tmp_path: Path) -> None:
    assert not loaded(code, tmp_path) & set(TOOLCHAIN)


@pytest.mark.parametrize("argv", [("targets",), ("devices",), ("cache", "ls")])
def test_commands_that_run_no_step_load_no_pipeline(argv: tuple[str, ...], tmp_path: Path) -> None:
    assert not loaded(command(*argv), tmp_path) & {"numpy", "ml_dtypes", "safetensors"}


def test_nothing_is_written_by_looking(tmp_path: Path) -> None:
    loaded("import optkit\noptkit.build", tmp_path)
    loaded(command("targets"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_worker_loads_only_its_step(tmp_path: Path) -> None:
    """Workers start for every step of user code: what one step needs, the others do not load."""
    steps = ("adopt", "fuse", "collect", "calibrate", "ort", "compile", "evaluate", "compare")
    bodies = ", ".join(f"optkit.road.steps.bodies.{step}" for step in steps)
    assert not loaded(f"import optkit.road.worker, {bodies}", tmp_path) & {
        "pydantic",
        "torch",
        "rich",
    }


def test_the_package_runs_as_the_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "optkit", "build", "--target", "nosuch"], capture_output=True,
        text=True, check=False, cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 2 and "'nosuch'" in done.stderr
