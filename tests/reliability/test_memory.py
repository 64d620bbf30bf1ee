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
from optkit.facts.codec import to_json
from optkit.facts.errors import WorkerFailed
from optkit.facts.precisions import PRECISIONS
from optkit.facts.tensors import InputSpec, TensorInfo
from optkit.ground import runtimes
from optkit.ground.data import spool_writer
from optkit.ground.devices import target
from optkit.ground.execute import local
from optkit.ground.execute.task import Task, TaskLimits, silent
from optkit.road.steps.collect import Collect
from optkit.road.steps.file_names import GRAPH, STATISTICS
from tests.figures import Figures

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
from optkit.road import worker

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


BUDGETS = [int(size) * MIB for size in np.geomspace(64, 1024, 20)]
SAMPLES, WIDTH = 10_000, 24
# what a batch of all samples would hold, at once and in float32
IN_ONE_BATCH = SAMPLES * 8 * 8 * (WIDTH * 6 + 4) * 4


def inputs_of_calibrate(folder: Path) -> dict[str, str]:
    """A graph with small values, and 10,000 samples."""
    rng = np.random.default_rng(0)
    nodes, weights, value, width = [], [], "x", 4
    for i in range(3):
        weight = rng.standard_normal((WIDTH, width, 3, 3)) * (9 * width) ** -0.5
        weights.append(numpy_helper.from_array(weight.astype(np.float32), f"w{i}"))
        nodes.append(helper.make_node("Conv", [value, f"w{i}"], [f"c{i}"], f"conv{i}",
                                      pads=[1, 1, 1, 1]))  # fmt: skip
        nodes.append(helper.make_node("Relu", [f"c{i}"], [value := f"r{i}"], f"relu{i}"))
        width = WIDTH
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4, 8, 8])
    y = helper.make_tensor_value_info(value, TensorProto.FLOAT, ["batch", WIDTH, 8, 8])
    made = helper.make_graph(nodes, "many", [x], [y], weights)
    for name in ("graph", "samples"):
        (folder / name).mkdir()
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 21)], ir_version=10),
              folder / "graph" / GRAPH)  # fmt: skip
    parts = (rng.standard_normal((500, 4, 8, 8), np.float32) for _ in range(SAMPLES // 500))
    spool_writer.write(
        ({"x": part} for part in parts), folder / "samples",
        (TensorInfo("x", "float32", ("batch", 4, 8, 8)),),
        limit_samples=None, memory_bytes=64 * MIB, progress=silent,
    )  # fmt: skip
    return {name: str(folder / name) for name in ("graph", "samples")}


def carried_out(task: Task, memory: int, folder: Path) -> int | None:
    """The most that the real worker held; None if it ended with the verdict about memory."""
    command = (sys.executable, "-c", WORKER, str(folder / "peak"))
    try:
        local.run(task, TaskLimits(memory), command=command)
    except WorkerFailed as failed:
        assert failed.verdict == "oom"
        return None
    return int((folder / "peak").read_text()) * 1024


@pytest.mark.slow
def test_calibration_of_many_samples_within_each_budget(figures: Figures, tmp_path: Path) -> None:
    """All samples are one batch, which fits into none of the smaller budgets: the worker cuts it,
    or the verdict tells that memory is short. The result is the same."""
    inputs, found = inputs_of_calibrate(tmp_path), []
    rules = to_json(runtimes.backend("onnxruntime").rules(target("cpu"), PRECISIONS["int8"]))
    params = {"batch": SAMPLES, "families": [{"int8": rules}], "moments": True}
    budgets = BUDGETS[:: 20 // figures.times(4, 20)]
    assert budgets[len(budgets) // 2] < IN_ONE_BATCH < budgets[-1]
    for budget in budgets:
        (out := tmp_path / "out").mkdir()
        task = Task("calibrate", inputs, {**params, "memory": budget}, str(out))
        most = carried_out(task, budget, tmp_path)
        assert most is None or most <= 1.1 * budget, (most, budget)
        if most is not None:
            found.append((out / STATISTICS).read_bytes())
        shutil.rmtree(out)
    assert len(found) >= len(budgets) // 2 and len({*found}) == 1
    figures.tell(
        "calibration within a budget of memory", len(budgets),
        f"{SAMPLES:,} samples in one batch, 64 MiB to 1 GiB: at most 1.1 times the budget and the "
        "same statistics, or the verdict that memory is short",
    )  # fmt: skip


LEAKING = """
import numpy as np

held = []

def samples():
    for number in range(10_000):
        held.append(np.ones(2**16, np.float32))
        yield {"x": np.full((1, 4), number, np.float32)}
"""


def collect(source: Path, memory: int, folder: Path) -> int | None:
    """Run the user's source within a budget."""
    (out := folder / "out").mkdir()
    step = Collect(
        limit=None, function="samples", what=source.name, args={}, labelled=False, optional=(),
        specs=(InputSpec(TensorInfo("x", "float32", ("batch", 4))),), path=source,
        where=source.name, memory=memory // 4, folders={},
    )  # fmt: skip
    most = carried_out(
        Task("collect", {}, {**step.params, **step.beside}, str(out)), memory, folder
    )
    shutil.rmtree(out)
    return most


@pytest.mark.slow
def test_a_source_that_leaks_is_stopped(figures: Figures, tmp_path: Path) -> None:
    (tmp_path / "leaking.py").write_text(LEAKING)
    budgets = BUDGETS[:: 20 // figures.times(2, 20)]
    for budget in budgets:
        assert collect(tmp_path / "leaking.py", budget, tmp_path) is None
    figures.tell(
        "a source of samples that leaks", len(budgets),
        "256 KiB per sample, 64 MiB to 1 GiB: the verdict that memory is short",
    )  # fmt: skip


@pytest.mark.slow
def test_samples_are_not_kept_in_memory(tmp_path: Path) -> None:
    """Less than one KiB is left of each."""
    few, many = (tmp_path / f"{count}.py" for count in (1_000, 10_000))
    peaks = []
    for source in (few, many):
        text = LEAKING.replace("held.append(np.ones(2**16, np.float32))", "pass")
        source.write_text(text.replace("10_000", source.stem))
        peaks.append(collect(source, 1024 * MIB, tmp_path))
    assert peaks[0] is not None and peaks[1] is not None
    assert peaks[1] - peaks[0] < 9_000 * 1024
