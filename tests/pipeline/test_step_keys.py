"""The keys of the demos' steps are what they were, so that a store keeps its hits.

Each step is recorded as its key sees it: name, version, tools, which step or file each input comes
from, and the parameters; besides, what it is told that is not in its key. Nothing runs: an executor
that returns prepared results stands for the worker. What differs between machines (versions of
compilers, the machine itself, digests of the checkout's files) is left out.

`python -m tests.pipeline.test_step_keys` writes the file anew: only where a key is meant to change.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from optkit.facts.codec import to_json
from optkit.facts.engines import BuildSpec, Engine, FusedLayer, Landing, LayerTensor
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Conditions, Difference, Fidelity, Interval, Latency, Score
from optkit.facts.precisions import PRECISIONS
from optkit.facts.tensors import TensorInfo
from optkit.ground import shipped, store
from optkit.ground.data import spool_writer
from optkit.ground.data.spool_writer import SpoolInfo
from optkit.ground.devices import target
from optkit.ground.execute.runner import Runner
from optkit.ground.execute.step import Foreign
from optkit.ground.execute.task import Task, TaskLimits
from optkit.ground.recipe import Recipe
from optkit.ground.store import Store, digest_file
from optkit.road.pipeline import BUILD, COMPILE, Build, Job, identity, layer_times
from optkit.road.pipeline.evaluation import score
from optkit.road.pipeline.peak_memory import weigh
from optkit.road.pipeline.timing import time
from optkit.road.steps.compare_layers import uncompared
from optkit.satellites.tuning.survey import survey
from optkit.satellites.tuning.trials import deviate
from tests.execute.test_runner import Ears

GOLDEN = Path(__file__).with_name("step_keys.json")
PLACES = ("home", "depends", "path", "file", "weights", "kept", "named", "checkpoint", "model",
          "folders")  # fmt: skip
HERE = ("versions", "content", "code", "host", "gpu", "fit")  # of this machine, and of files
GRAPH = {
    "parameters": 1000,
    "inputs": [["image", "float32", ["batch", 1, 8, 8]]],
    "outputs": [["digit", "float32", ["batch", 10]]],
}
FIDELITY = to_json(Fidelity(Evidence.SIMULATED, "fp32", 40.0, 1.0, 0.01, 8))
LATENCY = to_json(Latency(Evidence.MEASURED, 1.0, 8, 8000.0))
SCORE = to_json(Score(Evidence.SIMULATED, "top1", 0.9, Interval(0.8, 0.95), 64, True))
ENGINE = to_json(Engine("tensorrt", "l4", "an.engine", 9, (), Landing(0, 0, {})))
SPEEDUP = to_json(Difference(1.0, None, Evidence.MEASURED))
NODES = {"nodes": {"a": "int8", "b": "fp16"}, "reasons": {"b": "asked to leave it"}}
INFO = SpoolInfo(64, 2, 100, True, "0" * 64).to_json()
PREPARED: dict[str, dict[str, Any]] = {
    "export": {**GRAPH},
    "fuse": {"log": {}, "max_error": 0.0, **GRAPH},
    "cast": {"log": {}, **GRAPH},
    "collect": {"info": INFO, "metric": "top1", "scoring": {},
                "agreement": False, "whole": False, "paths": []},
    "check_data": {"check": {}},
    "random": {"info": INFO, "metric": None},
    "draw": {"info": INFO},
    "pick": {"info": INFO},
    "calibrate": {"values": 1, "samples": 64},
    "prepare": {"log": {}, "max_error": 0.0, **GRAPH},
    "noisy_nodes": {"noise": 0.0001, "others": 0.0},
    "quantize": {"log": {}, "assignment": NODES, **GRAPH},
    "quantize_in_order": {"log": {}, "assignment": NODES, **GRAPH},
    "ort": {"log": {}, "in_place": [], "instruction_set": None, **GRAPH},
    "accept": {},
    "compile": {"engine": ENGINE},
    "evaluate": {"score": SCORE},
    "compare": {"fidelity": FIDELITY},
    "compare_layers": {"layers": uncompared("nothing").to_json()},
    "bench": {"rows": [{"engine": LATENCY, "baseline": LATENCY, "speedup": SPEEDUP}],
              "conditions": Conditions().to_json()},
    "predict": {"latency": LATENCY, "covered": True},
    "peak": {"bytes": 9, "marks": []},
    "survey": {"layers": [{"node": "a", "reads": "x", "precisions": ["int8"], "cost": {
        "op": "MatMul", "macs": 1000, "weight_bytes": 10, "in_bytes": 10, "out_bytes": 10}}],
        "reasons": {}},
    "sensitivity": {"rows": [{"noise": 0.1, "samples": 8, "divergence": None}]},
    "deviate": {"deviation": {"noise": 0.1, "samples": 8, "divergence": None}},
    "padding": {"tokens": None},
    "attribute": {"times": {"candidate": [], "baseline": [], "nodes": {}}},
    "predict_layers": {"times": {"candidate": [], "baseline": [], "nodes": {}}},
}  # fmt: skip
BUILDS = {  # recipe, target, its compiler here, whether it runs here, settings
    "vit for l4, no engine": ("digits-vit", "l4", None, False, []),
    "vit for l4, compiled": ("digits-vit", "l4", "tensorrt", False, ["eval.stop_early=true"]),
    "vit on l4": ("digits-vit", "l4", "tensorrt", True, ["gates.max_memory_bytes=1000"]),
    "cnn on cpu": ("digits-cnn", "cpu-avx512-vnni", "onnxruntime", True,
                   ["gates.max_memory_bytes=1000"]),
}  # fmt: skip


EXPLAINED = ("kernels", "an engine", "a prediction")


class Recorder:
    """Performs no step; tells of each what its key and its worker see."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[dict[str, Any]] = []
        self.made: dict[str, str] = {}  # digest → which run of which step
        self._count: Counter[str] = Counter()
        self._identities: dict[str, Any] = {}
        self.runner = Runner(Store(root), TaskLimits(8 << 30), Ears(), self._perform)
        digest = store.digest_json

        def spied(body: Any) -> str:
            if isinstance(body, dict) and {"step", "version", "inputs", "params"} <= body.keys():
                self._identities[body["step"]] = body
            return digest(body)

        monkeypatch.setattr(store, "digest_json", spied)

    def _perform(self, task: Task, *args: Any, **more: Any) -> dict[str, Any]:
        step, identity = task.step, self._identities[task.step]
        name = f"{step} {self._count[step]}"
        self._count[step] += 1
        out = Path(task.out)
        if step == "collect":  # the samples of two sources are compared
            feeds = [{"x": np.float32([[len(self.made), row]])} for row in range(8)]
            spool_writer.write(feeds, out, [TensorInfo("x", "float32", ("batch", 2))],
                        limit_samples=None, memory_bytes=1 << 20, progress=_quiet)  # fmt: skip
        (out / "model.onnx").write_text(name)
        files = {file.name: digest_file(file) for file in out.iterdir()}
        self.made[store.digest_json(files)] = name
        inputs = {
            role: self.made.get(digest, "a file") for role, digest in identity["inputs"].items()
        }
        params = identity["params"]
        beside = {key: value for key, value in task.params.items()
                  if key not in params and value is not None}  # fmt: skip
        self.steps.append({
            "step": step, "version": identity["version"], "tools": sorted(identity["tools"]),
            "inputs": inputs, "params": masked(params, HERE),
            "beside": masked(beside, PLACES), "stays": task.stays, "shards": task.shards,
            "here": task.here,
        })  # fmt: skip
        return json.loads(json.dumps({**PREPARED[step], "warnings": []}))  # type: ignore[no-any-return]


def _quiet(what: str, fraction: float) -> None: ...


class Explained:
    """What `explain` asks of an artifact and of this machine, for the three ways to time layers."""

    def __init__(self, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(layer_times, "staged_graph", lambda file, runner: Foreign(file))
        recipe = Recipe.load(shipped.root() / "recipes" / "digits-vit.yaml")
        monkeypatch.setattr(layer_times, "recorded", lambda artifact: recipe)
        device = "cpu-avx512-vnni" if name == "kernels" else "l4"
        gpus = [SimpleNamespace(target=device)] if name == "an engine" else []
        monkeypatch.setattr(layer_times, "gpus", lambda: SimpleNamespace(devices=gpus))
        backend = "onnxruntime" if name == "kernels" else "tensorrt"
        engine = SimpleNamespace(file="an.engine", backend=backend)
        image = TensorInfo("image", "float32", ("batch", 1, 8, 8))
        self.artifact: Any = SimpleNamespace(
            path=folder, baseline_path=folder / "baseline", digest="0" * 64,
            require_own_engine=lambda: None, plugins=None,
            manifest=SimpleNamespace(target=device, engine=engine, files={}, data={},
                                     inputs=(image,)),
        )  # fmt: skip
        tensor = LayerTensor(name="x", shape=(8, 2), dtype="int8")
        layer = FusedLayer(
            name="fc", kind="gemm", inputs=(tensor,), constants=(), outputs=(tensor,),
            nodes=("fc",), products=("fc",), dtype="int8",
        )  # fmt: skip
        profile = {"image": ((1, 1, 8, 8), (8, 1, 8, 8), (32, 1, 8, 8))}
        spec = BuildSpec(backend, device, None, "int8", profile, None)
        self.report: Any = SimpleNamespace(
            provenance=SimpleNamespace(build_spec={"engine": spec}),
            layers=SimpleNamespace(engine=(layer,), baseline=(layer,)),
            result=SimpleNamespace(engine=None),
        )


def masked(params: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The parameters, with those of these names as "there"; None stays."""
    return {key: "there" if key in names and value is not None else value
            for key, value in params.items()}  # fmt: skip


def recorded(name: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a build asks for, step by step, and what `manifest.digest` is made of."""
    recipe, device, backend, here, settings = BUILDS[name]
    file = shipped.root() / "recipes" / f"{recipe}.yaml"
    job = Job(Recipe.load(file).with_overrides(settings), target(device), PRECISIONS["int8"])
    build = Build(job, backend, () if backend else ("tensorrt",),
                  PRECISIONS["fp32" if job.target.is_cpu else "fp16"], measured=here)  # fmt: skip
    recorder = Recorder(root, monkeypatch)
    monkeypatch.setattr("optkit.road.pipeline.evaluation.decided", lambda build: True)
    finishes = here and backend == "tensorrt"
    for stage in COMPILE if finishes else BUILD:
        stage(build, recorder.runner)
    if finishes:
        for role in ("baseline", "candidate"):
            graph = build.graph if role == "candidate" else build.baseline
            found = score(build, recorder.runner, role, graph, "model.onnx", Evidence.MEASURED)
            build.scores[role] = found
        time(build, recorder.runner)
        weigh(build, recorder.runner)
    survey(build, (PRECISIONS["int8"],), recorder.runner)
    deviate(build, recorder.runner)
    bodies: list[Any] = []
    monkeypatch.setattr(store, "digest_json", lambda body: str(bodies.append(body)))
    identity(build)
    (body,) = (one for one in bodies if isinstance(one, dict) and "assignment" in one)
    named = {digest: f"{step}'s" for digest, step in recorder.made.items()}
    body = {key: body[key] for key in ("graph", "baseline", "statistics", "assignment", "spec",
                                       "target", "precision")}  # fmt: skip
    body["statistics"] = named.get(body["statistics"], body["statistics"])
    return {"steps": recorder.steps, "identity": body}


def explained(name: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `explain` asks for."""
    recorder = Recorder(root / "store", monkeypatch)
    subject = Explained(name, root, monkeypatch)
    layer_times._times(subject.artifact, subject.report, recorder.runner)
    return recorder.steps[-1]  # of kernels, random inputs come first


@pytest.mark.parametrize("name", BUILDS)
def test_keys_are_what_they_were(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = json.loads(GOLDEN.read_bytes())[name]
    found = json.loads(json.dumps(recorded(name, tmp_path, monkeypatch)))
    for one, other in zip(found["steps"], expected["steps"], strict=True):
        assert one == other
    assert found["identity"] == expected["identity"]


@pytest.mark.parametrize("name", EXPLAINED)
def test_keys_of_explain_are_what_they_were(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = json.loads(GOLDEN.read_bytes())["explain"][name]
    assert json.loads(json.dumps(explained(name, tmp_path, monkeypatch))) == expected


def main() -> None:
    """Write the file anew."""
    import tempfile

    found: dict[str, Any] = {"explain": {}}
    for name in EXPLAINED:
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patches:
            found["explain"][name] = explained(name, Path(folder), patches)
    for name in BUILDS:
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patches:
            found[name] = recorded(name, Path(folder), patches)
    text = json.dumps(found, sort_keys=True)
    GOLDEN.write_text(re.sub(r"(\[|, )(?=\{\"beside\")", r"\1\n", text) + "\n")


if __name__ == "__main__":
    main()
