"""A model larger than `--memory` is quantized: the whole command, its parent and its workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optkit.ground import graph
from optkit.ground.execute.resident_memory import resident
from tests.scripts import script

ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20
_OPTKIT = (sys.executable, "-c", "from optkit.cli import main; main()")


def write(path: Path, **sizes: int) -> int:
    """A decoder with random FP16 weights; returns their bytes."""
    module = script("experiments/large/decoder.py")
    graph.save(module.decoder(module.Shape(**sizes)), path)
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))


def optkit(folder: Path, *words: str) -> tuple[dict[str, Any], int]:
    """The command's object on stdout, and the most that its process tree held, in bytes."""
    environment = {**os.environ, "OPTKIT_CACHE": str(folder / "cache")}
    command = subprocess.Popen(
        [*_OPTKIT, *words, "--json"], env=environment, cwd=folder, text=True,
        stdout=(folder / "stdout").open("w"), stderr=(folder / "stderr").open("w"),
    )  # fmt: skip
    peak = 0
    while command.poll() is None:
        peak = max(peak, resident(command.pid))
        time.sleep(0.02)
    said = (folder / "stdout").read_text()  # a pipe would be full before the command ends
    assert command.returncode == 0, (folder / "stderr").read_text()
    return json.loads(said), peak


def check_codes(model: Path, source: Path, name: str) -> None:
    """Half a step at most lies between a weight and what its codes stand for."""
    quantized, original = graph.load(model).graph, graph.load(source).graph
    codes, scale, *_ = (v for n, v in quantized.initializers.items() if n.startswith(f"{name}_"))
    steps = np.repeat(graph.array(scale).astype(np.float32), 32, axis=0)
    wanted = graph.array(original.initializers[name]).astype(np.float32)
    error = np.abs(graph.array(codes).astype(np.float32) * steps - wanted)
    assert (error <= steps * 0.501).all() and error.max() > 0


# the embedding, which stays FP16, alone is too large to stand in the model file
SMALL = {"hidden": 1024, "ffn": 2816, "layers": 2, "heads": 16, "vocabulary": 131_072}


@pytest.mark.slow
def test_a_model_larger_than_its_memory(tmp_path: Path) -> None:
    """560 MiB of weights within 400; what was not compared is told, and nothing runs twice."""
    size = write(tmp_path / "m.onnx", **SMALL)
    command = ("quantize", str(tmp_path / "m.onnx"), "--target", "l4", "--precision", "int4",
               "--set", "quantization.weights=rtn", "--memory", "400MiB")  # fmt: skip
    made, peak = optkit(tmp_path, *command, "--out", str(tmp_path / "out"))
    assert size > 550 * MIB and peak < 480 * MIB  # the parent holds some, too
    assert "the fused graph is not compared with" in (tmp_path / "stderr").read_text()
    head = tmp_path / "out" / "model.onnx"
    check_codes(head, tmp_path / "m.onnx", "head.weight")
    assert sum(path.stat().st_size for path in head.parent.iterdir()) < 0.7 * size
    (copy,) = (tmp_path / "cache" / "objects").glob("*/*/m.onnx.data")
    assert copy.stat().st_nlink > 2  # every step reads the one copy that was staged
    again, _ = optkit(tmp_path, *command, "--out", str(tmp_path / "again"))
    assert again["details"] == made["details"]
    assert head.read_bytes() == (tmp_path / "again" / "model.onnx").read_bytes()


@pytest.mark.slow
def test_a_model_larger_than_its_memory_is_solved(tmp_path: Path) -> None:
    """GPTQ with samples, layer by layer; what does not fit even so is rounded, and named."""
    size = write(tmp_path / "m.onnx", **SMALL)
    command = ["quantize", str(tmp_path / "m.onnx"), "--precision", "int4", "--memory", "700MiB"]
    for setting in (
        "quantization.weights=gptq", f"calibration.source={ROOT / 'experiments/large/tokens.py'}",
        "calibration.samples=16",
        "calibration.args={count: 16, length: 64, vocabulary: 131072}",
    ):  # fmt: skip
        command += ["--set", setting]
    made, peak = optkit(tmp_path, *command, "--target", "l4", "--out", str(tmp_path / "out"))
    assert size > 550 * MIB and peak < 800 * MIB  # the parent holds some, too
    assert "layer by layer" in (tmp_path / "stderr").read_text()
    quantized = graph.load(tmp_path / "out" / "model.onnx").graph
    ops = [node.op_type for node in quantized]
    assert ops.count("DequantizeLinear") == 7 * SMALL["layers"] + 1
    told = json.dumps(made)
    assert "'head.weight' is rounded to nearest" in told and "'layers" not in told
    for name in ("head.weight", "layers.1.ffn.down.weight"):
        codes, scale = (graph.array(quantized.initializers[f"{name}_{w}"]).astype(np.float32)
                        for w in ("quantized", "scale"))  # fmt: skip
        wanted = graph.array(graph.load(tmp_path / "m.onnx").graph.initializers[name])
        noise = codes * np.repeat(scale, 32, axis=0) - wanted
        assert 0 < np.square(noise).mean() < 0.02 * np.square(wanted, dtype=np.float32).mean()


@pytest.mark.slow
def test_a_model_larger_than_its_memory_has_quantized_activations(tmp_path: Path) -> None:
    """INT8 of 238 M parameters within 1.5 GiB; a run of the whole FP32 graph takes 1.8."""
    write(tmp_path / "m.onnx", hidden=1024, ffn=2816, layers=16, heads=16, vocabulary=16_000)
    command = ["quantize", str(tmp_path / "m.onnx"), "--precision", "int8", "--memory", "1.5GiB"]
    for setting in (
        f"calibration.source={ROOT / 'experiments/large/tokens.py'}", "calibration.samples=8",
        "calibration.args={count: 8, length: 32, vocabulary: 16000}",
    ):  # fmt: skip
        command += ["--set", setting]
    _, peak = optkit(tmp_path, *command, "--target", "l4", "--out", str(tmp_path / "out"))
    assert peak < 1700 * MIB  # the parent holds some, too
    said = (tmp_path / "stderr").read_text()
    assert "calibrate part by part" in said and "Estimate, not measured" in said
    ops = [node.op_type for node in graph.load(tmp_path / "out" / "model.onnx").graph]
    assert ops.count("DequantizeLinear") >= 7 * 16 and "QuantizeLinear" in ops


@pytest.mark.slow
def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    """1.3 and 2.2 GB of FP16 weights in the shapes of a 7B decoder take the same."""
    peaks = []
    for layers in (2, 4):
        folder = tmp_path / f"{layers}"
        folder.mkdir()
        write(folder / "m.onnx", layers=layers)
        _, peak = optkit(
            folder, "quantize", str(folder / "m.onnx"), "--target", "l4", "--precision", "int4",
            "--set", "quantization.weights=rtn", "--memory", "1GiB", "--out", str(folder / "out"),
        )  # fmt: skip
        peaks.append(peak)
        check_codes(folder / "out" / "model.onnx", folder / "m.onnx", "layers.1.attention.q.weight")
    assert max(peaks) < 700 * MIB
    assert peaks[1] < 1.2 * peaks[0] + 50 * MIB
