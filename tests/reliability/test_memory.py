"""`--memory` bounds what calibration really holds, whatever the model's values need at once."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import optkit
from optkit.errors import WorkerFailed
from optkit.execute import local
from optkit.execute.task import Task

MIB = 2**20
SIDE, CHANNELS, BATCH = 256, 16, 32
# What one batch's inputs of convolutions hold, in float32: more than the budget below.
TAPPED = BATCH * SIDE * SIDE * (3 + 4 * CHANNELS) * 4
BUDGET = 480 * MIB

RECIPE = f"""
name: wide
model: {{path: wide.onnx}}
inputs:
  image: {{dtype: float32, shape: [batch, 3, {SIDE}, {SIDE}]}}
axes:
  batch: {{min: 1, opt: 2, max: {BATCH}}}
calibration: {{source: noise.py, samples: {BATCH}, batch: {BATCH}}}
"""

SOURCE = f"""
import numpy as np

def samples():
    rng = np.random.default_rng(1)
    yield {{"image": rng.standard_normal(({BATCH}, 3, {SIDE}, {SIDE})).astype(np.float32)}}
"""

# runs the real worker and tells the most that it ever held
WORKER = """
import sys
from pathlib import Path
from optkit import worker

status = worker.main(["worker", sys.argv[2]])
lines = Path("/proc/self/status").read_text().splitlines()
Path(sys.argv[1]).write_text(next(line for line in lines if line.startswith("VmHWM")).split()[1])
sys.exit(status)
"""


def wide(path: Path) -> None:
    """Few weights, large values: convolutions at full resolution."""
    rng = np.random.default_rng(0)
    nodes, weights, value, width = [], [], "image", 3
    for i in range(5):
        weight = rng.standard_normal((CHANNELS, width, 3, 3)) * np.sqrt(2 / (9 * width))
        weights.append(numpy_helper.from_array(weight.astype(np.float32), f"w{i}"))
        nodes.append(helper.make_node("Conv", [value, f"w{i}"], [f"c{i}"], f"conv{i}",
                                      pads=[1, 1, 1, 1]))  # fmt: skip
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"r{i}"], f"relu{i}"))
        value, width = f"r{i}", CHANNELS
    nodes.append(helper.make_node("GlobalAveragePool", [value], ["y"], "pool"))
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", CHANNELS, 1, 1])
    graph = helper.make_graph(nodes, "wide", [image], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)],
                                ir_version=10), path)  # fmt: skip


def quantize(folder: Path, memory: int, out: str) -> None:
    def carry(task: Task, *args: Any, **more: Any) -> dict[str, Any]:
        command = (sys.executable, "-c", WORKER, str(folder / f"{task.step}.peak"))
        return local.run(task, *args, command=command, **more)

    optkit.quantize(
        recipe=folder / "wide.yaml", target="cpu", precision="int8", out=folder / out,
        workspace=optkit.Workspace(folder / "cache", memory=memory, executor=carry),
    )  # fmt: skip


@pytest.mark.slow
def test_calibration_stays_within_the_memory(tmp_path: Path) -> None:
    """In parts of a batch, whose values would not fit; the parts' size does not show in the result,
    and too little memory is a verdict."""
    wide(tmp_path / "wide.onnx")
    (tmp_path / "noise.py").write_text(SOURCE)
    (tmp_path / "wide.yaml").write_text(RECIPE)
    quantize(tmp_path, 16 * BUDGET, "roomy")
    assert TAPPED > BUDGET
    forget(tmp_path, "calibrate", "quantize")
    quantize(tmp_path, BUDGET, "tight")
    assert peak(tmp_path) <= BUDGET
    roomy, tight = (tmp_path / name / "model.onnx" for name in ("roomy", "tight"))
    assert roomy.read_bytes() == tight.read_bytes()
    forget(tmp_path, "calibrate")
    with pytest.raises(WorkerFailed) as caught:
        quantize(tmp_path, 50 * MIB, "none")
    assert (caught.value.verdict, caught.value.exit_code) == ("oom", 6)
    assert not (tmp_path / "none").exists()


def peak(folder: Path) -> int:
    """The most bytes that the calibrating worker held."""
    return int((folder / "calibrate.peak").read_text()) * 1024


def forget(folder: Path, *steps: str) -> None:
    for entry in folder.glob("cache/steps/*/*"):
        if json.loads((entry / "entry.json").read_bytes())["step"] in steps:
            shutil.rmtree(entry)
