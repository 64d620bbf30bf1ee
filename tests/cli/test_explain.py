"""`optkit explain`: its text, its object, the recipe that it writes, and its refusals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import optkit
from optkit.craft.backends import onnxruntime
from optkit.craft.backends.tensorrt_rtx import TensorRTRTX
from optkit.facts.codec import from_json
from optkit.facts.documents.explanation import EXPLAIN, Explained, ExplainFinding, FindingCost
from optkit.facts.documents.report import Report
from optkit.facts.engines import FusedLayer
from optkit.facts.evidence import Evidence
from optkit.ground import trust
from optkit.ground.artifact import Artifact
from optkit.ground.devices.gpus import Gpu, Gpus
from optkit.ground.execute.task import Task
from optkit.ground.recipe import Recipe
from optkit.ground.runtimes import SessionOptions
from optkit.ground.workspace import Workspace
from optkit.road.pipeline import job, layer_times
from optkit.road.steps import perform
from optkit.show import explanation
from optkit.show.explanation.words import advice
from optkit.show.report.contract import conform
from optkit.verbs.cli import explained

Optkit = Callable[..., Any]


@pytest.fixture
def run(optkit_here: Optkit, small: Path, store: Path) -> Optkit:
    return lambda *argv: optkit_here(*argv, cwd=small, cache=store)


CPU = "artifacts/small-cpu-int8"


def test_text_fits_a_terminal_and_says_how_each_figure_is_known(run: Optkit, built: Path) -> None:
    for artifact in (CPU, built / "digits-vit-l4-int8"):
        done = run("explain", artifact)
        assert done.code == 0, done.err
        lines = done.out.splitlines()
        assert "no precision makes faster" in " ".join(lines[:2])
        (title,) = (line for line in lines[:6] if line.startswith(f"{artifact}: "))
        lines.remove(title)
        assert max(map(len, lines)) <= 80 and "\x1b" not in done.out
        assert any("time of layers (" in line for line in lines)


def engine_of(built: Path) -> Any:
    """The TensorRT-RTX engine, beside which the latency is that of TensorRT."""
    report = json.loads((built / "digits-vit-l4-int8" / "report.json").read_text())
    engine = report["result"]["engine"]
    assert (engine["backend"], engine["serving"]) == ("tensorrt-rtx", "tensorrt")
    return engine


def test_the_object_is_valid_and_the_most_costly_comes_first(
    run: Optkit, built: Path, store: Path
) -> None:
    found = run("explain", built / "digits-vit-l4-int8", "--json").result
    assert (found["target"], found["precision"], found["baseline"]) == ("l4", "int8", "fp16")
    assert found["time"]["evidence"] == "predicted"
    together = sum(found["time"]["candidate"].values())
    latency = engine_of(built)["latency"]["p50_ms"]  # the same prediction, and copies over PCIe
    assert latency * (1 - 1e-3) < together < latency
    shares = [one["cost"]["share"] for one in found["findings"] if not one["limit"]]
    assert shares == sorted(shares, reverse=True)
    assert found["layers_compared"]["samples"] == 16
    assert (
        optkit.explain(built / "digits-vit-l4-int8", workspace=Workspace(store)).to_json() == found
    )


def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """An L4 in this machine, as far as anybody asks."""
    one = Gpu(0, "NVIDIA L4", 23034 << 20, "8.9", "580.65")
    for module in (layer_times, job):
        monkeypatch.setattr(module, "gpus", lambda: Gpus((one,), "nvml", None))


def test_an_engine_whose_device_is_here_tells_its_own_times(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps run in this process, over a session that has each layer take a millisecond."""
    artifact = Artifact.load(built / "digits-vit-l4-int8")
    layers = json.loads((artifact.path / "report.json").read_text())["layers"]
    opened: list[tuple[Path, SessionOptions]] = []

    class Session:
        inputs, outputs = artifact.manifest.inputs, artifact.manifest.outputs

        def __init__(self, model: Path, options: SessionOptions) -> None:
            opened.append((model, options))
            side = "baseline" if model.parent.name == "baseline" else "engine"
            self.layers = from_json(tuple[FusedLayer, ...], layers[side])

        def layer_times(self, feed: Any, products: Any, seconds: float) -> Any:
            assert feed["image"].shape == (8, 1, 8, 8)  # the optimum
            return [(layer, 1.0) for layer in self.layers]

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *exc: object) -> None: ...
        def run(self, feed: Any) -> Any: ...
        def close(self) -> None: ...

    here(monkeypatch)
    rtx = SimpleNamespace(session=Session, traits=TensorRTRTX.traits)
    monkeypatch.setattr("optkit.ground.runtimes.backend", lambda name: rtx)
    monkeypatch.setattr("optkit.road.steps.bodies.sessions.backend", lambda name: rtx)
    monkeypatch.setenv("OPTKIT_CACHE", str(tmp_path / "cache"))
    for file in artifact.manifest.files.values():  # engines that were compiled here
        trust.know(file.sha256)
    workspace = Workspace(tmp_path / "cache", executor=in_this_process)
    found = optkit.explain(artifact.path, workspace=workspace)
    assert found["time"]["evidence"] == "measured"
    assert found["time"]["note"] == "the engine's own profiler on this machine; batch 8"
    for side, listed in (("candidate", "engine"), ("baseline", "baseline")):
        assert sum(found["time"][side].values()) == len(layers[listed])
    assert [model.relative_to(artifact.path).as_posix() for model, _ in opened] == [
        "tensorrt-rtx.engine", "baseline/tensorrt-rtx.engine",
    ]  # fmt: skip
    assert all(options.target == "l4" for _, options in opened)
    known = {(one["rule"], one["cost"]["evidence"]) for one in found["findings"]}
    assert known == {("layout", "measured")}


def in_this_process(task: Task, *limits: Any, **more: Any) -> dict[str, Any]:
    inputs = {name: Path(path) for name, path in task.inputs.items()}
    return perform(task.step, inputs, task.params, Path(task.out), lambda *told: None)


def test_where_the_engine_does_not_run_its_layers_are_predicted_and_it_says_why(
    run: Optkit, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here(monkeypatch)
    found = run("explain", built / "digits-vit-l4-int8", "--json").result
    assert found["time"]["evidence"] == "predicted"
    note = (
        "each compiled layer by the performance model; TensorRT-RTX compiled them, and TensorRT, "
        "which serves here, may fuse otherwise; "
    )
    assert found["time"]["note"].startswith(note)
    assert "libcuda.so.1 does not load" in found["time"]["note"]


def test_kernels_of_the_cpu_are_timed_here(run: Optkit) -> None:
    found = run("explain", CPU, "--json").result
    assert found["time"]["evidence"] == "measured"
    assert found["time"]["candidate"]["product"] > 0


def test_kernels_of_the_cpu_are_timed_with_the_threads_of_the_latency_beside_them(
    run: Optkit, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = Artifact.load(small / CPU)
    artifact.manifest.recipe["bench"]["threads"] = 1
    asked: list[int | None] = []
    options = onnxruntime.native_options

    def noted(model: Path, session: SessionOptions) -> Any:
        asked.append(session.threads)
        return options(model, session)

    monkeypatch.setattr(onnxruntime, "native_options", noted)
    runner = Workspace(tmp_path / "cache", executor=in_this_process).runner()
    assert layer_times.subject(artifact, runner).times is not None
    assert asked == [1, 1]


def test_layers_without_tensors_have_no_bound(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = Artifact.load(built / "digits-vit-l4-int8")
    report = json.loads((artifact.path / "report.json").read_text())
    for layer in report["layers"]["engine"] + report["layers"]["baseline"]:
        layer.update(inputs=[], outputs=[])
    monkeypatch.setattr(layer_times, "report_of", lambda artifact: conform(report, Report))
    found = layer_times.subject(artifact, Workspace(tmp_path / "cache").runner())
    assert found.times is None and found.untimed == "its backend lists no tensors of its layers"


@pytest.fixture
def with_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finding, whatever the artifact."""
    change = advice("another range", {("calibration", "method"): "mse"})
    cost = FindingCost(0.5, "noise", Evidence.SIMULATED, db=3.0)
    one = ExplainFinding("clipped", "accuracy", "what", "why", ("first",), (), cost, change)
    monkeypatch.setattr(explanation, "RULES", (lambda subject: iter([one]),))


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


def explained_as(**changes: Any) -> Explained:
    """What is explained of an artifact of which hardly anything is known."""
    return conform({"schema": EXPLAIN, "artifact": "a", "target": "cpu", "precision": "int8",
                    "findings": [], **changes}, Explained)  # fmt: skip


def test_a_cost_is_reported_as_its_metric_s_drop_and_says_what_it_is_a_share_of() -> None:
    cost = {"share": 0.9, "of": "noise", "evidence": "predicted", "db": 3.0, "points": 0.045}
    one = {"rule": "clipped", "question": "accuracy", "what": "what", "why": "why", "nodes": [],
           "modules": [], "cost": cost, "change": {"text": "text", "recipe": []},
           "limit": False}  # fmt: skip
    score = {"metric": "perplexity", "value": 9.0, "proportion": False, "evidence": "simulated",
             "ci95": [8.0, 10.0], "samples": 9, "lower_is_better": True}  # fmt: skip
    part = explained_as(
        baseline="fp32", accuracy=score, untimed="no engine was compiled", findings=[one],
        drop={"value": 0.05, "ci95": None, "evidence": "simulated"},
    ).to_json()  # fmt: skip
    whole = {
        "parts": {"encoder": part, "decoder": {**part, "accuracy": {**score, "proportion": True}}},
        "left": [{"rule": "layout", "nodes": [], "text": "write it anew"}],
        "recipe": {"path": "r.yaml", "missing": ["model.path=net.onnx"]},
    }
    title, *lines = explained.text(explained_as(**whole)).splitlines()
    assert title == "a: int8 on cpu"
    assert "  the times of the layers are not known: no engine was compiled" in lines
    assert "1. 4.50 %, 3.0 dB (90% of the noise, predicted): clipped" in lines
    assert "1. 4.50 points, 3.0 dB (90% of the noise, predicted): clipped" in lines
    layers = {**one, "cost": {**cost, "of": "layers", "points": None, "ms": 1.0}}
    told = explained.text(explained_as(parts={"x": {**part, "findings": [layers]}}))
    assert "(90% of the layers' time, " in told
    assert lines[-1] == "  give again on the command line: --set model.path=net.onnx"


def test_a_changed_artifact_is_refused(run: Optkit, small: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(small / CPU, tmp_path / "copy")
    (copy / "report.json").write_text("{}")
    done = run("explain", copy)
    assert done.code == 7
    done.told("report.json was changed")


def test_each_fidelity_says_of_how_many_samples_it_is() -> None:
    outputs = {"sqnr_db": 29.62, "samples": 400, "reference": "fp32", "evidence": "simulated",
               "cosine": 1.0, "max_abs_error": 0.1}  # fmt: skip
    layers = {"sqnr_db": 27.31, "samples": 16, "evidence": "simulated"}
    found = explained_as(baseline="fp32", fidelity=outputs, layers_compared=layers)
    told = explained.text(found)
    assert "  outputs: SQNR 29.6 dB to FP32 over 400 samples (simulated)\n" in told
    assert "layers compared on 16 samples; outputs there: SQNR 27.3 dB to FP32" in told
