"""Pictures for a model of timm are prepared as its pretrained_cfg says, pixel for pixel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from optkit.craft.sources import model_factory, timm_config
from optkit.facts.tensors import AxisRange, InputSpec, TensorInfo
from optkit.ground.data import images
from optkit.ground.runtimes import backend

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("transformers")

CONFIG = {
    "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.25, 0.5), "interpolation": "bicubic", "crop_pct": 0.8,
    "crop_mode": "center",
}  # fmt: skip
PICTURES = InputSpec(TensorInfo("x", "float32", ("batch", 3, 32, 32)))


def module(**changed: Any) -> nn.Module:
    net = nn.Conv2d(3, 2, 3)
    net.pretrained_cfg = {**CONFIG, **changed}  # type: ignore[assignment]
    return net


def prepared(config: dict[str, object] | None, folder: Path, picture: Any) -> np.ndarray:
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    return images.processor_of(None, str(folder))([picture])[0]


def picture(size: int) -> Any:
    pixels = np.random.default_rng(0).integers(0, 256, (size, size, 3), np.uint8)
    return Image.fromarray(pixels)


def test_the_shorter_side_is_resized_and_the_middle_normalized(tmp_path: Path) -> None:
    found = prepared(timm_config.image_processor(module(), [PICTURES]), tmp_path, picture(57))
    resized = picture(57).resize((40, 40), Image.Resampling.BICUBIC).crop((4, 4, 36, 36))
    values = np.asarray(resized, np.float32).transpose(2, 0, 1) / 255
    mean, std = (np.float32(CONFIG[key])[:, None, None] for key in ("mean", "std"))
    np.testing.assert_allclose(found, (values - mean) / std, atol=1e-5)


@pytest.mark.parametrize(
    ("net", "specs"),
    [
        (nn.Conv2d(3, 2, 3), [PICTURES]),
        (module(crop_mode="border"), [PICTURES]),
        (module(interpolation="unknown"), [PICTURES]),
        (module(), [PICTURES, InputSpec(TensorInfo("y", "float32", ("batch", 3, 32, 32)))]),
        (module(), [InputSpec(TensorInfo("x", "float32", ("batch", 3, "height", "width")))]),
        (module(), [InputSpec(TensorInfo("x", "float32", ("batch", 1, 32, 32)))]),
    ],
)
def test_what_is_not_known_is_not_guessed(net: nn.Module, specs: list[InputSpec]) -> None:
    assert timm_config.image_processor(net, specs) is None


def test_the_log_of_the_export_has_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\n\ndef create():\n    net = nn.Conv2d(3, 2, 3)\n"
        f"    net.pretrained_cfg = {CONFIG}\n    return net\n"
    )
    log = model_factory.export(
        f"{tmp_path / 'net.py'}:create", {}, None, [PICTURES], {"batch": AxisRange(1, 2, 4)},
        tmp_path / "m.onnx", session=backend("onnxruntime").session,
        progress=lambda what, share: None,
    )  # fmt: skip
    assert log.image_processor == timm_config.image_processor(module(), [PICTURES])


def test_timm_prepares_the_same(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm", exc_type=Exception)
    net = timm.create_model("test_resnet", num_classes=3)
    config = timm_config.image_processor(
        net, [InputSpec(TensorInfo("x", "float32", ("batch", 3, 160, 160)))]
    )
    transform = timm.data.create_transform(**timm.data.resolve_data_config({}, model=net))
    np.testing.assert_array_equal(
        prepared(config, tmp_path, picture(211)), transform(picture(211)).numpy()
    )
