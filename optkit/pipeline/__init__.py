"""The story on one page, and the only place that knows the order.

    source ─export→ graph ─fuse→ graph ─┬─ calibrate (FP32) → statistics ─┐
                                        └─ cast FP16 (TensorRT family) ───┼─ quantize → graph ─┐
                                                   └─ baseline graph ──────────── compile → engines
    engines ─measure or predict→ latency;  graphs ─evaluate→ accuracy ─gate→ verdict → artifact

Each arrow is a step of the store, so running a build again is resuming it. On `cpu` there is no
cast: carriers and baseline are FP32. `findings` turns the steps' results into figures and a
verdict, `delivery` into an artifact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optkit import precision as precisions
from optkit import runtime, store
from optkit.errors import Impossible, InputRefused, ToolchainMissing, UsageError, located
from optkit.execute.runner import Input, Made, Steps, installed
from optkit.pipeline import large
from optkit.recipe import Recipe
from optkit.runtime import AxisRange, BuildSpec, Evidence, TensorInfo
from optkit.steps import GRAPH, SIMULATION, STEPS
from optkit.target import Target

_EXTRAS = {"onnxruntime": "cpu", "tensorrt-rtx": "rtx", "torch": "torch", "onnxscript": "torch"}
_VERSIONED = ("optkit", "torch", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "onnxruntime-gpu",
              "tensorrt-rtx", "tensorrt", "numpy", "ml-dtypes")  # fmt: skip
MIN_SAMPLES = 8  # for calibration
_BYTES_TO_COMPARE = 12  # per parameter: float32, of two sessions, one laying its copy out anew
# Calibration taps what any backend may ask for, so statistics are shared by all targets, and by
# all precisions: the others quantize no value that these do not.
_BACKENDS = tuple(runtime.BACKENDS)
_LEARNED = ("int8", "fp8")


@dataclass(frozen=True)
class Foreign:
    """A staged file or folder: what the store knows it by, and where it lies."""

    path: Path
    digest: str


@dataclass(frozen=True)
class Job:
    """One model for one target in one precision.

    `graph`, `calibration`: in the store already when they came from memory (an nn.Module, a
    loader); otherwise the recipe says where they come from. `code`: the folder from which
    package.module:factory is imported.
    """

    recipe: Recipe
    target: Target
    precision: str
    graph: Input | None = None
    calibration: Made | None = None
    code: Path | None = None

    @property
    def name(self) -> str:
        return f"{self.recipe.name}-{self.target.name}-{self.precision}"


@dataclass
class Build:
    """What the chain made: store entries by role, and facts about the job. All of it is on disk."""

    job: Job
    backend: str | None  # None: nothing compiles here for this target
    pending: tuple[str, ...]
    baseline_precision: str
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    specs: dict[str, BuildSpec] = field(default_factory=dict)
    entries: dict[str, Made] = field(default_factory=dict)

    @property
    def batch_axis(self) -> int | str | None:
        """Axis 0 of the first input, its name or its fixed size; None: no input has axes."""
        return next((info.shape[0] for info in self.inputs if info.shape), None)

    @property
    def batches(self) -> AxisRange | None:
        """The batch sizes that are built for."""
        axis = self.batch_axis
        if isinstance(axis, int):
            return AxisRange(axis, axis, axis)
        return self.job.recipe.axis_ranges().get(axis or "")

    @property
    def batch(self) -> int | None:
        """The batch size that is tuned for."""
        return self.batches.opt if self.batches else None

    @property
    def compiler(self) -> str:
        """The backend whose engine this is about: which compiles here, or else is pending."""
        return self.backend or self.pending[0]

    @property
    def is_baseline(self) -> bool:
        """FP16 on a GPU, FP32 on `cpu`: the candidate is the baseline itself."""
        return self.job.precision == self.baseline_precision

    @property
    def measured(self) -> bool:
        """Whether the target is this machine, so that running the graph is measuring it."""
        return self.job.target.name == "cpu"

    @property
    def simulation(self) -> str:
        """The file of `entries["graph"]` that ONNX Runtime runs for accuracy."""
        return SIMULATION if SIMULATION in self.entries["graph"].files else GRAPH

    @property
    def evidence(self) -> Evidence:
        return Evidence.MEASURED if self.measured else Evidence.SIMULATED


def run(job: Job, runner: Steps, stages: Sequence[Stage]) -> Build:
    """The chain for one job, as far as `stages` go. Raises whatever a step raises; finished steps
    stay in the store, so that the same call goes on where this one ended."""
    made = check(job)
    for stage in stages:
        stage(made, runner)
    return made


def signature(recipe: Recipe, runner: Steps) -> tuple[TensorInfo, ...]:
    """The inputs of an ONNX model as it has them itself, where the recipe declares none."""
    entry = _export(recipe, None, runner)
    return _infos(entry.meta["inputs"])


def check(job: Job) -> Build:
    """Refuse before work what cannot end well: precision, target, toolchain.

    Raises Impossible (the target's matrix says no), UnknownName (not built), ToolchainMissing.
    """
    for name in (job.precision, *_quantized(job)):
        check_pair(job.target, name)
    _check_samples(job)
    here, pending = None, []
    for option in job.target.default_backends:
        backend = runtime.backend(option.name)
        if backend.refuses(job.target, job.precision) is not None:
            continue
        if here is None and backend.offline(job.target) is None:
            here = option.name
        else:
            pending.append(option.name)
    _check_toolchain(job, here)
    return Build(job, here, tuple(pending), "fp32" if job.target.name == "cpu" else "fp16")


def check_pair(target: Target, precision: str) -> None:
    """Whether this precision can be had on this target at all. Raises Impossible or UnknownName."""
    scheme = precisions.precision(precision)
    reason = _why_not(target, scheme)
    if reason is not None:
        can = [p.name for p in precisions.PRECISIONS.values() if _why_not(target, p) is None]
        hint = f"{target.name} takes {', '.join(can)}" if can else "`optkit targets` lists others"
        raise Impossible(reason, where=f"{target.name} × {precision}", hint=hint)


def _why_not(target: Target, scheme: precisions.Precision) -> str | None:
    """What the hardware lacks, or else why no backend runs the precision."""
    for column in scheme.needs:
        if column in target.precisions:
            reason = target.why_not(column, of=scheme.name)
            if reason is not None:
                return reason
    if not target.default_backends:
        return f"no backend of optkit compiles for {target.title}"
    backends = [runtime.backend(option.name) for option in target.default_backends]
    reasons = [found.refuses(target, scheme.name) for found in backends]
    return None if None in reasons else reasons[0]


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
    made.inputs = _infos(entry.meta.get("inputs", declared))
    made.outputs = _infos(entry.meta.get("outputs", []))


def bound(made: Build, runner: Steps) -> None:
    """Every dynamic axis must have a range before anything is tuned for it. Raises UsageError."""
    ranges = made.job.recipe.axis_ranges()
    for info in made.inputs:
        for size in info.shape:
            if isinstance(size, str) and size not in ranges:
                raise UsageError(
                    f"the sizes of its dynamic axis {size!r} are not known",
                    where=f"input {info.name!r}",
                    hint="give --min-shapes, --opt-shapes and --max-shapes, or in the recipe "
                    f"axes: {{{size}: {{min: 1, opt: 8, max: 32}}}}",
                )


def fuse(made: Build, runner: Steps) -> None:
    """graph → graph: the `standard` form, compared before and after where memory allows it."""
    source = made.entries["source"]
    params, here = _comparison(made, runner, "fused")
    made.entries["fused"] = runner.step(STEPS["fuse"].kind, "fuse", {"graph": source}, params, here)


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
        made.entries["probe"] = runner.step(STEPS["random"].kind, "random inputs", {}, _sizes(made))


def carry(made: Build, runner: Steps) -> None:
    """The carriers: FP16 on GPUs, FP32 on a CPU; and the casts that the job asks for."""
    fused, entries = made.entries["fused"], made.entries
    wanted = {made.baseline_precision, made.job.precision}
    casts: dict[str, Made] = {
        name: _cast(fused, name, runner) for name in ("fp16", "bf16") if name in wanted
    }
    entries["carrier"] = casts.get(made.baseline_precision, fused)
    if casts:
        entries["cast"] = casts.get(made.job.precision, entries["carrier"])


def refer(made: Build, runner: Steps) -> None:
    """What the candidate is compared with: the carrier graph in the backend's own operators, so
    that a speedup is due to precision alone; and on a CPU the FP16 graph's accuracy."""
    entries = made.entries
    entries["baseline"] = _written(made, entries["carrier"], made.baseline_precision, runner)
    if "cast" not in entries:
        entries["cast"] = _cast(entries["fused"], "fp16", runner)


def _cast(graph: Made, carrier: str, runner: Steps, what: str = "") -> Made:
    label = f"cast {what}to {carrier.upper()}"
    return runner.step(STEPS["cast"].kind, label, {"graph": graph}, {"carrier": carrier})


def _written(made: Build, graph: Made, what: str, runner: Steps) -> Made:
    """The graph in the operators of ONNX Runtime, where that is the backend."""
    if made.compiler != "onnxruntime":
        return graph
    label = f"write {what} in ONNX Runtime's operators"
    return runner.step(STEPS["ort"].kind, label, {"graph": graph}, {})


def quantize(made: Build, runner: Steps) -> None:
    """Statistics of the FP32 graph, a form of it that quantizes better, then Q/DQ on the carrier as
    the backend's rules want it."""
    job, fused = made.job, made.entries["fused"]
    if not precisions.precision(job.precision).quantized:
        whole = job.precision == "fp32"
        made.entries["graph"] = (
            _written(made, fused, "fp32", runner) if whole else made.entries["cast"]
        )
        return
    rules = _rules_of(runtime.backend(made.compiler), job)
    inputs: dict[str, Input] = {"fused": fused, "carrier": made.entries["carrier"]}
    params = {"precision": job.precision, "carrier": made.baseline_precision, "rules": rules,
              **_settings(job.recipe)}  # fmt: skip
    way = large.way(
        made.entries["source"].meta.get("parameters", 0), runner.limits.memory_bytes, rules,
        job.recipe.quantization.weights, sampled="calibration" in made.entries, where=job.name,
    )  # fmt: skip
    if "calibration" in made.entries:
        _check_enough(made.entries["calibration"], job.recipe)
    if "calibration" in made.entries and way == "whole":
        statistics = _calibrate(made, runner)
        inputs["statistics"] = made.entries["statistics"] = statistics
    if "statistics" in inputs and _prepares(job):
        compared, here = _comparison(made, runner, "prepared")
        prepared = runner.step(
            STEPS["prepare"].kind,
            "smooth and equalize",
            {"graph": fused, "statistics": inputs["statistics"]},
            {**params, **compared},
            here,
        )
        inputs |= {"fused": prepared, "statistics": prepared, "carrier": prepared}
        made.entries["prepared"] = prepared
        if made.baseline_precision != "fp32":
            inputs["carrier"] = _cast(
                prepared, made.baseline_precision, runner, "the smoothed graph "
            )
    if way == "layers":
        found = _quantize_layers(made, runner, inputs, params)
    else:
        found = runner.step(STEPS["quantize"].kind, f"quantize to {job.precision}", inputs, params)
    made.entries["quantized"] = found
    made.entries["graph"] = _written(made, found, job.precision, runner)


def _quantize_layers(
    made: Build, runner: Steps, inputs: dict[str, Input], params: dict[str, Any]
) -> Made:
    memory = runner.limits.memory_bytes
    return runner.step(
        STEPS["quantize_layers"].kind,
        f"quantize to {made.job.precision} layer by layer",
        {**inputs, "samples": made.entries["calibration"]},
        {**params, "batch": _calibration_batch(made),
         "planned_memory": large.planned_memory(memory)},
        {"memory": memory},
    )  # fmt: skip


def _calibrate(made: Build, runner: Steps) -> Made:
    """Statistics that serve every quantized precision of every backend alike."""
    job = made.job
    families = [_rules_of(runtime.backend(name), job, _LEARNED) for name in _BACKENDS]
    return runner.step(
        STEPS["calibrate"].kind,
        "calibrate",
        {"graph": made.entries["fused"], "samples": made.entries["calibration"]},
        {"batch": _calibration_batch(made), "families": families,
         "moments": job.recipe.quantization.weights in ("auto", "gptq")},
        {"memory": runner.limits.memory_bytes},
    )  # fmt: skip


def _rules_of(
    backend: runtime.Backend, job: Job, names: Sequence[str] | None = None
) -> dict[str, Any]:
    """Precision → placement rules as JSON, of those the backend runs on the job's target; without
    `names`: the job's own and those its recipe gives to nodes. Raises Impossible for one of these.
    """
    if names is None:
        placed = job.recipe.quantization.placement.model_dump(mode="json", exclude_none=True)
        return {n: {**backend.rules(job.target, n).to_json(), **placed} for n in _quantized(job)}
    found = {}
    for name in names:
        with suppress(Impossible):
            found[name] = backend.rules(job.target, name).to_json()
    return found


def _settings(recipe: Recipe) -> dict[str, Any]:
    calibration = calibration_of(recipe)
    return {
        "method": calibration["method"],
        "percentile": calibration["percentile"],
        "settings": recipe.quantization.model_dump(mode="json"),
        # the last pattern that matches counts, and an object's keys have no order in a digest
        "order": list(recipe.quantization.nodes),
    }


def _prepares(job: Job) -> bool:
    """Whether the values themselves are quantized, so that their outliers matter, or AWQ asked for
    a rescaled graph."""
    settings = job.recipe.quantization
    takes_part = any(precisions.precision(name).activations for name in _quantized(job))
    return (takes_part and (settings.smooth, settings.equalize) != ("off", "off")) or (
        settings.weights == "awq"
    )


def compile_(made: Build, runner: Steps) -> None:
    """graph → engine, for candidate and baseline, with the backend's own layer list."""
    for role, graph, precision, planned in (
        ("engine", made.entries["graph"], made.job.precision, _planned(made)),
        ("baseline_engine", made.entries["baseline"], made.baseline_precision, {}),
    ):
        backend = runtime.backend(made.compiler)
        spec = backend.spec(made.inputs, made.job.target, precision, made.job.recipe.axis_ranges())
        made.specs[role] = spec
        if made.backend is not None:
            made.entries[role] = runner.step(
                STEPS["compile"].kind,
                f"compile {precision} for {made.job.target.name}",
                {"graph": graph},
                {"backend": made.backend, "spec": spec.to_json(), "planned": planned,
                 "versions": backend.versions(), "host": _host(made)},
            )  # fmt: skip


def evaluate(made: Build, runner: Steps) -> None:
    """Task scores of candidate, baseline and reference on the same samples; fidelity to FP32."""
    samples, entries = made.entries.get("evaluation"), made.entries
    reference = entries["cast"] if made.measured else entries["fused"]
    roles = {
        "candidate": (entries["graph"], made.simulation, made.evidence),
        "baseline": (entries["baseline"], GRAPH, made.evidence),
        "reference": (reference, GRAPH, Evidence.SIMULATED),
    }
    for role, (graph, file, evidence) in roles.items():
        params = {"file": file, "batch": made.batch, "evidence": evidence}
        if samples is not None:
            task, here = _task(made, samples)
            entries[f"{role}_score"] = runner.step(
                STEPS["evaluate"].kind,
                f"evaluate {role}",
                {"graph": graph, "samples": samples},
                {**params, **task},
                here,
            )
        entries[f"{role}_fidelity"] = runner.step(
            STEPS["compare"].kind,
            f"compare {role} with FP32",
            {"graph": graph, "reference": entries["fused"], "samples": entries["probe"]},
            params,
        )


def time(made: Build, runner: Steps) -> None:
    """Latency: measured beside the baseline where the target is this machine, else predicted."""
    bench, entries = made.job.recipe.bench, made.entries
    span = made.batches or AxisRange(1, 1, 1)
    batches = sorted({span.opt, *(n for n in bench.batches if span.min <= n <= span.max)})
    if made.measured:
        entries["latency"] = runner.step(
            STEPS["bench"].kind,
            "measure latency",
            {"graph": entries["graph"], "baseline": entries["baseline"],
             "samples": entries["probe"]},
            {"batches": batches, "seconds": bench.seconds, "warmup_seconds": bench.warmup_seconds,
             "threads": bench.threads, "host": made.job.target.fingerprint()},
        )  # fmt: skip
        return
    sizes = {name: axis.opt for name, axis in made.job.recipe.axis_ranges().items()}
    planned = _planned(made)
    for role, graph, engine, precision in (
        ("latency", "graph", "engine", made.job.precision),
        ("baseline_latency", "baseline", "baseline_engine", made.baseline_precision),
    ):
        compiled = entries.get(engine)
        quantized = precisions.precision(precision).quantized
        entries[role] = runner.step(
            STEPS["predict"].kind,
            "predict latency",
            # without an engine, a quantized graph is its carrier graph and the plan
            {"graph": entries[graph if compiled or not quantized else "baseline"]},
            {"name": made.job.target.name, "target": made.job.target.fingerprint(), "axes": sizes,
             "batch": span.opt, "engine": compiled and compiled.meta.get("engine"),
             "planned": planned if quantized else {},
             "carrier": made.baseline_precision if quantized else precision},
        )  # fmt: skip


Stage = Callable[[Build, Steps], None]

EXPORT: tuple[Stage, ...] = (export,)
FUSE: tuple[Stage, ...] = (export, fuse)
QUANTIZE: tuple[Stage, ...] = (export, fuse, collect, carry, quantize)
COMPILE: tuple[Stage, ...] = (export, bound, *QUANTIZE[1:], refer, compile_)
EVAL: tuple[Stage, ...] = (export, bound, *QUANTIZE[1:], refer, evaluate)
BENCH: tuple[Stage, ...] = (*COMPILE, time)
BUILD: tuple[Stage, ...] = (*COMPILE, evaluate, time)


def identity(made: Build) -> str:
    """`manifest.digest`: what was built, without engine bytes, timings, measurements and paths."""
    entries = made.entries
    return store.digest_json(
        {
            "recipe": made.job.recipe.to_json(),
            "target": made.job.target.name,
            "precision": made.job.precision,
            "graph": _model_files(entries["graph"]),
            "baseline": _model_files(entries["baseline"]),
            "statistics": entries["statistics"].digest if "statistics" in entries else None,
            "assignment": _assignment(made),
            "spec": {role: spec.to_json() for role, spec in sorted(made.specs.items())},
            "versions": tool_versions(),
        }
    )


def tool_versions() -> dict[str, str]:
    """Installed versions of everything that a build may depend on."""
    return {name: found for name in _VERSIONED if (found := installed(name)) is not None}


def calibration_of(recipe: Recipe) -> dict[str, Any]:
    """Method, percentile and batch; the defaults when the samples came from memory."""
    from optkit.recipe import Calibration

    found = recipe.calibration or Calibration(source="memory")
    return {"method": found.method, "percentile": found.percentile, "batch": found.batch}


def _check_enough(samples: Made, recipe: Recipe) -> None:
    """After n samples, one in n + 1 of what follows exceeds a range. Raises InputRefused."""
    found = samples.meta.get("info", {}).get("samples", MIN_SAMPLES)
    if found < MIN_SAMPLES:
        raise InputRefused(
            f"{found} calibration samples are too few to learn ranges from",
            where=str(recipe.calibration_source or recipe.name),
            hint=f"give at least {MIN_SAMPLES}; 128 to 512 are usual",
        )


def _calibration_batch(made: Build) -> int | None:
    """Samples per run of the graph; None, as they were written, where its batch size is fixed."""
    found: int = calibration_of(made.job.recipe)["batch"]
    return found if isinstance(made.batch_axis, str) else None


def _check_samples(job: Job) -> None:
    given = job.calibration is not None or job.recipe.calibration is not None
    learns = job.recipe.quantization.weights in ("gptq", "awq")
    for name in () if given else _quantized(job):
        if learns or not precisions.precision(name).weight_only:
            raise InputRefused(
                f"{name} needs calibration samples and there are none",
                where=job.recipe.name,
                hint="add `calibration: {source: ...}` to the recipe (in Python: "
                "calibration=batches), or build fp16",
            )


def _quantized(job: Job) -> list[str]:
    """The quantized precisions that layers may get: the job's own, if it is one, then those that
    its recipe gives to nodes."""
    wanted = dict.fromkeys((job.precision, *sorted(job.recipe.quantization.nodes.values())))
    found = [name for name in wanted if precisions.precision(name).quantized]
    return found if job.precision in found else []


def _check_toolchain(job: Job, here: str | None) -> None:
    """Every distribution the chain will need, by name only: nothing is imported."""
    both = [name for name in ("onnxruntime", "onnxruntime-gpu") if installed(name)]
    if len(both) == 2:
        raise ToolchainMissing(
            "onnxruntime and onnxruntime-gpu are both installed and overwrite each other's files",
            where="environment",
            hint="pip uninstall both, then install one: optkit[cpu] or optkit[gpu]",
        )
    needed = ["onnxruntime"] if not both else []
    if here == "tensorrt-rtx":
        needed.append("tensorrt-rtx")
    source = job.recipe.source
    if job.graph is None and source is not None and source.kind != "onnx":
        needed += ["torch", "onnxscript"]
    for name in needed:
        if installed(name) is None:
            raise ToolchainMissing(
                f"{name} is not installed",
                where=job.name,
                hint=f"pip install 'optkit[{_EXTRAS[name]}]'",
            )


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


def _task(made: Build, samples: Made) -> tuple[dict[str, Any], dict[str, Any]]:
    """The task's score function: its code's digest is what matters, its path only where it is."""
    place = made.job.recipe.eval_task
    assert place is not None
    code = samples.meta.get("reads", {}).get("files", {})
    digest = store.digest_json(sorted(code.values()))
    params = {"task": str(place), "code": digest, "metric": samples.meta.get("metric")}
    return params, {"path": str(place.path)}


def _model_files(entry: Made) -> dict[str, str]:
    """The graph's file and those of its weights, with their digests."""
    return {name: sha for name, sha in entry.files.items() if name.startswith(GRAPH)}


def _assignment(made: Build) -> dict[str, Any] | None:
    quantized = made.entries.get("quantized")
    return quantized.meta.get("assignment") if quantized is not None else None


def _planned(made: Build) -> dict[str, str]:
    from optkit.assignment import Assignment

    found = _assignment(made)
    return Assignment.from_json(found).quantized() if found else {}


def _host(made: Build) -> dict[str, Any] | None:
    """ONNX Runtime optimizes for the CPU it runs on; a TensorRT-RTX engine is the same anywhere."""
    return made.job.target.fingerprint() if made.measured else None


def _comparison(made: Build, runner: Steps, what: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(parameters, what is only here) of a step that compares its graph with the one it is given,
    where memory allows to run both."""
    params, limit = _sizes(made), runner.limits.memory_bytes
    needed = _BYTES_TO_COMPARE * made.entries["source"].meta.get("parameters", 0)
    if needed <= limit:
        return params, {}
    reason = (
        f"the {what} graph is not compared with what it was made of: running both needs about "
        f"{needed / 2**30:.3g} GiB, the limit is {limit / 2**30:.3g} GiB"
    )
    return {**params, "compare": False}, {"uncompared": reason}


def _sizes(made: Build) -> dict[str, Any]:
    """Inputs and axis ranges: what random feeds are drawn from."""
    recipe = made.job.recipe
    return {"axes": recipe.to_json()["axes"], "inputs": recipe.describe(made.inputs)}


def _infos(rows: Sequence[Any]) -> tuple[TensorInfo, ...]:
    return tuple(TensorInfo(name, dtype, tuple(shape)) for name, dtype, shape in rows)
