"""The checks of experiments/tuning: what they call fresh and monotone is so."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import budgets
import killed
import numpy as np
import pytest
import searches


@pytest.mark.parametrize("samples", [2, 7])
def test_a_search_gets_nothing_of_the_fresh_half(samples: int, tmp_path: Path) -> None:
    arrays = {
        "calibration.input": np.arange(5.0),
        "calibration_labels": np.arange(5),
        "test.input": 100 + np.arange(float(samples)),
        "labels": np.arange(samples),
    }
    np.savez(tmp_path / "w2.npz", **arrays)
    searched, fresh = searches.split(tmp_path / "w2.npz", tmp_path / "halves")
    with np.load(searched.path) as one, np.load(fresh.path) as other:
        assert set(one.files) == set(arrays) and set(other.files) == {"test.input", "labels"}
        seen = {*one["calibration.input"], *one["test.input"]}
        assert not seen & set(other["test.input"])
        for name in other.files:
            assert (len(one[name]), len(other[name])) == (searched.samples, fresh.samples)
            assert np.array_equal(np.concatenate([one[name], other[name]]), arrays[name])


def point(latency_ms: float, sqnr_db: float | None, size: int) -> dict[str, Any]:
    return {"latency_ms": latency_ms, "sqnr_db": sqnr_db, "bytes": size}


@pytest.mark.parametrize(
    ("front", "expected"),
    [
        ([point(1, 30, 5), point(2, 40, 5), point(3, None, 9)], True),
        ([point(1, 30, 5), point(2, 20, 4)], True),  # slower and noisier, but smaller
        ([point(1, 30, 5), point(2, 30, 5)], False),  # beaten
        ([point(1, 30, 5), point(2, 20, 6)], False),
        ([point(2, 40, 5), point(1, 30, 5)], False),  # not in order
        ([point(1, None, 5), point(2, 99, 5)], False),  # equal outputs beat any noise
    ],
)
def test_monotone(front: list[dict[str, Any]], expected: bool) -> None:
    assert budgets.is_monotone(front) == expected


def test_every_limit_is_looked_at_on_fresh_data() -> None:
    tuned = {
        "budget": {"max_drop": 0.01, "min_sqnr": 40.0, "max_latency_ms": None, "max_bytes": 100},
        "result": {"latency": {"p50_ms": 1.0}, "size": {"bytes": 101}},
    }
    fresh = {
        "drop": {"value": 0.02, "ci95": [0.01, 0.03]},
        "accuracy": {"value": -4.9, "metric": "log_likelihood"},
        "baseline_accuracy": {"value": -4.8},
        "fidelity": {"sqnr_db": None},
    }
    rows = {next(iter(row["limit"])): row for row in budgets.limits(tuned, fresh)}
    assert {name: row["holds"] for name, row in rows.items()} == {
        "max_drop": False, "min_sqnr": True, "max_bytes": False,
    }  # fmt: skip
    assert rows["max_drop"]["perplexity"] == pytest.approx(np.exp(4.9))


def test_only_kills_of_what_still_ran_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every second attempt ends before it can be killed."""
    log, started = tmp_path / "log.txt", []

    def start(words: object, cache: Path, told: Path) -> subprocess.Popen[str]:
        started.append(words)
        told.write_text(f"  ... trial {len(started)}\n\n")
        code = "import time; time.sleep(60)" if len(started) % 2 else ""
        process = subprocess.Popen([sys.executable, "-c", code], text=True, stdout=subprocess.PIPE)
        if not code:
            process.wait()
        return process

    monkeypatch.setattr("searches.start", start)
    rows = list(killed.disturb(["tune"], tmp_path, log, 2.0, random.Random(0), kills=3))
    assert [row["kill"] for row in rows] == [1, 2, 3] and len(started) == 5
    assert [row["last_told"] for row in rows] == [f"... trial {n}" for n in (1, 3, 5)]


def test_another_recipe_or_digest_is_reported(tmp_path: Path) -> None:
    def found(name: str, recipe: str, digest: str) -> dict[str, Any]:
        file = tmp_path / name
        file.write_text(f"# Build it again: {name}\n{recipe}\n")
        same = {"front": [], "layers": [], "search": {}, "reason": None}
        return {**same, "digest": digest, "recipe": str(file)}

    calm = found("calm", "name: a", "1")
    equal = list(killed.compare(calm, found("same", "name: a", "1")))
    assert all(row["holds"] for row in equal) and len(equal) == 6
    other = list(killed.compare(calm, found("other", "name: b", "2")))
    assert [row["check"] for row in other if not row["holds"]] == ["digest", "recipe"]
