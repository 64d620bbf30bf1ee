"""How the files of a model name the matrices of its experts.

transformers has the matrices of all experts of a layer in one parameter, gate and up as the halves
of its rows. Files, and the loaders of vLLM and SGLang, have each matrix by itself:

    mlp.experts.gate_up_proj [E, 2 I, H]     mlp.experts.3.gate_proj.weight, .up_proj.weight [I, H]
    mlp.experts.down_proj    [E, H, I]       mlp.experts.3.down_proj.weight [H, I]

transformers itself is asked for the names: it takes a parameter apart whose numbers are the numbers
of its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from optkit.facts.errors import UsageError

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel

_GATES = ("gate_proj", "w1")  # the names of the half that is activated


@dataclass(frozen=True)
class ExpertStack:
    """The matrices of the experts of a layer that are one parameter.

    module    of the experts
    mixture   what the names of the matrices in files begin with
    shape     E, N, K
    matrices  name in files → the expert, and the rows of its part of the parameter
    """

    module: str
    mixture: str
    shape: tuple[int, int, int]
    matrices: Mapping[str, tuple[int, slice]]

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Name of each matrix → [N, K]."""
        width = self.shape[2]
        return {name: (rows.stop - rows.start, width) for name, (_, rows) in self.matrices.items()}


@dataclass(frozen=True)
class Mixtures:
    """The mixtures of experts of a model.

    stacks       the parameters that are the matrices of experts
    routers      weight of each linear layer beside experts, which readers have in floats → [N, K]
    corrections  what is added to the scores of routers (DeepSeek-V3, MiniMax-M2) → its size
    renamed      name of a router or correction → that in files
    """

    stacks: tuple[ExpertStack, ...] = ()
    routers: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    corrections: Mapping[str, int] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)

    def modules(self) -> set[str]:
        """Those of experts and of routers."""
        routers = {name.rpartition(".")[0] for name in self.routers}
        return routers | {stack.module for stack in self.stacks}

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Name in files of each matrix of an expert → [N, K]."""
        return {name: size for each in self.stacks for name, size in each.sizes().items()}

    def places(self) -> dict[str, str]:
        """Name in files of each expert's linear layer → what the names in its mixture begin
        with."""
        return {
            name.removesuffix(".weight"): stack.mixture
            for stack in self.stacks
            for name in stack.matrices
        }


def mixtures_of(model: PreTrainedModel, where: str) -> Mixtures:
    """Without experts that are one tensor in files too. Raises UsageError for a parameter that they
    have in other parts than gate, up and down."""
    stacks: list[ExpertStack] = []
    for path, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        if all(each.dim() == 3 for each in own.values()):
            known = (_stack(model, path, name, each, where) for name, each in own.items())
            stacks += [stack for stack in known if stack is not None]
    blocks = {stack.module.rpartition(".")[0] for stack in stacks}
    routers: dict[str, tuple[int, int]] = {}
    corrections: dict[str, int] = {}
    for path, module in model.named_modules():
        size = _only_matrix(module) if path.rpartition(".")[0] in blocks else None
        if size is not None:
            routers[f"{path}.weight"] = size
        if size is not None or path in blocks:
            corrections |= {
                f"{path}.{name}": each.numel()
                for name, each in module.named_buffers(recurse=False)
                if name not in module._non_persistent_buffers_set
            }
    renamed = _renamed(model, (*routers, *corrections))
    return Mixtures(tuple(stacks), routers, corrections, renamed)


def _only_matrix(module: nn.Module) -> tuple[int, int] | None:
    """Size of the weight that is all that a module has; None: it has something else."""
    own = dict(module.named_parameters(recurse=False))
    if own.keys() != {"weight"} or own["weight"].dim() != 2:
        return None
    rows, columns = own["weight"].shape
    return rows, columns


def _stack(
    model: PreTrainedModel, module: str, key: str, parameter: torch.Tensor, where: str
) -> ExpertStack | None:
    """None: files have this parameter as it is."""
    import torch

    name, (count, rows, width) = f"{module}.{key}", parameter.shape
    numbered = torch.arange(rows)[None, :, None].expand(count, rows, 1)
    parts = _in_files(model, {name: numbered})
    if len(parts) == 1:
        return None
    matrices = {key: _place(key, part) for key, part in parts.items()}
    if None in matrices.values() or not _gate_is_first(matrices):
        raise UsageError(
            f"{name} has other parts in the files of {type(model).__name__} than the gate, up and "
            "down of each expert",
            where=where,
            hint="choose another format: huggingface, oci and slim hold this model too",
        )
    known = {key: place for key, place in matrices.items() if place is not None}
    mixture = next(iter(known)).rsplit(".", 3)[0]
    return ExpertStack(module, mixture, (count, rows, width), known)


def _renamed(model: PreTrainedModel, names: Iterable[str]) -> dict[str, str]:
    """Name → that in files."""
    import torch

    return {name: next(iter(_in_files(model, {name: torch.zeros(1)}))) for name in names}


def _in_files(
    model: PreTrainedModel, parameters: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    from transformers.core_model_loading import revert_weight_conversion

    found: dict[str, torch.Tensor] = revert_weight_conversion(model, parameters)
    return found


def _place(name: str, rows: torch.Tensor) -> tuple[int, slice] | None:
    """The expert whose matrix this is, and its rows; None if they are not one after another."""
    import torch

    parts, first = name.split("."), int(rows.reshape(-1)[0])
    expert = parts[-3] if len(parts) > 3 else ""
    end = first + rows.shape[0]
    if not expert.isdigit() or not torch.equal(rows.reshape(-1), torch.arange(first, end)):
        return None
    return int(expert), slice(first, end)


def _gate_is_first(matrices: Mapping[str, tuple[int, slice] | None]) -> bool:
    """Whether the first of two halves is the gate."""
    starts = {place[1].start for place in matrices.values() if place is not None}
    first = {
        name.split(".")[-2] for name, place in matrices.items() if place and not place[1].start
    }
    return len(starts) == 1 or (len(starts) == 2 and first <= set(_GATES))
