"""A module in memory for several targets and precisions in one call."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import optkit
from optkit.facts import errors


def test_names_are_checked_before_any_work(tmp_path: Path) -> None:
    net, x = torch.nn.Linear(4, 2), torch.zeros(2, 4)
    silent = optkit.Workspace(tmp_path / "store", listener=None)
    with pytest.raises(errors.UnknownName, match="l5"):
        optkit.build_fleet(net, x, targets=["cpu", "l5"], out=tmp_path / "out", workspace=silent)
    with pytest.raises(errors.UsageError, match="nothing to build"):
        optkit.build_fleet(net, x, targets=[], out=tmp_path / "out", workspace=silent)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_pair_that_cannot_be_built_does_not_stop_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    net, batches = torch.nn.Linear(16, 4), [torch.randn(8, 16) for _ in range(4)]
    fleet = optkit.build_fleet(
        net, batches[0], targets=["t4", "cpu"], precisions=["fp8", "fp32"], name="net",
        calibration=iter(batches), out=tmp_path, defer=True,
        workspace=optkit.Workspace(tmp_path / "store", listener=None),
    )  # fmt: skip
    assert "no artifact: " in caplog.text and "Traceback" not in caplog.text
    results = {f"{one.target} {one.precision}": one for one in fleet.document.results}
    assert results["t4 fp8"].status == "impossible" and results["t4 fp8"].error is not None
    assert "cpu fp32" in fleet.artifacts and "t4 fp8" not in fleet.artifacts
    assert fleet.path == tmp_path / "net-fleet" and (fleet.path / "report.html").exists()
    assert repr(fleet).startswith("BuiltFleet('") and "impossible" in repr(fleet)
    steps = [step for step in fleet.document.steps if step.step == "export"]
    assert len([step for step in steps if not step.hit]) <= 1  # exported once
