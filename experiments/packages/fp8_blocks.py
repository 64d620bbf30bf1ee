"""FP8 in blocks of 128 × 128: what TensorRT-RTX and ONNX Runtime make of such a product.

    python experiments/packages/fp8_blocks.py --out experiments/packages/fp8_blocks.json

One MatMul [64, 512] × [512, 512] in FP16 with weights in E4M3, compiled for two architectures
without a GPU: a scale for each channel, or for 128 × 128 (DequantizeLinear with block_size 128,
each scale repeated over 128 channels); the input in FP16, in E4M3 with a constant scale, or with a
scale for each token and 128 numbers. Each row has the layers that the builder's log names.
"""

from __future__ import annotations

import argparse
import json
from datetime import date
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import tensorrt_rtx as trt
from onnx import TensorProto, helper, numpy_helper

from optkit.craft.backends.layer_list import parse_layers

_ROWS, _K, _N, _BLOCK, _LARGEST = 64, 512, 512, 128, 448
_E4M3 = TensorProto.FLOAT8E4M3FN
_INPUTS, _SCALES = ("floats", "one scale", "groups of 128"), ("channel", "128 x 128")


class _Log(trt.ILogger):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self.said: list[str] = []

    def log(self, severity: Any, message: str) -> None:
        self.said.append(message)


def _e4m3(name: str, numbers: np.ndarray) -> onnx.TensorProto:
    codes = numbers.astype(ml_dtypes.float8_e4m3fn)
    return helper.make_tensor(name, _E4M3, codes.shape, codes.tobytes(), raw=True)


def _weight(scales: str) -> tuple[list[onnx.TensorProto], onnx.NodeProto]:
    w = np.random.default_rng(0).normal(size=(_K, _N)).astype(np.float32)
    if scales == "channel":
        scale = (np.abs(w).max(0) / _LARGEST).astype(np.float16)
        by_row, given = scale[None], {"axis": 1}
    else:
        blocks = np.abs(w).reshape(_K // _BLOCK, _BLOCK, _N // _BLOCK, _BLOCK).max((1, 3))
        scale = np.repeat((blocks / _LARGEST).astype(np.float16), _BLOCK, axis=1)
        by_row, given = np.repeat(scale, _BLOCK, axis=0), {"axis": 0, "block_size": _BLOCK}
    stored = [_e4m3("w", w / by_row.astype(np.float32)), numpy_helper.from_array(scale, "ws")]
    return stored, helper.make_node("DequantizeLinear", ["w", "ws"], ["wd"], **given)


def _input(form: str) -> tuple[list[onnx.TensorProto], list[onnx.NodeProto], str]:
    if form == "floats":
        return [], [], "x"
    node = helper.make_node
    if form == "one scale":
        stored = [numpy_helper.from_array(np.float16(4 / _LARGEST), "xs"), _e4m3("z", np.zeros(()))]
        given, nodes = {}, []
    else:
        shapes = {"cut": np.array([_ROWS, _K // _BLOCK, _BLOCK]), "last": np.array([2])}
        numbers = {"step": np.float16(1 / _LARGEST), "least": np.float16(1e-4)}
        stored = [numpy_helper.from_array(each, key) for key, each in {**shapes, **numbers}.items()]
        stored.append(_e4m3("z", np.zeros((_ROWS, _K // _BLOCK))))
        given = {"axis": 1, "block_size": _BLOCK}
        nodes = [
            node("Reshape", ["x", "cut"], ["xc"]), node("Abs", ["xc"], ["xa"]),
            node("ReduceMax", ["xa", "last"], ["xm"], keepdims=0),
            node("Mul", ["xm", "step"], ["x0"]), node("Max", ["x0", "least"], ["xs"]),
        ]  # fmt: skip
    nodes.append(node("QuantizeLinear", ["x", "xs", "z"], ["xq"], **given))
    nodes.append(node("DequantizeLinear", ["xq", "xs", "z"], ["xd"], **given))
    return stored, nodes, "xd"


def product(scales: str, form: str) -> onnx.ModelProto:
    weights, dequantize = _weight(scales)
    stored, nodes, x = _input(form)
    value = helper.make_tensor_value_info
    multiply = helper.make_node("MatMul", [x, "wd"], ["y"], name="product")
    ends = (
        [value("x", TensorProto.FLOAT16, [_ROWS, _K])],
        [value("y", TensorProto.FLOAT16, [_ROWS, _N])],
    )
    graph = helper.make_graph([*nodes, dequantize, multiply], "g", *ends, [*weights, *stored])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return model


def compiled(model: onnx.ModelProto, architecture: str) -> dict[str, Any]:
    log = _Log()
    builder = trt.Builder(log)
    typed = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = builder.create_network(typed)
    parser = trt.OnnxParser(network, log)
    if not parser.parse(model.SerializeToString()):
        return {"compiled": False, "error": parser.get_error(0).desc()}
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(trt.ComputeCapability, architecture), 0)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        return {"compiled": False, "error": next(one for one in log.said if "Error" in one)}
    text = next(one for one in log.said if one.lstrip().startswith("Layers:"))
    layers = [
        {
            "name": layer.name,
            **{
                part: [f"{one.dtype} {list(one.shape)}" for one in getattr(layer, part)]
                for part in ("inputs", "constants", "outputs")
            },
        }
        for layer in parse_layers(text, ["product"])
    ]
    return {"compiled": True, "bytes": len(bytes(plan)), "layers": layers}


def on_cpu(model: onnx.ModelProto) -> dict[str, Any]:
    """Whether ONNX Runtime runs it, and how far it is from the arithmetic that ONNX defines."""
    x = np.random.default_rng(1).normal(size=(_ROWS, _K)).astype(np.float16)
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString())
        found = session.run(None, {"x": x})[0].astype(np.float32)
    except Exception as error:
        return {"runs": False, "error": str(error)}
    arrays = {one.name: one for one in model.graph.initializer}
    raw = np.frombuffer(arrays["w"].raw_data, ml_dtypes.float8_e4m3fn).reshape(_K, _N)
    scale = numpy_helper.to_array(arrays["ws"]).astype(np.float32)
    w = raw.astype(np.float32) * np.repeat(np.atleast_2d(scale), _K // len(np.atleast_2d(scale)), 0)
    exact = x.astype(np.float32) @ w
    apart = float(np.sqrt(((found - exact) ** 2).mean() / (exact**2).mean()))
    return {"runs": True, "from_floats": apart}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows = []
    for scales in _SCALES:
        for form in _INPUTS:
            model = product(scales, form)
            row: dict[str, Any] = {"scales": scales, "inputs": form, "cpu": on_cpu(model)}
            row |= {each: compiled(model, each) for each in ("SM89", "SM120")}
            rows.append(row)
    made = {"date": str(date.today()), "tensorrt_rtx": trt.__version__,
            "onnxruntime": onnxruntime.__version__, "rows": rows}  # fmt: skip
    options.out.write_text(f"{json.dumps(made, indent=1)}\n")


if __name__ == "__main__":
    main()
