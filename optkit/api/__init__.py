"""The public functions: a model or a path in, an Artifact out.

    optkit.build(model, example_inputs, calibration=loader, evaluate=fn, target="l4")
    optkit.build("model.py:create", recipe="digits-vit", target="l4")
    optkit.load("artifacts/digits-vit-l4-int8").run({"image": images})

The command line is a thin skin over this module: it parses, calls, prints.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optkit import content, pipeline
from optkit.api import objects
from optkit.errors import ToolchainMissing, UsageError
from optkit.execute.local import Limits
from optkit.execute.rehearsal import Line, Rehearsal
from optkit.execute.runner import Listener, Runner
from optkit.pipeline import Job
from optkit.recipe import Recipe
from optkit.store import Store
from optkit.target import Target, available_memory
from optkit.target import target as find_target

if TYPE_CHECKING:
    from optkit.api.tuned import Found
    from optkit.artifact import Artifact
    from optkit.execute.proxy import Proxy
    from optkit.tuning import Wish

Evaluate = Callable[["Proxy"], Any]
"""`evaluate(session) -> per-sample scores`, shape [samples]; higher is better."""

EMBED_EVAL = 64 * 2**20


class Silent:
    """A listener that hears nothing."""

    def start(self, step: str, label: str) -> None: ...

    def progress(self, what: str, fraction: float) -> None: ...

    def done(self, step: str, label: str, hit: bool, seconds: float) -> None: ...

    def note(self, text: str) -> None: ...


@dataclass(frozen=True)
class Built:
    """One build: its result object and where the artifact lies."""

    result: dict[str, Any]
    path: Path


def build(
    model: Any = None,
    example_inputs: Any = None,
    *,
    target: str,
    precision: str = "int8",
    recipe: str | Path | Mapping[str, Any] | None = None,
    calibration: Iterable[Any] | None = None,
    evaluate: Evaluate | None = None,
    out: str | Path = "artifacts",
    name: str | None = None,
    cache: str | Path | None = None,
    memory: int | None = None,
    listener: Listener | None = None,
) -> Artifact:
    """Build a verified artifact of `model` for a target.

    model: an nn.Module (then `example_inputs`: a tensor, tuple or dict, axis 0 the batch), or
    "file.py:factory", "x.onnx", "x.pt2"; None: the recipe's. calibration: an iterable of batches
    (dict by input name, tuple, or one array). evaluate: called with a session of the candidate and
    one of the baseline; returns one score per sample, shape [samples], higher is better. memory:
    bytes a step may use.

    Raises OptkitError subclasses (see optkit.errors). A failed gate does not raise: the artifact is
    written and marked, see `artifact.result["gate"]`.
    """
    runner = open_runner(
        cache=None if cache is None else Path(cache), memory=memory, timeout=None, listener=listener
    )
    chosen = pair(target, precision)
    if model is None or isinstance(model, str | Path):
        settings = resolve(None if model is None else str(model), recipe=recipe)
        job = Job(settings, *chosen, code=Path.cwd())
    else:
        job = objects.job(model, example_inputs, recipe, name, chosen, runner)
    if calibration is not None:
        job = replace(job, calibration=objects.spooled(calibration, job, runner))
    return load(_build(job, runner, Path(out), EMBED_EVAL, evaluate).path)


def tune(
    model: Any = None,
    example_inputs: Any = None,
    *,
    target: str,
    precisions: Iterable[str] = ("int8",),
    max_drop: float | None = None,
    min_sqnr: float | None = None,
    max_latency_ms: float | None = None,
    max_bytes: int | None = None,
    trials: int = 24,
    seconds: float | None = None,
    seed: int = 0,
    recipe: str | Path | Mapping[str, Any] | None = None,
    calibration: Iterable[Any] | None = None,
    evaluate: Evaluate | None = None,
    out: str | Path = "artifacts",
    name: str | None = None,
    cache: str | Path | None = None,
    memory: int | None = None,
    listener: Listener | None = None,
) -> Artifact:
    """Search for the fastest assignment of `precisions` to layers inside a budget, and build it.

    max_drop: a fraction of the metric; min_sqnr: dB; max_latency_ms at the tuned batch size;
    max_bytes of the engine. What is not given stays as the recipe's gates have it. The search stops
    after `trials` candidates or `seconds`. The other arguments are those of `build`. The recipe
    that builds the artifact again, and the front, lie in `<artifact>.tune` beside it.

    Raises OptkitError subclasses. A budget that nothing keeps does not raise: the artifact is the
    best there is, and its gate says so.
    """
    from optkit import tuning

    runner = open_runner(
        cache=None if cache is None else Path(cache), memory=memory, timeout=None, listener=listener
    )
    names = tuple(precisions)
    chosen, *_ = [pair(target, precision) for precision in names]
    if model is None or isinstance(model, str | Path):
        settings = resolve(None if model is None else str(model), recipe=recipe)
        job = Job(settings, *chosen, code=Path.cwd())
    else:
        job = objects.job(model, example_inputs, recipe, name, chosen, runner)
    if calibration is not None:
        job = replace(job, calibration=objects.spooled(calibration, job, runner))
    wish = tuning.Wish(
        tuning.Budget(max_drop, min_sqnr, max_latency_ms, max_bytes), names, trials, seconds, seed
    )
    return load(_tune(job, wish, runner, Path(out), EMBED_EVAL, evaluate).path)


def tune_one(
    *,
    recipe: Recipe,
    target: str,
    wish: Wish,
    out: Path,
    runner: Runner,
    embed_eval: int = EMBED_EVAL,
) -> Found:
    """`tune` for a resolved recipe, as the command line asks for it."""
    for precision in wish.precisions:
        pair(target, precision)
    job = Job(recipe, *pair(target, wish.precisions[0]), code=Path.cwd())
    return _tune(job, wish, runner, out, embed_eval, None)


def _tune(
    job: Job,
    wish: Wish,
    runner: Runner,
    out: Path,
    embed_eval: int,
    evaluate: Evaluate | None,
) -> Found:
    from optkit.api import tuned
    from optkit.pipeline import Build, findings
    from optkit.pipeline.findings import Judged

    scored = evaluate is not None or job.recipe.eval is not None
    limited = replace(job, recipe=tuned.limited(job.recipe, wish.budget, scored=scored))

    def judge(made: Build) -> Judged:
        scores = None if evaluate is None else objects.scores(evaluate, made, runner)
        return findings.judge(made, runner.records, artifact="", scores=scores)

    def build(job: Job) -> Path:
        return _build(job, runner, out, embed_eval, evaluate).path

    return tuned.tune(limited, wish, runner, out, build=build, judge=judge)


def load(path: str | Path) -> Artifact:
    """Open an artifact folder; its manifest is validated, `verify()` rehashes every file."""
    from optkit.artifact import Artifact

    return Artifact.load(Path(path))


def resolve(
    model: str | None = None,
    *,
    recipe: str | Path | Mapping[str, Any] | None = None,
    overrides: Iterable[str] = (),
    shapes: Mapping[str, str | None] | None = None,
    runner: Runner | None = None,
) -> Recipe:
    """The recipe that MODEL, --recipe, --set and the shape options mean together.

    Without `recipe`: the one in the model's folder, else the project's, else (with a model) one
    that says nothing but the model. `runner`: reads an ONNX model's own inputs, where `shapes` are
    given for inputs that no recipe declares. Raises UsageError when there is neither model nor
    recipe.
    """
    if isinstance(recipe, Mapping):
        found = Recipe.from_dict(recipe, model=model)
    elif recipe is not None:
        found = Recipe.load(content.find_recipe(str(recipe)), model)
    elif model is not None and Path(model).is_dir():
        found = Recipe.load(Path(model) / content.PROJECT_RECIPE)
    elif model is not None:
        found = Recipe.for_model(model)
    else:
        default = content.default_recipe(Path.cwd())
        if default is None:
            raise UsageError(
                "no model and no recipe",
                where="command line",
                hint="name MODEL or --recipe, or write an optkit.yaml (`optkit init MODEL`)",
            )
        found = Recipe.load(default)
    found = found.with_overrides(overrides)
    given = shapes or {}
    if not any(given.values()):
        return found
    own = None
    if not found.inputs and runner is not None and found.source and found.source.kind == "onnx":
        own = {info.name: info.shape for info in pipeline.signature(found, runner)}
    return found.with_shapes(
        min=given.get("min"), opt=given.get("opt"), max=given.get("max"), all=given.get("all"),
        inputs=own,
    )  # fmt: skip


def pair(target: str, precision: str) -> tuple[Target, str]:
    """Target and precision by name. Raises UnknownName, or Impossible where the matrix says no."""
    device = find_target(target)
    pipeline.check_pair(device, precision.lower())
    return device, precision.lower()


def open_store(cache: Path | None = None) -> Store:
    """The store at `cache`, $OPTKIT_CACHE or the user's cache folder."""
    if cache is None:
        named = os.environ.get("OPTKIT_CACHE")
        if named:
            cache = Path(named)
        else:
            import platformdirs

            cache = Path(platformdirs.user_cache_dir("optkit", appauthor=False))
    return Store(cache.expanduser().absolute())


def open_runner(
    *,
    cache: Path | None = None,
    memory: int | None = None,
    timeout: float | None = None,
    listener: Listener | None = None,
) -> Runner:
    """A runner over the store; memory defaults to half of what is available, timeout to an hour."""
    limits = Limits(memory or available_memory() // 2, timeout or 3600.0)
    return Runner(open_store(cache), limits, listener or Silent())


def build_one(
    *,
    recipe: Recipe,
    target: str,
    precision: str,
    out: Path,
    runner: Runner,
    embed_eval: int = EMBED_EVAL,
) -> Built:
    """`build` for a resolved recipe, as the command line asks for it."""
    job = Job(recipe, *pair(target, precision), code=Path.cwd())
    return _build(job, runner, out, embed_eval, None)


def _build(
    job: Job, runner: Runner, out: Path, embed_eval: int, evaluate: Evaluate | None
) -> Built:
    from optkit import artifact
    from optkit.pipeline import delivery, findings

    pipeline.check(job)
    artifact.prepare(out, job.name)
    made = pipeline.run(job, runner, pipeline.BUILD)
    scores = None if evaluate is None else objects.scores(evaluate, made, runner)
    judged = findings.judge(made, runner.records, artifact=str(out / job.name), scores=scores)
    path = delivery.deliver(made, judged, out, embed_eval, runner.store)
    return Built(judged.result, path)


def rehearse(*, recipe: Recipe, target: str, precision: str, cache: Path | None) -> list[Line]:
    """The steps of a build, which are in the store already, and what the others took before."""
    job = Job(recipe, *pair(target, precision), code=Path.cwd())
    limits = Limits(available_memory() // 2)
    with tempfile.TemporaryDirectory() as folder:
        rehearsal = Rehearsal(open_store(cache), limits, Path(folder) / "objects")
        pipeline.run(job, rehearsal, pipeline.BUILD)
    return rehearsal.lines


def export(model: str | Path | None = None, **options: Any) -> Path:
    """MODEL to ONNX in a new folder `out`. options: recipe, out, cache, memory, listener."""
    return _stage("export", model, **options)


def fuse(model: str | Path | None = None, **options: Any) -> Path:
    """MODEL to its fused `standard` form in a new folder. Options as for `export`."""
    return _stage("fuse", model, **options)


def quantize(model: str | Path | None = None, **options: Any) -> Path:
    """MODEL to a Q/DQ graph in a new folder. options: target, precision, and those of `export`."""
    return _stage("quantize", model, **options)


def compile(model: str | Path | None = None, **options: Any) -> Path:
    """MODEL to an engine in a new folder. Options as for `quantize`."""
    return _stage("compile", model, **options)


def bench(model: str | Path | None = None, **options: Any) -> dict[str, Any]:
    """Latency and speedup per batch size, each with its evidence. options: target, precision,
    recipe, cache, memory, listener."""
    return _figured("bench", model, **options)


def evaluate(model: str | Path | None = None, **options: Any) -> dict[str, Any]:
    """Accuracy, drop and fidelity, each with its evidence. Options as for `bench`."""
    return _figured("eval", model, **options)


def _stage(
    stage: str,
    model: str | Path | None,
    *,
    out: str | Path,
    recipe: str | Path | Mapping[str, Any] | None = None,
    target: str = "cpu",
    precision: str = "fp32",
    **limits: Any,
) -> Path:
    settings = resolve(None if model is None else str(model), recipe=recipe)
    files(
        stage, recipe=settings, target=target, precision=precision, out=Path(out),
        runner=open_runner(**limits),
    )  # fmt: skip
    return Path(out)


def _figured(
    stage: str,
    model: str | Path | None,
    *,
    target: str,
    recipe: str | Path | Mapping[str, Any] | None = None,
    precision: str = "int8",
    **limits: Any,
) -> dict[str, Any]:
    settings = resolve(None if model is None else str(model), recipe=recipe)
    return figures(
        stage, recipe=settings, target=target, precision=precision, runner=open_runner(**limits)
    )


_STAGES = {
    "export": (pipeline.EXPORT, "source"),
    "fuse": (pipeline.FUSE, "fused"),
    "quantize": (pipeline.QUANTIZE, "graph"),
    "compile": (pipeline.COMPILE, "engine"),
}


def files(
    stage: str, *, recipe: Recipe, target: str, precision: str, out: Path, runner: Runner
) -> dict[str, Any]:
    """Run the chain up to `stage` and put what it made into `out`, which must not exist yet.

    Returns {"out", "files", "notes", "details"}. Raises UsageError when `out` exists.
    """
    from optkit.pipeline import delivery

    if out.exists():
        raise UsageError("it exists already", where=str(out), hint="choose another --out")
    stages, role = _STAGES[stage]
    made = pipeline.run(Job(recipe, *pair(target, precision), code=Path.cwd()), runner, stages)
    if role not in made.entries:
        raise ToolchainMissing(
            f"no engine for {target} can be built on this machine",
            where=target,
            hint=f"`optkit build --target {target}` makes an artifact to finish on a host with it",
        )
    entry = made.entries[role]
    details = {key: value for key, value in entry.meta.items() if key != "reads"}
    names = delivery.copy_out(entry, out, details)
    return {"out": str(out), "files": names, "notes": _notes(details), "details": details}


def figures(
    stage: str, *, recipe: Recipe, target: str, precision: str, runner: Runner
) -> dict[str, Any]:
    """`bench` (latency and speedup per batch size) or `eval` (accuracy, drop, fidelity)."""
    from optkit.benchmarking import accuracy
    from optkit.pipeline import findings
    from optkit.report.result import plain, without_samples

    job = Job(recipe, *pair(target, precision), code=Path.cwd())
    found: dict[str, Any] = {
        "model": recipe.name,
        "target": job.target.name,
        "precision": precision,
    }
    if stage == "bench":
        made = pipeline.run(job, runner, pipeline.BENCH)
        times = findings.latencies(made)
        ratios = findings.speedups(made, times)
        return plain(
            {
                **found,
                "baseline": made.baseline_precision,
                "latency": [without_samples(one) for one in times["engine"]],
                "baseline_latency": [without_samples(one) for one in times["baseline"]],
                "speedup": [{"batch": n, **one.to_json()} for n, one in ratios.items()],
                "conditions": made.entries["latency"].meta.get("conditions", {}),
            }
        )
    made = pipeline.run(job, runner, pipeline.EVAL)
    scores = findings.task_scores(made)
    candidate, baseline = scores.get("candidate"), scores.get("baseline")
    drop = accuracy.drop(baseline, candidate) if candidate and baseline else None
    return plain(
        {
            **found,
            "baseline": made.baseline_precision,
            "accuracy": without_samples(candidate),
            "baseline_accuracy": without_samples(baseline),
            "drop": drop and drop.to_json(),
            "fidelity": findings.fidelity(made).to_json(),
        }
    )


def inspect(path: Path, *, runner: Runner) -> dict[str, Any]:
    """What an artifact (a folder, every file verified) or an ONNX file holds."""
    from optkit import stage
    from optkit.steps import STEPS

    found: dict[str, Any] = {"schema": "optkit.inspect/v1", "artifact": None}
    axes: dict[str, int] = {}
    model = path
    if path.is_dir():
        opened = load(path)
        opened.verify()
        manifest = opened.manifest
        found["artifact"] = {
            "name": opened.name,
            "digest": opened.digest,
            "files": len(manifest.files),
            "result": opened.result,
        }
        ranges = manifest.recipe.get("axes", {})
        axes = {name: sizes["opt"] for name, sizes in ranges.items()}
        model = opened.model_path
    staged = stage.stage_onnx(model, runner.store.objects)
    entry = runner.step(
        STEPS["summary"].kind, "read the graph",
        {"model": pipeline.Foreign(staged.path, staged.sha256)}, {"axes": axes},
    )  # fmt: skip
    return {**found, "path": str(path), "axes": axes, "graph": entry.meta["summary"]}


def diagnose() -> list[dict[str, Any]]:
    """What is installed, and whether it works: rows {what, state, version, needed, note}.

    state: ok, missing, or broken (installed but unusable). Nothing native is loaded here: what
    must be tried is tried in a worker.
    """
    from optkit.api import checks

    return checks.diagnose()


def _notes(details: Mapping[str, Any]) -> list[str]:
    """One line per rewrite or decision that a stage logged."""
    log = details.get("log") or {}
    rows = log.get("entries", ()) if isinstance(log, Mapping) else ()
    return [
        f"{row['rule']} {row['node']}: {row['outcome']}"
        + (f", {row['reason']}" if row.get("reason") else "")
        for row in rows
    ]
