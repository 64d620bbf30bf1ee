"""The schemes of compressed-tensors that hold a linear layer of an artifact, and its tensors.

pack-quantized        integer codes of 2, 4 or 8 bits in words of 32 bits, inputs as they are
    weight_packed     int32 [N, K * bits / 32], the first code of a word in its lowest bits, code +
                      2^(bits - 1)
    weight_scale      [N, groups]; one group: by channel
    weight_shape      N, K
    weight_zero_point int32 [N * bits / 32, groups], packed along N, if there are any
int-quantized         int8 codes of weights and inputs
    weight            int8 [N, K]
    weight_scale      [N, groups]
    input_scale, input_zero_point   [1]: a scale for the tensor; the second if it is not 0; neither
                                    if the reader computes a scale for each token
float-quantized       the same in E4M3
nvfp4-pack-quantized  E2M1 in groups of 16 with scales in E4M3
    weight_packed     uint8 [N, K / 2], the first code in the lower half
    weight_scale      float8_e4m3fn [N, K / 16]
    weight_global_scale, input_global_scale   [1]: 1 / the scale of these scales
(compressed-tensors 0.20: compressors/, quantization/lifecycle/initialize.py)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from pydantic import JsonValue

from optkit.craft.quantization.qdq import nbits
from optkit.craft.quantization.qdq.codes import Codes, FloatCodes
from optkit.facts.errors import UsageError
from optkit.road.packaging.decoders import QuantizedInput

_E4M3, _E2M1 = "float8e4m3fn", "float4e2m1"
_NVFP4_GROUP = 16
_KINDS = {_E4M3: "E4M3", _E2M1: "E2M1", "int8": "integers", "uint8": "integers"}

Tensors = dict[str, np.ndarray]


@dataclass(frozen=True)
class CodeArguments:
    """QuantizationArgs of compressed-tensors: how one tensor has codes.

    kind     "int" or "float"
    dynamic  True: the kernel computes the scales; "local": those of groups, under a constant one
    """

    bits: int
    kind: str
    strategy: str
    symmetric: bool = True
    group: int | None = None
    dynamic: bool | str = False
    scale_dtype: str | None = None

    def to_json(self) -> dict[str, JsonValue]:
        said: dict[str, JsonValue] = {
            "num_bits": self.bits,
            "type": self.kind,
            "strategy": self.strategy,
            "symmetric": self.symmetric,
            "group_size": self.group,
            "dynamic": self.dynamic,
        }
        return said if self.scale_dtype is None else {**said, "scale_dtype": self.scale_dtype}

    def __str__(self) -> str:
        kind = f"{self.bits}-bit {'integers' if self.kind == 'int' else 'floats'}"
        where = f"by {self.strategy}" if self.group is None else f"in groups of {self.group}"
        points = "" if self.symmetric else " with zero points"
        return f"{kind} {where}{points}{' at run time' if self.dynamic is True else ''}"


@dataclass(frozen=True)
class LinearScheme:
    """How a linear layer is stored in a `format`. `inputs`: None if they are floats."""

    format: str
    weights: CodeArguments
    inputs: CodeArguments | None

    def to_json(self) -> dict[str, JsonValue]:
        return {
            "format": self.format,
            "weights": self.weights.to_json(),
            "input_activations": None if self.inputs is None else self.inputs.to_json(),
        }

    def __str__(self) -> str:
        return f"weights in {self.weights}, inputs " + (
            "in floats" if self.inputs is None else f"in {self.inputs}"
        )


def store(
    module: str, weight: Codes | FloatCodes, given: QuantizedInput | None, *, by_token: bool = False
) -> tuple[Tensors, LinearScheme]:
    """The tensors of a linear layer, and its scheme. `by_token`: inputs of 8 bits get scales at run
    time. Raises UsageError if no format holds it."""
    kind = _kind(weight)
    if given is not None and _KINDS.get(given.dtype) != kind:
        raise UsageError(
            f"it multiplies weights in {kind} by inputs in {given.dtype}, and compressed-tensors "
            "has no scheme for both",
            where=f"module {module!r}",
            hint="build it in int8, fp8 or nvfp4, or with weights alone: int4, int8-weight-only",
        )
    if isinstance(weight, Codes):
        tensors, form, arguments = _integers(weight, packed=given is None)
    elif kind == _KINDS[_E4M3]:
        tensors, form, arguments = _e4m3(weight)
    else:
        tensors, form, arguments = _nvfp4(module, weight)
    inputs = None
    if given is not None:
        more, inputs = _inputs(given, by_token)
        tensors |= more
    named = {f"{module}.{part}": np.ascontiguousarray(tensor) for part, tensor in tensors.items()}
    return named, LinearScheme(form, arguments, inputs)


def _kind(weight: Codes | FloatCodes) -> str:
    if isinstance(weight, Codes):
        return _KINDS["int8"]
    return _KINDS[_E4M3] if weight.codes.dtype == ml_dtypes.float8_e4m3fn else _KINDS[_E2M1]


def _integers(weight: Codes, *, packed: bool) -> tuple[Tensors, str, CodeArguments]:
    columns, bits = weight.shape[1], weight.bits
    block = columns if weight.scales.shape[1] == 1 else math.gcd(weight.block, columns)
    grouped = weight.in_blocks_of(block)
    assert grouped is not None
    codes, zeros = _signed(grouped.codes, bits), _signed(grouped.zero_points, bits)
    symmetric = not zeros.any()
    strategy, group = ("channel", None) if block == columns else ("group", block)
    tensors: Tensors = {"weight_scale": grouped.scales}
    if packed:
        tensors["weight_packed"] = _words(codes, bits)
        tensors["weight_shape"] = np.array(weight.shape, np.int64)
        points = _words(zeros.T, bits).T
    else:
        tensors["weight"], points = codes, zeros
    if not symmetric:
        tensors["weight_zero_point"] = points
    form = "pack-quantized" if packed else "int-quantized"
    return tensors, form, CodeArguments(bits, "int", strategy, symmetric, group)


def _signed(codes: np.ndarray, bits: int) -> np.ndarray:
    """int8 or uint8 codes around zero: int8."""
    half = np.uint8(1 << bits - 1)
    signed: np.ndarray = codes if codes.dtype == np.int8 else (codes - half).view(np.int8)
    return signed


def _words(codes: np.ndarray, bits: int) -> np.ndarray:
    """int8 [N, K] → int32 [N, ceil(K * bits / 32)]."""
    unsigned = codes.view(np.uint8) + np.uint8(1 << bits - 1)
    return nbits.pack_words(unsigned, bits).view(np.int32)


def _e4m3(weight: FloatCodes) -> tuple[Tensors, str, CodeArguments]:
    one = weight.scales.shape[1] == 1
    strategy, group = ("channel", None) if one else ("group", weight.block)
    tensors = {"weight": weight.codes, "weight_scale": weight.scales}
    return tensors, "float-quantized", CodeArguments(8, "float", strategy, group=group)


def _nvfp4(module: str, weight: FloatCodes) -> tuple[Tensors, str, CodeArguments]:
    if weight.scales.dtype != ml_dtypes.float8_e4m3fn or weight.block != _NVFP4_GROUP:
        raise UsageError(
            "its scales are not E4M3 numbers for blocks of 16, as NVFP4 has them",
            where=f"module {module!r}",
        )
    nibbles = weight.codes.view(np.uint8)
    tensors = {
        "weight_packed": nbits.pack_bits(nibbles, 4),
        "weight_scale": weight.scales,
        "weight_global_scale": _inverse(weight.outer),
    }
    return tensors, "nvfp4-pack-quantized", _blocks_of_nvfp4(dynamic=False)


def _inputs(given: QuantizedInput, by_token: bool) -> tuple[Tensors, CodeArguments]:
    if given.dtype == _E2M1:
        return {"input_global_scale": _inverse(given.scale)}, _blocks_of_nvfp4(dynamic="local")
    kind = "float" if given.dtype == _E4M3 else "int"
    if by_token:
        return {}, CodeArguments(8, kind, "token", dynamic=True)
    scale = given.scale.reshape(1)
    if kind == "float":
        return {"input_scale": scale}, CodeArguments(8, kind, "tensor")
    point = given.zero_point - (128 if given.dtype == "uint8" else 0)
    tensors = {"input_scale": scale}
    if point:
        tensors["input_zero_point"] = np.array([point], np.int8)
    return tensors, CodeArguments(8, kind, "tensor", symmetric=not point)


def _blocks_of_nvfp4(dynamic: bool | str) -> CodeArguments:
    return CodeArguments(
        4, "float", "tensor_group", True, _NVFP4_GROUP, dynamic, "torch.float8_e4m3fn"
    )


def _inverse(scale: np.ndarray | np.float32) -> np.ndarray:
    return (1 / np.asarray(scale, np.float32)).reshape(1)


def config_groups(
    schemes: Mapping[str, LinearScheme], head: str | None = None
) -> dict[str, JsonValue]:
    """The groups of a configuration by module → scheme.

    One scheme is for every "Linear", and for the last layer (`head`), which is no Linear in vLLM.
    Several name all their modules: vLLM takes a class before it looks for the parts of layers that
    it fuses (q_proj in qkv_proj)."""
    modules: dict[LinearScheme, list[str]] = {}
    for module, scheme in schemes.items():
        modules.setdefault(scheme, []).append(module)
    every = ["Linear", *(name for name in schemes if name == head)]
    return {
        f"group_{at}": {"targets": [*(every if len(modules) == 1 else names)], **scheme.to_json()}
        for at, (scheme, names) in enumerate(modules.items())
    }
