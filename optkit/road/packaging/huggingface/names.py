"""The names of graphs on the hub, and what config.json says of them.

The suffixes are those of transformers.js (`DEFAULT_DTYPE_SUFFIX_MAPPING`); its dtype q8 is
`model_quantized.onnx`. A precision that it does not know gets its own name as the suffix.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from optkit.ground.decoder import CONFIG, PAST, read_json
from optkit.ground.devices import target
from optkit.road.packaging.huggingface.card import ListedGraph

CROSSED = re.compile(r"(past_key_values|present)\.\d+\.encoder\.(key|value)")
"""Names of the keys and values that an encoder gives to its decoder."""

DATA = "_data"
KEYS = "transformers.js_config"


@dataclass(frozen=True)
class VariantFile:
    """`dtype`: how a user of transformers.js asks for the file; None: it cannot."""

    suffix: str
    dtype: str | None


_FP32, _FP16, _Q8, _INT8, _Q4, _Q4F16, _BNB4 = (
    VariantFile("", "fp32"),
    VariantFile("_fp16", "fp16"),
    VariantFile("_quantized", "q8"),
    VariantFile("_int8", "int8"),
    VariantFile("_q4", "q4"),
    VariantFile("_q4f16", "q4f16"),
    VariantFile("_bnb4", "bnb4"),
)
_NAMES = {
    "fp32": _FP32,
    "fp16": _FP16,
    "int8": _Q8,
    "int8-weight-only": _INT8,
    "w4a8": _Q4,
    "nf4": _BNB4,
}


def name_of(precision: str, target_name: str) -> VariantFile:
    """The name of a graph. On a GPU int4 means weights of 4 bits in an FP16 graph, on a CPU in an
    FP32 graph. Raises UnknownName."""
    if precision == "int4":
        return _Q4 if target(target_name).is_cpu else _Q4F16
    return _NAMES.get(precision) or VariantFile(f"_{precision}", None)


def data_file(file: str, part: int) -> str:
    """The part-th data file of a graph, as transformers.js names it."""
    return f"{file}{DATA}" if part == 0 else f"{file}{DATA}_{part}"


def keys_of_transformers_js(
    listed: Sequence[ListedGraph], parts: Mapping[str, int]
) -> dict[str, JsonValue]:
    """What transformers.js has to know before it loads a graph: its number of data files, and the
    dtype of a decoder's cache where that is not float32."""
    external: dict[str, JsonValue] = {file: count for file, count in parts.items() if count}
    halves: dict[str, JsonValue] = {
        one.dtype: "float16" for one in listed if one.dtype and _has_half_cache(one)
    }
    keys = {"use_external_data_format": external, "kv_cache_dtype": halves}
    return {key: value for key, value in keys.items() if value}


def with_keys(config: bytes, keys: Mapping[str, JsonValue]) -> bytes:
    """config.json with these keys for transformers.js; keys of its own that differ are replaced.
    Raises InputRefused unless it is a JSON object."""
    found = read_json(config, CONFIG)
    present = found.get(KEYS)
    merged = {**(present if isinstance(present, dict) else {}), **keys}
    return f"{json.dumps({**found, KEYS: merged}, indent=2, ensure_ascii=False)}\n".encode()


def _has_half_cache(one: ListedGraph) -> bool:
    inputs = one.variant.artifact.manifest.inputs
    return any(info.name.startswith(PAST) and info.dtype == "float16" for info in inputs)
