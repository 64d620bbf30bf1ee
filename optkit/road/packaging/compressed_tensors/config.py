"""config.json with the key `quantization_config`, checked by the library compressed-tensors; and
hf_quant_config.json, by which TensorRT-LLM and ModelOpt know a checkpoint."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
from pydantic import JsonValue

from optkit.facts.errors import ToolchainMissing
from optkit.ground.decoder import CONFIG, read_json
from optkit.road.packaging.compressed_tensors.schemes import (
    CodeArguments,
    LinearScheme,
    config_groups,
)

_BY_TOKEN = LinearScheme(
    "float-quantized",
    CodeArguments(8, "float", "channel"),
    CodeArguments(8, "float", "token", dynamic=True),
)


def check_library() -> None:
    """Raises ToolchainMissing."""
    try:
        import compressed_tensors  # noqa: F401
    except ImportError as error:
        raise ToolchainMissing(
            f"compressed_tensors does not load: {error}",
            hint="pip install 'optkit[compressed-tensors]'",
        ) from error


def config(
    folder: Path,
    network: str,
    quantization: dict[str, JsonValue],
    dtype: np.dtype[np.generic],
    tied: bool | None,
) -> bytes:
    """The model's config.json. `network`: its class. `dtype`: of what has no codes. `tied`: whether
    the last layer is the embedding; None: the model has no such choice."""
    said = read_json((folder / CONFIG).read_bytes(), CONFIG)
    said.pop("torch_dtype", None)
    said |= {"architectures": [network], "dtype": dtype.name, "quantization_config": quantization}
    if tied is not None:
        said["tie_word_embeddings"] = tied
    return f"{json.dumps(said, indent=2, ensure_ascii=False)}\n".encode()


def quantization(
    schemes: Mapping[str, LinearScheme],
    ignored: Collection[str],
    head: str | None = None,
    cache: CodeArguments | None = None,
) -> dict[str, JsonValue]:
    """The schemes of linear layers by module. `ignored`: those that stay in floats. `head`: the
    last layer. `cache`: how the key-value cache has codes."""
    from compressed_tensors import __version__ as version
    from compressed_tensors.quantization import QuantizationConfig

    formats = {scheme.format for scheme in schemes.values()}
    written = QuantizationConfig.model_validate(
        {
            "config_groups": config_groups(schemes, head),
            "format": formats.pop() if len(formats) == 1 else "mixed-precision",
            "quantization_status": "compressed",
            "ignore": sorted(ignored),
            "kv_cache_scheme": None if cache is None else cache.to_json(),
        }
    )
    return {"version": version, **written.model_dump(mode="json")}


def of_modelopt(
    schemes: Mapping[str, LinearScheme], ignored: Collection[str], *, cache: bool
) -> bytes | None:
    """hf_quant_config.json; None if ModelOpt has no scheme with these tensors: of its W4A16, FP8
    and NVFP4 the names, forms or scales are others. `cache`: whether the key-value cache is in FP8.
    (Keys: ModelOpt 0.47, get_quant_config; TensorRT-LLM, load_modelopt_quant_config.)"""
    patterns = any(name.startswith("re:") for name in ignored)  # ModelOpt has others
    if set(schemes.values()) != {_BY_TOKEN} or patterns:
        return None
    said = {
        "producer": {"name": "optkit", "version": importlib.metadata.version("optkit")},
        "quantization": {
            "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN",
            "kv_cache_quant_algo": "FP8" if cache else None,
            "exclude_modules": sorted(ignored),
        },
    }
    return f"{json.dumps(said, indent=2)}\n".encode()
