"""A LoRA adapter (PEFT) merged into its model: W + (alpha / r) · B A replaces W.

LoRA: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021. peft merges; the merged
model is compared with the model that runs the adapter separately.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from optkit.craft.sources import export_failures, toolchain
from optkit.craft.sources.dynamic_axes import traced_sizes
from optkit.craft.sources.hugging_face.inputs import ModelInputs
from optkit.craft.sources.outputs import arrays
from optkit.facts.errors import InputRefused
from optkit.facts.tensors import Feed
from optkit.ground.data.synthetic import random_feed

if TYPE_CHECKING:
    from peft import PeftModel
    from torch import nn

_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_TOLERANCE = 1e-4  # share of the largest output: the effect of two orders of float32 sums
_PLAIN = "train it as plain LoRA beside the layers of the model"
_HINT = "is it an adapter of this model? its config names the base it was trained on"


def merge(model: nn.Module, described: ModelInputs, folder: Path) -> None:
    """Merge the adapter in the staged `folder` into `model`, whose layers change in place.

    Raises InputRefused (not a LoRA adapter, an adapter of another model, a merge that changes the
    function), ToolchainMissing without peft.
    """
    toolchain.require_peft()
    import peft

    _check_kind(folder / _CONFIG)
    feed = random_feed(described.specs, traced_sizes(described.traced), 0)
    with toolchain.quiet():
        try:
            adapted = peft.PeftModel.from_pretrained(model, folder)
        except Exception as error:  # names of layers, shapes, an invalid config
            raise InputRefused(
                f"the adapter does not fit: {export_failures.first_line(error)}",
                where=str(folder),
                hint=_HINT,
            ) from error
        _check_weights(adapted, folder / _WEIGHTS)
        model.eval()
        beside = _outputs(model, described, feed)
        try:
            adapted.merge_and_unload(safe_merge=True)
        except Exception as error:  # peft refuses what it cannot add to the weights
            raise InputRefused(
                f"the adapter cannot be merged: {export_failures.first_line(error)}",
                where=str(folder),
                hint=_PLAIN,
            ) from error
    _compare(beside, _outputs(model, described, feed), str(folder))


def _check_kind(config: Path) -> None:
    try:
        given = json.loads(config.read_bytes())
        kind, replicated = given.get("peft_type"), given.get("layer_replication")
    except (ValueError, AttributeError) as error:
        raise InputRefused(
            "it is not the JSON of an adapter", where=str(config), hint="save the adapter again"
        ) from error
    if kind != "LORA":
        raise InputRefused(
            f"an adapter of kind {kind}; only LoRA is merged", where=str(config), hint=_PLAIN
        )
    if replicated:
        raise InputRefused(
            "layer_replication is set: the adapter gives the model other layers",
            where=str(config),
            hint=_PLAIN,
        )


def _check_weights(adapted: PeftModel, file: Path) -> None:
    """Raise for weights that do not fit. peft only warns about them, and gives missing ones random
    values."""
    import peft
    from safetensors import safe_open

    with safe_open(file, framework="numpy") as opened:
        saved = set(opened.keys())
    wanted = set(peft.get_peft_model_state_dict(adapted))
    if saved != wanted:
        name = min(saved ^ wanted)
        reason = "has no place in the model" if name in saved else "is missing"
        raise InputRefused(
            f"{len(saved ^ wanted)} weights of the adapter do not fit: {name} {reason}",
            where=str(file),
            hint=_HINT,
        )


def _outputs(model: nn.Module, described: ModelInputs, feed: Feed) -> Feed:
    import torch

    values = [torch.from_numpy(feed[spec.info.name]) for spec in described.specs]
    with torch.no_grad():
        returned = model(*values)
    return arrays(returned, list(returned))


def _compare(beside: Feed, merged: Feed, where: str) -> None:
    for name, expected in beside.items():
        error = float(np.abs(expected - merged[name]).max(initial=0.0))
        scale = float(np.abs(expected).max(initial=0.0))
        if not error <= _TOLERANCE * scale:
            raise InputRefused(
                f"after merging, output {name!r} differs by {error:.3g} from the model with the "
                f"adapter; its largest value is {scale:.3g}",
                where=where,
                hint="an adapter that acts on activations (dropout, a norm) cannot be merged",
            )
