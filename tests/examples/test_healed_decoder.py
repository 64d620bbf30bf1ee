"""examples/07_healed_decoder: its weights, and the road to an artifact with adapters."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "07_healed_decoder"
WEIGHTS = EXAMPLE / "weights.safetensors"


def test_the_weights_are_small_and_in_half_precision() -> None:
    weights = load_file(WEIGHTS)
    assert WEIGHTS.stat().st_size < 2_000_000
    assert {array.dtype for array in weights.values()} == {np.dtype(np.float16)}


@pytest.mark.slow
def test_quick_training_runs_and_keeps_the_weights() -> None:
    before = hashlib.sha256(WEIGHTS.read_bytes()).hexdigest()
    assert "held-out perplexity per byte: " in run("train.py", "--quick")
    assert hashlib.sha256(WEIGHTS.read_bytes()).hexdigest() == before


@pytest.mark.slow
def test_it_builds_a_healed_artifact(tmp_path: Path) -> None:
    said = run("heal.py", "--quick", "--out", str(tmp_path), cache=tmp_path / "cache")
    fp32 = float(said.split("fp32: ")[1].split()[0])
    assert 3 < fp32 < 4.5, "the weights know the text"
    assert "decoder in int4: " in said and "healed in int4: " in said
    model = onnx.load(tmp_path / "healed-cpu-int4" / "model.onnx")
    kinds = [node.op_type for node in model.graph.node]
    adapters = [node for node in model.graph.node if ".adapter." in node.name]
    assert kinds.count("MatMulNBits") == 17  # query, key and value are one, as gate and up are
    assert len(adapters) == 2 * 28


def run(script: str, *arguments: str, cache: Path | None = None) -> str:
    place = {} if cache is None else {"OPTKIT_CACHE": str(cache)}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / script), *arguments],
        capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **place},
    )  # fmt: skip
    return done.stdout
