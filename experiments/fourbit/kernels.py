"""Milliseconds of ONNX Runtime's MatMulNBits by bits, size of blocks and accuracy level.

    python experiments/fourbit/kernels.py

One product with a weight of 1024 × 1024, for 1 and 128 rows, on one thread: the best of 20 runs.
`error`: against the float64 product with the dequantized weight, relative, for one row.

Writes kernels.json beside this file.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from optkit.precisions import NumberFormat
from optkit.quantization.qdq import nbits

SIZE, RUNS = 1024, 20


def product(bits: int, block: int, accuracy: int) -> tuple[onnx.ModelProto, np.ndarray]:
    """The graph, and its weight [K, N] in float64."""
    rng = np.random.default_rng(0)
    fmt = NumberFormat("int8", "block", symmetric=True, limit_bits=bits, block_size=block)
    codes = rng.integers(-(1 << bits - 1), 1 << bits - 1, (SIZE, SIZE))
    scale = rng.uniform(0.01, 0.1, (SIZE, SIZE // block)).astype(np.float32)
    node = helper.make_node(
        "MatMulNBits", ["x", "codes", "scale"], ["y"], domain="com.microsoft",
        **nbits.attributes(SIZE, SIZE, bits, block, accuracy),
    )  # fmt: skip
    graph = helper.make_graph(
        [node], "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", SIZE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", SIZE])],
        [onnx.numpy_helper.from_array(nbits.pack(codes, fmt, block), "codes"),
         onnx.numpy_helper.from_array(scale, "scale")],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    weight = codes * np.repeat(scale, block, axis=1).astype(np.float64)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), weight.T


def row(bits: int, block: int, accuracy: int) -> dict[str, float]:
    model, weight = product(bits, block, accuracy)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found: dict[str, float] = {"bits": bits, "block_size": block, "accuracy_level": accuracy}
    for rows in (1, 128):
        x = np.random.default_rng(1).standard_normal((rows, SIZE)).astype(np.float32)
        y, expected = session.run(None, {"x": x})[0], x @ weight
        times = []
        for _ in range(RUNS):
            started = time.perf_counter()
            session.run(None, {"x": x})
            times.append(time.perf_counter() - started)
        found[f"ms_of_{rows}"] = 1000 * min(times)
        if rows == 1:
            found["error"] = float(np.linalg.norm(y - expected) / np.linalg.norm(expected))
    return found


def main() -> None:
    cases = [(bits, block, level) for bits in (4, 2) for level in (4, 0)
             for block in (16, 32, 64, 128)]  # fmt: skip
    rows = [row(*case) for case in cases]
    Path(__file__).with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
    for each in rows:
        print(each)


if __name__ == "__main__":
    main()
