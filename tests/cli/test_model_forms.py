"""The forms of MODEL and recipes, and where they are found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

Optkit = Callable[..., Any]

MODEL = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.Linear(16, width), nn.Linear(width, 4)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))

def create(width=32):
    torch.manual_seed(0)
    return Net(width)
"""
FACTORY = """\
name: net
model: {factory: model.py:create, args: {width: 64}}
inputs: {x: {dtype: float32, shape: [batch, 16]}}
axes: {batch: {min: 1, opt: 4, max: 16}}
"""


@pytest.fixture
def export(optkit_here: Optkit, store: Path, tmp_path: Path) -> Callable[..., Path]:
    """`optkit export …` in a folder: where the graph is, or the refusal."""

    def run(*argv: object, cwd: Path) -> Any:
        out = tmp_path / f"exported-{len(list(tmp_path.iterdir()))}"
        done = optkit_here("export", *argv, "--out", out, "--json", cwd=cwd, cache=store)
        assert done.code == 0, done.err
        return out / "model.onnx"

    return run


def signature(path: Path) -> tuple[str, list[str | int]]:
    value = onnx.load(path).graph.input[0]
    dims = value.type.tensor_type.shape.dim
    return value.name, [dim.dim_param or dim.dim_value for dim in dims]


def outputs(path: Path, x: np.ndarray) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {session.get_inputs()[0].name: x})[0])


def model(weights: Mapping[str, np.ndarray], batch: str | int, opset: int) -> onnx.ModelProto:
    """x → relu(x·w1) → y, with BatchNormalization's old form of Unsqueeze left out of it."""
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["m"], "product"),
        helper.make_node("Relu", ["m"], ["y"], "relu"),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 32])],
        [numpy_helper.from_array(weights["w1"], "w1")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.slow
def test_a_factory_in_a_file_or_a_package_is_the_same_model(
    export: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "net.yaml").write_text(FACTORY)
    (tmp_path / "mine").mkdir()
    for file in ("model.py", "mine/__init__.py", "mine/model.py"):
        (tmp_path / file).write_text(MODEL if file.endswith("model.py") else "")
    in_file = export("--recipe", "net.yaml", cwd=tmp_path)
    width = ["--set", "model.args.width=64"]  # MODEL replaces the recipe's, and its arguments
    in_package = export("mine.model:create", "--recipe", "net.yaml", *width, cwd=tmp_path)
    assert in_file.read_bytes() == in_package.read_bytes()
    assert signature(in_file) == ("x", ["batch", 16])
    assert 64 in {size for t in onnx.load(in_file).graph.initializer for size in t.dims}


@pytest.mark.slow
def test_a_pt2_archive_brings_its_own_inputs(export: Callable[..., Path], tmp_path: Path) -> None:
    import torch

    net = torch.nn.Sequential(torch.nn.Linear(16, 4), torch.nn.ReLU()).eval()
    x, dims = torch.randn(2, 16), {"input": {0: torch.export.Dim("batch", min=1, max=32)}}
    torch.export.save(torch.export.export(net, (x,), dynamic_shapes=dims), tmp_path / "net.pt2")
    path = export("net.pt2", cwd=tmp_path)
    assert signature(path) == ("input", ["batch", 16])
    np.testing.assert_allclose(outputs(path, x.numpy()), net(x).detach(), atol=1e-6)


@pytest.mark.parametrize("opset", [17, 21])
def test_an_onnx_file_keeps_its_outputs_whatever_its_opset(
    opset: int, export: Callable[..., Path], weights: Mapping[str, np.ndarray], tmp_path: Path
) -> None:
    onnx.save(model(weights, "batch", opset), tmp_path / "net.onnx")
    path = export("net.onnx", cwd=tmp_path)
    assert onnx.load(path).opset_import[0].version >= 21
    x = np.random.default_rng(1).standard_normal((3, 16)).astype(np.float32)
    np.testing.assert_array_equal(outputs(path, x), outputs(tmp_path / "net.onnx", x))


@pytest.mark.parametrize(
    ("axis", "options", "batch"),
    [
        pytest.param(
            "N",
            ["--min-shapes", "x:2x16", "--opt-shapes", "x:3x16", "--max-shapes", "x:5x16"],
            3,
            marks=pytest.mark.slow,
        ),
        pytest.param("N", ["--shapes", "x:6x16"], 6, marks=pytest.mark.slow),
        ("N", ["--set", "axes={N: {min: 1, opt: 4, max: 4}}"], 4),
        pytest.param(2, [], 2, marks=pytest.mark.slow),
        pytest.param("batch", [], 8, marks=pytest.mark.slow),
    ],
)
def test_a_bare_onnx_file_is_built_at_the_sizes_of_its_own_axes(
    axis: str | int, options: list[str], batch: int, optkit_here: Optkit, store: Path,
    weights: Mapping[str, np.ndarray], tmp_path: Path,
) -> None:  # fmt: skip
    onnx.save(model(weights, axis, 21), tmp_path / "net.onnx")
    line = ["bench", "net.onnx", "--target", "h100", "--precision", "fp16", *options, "--json"]
    done = optkit_here(*line, cwd=tmp_path, cache=store)
    assert done.code == 0, done.err
    assert [one["batch"] for one in done.json["latency"]] == [batch]
    line = ["build", *line[1:-1], "--dry-run"]
    dry = optkit_here(*line, cwd=tmp_path, cache=tmp_path / "none")
    assert dry.code == 0 and not (tmp_path / "none").exists()


@pytest.mark.slow
def test_a_model_of_one_fixed_batch_size_goes_all_the_way(
    optkit_here: Optkit, store: Path, weights: Mapping[str, np.ndarray], tmp_path: Path
) -> None:
    onnx.save(model(weights, 2, 21), tmp_path / "net.onnx")
    line = ["build", "net.onnx", "--target", "cpu", "--precision", "fp32", "--json"]
    line += ["--set", "bench={seconds: 0.1, warmup_seconds: 0.1}"]
    done = optkit_here(*line, cwd=tmp_path, cache=store)
    assert done.code == 0, done.err
    assert done.result["latency"]["batch"] == done.result["engine"]["batch"] == 2
    assert done.result["gate"]["verdict"] == "inconclusive"  # no task: accuracy is unknown
    assert done.result["fidelity"]["samples"] > 0 and done.result["accuracy"] is None


def test_an_axis_of_unknown_sizes_is_reported_before_work_on_it(
    optkit_here: Optkit, store: Path, weights: Mapping[str, np.ndarray], tmp_path: Path
) -> None:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", "L"]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "free", [x], [y])
    opset = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), tmp_path / "free.onnx")
    line = ["build", "free.onnx", "--target", "cpu", "--precision", "fp32"]
    done = optkit_here(*line, cwd=tmp_path, cache=store)  # N counts samples, and L is anything
    assert done.told("input 'x'", "'L'", "--min-shapes", "axes: {L:").code == 2
    onnx.save(model(weights, "N", 21), tmp_path / "net.onnx")
    line[1] = "net.onnx"
    wrong = optkit_here(*line, "--shapes", "y:4x16", cwd=tmp_path, cache=store)
    assert wrong.told("--shapes", "unknown input 'y'", "x").code == 2
    wrong = optkit_here(*line, "--shapes", "x:4x17", cwd=tmp_path, cache=store)
    assert wrong.told("axis 1 of x is 16, not 17", "x is Nx16").code == 2


def test_the_projects_recipe_is_found_from_below(
    optkit_here: Optkit, small: Path, store: Path, tmp_path: Path
) -> None:
    def planned(cwd: Path, *argv: str) -> Any:
        done = optkit_here("build", "--target", "cpu", "--dry-run", *argv, cwd=cwd, cache=store)
        return done if done.code else done.out

    project = tmp_path / "repo"
    shutil.copytree(small, project / "recipes", ignore=shutil.ignore_patterns("artifacts"))
    (project / "recipes/optkit.yaml").rename(project / "recipes/mine.yaml")
    (project / "src/deep").mkdir(parents=True)
    (project / "pyproject.toml").write_text('[tool.optkit]\nrecipe = "recipes/mine.yaml"\n')
    for folder in (project, project / "src/deep"):
        assert "export small" in planned(folder)
    (project / "pyproject.toml").write_text("[project]\nname = 'mine'\n")
    refused = planned(project / "src/deep").told(
        "no model and no recipe", "optkit init", "optkit build --recipe digits-vit"
    )
    assert refused.code == 2
    assert "export small" in planned(project, "recipes/small.onnx", "--recipe", "recipes/mine.yaml")
    (project / "recipes/mine.yaml").rename(project / "recipes/optkit.yaml")
    assert "export small" in planned(project / "recipes")
    assert "export small" in planned(project, "recipes")  # MODEL may be a folder with a recipe
    assert planned(project, "src").told("neither optkit.yaml nor config.json", "folder").code == 2
    (project / "pyproject.toml").write_text("[tool.optkit\n")
    assert planned(project).told("pyproject.toml", "fix the file").code == 2
    (project / "pyproject.toml").write_text('[tool.optkit]\nrecipe = "nosuch.yaml"\n')
    assert planned(project).told("nosuch.yaml", "no such recipe").code == 2


def test_two_projects_with_files_of_the_same_name_do_not_share_their_samples(
    optkit_here: Optkit, project: Path, store: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(project, other)
    source = (other / "source.py").read_text()
    (other / "source.py").write_text(source.replace("seed=1", "seed=7"))

    def quantized(folder: Path, name: str) -> bytes:
        line = ["quantize", "--target", "cpu", "--out", folder / name]
        assert optkit_here(*line, cwd=folder, cache=store).code == 0
        return (folder / name / "model.onnx").read_bytes()

    mine, theirs = quantized(project, "one"), quantized(other, "one")
    assert mine != theirs
    assert (quantized(project, "two"), quantized(other, "two")) == (mine, theirs)
    (project / "source.py").write_text((other / "source.py").read_text())
    assert quantized(project, "three") == theirs


@pytest.mark.slow
def test_a_graph_without_products_has_a_latency_above_nothing(
    optkit_here: Optkit, store: Path, tmp_path: Path
) -> None:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 64]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], "relu")], "relu", [x], [y])
    opsets = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "relu.onnx")
    line = ["build", "relu.onnx", "--target", "l4", "--precision", "fp16", "--shapes", "x:8x64",
            "--set", "gates.min_throughput=1", "--defer", "--json"]  # fmt: skip
    done = optkit_here(*line, cwd=tmp_path, cache=store)
    assert done.code == 0, done.err
    result = done.result
    low, high = result["latency"]["band"]
    assert 0 < low <= high
    assert result["speedup"]["ci95"] == [1, 1]
    assert result["latency"]["throughput"] > 0


@pytest.mark.parametrize("target", ["cpu", "l4"])
def test_a_rehearsal_refuses_what_the_build_refuses(
    optkit_here: Optkit, tmp_path: Path, target: str
) -> None:
    """The build names the arguments of forward, which a rehearsal does not load."""
    (tmp_path / "model.py").write_text(MODEL)
    line = ["build", "model.py:create", "--target", target, "--precision", "fp16", "--json"]
    if target == "cpu":
        line[line.index("fp16")] = "fp32"
    store = tmp_path / "cache"
    both = [optkit_here(*line, *more, cwd=tmp_path, cache=store) for more in ((), ("--dry-run",))]
    assert [one.code for one in both] == [5, 5]
    built, planned = (json.loads(one.out)["error"] for one in both)
    assert built["message"] == planned["message"]
    assert "does not declare the inputs" in planned["message"]
    assert (built["where"], planned["where"]) == ("Net.forward(x)", "model")
    assert "optkit init MODEL" in planned["hint"]


def test_a_model_imports_its_neighbour_and_not_that_of_the_current_folder(
    export: Callable[..., Path], tmp_path: Path
) -> None:
    project = tmp_path / "project"
    for folder, width in ((project, 8), (project / "other", 24)):
        folder.mkdir()
        (folder / "sizes.py").write_text(f"WIDTH = {width}\n")
    code = MODEL.replace("import torch\n", "import sizes\nimport torch\n", 1)
    (project / "other" / "model.py").write_text(code.replace("width=32", "width=sizes.WIDTH"))
    (project / "other" / "net.yaml").write_text(FACTORY.replace(", args: {width: 64}", ""))
    graph = onnx.load(export("--recipe", "other/net.yaml", cwd=project)).graph
    assert sorted(each.dims[0] for each in graph.initializer) == [4, 4, 24, 24]
