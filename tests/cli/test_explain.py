"""`optkit explain`: its text, its object, the recipe that it writes, and its refusals."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import optkit
from optkit import explaining
from optkit.explaining import Change, Cost, Finding
from optkit.recipe import Recipe
from optkit.runtime import Evidence

Optkit = Callable[..., Any]


@pytest.fixture
def run(optkit_here: Optkit, small: Path, store: Path) -> Optkit:
    return lambda *argv: optkit_here(*argv, cwd=small, cache=store)


CPU = "artifacts/small-cpu-int8"


def test_text_fits_a_terminal_and_says_how_each_figure_is_known(run: Optkit, built: Path) -> None:
    for artifact in (CPU, built / "digits-vit-l4-int8"):
        done = run("explain", artifact)
        assert done.code == 0, done.err
        title, *lines = done.out.splitlines()
        assert str(artifact) in title
        assert max(map(len, lines)) <= 80 and "\x1b" not in done.out
        assert any("time of layers (" in line for line in lines)


def test_the_object_is_valid_and_the_most_costly_comes_first(
    run: Optkit, built: Path, store: Path
) -> None:
    found = run("explain", built / "digits-vit-l4-int8", "--json").result
    assert (found["target"], found["precision"], found["baseline"]) == ("l4", "int8", "fp16")
    assert found["time"]["evidence"] == "predicted"
    together = sum(found["time"]["candidate"].values())
    assert together == pytest.approx(found["latency"]["p50_ms"], rel=1e-6)  # the same roofline
    shares = [one["cost"]["share"] for one in found["findings"] if not one["limit"]]
    assert shares == sorted(shares, reverse=True)
    assert found["layers_compared"]["samples"] == 16
    assert optkit.explain(built / "digits-vit-l4-int8", cache=store) == found


def test_kernels_of_the_cpu_are_timed_here(run: Optkit) -> None:
    found = run("explain", CPU, "--json").result
    assert found["time"]["evidence"] == "measured"
    assert found["time"]["candidate"]["product"] > 0


@pytest.fixture
def with_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finding, whatever the artifact."""
    change = Change("another range", {("calibration", "method"): "mse"})
    cost = Cost(0.5, Evidence.SIMULATED, db=3.0)
    one = Finding("clipped", "accuracy", "what", "why", ("first",), (), cost, change)
    monkeypatch.setattr(explaining, "RULES", (lambda subject: iter([one]),))


@pytest.mark.usefixtures("with_a_change")
def test_a_recipe_is_written_once_and_loads(run: Optkit, small: Path) -> None:
    new = small / "changed.yaml"
    try:
        found = run("explain", CPU, "--apply", new, "--json").result
        assert found["recipe"] == {"path": str(new), "missing": []}
        loaded = Recipe.load(new)
        assert loaded.calibration is not None and loaded.calibration.method == "mse"
        assert loaded.source is not None and loaded.calibration_source is not None
        again = run("explain", CPU, "--apply", new)
        assert again.code == 2
        again.told("it exists already", "name a new file")
    finally:
        new.unlink()


@pytest.mark.usefixtures("with_a_change")
def test_a_recipe_that_does_not_load_is_not_left(run: Optkit, tmp_path: Path) -> None:
    done = run("explain", CPU, "--apply", tmp_path / "changed.yaml")  # far from its files
    assert done.code == 2 and not (tmp_path / "changed.yaml").exists()
    done.told("write it beside the recipe")


def test_a_changed_artifact_is_refused(run: Optkit, small: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(small / CPU, tmp_path / "copy")
    (copy / "report.json").write_text("{}")
    done = run("explain", copy)
    assert done.code == 7
    done.told("report.json was changed")
