"""Two at the same time stage one model: both get the one copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx
import pytest

from optkit.ground.intake import files, stage_onnx, tree

MODEL = '<ir_version: 10, opset_import: ["" : 21]> g (float[N,2] x) => (float[N,2] y) {y = Relu(x)}'


def test_who_comes_second_takes_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "m.onnx")

    def overtaken(folder: Path, objects: Path, digest: str) -> Path:
        shutil.copytree(folder, objects / digest[:2] / digest)
        return files.publish(folder, objects, digest)

    monkeypatch.setattr(tree, "publish", overtaken)
    second = stage_onnx(tmp_path / "m.onnx", tmp_path / "store/objects")
    monkeypatch.undo()
    assert stage_onnx(tmp_path / "m.onnx", tmp_path / "store/objects") == second
    assert second.path.is_file()
