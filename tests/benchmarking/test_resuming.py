"""A killed evaluation continues from its last write, and ends with the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optkit.craft.benchmarking import partial_results as resuming
from optkit.craft.benchmarking.accuracy import EvaluationTask
from optkit.craft.benchmarking.partial_results import PartialScores
from optkit.facts.evidence import Evidence
from optkit.facts.tensors import Feed
from tests.scoring import score

VALUES = np.random.default_rng(0).uniform(0, 1, (23, 2))
TASK = EvaluationTask(
    "m", lambda outputs, labels: outputs["x"], aggregate=lambda rows: float(rows.mean())
)


def batches(done: int = 0) -> Iterator[tuple[Feed, np.ndarray]]:
    for start in range(4 * done, 23, 4):
        part = VALUES[start : start + 4]
        yield {"x": part}, np.zeros(len(part))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch is written."""
    monkeypatch.setattr(resuming, "_SECONDS", 0.0)
    monkeypatch.setattr(resuming, "_SHARE", 0)


def killed(session: Any, folder: Path, after: int) -> None:
    """An evaluation that dies in its batch number `after`."""
    runs = 0

    def run(feed: Feed) -> Feed:
        nonlocal runs
        runs += 1
        if runs > after:
            raise KeyboardInterrupt
        return feed

    with pytest.raises(KeyboardInterrupt):
        score(session(run), batches(), TASK, evidence=Evidence.MEASURED, kept=PartialScores(folder))


@pytest.mark.parametrize("after", [0, 1, 3, 5])
def test_it_goes_on_and_ends_with_the_same_bits(session: Any, tmp_path: Path, after: int) -> None:
    whole = score(session(lambda feed: feed), batches(), TASK, evidence=Evidence.MEASURED)
    killed(session, tmp_path, after)
    ran = []
    kept = PartialScores(tmp_path)
    assert len(kept.scores) == after

    def run(feed: Feed) -> Feed:
        ran.append(len(feed["x"]))
        return feed

    found = score(session(run), batches(after), TASK, evidence=Evidence.MEASURED, kept=kept)
    assert found == whole and len(ran) == 6 - after


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff" * 99])
def test_a_damaged_file_is_not_used(session: Any, tmp_path: Path, damage: bytes) -> None:
    killed(session, tmp_path, 3)
    (tmp_path / "scores.safetensors").write_bytes(damage)
    assert PartialScores(tmp_path).scores == []


def test_nothing_is_kept_without_a_folder() -> None:
    kept = PartialScores(None)
    kept.add(np.ones(3))
    assert kept.samples == 3
