"""What is refused before work, or as soon as its inputs are known."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from optkit import runtimes
from optkit.data import arrays
from optkit.data.reading import reader_of
from optkit.data.spool import Spool
from optkit.devices import Target
from optkit.errors import Impossible, InputRefused, ToolchainMissing, UsageError
from optkit.execute.reads import installed
from optkit.execute.runner import Steps
from optkit.pipeline.job import Build, Job
from optkit.pipeline.sources import given_samples
from optkit.precisions import PRECISIONS, Precision
from optkit.recipe import DEFAULT_BATCH, Recipe
from optkit.steps.collect import Samples
from optkit.tensors import AxisRange, axes_of

_EXTRAS = {"onnxruntime": "cpu", "tensorrt-rtx": "rtx", "torch": "torch", "onnxscript": "torch",
           "transformers": "hf", "optimum": "hf", "peft": "hf"}  # fmt: skip
MIN_SAMPLES = 8  # for calibration
_WITH_CLASSES = ("top1", "f1")  # the tasks that optkit ships whose arrays have labels and slices


def check(job: Job) -> Build:
    """Refuse before work what cannot end well: what its recipe asks for, and the toolchain. Its
    target and precision were checked where they were named (`check_pair`).

    Raises Impossible (the target's matrix says no, or a compiler of it lacks an option of the
    recipe), UnknownName (not built), ToolchainMissing.
    """
    for precision in job.quantized:
        if precision != job.precision:
            check_pair(job.target, precision)
    _check_samples(job)
    _check_data(job.recipe)
    here, pending = None, []
    for option in job.target.default_backends:
        backend = runtimes.backend(option.name)
        if backend.refuses(job.target, job.precision) is not None:
            continue
        wanted = job.recipe.compiler.model_dump(exclude_none=True)
        backend.spec((), job.target, job.precision, {}).asking(wanted)
        if here is None and not job.deferred and backend.offline(job.target) is None:
            here = option.name
        else:
            pending.append(option.name)
    _check_toolchain(job, here)
    own = job.target.is_cpu
    baseline = PRECISIONS["fp32" if own else "fp16"]
    return Build(job, here, tuple(pending), baseline, measured=own and here is not None)


def check_timed(job: Job) -> None:
    """Refuse, before work, a job that is about latency where nothing can tell it. Raises
    ToolchainMissing."""
    build = check(job)
    if not (build.measured or build.predictable):
        reason = runtimes.backend(build.compiler).offline(job.target)
        raise ToolchainMissing(
            f"its latency can be measured only on a machine of that kind: {reason}",
            where=job.target.name,
            hint=f"run this on a {job.target.name} machine, or use --target cpu for this one",
        )


def check_pair(target: Target, precision: Precision) -> None:
    """Whether this precision can be had on this target at all. Raises Impossible."""
    reason = _why_not(target, precision)
    if reason is not None:
        can = [p.name for p in PRECISIONS.values() if _why_not(target, p) is None]
        hint = f"{target.name} takes {', '.join(can)}" if can else "`optkit targets` lists others"
        raise Impossible(reason, where=f"{target.name} × {precision}", hint=hint)


def bound(build: Build, runner: Steps) -> None:
    """Every dynamic axis must have a range before anything is tuned for it: that of the recipe,
    else the sizes that it has in the samples that were given. Raises UsageError."""
    ranges = build.job.recipe.axis_ranges()
    used = {axis: info for info in build.inputs for axis in axes_of(info.shape)}
    if used.keys() <= ranges.keys():
        return
    found = _sizes_in_samples(build, runner)
    sized = [axis for axis in used if axis in found.keys() - ranges.keys() - {build.batch_axis}]
    if sized:
        told = (f"{axis} {found[axis].min}, {found[axis].opt}, {found[axis].max}" for axis in sized)
        what = "axes sized from the samples (smallest, most common, largest)"
        runner.note(f"{what}: {'; '.join(told)}")
    if build.batch_axis in used:
        found[str(build.batch_axis)] = AxisRange(
            DEFAULT_BATCH.min, DEFAULT_BATCH.opt, DEFAULT_BATCH.max
        )
    build.job = replace(build.job, recipe=build.job.recipe.with_axes(found))
    ranges = build.job.recipe.axis_ranges()
    for axis, info in used.items():
        if axis not in ranges:
            raise UsageError(
                f"the sizes of its dynamic axis {axis!r} are not known",
                where=f"input {info.name!r}",
                hint="give samples that have them (--calibration), or --min-shapes, --opt-shapes "
                f"and --max-shapes, or in the recipe axes: {{{axis}: {{min: 1, opt: 8, max: 32}}}}",
            )


def _sizes_in_samples(build: Build, runner: Steps) -> dict[str, AxisRange]:
    """The least, the commonest and the largest size of each axis in the calibration samples, else
    in those of the evaluation; none of a rehearsal, which has no samples."""
    samples = given_samples(build, runner)
    sizes: dict[str, Counter[int]] = {}
    for feed, _ in Spool(samples.path).batches(None) if samples and samples.files else ():
        for info in build.inputs:
            for dim, size in zip(info.shape, feed[info.name].shape, strict=True):
                if isinstance(dim, str) and axes_of([dim]) == (dim,):
                    sizes.setdefault(dim, Counter())[size] += 1
    return {
        axis: AxisRange(min(seen), seen.most_common(1)[0][0], max(seen))
        for axis, seen in sizes.items()
    }


def trained(build: Build, runner: Steps) -> None:
    """Random weights, of which the export has told, are refused where the job is strict: what is
    found of them says nothing of the model. Raises InputRefused."""
    problem = build.source.log.get("untrained")
    if problem and build.job.strict:
        raise InputRefused(
            problem,
            where=build.job.recipe.name,
            hint="give model.weights in the recipe, or let the factory load them",
        )


def check_enough(samples: Samples, recipe: Recipe) -> None:
    """After n samples, one in n + 1 of what follows exceeds a range. Raises InputRefused."""
    found = MIN_SAMPLES if samples.planned else samples.info.samples
    if found < MIN_SAMPLES:
        raise InputRefused(
            f"{found} calibration samples are too few to compute ranges",
            where=str(recipe.calibration_source or recipe.name),
            hint=f"give at least {MIN_SAMPLES}; 128 to 512 are usual",
        )


def _why_not(target: Target, precision: Precision) -> str | None:
    """What the hardware lacks, or else why no backend runs the precision."""
    for column in precision.needs:
        if column in target.precisions:
            reason = target.why_not(column, of=precision.name)
            if reason is not None:
                return reason
    if not target.default_backends:
        return f"no backend of optkit compiles for {target.title}"
    backends = [runtimes.backend(option.name) for option in target.default_backends]
    reasons = [found.refuses(target, precision) for found in backends]
    return None if None in reasons else reasons[0]


def _check_samples(job: Job) -> None:
    given = job.calibration is not None or job.recipe.calibration_source is not None
    learns = job.recipe.quantization.weights in ("gptq", "awq")
    for precision in () if given else job.quantized:
        if learns or not precision.weight_only:
            raise InputRefused(
                f"{precision} needs calibration samples and there are none",
                where=job.recipe.name,
                hint="give --calibration PATH, `calibration: {source: ...}` in the recipe or "
                "calibration=batches in Python, or build fp16",
            )


def _check_data(recipe: Recipe) -> None:
    """What the readers that come along are to read: it exists, and of arrays those are there that
    are named like the declared inputs, and labels and slices. Whether they fit is seen when they
    are read."""
    for section, place, settings in (
        ("calibration", recipe.calibration_source, recipe.calibration),
        ("eval", recipe.eval_task, recipe.eval),
    ):
        if place is None or settings is None or place.root != "content":
            continue
        named = settings.args.get("path")
        if not isinstance(named, str):
            continue
        path = recipe.argument_folders(section)["path"] / named
        if not path.exists():
            raise InputRefused(
                "no such file or folder",
                where=f"{section}.args.path: {path}",
                hint="a relative path starts at the recipe's folder, on the command line at the "
                "current one",
            )
        if reader_of(path) == "arrays":
            names = list(recipe.inputs)
            if place.path.stem in _WITH_CLASSES:
                beside = (settings.args.get("label", "label"), settings.args.get("slice"))
                names += [name for name in beside if isinstance(name, str)]
            arrays.check_names(path, names)


def _check_toolchain(job: Job, here: str | None) -> None:
    """Every distribution the chain will need, by name only: nothing is imported."""
    both = [name for name in runtimes.ONNXRUNTIME_WHEELS if installed(name)]
    if len(both) == 2:
        raise ToolchainMissing(
            "onnxruntime and onnxruntime-gpu are both installed and overwrite each other's files",
            where="environment",
            hint="pip uninstall both, then install one: optkit[cpu] or optkit[gpu]",
        )
    needed = ["onnxruntime"] if not both else []
    compiler = runtimes.backend(here).traits.distribution if here else None
    needed += [compiler] if compiler else []
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
