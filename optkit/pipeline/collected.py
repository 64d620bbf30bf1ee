"""The samples of a recipe's source or task, spooled: all of them, and a few for the export."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from optkit import places
from optkit.errors import InputRefused, ToolchainMissing, UsageError
from optkit.execute.reads import relative
from optkit.execute.runner import Steps
from optkit.execute.step import Foreign
from optkit.recipe import Recipe, SampleRole, SampleSource
from optkit.steps.collect import Collect, Collected, Samples
from optkit.steps.pick import Pick
from optkit.tensors import InputSpec, with_sizes

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
) -> Collected:
    """The samples of a source for the inputs `specs`. `assets`: the files of the model's tokenizer
    and processor; `whole`: the inputs of a whole encoder-decoder of which this is one part."""
    place, roots = source.place, roots_of(source)
    step = Collect(
        limit=source.limit,
        function=place.attribute or "samples",
        assets={} if assets is None else assets.files,
        whole=tuple(whole),
        what=str(place),
        args=dict(source.args),
        at={
            name: relative(os.path.abspath(path), roots)  # noqa: PTH100
            for name, path in _named(source)
            if _exists(path)
        },
        specs=tuple(specs),
        labelled=role == "evaluation",
        optional=tuple(recipe.optional_axes()),
        path=place.path,
        where=str(source.data or place.path),  # of errors in samples
        memory=runner.limits.memory_bytes // 4,
        folders=source.folders,
        model=None if assets is None else assets.path,
        roots=tuple(roots),
    )
    return runner.do(step, f"collect {role} samples")


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
        replace(spec, info=replace(spec.info, shape=tuple(with_sizes(dim, fixed)
                                                          for dim in spec.info.shape)))
        for spec in recipe.describe()
    ]  # fmt: skip
    try:
        samples = collected(recipe, source, role, specs, runner)
    except (InputRefused, ToolchainMissing, UsageError):
        return None
    return few(samples, recipe, runner)


def few(samples: Samples, recipe: Recipe, runner: Steps) -> Samples:
    """A few of the samples, see `compared`."""
    step = Pick(
        samples=samples, most=COMPARED, optional=tuple(recipe.optional_axes()),
        memory=runner.limits.memory_bytes // 4,
    )  # fmt: skip
    return runner.do(step, "pick samples for the export")


def roots_of(source: SampleSource) -> list[str]:
    """The folders to which the paths in the record of reads are relative: the project of the code,
    then the folders that its args name."""
    project = places.project_root(source.place.path.parent)
    folders = [project, *(path for _, path in _named(source) if _exists(path) and path.is_dir())]
    return list(dict.fromkeys(os.path.abspath(path) for path in folders))  # noqa: PTH100


def _named(source: SampleSource) -> list[tuple[str, Path]]:
    """The args that are texts, as the paths that they would be."""
    return [(name, source.folders[name] / value) for name, value in source.args.items()
            if name in source.folders and isinstance(value, str)]  # fmt: skip


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a text that is no path
        return False
