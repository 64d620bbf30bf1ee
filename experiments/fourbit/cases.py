"""Models for the studies of this folder, in float32 with inputs: a digits ViT, a decoder of bytes,
and the trained workloads of experiments/peers."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from layer_inputs import hooked
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Case:
    """A model with its inputs, in batches."""

    name: str
    net: nn.Module
    calibration: list[tuple[Tensor, ...]]
    test: list[tuple[Tensor, ...]]

    @torch.no_grad()
    def outputs(self) -> list[np.ndarray]:
        """Of each batch."""
        return [self.net(*part).numpy() for part in self.test]

    def layers(self, but: str = "no layer") -> dict[str, nn.Linear]:
        """The linear layers by name, without those whose name contains `but`."""
        modules = self.net.named_modules()
        linear = {name: part for name, part in modules if isinstance(part, nn.Linear)}
        return {name: part for name, part in linear.items() if but not in name}


@torch.no_grad()
def observed(case: Case) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """The second moments of the input of each layer, and its largest magnitude."""
    sums: dict[str, np.ndarray] = {}
    counts: dict[str, int] = {}
    largest: dict[str, float] = {}

    def add(name: str, x: Tensor) -> None:
        rows = x.flatten(0, -2).double().numpy()
        sums[name] = sums.get(name, 0.0) + rows.T @ rows
        counts[name] = counts.get(name, 0) + len(rows)
        largest[name] = max(largest.get(name, 0.0), float(np.abs(rows).max()))

    with hooked(case.layers(), add):
        for part in case.calibration:
            case.net(*part)
    return {name: total / counts[name] for name, total in sums.items()}, largest


def digits_vit() -> Case:
    sys.path.insert(0, str(ROOT / "examples" / "00_digits_vit"))
    import model
    from safetensors.torch import load_file
    from sklearn.datasets import load_digits

    net = model.create()
    net.load_state_dict(load_file(ROOT / "examples" / "00_digits_vit" / "weights.safetensors"))
    images = torch.from_numpy(load_digits().images[:, None] / 16).float()
    return Case(
        "digits ViT", net.eval(), [(part,) for part in images[:256].split(64)],
        [(part,) for part in images[-512:].split(64)],
    )  # fmt: skip


def bytes_decoder() -> Case:
    sys.path.insert(0, str(ROOT / "examples" / "07_healed_decoder"))
    import decoder

    held = decoder.held_out(128).split(32)
    return Case(
        "decoder of bytes", decoder.trained(), [(ids,) for ids in decoder.calibration(64)],
        [(ids,) for ids in held],
    )  # fmt: skip


def of_peers(folder: Path, name: str) -> Case:
    sys.path.insert(0, str(ROOT / "experiments" / "peers"))
    import networks
    from training import resume

    net: nn.Module = networks.Encoder() if name == "w3" else networks.Decoder()
    resume(net, torch.optim.AdamW(net.parameters()), folder / "models" / f"{name}.safetensors")
    if isinstance(net, networks.Encoder):
        net.unmask = nn.Identity()  # for its training alone
    names = ("input_ids", "attention_mask") if name == "w3" else ("input_ids",)
    with np.load(folder / "models" / f"{name}.npz") as data:
        parts = [
            list(zip(*(torch.from_numpy(data[f"{part}.{n}"][:count]).split(16) for n in names),
                     strict=True))
            for part, count in (("calibration", 64), ("test", 96))
        ]  # fmt: skip
    return Case(name, net.eval(), *parts)
