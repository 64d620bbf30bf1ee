"""The trainings of docs/how_to/qat.md: a plain loop, the Trainer of Hugging Face, Lightning and
Accelerate, each a float training with three more lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from optkit import qat
from optkit.ground import graph
from optkit.ground.workspace import Workspace
from optkit.road import jobs, pipeline
from optkit.road.steps.file_names import GRAPH
from optkit.satellites.qat.fake_quantization import ActivationQuantizer
from optkit.satellites.qat.products import Product

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs/how_to/qat.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
IMPORTS = "import torch\nimport optkit\nfrom optkit import qat\n"
SHARED = next(block for block in BLOCKS if "class Classifier" in block)
TRAININGS = {
    "loop": next(block for block in BLOCKS if "for x, y in loader" in block),
    **{
        library: next(
            block for block in BLOCKS if re.search(rf"^(from|import) {library}", block, re.M)
        )
        for library in ("transformers", "lightning", "accelerate")
    },
}
THREE_LINES = re.compile(r"^.*  # [123]$\n", re.MULTILINE)


@pytest.fixture(params=TRAININGS)
def training(
    request: pytest.FixtureRequest, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    pytest.importorskip("torch" if request.param == "loop" else request.param)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    shared = "" if request.param == "loop" else SHARED
    yield IMPORTS + shared + TRAININGS[request.param]
    if request.param in ("transformers", "accelerate"):
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)


def run(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(code, PAGE.name, "exec"), names)
    return names


def test_three_lines_are_all_that_is_added(training: str) -> None:
    """Without them, it is a training of the float module."""
    without = THREE_LINES.sub("", training).replace("float_net", "net")
    assert len(training.splitlines()) - len(without.splitlines()) == 3
    assert "qat." not in without and "optkit." not in without.partition("print(artifact")[0]
    net = run(without.partition("print(artifact")[0])["net"]
    assert isinstance(net, nn.Module) and not hasattr(net, "trained_scales")


def test_the_artifact_has_the_codes_and_scales_of_the_training(
    training: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[nn.Module] = []
    finalize = qat.finalize

    def watched(net: nn.Module) -> nn.Module:
        trained.append(net)
        return finalize(net)

    monkeypatch.setattr(qat, "finalize", watched)
    names = run(training)
    (student,) = trained
    check_equal(student, constants(names["artifact"].model_path))

    monkeypatch.setattr(qat, "finalize", finalize)
    workspace = Workspace(cache, listener=None)
    file = qat.export(student, names["example"], out=tmp_path / "trained", workspace=workspace)
    job = jobs.job_of(
        file, None, jobs.pair("cpu", "int8"), recipe=None, calibration=names["loader"],
        name=None, runner=workspace.runner(),
    )  # fmt: skip
    built = pipeline.run(job, workspace.runner(), pipeline.QUANTIZE).quantized
    assert built is not None
    check_equal(student, constants(built.path / GRAPH))


def constants(file: Path) -> dict[str, np.ndarray]:
    arrays = {
        name: graph.array(value) for name, value in graph.load(file).graph.initializers.items()
    }
    return {name: array for name, array in arrays.items() if array is not None}


@torch.no_grad()
def check_equal(student: nn.Module, held: dict[str, np.ndarray]) -> None:
    """Every trained scale and code is in the graph, bit by bit."""
    scales = [
        q.used_scale().item() for q in student.modules() if isinstance(q, ActivationQuantizer)
    ]
    names = [name for name in held if name.endswith("_scale")]
    assert scales
    for scale in scales:
        assert any(held[name].size == 1 and held[name].item() == scale for name in names)
    products = {name: part for name, part in student.named_modules() if isinstance(part, Product)}
    assert products
    for name, product in products.items():
        assert product.weight_quantizer is not None
        weight, bias = product.folded()
        values, _ = product.weight_quantizer(weight, bias, product._input_scale())
        scale = product.used_weight_scale().numpy()
        np.testing.assert_array_equal(held[f"{name}.weight_scale"], scale)
        codes = next(held[n] for n in held if n.startswith(f"{name}.weight_quantized"))
        codes = codes.astype(np.float32)  # as the module has them, or transposed
        codes = codes if codes.shape == tuple(values.shape) else codes.T
        along = scale.reshape(-1, *[1] * (values.ndim - 1))
        np.testing.assert_array_equal(codes * along, values.numpy())
