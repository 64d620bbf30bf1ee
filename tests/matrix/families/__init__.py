"""One tiny model of each family, as its owner would save it: the rows of the matrix.

Two layers, 32 wide, of seeded random weights. transformers initializes with a spread of 0.02, with
which attention chooses nothing and logits hardly differ; here each product keeps the spread of what
it is given (1 / √fan-in), and batch norms have seen images, as in a trained model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from tests.matrix.families import (
    audio,
    decoders,
    embeddings,
    encoder_decoders,
    encoders,
    series,
    vision,
)
from tests.matrix.families.sizes import EDGE, Family, Made

GROUPS: dict[str, dict[str, Family]] = {
    "Text encoders": encoders.FAMILIES,
    "Embeddings and rerankers": embeddings.FAMILIES,
    "Decoders": decoders.FAMILIES,
    "Encoder-decoders": encoder_decoders.FAMILIES,
    "Image classifiers and towers": vision.CLASSIFIERS,
    "Detectors and segmenters": vision.DETECTORS,
    "Audio": audio.FAMILIES,
    "Time series": series.FAMILIES,
}
FAMILIES = {name: family for group in GROUPS.values() for name, family in group.items()}
PARTS = ("encoder", "decoder")


def parts(name: str) -> tuple[str, ...]:
    """The graphs of a family; "" is a family of one graph."""
    return PARTS if FAMILIES[name].paired else ("",)


def saved(made: Made, folder: Path, **options: Any) -> Path:
    """A folder as `save_pretrained` writes it; the weights are the same on every run."""
    torch.manual_seed(0)
    model = made().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                one = parameter[0, 0] if ".experts." in name else parameter[0]
                parameter.normal_(0, max(one.numel(), 1) ** -0.5)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.1)
        _see_images(model)
    model.save_pretrained(folder, **options)
    return folder


def write(name: str, folder: Path) -> Path:
    """The folder of a family. Some config.json do not tell the size of the images: that is their
    processor's."""
    saved(FAMILIES[name].made, folder)
    if FAMILIES[name].processor:
        (folder / "preprocessor_config.json").write_text(json.dumps(FAMILIES[name].processor))
    return folder


def _see_images(model: Any) -> None:
    """Give batch norms the statistics of what they see, and leave most values above the ReLU behind
    them: without the shift, MobileNetV2 of random weights has 31 dB in FP16, with it 60."""
    norms = [one for one in model.modules() if isinstance(one, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
        norm.bias.normal_(2.0, 0.5)
    if norms:
        edge = getattr(model.config, "image_size", EDGE)
        model.train()(torch.randn(64, 3, edge, edge))
        model.eval()
