"""The parameters that a Hugging Face model must have, from its config.json alone.

The class of transformers is made without numbers (torch's device "meta"), so a model of any size
takes no memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from optkit.craft.sources import toolchain
from optkit.craft.sources.hugging_face import loading
from optkit.craft.sources.hugging_face.expert_files import Mixtures, mixtures_of
from optkit.facts.errors import UsageError

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class NetworkLayout:
    """The parameters of a model of linear layers, embeddings, norms and mixtures of experts.

    network    the class of transformers
    kind       model_type
    linear     weight of each nn.Linear, and of each expert under its name in files → [N, K]
    embedded   weight of each nn.Embedding → [N, K]
    norms      weight or bias of each norm → its size
    offsets    weight of a norm → what the norm adds to it before it multiplies (1 in Gemma)
    biases     bias of each nn.Linear that has one → N
    shared     names that are one parameter (a tied last layer), by groups
    computed   module → sizes of the vectors that it computes itself (rotary frequencies)
    head       the last layer of a model that predicts tokens
    attentions number of a layer → its module of attention, if it projects keys and values itself
    mixtures   its mixtures of experts
    """

    network: str
    kind: str
    linear: Mapping[str, tuple[int, int]]
    embedded: Mapping[str, tuple[int, int]]
    norms: Mapping[str, int]
    offsets: Mapping[str, float]
    biases: Mapping[str, int]
    shared: tuple[tuple[str, ...], ...]
    computed: Mapping[str, frozenset[int]]
    head: str | None = None
    attentions: Mapping[int, str] = field(default_factory=dict)
    mixtures: Mixtures = field(default_factory=Mixtures)

    def tables(self) -> frozenset[str]:
        """The modules that are embeddings."""
        return frozenset(name.removesuffix(".weight") for name in self.embedded)

    def matrices(self) -> dict[str, tuple[int, int]]:
        return {**self.linear, **self.embedded, **self.mixtures.routers}

    def vectors(self) -> Mapping[str, int]:
        return self.norms

    def computes(self, module: str, numbers: np.ndarray) -> bool:
        """Whether the module has a buffer of this size."""
        return numbers.size in self.computed.get(module, ())


def network_layout(folder: Path, task: str | None) -> NetworkLayout:
    """The layout of the class that config.json in `folder`, or `task`, names.

    Raises UsageError (a parameter of another kind of module), InputRefused (config.json),
    ToolchainMissing.
    """
    toolchain.require_hugging_face()
    import torch

    with toolchain.quiet():
        config, cls, _ = loading.class_of(folder, task, trusted=False)
        with torch.device("meta"):
            model = cls(config)
        return _described(model, str(folder))


def _described(model: PreTrainedModel, where: str) -> NetworkLayout:
    from torch import nn

    linear: dict[str, tuple[int, int]] = {}
    embedded: dict[str, tuple[int, int]] = {}
    norms: dict[str, int] = {}
    offsets: dict[str, float] = {}
    biases: dict[str, int] = {}
    mixtures = mixtures_of(model, where)
    mixed = mixtures.modules()
    for path, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False, remove_duplicate=False))
        names = {key: f"{path}.{key}" for key in own}
        if path in mixed:
            continue
        if isinstance(module, nn.Linear):
            linear[names["weight"]] = (module.out_features, module.in_features)
            if "bias" in own:
                biases[names["bias"]] = module.out_features
        elif isinstance(module, nn.Embedding):
            embedded[names["weight"]] = (module.num_embeddings, module.embedding_dim)
        elif own and (offset := _offset(module, own.keys())) is not None:
            norms |= {name: own[key].numel() for key, name in names.items()}
            if offset:
                offsets[names["weight"]] = offset
        elif own and not _belongs(own.values(), model, path):
            raise UsageError(
                f"{next(iter(names.values()))} is a parameter of {type(module).__name__}, and this "
                "format holds models of linear layers, embeddings, norms, and experts that files "
                "have one by one",
                where=where,
                hint="choose another format: huggingface, oci and slim hold this model too",
            )
    return NetworkLayout(
        type(model).__name__,
        str(model.config.model_type),
        linear | mixtures.sizes(),
        embedded,
        norms,
        offsets,
        biases,
        _shared(model),
        _computed(model),
        _head(model),
        _attentions(model),
        mixtures,
    )


def _offset(module: nn.Module, keys: Iterable[str]) -> float | None:
    """What a norm adds to its weight. None: the module is no norm of one axis.

    It is asked: a copy with weights 0 and one with weights 1 normalize the same vector."""
    import torch

    if "weight" not in keys or not set(keys) <= {"weight", "bias"} or list(module.children()):
        return None
    weight = module.weight
    if not isinstance(weight, torch.Tensor) or weight.dim() != 1:
        return None
    copy = type(module).__new__(type(module))
    copy.__dict__ = {**module.__dict__, "_parameters": {}, "_buffers": {}}
    x = torch.arange(1.0, weight.numel() + 1)[None, None]
    results = []
    for number in (0.0, 1.0):
        copy._parameters = {
            key: torch.nn.Parameter(torch.full([weight.numel()], number * (key == "weight")))
            for key in keys
        }
        try:
            results.append(copy(x)[0, 0, -1].item())
        except Exception:  # it takes other inputs than a norm
            return None
    without, with_one = results
    if with_one == without:
        return None
    return float(round(without / (with_one - without), 6))


def _belongs(parameters: Iterable[object], model: nn.Module, path: str) -> bool:
    """Whether each parameter is also that of another module (the bias of BERT's last layer)."""
    held = {
        id(parameter)
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if name.rpartition(".")[0] != path
    }
    return all(id(parameter) in held for parameter in parameters)


def _shared(model: nn.Module) -> tuple[tuple[str, ...], ...]:
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return tuple(tuple(group) for group in names.values() if len(group) > 1)


def _computed(model: nn.Module) -> dict[str, frozenset[int]]:
    """Of buffers that no file has."""
    sizes = {}
    for path, module in model.named_modules():
        held = module.named_buffers(recurse=False)
        computed = [each for name, each in held if name in module._non_persistent_buffers_set]
        sizes[path] = frozenset(each.numel() for each in computed if each.is_floating_point())
    return {path: found for path, found in sizes.items() if found}


def _head(model: PreTrainedModel) -> str | None:
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return next((path for path, module in model.named_modules() if module is head), None)


def _attentions(model: nn.Module) -> dict[int, str]:
    """transformers numbers the modules that write to a cache."""
    return {
        module.layer_idx: path
        for path, module in model.named_modules()
        if isinstance(getattr(module, "layer_idx", None), int)
        and any(hasattr(module, name) for name in ("k_proj", "v_proj", "qkv_proj"))
    }
