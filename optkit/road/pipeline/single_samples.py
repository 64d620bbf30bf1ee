"""Models whose samples cannot be joined along axis 0, because an input has the batch as another
axis, or none: a state [layers, batch, width], a recording without a batch.

Such an ONNX model is built for one sample at a time: the axis 0 of its first input gets one size,
wherever it occurs. Arrays whose rows have all axes of an input say which size; without them it
is 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from optkit.facts.tensors import TensorInfo, axes_of, batch_axis, batched, with_sizes
from optkit.ground.data import arrays
from optkit.ground.data.reading import reader_of
from optkit.ground.execute.runner import Steps
from optkit.ground.recipe import Recipe, recipe_inputs
from optkit.road.pipeline.job import Job


def single_sample(job: Job, inputs: Sequence[TensorInfo], runner: Steps) -> Recipe | None:
    """The recipe with the inputs for one sample at a time, which the listener hears of.

    None if the model takes batches, if a recipe cannot declare its inputs, or if the job does not
    ask: it has no samples, or its recipe has the inputs, or other sizes of the batch.
    """
    recipe, batch = job.recipe, batch_axis(inputs)
    if not _undeclared(job) or not isinstance(batch, str):
        return None
    size = _size(job, inputs, batch)
    if size is None:
        return None
    fixed = [
        replace(info, shape=tuple(with_sizes(dim, {batch: size}) for dim in info.shape))
        for info in inputs
    ]
    specs = recipe_inputs.declared(fixed)
    if specs is None:
        return None
    other = next(info.name for info in inputs if info.shape and info.name not in batched(inputs))
    infos = [spec.info for spec in specs]
    shapes = ", ".join(f"{info.name} [{', '.join(map(str, info.shape))}]" for info in infos)
    reason = f"because axis 0 of input {other!r} is not the batch"
    runner.note(f"built for one sample at a time, {reason}: {shapes}")
    others = {name: axis for name, axis in recipe.axes.items() if name != batch}
    return recipe.model_copy(update={"axes": others}).with_inputs(specs, {})


def _undeclared(job: Job) -> bool:
    """Whether the model is an ONNX file whose inputs the recipe leaves open."""
    source = job.recipe.source
    is_file = source is not None and source.kind == "onnx" and job.calibration is None
    return is_file and not job.recipe.inputs


def _size(job: Job, inputs: Sequence[TensorInfo], batch: str) -> int | None:
    """The only size of the batch axis; None if samples can be joined along it, or if the recipe
    asks for other sizes."""
    size, asked = _one_size(job, inputs, batch), job.recipe.axes.get(batch)
    return size if asked is None or {asked.min, asked.max} == {size} else None


def _one_size(job: Job, inputs: Sequence[TensorInfo], batch: str) -> int | None:
    if all(info.name in batched(inputs) for info in inputs if info.shape):
        return None
    shapes = _shapes_in_file(job, inputs)
    if shapes is None:
        elsewhere = any(batch in axes_of(info.shape[1:]) for info in inputs)
        has_samples = job.recipe.samples("calibration") or job.recipe.eval
        return 1 if elsewhere and has_samples else None
    first = next(info for info in inputs if info.shape)
    shape = shapes[first.name]
    return shape[1] if len(shape) == len(first.shape) + 1 else 1


def _shapes_in_file(job: Job, inputs: Sequence[TensorInfo]) -> Mapping[str, tuple[int, ...]] | None:
    """The shapes of the arrays in the file of the samples; None if they come from elsewhere."""
    for role in ("calibration", "evaluation"):
        source = job.recipe.samples(role)
        if source is not None and source.data is not None and reader_of(source.data) == "arrays":
            return arrays.shapes(source.data, [info.name for info in inputs])
    return None
