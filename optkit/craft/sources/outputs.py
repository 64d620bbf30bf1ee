"""The outputs of a model as named arrays: one tensor, or nested dicts, dataclasses and tuples."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

from optkit.facts.errors import ExportFailed
from optkit.facts.tensors import Feed


def leaves(returned: object) -> dict[str, object]:
    """The leaves by name, in torch's order, without None.

    The names are the keys of a dict or the fields of a dataclass or named tuple, joined by "."; the
    elements of a tuple or list are "output_0", "output_1"…; a single tensor is "output".
    """
    return {name or "output": leaf for name, leaf in _leaves(returned, "")}


def names_apart(names: Iterable[str], inputs: Collection[str]) -> tuple[str, ...]:
    """Names of outputs that are not names of inputs: a name of an input gets "_out"."""
    return tuple(f"{name}_out" if name in inputs else name for name in names)


def register(returned: object) -> None:
    """Register the dataclasses in a model's output with torch.export, so that it finds their
    tensors."""
    import torch

    for value in _containers(returned):
        if dataclasses.is_dataclass(value) and not isinstance(value, Mapping):
            with contextlib.suppress(ValueError):  # registered before
                torch.export.register_dataclass(type(value))


def arrays(returned: object, wanted: Sequence[str]) -> Feed:
    """The tensors as numpy arrays under these names. Raises ExportFailed for anything but a
    tensor."""
    tensors = leaves(returned)
    if len(tensors) != len(wanted):
        raise ExportFailed(
            f"the model returns {len(tensors)} tensors in this call and {len(wanted)} in another",
            where=", ".join(tensors),
            hint="it must return the same structure on every call",
        )
    return {name: _array(leaf, name) for name, leaf in zip(wanted, tensors.values(), strict=True)}


def _leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    if value is None:
        return
    children = _children(value)
    if children is None:
        yield path, value
        return
    positions = isinstance(value, list | tuple) and not hasattr(value, "_fields")
    for key, child in children:
        name = f"output_{key}" if positions and not path else str(key)
        yield from _leaves(child, f"{path}.{name}" if path else name)


def _containers(value: object) -> Iterator[object]:
    for _, child in _children(value) or ():
        yield from _containers(child)
    yield value


def _children(value: object) -> list[tuple[object, object]] | None:
    if isinstance(value, Mapping):
        return list(value.items())
    if dataclasses.is_dataclass(value):
        return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    return list(enumerate(value)) if isinstance(value, list | tuple) else None


def _array(leaf: object, name: str) -> np.ndarray:
    import torch

    if not isinstance(leaf, torch.Tensor):
        raise ExportFailed(
            f"output {name!r} is {type(leaf).__name__}, not a tensor",
            where=name,
            hint="return tensors, or nested dicts, tuples, lists and dataclasses of them",
        )
    try:
        return leaf.detach().cpu().numpy()
    except TypeError as error:  # bfloat16, 8-bit floats
        raise ExportFailed(
            f"output {name!r} is {leaf.dtype}, which numpy does not know",
            where=name,
            hint="return it as float32: `.float()`",
        ) from error
