"""The samples of a recipe's source or task, spooled: all of them, and a few for the export."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from optkit.facts.errors import InputRefused, ToolchainMissing, UsageError
from optkit.facts.tensors import InputSpec, with_sizes
from optkit.ground.execute.installed import versions
from optkit.ground.execute.runner import Steps
from optkit.ground.execute.step import Foreign
from optkit.ground.recipe import Recipe, SampleRole, SampleSource
from optkit.ground.store import digest_file, digest_tree, tree_bytes
from optkit.road.pipeline.depends import declared, named
from optkit.road.steps.collect import Collect, CollectedSamples, Samples
from optkit.road.steps.pick import Pick

_READERS = (
    "optkit",
    "numpy",
    "pillow",
    "pyarrow",
    "safetensors",
    "scipy",
    "tokenizers",
    "transformers",
)
"""The distributions whose code reads samples."""
_POINTING = ("detection", "obb", "pose")
"""Tasks whose annotations name other files, of pictures that may be anywhere."""
_MOST_BYTES = 2 << 30
_FOLDERS_OF_MODELS = ("tokenizer", "processor", "extractor")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".onnx", ".onnx.data", ".onnx_data", ".gguf",
            ".h5", ".msgpack")  # fmt: skip
"""Files that no tokenizer or processor reads."""
COMPARED = 8
"""The number of samples on which an exported graph is compared with its model."""


def collected(
    recipe: Recipe,
    source: SampleSource,
    role: SampleRole,
    specs: Sequence[InputSpec],
    runner: Steps,
    assets: Foreign | None = None,
    whole: Sequence[InputSpec] = (),
) -> CollectedSamples:
    """The samples of a source for the inputs `specs`. `assets`: the files of the model's tokenizer
    and processor; `whole`: the inputs of a whole encoder-decoder of which this is one part."""
    place = source.place
    content = contents(source) if place.is_own else None
    step = Collect(
        limit=source.limit,
        function=place.attribute or "samples",
        assets={} if assets is None else assets.files,
        whole=tuple(whole),
        what=str(place),
        args=dict(source.args),
        content=content or {},
        versions={} if content is None else versions(_READERS),
        specs=tuple(specs),
        labelled=role == "evaluation",
        optional=tuple(recipe.optional_axes()),
        path=place.path,
        where=str(source.data or place.path),  # of errors in samples
        memory=runner.limits.memory_bytes // 4,
        folders=source.folders,
        model=None if assets is None else assets.path,
        own=place.is_own,
        **asdict(declared(recipe, source.section, place.path.parent, named(source))),
    )
    return runner.do(step, f"collect {role} samples")


def contents(source: SampleSource) -> dict[str, str] | None:
    """The digests of what a source of optkit reads: its file, and the files and folders that its
    args name. None if it may read other files, or so much that reading a part again is quicker."""
    place = source.place
    if place.path.stem in _POINTING:
        return None
    try:
        paths = {name: path for name, path in named(source).items() if path.exists()}
        without = {name: _WEIGHTS if name in _FOLDERS_OF_MODELS else () for name in paths}
        if sum(tree_bytes(path, without[name]) for name, path in paths.items()) > _MOST_BYTES:
            return None
        found = {name: digest_tree(path, without[name]) for name, path in paths.items()}
    except (OSError, ValueError):  # the reader then says what is wrong
        return None
    return {"code": digest_file(place.path), **found}


def compared(recipe: Recipe, runner: Steps) -> Samples | None:
    """A few of the calibration samples, or without these of the evaluation samples, for the
    comparison of an exported graph with its model: the smallest one, the largest one, and others.

    None if the recipe does not declare the inputs, or has no samples, or if they cannot be read
    before the model is exported, because their preparation is part of the model: then a later stage
    collects them, and raises if that fails."""
    role: SampleRole = "calibration" if recipe.samples("calibration") else "evaluation"
    source = recipe.samples(role)
    if source is None or not recipe.inputs:
        return None
    fixed = {name: axis.min for name, axis in recipe.axis_ranges().items() if axis.min == axis.max}
    specs = [
        replace(
            spec,
            info=replace(spec.info, shape=tuple(with_sizes(dim, fixed) for dim in spec.info.shape)),
        )
        for spec in recipe.describe()
    ]
    try:
        samples = collected(recipe, source, role, specs, runner)
    except (InputRefused, ToolchainMissing, UsageError):
        return None
    return few(samples, recipe, runner)


def few(samples: Samples, recipe: Recipe, runner: Steps) -> Samples:
    """A few of the samples, see `compared`."""
    step = Pick(
        samples=samples,
        most=COMPARED,
        optional=tuple(recipe.optional_axes()),
        memory=runner.limits.memory_bytes // 4,
    )
    return runner.do(step, "pick samples for the export")
