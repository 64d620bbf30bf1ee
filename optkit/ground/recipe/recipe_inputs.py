"""The `inputs:` and `axes:` of a recipe for a model that declares its inputs itself.

An axis keeps its name if a recipe may have it. Otherwise its characters that a recipe may not have
become "_" ("x.2" → x_2, "floor(height/2)" → floor_height_2); such an axis 0 is called batch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from optkit.facts.tensors import InputSpec, TensorInfo, axes_of, batch_axis
from optkit.ground.recipe.model_sections import Input
from optkit.ground.recipe.recipe import DEFAULT_BATCH

_AXIS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN = re.compile(r"(?!(?:true|false|null)$)[A-Za-z_][A-Za-z0-9_./]*", re.IGNORECASE)
_DTYPES = get_args(Input.model_fields["dtype"].annotation)
_NOTHING = (
    "# The model has inputs that a recipe cannot declare; they are used as the model has them."
)


@dataclass(frozen=True)
class InputLines:
    """Two sections of a recipe, as YAML. `free`: the axes without a range; `guessed`: what of the
    inputs nobody declared, in words."""

    lines: str
    axes: str
    free: tuple[str, ...] = ()
    guessed: str | None = None


def of_model(inputs: Sequence[TensorInfo]) -> InputLines:
    """The sections for the inputs of a model, as they were read from it or from its data."""
    specs = declared(inputs)
    if specs is None:
        return InputLines(_NOTHING, "# axes: {batch: {min: 1, opt: 8, max: 32}}")
    names = _axis_names(inputs)
    lines = ["inputs:"]
    for info in (spec.info for spec in specs):
        shape = ", ".join(map(_dimension, info.shape))
        lines.append(f"  {_key(info.name)}: {{dtype: {info.dtype}, shape: [{shape}]}}")
    batch = names.get(str(batch_axis(inputs)))
    free = tuple(name for name in names.values() if name != batch)
    return InputLines("\n".join(lines), _axes(batch, free), free)


def declared(inputs: Sequence[TensorInfo]) -> tuple[InputSpec, ...] | None:
    """The inputs of a model with names of axes that a recipe may have; None if a recipe cannot
    declare one of them."""
    if not all(map(_declarable, inputs)):
        return None
    names = _axis_names(inputs)
    return tuple(
        InputSpec(replace(info, shape=tuple(_renamed(dim, names) for dim in info.shape)))
        for info in inputs
    )


def _axes(batch: str | None, free: Sequence[str]) -> str:
    rows = []
    if batch is not None:
        sizes = f"min: {DEFAULT_BATCH.min}, opt: {DEFAULT_BATCH.opt}, max: {DEFAULT_BATCH.max}"
        rows.append(f"  {_key(batch)}: {{{sizes}}}")
    if free:
        rows.append("  # without a range, an axis has the sizes that occur in the samples")
    rows += [f"  # {_key(name)}: {{min: 1, opt: 64, max: 128}}" for name in free]
    if not rows:
        return "# All sizes are fixed by the model."
    return "\n".join(["axes:" if batch is not None else "# axes:", *rows])


def _axis_names(inputs: Sequence[TensorInfo]) -> dict[str, str]:
    """Axis of the model → its name in the recipe. Each has another name."""
    first = str(batch_axis(inputs))
    names: dict[str, str] = {}
    for axis in dict.fromkeys(axis for info in inputs for axis in axes_of(info.shape)):
        name = axis
        if not _AXIS.fullmatch(axis):
            name = (
                "batch" if axis == first else re.sub(r"\W+", "_", axis, flags=re.ASCII).strip("_")
            )
            name = name if _AXIS.fullmatch(name) else f"axis_{name}".rstrip("_")
        taken = [*names.values()]
        names[axis] = next(
            free
            for free in (name, *(f"{name}_{n}" for n in range(2, len(taken) + 3)))
            if free not in taken
        )
    return names


def _renamed(dim: int | str, names: Mapping[str, str]) -> int | str:
    """A dimension; an axis, and each one of a sum of axes, has its new name."""
    if isinstance(dim, int):
        return dim
    return " + ".join(names.get(term, term) for term in dim.split(" + "))


def _dimension(dim: int | str) -> str:
    """A dimension as YAML."""
    return str(dim) if isinstance(dim, int) or " + " in dim else _key(dim)


def _declarable(info: TensorInfo) -> bool:
    positive = all(dim > 0 for dim in info.shape if isinstance(dim, int))
    return info.dtype in _DTYPES and positive


def _key(name: str) -> str:
    """A key as YAML, quoted if it must be."""
    if _PLAIN.fullmatch(name):
        return name
    escaped = (
        f"\\{char}" if char in '"\\' else char if char.isprintable() else f"\\U{ord(char):08x}"
        for char in name
    )
    return f'"{"".join(escaped)}"'
