"""Models of Ultralytics and segmentation_models_pytorch, as their users have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from optkit.craft.quantization.placement.output_layers import output_layers
from optkit.craft.sources.ultralytics_heads import image_processor
from optkit.ground import graph
from tests.sources.test_torch_module import export, spec


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rows", "layers"),
    [
        ("yolov8n", 84, 7),
        ("yolo11n", 84, 7),
        ("yolo12n", 84, 7),
        ("yolo26n", 84, 6),  # without DFL
        ("yolov8n-seg", 116, 10),
        ("yolov8n-pose", 56, 10),
        ("yolov8n-obb", 85, 10),
    ],
)
def test_detectors_of_ultralytics(name: str, rows: int, layers: int, tmp_path: Path) -> None:
    ultralytics = pytest.importorskip("ultralytics")
    module = ultralytics.YOLO(f"{name}.yaml").model
    log = export(module, tmp_path / "model.onnx", spec("images", "batch", 3, 64, 64))
    assert log.outputs[0].shape == ("batch", rows, 84)
    assert len(output_layers(graph.load(tmp_path / "model.onnx"))) == layers
    config = image_processor(module)
    assert config is not None and config["preprocessing"] == "letterbox"


@pytest.mark.slow
def test_a_detector_that_chooses_its_detections(tmp_path: Path) -> None:
    ultralytics = pytest.importorskip("ultralytics")
    module = ultralytics.YOLO("yolo26n.yaml").model
    module.end2end = True
    log = export(module, tmp_path / "model.onnx", spec("images", "batch", 3, 64, 64))
    assert log.outputs[0].shape == ("batch", 84, 6)
    assert len(output_layers(graph.load(tmp_path / "model.onnx"))) == 6


@pytest.mark.slow
def test_a_unet(tmp_path: Path) -> None:
    smp = pytest.importorskip("segmentation_models_pytorch")
    module = smp.Unet("resnet18", encoder_weights=None, classes=4)
    log = export(module, tmp_path / "model.onnx", spec("x", "batch", 3, 64, 64))
    assert log.outputs[0].shape == ("batch", 4, 64, 64)
