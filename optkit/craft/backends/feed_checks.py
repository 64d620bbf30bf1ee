"""What a session refuses before native code sees it: feeds that do not fit, runs after `close`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from optkit.facts.errors import InputRefused, UsageError
from optkit.facts.tensors import Feed, TensorInfo


def check_feed(feed: Feed, inputs: Sequence[TensorInfo]) -> dict[str, int]:
    """Sizes by named axis. Raise InputRefused unless names, dtypes, ranks and sizes fit the inputs,
    and a named axis has one size in all inputs."""
    if feed.keys() != {tensor.name for tensor in inputs}:
        raise _misnamed(feed, [tensor.name for tensor in inputs])
    sizes: dict[str, int] = {}
    for tensor in inputs:
        array = feed[tensor.name]
        if _name(array.dtype) != tensor.dtype:
            reason = f"dtype {array.dtype.name}, not {tensor.dtype}"
            hint = f"convert it: array.astype({tensor.dtype!r})"
        elif not array.dtype.isnative:  # ONNX Runtime would read other numbers
            reason = "its bytes are in the order of another kind of machine"
            hint = 'convert it: array.astype(array.dtype.newbyteorder("="))'
        elif not fits(array.shape, tensor.shape, sizes):
            known_sizes = "".join(f", {axis} = {size}" for axis, size in sizes.items())
            wanted = f"({', '.join(map(str, tensor.shape))})"
            reason = f"shape {array.shape} does not fit {wanted}{known_sizes}"
            hint = f"give an array of shape {wanted}"
            if known_sizes:
                hint += "; a named axis has one size in all inputs"
            elif fits(array.shape, tensor.shape[1:], {}):
                hint += f": array[None] adds the axis {tensor.shape[0]}"
        else:
            continue
        raise InputRefused(reason, where=f"input {tensor.name!r}", hint=hint)
    return sizes


def closed(where: str) -> UsageError:
    """The error for a run after `close`."""
    return UsageError(
        "the session is closed", where=where, hint="open another one: artifact.session()"
    )


def _misnamed(feed: Feed, known: list[str]) -> InputRefused:
    """The error for a feed with other names than those of the inputs."""
    missing, others = sorted(set(known) - feed.keys()), sorted(feed.keys() - set(known))
    if not missing:
        return InputRefused(
            f"the model has no such input; it has {', '.join(known)}",
            where=f"input {others[0]!r}",
            hint="leave it out of the feed",
        )
    given = f"; the feed has {', '.join(map(repr, others))}" if others else ""
    return InputRefused(
        f"the feed does not have this input{given}",
        where=f"input {missing[0]!r}",
        hint=f"give an array for each input by its name: {', '.join(known)}",
    )


@cache
def _name(dtype: np.dtype) -> str:
    """The name of a dtype; numpy computes it in each call."""
    return dtype.name


def fits(shape: tuple[int, ...], wanted: tuple[int | str, ...], sizes: dict[str, int]) -> bool:
    """Whether ranks and sizes fit. The sizes of new axes are added to `sizes`."""
    if len(shape) != len(wanted):
        return False
    for size, dim in zip(shape, wanted, strict=True):
        if size != (dim if isinstance(dim, int) else sizes.setdefault(dim, size)):
            return False
    return True
