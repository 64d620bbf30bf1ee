"""A LoRA adapter as PEFT saves it: adapter_config.json and adapter_model.safetensors.

    y = W x + scaling · up (down x)          down [rank, K], up [N, rank]

scaling is alpha / rank, or alpha / √rank (rsLoRA, Kalajdzievski 2023, arXiv:2312.03732). LoRA: Hu
et al. 2021, arXiv:2106.09685.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, sqrt
from pathlib import Path

import ml_dtypes  # noqa: F401  numpy gets bfloat16 from it, in which many adapters are saved
import numpy as np
from safetensors import safe_open

from optkit.facts.errors import InputRefused
from optkit.ground import intake
from optkit.ground.intake import ADAPTER_CONFIG, ADAPTER_WEIGHTS

_KEY = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
_KINDS = (True, False, None, "gaussian", "eva", "orthogonal")
"""The values of init_lora_weights that leave the weights of the base as they are."""

_OTHERS = (
    "use_dora",
    "use_qalora",
    "lora_bias",
    "alora_invocation_tokens",
    "arrow_config",
    "layer_replication",
    "trainable_token_indices",
    "target_parameters",
    "modules_to_save",
)
"""Settings with which more is computed than down and up."""

_UNMERGED = frozenset({"alora_invocation_tokens", "arrow_config", "layer_replication"})
"""Those that no weights can hold: they choose by the input, or change the layers of the base."""

_PLAIN = "train it as plain LoRA beside linear layers"
_HINT = "merge it into the model before the build: `model.adapter`, or --adapter of `optkit build`"


@dataclass(frozen=True)
class Lora:
    """The layers of an adapter by the path of their module: (down [rank, K], up [N, rank] times
    the scaling), float32."""

    layers: Mapping[str, tuple[np.ndarray, np.ndarray]]
    where: str


def read(folder: Path, scratch: Path) -> Lora:
    """The adapter in a folder, whose checked copy is made in `scratch`. Raises InputRefused (no
    adapter, another kind, a weight that is no matrix of LoRA), UnsafeFile."""
    staged = intake.stage_adapter(folder, scratch / "objects").path
    config = _config(staged / ADAPTER_CONFIG, str(folder / ADAPTER_CONFIG))
    where = str(folder / ADAPTER_WEIGHTS)
    sides: dict[str, dict[str, np.ndarray]] = {}
    with safe_open(staged / ADAPTER_WEIGHTS, framework="numpy") as file:
        for key in file.keys():  # noqa: SIM118  (it is no mapping)
            match = _KEY.fullmatch(key)
            if match is None:
                raise InputRefused(
                    f"{key} is no matrix of LoRA beside a linear layer", where=where, hint=_HINT
                )
            sides.setdefault(match["module"], {})[match["side"]] = _matrix(
                file.get_tensor(key), key, where
            )
    if not sides:
        raise InputRefused("the adapter has no weights", where=where)
    return Lora({name: _layer(name, sides[name], config, where) for name in sorted(sides)}, where)


def _config(file: Path, where: str) -> dict[str, object]:
    try:
        config = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputRefused("not JSON", where=where, hint="save the adapter again") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        kind = config.get("peft_type") if isinstance(config, dict) else None
        raise InputRefused(
            f"an adapter of kind {kind}; only LoRA is taken", where=where, hint=_PLAIN
        )
    used = [name for name in _OTHERS if config.get(name)]
    if config.get("bias", "none") != "none":
        used.append("bias")
    if used:
        raise InputRefused(
            f"{used[0]} is set: the adapter computes more than two matrices",
            where=where,
            hint=_PLAIN if used[0] in _UNMERGED else _HINT,
        )
    start = config.get("init_lora_weights")
    if start not in _KINDS:
        raise InputRefused(
            f"its training began with {start!r}, which changed the weights of the base too",
            where=where,
            hint="convert it to plain LoRA first, as PEFT's documentation describes",
        )
    return config


def _layer(
    module: str, sides: Mapping[str, np.ndarray], config: Mapping[str, object], where: str
) -> tuple[np.ndarray, np.ndarray]:
    if len(sides) != 2:
        raise InputRefused(f"{module} has one of the two matrices alone", where=where)
    down, up = sides["A"], sides["B"]
    rank = len(down)
    if up.shape[1] != rank or rank == 0:
        raise InputRefused(
            f"the matrices of {module} do not fit: {list(down.shape)}, {list(up.shape)}",
            where=where,
        )
    alpha = _alpha(module, config)
    if not (isinstance(alpha, int | float) and isfinite(alpha)):
        raise InputRefused(f"lora_alpha of {module} is {alpha!r}", where=where)
    return down, up * np.float32(alpha / (sqrt(rank) if config.get("use_rslora") else rank))


def _alpha(module: str, config: Mapping[str, object]) -> object:
    """lora_alpha of a layer: the first pattern that the end of its path matches decides, as in
    PEFT."""
    patterns = config.get("alpha_pattern")
    for pattern, alpha in patterns.items() if isinstance(patterns, dict) else ():
        try:
            if re.match(rf"(.*\.)?({pattern})$", module):
                return alpha
        except re.error:
            continue
    return config.get("lora_alpha")


def _matrix(stored: np.ndarray, key: str, where: str) -> np.ndarray:
    """float32 [rows, columns]. Raises InputRefused for another rank, or numbers that are not
    finite."""
    array = np.asarray(stored, np.float32)
    if array.ndim != 2 or not np.isfinite(array).all():
        raise InputRefused(f"{key} is no matrix of finite numbers", where=where)
    return array
