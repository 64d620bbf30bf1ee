"""Mistakes of new users: each has its own message, before any work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import optkit
from optkit.craft.backends.tensorrt_rtx import TensorRTRTX
from optkit.facts.errors import InputRefused, UsageError, located
from optkit.road import pipeline
from optkit.road.pipeline import BUILD

Optkit = Any


@pytest.mark.parametrize(
    ("argv", "code", "told"),
    [
        (["--target", "l4,"], 2, ["'l4,'", "empty place between its commas", "--target"]),
        (["--target", "l4,l5"], 2, ["unknown target 'l5'", "l4"]),
        (["--target", "cuda"], 2, ["not a device", "optkit devices"]),
        (["--target", "l4", "--eval", "accuracy"], 2, ["'accuracy'", "top1 is the task"]),
        (["--target", "l4", "--calibration", "gone.npz"], 5, ["--calibration gone.npz: no"]),
        (["--target", "l4", "--calibration", "other.npz"], 5,
         ["other.npz", "no array 'image'", "did you mean 'img'?"]),
        (["--target", "l4", "--eval", "top1", "--eval-data", "gone.npz"], 5,
         ["--eval-data gone.npz: no such file"]),
        (["--target", "l4", "--eval", "top1", "--eval-data", "named.npz"], 5,
         ["named.npz", "no array 'label'", "did you mean 'labels'?", "eval.args.label=labels"]),
        (["--target", "l4", "--timeout", "soon"], 2, ["--timeout", "'soon'", "10m"]),
    ],
)  # fmt: skip
def test_it_is_reported_before_any_work(
    argv: list[str], code: int, told: list[str], optkit_here: Optkit, tmp_path: Path
) -> None:
    images = np.zeros((9, 1, 8, 8), np.float32)
    np.savez(tmp_path / "other.npz", img=images)
    np.savez(tmp_path / "named.npz", image=images, labels=np.zeros(9, np.int64))
    done = optkit_here("build", "--recipe", "digits-vit", *argv, cwd=tmp_path,
                       cache=tmp_path / "cache")  # fmt: skip
    assert done.told(*told).code == code
    assert "export" not in done.err and not (tmp_path / "cache" / "objects").exists()


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["quantize", "-o", "out", "-t", "l4,h100"], ["2 names", "only one", "l4 or h100"]),
        (["eval", "-t", "l4", "-p", "fp16,int9"], ["2 names", "only one", "fp16 or int9"]),
        (["bench", "-t", "l4,nosuch"], ["--target", "2 names"]),
        (["tune", "-t", "l4,t4"], ["--target", "2 names"]),
        (["biuld"], ["'biuld'", "Did you mean 'build'?"]),
        (["build", "--taget", "l4"], ["'--taget'", "--target"]),
        (["build", "-t", "l4", "--memory", "4X"], ["--memory: '4X' is not a size", "512M"]),
        (["tune", "-t", "l4", "--max-latency", "fast"], ["--max-latency: 'fast'", "20ms"]),
        (["bench", "-t", "l4", "--latency", "0"], ["--latency: '0' is not a time"]),
        (["monitor", "--pid", "1", "--interval", "1ms"], ["--interval: '1ms'", "at least 0.1s"]),
    ],
)  # fmt: skip
def test_a_wrong_command_line_is_reported(
    argv: list[str], told: list[str], optkit_here: Optkit, tmp_path: Path
) -> None:
    job = ["--recipe", "digits-vit"] if argv[0] in ("quantize", "eval", "bench", "tune") else []
    done = optkit_here(*argv, *job, cwd=tmp_path, cache=tmp_path / "cache")
    assert done.told(*told).code == 2


@pytest.mark.parametrize(
    "argv",
    [
        ["diff", "a", "b", "--html"],
        ["explain", ".", "--html"],
        ["build", "-t", "cpu", "--junit"],
        ["bench", "-t", "cpu", "--junit"],
        ["eval", "-t", "cpu", "--junit"],
        ["finish", "a", "--junit"],
        ["plan", "-t", "l4", "--plot"],
    ],
    ids=lambda argv: argv[0],
)
def test_a_file_that_cannot_be_written_is_reported_before_any_work(
    argv: list[str], optkit_here: Optkit, tmp_path: Path
) -> None:
    (tmp_path / "taken").touch()
    done = optkit_here(*argv, "taken/page.html", cwd=tmp_path, cache=tmp_path / "cache")
    assert done.told(f"{argv[-1]} taken/page.html: it cannot be written", "hint:").code == 8
    assert optkit_here(*argv, ".", cwd=tmp_path).told("it is a folder").code == 8
    assert sorted(path.name for path in tmp_path.iterdir()) == ["taken"]


@pytest.mark.parametrize(
    ("argv", "code", "told"),
    [
        (["build", "net.py", "-t", "cpu"], 2, ["names no function", "net.py:create or net.py:Net"]),
        (["build", "nets.onnx", "-t", "cpu"], 2, ["no such file", "did you mean 'net.onnx'?"]),
        (["build", "net.onnx", "-t", "cpu", "-p", "fp32"], 5,
         ["a pointer of Git LFS", "git lfs pull"]),
        (["build", "old", "-t", "l4"], 2, ["is an artifact", "that it was built from"]),
        (["build"], 2, ["--target", "-t l4 or -t cpu"]),
        (["explain", "net.onnx"], 2, ["net.onnx: it is not a folder", "folder of an artifact"]),
        (["explain", "./olds"], 2, ["./olds: no such folder", "did you mean 'old'?"]),
        (["verify", "fleet"], 5, ["not an artifact", "the folder of a fleet"]),
        (["sign", "old", "--key", "mine.pen"], 2, ["--key mine.pen: no such file", "'mine.pem'"]),
        (["diff", "elder", "old"], 2, ["elder: no such file or folder", "name an artifact"]),
        (["plan", "-t", "l4", "--plot", "a.png"], 2, ["--plot a.png:", ".html", "--plot a.svg"]),
        (["build", "-t", "cpu", "--calibration", "last.ckpt"], 2,
         ["last.ckpt", "a pickle", "--calibration last.npz", "numpy.savez('last.npz'"]),
        (["plan", "-t", "l4", "--train", "half"], 2, ["--train: unknown value 'half'", "lora"]),
    ],
)  # fmt: skip
def test_what_is_named_by_mistake_is_reported_with_what_to_name(
    argv: list[str], code: int, told: list[str], optkit_here: Optkit, tmp_path: Path
) -> None:
    (tmp_path / "net.py").write_text("class Net: pass\n\ndef create(): return Net()\n")
    (tmp_path / "net.onnx").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    (tmp_path / "optkit.yaml").write_text("name: net\nmodel: {path: net.onnx}\n")
    for name in ("old/manifest.json", "fleet/fleet.json", "mine.pem", "last.ckpt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    done = optkit_here(*argv, cwd=tmp_path, cache=tmp_path / "cache")
    assert done.told(*told, "hint:").code == code


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["build"], ["no model, no recipe and no --target", "-t l4 or -t cpu"]),
        (["build", "--json"], ["no model, no recipe and no --target", "-t l4 or -t cpu"]),
        (["tune"], ["no model, no recipe and no --target"]),
        (["build", "-t", "cpu"], ["no model and no recipe"]),
        (["plan", "-t", "l4"], ["no model and no recipe"]),
    ],
)
def test_a_command_in_an_empty_folder_tells_how_to_begin(
    argv: list[str], told: list[str], optkit_here: Optkit, tmp_path: Path
) -> None:
    work = tmp_path / "empty"
    work.mkdir()
    done = optkit_here(*argv, cwd=work, cache=tmp_path / "cache")
    ways = ["three ways", "optkit build MODEL", "`optkit init MODEL`", "optkit.build(module, "]
    assert done.told(*told, *ways, "--recipe digits-vit").code == 2
    assert list(work.iterdir()) == []


@pytest.mark.parametrize(
    "argv",
    [
        ["build", "net.onnx"],
        ["build", "--recipe", "digits-vit"],
        ["build", "--trtexec", "--onnx=net.onnx"],
        ["build", "pyproject.toml"],
        ["build", "optkit.yaml"],
    ],
)
def test_a_command_that_has_a_model_misses_its_target_alone(
    argv: list[str], optkit_here: Optkit, tmp_path: Path
) -> None:
    """The last two stand for projects: a broken file, and one with a recipe."""
    if argv[-1] in ("pyproject.toml", "optkit.yaml"):
        (tmp_path / argv.pop()).write_text("[tool.optkit")
    done = optkit_here(*argv, cwd=tmp_path, cache=tmp_path / "cache")
    assert done.told("Missing option", "--target", "-t l4 or -t cpu").code == 2
    assert "three ways" not in done.err


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"precision": ["fp32", "int8"]}, "['fp32', 'int8'] is not the name of a precision"),
        ({"target": 3}, "3 is not the name of a target"),
    ],
)
def test_what_is_no_name_is_reported_in_python(given: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        optkit.build(**{"recipe": "digits-vit", "target": "cpu", **given})
    assert told in str(caught.value) and "give one name" in str(caught.value)


def test_a_hint_names_the_users_file_and_not_the_copy() -> None:
    error = UsageError("wrong", where="/store/ab", hint="load '/store/ab' again")
    with pytest.raises(UsageError) as caught, located("mine.safetensors", "/store/ab"):
        raise error
    assert str(caught.value) == "mine.safetensors: wrong\nhint: load 'mine.safetensors' again"


def test_an_error_in_calibration_data_names_the_users_file_and_row(
    optkit_here: Optkit, project: Path, store: Path
) -> None:
    rows = np.ones((24, 16), np.float32)
    rows[13] = np.nan
    np.savez(project / "rows.npz", x=rows)
    done = optkit_here("build", "--target", "cpu", "--calibration", "rows.npz", cwd=project,
                       cache=store)  # fmt: skip
    assert done.told(f"{project / 'rows.npz'}, sample 13, input 'x'", "not finite").code == 5
    assert "calibration/arrays.py" not in done.err


def test_a_missing_output_and_a_missing_package_are_named(
    optkit_here: Optkit, project: Path, store: Path
) -> None:
    line = ["eval", "--target", "cpu", "--precision", "fp32"]
    task = project / "task.py"
    good = task.read_text()
    task.write_text(good.replace('outputs["y"]', 'outputs["logits"]'))
    done = optkit_here(*line, cwd=project, cache=store)
    assert done.told("KeyError: 'logits'", "the model's outputs are 'y'").code == 5
    task.write_text(f"import no_such_package_here\n{good}")
    done = optkit_here(*line, cwd=project, cache=store)
    told = done.told("install the package that contains 'no_such_package_here'", "task.py:1")
    assert told.code == 5


def test_the_compiler_is_asked_about_operators_before_calibration(tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    pytest.importorskip("tensorrt_rtx", exc_type=ImportError)
    asked = [stage.__name__ for stage in BUILD]
    assert asked.index("fuse") + 1 == asked.index("accept") < asked.index("collect")
    assert [stage.__name__ for stage in pipeline.COMPILE].count("accept") == 1

    def model(op: str, outputs: int = TensorProto.FLOAT) -> Path:
        file = tmp_path / f"{op}.onnx"
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            [helper.make_node(op, ["x"], ["y"], name="here")], op,
            [value("x", TensorProto.FLOAT, [4, 4])], [value("y", outputs, None)],
        )  # fmt: skip
        onnx.save(helper.make_model(graph, ir_version=10,
                                    opset_imports=[helper.make_opsetid("", 21)]), file)  # fmt: skip
        return file

    TensorRTRTX().accept(model("Relu"))
    with pytest.raises(InputRefused, match="TensorRT-RTX has no operator NonZero") as caught:
        TensorRTRTX().accept(model("NonZero", TensorProto.INT64))
    assert caught.value.where == "node 'here' (NonZero)"
    assert "torch.where" in str(caught.value.hint) and "--target cpu" in str(caught.value.hint)
