"""What doctor says of ONNX Runtime's plugin provider; its other checks are tested in tests/cli."""

from __future__ import annotations

from pathlib import Path

import pytest

from optkit.craft.backends.ort_rtx import WHEELS
from optkit.ground.execute.installed import installed
from optkit.verbs.api import doctor

MODULE = "onnxruntime_ep_nv_tensorrt_rtx"


def test_a_plugin_that_cannot_be_used_is_told_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its wheel is one with a library that is none: the driver is missing, or nothing loads."""
    (tmp_path / MODULE).mkdir()
    (tmp_path / MODULE / "__init__.py").write_text("def get_library_path():\n    return __file__\n")
    known = tmp_path / f"{MODULE}_cu13-0.5.0.dist-info"
    known.mkdir()
    name = known.name.partition("-")[0].replace("_", "-")
    (known / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 0.5.0\n")
    monkeypatch.setattr(doctor, "_LIBRARIES", ())
    shown = "RTX provider" in [check.what for check in doctor.diagnose()]
    assert shown == any(installed(wheel) for wheel in WHEELS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (told,) = (check for check in doctor.diagnose() if check.what == "RTX provider")
    assert (told.state, told.version, told.needed) == ("missing", "0.5.0", False)
    assert "no NVIDIA driver" in told.note or "does not load" in told.note
