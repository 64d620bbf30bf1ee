"""What GPTAQ gains in builds in INT4, and what time it takes.

    python experiments/fourbit/in_order.py SCRATCH [NAME ...] [--peers PEERS] [--samples 32 128 256]
        [--precision int4]

`optkit quantize` of a digits ViT, of a decoder of bytes and, with PEERS (folder
of `experiments/peers/run.py --root`), of its workload w4, with the efforts `balanced` (GPTQ) and
`best` (GPTAQ), and for w4 also with zero points. The artifacts run with the kernels of this CPU,
which round activations to 8 bits. A row has the SQNR of the outputs on held-out samples, what the
row gains over `balanced` with the 95 % interval of a paired bootstrap over samples, and the CPU
seconds of the whole command.

Writes in_order.json beside itself; rows that are there are kept.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cases
import numpy as np
import onnxruntime
import torch
from cases import Case
from learned import gain

from optkit.qat.agreement import sqnr

FILE = Path(__file__).with_suffix(".json")
COMMAND = "import sys; from optkit.cli import main; sys.exit(main())"
WAYS = {
    "balanced": ["quantization.effort=balanced"],
    "best": ["quantization.effort=best"],
    "zero points": ["quantization.placement.zero_points=true"],
    "zero points, best": ["quantization.placement.zero_points=true", "quantization.effort=best"],
}
RECIPE = "name: study\naxes: {batch: {min: 1, opt: 8, max: 32}}\n"


@dataclass(frozen=True)
class Study:
    """An ONNX file, and arrays of its only input: for calibration, and held out."""

    model: Path
    calibration: np.ndarray
    test: np.ndarray


def exported(case: Case, calibration: np.ndarray, folder: Path) -> Study:
    test = np.concatenate([part[0].numpy() for part in case.test])
    place = folder / "model.onnx"
    shapes = ({0: torch.export.Dim("batch")},)
    sample = torch.from_numpy(calibration[:2])
    torch.onnx.export(case.net, (sample,), str(place), dynamic_shapes=shapes, dynamo=True)
    return Study(place, calibration, test)


def digits_vit(folder: Path) -> Study:
    case = cases.digits_vit()
    from sklearn.datasets import load_digits

    images = (load_digits().images[:1024, None] / 16).astype(np.float32)
    return exported(case, images, folder)


def bytes_decoder(folder: Path) -> Study:
    case = cases.bytes_decoder()
    import decoder

    windows = torch.cat([*decoder.calibration(256)]).numpy()
    return exported(case, windows, folder)


def w4(peers: Path) -> Study:
    models = peers / "models"
    with np.load(models / "w4.npz") as data:
        return Study(
            models / "w4.onnx", data["calibration.input_ids"], data["test.input_ids"][:100]
        )


def quantized(
    study: Study, folder: Path, samples: int, precision: str, settings: list[str]
) -> tuple[Path, float]:
    """The artifact's graph, and the CPU seconds of the command."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "recipe.yaml").write_text(RECIPE)
    name = _session(study.model).get_inputs()[0].name
    np.savez(folder / "samples.npz", **{name: study.calibration[:samples]})  # type: ignore[arg-type]
    command = [
        sys.executable, "-c", COMMAND, "quantize", str(study.model), "--target", "cpu",
        "--precision", precision, "--recipe", str(folder / "recipe.yaml"),
        "--calibration", str(folder / "samples.npz"), "--cache", str(folder / "cache"),
        "--out", str(folder / "out"), "--set", f"calibration.samples={samples}",
        *(word for setting in settings for word in ("--set", setting)),
    ]  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return folder / "out" / "model.onnx", after.ru_utime - before.ru_utime


def outputs(model: Path, test: np.ndarray) -> np.ndarray:
    session = _session(model)
    name = session.get_inputs()[0].name
    return np.concatenate(
        [session.run(None, {name: x})[0] for x in np.split(test, range(8, len(test), 8))]
    )


def _session(model: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def measure(
    study: Study,
    name: str,
    samples: int,
    precision: str,
    folder: Path,
    rows: list[dict[str, object]],
) -> None:
    exact = outputs(study.model, study.test)
    plain: dict[bool, np.ndarray] = {}
    for way, settings in WAYS.items():
        zero_points = way.startswith("zero")
        if zero_points and name != "w4":
            continue
        model, seconds = quantized(study, folder, samples, precision, settings)
        found = outputs(model, study.test)
        before = plain.setdefault(zero_points, found)
        row = {
            "model": name, "precision": precision, "samples": samples, "way": way,
            "sqnr_db": sqnr(exact, found), "gain_db": gain(exact, before, found),
            "cpu_seconds": seconds,
        }  # fmt: skip
        rows[:] = [
            one
            for one in rows
            if any(one[k] != row[k] for k in ("model", "precision", "samples", "way"))
        ]
        rows.append(row)
        print(json.dumps(row), flush=True)
        FILE.write_text(json.dumps({"evidence": "measured", "rows": rows}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="GPTAQ in builds.")
    parser.add_argument("scratch", type=Path)
    parser.add_argument("names", nargs="*", default=["vit", "bytes"], help="vit, bytes, w4")
    parser.add_argument("--peers", type=Path, help="the folder of experiments/peers/run.py --root")
    parser.add_argument("--samples", type=int, nargs="+", default=[32, 128, 256])
    parser.add_argument("--precision", default="int4", choices=["int4", "int2", "nf4"])
    asked = parser.parse_args()
    asked.scratch.mkdir(parents=True, exist_ok=True)
    rows = json.loads(FILE.read_text())["rows"] if FILE.exists() else []
    studies: dict[str, Callable[[], Study]] = {
        "vit": lambda: digits_vit(asked.scratch), "bytes": lambda: bytes_decoder(asked.scratch),
        "w4": lambda: w4(asked.peers),
    }  # fmt: skip
    for name in asked.names:
        study = studies[name]()
        for samples in asked.samples:
            measure(study, name, samples, asked.precision, asked.scratch / "build", rows)


if __name__ == "__main__":
    main()
