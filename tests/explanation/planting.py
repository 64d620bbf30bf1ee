"""Builds as `optkit build` makes them, of a quantized graph that a fault was planted into."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from optkit.ground import graph
from optkit.ground.execute.runner import Steps
from optkit.ground.recipe import Recipe
from optkit.ground.store import digest_file
from optkit.ground.workspace import Workspace
from optkit.road import jobs, pipeline
from optkit.road.pipeline import Build, Foreign, Job, delivery, judged_build
from optkit.road.pipeline.graphs import written
from optkit.road.pipeline.quantization import quantize
from tests.explanation.faults import Fault


def build(recipe: Recipe, target: str, out: Path, cache: Path, fault: Fault | None = None) -> Path:
    """The artifact of `recipe` in INT8 with that fault in its graphs."""
    runner = Workspace(cache).runner()
    job = Job(recipe, *jobs.pair(target, "int8"))
    folder = out / "planted"

    def plant(made: Build, steps: Steps) -> None:
        if fault is None:
            return
        entry = made.quantized
        assert entry is not None
        folder.mkdir(parents=True)
        for name in entry.files:
            model = graph.load(entry.file(name))
            fault(model)
            graph.save(model, folder / name)
        files = {name: digest_file(folder / name) for name in entry.files}
        planted = Foreign(folder, files["model.onnx"], entry.meta, files)
        found = made.quantized = replace(entry, folder=planted)
        made.graph = written(made, found, "int8", steps)

    stages: list[Any] = []
    for stage in pipeline.BUILD:
        stages += [stage, plant] if stage is quantize else [stage]
    made = pipeline.run(job, runner, stages)
    judged = judged_build.judge(made, runner.records, artifact=str(out / job.name))
    return delivery.deliver(made, judged, out, 1 << 20, runner.store).path
