"""A module called with a batch, on the device where it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module

from optkit.road.jobs.batches import Batch


def device_of(model: Module) -> torch.device:
    """The device of its weights; the CPU if it has none."""
    return next((tensor.device for tensor in model.parameters()), torch.device("cpu"))


def arguments(batch: Batch, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The batch as arguments, with its arrays as tensors on the device."""

    def moved(value: object) -> object:
        tensor = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        return tensor.to(device) if isinstance(tensor, Tensor) else tensor

    if isinstance(batch, Mapping):
        return (), {name: moved(value) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(map(moved, batch)), {}
    return (moved(batch),), {}


def call(model: Module, batch: Batch) -> Any:
    """What the module returns, in the mode that it has."""
    positional, named = arguments(batch, device_of(model))
    return model(*positional, **named)
