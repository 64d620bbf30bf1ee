"""What the user brings: the model as one graph, and samples, spooled once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optkit.errors import InputRefused, located
from optkit.execute.runner import Input, Made, Steps
from optkit.pipeline.job import Build, Foreign
from optkit.recipe import Recipe
from optkit.runtime import TensorInfo
from optkit.steps import STEPS


def export(made: Build, runner: Steps) -> None:
    """source → graph: ONNX, opset ≥ 21, compared with the model it came from."""
    job = made.job
    if job.graph is not None:
        entry = runner.step(
            STEPS["adopt"].kind, "adopt the exported graph", {"model": job.graph}, {}
        )
    else:
        entry = _export(job.recipe, job.code, runner)
    made.entries["source"] = entry
    declared = [[name, part.dtype, part.shape] for name, part in job.recipe.inputs.items()]
    made.inputs = infos(entry.meta.get("inputs", declared))
    made.outputs = infos(entry.meta.get("outputs", []))


def signature(recipe: Recipe, runner: Steps) -> tuple[TensorInfo, ...]:
    """The inputs of an ONNX model as it has them itself, where the recipe declares none."""
    entry = _export(recipe, None, runner)
    return infos(entry.meta["inputs"])


def collect(made: Build, runner: Steps) -> None:
    """Samples for calibration and evaluation, spooled once; a sample must not serve both."""
    recipe, job = made.job.recipe, made.job
    if job.calibration is not None:
        made.entries["calibration"] = job.calibration
    elif recipe.calibration is not None:
        made.entries["calibration"] = _samples(made, runner, "calibration")
    if recipe.eval is not None:
        made.entries["evaluation"] = _samples(made, runner, "evaluation")
    found = made.entries.keys() & {"calibration", "evaluation"}
    if len(found) == 2 and made.entries["evaluation"].files and made.entries["calibration"].files:
        _keep_apart(made)
    if found:
        made.entries["probe"] = made.entries.get("evaluation") or made.entries["calibration"]
    else:
        made.entries["probe"] = runner.step(STEPS["random"].kind, "random inputs", {}, made.sizes)


def _export(settings: Recipe, code: Path | None, runner: Steps) -> Made:
    from optkit import stage

    source, objects = settings.source, runner.objects
    if source is None:
        raise InputRefused(
            "no model", where=settings.name, hint="name MODEL, or `model:` in the recipe"
        )
    recipe = settings.to_json()
    described = settings.describe()
    params = {"kind": source.kind, "inputs": described, "axes": recipe["axes"]}
    label = f"export {settings.name}"
    where = source.place.path if source.place is not None else None
    if source.kind == "onnx" and where is not None:
        model = stage.stage_onnx(where, objects)
        # its axes are its own, so profiles on the command line do not export it anew
        params = {"kind": "onnx", "inputs": described}
        with located(str(where)):
            return runner.step(STEPS["export"].kind, label, {"model": _foreign(model)}, params)
    if source.kind == "pt2" and where is not None:
        archive = stage.stage_pt2(where, objects)
        with located(str(where)):
            return runner.step(STEPS["export"].kind, label, {"model": _foreign(archive)}, params)
    params |= {"factory": recipe["model"]["factory"], "args": dict(source.args)}
    inputs: dict[str, Input] = {}
    if source.weights is not None:
        inputs["weights"] = _foreign(stage.stage_weights(source.weights.path, objects))
    here = {
        "file": None if where is None else str(where),
        "module": source.module,
        "attribute": source.attribute,
        "code": None if code is None else str(code),
        "weights": None if source.weights is None else str(source.weights.path),
    }
    place = str(here["file"] or here["code"])
    return runner.step_reading_code(STEPS["export"].kind, label, inputs, params, here, place=place)


def _foreign(staged: Any) -> Foreign:
    return Foreign(staged.path, staged.sha256)


def _samples(made: Build, runner: Steps, role: str) -> Made:
    recipe = made.job.recipe
    params: dict[str, Any]
    if role == "calibration":
        assert recipe.calibration is not None
        place, args = recipe.calibration_source, recipe.calibration.args
        params = {"limit": recipe.calibration.samples}
    else:
        assert recipe.eval is not None
        place, args, params = recipe.eval_task, recipe.eval.args, {"limit": None}
    assert place is not None
    params["function"] = place.attribute or "samples"
    return runner.step_reading_code(
        STEPS["collect"].kind,
        f"collect {role} samples",
        {},
        {**params, "what": str(place), "args": dict(args),
         "inputs": recipe.describe(made.inputs), "labelled": role == "evaluation"},
        {"path": str(place.path), "memory": runner.limits.memory_bytes // 4},
        place=str(place.path),
    )  # fmt: skip


def _keep_apart(made: Build) -> None:
    from optkit.data.spool import Spool, overlap

    shared = overlap(
        Spool(made.entries["calibration"].path), Spool(made.entries["evaluation"].path)
    )
    if shared:
        first = shared[0]
        raise InputRefused(
            f"{len(shared)} calibration samples are also evaluation samples; the first is "
            f"calibration sample {first[0]}, evaluation sample {first[1]}",
            where=made.job.recipe.name,
            hint="calibrate on data that the task does not score, or the accuracy means nothing",
        )


def infos(rows: Sequence[Any]) -> tuple[TensorInfo, ...]:
    return tuple(TensorInfo(name, dtype, tuple(shape)) for name, dtype, shape in rows)
