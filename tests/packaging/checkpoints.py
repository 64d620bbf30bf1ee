"""A checkpoint of the format compressed-tensors beside its artifact: what readers find in it, and
what transformers computes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import transformers as hf
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from compressed_tensors.quantization import QuantizationConfig
from onnx import numpy_helper
from safetensors import safe_open
from safetensors.torch import save_file

from optkit.ground.artifact import Artifact
from tests.packaging import programs


def apart(one: np.ndarray, other: np.ndarray) -> float:
    """The root mean square of the difference, relative to that of the second."""
    return float(np.sqrt(((one - other) ** 2).mean() / (other**2).mean()))


def of_session(artifact: Artifact, ids: np.ndarray) -> np.ndarray:
    if any(info.name == "token_type_ids" for info in artifact.manifest.inputs):
        with artifact.session() as session:
            feed = {"input_ids": ids, "attention_mask": np.ones_like(ids),
                    "token_type_ids": np.zeros_like(ids)}  # fmt: skip
            return session.run(feed)["logits"]
    return programs.of_session(artifact, ids)


def of_transformers(folder: Path, ids: np.ndarray, *, dequantize: bool = False) -> np.ndarray:
    """The logits in FP32; with NVFP4 in BF16, in which the library computes it. `dequantize`: the
    weights become floats when they are loaded, as is needed for zero points."""
    config = json.loads((folder / "config.json").read_text())
    formats = {each["format"] for each in config["quantization_config"]["config_groups"].values()}
    dtype = torch.bfloat16 if "nvfp4-pack-quantized" in formats else torch.float32
    cls = getattr(hf, config["architectures"][0])
    given = {"quantization_config": hf.CompressedTensorsConfig(dequantize=True)}
    model, info = cls.from_pretrained(
        folder, dtype=dtype, output_loading_info=True, **(given if dequantize else {})
    )
    assert not any(info[f"{what}_keys"] for what in ("missing", "unexpected", "mismatched"))
    with torch.no_grad():
        logits: torch.Tensor = model.eval()(torch.from_numpy(ids)).logits
    return logits.float().numpy()


def of_floats(folder: Path, scratch: Path, ids: np.ndarray) -> np.ndarray:
    """The logits of transformers in FP32 with the numbers that the library decompresses."""
    config = json.loads((folder / "config.json").read_text())
    groups = QuantizationConfig.model_validate(config.pop("quantization_config")).config_groups
    held, floats = tensors(folder), {}
    for module in {key.rpartition(".")[0] for key in held}:
        parts = {key.removeprefix(f"{module}."): each for key, each in held.items()
                 if key.rpartition(".")[0] == module}  # fmt: skip
        if "weight_scale" in parts:
            scheme = next(
                one for one in groups.values()
                if {module, "Linear"} & set(one.targets)
                or any(re.fullmatch(each.removeprefix("re:"), module) for each in one.targets)
            )  # fmt: skip
            compressor = BaseCompressor.load_from_registry(scheme.format)
            found = {"weight": compressor.decompress(dict(parts), scheme)["weight"]}
            parts = found | {key: each for key, each in parts.items() if key == "bias"}
        floats |= {f"{module}.{key}": each.float().contiguous() for key, each in parts.items()}
    save_file(floats, scratch / "model.safetensors", metadata={"format": "pt"})
    (scratch / "config.json").write_text(json.dumps({**config, "dtype": "float32"}))
    model, info = getattr(hf, config["architectures"][0]).from_pretrained(
        scratch, output_loading_info=True
    )
    assert not any(info[f"{what}_keys"] for what in ("missing", "unexpected", "mismatched"))
    with torch.no_grad():
        logits: torch.Tensor = model.eval()(torch.from_numpy(ids)).logits
    return logits.numpy()


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            found |= {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
    return found


def unpacked(held: dict[str, torch.Tensor], shape: tuple[int, ...]) -> np.ndarray:
    """The codes as numbers, as the library unpacks them."""
    if "weight" in held:
        return held["weight"].to(torch.float32).numpy()
    packed = held["weight_packed"]
    if packed.dtype == torch.uint8:
        return unpack_fp4_from_uint8(packed, *shape, torch.float32).numpy()
    bits = packed.shape[1] * 32 // shape[1]
    assert held["weight_shape"].tolist() == list(shape)
    return unpack_from_int32(packed, bits, torch.Size(shape)).to(torch.float32).numpy()


def codes_in_graph(artifact: Artifact) -> dict[str, tuple[np.ndarray, np.ndarray | None]]:
    """Module → the codes of its weight [N, K] as numbers without zero points, read from the ONNX
    file, and its scales [N, groups]; None for scales that are a product in the graph."""
    model = onnx.load(artifact.model_path).graph
    arrays: dict[str, Any] = {one.name: numpy_helper.to_array(one) for one in model.initializer}
    makers = {name: node for node in model.node for name in node.output}
    splits = {
        node.input[0]: arrays[sizes]
        for node in model.node
        if node.op_type == "Split"
        for sizes in node.input[1:]
        if sizes in arrays
    }
    found: dict[str, tuple[np.ndarray, np.ndarray | None]] = {}
    for node in model.node:
        read = _codes(node, arrays, makers)
        if read is None:
            continue
        codes, scales = read
        names = [name.rpartition("/")[0] for name in node.name.split(" + ")]
        ends = np.cumsum(splits[node.output[0]] if len(names) > 1 else [len(codes)])
        for name, start, end in zip(names, [0, *ends], ends, strict=False):
            found[name] = codes[start:end], None if scales is None else scales[start:end]
    return found


def _codes(
    node: onnx.NodeProto, arrays: dict[str, Any], makers: dict[str, onnx.NodeProto]
) -> tuple[np.ndarray, np.ndarray | None] | None:
    said = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    if node.op_type == "MatMulNBits":
        bits, rows = said["bits"], said["N"]
        packed = arrays[node.input[1]].reshape(rows, -1)
        parts = [packed >> np.uint8(at) & np.uint8((1 << bits) - 1) for at in range(0, 8, bits)]
        codes = np.stack(parts, -1).reshape(rows, -1)[:, : said["K"]].astype(np.float32)
        return codes - (1 << bits - 1), arrays[node.input[2]].reshape(rows, -1)
    if node.op_type == "MatMulIntegerToFloat":
        return arrays[node.input[1]].T.astype(np.float32), arrays[node.input[3]].reshape(-1, 1)
    maker = makers.get(node.input[1]) if len(node.input) > 1 else None
    if node.op_type not in ("MatMul", "Gemm") or maker is None:
        return None
    if maker.op_type == "Cast":
        maker = makers[maker.input[0]]
    if maker.op_type != "DequantizeLinear" or maker.input[0] not in arrays:
        return None
    codes, scales = arrays[maker.input[0]].astype(np.float32), arrays.get(maker.input[1])
    blocks = None if scales is None or scales.ndim < 2 else scales.astype(np.float32)
    if said.get("transB"):
        return codes, blocks
    return codes.T, None if blocks is None else blocks.T
