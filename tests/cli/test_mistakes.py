"""Mistakes of new users: each has its own message, before any work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optkit import pipeline
from optkit.backends.tensorrt_rtx import TensorRTRTX
from optkit.errors import InputRefused
from optkit.pipeline import BUILD

Optkit = Any


@pytest.mark.parametrize(
    ("argv", "code", "told"),
    [
        (["--target", "l4,"], 2, ["'l4,'", "empty place between its commas", "--target"]),
        (["--target", "l4,l5"], 2, ["unknown target 'l5'", "l4"]),
        (["--target", "cuda"], 2, ["not a device", "optkit devices"]),
        (["--target", "l4", "--eval", "accuracy"], 2, ["'accuracy'", "top1 is the task"]),
        (["--target", "l4", "--calibration", "gone.npz"], 5, ["gone.npz", "no such file"]),
        (["--target", "l4", "--calibration", "other.npz"], 5,
         ["other.npz", "no array 'image'", "did you mean 'img'?"]),
        (["--target", "l4", "--eval", "top1", "--eval-data", "gone.npz"], 5,
         ["eval.args.path", "gone.npz", "no such file"]),
        (["--target", "l4", "--eval", "top1", "--eval-data", "named.npz"], 5,
         ["named.npz", "no array 'label'", "did you mean 'labels'?"]),
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
    assert done.told("install what brings 'no_such_package_here'", "task.py:1").code == 5


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
