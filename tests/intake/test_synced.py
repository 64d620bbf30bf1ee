"""Copies of foreign files are on the disk before the store shows them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from optkit.ground.intake import files, stage_onnx, stage_weights
from tests.hostile import onnx_files
from tests.synced import renames


def test_a_copied_file_is_on_the_disk_before_its_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_file({"w": np.zeros(3, np.float32)}, tmp_path / "w.safetensors")
    around = renames(monkeypatch)
    staged = stage_weights(tmp_path / "w.safetensors", tmp_path / "store/objects")
    source, before, after = around(staged.path)
    assert source in before
    assert after >= {staged.path.parent, tmp_path / "store/objects"}


def test_a_copied_model_is_on_the_disk_before_its_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = onnx_files.save(onnx_files.plain_model(), tmp_path)
    around = renames(monkeypatch)
    staged = stage_onnx(model, tmp_path / "store/objects")
    source, before, after = around(staged.path.parent)
    assert before >= {source, source / "model.onnx", source / "entry.json"}
    assert after >= {staged.path.parent.parent, tmp_path / "store/objects"}


def test_a_copied_file_has_the_time_at_which_it_is_published(tmp_path: Path) -> None:
    """It was written long before, as a part of a large model: it counts as used from now on."""
    file = tmp_path / "file"
    file.touch()
    os.utime(file, (0, 0))
    assert files.publish(file, tmp_path / "objects", "ab" * 32).stat().st_mtime > 0
