"""Peak resident memory of a real calibration: the same for few samples and for many."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import pytest

# its own most: ru_maxrss of a child begins with what its parent held
_CHILD = """
import re, sys
from pathlib import Path
import numpy as np
from optkit.craft.calibration import observe
from optkit.runtimes import SessionOptions, backend
from optkit.ground.statistics import Tap

def feeds(samples):
    random = np.random.default_rng(0)
    for _ in range(samples // 8):
        yield {"x": random.standard_normal((8, 64, 256), np.float32)}

options = SessionOptions(spinning=False, pooled=False)
with backend("onnxruntime").session(Path(sys.argv[1]), options) as session:
    taps = [Tap(info.name, -1, rows=True, moments=True) for info in session.outputs]
    observe(session, feeds(int(sys.argv[2])), taps, memory_bytes=1 << 29, progress=print)
print("peak", re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.slow
def test_peak_memory_is_the_same_for_128_and_2048_samples(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    nodes, weights = [], []
    for i in range(8):
        w = (random.standard_normal((256, 256)) / 11).astype(np.float32)
        weights.append(onnx.numpy_helper.from_array(w, f"w{i}"))
        nodes.append(onnx.helper.make_node("MatMul", [f"v{i}" if i else "x", f"w{i}"], [f"h{i}"]))
        nodes.append(onnx.helper.make_node("Relu", [f"h{i}"], [f"v{i + 1}"]))
    shape = ["batch", 64, 256]
    floats = onnx.TensorProto.FLOAT
    made = onnx.helper.make_graph(
        nodes,
        "g",
        [onnx.helper.make_tensor_value_info("x", floats, shape)],
        [onnx.helper.make_tensor_value_info(f"v{i}", floats, shape) for i in range(1, 9)],
        weights,
    )
    model = onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", 21)])
    model.ir_version = 10
    onnx.save(model, tmp_path / "model.onnx")

    def peak(samples: int) -> int:
        command = [sys.executable, "-c", _CHILD, str(tmp_path / "model.onnx"), str(samples)]
        quiet = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        told = subprocess.run(command, check=True, capture_output=True, text=True, env=quiet).stdout
        return int(told.split()[-1])

    # what one value alone would take, kept for all samples, is 120 MiB; bins that fill up take some
    assert peak(2048) < peak(128) + 16 * 1024  # KiB
