"""Every command that uses calibration data reports bad data, and refuses it with --strict."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Optkit = Callable[..., Any]


def test_quantize_tells_of_bad_calibration_and_strict_fails(
    small: Path, store: Path, tmp_path: Path, optkit_here: Optkit
) -> None:
    project = shutil.copytree(small, tmp_path / "project")
    source = (project / "source.py").read_text()
    asked = ("quantize", "--target", "cpu", "--json", "--strict", "--out")
    sound = optkit_here(*asked, str(tmp_path / "sound"), cwd=project, cache=store)
    assert sound.code == 0 and json.loads(sound.out)["calibration"]["verdict"] == "clean"

    (project / "source.py").write_text(
        source.replace("rng.standard_normal", "255 * rng.standard_normal")
    )
    strict = optkit_here(*asked, str(tmp_path / "strict"), cwd=project, cache=store)
    found = json.loads(strict.out)["calibration"]
    assert strict.code == 3 and found["verdict"] == "suspect" and found["compared"]
    (told,) = found["findings"]
    assert (told["kind"], told["input"]) == ("scale", "x")
    assert told["measured"] / told["expected"] == pytest.approx(255, rel=0.1)

    again = optkit_here("quantize", "--target", "cpu", "--out", str(tmp_path / "warned"),
                        cwd=project, cache=store)  # fmt: skip
    assert again.code == 0
    assert "calibration data is suspect: input 'x': calibration data is 2" in again.err


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["digits-cnn", "digits-vit"])
@pytest.mark.parametrize("bad", ["times 255", "over 255", "one outlier"])
def test_bad_calibration_of_the_examples_is_reported_without_a_task(
    recipe: str, bad: str, store: Path, tmp_path: Path, optkit_here: Optkit
) -> None:
    from tests.calibration import sets

    images = sets.training()[:128]
    if recipe == "digits-cnn":
        images = images.repeat(4, 2).repeat(4, 3)
    images = images * {"times 255": 255, "over 255": 1 / 255, "one outlier": 1}[bad]
    if bad == "one outlier":
        images[17, 0, 3, 3] = 1e4
    np.savez(tmp_path / "bad.npz", image=images.astype(np.float32))
    asked = ("build", "--recipe", recipe, "--target", "cpu", "--calibration", "bad.npz",
             "--set", "eval=null", "--set", "gates.max_drop=null", "--json")  # fmt: skip
    done = optkit_here(*asked, cwd=tmp_path, cache=store)
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert result["calibration"]["verdict"] == "suspect"
    assert "calibration data is suspect" in done.err
    assert optkit_here(*asked, "--strict", cwd=tmp_path, cache=store).code == 3
    report = Path(tmp_path / result["artifact"] / "report.md").read_text()
    assert "Calibration data is suspect." in report


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["digits-cnn", "digits-vit"])
def test_the_examples_own_data_raises_no_alarm(
    recipe: str, store: Path, tmp_path: Path, optkit_here: Optkit
) -> None:
    out = tmp_path / "quantized"
    done = optkit_here("quantize", "--recipe", recipe, "--target", "cpu", "--json", "--strict",
                       "--out", str(out), cwd=tmp_path, cache=store)  # fmt: skip
    assert done.code == 0, done.err
    found = json.loads(done.out)["calibration"]
    assert found == {"verdict": "clean", "samples": 256, "compared": True, "findings": []}
