"""config.json as mlx-lm reads it (ModelArgs of mlx_lm/models), and the biases of its networks.

mlx-lm 0.32 reads no `rope_parameters` in llama.py and qwen2.py, and takes a default for each key
that is missing, without a word: another base of rotary embeddings, tied embeddings. So these keys
are always written.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import JsonValue

from optkit.facts.errors import UsageError
from optkit.ground.decoder import CONFIG, read_json
from optkit.road.packaging.decoders import Architecture, Parameter
from optkit.road.packaging.mlx.quantized import CodeForm, MlxStorage

_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_ATTENTION = (*_QKV, "self_attn.o_proj")
_MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")

# the biases that a network can have, by the key of config.json that switches them on
_SWITCHED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "llama": {"attention_bias": _ATTENTION, "mlp_bias": _MLP},
    "mistral": {"attention_bias": _ATTENTION, "mlp_bias": _MLP},
}
_ALWAYS = {"qwen2": _QKV}  # those that it always has


@dataclass(frozen=True)
class Biases:
    """switches  the keys of config.json
    zeros     biases that the network loads, and the artifact does not have"""

    switches: Mapping[str, bool]
    zeros: Mapping[str, Parameter]


def check(architecture: Architecture) -> None:
    """Raises UsageError for sizes that mlx-lm's network cannot have."""
    if (
        architecture.kind == "qwen2"
        and architecture.head_size * architecture.heads != architecture.hidden
    ):
        raise UsageError(
            f"its {architecture.heads} heads of {architecture.head_size} are not its width, "
            f"{architecture.hidden}, and mlx-lm's network qwen2 has no other heads"
        )


def biases(architecture: Architecture, found: Mapping[str, Parameter]) -> Biases:
    """Raises UsageError for a bias that mlx-lm's network has no place for."""
    rows = {name.removesuffix(".weight"): n for name, (n, _) in architecture.matrices().items()}
    present = {name.removesuffix(".bias") for name in found if name.endswith(".bias")}
    loaded = {module for module in rows if module.endswith(_ALWAYS.get(architecture.kind, ()))}
    switches = {}
    for key, names in _SWITCHED.get(architecture.kind, {}).items():
        modules = {module for module in rows if module.endswith(names)}
        switches[key] = not modules.isdisjoint(present)
        loaded |= modules if switches[key] else set()
    if without := present - loaded:
        raise UsageError(
            f"{min(without)} has a bias, and mlx-lm's network {architecture.kind} has none there",
            hint="if it corrects the error of quantization, build with "
            "`quantization: {bias_correction: false}`",
        )
    missing = [module for module in rows if module in loaded - present]
    return Biases(switches, {f"{module}.bias": _zeros(module, rows[module]) for module in missing})


def _zeros(module: str, size: int) -> Parameter:
    return Parameter(f"{module}.bias", lambda: np.zeros(size, np.float32))


def config(
    folder: Path,
    architecture: Architecture,
    switches: Mapping[str, bool],
    stored: Mapping[str, MlxStorage],
    dtype: np.dtype[np.generic],
) -> bytes:
    """The model's config.json with what mlx-lm needs. `switches`: keys that are true or false."""
    said = read_json((folder / CONFIG).read_bytes(), CONFIG)
    for key in ("layer_types", "torch_dtype", "quantization", "quantization_config"):
        said.pop(key, None)
    rotation = architecture.rotation
    scaling: dict[str, JsonValue] = {"rope_type": rotation.kind, "factor": rotation.factor}
    if rotation.kind == "llama3":
        scaling |= {
            "low_freq_factor": rotation.low,
            "high_freq_factor": rotation.high,
            "original_max_position_embeddings": rotation.original,
        }
    said |= {
        "dtype": dtype.name,
        "head_dim": architecture.head_size,
        "max_position_embeddings": architecture.positions,
        "num_key_value_heads": architecture.kv_heads,
        "rope_theta": architecture.theta,
        "rope_scaling": None if rotation.kind == "default" else scaling,
        **switches,
    }
    if quantization := _quantization(stored):
        # the hub looks for the second key; mlx-lm writes both
        said |= {"quantization": quantization, "quantization_config": quantization}
    return f"{json.dumps(said, indent=2, ensure_ascii=False)}\n".encode()


def _quantization(stored: Mapping[str, MlxStorage]) -> dict[str, JsonValue]:
    """The form of most of the codes, and by module the others. Empty: there are no codes."""
    forms = {name.removesuffix(".weight"): each.form for name, each in stored.items()}
    counts: Counter[CodeForm] = Counter()
    for each in stored.values():
        if each.form is not None:
            counts[each.form] += each.numbers
    if not counts:
        return {}
    usual = counts.most_common(1)[0][0]
    others: dict[str, JsonValue] = {
        module: _keys(form)
        for module, form in sorted(forms.items())
        if form is not None and form != usual
    }
    return {**_keys(usual), **others}


def _keys(form: CodeForm) -> dict[str, JsonValue]:
    return {"group_size": form.size, "bits": form.bits}
