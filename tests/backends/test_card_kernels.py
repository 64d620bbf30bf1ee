"""The kernels that are timed on a card: through a stand-in for torch, as calls that the real torch
accepts, and as graphs that ONNX Runtime runs. None of it is on a card."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from optkit.craft.backends import ort_kernels, torch_kernels
from optkit.craft.backends.ort_kernels import OrtKernels, graph_of
from optkit.craft.backends.ort_session import CPU
from optkit.craft.prediction import card_kernels
from optkit.facts.card_facts import CardKernel
from optkit.facts.errors import Impossible, ToolchainMissing, WorkerFailed
from optkit.ground.devices import target
from optkit.road.steps.bodies import measure_card
from optkit.road.steps.measure_card import CardTimes, MeasureCard
from tests.conftest import ROOT

STANDIN = ROOT / "tests/devices/torch_standin.py"
GEMM = CardKernel("gemm", "fp16", (16, 32, 64))


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("torch_standin", STANDIN)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


def ran(seconds: float = 60.0) -> CardTimes:
    step = MeasureCard(library="torch", seconds=seconds, at="1")
    return measure_card.run(step, Path(), lambda what, fraction: None)


def test_times_are_of_one_launch(standin: Any) -> None:
    found = ran()
    assert (found.target, found.device, found.compute_capability) == ("l4", "NVIDIA L4", "8.9")
    times = {one.kernel.name: one.ms for one in found.kernels}
    moved = 4096 * 4096 * 2 + 8192 * 4096 * 4
    seconds = max(2 * 8192 * 4096 * 4096 / standin.RATES["half"], moved / standin.BYTES)
    assert times["gemm fp16 8192x4096x4096"] == pytest.approx(1e3 * (standin.LAUNCH + seconds))
    reasons = {one.kernel.precision: one.reason for one in found.failed}
    assert reasons.keys() == {"fp8", "int4"}
    assert reasons["fp8"] == "RuntimeError: torch._scaled_mm is not of this stand-in"


def test_a_measurement_that_ends_early_has_some_of_each_kind(standin: Any) -> None:
    order = list(measure_card.in_turn(card_kernels.kernels(target("l4"))))
    assert len(order) == len(set(order)) == 125
    assert len({(one.kind, one.precision) for one in order[:7]}) == 7
    with pytest.raises(WorkerFailed, match="not reached within 0 s"):
        ran(seconds=0.0)


@pytest.mark.parametrize(
    ("name", "value", "error", "parts"),
    [
        ("init", lambda: 1 / 0, ToolchainMissing, "cannot use a GPU"),
        ("get_device_properties",
         lambda index: SimpleNamespace(name="NVIDIA Z9", major=9, minor=9, total_memory=1),
         ToolchainMissing, "no figures of NVIDIA Z9"),
        ("synchronize", lambda: 1 / 0, WorkerFailed, "no kernel ran on NVIDIA L4"),
    ],
)  # fmt: skip
def test_a_card_that_cannot_be_measured(
    standin: Any, name: str, value: Any, error: type[Exception], parts: str
) -> None:
    setattr(standin.cuda, name, value)
    with pytest.raises(error, match=parts):
        ran()


@pytest.mark.slow  # loading its rules takes seconds
def test_torch_accepts_the_calls() -> None:
    """By its own rules of shapes and types, on tensors without values."""
    torch = pytest.importorskip("torch")
    mode = importlib.import_module("torch._subclasses.fake_tensor").FakeTensorMode
    with mode():
        for kernel in _one_of_each():
            if kernel.kind != "copy":  # it asks for a driver
                found = torch_kernels.call_of(torch, kernel)()
                assert found.device.type == "cuda", kernel.name


def test_graphs_of_one_kernel_are_valid() -> None:
    for kernel in _one_of_each():
        if kernel.precision == "fp8":
            with pytest.raises(Impossible, match="no gemm in fp8"):
                graph_of(kernel, 2)
            continue
        text, feed, written = graph_of(kernel, 2)
        graph = ir.from_onnx_text(text).graph
        assert [value.name for value in graph.inputs] == list(feed)
        assert [value.name for value in graph.outputs] == ["y0", "y1"]
        assert len(graph) == 2 and written.size


def _one_of_each() -> list[CardKernel]:
    """The first kernel of each kind and precision."""
    return list(measure_card.in_turn(card_kernels.kernels(target("l4"))))[:7]


@pytest.mark.parametrize(
    "kernel",
    [
        GEMM,
        CardKernel("gemm", "int8", (16, 32, 64)),
        CardKernel("gemm", "int4", (16, 256, 64)),
        CardKernel("conv", "fp16", (1, 8, 3, 4, 3, 2)),
        CardKernel("copy", "fp16", (2**10,)),
    ],
    ids=lambda kernel: kernel.name,
)
def test_onnx_runtime_runs_the_graphs(kernel: CardKernel) -> None:
    """On the CPU: the graphs are those of the card."""
    assert OrtKernels((CPU,), "cpu").milliseconds(kernel) > 0


def test_what_one_more_node_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {1: 0.030, ort_kernels._TOGETHER: 0.030 + 19 * 0.002}
    monkeypatch.setattr(OrtKernels, "_run", lambda self, kernel, nodes: times[nodes])
    assert OrtKernels((CPU,), "cpu").milliseconds(GEMM) == pytest.approx(0.002)
    times[1] = 8.0  # long enough alone
    assert OrtKernels((CPU,), "cpu").milliseconds(GEMM) == 8.0


def test_the_sizes_are_the_arrays() -> None:
    _, feed, written = graph_of(CardKernel("conv", "fp16", (2, 8, 3, 4, 3, 2)), 1)
    assert feed["x"].shape == (2, 3, 8, 8) and written.shape == (2, 4, 4, 4)
    _, feed, written = graph_of(CardKernel("attention", "fp16", (2, 3, 8, 4)), 1)
    assert feed["q"].shape == written.shape == (2, 8, 12) and written.dtype == np.float16
