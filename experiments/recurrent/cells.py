"""What an LSTM with codes gains and loses beside one in floats.

    python experiments/recurrent/cells.py AMX --model encoder.onnx --samples mels.npz
    build/avx2/bin/python experiments/recurrent/cells.py AVX2 --model encoder.onnx --samples ...

The first argument names the instruction set that the interpreter sees. Speeds: one cell with random
weights on one thread, codes and floats in turn, the medians of the CPU time. Noise: each cell of
the model alone with codes (8 bits and 7 bits per row, and 8 bits with one scale per matrix), and
the model as ONNX Runtime's `quantize_dynamic` writes it. Writes cells.json beside itself.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnxruntime.quantization import QuantType, quantize_dynamic

from optkit.craft.quantization.qdq.coded_recurrences import quantize_recurrences
from optkit.facts.precisions import NumberFormat
from optkit.ground import graph
from optkit.ground.devices import cpu

RESULTS = Path(__file__).with_name("cells.json")
ROW = NumberFormat("int8", "channel", symmetric=True)
FORMATS = {
    "8 bits per row": ROW,
    "7 bits per row": replace(ROW, limit_bits=7),
    "8 bits per matrix": replace(ROW, granularity="tensor"),
}
# inputs, hidden units, steps, batch
CELLS = [(64, 64, 50, 1), (128, 128, 50, 1), (128, 128, 1, 1), (256, 256, 50, 1), (256, 256, 1, 1),
         (256, 256, 50, 8), (512, 512, 50, 1), (512, 512, 50, 8), (1024, 1024, 50, 1)]  # fmt: skip
_RUNS = 25


def session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def speed(folder: Path, inputs: int, hidden: int, steps: int, batch: int) -> dict[str, object]:
    random = np.random.default_rng(0)
    text = f"""<ir_version: 10, opset_import: ["" : 21]> g (float[{steps},{batch},{inputs}] x,
      float[1,{4 * hidden},{inputs}] w, float[1,{4 * hidden},{hidden}] r)
      => (float[{steps},1,{batch},{hidden}] y) {{
        [c] y = LSTM <hidden_size={hidden}> (x, w, r) }}"""
    model = ir.from_onnx_text(text)
    for value in list(model.graph.inputs)[1:]:
        model.graph.inputs.remove(value)
        numbers = random.uniform(-1, 1, value.shape.numpy()).astype(np.float32) / hidden**0.5
        value.const_value = ir.tensor(numbers, name=value.name)
        model.graph.register_initializer(value)
    paths = [folder / "float.onnx", folder / "codes.onnx"]
    graph.save(model, paths[0])
    quantize_recurrences(model, {"c": ROW})
    graph.save(model, paths[1])
    feed = {"x": random.standard_normal((steps, batch, inputs)).astype(np.float32)}
    taken: list[list[float]] = [[], []]
    sessions = [session(path) for path in paths]
    for _ in range(_RUNS):
        for one, times in zip(sessions, taken, strict=True):
            begun = time.thread_time()
            one.run(None, feed)
            times.append(1e3 * (time.thread_time() - begun))
    floats, codes = map(np.median, taken)
    sizes = {"inputs": inputs, "hidden": hidden, "steps": steps, "batch": batch}
    return {**sizes, "float_ms": round(floats, 3), "ratio": round(floats / codes, 2)}


def noise(folder: Path, source: Path, samples: Path) -> dict[str, object]:
    numbers = dict(np.load(samples))
    exact = session(source).run(None, numbers)[0]

    def decibels(path: Path) -> float:
        error = session(path).run(None, numbers)[0] - exact
        return round(float(10 * np.log10(np.square(exact).sum() / np.square(error).sum())), 1)

    found: dict[str, object] = {}
    cells = [str(node.name) for node in graph.load(source).graph if node.op_type == "LSTM"]
    for way, fmt in FORMATS.items():
        rows = {}
        for name in cells:
            model = graph.load(source)
            quantize_recurrences(model, {name: fmt})
            graph.save(model, folder / "cell.onnx")
            rows[name] = decibels(folder / "cell.onnx")
        found[way] = rows
    quantize_dynamic(source, folder / "peer.onnx", weight_type=QuantType.QInt8)
    return {**found, "quantize_dynamic": decibels(folder / "peer.onnx")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--samples", type=Path, required=True)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [speed(Path(folder), *sizes) for sizes in CELLS]
        left = noise(Path(folder), asked.model, asked.samples)
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known[asked.name] = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": cpu().name,
        "versions": {"onnxruntime": ort.__version__, "onnx": onnx.__version__},
        "speed": rows, "sqnr_db": left,
    }  # fmt: skip
    RESULTS.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
