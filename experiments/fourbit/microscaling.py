"""MXFP8 and MXFP4 beside NVFP4: what the formats keep, and what TensorRT-RTX does with them.

    python experiments/fourbit/microscaling.py [--threads 2]

Microscaling formats have blocks of 32 with a power of two as scale (OCP Microscaling Formats v1.0:
2^(floor(log2 max|x|) - emax), elements saturate). All linear layers of a digits ViT and of a
decoder of bytes are rounded to nearest, weights alone and with activations (whose scales are
computed at run time), in float32. `searched`: the power of two with the least squared error.

`compiled`: one product [64, 256] × [256, 512] as TensorRT's operators for these formats describe
it, compiled by TensorRT-RTX for compute capability 12.0: the types of the inputs of each layer. A
product that multiplies in the format has a gemm that reads it.

Writes microscaling.json beside this file.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from cases import Case, bytes_decoder, digits_vit, observed
from layer_inputs import hooked
from onnx import ModelProto, TensorProto, helper, numpy_helper
from torch import Tensor

from optkit.precisions import PRECISIONS, NumberFormat
from optkit.qat.agreement import sqnr
from optkit.quantization.numerics import formats, scales
from optkit.quantization.qdq import dynamic
from optkit.quantization.rounding.rtn import round_to_nearest

BLOCK = 32
LARGEST_EXPONENT = {"float8e4m3fn": 8, "float4e2m1": 2}
MX = {
    "MXFP8": NumberFormat("float8e4m3fn", "block", symmetric=True, block_size=BLOCK),
    "MXFP4": NumberFormat("float4e2m1", "block", symmetric=True, block_size=BLOCK),
}
NVFP4 = PRECISIONS["nvfp4"].weights or NotImplemented
Rounding = Callable[[np.ndarray], np.ndarray]
"""float32 [..., K] → what the format holds of it, with blocks along the last axis."""


def microscaled(x: np.ndarray, fmt: NumberFormat, shifts: tuple[int, ...] = (0,)) -> np.ndarray:
    """x [..., K] as the format holds it; K is a multiple of the block. `shifts`: the exponents of
    scales that are tried, beside that of the specification."""
    blocks = x.astype(np.float32).reshape(*x.shape[:-1], -1, BLOCK)
    peak = np.abs(blocks).max(axis=-1, keepdims=True)
    exponent = np.frexp(peak)[1] - 1 - LARGEST_EXPONENT[fmt.dtype]
    best, least = blocks, np.full(peak.shape, np.inf)
    for shift in shifts:
        scale = np.ldexp(np.float32(1), np.clip(exponent + shift, -127, 127))
        held = formats.nearest(blocks / scale, fmt) * scale
        lost = np.square(held - blocks).sum(axis=-1, keepdims=True)
        best, least = np.where(lost < least, held, best), np.minimum(lost, least)
    return best.reshape(x.shape)


def measured(case: Case) -> list[dict[str, object]]:
    exact = np.concatenate([part.ravel() for part in case.outputs()])
    _, largest = observed(case)
    layers = case.layers()
    floats = {name: part.weight.detach().clone() for name, part in layers.items()}

    def nvfp4(w: np.ndarray) -> np.ndarray:
        columns = np.ascontiguousarray(w.T)
        return round_to_nearest(columns, NVFP4, np.float32, search="mse").dequantize().T

    def in_blocks(fmt: NumberFormat, *shifts: int) -> Rounding:
        return lambda x: microscaled(x, fmt, (0, *shifts))

    cases: list[tuple[str, Rounding, Rounding | None]] = [
        ("MXFP8", in_blocks(MX["MXFP8"]), in_blocks(MX["MXFP8"])),
        ("MXFP4", in_blocks(MX["MXFP4"]), in_blocks(MX["MXFP4"])),
        ("MXFP4, searched", in_blocks(MX["MXFP4"], -1, 1), in_blocks(MX["MXFP4"])),
        ("NVFP4, searched", nvfp4, None),
    ]
    rows: list[dict[str, object]] = []
    for name, of_weights, of_activations in cases:

        def rounded(layer: str, x: Tensor, chosen: Rounding | None = of_activations) -> Tensor:
            if chosen is not None:
                return torch.from_numpy(chosen(x.numpy()))
            outer = float(scales.outer_scale(largest[layer]))
            return torch.from_numpy(dynamic.rounded(x.numpy(), outer, NVFP4))

        for layer, part in layers.items():
            held = of_weights(floats[layer].numpy())
            part.weight.data = torch.from_numpy(np.ascontiguousarray(held))
        alone = sqnr(exact, np.concatenate([part.ravel() for part in case.outputs()]))
        with hooked(layers, rounded):
            both = sqnr(exact, np.concatenate([part.ravel() for part in case.outputs()]))
        rows.append({"model": case.name, "format": name, "outputs_db": round(alone, 2),
                     "with_activations_db": round(both, 2)})  # fmt: skip
        print(json.dumps(rows[-1]), flush=True)
    return rows


def product(fmt: NumberFormat, carrier: int, *, by_rows: bool) -> ModelProto:
    """x [64, 256] times a weight [256, 512], both in this format. `by_rows`: the weight is stored
    as [512, 256] and transposed after it is dequantized."""
    code = {"float8e4m3fn": TensorProto.FLOAT8E4M3FN, "float4e2m1": TensorProto.FLOAT4E2M1}
    kind = code[fmt.dtype]
    rng = np.random.default_rng(0)
    w = rng.standard_normal((512, 256 // BLOCK, BLOCK)).astype(np.float32)
    exponent = np.frexp(np.abs(w).max(axis=2))[1] - 1 - LARGEST_EXPONENT[fmt.dtype]
    codes = formats.encode(w / np.ldexp(np.float32(1), exponent)[..., None], fmt).reshape(512, 256)
    stored = (exponent + 127).astype(np.uint8)  # E8M0
    if not by_rows:
        codes, stored = np.ascontiguousarray(codes.T), np.ascontiguousarray(stored.T)
    raw = codes.view(np.uint8).reshape(-1)
    raw = raw[::2] | raw[1::2] << 4 if fmt.bits == 4 else raw

    def dequantize(source: str, scale: str, result: str, axis: int) -> object:
        return helper.make_node(
            "TRT_MXFP8DequantizeLinear", [source, scale], [result], domain="trt",
            axis=axis, block_size=BLOCK, output_dtype=carrier,
        )  # fmt: skip

    nodes = [
        helper.make_node("TRT_MXFP8DynamicQuantize", ["x"], ["codes", "scales"], domain="trt",
                         axis=-1, block_size=BLOCK, output_dtype=kind),
        dequantize("codes", "scales", "held", -1),
        dequantize("w", "w_scales", "weight", int(by_rows)),
    ]  # fmt: skip
    if by_rows:
        nodes.append(helper.make_node("Transpose", ["weight"], ["turned"], perm=[1, 0]))
    nodes.append(helper.make_node("MatMul", ["held", "turned" if by_rows else "weight"], ["y"]))
    weights = [helper.make_tensor("w", kind, codes.shape, raw.tobytes(), raw=True),
               numpy_helper.from_array(stored, "w_scales")]  # fmt: skip
    ends = [helper.make_tensor_value_info(name, carrier, shape)
            for name, shape in (("x", [64, 256]), ("y", [64, 512]))]  # fmt: skip
    graph = helper.make_graph(nodes, "product", ends[:1], ends[1:], weights)
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("trt", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=11)


def compiled(model: ModelProto) -> list[str] | str:
    """The layers of the engine for compute capability 12.0, each with the types of its tensors, or
    why there is none."""
    import tensorrt_rtx as trt

    lines: list[str] = []

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: object, message: str) -> None:
            lines.extend(message.splitlines())

    log = Log()
    builder = trt.Builder(log)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, log)
    if not parser.parse(model.SerializeToString()):
        return str(parser.get_error(0).desc())
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM120, 0)
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    builder.build_serialized_network(network, config)
    found = []
    for line in lines:
        kind = re.search(r"LayerType: (\w+)", line)
        if kind:
            inputs = line.split("Outputs: ")[0]
            dtypes = ", ".join(re.findall(r"Datatype: (\w+)", inputs))
            found.append(f"{kind[1]}: {dtypes}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Microscaling formats.")
    parser.add_argument("--threads", type=int, default=2)
    torch.set_num_threads(parser.parse_args().threads)
    rows = [row for case in (digits_vit(), bytes_decoder()) for row in measured(case)]
    engines: dict[str, object] = {}
    for name, fmt in MX.items():
        for carrier in (TensorProto.FLOAT16, TensorProto.FLOAT):
            for by_rows in (False, True):
                form = f"{name}, {TensorProto.DataType.Name(carrier)}, {'NK' if by_rows else 'KN'}"
                if carrier == TensorProto.FLOAT and by_rows:
                    continue
                engines[form] = compiled(product(fmt, carrier, by_rows=by_rows))
                print(form, engines[form], flush=True)
    import tensorrt_rtx

    told = {"rows": rows, "tensorrt_rtx": tensorrt_rtx.__version__, "compiled": engines}
    Path(__file__).with_suffix(".json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
