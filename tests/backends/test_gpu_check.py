"""The script for a GPU host, here: each check that cannot run says why, and nothing is invented."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from optkit import artifact
from optkit.artifact import Manifest
from optkit.backends import cuda
from optkit.errors import ToolchainMissing
from optkit.runtime import TensorInfo
from tests.backends.standins import LOADED, rows

SCRIPT = Path(__file__).resolve().parents[2] / "eval" / "gpu" / "check.py"


def test_without_a_gpu_every_figure_is_pending(
    net: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> Any:
        raise ToolchainMissing("no NVIDIA driver")

    monkeypatch.setattr(cuda, "load", absent)
    build = net(carrier="float32")
    y = build.node("MatMul", ["x", build.floats("w", (4, 4))], "fc")
    model = build.write(tmp_path / "m.onnx", y, ("batch", 4), ("batch", 4))
    inputs = (TensorInfo("x", "float32", ("batch", 4)),)
    recipe = {"axes": {"batch": {"min": 1, "opt": 2, "max": 4}}}
    manifest = Manifest("m", "l4", "fp16", "d" * 64, recipe, inputs, inputs, {}, {"status": "ok"})
    artifact.write(tmp_path / "out", manifest, {"model.onnx": model})
    found = tmp_path / "found.json"
    monkeypatch.setattr(sys, "argv", ["check.py", str(tmp_path / "out" / "m"), str(found)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    told = json.loads(found.read_text())
    assert (told["evidence"], told["gpu"], told["target"]) == ("pending", {}, "l4")
    assert {row["status"] for row in told["checks"]} == {"missing"}
    assert all(row["reason"] and "p50_ms" not in row for row in told["checks"])
    names = [row["check"] for row in told["checks"]]
    assert {"tensorrt", "tensorrt-rtx", "onnxruntime-cuda", "onnxruntime-tensorrt"} <= set(names)
    for name in ("tensorrt", "tensorrt-rtx"):
        assert {f"{name}, time of layers", f"{name}, memory of the device"} <= set(names)
    assert "tensorrt, tiling = NONE instead of MODERATE" in names


def test_what_a_card_would_be_asked_of_layers_and_memory(
    net: Any, opened: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a library of a few lines, which takes what it takes."""
    checks: Any = object.__new__(runpy.run_path(str(SCRIPT))["Checks"])
    build = net(carrier="float32")
    y = build.node("MatMul", ["x", build.floats("w", (2, 2))], "fc")
    checks.model = build.write(tmp_path / "m.onnx", y, (2, 2), (2, 2))
    checks.feed = {"x": rows(1, 2), "state": rows(5)}
    monkeypatch.setitem(checks.profiled.__globals__, "SECONDS", 0.01)
    assert checks.profiled(opened()) == {
        "layers": 3, "together_ms": 8.0, "products_ms": 5.0, "unlisted_ms": 1.0,
    }  # fmt: skip
    checks.compiled = lambda name, spec: (tmp_path, SimpleNamespace(stated_bytes=7))
    checks.opened = lambda name, file, device: opened()
    found = checks.weighed("tensorrt", None, None)
    assert found["bytes"] > LOADED and (found["marks"], found["stated_bytes"]) == ([], 7)


def test_the_committed_results_are_no_figures() -> None:
    told = json.loads(SCRIPT.with_name("results.json").read_text())
    assert told["evidence"] == ("measured" if told["gpu"] else "pending")
