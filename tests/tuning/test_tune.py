"""`optkit tune` on a real model: survey, search, judgement, artifact and the recipe again."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Json = dict[str, Any]


@pytest.fixture(scope="session")
def tuned(project: Any, tmp_path_factory: pytest.TempPathFactory) -> Json:
    """For `l4` under a limit on noise."""
    out = tmp_path_factory.mktemp("out")
    done = project.run("tune", "--target", "l4", "--min-sqnr", "30", "--trials", "6",
                       "--json", "--out", str(out))  # fmt: skip
    assert done.code == 0, done.err
    found: Json = done.result
    return found


@pytest.mark.slow
def test_result_keeps_its_budget_on_fresh_samples(tuned: Json) -> None:
    assert tuned["status"] == "ok"
    assert tuned["result"]["fidelity"]["sqnr_db"] >= 30
    assert tuned["budget"] == {
        "max_drop": 0.05, "min_sqnr": 30.0, "max_latency_ms": None, "max_bytes": None,
    }  # fmt: skip


@pytest.mark.slow
def test_front_is_monotone_and_has_the_chosen_one(tuned: Json) -> None:
    front = tuned["front"]
    assert front and sum(point["chosen"] for point in front) <= 1
    for a, b in itertools.permutations(front, 2):
        better = [a["latency_ms"] < b["latency_ms"], a["bytes"] < b["bytes"]]
        assert any(better) or a["sqnr_db"] is None or a["sqnr_db"] > b["sqnr_db"]


@pytest.mark.slow
def test_layers_are_ranked_by_what_they_cost(tuned: Json) -> None:
    shares = [row["share"] for row in tuned["layers"]]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1)
    assert {name for row in tuned["layers"] for name in row["layers"]} == {
        "layer0", "layer1", "layer2",
    }  # fmt: skip


@pytest.mark.slow
def test_recipe_builds_the_same_artifact_again(tuned: Json, project: Any, tmp_path: Path) -> None:
    import shlex

    words = shlex.split(tuned["command"])
    assert words[0] == "optkit"
    done = project.run(*words[1:], "--out", str(tmp_path / "again"), "--json")
    assert done.code == 0, done.err
    manifest = Path(json.loads(done.out)["artifact"]) / "manifest.json"
    assert json.loads(manifest.read_text())["digest"] == tuned["digest"]


@pytest.mark.slow
def test_files_lie_beside_the_artifact(tuned: Json) -> None:
    folder = Path(tuned["artifact"] + ".tune")
    assert json.loads((folder / "tune.json").read_text()) == tuned
    assert (folder / "front.svg").read_text().startswith("<svg")
    assert "| layers |" in (folder / "tune.md").read_text()
    assert f"<h1>{tuned['model']} " in (folder / "report.html").read_text()


@pytest.mark.slow
def test_budget_that_nothing_keeps_exits_3_with_the_best(project: Any, tmp_path: Path) -> None:
    done = project.run("tune", "--target", "l4", "--min-sqnr", "300", "--trials", "4",
                       "--json", "--out", str(tmp_path))  # fmt: skip
    assert done.code == 3, done.err
    found = done.result
    assert found["status"] == "gate_failed" and "nearest" in found["reason"]
    assert found["result"]["precision"] == "fp16"  # the most accurate there is
    assert Path(found["artifact"], "manifest.json").is_file()


def test_a_predicted_latency_out_of_reach_exits_3_too(project: Any, tmp_path: Path) -> None:
    """The gate itself is inconclusive: nothing was measured."""
    done = project.run("tune", "--target", "l4", "--max-latency", "0.0000001ms", "--trials", "3",
                       "--json", "--out", str(tmp_path))  # fmt: skip
    assert done.code == 3, done.err
    assert "nearest" in done.result["reason"] and done.result["status"] == "gate_failed"


@pytest.mark.slow
def test_size_budget_on_the_cpu(project: Any, tmp_path: Path) -> None:
    """Without a limit on accuracy: the most accurate that is small enough."""
    (project.folder / "plain.yaml").write_text(
        "name: plain\nmodel: {path: small.onnx}\ncalibration: {source: source.py, samples: 64}\n"
        "bench: {batches: [8], seconds: 0.2, warmup_seconds: 0.1}\n"
    )
    size = (project.folder / "small.onnx").stat().st_size // 2
    done = project.run("tune", "--recipe", "plain.yaml", "--target", "cpu", "--max-size",
                       str(size), "--trials", "6", "--json", "--out", str(tmp_path))  # fmt: skip
    assert done.code == 0, done.err
    found = done.result
    assert found["result"]["size"]["bytes"] <= size
    assert found["evidence"]["latency_ms"] == "measured"


def test_drop_without_a_task_is_refused_before_work(project: Any, tmp_path: Path) -> None:
    (project.folder / "plain.yaml").write_text("name: plain\nmodel: {path: small.onnx}\n")
    done = project.run("tune", "--recipe", "plain.yaml", "--target", "l4", "--max-drop", "1%",
                       "--json", "--out", str(tmp_path))  # fmt: skip
    assert done.code == 2
    assert done.result["error"]["code"] == "usage"
    done = project.run("tune", "--recipe", "plain.yaml", "--target", "l4", "--json",
                       "--out", str(tmp_path))  # fmt: skip
    assert done.code in (2, 5)


@pytest.mark.parametrize(
    "option",
    [
        ("--time", "soon"),
        ("--min-sqnr", "much"),
        ("--max-drop", "2"),
        ("--trials", "0"),
        ("--parallel", "2"),  # without a cluster
    ],
)
def test_limits_are_read_before_work(project: Any, option: tuple[str, str]) -> None:
    done = project.run("tune", "--target", "l4", *option, "--json")
    assert done.code == 2, done.err
    assert done.result["status"] == "error"


@pytest.mark.slow
def test_killed_ten_times_it_ends_as_if_undisturbed(fresh: Callable[[str], Any]) -> None:
    """kill -9 at points spread over the run; the same recipe, front and digest."""
    import random
    import time

    argv = ("tune", "--target", "l4", "--min-sqnr", "30", "--trials", "8", "--seed", "3",
            "--json", "--out", "out")  # fmt: skip
    calm, disturbed = fresh("calm"), fresh("disturbed")
    started = time.monotonic()
    whole = calm.run(*argv)
    seconds = time.monotonic() - started
    assert whole.code in (0, 3), whole.err
    rng, kills = random.Random(7), 0
    for _ in range(10):
        process = disturbed.start(*argv)
        try:
            process.wait(timeout=rng.uniform(0.5, 2.5) * seconds / 10)
        except Exception:
            process.kill()
            kills += 1
        process.communicate()
    assert kills >= 5
    resumed = disturbed.run(*argv)
    assert resumed.code == whole.code, resumed.err
    for key in ("front", "layers", "digest", "search", "reason"):
        assert resumed.result[key] == whole.result[key], key
    recipes = [p.folder / "out" for p in (calm, disturbed)]
    one, other = (next(r.glob("*.tune/recipe.yaml")).read_bytes() for r in recipes)
    drop = str(calm.folder).encode(), str(disturbed.folder).encode()
    assert one.replace(drop[0], b"") == other.replace(drop[1], b"")
