"""The plain module inside what a training wraps around it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from optkit.facts.errors import InputRefused

if TYPE_CHECKING:
    from torch import nn


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside the wrappers of torch.compile, of data parallelism and of averaging, in any
    order."""
    from torch.nn import DataParallel, Module
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim.swa_utils import AveragedModel

    inner: object = module
    while isinstance(inner, Module):
        module, inner = inner, getattr(inner, "_orig_mod", None)  # of torch.compile
        if isinstance(module, DataParallel | DistributedDataParallel | AveragedModel):
            inner = module.module
    return module


def exportable(module: nn.Module, note: Callable[[str], None]) -> nn.Module:
    """The module that is exported: without wrappers, and with weights that numpy knows. One with
    weights in bfloat16 is copied in float32, and a note says so.

    Raises InputRefused if its weights are not all in this process, or if it cannot be copied.
    """
    import torch

    module = unwrapped(module)
    _check_whole(module)
    if all(one.dtype != torch.bfloat16 for one in chain(module.parameters(), module.buffers())):
        return module
    note(
        "the weights are in bfloat16: the graph is made from a copy in float32, and its inputs "
        "are float32"
    )
    try:
        return copy.deepcopy(module).float()
    except Exception as error:  # of what the module holds besides its weights
        raise InputRefused(
            f"the module has weights in bfloat16 and cannot be copied: {error}",
            where=type(module).__name__,
            hint="give the module in float32: module.float()",
        ) from error


def _check_whole(module: nn.Module) -> None:
    for name, weight in module.named_parameters():
        # of DTensor (fully_shard), of FullyShardedDataParallel, of DeepSpeed
        marks = ("full_tensor", "_is_flat_param", "ds_id")
        if weight.is_meta or any(hasattr(weight, mark) for mark in marks):
            what = "has no values" if weight.is_meta else "is only a part: the weights are sharded"
            raise InputRefused(
                f"the weight {name} {what}",
                where=type(module).__name__,
                hint="load all weights into a plain module, e.g. those of "
                "torch.distributed.checkpoint.state_dict.get_model_state_dict with "
                "full_state_dict=True",
            )


@dataclass(frozen=True)
class _Before:
    """What `evaluating` changes of a part of a module. None: the part has no attribute of its
    own."""

    part: nn.Module
    training: bool
    compiled: object
    forward: object


@contextmanager
def _batched_experts(module: nn.Module) -> Iterator[None]:
    """Let the mixtures of experts of transformers compute all tokens in batched products.
    torch.export cannot follow their other implementations, which sort the tokens by expert. At the
    end each has its own implementation again."""
    parts: Iterator[Any] = module.modules()
    before = [
        (part, part.get_experts_implementation())
        for part in parts
        if hasattr(part, "get_experts_implementation")
    ]
    try:
        for part, _ in before:
            part.set_experts_implementation("batched_mm")
        yield
    finally:
        for part, implementation in before:
            part.set_experts_implementation(implementation)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode, and calls that run `forward` as it is written: not the code of
    `module.compile()`, and without the mixed precision of Accelerate or of a `torch.autocast`
    around the call. At the end every part is as it was."""
    import torch

    before = [
        _Before(part, part.training, own.get("_compiled_call_impl"), own.get("forward"))
        for part, own in ((part, vars(part)) for part in module.modules())
    ]
    module.eval()
    weight = next(module.parameters(), None)
    try:
        for one in before:
            if one.compiled is not None:
                one.part._compiled_call_impl = None
            if "_original_forward" in vars(one.part):  # of Accelerate
                one.part.forward = vars(one.part)["_original_forward"]
        device = "cpu" if weight is None else weight.device.type
        with torch.autocast(device, enabled=False), _batched_experts(module):
            yield
    finally:
        for one in before:
            one.part.training = one.training
            if one.compiled is not None:
                vars(one.part)["_compiled_call_impl"] = one.compiled
            if one.forward is not None:
                vars(one.part)["forward"] = one.forward
