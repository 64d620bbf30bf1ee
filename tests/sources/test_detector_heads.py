"""Modules that keep values of one call for the next, as detectors keep their anchors; and the heads
of Ultralytics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from optkit.craft.sources.module_state import unchanged
from optkit.craft.sources.ultralytics_heads import exported, image_processor
from optkit.facts.tensors import TensorInfo
from optkit.ground.data import images, pretrained
from optkit.ground.runtimes import backend
from tests.sources.test_torch_module import export, spec


class Anchored(nn.Module):
    """The construct of Ultralytics' Detect: anchors are computed if the shape is a new one."""

    shape: torch.Size | None = None
    anchors = torch.empty(0)

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2, padding=1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.conv(image)
        if self.shape != x.shape:
            self.anchors = torch.arange(x.shape[2] * x.shape[3], dtype=torch.float32)
            self.shape = x.shape
        return x.flatten(2) + self.anchors


class Head(Anchored):
    """The same with the modes of Ultralytics, in which `dynamic` computes the anchors anew."""

    export = False
    dynamic = False

    def forward(self, image: torch.Tensor) -> Any:
        if self.dynamic:
            self.shape = None
        y = super().forward(image)
        return y if self.export else (y, {"loss": y.sum()})


class Detect(Head):
    """A detector's head, by its name."""


for part in (Head, Detect):
    part.__module__ = "ultralytics.nn.modules.head"  # where the package has it


def test_a_value_kept_from_the_trial_does_not_fix_the_batch(tmp_path: Path) -> None:
    net = Anchored().eval()
    log = export(net, tmp_path / "model.onnx", spec("image", "batch", 3, 8, 8))
    assert log.outputs[0].shape == ("batch", 4, 16)
    assert net.shape is None and "anchors" not in vars(net)


def test_a_head_of_ultralytics_is_exported_in_its_own_mode(tmp_path: Path) -> None:
    net = nn.Sequential(Head()).eval()
    image = np.random.default_rng(0).standard_normal((8, 3, 8, 8)).astype(np.float32)
    expected, _ = net(torch.from_numpy(image))  # keeps the shape of this batch, the optimum
    out = tmp_path / "model.onnx"
    log = export(net, out, spec("image", "batch", 3, 8, 8))
    assert [output.shape for output in log.outputs] == [("batch", 4, 16)]
    with backend("onnxruntime").session(out) as session:
        (found,) = session.run({"image": image}).values()
    np.testing.assert_allclose(found, expected.detach(), atol=1e-5)
    assert net[0].shape == (*expected.shape[:2], 4, 4)
    assert "export" not in vars(net[0]) and "dynamic" not in vars(net[0])


def test_modes_are_set_in_modules_of_ultralytics_alone() -> None:
    head = Head()
    other = nn.Sequential(Anchored(), head)
    other[0].export = False
    head.dynamic = False
    with pytest.raises(KeyError), exported(other):
        assert head.export and head.dynamic and not other[0].export
        raise KeyError
    assert not head.export and not head.dynamic and not other[0].export
    assert vars(head)["dynamic"] is False and "export" not in vars(head)


def test_tensors_and_shapes_are_as_before_except_what_was_initialized() -> None:
    net = nn.ModuleDict({"plain": nn.Linear(2, 2), "lazy": nn.LazyLinear(3)})
    plain = net["plain"]
    plain.shape, plain.hooked, kept = None, False, torch.ones(2)
    plain.register_buffer("cos", kept)
    with unchanged(net):
        plain.shape, plain.hooked = torch.Size([1, 2]), True
        plain.grids = [torch.zeros(2)]
        plain.cos = torch.zeros(2)
        plain.register_buffer("sin", torch.zeros(2))
        net["lazy"](torch.zeros(1, 2))
    assert plain.shape is None and plain.cos is kept
    assert plain.hooked  # a flag may say what else was done
    assert "grids" not in vars(plain) and "sin" not in plain._buffers
    assert type(net["lazy"]) is nn.Linear and net["lazy"].in_features == 2
    assert net["lazy"](torch.zeros(1, 2)).shape == (1, 3)


class Hooked(nn.Module):
    """The construct of transformers' output capturing: the first call installs hooks."""

    installed = False

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.kept: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.installed:
            self.layer.register_forward_hook(lambda *call: self.kept.append(call[2]))
            self.installed = True
        self.kept.clear()
        self.layer(x)
        return torch.cat(self.kept, 1)


def test_hooks_of_the_trial_are_not_installed_twice(tmp_path: Path) -> None:
    log = export(Hooked(), tmp_path / "model.onnx", spec("x", "batch", 4))
    assert log.outputs[0].shape == ("batch", 4)


def test_pictures_for_a_detector_of_ultralytics_are_letterboxed(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    assert image_processor(nn.Sequential(Head())) is None  # of no detector
    config = image_processor(nn.Sequential(Detect()))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    assert pretrained.preprocessing(tmp_path) == "letterbox"
    pixels = np.random.default_rng(0).integers(0, 256, (20, 40, 3), np.uint8)
    info = TensorInfo("x", "float32", ("batch", 3, 32, 32))
    transforms = [
        images.transform_of(name, None, None, None, None, None, str(tmp_path), info)
        for name in (None, "letterbox")
    ]
    found, expected = (prepare([image.fromarray(pixels)]) for prepare in transforms)
    np.testing.assert_array_equal(found, expected)
    assert found.shape == (1, 3, 32, 32) and (found[0, :, 0] == np.float32(114 / 255)).all()


@pytest.mark.parametrize("text", ["no json", "[]", '{"preprocessing": 3}', "{}"])
def test_a_configuration_without_a_name_declares_no_preprocessing(
    text: str, tmp_path: Path
) -> None:
    assert pretrained.preprocessing(None) is None and pretrained.preprocessing(tmp_path) is None
    (tmp_path / "preprocessor_config.json").write_text(text)
    assert pretrained.preprocessing(tmp_path) is None
