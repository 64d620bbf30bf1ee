"""What a caller may give the public functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import TypeGuard

from torch.nn import Module

from optkit.craft.sources import wrappers
from optkit.facts.errors import UsageError


def check_above_zero(where: str, number: object) -> None:
    """Raise UsageError for all but a finite number above 0."""
    if not _is_finite(number) or float(number) <= 0:
        raise UsageError(
            f"{number!r} is no number above 0", where=where, hint="give a finite number above 0"
        )


def check_rate(where: str, number: object) -> None:
    """Raise UsageError for all but a finite number from 0 on: an optimizer takes a rate of 0."""
    if not _is_finite(number) or float(number) < 0:
        raise UsageError(
            f"{number!r} is no number from 0 on", where=where, hint="give a finite number from 0 on"
        )


def _is_finite(number: object) -> TypeGuard[Real]:
    return not isinstance(number, bool) and isinstance(number, Real) and isfinite(number)


def check_count(where: str, number: object, hint: str = "give a whole number from 1 on") -> None:
    """Raise UsageError for all but a whole number from 1 on."""
    if isinstance(number, bool) or not isinstance(number, Integral) or number < 1:
        raise UsageError(f"{number!r} is no whole number from 1 on", where=where, hint=hint)


def check_batches(where: str, batches: object) -> None:
    """Raise UsageError for an object that cannot be read one batch after the other."""
    readable = hasattr(batches, "__iter__") or hasattr(batches, "__getitem__")
    if isinstance(batches, str) or not readable:
        raise UsageError(
            f"{batches!r} has no batches", where=where, hint="give a list of batches or a loader"
        )


def check_example(batch: object) -> None:
    """Raise UsageError for an object that is no batch."""
    several = isinstance(batch, Mapping | Sequence) and not isinstance(batch, str) and batch
    if not (several or hasattr(batch, "shape")):
        raise UsageError(
            f"{batch!r} is no batch",
            where="example_inputs",
            hint="give a tensor, a tuple of tensors, or a dict by argument name; "
            "axis 0 is the batch",
        )


def unwrapped(model: object) -> Module:
    """The module in its wrappers. Raises UsageError for an object that is no module."""
    if not isinstance(model, Module):
        raise UsageError(
            f"the model must be an nn.Module, not {type(model).__name__}",
            where="model",
            hint="create the module, load its weights, and give the module",
        )
    return wrappers.unwrapped(model)


def new_folder(out: str | Path) -> Path:
    """The path of a folder that does not exist yet. Raises UsageError if it exists, and for an
    object that is no path."""
    if not isinstance(out, str | PathLike):
        raise UsageError(f"{out!r} is no path", where="out=", hint="give the path of a new folder")
    place = Path(out)
    if place.exists():
        raise UsageError("it exists already", where=str(place), hint="choose another folder")
    return place
