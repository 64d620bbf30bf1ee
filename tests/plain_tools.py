"""What plain tools say of a graph: the checker of the onnx library, and ONNX Runtime with its own
defaults (all optimizations, the CPU provider), which are not the sessions of optkit."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

# dtypes of which ONNX Runtime's CPU provider lacks products, casts or Q/DQ
FOR_TENSORRT = frozenset(
    {
        *("BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT8E8M0", "FLOAT4E2M1"),
        *("INT4", "UINT4", "INT2", "UINT2"),
    }
)


def accepted(path: Path) -> bool:
    """Whether ONNX Runtime loads the graph, which the checker takes with full type and shape
    inference. (The checker skips operators of other domains than ONNX's.) False: the graph has a
    dtype of FOR_TENSORRT, and ONNX Runtime has no kernel for it; such a graph is only checked. Any
    other refusal is raised."""
    with TemporaryDirectory() as folder:
        if len(list(path.parent.glob("*.data"))):  # the checker refuses hard links
            path = Path(shutil.copytree(path.parent, Path(folder) / "copy")) / path.name
        onnx.checker.check_model(str(path), full_check=True)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except (ort_errors.NotImplemented, ort_errors.InvalidGraph):
            if not FOR_TENSORRT & dtypes(path):
                raise
            return False
    return True


def dtypes(path: Path) -> set[str]:
    """The dtypes of the constants of a graph, of its casts and of the codes that it writes."""
    graph = onnx.load(path, load_external_data=False).graph
    numbers = {one.data_type for one in graph.initializer}
    for node in graph.node:
        numbers |= {one.i for one in node.attribute if one.name in ("to", "output_dtype")}
    return {onnx.TensorProto.DataType.Name(number) for number in numbers}
