"""Refusals of jobs that cannot succeed, before any work or as soon as the inputs are known."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from optkit.facts.errors import (
    Impossible,
    InputRefused,
    ToolchainMissing,
    UsageError,
    with_nearest_file,
)
from optkit.facts.precisions import PRECISIONS, Precision, precision
from optkit.facts.tensors import AxisRange, axes_of
from optkit.ground import runtimes
from optkit.ground.data import arrays
from optkit.ground.data.reading import optional, reader_of
from optkit.ground.data.spool import Spool
from optkit.ground.devices import Target
from optkit.ground.execute.installed import installed
from optkit.ground.execute.runner import Steps
from optkit.ground.recipe import DEFAULT_BATCH, Recipe, SampleSource
from optkit.ground.recipe.origin import Origin
from optkit.road.pipeline.cache_quantization import check_cache
from optkit.road.pipeline.job import Build, Job
from optkit.road.pipeline.sources import given_samples
from optkit.road.steps.collect import Samples
from optkit.road.steps.export import ExportedGraph

_EXTRAS = {
    "onnxruntime": "cpu",
    "tensorrt-rtx": "rtx",
    "torch": "torch",
    "onnxscript": "torch",
    "transformers": "hf",
    "optimum": "hf",
    "peft": "hf",
}
MIN_SAMPLES = 8  # for calibration
FILES = ("onnx", "pt2")  # another tool may have quantized them, which only the export tells
_OTHER_SIZES = ". --min-shapes, --opt-shapes and --max-shapes set others"
_WITH_CLASSES = ("top1", "f1")  # the tasks that optkit ships whose arrays have labels and slices


def check(job: Job) -> Build:
    """Refuse a job that cannot succeed, before any work: check the recipe and the toolchain. The
    target and the precision were checked when they were looked up (`check_pair`).

    Raises Impossible (the target does not support a precision, or its compiler lacks an option of
    the recipe), UnknownName (not built), ToolchainMissing.
    """
    for scheme in job.quantized:
        if scheme != job.precision:
            check_pair(job.target, scheme)
    source = job.recipe.source
    if job.graph is not None or source is None or source.kind not in FILES:
        check_samples(job)
    _check_data(job.recipe)
    if job.embed_pictures:
        optional("PIL.Image", "data")  # which writes them
    compiler, pending = _compilers(job)
    _check_toolchain(job, compiler)
    check_cache(job, compiler or pending[0])
    on_cpu = job.target.is_cpu
    baseline = precision("fp32" if on_cpu else "fp16")
    return Build(job, compiler, tuple(pending), baseline, measured=on_cpu and compiler is not None)


def _compilers(job: Job) -> tuple[str | None, list[str]]:
    """The compiler of this build, if one can compile here, and those that may compile elsewhere.
    Raises Impossible if none has the operators of the graph."""
    compiler, pending = None, []
    source = job.recipe.source
    unknown = source is not None and source.custom_ops is not None and source.plugins is None
    options = job.recipe.compiler.model_dump(exclude_none=True)
    for option in job.target.default_backends:
        backend = runtimes.backend(option.name)
        if backend.refuses(job.target, job.precision) is not None:
            continue
        if unknown and backend.traits.engine == "plan":
            continue
        backend.spec((), job.target, job.precision, {}).asking(options)
        if compiler is None and not job.deferred and backend.offline(job.target) is None:
            compiler = option.name
        else:
            pending.append(option.name)
    if compiler is None and not pending:
        raise Impossible(
            "the graph has operators of its own, in a library for ONNX Runtime, and the compilers "
            "of this target do not have them",
            where=job.target.name,
            hint="name a library of TensorRT plugins with the same operators: --set "
            "model.plugins=FILE.so; or build for a CPU",
        )
    return compiler, pending


def check_timed(job: Job) -> None:
    """Refuse, before any work, a job that needs latency, if latency can be neither measured nor
    predicted here. Raises ToolchainMissing."""
    build = check(job)
    if not (build.measured or build.predictable):
        reason = runtimes.backend(build.compiler).offline(job.target)
        raise ToolchainMissing(
            f"its latency can be measured only on a machine of that kind: {reason}",
            where=job.target.name,
            hint=f"run this on a {job.target.name} machine, or use --target cpu for this one",
        )


def check_pair(target: Target, precision: Precision) -> None:
    """Raises Impossible if the target does not support the precision."""
    reason = _why_not(target, precision)
    if reason is not None:
        others = [p.name for p in PRECISIONS.values() if _why_not(target, p) is None]
        hint = "`optkit targets` lists others"
        if others:
            hint = f"{target.name} takes {', '.join(others)}"
        raise Impossible(reason, where=f"{target.name} × {precision}", hint=hint)


def bound(build: Build, runner: Steps) -> None:
    """Give every dynamic axis a range, because compilers need one: the range of the recipe,
    otherwise the sizes of the axis in the given samples. Raises UsageError for an axis without a
    range, InputRefused for samples that cannot be joined into batches."""
    _check_batch(build)
    ranges = build.job.recipe.axis_ranges()
    used = {axis: info for info in build.inputs for axis in axes_of(info.shape)}
    if used.keys() <= ranges.keys():
        return
    sizes = _sizes_in_samples(build, runner)
    batch = str(build.batch_axis)
    told = [
        f"{axis} {_told(sizes[axis])}"
        for axis in used
        if axis in sizes.keys() - ranges.keys() - {batch}
    ]
    if told:
        what = "axes sized from the samples (smallest, most common, largest)"
        runner.note(f"{what}: {'; '.join(told)}{_OTHER_SIZES}")
    if batch in used:
        sizes[batch] = AxisRange(DEFAULT_BATCH.min, DEFAULT_BATCH.opt, DEFAULT_BATCH.max)
        if batch not in ranges:
            what = f"axis 0 ({batch}) is the batch: smallest, tuned and largest size"
            runner.note(f"{what} {_told(sizes[batch])}")
    build.job = replace(build.job, recipe=build.job.recipe.with_axes(sizes))
    ranges = build.job.recipe.axis_ranges()
    for axis, info in used.items():
        if axis not in ranges:
            raise UsageError(
                f"the sizes of its dynamic axis {axis!r} are not known",
                where=f"input {info.name!r}",
                hint="give samples that have them (--calibration), or --min-shapes, --opt-shapes "
                f"and --max-shapes, or in the recipe axes: {{{axis}: {{min: 1, opt: 8, max: 32}}}}",
            )


def _check_batch(build: Build) -> None:
    """Refuse samples for a model in which the batch is another axis than 0 of some input: its
    samples cannot be joined and divided along axis 0. Raises InputRefused."""
    job, batch = build.job, build.batch_axis
    if (
        job.calibration is None
        and job.recipe.samples("calibration") is None
        and job.recipe.eval is None
    ):
        return
    for info in build.inputs:
        if isinstance(batch, str) and batch in axes_of(info.shape[1:]):
            fixed = ", ".join(
                f"{each.name}: {{dtype: {each.dtype}, shape: "
                f"[{', '.join('1' if dim == batch else str(dim) for dim in each.shape)}]}}"
                for each in build.inputs
            )
            raise InputRefused(
                f"axis {batch!r} counts the samples, but it is axis {info.shape.index(batch, 1)} "
                "here, not axis 0",
                where=f"input {info.name!r}",
                hint=f"build it for one sample at a time, in the recipe inputs: {{{fixed}}}; or "
                "export the model with the batch as axis 0 of every input",
            )


def _told(sizes: AxisRange) -> str:
    return f"{sizes.min}, {sizes.opt}, {sizes.max}"


def _sizes_in_samples(build: Build, runner: Steps) -> dict[str, AxisRange]:
    """The smallest, the most common and the largest size of each axis in the calibration samples,
    or without these in the evaluation samples. A rehearsal has no samples, so it has no sizes."""
    samples = given_samples(build, runner)
    sizes: dict[str, Counter[int]] = {}
    for feed, _ in Spool(samples.path).batches(None) if samples and samples.files else ():
        for info in build.inputs:
            for dim, size in zip(info.shape, feed[info.name].shape, strict=True):
                if isinstance(dim, str) and axes_of([dim]) == (dim,):
                    sizes.setdefault(dim, Counter())[size] += 1
    return {
        axis: AxisRange(min(counts), counts.most_common(1)[0][0], max(counts))
        for axis, counts in sizes.items()
    }


def trained(build: Build, runner: Steps) -> None:
    """If the job is strict, refuse a model that has random weights according to the export: its
    figures would say nothing about the trained model. Raises InputRefused."""
    problem = untrained(build)
    if problem and build.job.strict:
        raise InputRefused(
            problem,
            where=build.job.recipe.name,
            hint="give model.weights in the recipe, or let the factory load them",
        )


def untrained(build: Build) -> str | None:
    """Which parameters of the model are random according to the export; None if none are."""
    log = build.source.log if isinstance(build.source, ExportedGraph) else None
    return log.untrained if log is not None else None


def check_enough(samples: Samples, recipe: Recipe) -> None:
    """Refuse too few calibration samples: after n samples, one in n + 1 of the next values is
    larger than all before. Raises InputRefused."""
    count = MIN_SAMPLES if samples.planned else samples.info.samples
    if count < MIN_SAMPLES:
        source = recipe.samples("calibration")
        raise InputRefused(
            f"{count} calibration samples are too few to compute ranges",
            where=str(source.data or source.place.path) if source else recipe.name,
            hint=f"give at least {MIN_SAMPLES}; 128 to 512 are usual",
        )


def _why_not(target: Target, precision: Precision) -> str | None:
    """Why the target does not support the precision: what the hardware lacks, or why no backend
    runs it. None: the target supports it."""
    for column in precision.needs:
        if column in target.precisions:
            reason = target.why_not(column, of=precision.name)
            if reason is not None:
                return reason
    if not target.default_backends:
        return f"no backend of optkit compiles for {target.title}"
    backends = [runtimes.backend(option.name) for option in target.default_backends]
    reasons = [backend.refuses(target, precision) for backend in backends]
    return None if None in reasons else reasons[0]


def check_optimizer(build: Build, exported: ExportedGraph, runner: Steps) -> None:
    """Refuse a graph that an optimizer of ONNX Runtime has rewritten: no other runtime has its
    operators, and their weights cannot be quantized. Otherwise a note says that optkit's rules no
    longer find what they would fuse. Raises InputRefused."""
    told, count = exported.rewritten, exported.optimized_products
    if told is None:
        return
    hint = "give the graph from before the optimization"
    if not build.traits.on_cpu:
        told += f"; {build.compiler} has no such operators"
    elif not (build.job.precision.quantized and not exported.quantized and count):
        runner.note(f"{told}; {hint}, which optkit fuses and quantizes better")
        return
    else:
        told += f"; the weights of {count} cannot be quantized"
    source = build.job.recipe.source
    where = build.job.name if source is None or source.place is None else str(source.place.path)
    raise InputRefused(told, where=where, hint=hint)


def check_samples(job: Job) -> None:
    """Refuse a precision that needs calibration samples if there are none. Raises InputRefused."""
    has_samples = job.calibration is not None or job.recipe.calibration_source is not None
    weights = job.recipe.quantization.weights
    learns = weights in ("gptq", "gptaq", "awq")
    if job.recipe.ranges_file is not None and not learns:
        return
    for scheme in () if has_samples else job.quantized:
        if learns or not scheme.weight_codes_only:
            what = f"quantization.weights {weights}" if scheme.weight_codes_only else f"{scheme}"
            rest = (
                "leave it out: --set quantization.weights=auto"
                if scheme.weight_codes_only
                else "ranges of another tool with --calib; or build "
                f"{'fp32' if job.target.is_cpu else 'fp16'}"
            )
            raise InputRefused(
                f"{what} needs calibration samples and there are none",
                where=job.recipe.name,
                hint="give --calibration PATH, `calibration: {source: ...}` in the recipe or "
                f"calibration=batches in Python; {rest}",
            )


def _check_data(recipe: Recipe) -> None:
    """The data that a source or task of optkit reads must exist. A file of arrays must contain the
    declared inputs, labels, slices and groups, by name. Shapes are checked when they are read."""
    for source in (recipe.samples("calibration"), recipe.samples("evaluation")):
        if source is None or source.data is None:
            continue
        path = source.data
        if not path.exists():
            raise _no_data(recipe.origin, source, path)
        if reader_of(path) == "arrays":
            others = {}
            if source.place.path.stem in _WITH_CLASSES:
                others = {
                    "label": source.args.get("label", "label"),
                    "slice": source.args.get("slice"),
                    "group": source.args.get("group"),
                }
            named = {arg: name for arg, name in others.items() if isinstance(name, str)}
            arrays.check_names(path, list(recipe.inputs), named)


def _no_data(origin: Origin, source: SampleSource, path: Path) -> InputRefused:
    """The error for a path that does not exist: it names the option or the line of the recipe."""
    key = (source.section, "args", "path")
    if origin.is_given(key):
        message, start = "no such file or folder", "current folder"
    else:
        message = f"{'.'.join(key)}: no such file or folder: {str(path)!r}"
        start = "recipe's folder"
    hint = with_nearest_file(path, f"a relative path starts at the {start}")
    return InputRefused(message, where=origin.where(key), hint=hint)


def one_wheel() -> str | None:
    """The installed wheel of ONNX Runtime, None if there is none. Raises ToolchainMissing for two,
    before any step runs on them."""
    wheels = [name for name in runtimes.ONNXRUNTIME_WHEELS if installed(name)]
    if len(wheels) == 2:
        raise ToolchainMissing(
            "onnxruntime and onnxruntime-gpu are both installed and overwrite each other's files",
            where="environment",
            hint="pip uninstall both, then install one: optkit[cpu] or optkit[gpu]",
        )
    return wheels[0] if wheels else None


def _check_toolchain(job: Job, compiler: str | None) -> None:
    """Every distribution that the steps need must be installed. The check imports none of them."""
    needed = [] if one_wheel() else ["onnxruntime"]
    library = runtimes.backend(compiler).traits.distribution if compiler else None
    needed += [library] if library else []
    source = job.recipe.source
    if job.graph is None and source is not None and source.kind != "onnx":
        needed += ["torch", "onnxscript"]
    if source is not None and source.kind == "hf":
        needed += ["transformers", "optimum", *(["peft"] if source.adapter else [])]
    for name in needed:
        if installed(name) is None:
            raise ToolchainMissing(
                f"{name} is not installed",
                where=job.name,
                hint=f"pip install 'optkit[{_EXTRAS[name]}]'",
            )
