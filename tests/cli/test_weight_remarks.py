"""The terminal shows a few remarks about weights, and says where the others are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from optkit.ground import graph
from optkit.road.steps.bodies.weight_remarks import shortened
from tests.networks import network

Optkit = Callable[..., Any]


def test_quantize_shows_the_worst_weights(optkit_here: Optkit, tmp_path: Path) -> None:
    """One weight is too large for FP16, four are constant."""
    names = ("w_a", "w_b", "w_c", "w_d", "w_z")
    # each another constant: equal products are computed once
    values = {name: np.full((16, 16), 0.5 + i, np.float32) for i, name in enumerate(names)}
    values["w_z"][0, 0] = 1e5
    sums = [f"h_{name} = MatMul (x, {name})" for name in names]
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
    g (float[batch,16] x, {", ".join(f"float[16,16] {name}" for name in names)})
    => (float[batch,16] y) {{
      {" ".join(sums)}
      y = Sum ({", ".join(f"h_{name}" for name in names)})
    }}"""
    graph.save(graph.upgrade(network(text, **values)), tmp_path / "net.onnx")
    samples = np.random.default_rng(0).normal(size=(64, 16)).astype(np.float32)
    np.savez(tmp_path / "samples.npz", x=samples)
    done = optkit_here(
        "quantize", "net.onnx", "--calibration", "samples.npz", "--target", "cpu", "--precision",
        "int8", "--set", "quantization.smooth=off", "--set", "quantization.equalize=off",
        "--out", "out", cwd=tmp_path, cache=tmp_path / "cache",
    )  # fmt: skip
    assert done.code == 0, done.err
    notes = [
        line for line in done.err.splitlines() if "about weights" in line or "weight '" in line
    ]
    assert "weight 'w_z' reaches 100000" in notes[0]
    assert ["'w_a' is constant (0.5)" in notes[1], "'w_b'" in notes[2]] == [True, True]
    assert "and 2 more about weights" in notes[3] and len(notes) == 4
    log = json.loads((tmp_path / "out" / "details.json").read_text())["quantization"]
    assert sum(text.startswith("weight ") for text in log["warnings"]) == 5


def test_few_remarks_and_other_warnings_are_all_shown() -> None:
    told = ("weight 'a' is constant (0)", "something else", "weight 'b' reaches 1e+05")
    assert shortened(told) == (told[1], told[2], told[0])
