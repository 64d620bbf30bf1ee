"""The example of a ViT in INT4: its weights, and its three steps."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.numpy import load_file

from optkit.ground import user_code

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "06_vit_int4"


def test_weights_are_small_and_recognise_held_out_digits() -> None:
    weights = FOLDER / "weights.safetensors"
    assert weights.stat().st_size < 100_000
    assert {array.dtype.name for array in load_file(weights).values()} == {"float16"}
    example = user_code.load_module(FOLDER / "quantize.py")
    images, held_out, labels = example.digits()
    assert (len(images), len(held_out)) == (899, 898)
    with torch.no_grad():
        found = example.trained_in_float()(held_out).argmax(1).numpy()
    assert (found == labels).mean() > 0.95


@pytest.mark.slow
def test_both_builds_pass_and_the_training_does_not_lose(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, FOLDER / "quantize.py", "--out", tmp_path, "--steps", "40"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = dict(re.findall(r"^(PTQ|QAT): top-1 .*?, ([\d.]+) dB, gate: pass$", done.stdout, re.M))
    assert lines.keys() == {"PTQ", "QAT"}
    assert float(lines["QAT"]) > float(lines["PTQ"]) - 1
    assert len(list(tmp_path.glob("vit-*-cpu-int4"))) == 2
