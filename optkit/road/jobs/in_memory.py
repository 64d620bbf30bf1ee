"""Objects in memory as parts of a job: modules, loaders, evaluation functions.

A module is exported in the caller's process, because it cannot be sent to a worker. The batches of
a loader are spooled. An evaluation function is called in the caller's process, with sessions whose
native code runs in workers. The keys of later steps contain the digests of the files.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from optkit.craft.benchmarking import accuracy
from optkit.facts import codec
from optkit.facts.errors import ExportFailed, InputRefused, UsageError, located
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Score, Scores
from optkit.facts.precisions import Precision, precision
from optkit.facts.tensors import Feed, TensorInfo
from optkit.ground import places
from optkit.ground.data import spool_writer
from optkit.ground.data.checking import Checker, rows_of
from optkit.ground.data.spool import varied
from optkit.ground.devices import Target
from optkit.ground.execute.proxy import Proxy
from optkit.ground.execute.runner import Runner
from optkit.ground.recipe import Recipe
from optkit.ground.runtimes import simulator
from optkit.ground.store import Entry, Meta, digest_file, digest_json
from optkit.road import pipeline
from optkit.road.jobs import batches
from optkit.road.jobs.batches import Array, Batch, Loader
from optkit.road.jobs.padded_axes import padded_axes
from optkit.road.pipeline import COMPARED, Build, Job
from optkit.road.steps.collect import Samples
from optkit.road.steps.file_names import GRAPH

if TYPE_CHECKING:
    from torch.nn import Module


Evaluate = Callable[[Proxy], Array | Sequence[float] | tuple[Array, Sequence[object]]]
"""`evaluate(session) -> scores`, one per sample, shape [samples]; higher is better. Or (scores,
groups), with what each sample belongs to, such as its clip."""

_BUILD = "build(model, example_inputs)"
_EVALUATE = "evaluate(session)"


def job(
    model: Module,
    example_inputs: Batch | None,
    recipe: Recipe | str | Path | Mapping[str, object] | None,
    name: str | None,
    pair: tuple[Target, Precision],
    runner: Runner,
    calibration: Iterable[Batch] | None = None,
) -> Job:
    """A job for an nn.Module: exported now, in this process.

    Axis 0 of every example input is the axis `batch`, and axes whose size differs in the
    calibration batches are dynamic, unless the recipe declares the inputs. Labels in an example
    batch that `forward` has defaults for are left out, and a note says so: with them the graph
    would compute a loss. Raises UsageError without example inputs, ExportFailed if torch cannot
    export the module.
    """
    from optkit.craft.sources import torch_module, wrappers

    example_inputs = _checked(model, example_inputs)
    model = wrappers.exportable(model, runner.listener.note)
    example_inputs = _without_optional_labels(model, example_inputs, runner)
    with located(_BUILD):
        feed = torch_module.named(model, example_inputs)
    loader = Loader(calibration)
    settings = _settings(recipe, name or type(model).__name__, feed, loader, runner)
    first = loader.peek(COMPARED)
    rows = _rows(settings, [batches.feed(batch, list(feed)) for batch in first])
    rows = rows or _rows(settings, [feed] if _has_values(feed) else [])
    try:
        graph = _exported(model, settings, rows, runner)
    except ExportFailed as error:
        raise _unfit(model, feed, first) or error from error.__cause__
    job = Job(settings, *pair, graph=graph)
    return job if loader.batches is None else with_calibration(job, loader.batches, runner)


def _settings(
    recipe: Recipe | str | Path | Mapping[str, object] | None,
    name: str,
    example: Feed,
    loader: Loader,
    runner: Runner,
) -> Recipe:
    """The recipe. One that is given as keys gets the inputs of the example, if it declares none."""
    if isinstance(recipe, Recipe):
        return recipe
    if recipe is not None and not isinstance(recipe, Mapping):
        return Recipe.load(places.find_recipe(str(recipe)))
    keys = {"name": name, **(recipe or {})}
    settings = Recipe.from_dict({"inputs": _declared(example), **keys})
    if loader.batches is None or "inputs" in keys:
        return settings
    first = loader.peek(pipeline.calibration_of(settings).samples)
    return Recipe.from_dict(_padded(keys, example, first, runner))


def _checked(model: Module, example_inputs: Batch | None) -> Batch:
    """The example inputs. Raises UsageError without them, or for a model that is no module."""
    if not callable(getattr(model, "forward", None)):
        hint = 'e.g. build(net, torch.zeros(1, 3, 224, 224), ...) or build("model.onnx", ...)'
        if isinstance(model, Mapping):
            hint = (
                "if it holds weights, create the module, load them with "
                "net.load_state_dict(weights), and give the module: build(net, example_inputs, ...)"
            )
        raise UsageError(
            f"the model must be an nn.Module or a path, not {type(model).__name__}",
            where=_BUILD,
            hint=hint,
        )
    if example_inputs is None:
        raise UsageError(
            "an nn.Module needs example_inputs",
            where=_BUILD,
            hint="e.g. build(net, torch.zeros(1, 3, 224, 224), ...): a tensor, a tuple of "
            "tensors, or a dict by argument name; axis 0 is the batch",
        )
    return example_inputs


def with_calibration(job: Job, loader: Iterable[Batch], runner: Runner) -> Job:
    """The job with the calibration batches of a loader instead of the recipe's source."""
    return replace(job, calibration=_spooled(loader, job, runner))


def _spooled(loader: Iterable[Batch], job: Job, runner: Runner) -> Samples:
    """Calibration batches from a loader (dict by input name, tuple or one array), in the store. The
    loader is read only until there are `calibration.samples` of the recipe."""
    infos = _inputs(job, runner)
    names = [info.name for info in infos]
    with (
        located("calibration"),
        _step(runner, "collect", "read the calibration batches"),
        runner.store.scratch() as folder,
    ):
        info = spool_writer.write(
            (batches.feed(batch, names) for batch in loader),
            folder,
            infos,
            limit_samples=pipeline.calibration_of(job.recipe).samples,
            memory_bytes=runner.limits.memory_bytes // 4,
            progress=runner.listener.progress,
            optional=job.recipe.optional_axes(),
        )

        def move(out: Path) -> Meta:
            for file in list(folder.iterdir()):
                file.rename(out / file.name)
            return {"info": info.to_json(), "metric": None}

        key = digest_json({"step": "spool", "version": 1, "digest": info.digest})
        return Samples.of(runner.store.make(key, "collect", move)[0])


def scores(evaluate: Evaluate, build: Build, runner: Runner) -> Scores:
    """Call the caller's function for candidate and baseline.

    It returns one score per sample, shape [samples], in the same order each time: the drop is
    judged on pairs. Raises InputRefused for a single number, for scores that are not finite, and
    if the two differ in length.
    """
    level = "all" if build.measured else "basic"

    def score(role: str, graph: Path) -> Score:
        with (
            _step(runner, "evaluate", f"evaluate {role}"),
            Proxy(graph, {"level": level}, runner.limits, _scratch(runner)) as session,
        ):
            return score_of(evaluate(session), build.evidence)

    candidate = score("candidate", build.graph.file(build.simulation))
    if build.is_baseline:
        return Scores(candidate, candidate)
    baseline = score("baseline", build.baseline.file(build.baseline_simulation))
    if candidate.samples != baseline.samples:
        raise InputRefused(
            f"evaluate() returned {candidate.samples} scores for the candidate, "
            f"{baseline.samples} for the baseline",
            where=_EVALUATE,
            hint="score the same samples in the same order each time",
        )
    return Scores(candidate, baseline)


def score_of(returned: object, evidence: Evidence) -> Score:
    """The score that the caller's function returned: one finite number per sample, shape [samples],
    and perhaps the group of each. Raises InputRefused for anything else."""
    returned, groups = _parted(returned)
    try:
        values = np.asarray(batches.array(returned), dtype=np.float64)
    except (TypeError, ValueError):
        values = np.empty((0, 0))
    if values.ndim != 1 or not values.size:
        raise InputRefused(
            f"evaluate() returned {repr(returned)[:60]}",
            where=_EVALUATE,
            hint="return one score per sample, shape [samples]: a single mean has no interval",
        )
    if not np.isfinite(values).all():
        first = int(np.flatnonzero(~np.isfinite(values))[0])
        raise InputRefused(
            f"evaluate() returned {values[first]}",
            where=f"{_EVALUATE}, sample {first}",
            hint="every score must be a finite number",
        )
    if groups and len(groups) != len(values):
        raise InputRefused(
            f"evaluate() returned {len(groups)} groups for {len(values)} scores",
            where=_EVALUATE,
            hint="return (scores, groups), with one group per sample",
        )
    return accuracy.from_samples(
        values, metric="score", evidence=evidence, groups=accuracy.numbered(groups)
    )


def _parted(returned: object) -> tuple[object, list[str]]:
    """Scores and groups of a pair of both; no groups for scores alone."""
    pair = isinstance(returned, tuple) and len(returned) == 2
    if not isinstance(returned, tuple) or not pair or not all(map(np.ndim, returned)):
        return returned, []
    return returned[0], [str(name) for name in np.asarray(returned[1]).tolist()]


def _exported(model: Module, recipe: Recipe, samples: Sequence[Feed], runner: Runner) -> Entry:
    from optkit.craft.sources import torch_module

    with (
        located(type(model).__name__),
        _step(runner, "export", f"export {recipe.name}"),
        runner.store.scratch() as folder,
    ):
        file = folder / GRAPH
        log = torch_module.export(
            model,
            recipe.describe(),
            recipe.axis_ranges(),
            file,
            session=lambda path: simulator().session(path),
            progress=runner.listener.progress,
            samples=samples,
        )
        for warning in log.warnings:
            runner.listener.note(warning)
        names = sorted(path.name for path in folder.iterdir())

        def move(out: Path) -> Meta:
            for name in names:
                (folder / name).rename(out / name)
            return {"log": codec.to_json(log)}

        key = digest_json(
            {"step": "memory", "files": [digest_file(folder / name) for name in names]}
        )
        return runner.store.make(key, "export", move)[0]


def _rows(recipe: Recipe, feeds: Sequence[Feed]) -> list[Feed]:
    """A few of the samples in these batches, one in each feed. Batches that do not fit the inputs
    are left out: those that the build uses are refused when they are read."""
    infos = [spec.info for spec in recipe.describe()]
    rows: list[Feed] = []
    for given in feeds:
        try:
            checker = Checker(infos, recipe.optional_axes())
            feed, count = checker.feed(given, 0)
        except InputRefused:
            continue
        whole = checker.fixed is not None
        rows += (
            [feed]
            if whole
            else [rows_of(feed, checker.batched, slice(row, row + 1)) for row in range(count)]
        )
    return varied(rows, COMPARED)


def _has_values(example: Feed) -> bool:
    """Whether the example is more than a shape: not zeros or ones only."""
    floats = [array for array in example.values() if array.dtype.kind == "f"]
    integers = [array for array in example.values() if array.dtype.kind in "iu"]
    return any(array.size and array.min() < array.max() for array in floats or integers)


@contextmanager
def _step(runner: Runner, name: str, label: str) -> Iterator[None]:
    """A step of this process, as the listener sees it."""
    started = time.monotonic()
    runner.listener.start(name, label)
    try:
        yield
    except BaseException:
        runner.listener.failed(name, label)
        raise
    runner.listener.done(name, label, False, time.monotonic() - started)


def _inputs(job: Job, runner: Runner) -> tuple[TensorInfo, ...]:
    """The graph's inputs: known from the recipe, else from the exported graph."""
    # FP32 needs no calibration samples, and there are none yet; nothing is compiled
    job = replace(job, precision=precision("fp32"), deferred=True)
    return pipeline.run(job, runner, pipeline.EXPORT).inputs


def _without_optional_labels(model: Module, example: Batch, runner: Runner) -> Batch:
    """The example without the labels that `forward` has a default for."""
    if not isinstance(example, Mapping):
        return example
    parameters = inspect.signature(model.forward).parameters
    labels = [
        name
        for name in batches.LABELS
        if name in example
        and name in parameters
        and parameters[name].default is not inspect.Parameter.empty
    ]
    if not labels:
        return example
    runner.listener.note(f"the graph is built without {', '.join(labels)} of the example batch")
    return {name: value for name, value in example.items() if name not in labels}


def _declared(example: Feed, names: Mapping[tuple[str, int], str] = {}) -> dict[str, object]:
    """`inputs` of a recipe. `names`: the names of axes, by input and axis."""

    def shape(name: str) -> list[int | str]:
        sizes = enumerate(example[name].shape)
        return [names.get((name, axis), size) if axis else "batch" for axis, size in sizes]

    return {
        name: {"dtype": str(value.dtype), "shape": shape(name)} for name, value in example.items()
    }


def _padded(
    keys: Mapping[str, object], example: Feed, first: Sequence[Batch], runner: Runner
) -> dict[str, object]:
    """The keys of a recipe with `inputs` and `axes`: axes whose size differs in the batches `first`
    are dynamic."""
    names = list(example)
    sizes = {name: value.shape for name, value in example.items()}
    found = padded_axes([sizes, *(batches.shapes(batch, names) for batch in first)])
    for axis in found:
        runner.listener.note(axis.note)
    places = {place: axis.name for axis in found for place in axis.places}
    given = keys.get("axes")
    axes = {axis.name: axis.range for axis in found}
    if isinstance(given, Mapping):
        axes |= given
    return {**keys, "inputs": _declared(example, places), "axes": axes}


def _unfit(model: Module, example: Feed, first: Sequence[Batch]) -> InputRefused | None:
    """The error for the first calibration batch whose shape the module cannot run on, although it
    runs on the example; None if there is no such batch."""
    from optkit.craft.sources import torch_module

    sample = 0
    for batch in first:
        feed = batches.feed(batch, list(example))
        other = [n for n in example if n in feed and feed[n].shape[1:] != example[n].shape[1:]]
        if other and feed.keys() == example.keys() and torch_module.runs(model, example):
            same_dtypes = {name: feed[name].astype(example[name].dtype) for name in example}
            if not torch_module.runs(model, same_dtypes):
                takes = f"[{', '.join(map(str, ('batch', *example[other[0]].shape[1:])))}]"
                return InputRefused(
                    f"its shape is {list(feed[other[0]].shape)}, but the model takes {takes}",
                    where=f"calibration, sample {sample}, input {other[0]!r}",
                    hint=f"give calibration batches of shape {takes}, like example_inputs: the "
                    "model runs on example_inputs, and fails on this batch",
                )
        sample += max((len(array) for array in feed.values() if array.ndim), default=1)
    return None


def _scratch(runner: Runner) -> Path:
    folder = runner.store.root / "tmp"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
