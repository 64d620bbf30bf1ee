"""Five changes that come again and again, each applied to a copy of the tree: they work there, and
take few files. CONTRIBUTING.md names them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.probes.probe import ROOT, Edit, Outdated, Probe, copied

NAMES = ("figure", "recipe_key", "precision", "calibration_method", "deploy_format")


@pytest.mark.parametrize("name", NAMES)
def test_a_probe_takes_few_files(name: str) -> None:
    probe: Probe = import_module(f"tests.probes.{name}").PROBE
    try:
        probe.contents(ROOT)
    except Outdated as error:
        pytest.fail(f"tests/probes/{name}.py: {error}", pytrace=False)
    print(f"{probe.what}: {len(probe.files)} files, {len(probe.edits)} places")
    assert len(probe.files) <= probe.most, f"{probe.what} takes more than {probe.most} files"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_probe_works(name: str, tmp_path: Path) -> None:
    copied(import_module(f"tests.probes.{name}").PROBE, tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", f"tests.probes.{name}"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("edit", "text", "message"),
    [
        (Edit("a.py", "b", "c"), "a", "a.py has the text 'b' 0 times, not once; look where"),
        (Edit("a.py", "b", "c"), "bb", "2 times"),
        (Edit("a.py", "b", "c"), None, "0 times"),
        (Edit("a.py", "", "c"), "a", "a.py exists"),
    ],
)
def test_an_edit_that_does_not_fit_is_told(edit: Edit, text: str | None, message: str) -> None:
    with pytest.raises(Outdated, match=message):
        edit.applied(text)
