"""INT4 of a decoder with planted outlier channels, with and without smoothing, beside the same
decoder without them.

    python experiments/outliers/run.py SCRATCH MODEL.onnx DATA.npz [--size 300]

MODEL and DATA are those of the workload w4 (`experiments/peers/workloads.py`). Three channels of
every value whose factors can be folded become SIZE times as large, and the weights that read them
as much smaller: the function stays. Each form is quantized by one command of optkit, then compared
with FP32 on 200 windows: SQNR, the same most probable token, and texts that 24 prompts of 64 tokens
continue greedily by 32. Writes results.json beside itself (about ten minutes on two cores).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnxruntime

from optkit import graph
from optkit.quantization.rescaling import groups
from optkit.quantization.rescaling.channels import classes
from optkit.quantization.rescaling.fold import FoldPath

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RECIPE = ROOT / "experiments" / "peers" / "recipes" / "w4.yaml"
COMMAND = "import sys; from optkit.cli import main; sys.exit(main())"
PLANTED, WINDOWS, PROMPTS, PROMPT, MORE = 3, 200, 24, 64, 32


@dataclass(frozen=True)
class Measured:
    """Beside the model without planted channels in FP32. `same_text`: of the greedy tokens before
    the first difference, their mean."""

    sqnr_db: float
    same_token: float
    same_text: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scratch", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--size", type=float, default=300.0)
    asked = parser.parse_args()
    scratch = asked.scratch.absolute()
    scratch.mkdir(parents=True, exist_ok=True)
    outliers = scratch / "planted.onnx"
    count = plant(asked.model, outliers, asked.size)
    windows = np.load(asked.data)["test.input_ids"][:WINDOWS]
    exact = Outputs(asked.model, windows)
    found = {"FP32, planted": judged(Outputs(outliers, windows), exact)}
    for name, source in (("plain", asked.model), ("planted", outliers)):
        for smooth in ("off", "auto"):
            file = quantized(source, asked.data, smooth, scratch)
            found[f"INT4, {name}, smooth {smooth}"] = judged(Outputs(file, windows), exact)
    rows = {name: asdict(measured) for name, measured in found.items()}
    made = {"values": count, "size": asked.size, "onnxruntime": onnxruntime.__version__, **rows}
    (HERE / "results.json").write_text(json.dumps(made, indent=1) + "\n")
    print(json.dumps(made, indent=1))


def plant(source: Path, out: Path, size: float) -> int:
    """Write the model with outlier channels; returns in how many values they are."""
    model = graph.infer_shapes(graph.load(source))
    weighted = {str(n.name) for n in model.graph if graph.constant_weight(n) is not None}
    rng, count = np.random.default_rng(0), 0
    for group in groups.find_groups(model, weighted):
        path = groups.fold_path(group)
        if not isinstance(path, FoldPath):
            continue
        factors = np.ones(group.channels, np.float32)
        factors[rng.choice(group.channels, PLANTED, replace=False)] = 1 / size
        groups.fold(group, path, factors[classes(group.channels, path.ties)])
        count += 1
    graph.save(model, out)
    return count


def quantized(source: Path, data: Path, smooth: str, scratch: Path) -> Path:
    out = scratch / f"{source.stem}-{smooth}"
    arrays = data.absolute()
    words = [
        "quantize", source, "--recipe", RECIPE, "--target", "cpu", "--precision", "int4",
        "--set", f"calibration.args.path={arrays}", "--set", f"eval.args.path={arrays}",
        "--set", "calibration.samples=32", "--set", f"quantization.smooth={smooth}", "--out", out,
    ]  # fmt: skip
    variables = os.environ | {"OPTKIT_CACHE": str(scratch / "cache"), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", COMMAND, *map(str, words)], env=variables, check=True)
    return next(out.glob("*.onnx"))


class Outputs:
    """The logits of a decoder without a cache for the windows, and its greedy texts."""

    def __init__(self, file: Path, windows: np.ndarray) -> None:
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session = onnxruntime.InferenceSession(
            file, options, disabled_optimizers=["MatMulAddFusion"]
        )
        parts = np.array_split(windows, max(len(windows) // 4, 1))
        self.logits = [session.run(None, {"input_ids": part})[0] for part in parts]
        text = windows[:PROMPTS].copy()
        for place in range(PROMPT, PROMPT + MORE):
            text[:, place:] = 0
            logits = session.run(None, {"input_ids": text})[0]
            text[:, place] = logits[:, place - 1].argmax(axis=-1)
        self.texts = text[:, PROMPT : PROMPT + MORE]


def judged(found: Outputs, exact: Outputs) -> Measured:
    pairs = list(zip(exact.logits, found.logits, strict=True))
    noise = sum(np.square(b - a, dtype=np.float64).sum() for a, b in pairs)
    signal = sum(np.square(a, dtype=np.float64).sum() for a, _ in pairs)
    same = np.mean([(a.argmax(-1) == b.argmax(-1)).mean() for a, b in pairs])
    before = np.logical_and.accumulate(found.texts == exact.texts, axis=1).sum(axis=1)
    return Measured(
        round(10 * float(np.log10(signal / noise)), 2), round(float(same), 4),
        round(float(before.mean()), 2),
    )  # fmt: skip


if __name__ == "__main__":
    main()
