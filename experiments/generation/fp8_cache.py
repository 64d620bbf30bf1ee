"""What TensorRT-RTX makes of attention with a key-value cache in FP8 (E4M3), beside one in FP16.

The kernels, and what they read and write. It compiles for compute capability 8.9, without a GPU:

    python experiments/generation/fp8_cache.py

The cache is an input and an output of the graph. New rows are quantized with a scalar scale, and
the attention reads the dequantized cache:

    codes = Concat(past, Q(new))     y = attention(q, DQ(codes))

in three forms: repeated key heads and two products, as exporters write it; the same with Q/DQ at
the queries and after the softmax too; and Attention of opset 23, which takes fewer key heads.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import tensorrt_rtx as trt
from onnx import ModelProto, TensorProto, helper, numpy_helper

HEADS, GROUPS, SIZE, NEW, PAST = 32, 8, 128, 64, 1024
HALF, EIGHT = TensorProto.FLOAT16, TensorProto.FLOAT8E4M3FN


class Log(trt.ILogger):
    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self.rows: list[tuple[str, str]] = []

    def log(self, severity: trt.ILogger.Severity, text: str) -> None:
        self.rows.append((severity.name, text))


LOG = Log()


def network(form: str, *, eight: bool) -> ModelProto:
    kind = EIGHT if eight else HALF
    declared = [("q", HALF, HEADS, "s"), ("k", HALF, GROUPS, "s"), ("v", HALF, GROUPS, "s"),
                ("pk", kind, GROUPS, "p"), ("pv", kind, GROUPS, "p")]  # fmt: skip
    inputs = [helper.make_tensor_value_info(n, t, [1, c, a, SIZE]) for n, t, c, a in declared]
    inputs.append(helper.make_tensor_value_info("mask", HALF, [1, 1, "s", "t"]))
    outputs = [helper.make_tensor_value_info("y", HALF, [1, HEADS, "s", SIZE])]
    outputs += [helper.make_tensor_value_info(n, kind, [1, GROUPS, "t", SIZE]) for n in
                ("nk", "nv")]  # fmt: skip
    nodes, constants = [], {}

    def add(op: str, names: list[str], out: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, names, [out], name=out, **attributes))
        return out

    def quantized(name: str, scale: float) -> str:
        constants[f"{name}_s"] = np.array(scale, np.float16)
        constants[f"{name}_z"] = np.zeros((), ml_dtypes.float8_e4m3fn)
        return add("QuantizeLinear", [name, f"{name}_s", f"{name}_z"], f"{name}_codes")

    def floats(codes: str, name: str) -> str:
        return add("DequantizeLinear", [codes, f"{name}_s", f"{name}_z"], f"{name}_floats")

    cache = {}
    for name in "kv":
        new = quantized(name, 0.05) if eight else name
        whole = add("Concat", [f"p{name}", new], f"n{name}", axis=2)
        cache[name] = floats(whole, name) if eight else whole
    if form == "Attention":
        add("Attention", ["q", cache["k"], cache["v"], "mask"], "y", scale=SIZE**-0.5)
    else:
        constants |= {"axis": np.array([2]), "wide": np.array([1, 1, HEADS // GROUPS, 1, 1]),
                      "flat": np.array([1, HEADS, -1, SIZE]),
                      "scale": np.array(SIZE**-0.5, np.float16)}  # fmt: skip
        for name in "kv":
            add("Unsqueeze", [cache[name], "axis"], f"{name}1")
            add("Expand", [f"{name}1", "wide"], f"{name}2")
            add("Reshape", [f"{name}2", "flat"], f"{name}3")
        every = form == "products in FP8"
        query = floats(quantized("q", 0.05), "q") if every else "q"
        add("Transpose", ["k3"], "k4", perm=[0, 1, 3, 2])
        add("Mul", [add("MatMul", [query, "k4"], "scores"), "scale"], "scaled")
        add("Softmax", [add("Add", ["scaled", "mask"], "masked")], "weights", axis=-1)
        weights = floats(quantized("weights", 1 / 448), "weights") if every else "weights"
        add("MatMul", [weights, "v3"], "y")
    held = [
        helper.make_tensor(n, EIGHT, [], x.tobytes(), raw=True)
        if x.dtype == ml_dtypes.float8_e4m3fn else numpy_helper.from_array(x, n)
        for n, x in constants.items()
    ]  # fmt: skip
    graph = helper.make_graph(nodes, "g", inputs, outputs, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def compiled(model: ModelProto) -> dict[str, object]:
    """The kernels with the data types of what they read and write, and the scratch memory."""
    LOG.rows.clear()
    builder = trt.Builder(LOG)
    made = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(made, LOG)
    if not parser.parse(model.SerializeToString()):
        return {"refused": parser.get_error(0).desc()}
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    profile = builder.create_optimization_profile()
    for name, heads in (("q", HEADS), ("k", GROUPS), ("v", GROUPS)):
        profile.set_shape(name, *((1, heads, rows, SIZE) for rows in (1, 1, NEW)))
    for name in ("pk", "pv"):
        profile.set_shape(name, *((1, GROUPS, rows, SIZE) for rows in (1, PAST // 2, PAST)))
    profile.set_shape("mask", (1, 1, 1, 2), (1, 1, 1, PAST // 2 + 1), (1, 1, NEW, PAST + NEW))
    config.add_optimization_profile(profile)
    if builder.build_serialized_network(made, config) is None:
        return {"refused": [text for severity, text in LOG.rows if severity == "ERROR"]}
    layers = next(text for _, text in LOG.rows if text.startswith("Layers:"))
    scratch = next(text for _, text in LOG.rows if text.startswith("Max Scratch Memory"))
    kernels = [_kernel(line) for line in layers.split("\n\nI/O Tensors:")[0].splitlines()[1:]]
    return {"scratch_bytes": int(scratch.split()[3]), "kernels": [k for k in kernels if k]}


def _kernel(line: str) -> str | None:
    """name: what it reads → what it writes"""
    start, end = line.find(", Inputs: "), line.find(", TacticName: ")
    middle = line.find(", Outputs: ", start)
    name = line[len("Name: ") : line.find(", LayerType")]
    sides = [_values(line[start:middle]), _values(line[middle:end])]
    return f"{name}: {', '.join(sides[0])} → {', '.join(sides[1])}" if any(sides) else None


def _values(text: str) -> list[str]:
    found = re.findall(r"Dimensions: \[([^\]]*)\][^}]*?Datatype: (\w+)", text)
    return [f"{dtype} [{dims}]" for dims, dtype in found]


def main() -> None:
    forms, left_out = ("products", "products in FP8", "Attention"), ("products in FP8", "FP16")
    found = {
        "tensorrt_rtx": trt.__version__, "compute_capability": "8.9", "heads": HEADS,
        "kv_heads": GROUPS, "head_size": SIZE, "past": PAST, "new": NEW,
        "engines": [
            {"form": form, "cache": cache, **compiled(network(form, eight=cache == "FP8"))}
            for form in forms for cache in ("FP16", "FP8") if (form, cache) != left_out
        ],
    }  # fmt: skip
    text = json.dumps(found, indent=1, ensure_ascii=False)
    Path(__file__).with_suffix(".json").write_text(f"{text}\n")
    print(text)


if __name__ == "__main__":
    main()
