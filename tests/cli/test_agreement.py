"""A task of agreement through the command line: the candidate is compared with the baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import TASK

ALIKE = """
def score(outputs, labels):
    return outputs["y"].argmax(1).astype(float)

def agreement(scores, baseline):
    return (scores == baseline).astype(float)
"""


@pytest.mark.slow
def test_the_drop_is_what_the_two_do_not_agree_on(
    project: Path, store: Path, optkit_here: Any
) -> None:
    (project / "alike.py").write_text(TASK.partition("def score")[0] + ALIKE)
    asked = ("eval", "--target", "cpu", "--precision", "int8", "--eval", "alike.py", "--json")
    ran = optkit_here(*asked, cwd=project, cache=store)
    assert ran.code == 0, ran.err
    found, baseline = ran.json["accuracy"], ran.json["baseline_accuracy"]
    assert baseline["value"] == 1.0 and 0.9 < found["value"] < 1.0
    assert ran.json["drop"]["value"] == pytest.approx(1 - found["value"])
