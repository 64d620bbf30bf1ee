"""What zero points cost in ONNX Runtime's MatMulNBits: its time with them over its time without.

    python experiments/fourbit/zero_points.py [--seconds 3]
    build/avx2/bin/python experiments/fourbit/zero_points.py       the kernels for AVX2

Codes of 4 bits in blocks of 32, accuracy level 4, one thread. Both graphs run in turns, so that
other work on the machine slows both; the ratio is that of the least times. Weights stay in the
cache. The second command needs the environment of `make test-avx2`.

Adds its rows to zero_points.json beside this file, in the place of those of the same kind of CPU.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from optkit.devices import cpu
from optkit.quantization.qdq import nbits

BLOCK, RUNS = 32, 20
SIZES = ((320, 320), (384, 1024), (1024, 1024))


def product(k: int, n: int, *, zero_points: bool) -> onnxruntime.InferenceSession:
    rng, blocks = np.random.default_rng(0), k // BLOCK
    weights = {
        "codes": rng.integers(0, 256, (n, blocks, BLOCK // 2), dtype=np.uint8),
        "scale": rng.uniform(0.01, 0.1, (n, blocks)).astype(np.float32),
    }
    if zero_points:
        weights["zero_point"] = rng.integers(0, 256, (n, -(-blocks // 2)), dtype=np.uint8)
    node = helper.make_node(
        "MatMulNBits", ["x", *weights], ["y"], domain="com.microsoft",
        **nbits.attributes(n, k, 4, BLOCK, 4),
    )  # fmt: skip
    graph = helper.make_graph(
        [node], "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", n])],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def compared(k: int, n: int, rows: int, seconds: float) -> dict[str, float]:
    sessions = [product(k, n, zero_points=wanted) for wanted in (False, True)]
    feed = {"x": np.random.default_rng(1).standard_normal((rows, k)).astype(np.float32)}
    least = [float("inf")] * 2
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for index, session in enumerate(sessions):
            for _ in range(RUNS):
                started = time.perf_counter()
                session.run(None, feed)
                least[index] = min(least[index], time.perf_counter() - started)
    without, with_them = least
    return {"k": k, "n": n, "rows": rows, "ms_without": 1000 * without,
            "ms_with": 1000 * with_them, "ratio": with_them / without}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="The time of zero points in MatMulNBits.")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each pair")
    seconds = parser.parse_args().seconds
    path = Path(__file__).with_suffix(".json")
    found = json.loads(path.read_text()) if path.exists() else {}
    rows = [compared(k, n, rows, seconds) for k, n in SIZES for rows in (1, 8, 128)]
    found[str(cpu().kind)] = {
        "evidence": "measured", "onnxruntime": onnxruntime.__version__, "cpu": cpu().name,
        "rows": rows,
    }  # fmt: skip
    path.write_text(json.dumps(found, indent=1) + "\n")
    for each in rows:
        print(each)


if __name__ == "__main__":
    main()
