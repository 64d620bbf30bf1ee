"""The most that kernels of this machine reach: products in FP32 and in integers, and memory.

    python experiments/speed/roof.py [--threads N]

A product of two square matrices in ONNX Runtime is bound by arithmetic, so the ratio of integers to
floats is the most that INT8 can gain in a model of large products. Copying an array that no cache
holds is bound by memory. Best of several runs, so that other processes change little.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

SIZE = 1024
_COPIED = 1 << 28  # bytes
_SECONDS = 3.0


@dataclass(frozen=True)
class Roof:
    """Billions of operations per second (a multiply-accumulate is two), and GB/s of reading and
    writing."""

    fp32: float
    int8: float
    memory: float

    @property
    def ratio(self) -> float:
        """How many times as fast as in FP32 a large product is in integers."""
        return self.int8 / self.fp32


def measured(threads: int) -> Roof:
    rng = np.random.default_rng(0)
    floats = rng.standard_normal((SIZE, SIZE)).astype(np.float32)
    weight = rng.integers(-64, 65, (SIZE, SIZE)).astype(np.int8)
    codes = rng.integers(0, 128, (SIZE, SIZE)).astype(np.uint8)
    operations = 2 * SIZE**3
    large = np.zeros(_COPIED // 8)
    target = np.empty_like(large)
    return Roof(
        fp32=operations / _least(_product("MatMul", floats, floats, threads)) / 1e9,
        int8=operations / _least(_product("MatMulInteger", codes, weight, threads)) / 1e9,
        memory=2 * large.nbytes / _least(lambda: np.copyto(target, large)) / 1e9,
    )


def _product(op: str, x: np.ndarray, w: np.ndarray, threads: int) -> Callable[[], object]:
    """A run of x · w, with w as a constant."""
    result = TensorProto.FLOAT if op == "MatMul" else TensorProto.INT32
    inputs = [helper.make_tensor_value_info(
        "x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)]  # fmt: skip
    outputs = [helper.make_tensor_value_info("y", result, [SIZE, SIZE])]
    node = helper.make_node(op, ["x", "w"], ["y"])
    graph = helper.make_graph([node], op, inputs, outputs, [numpy_helper.from_array(w, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return lambda: session.run(None, {"x": x})


def _least(run: Callable[[], object]) -> float:
    """Seconds of the quickest run."""
    least, end = float("inf"), time.monotonic() + _SECONDS
    while time.monotonic() < end:
        start = time.perf_counter()
        run()
        least = min(least, time.perf_counter() - start)
    return least


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    found = measured(parser.parse_args().threads)
    print(json.dumps({**asdict(found), "ratio": found.ratio}, indent=1))
