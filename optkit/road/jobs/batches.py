"""Batches of a caller's loader: what they hold, by the names of the model's inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import prod
from typing import Protocol, TypeVar

import numpy as np

from optkit.facts.tensors import Feed
from optkit.road.jobs.padded_axes import Shapes


class Array(Protocol):
    """A numpy array or a torch tensor; axis 0 is the batch."""

    @property
    def shape(self) -> Sequence[int]: ...


Batch = Array | Sequence[object] | Mapping[str, object]
"""One batch: arrays by input name, arrays in the order of the inputs, or the only array."""

LABELS = ("label", "labels", "label_ids", "start_positions", "end_positions")
"""Names of the labels that transformers' Trainer gives a model, so that it returns a loss."""

T = TypeVar("T")

_PEEKED_BYTES = 64 << 20


def feed(batch: Batch, names: list[str]) -> Feed:
    """A batch by input name, as `_items` chooses them."""
    return {key: array(value) for key, value in _items(batch, names).items()}


def _items(batch: Batch, names: list[str]) -> dict[str, object]:
    """A batch by input name, without its labels. Other items that have no input's name are left
    out too, unless an input is missing: such an item may be this input under another name."""
    if isinstance(batch, Mapping):
        whole = all(name in batch for name in names)
        return {
            key: value
            for key, value in batch.items()
            if key in names or not (whole or key in LABELS)
        }
    parts: Sequence[object] = list(batch) if isinstance(batch, list | tuple) else [batch]
    return dict(zip(names, parts, strict=False))


def taken(forward: Callable[..., object], batch: Batch) -> Batch:
    """The batch without the items that `forward` does not take: of a mapping those with other
    names, of a sequence those behind its parameters that have no default."""
    parameters = inspect.signature(forward).parameters.values()
    if isinstance(batch, Mapping):
        names = {parameter.name for parameter in parameters}
        known = {name: value for name, value in batch.items() if name in names}
        return known or dict(batch)
    if isinstance(batch, list | tuple):
        positional = [
            parameter
            for parameter in parameters
            if parameter.kind
            in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            and parameter.default is inspect.Parameter.empty
        ]
        return tuple(batch[: max(1, len(positional))])
    return batch


def without_labels(named: Mapping[str, T]) -> Mapping[str, T]:
    return {name: value for name, value in named.items() if name not in LABELS}


def array(value: object) -> np.ndarray:
    """numpy of an array or a torch tensor (also one that needs gradients or lies on a device)."""
    if not hasattr(value, "detach"):
        return np.asarray(value)
    tensor = value.detach().cpu()
    return np.asarray((tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy())


@dataclass
class Loader:
    """All batches of a caller's loader, if there is one, and the first of them once they are read:
    it can be read only once."""

    batches: Iterable[Batch] | None
    first: list[Batch] = field(default_factory=list)

    def peek(self, most: int | None) -> list[Batch]:
        """The first batches, read by the first call. `most`: the number of samples that are needed.
        At most 64 MiB are held in memory."""
        if self.batches is None or self.first:
            return self.first
        rest = iter(self.batches)
        samples, size = 0, 0
        for batch in rest:
            self.first.append(batch)
            shapes = [_shape(value) for value in _values(batch)]
            samples += max((shape[0] for shape in shapes if shape), default=1)
            size += sum(4 * prod(shape) for shape in shapes)
            if size >= _PEEKED_BYTES or (most is not None and samples >= most):
                break
        self.batches = chain(self.first, rest)
        return self.first


def _values(batch: Batch) -> Iterable[object]:
    if isinstance(batch, Mapping):
        return batch.values()
    return batch if isinstance(batch, list | tuple) else [batch]


def shapes(batch: Batch, names: list[str]) -> Shapes:
    """The shapes of a batch by input name, as `_items` chooses them."""
    return {name: _shape(value) for name, value in _items(batch, names).items()}


def _shape(value: object) -> tuple[int, ...]:
    """Of an array; of a list only its length, because its rows may differ."""
    if hasattr(value, "shape"):
        return tuple(int(size) for size in value.shape)
    return (len(value),) if isinstance(value, list | tuple) else ()
