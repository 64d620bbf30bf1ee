"""The scales of a key-value cache in FP8, as readers have them: for each layer one of the keys and
one of the values.

    k_scale, v_scale   float32 [1], of a module of attention: largest magnitude / 448, so that E4M3
                       clips nothing of the calibration samples
(compressed-tensors 0.20: initialize_attn_qparams; vLLM 0.33: CompressedTensorsKVCacheMethod, which
takes floats of 8 bits and no integers)
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import isfinite
from pathlib import Path

import numpy as np

from optkit.facts.dtypes import FLOATS
from optkit.facts.errors import InputRefused, UsageError
from optkit.ground.artifact import Artifact
from optkit.ground.decoder import KV_CACHE, PRESENT
from optkit.road.packaging.compressed_tensors.schemes import CodeArguments, Tensors

SCHEME = CodeArguments(8, "float", "tensor")
_LARGEST = FLOATS["float8e4m3fn"].largest
_CACHE = re.compile(rf"{PRESENT}\.(\d+)\.(key|value)")


def cache_scales(artifact: Artifact, attentions: Mapping[int, str]) -> Tensors:
    """By name; empty if the artifact does not say how far its cache reaches. `attentions`: number
    of a layer → module. Raises InputRefused (kv_cache.json), UsageError (a layer without a module
    that readers know)."""
    if KV_CACHE not in artifact.manifest.files:
        return {}
    tensors = {}
    for (layer, part), reach in _reach(artifact.path / KV_CACHE).items():
        if layer not in attentions:
            raise UsageError(
                f"readers have no scale for the cache of layer {layer}: they know attention with "
                "k_proj and v_proj, or qkv_proj",
                where=str(artifact.path),
                hint="build it with `--set quantization.kv_cache=null`",
            )
        scale = reach / _LARGEST if reach else 1.0
        tensors[f"{attentions[layer]}.{part[0]}_scale"] = np.array([scale], np.float32)
    return tensors


def _reach(file: Path) -> dict[tuple[int, str], float]:
    """Number of a layer, and "key" or "value" → the largest magnitude."""
    found = {}
    try:
        for name, reach in json.loads(file.read_bytes()).items():
            match = _CACHE.fullmatch(name)
            if match is None or not (isfinite(reach) and reach >= 0):
                raise ValueError(name)
            found[int(match[1]), match[2]] = float(reach)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InputRefused("it does not say how far a cache reaches", where=str(file)) from error
    return found
