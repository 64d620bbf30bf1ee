"""Distillation: a loss of a prepared module against the float module that it was made from.

It needs no labels. Mishra and Marr 2018 (arXiv:1711.05852) train quantized networks with it; the
divergence of the logits is that of Hinton et al. 2015 (arXiv:1503.02531), features are those of
Romero et al. 2015 (FitNets, arXiv:1412.6550).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.modules.dropout import _DropoutNd

from optkit.craft.sources import wrappers
from optkit.craft.sources.outputs import leaves
from optkit.facts.errors import UsageError
from optkit.road.jobs.batches import Batch, taken, without_labels
from optkit.satellites.qat.calls import arguments, device_of
from optkit.satellites.qat.checks import check_above_zero
from optkit.satellites.qat.products import Product

Criterion = Callable[[Any, Any], Tensor]
"""The outputs of the student, those of the teacher → a loss, of rank 0."""


class Teacher:
    """The float module in evaluation mode, without gradients. It shares its weights with the module
    that `prepare` got. Copies of the student have the same teacher. `factors`: by which the
    equalization has multiplied parameters of the student."""

    def __init__(self, module: Module, factors: Mapping[str, Tensor]) -> None:
        tensors = chain(module.parameters(), module.buffers())
        shared: dict[int, Any] = {id(tensor): tensor for tensor in tensors}
        self.module = copy.deepcopy(module, shared).eval()
        self._factors = factors

    def equalized(self) -> Teacher:
        """The teacher whose results inside have the units of the student."""
        if not self._factors:
            return self
        other = Teacher(self.module, {})
        for name, factor in self._factors.items():
            path, _, last = name.rpartition(".")
            part = other.module.get_submodule(path)
            parameter = part.get_parameter(last).detach()
            product = (parameter.double() * factor.to(parameter.device)).to(parameter)
            setattr(part, last, Parameter(product, requires_grad=False))
        return other

    def __deepcopy__(self, memo: object) -> Teacher:
        return self

    def on(self, device: torch.device) -> Module:
        """The module on the device; a copy if the weights are on another one."""
        tensors = chain(self.module.parameters(), self.module.buffers())
        if any(tensor.device != device for tensor in tensors):
            self.module = copy.deepcopy(self.module).to(device)
        return self.module


class Recorder:
    """A forward hook that keeps the last output of a module. A copy of the module has an empty
    one."""

    def __init__(self) -> None:
        self._output: object = None

    def __call__(self, module: Module, inputs: object, output: object) -> None:
        self._output = output

    def __deepcopy__(self, memo: object) -> Recorder:
        return Recorder()

    def take(self) -> object:
        output, self._output = self._output, None
        return output


def remove_recorders(model: Module) -> None:
    """Remove the hooks of every Distillation."""
    for part in model.modules():
        for key, hook in list(part._forward_hooks.items()):
            if isinstance(hook, Recorder):
                del part._forward_hooks[key]


class Distillation:
    """The loss of the outputs of a prepared module for a batch; `loss = distillation(net(x), x)`.

    model: what `prepare` returned, also in the wrappers of torch.compile, DDP or Accelerate. It is
        put into evaluation mode, which has gradients too: the teacher drops nothing, so what a
        dropout changes would be learned as if it were an error of the quantization.
    loss: "mse": the power of the error over that of the teacher's output, the mean of all outputs,
        for any model; "kl": the Kullback-Leibler divergence of the classes, times temperature²; or
        a function (outputs, outputs of the teacher) → loss, for models with losses of their own.
    features: names of modules. The normalized errors of their outputs are added, as their mean.

    Raises UsageError for a module that `prepare` did not return, for a name that it does not have,
    and for a temperature that is no number above 0.
    """

    def __init__(
        self,
        model: Module,
        *,
        loss: Literal["mse", "kl"] | Criterion = "mse",
        temperature: float = 1.0,
        features: Sequence[str] = (),
    ) -> None:
        self._student = wrappers.unwrapped(model)
        teacher = getattr(self._student, "qat_teacher", None)
        if not isinstance(teacher, Teacher):
            raise UsageError(
                "it was not prepared",
                where=type(self._student).__name__,
                hint="give the module that optkit.qat.prepare returns",
            )
        if loss not in ("mse", "kl") and not callable(loss):
            raise UsageError(
                f"{loss!r} is no loss",
                where="loss=",
                hint='"mse", "kl" or a function of two outputs',
            )
        check_above_zero("temperature=", temperature)
        if isinstance(features, str) or not isinstance(features, Iterable):
            raise UsageError(
                f"{features!r} is no list of names",
                where="features=",
                hint='give a list, e.g. ["blocks.3"]',
            )
        model.eval()
        self._teacher = teacher.equalized() if features else teacher
        self._loss = loss
        self._temperature = temperature
        self._recorders = {name: self._recorder(name) for name in features}

    def __call__(self, outputs: object, *inputs: Any, **named: Any) -> Tensor:
        """The loss, of rank 0. `outputs`: what the student returned for these inputs. Labels among
        `named` are left out. Raises UsageError if the outputs have other shapes than those of the
        teacher, if the student did not run the modules of `features`, or if it drops numbers."""
        _check_dropout(self._student)
        teacher = self._teacher.on(device_of(self._student))
        recorders = {name: Recorder() for name in self._recorders}
        hooks = [
            teacher.get_submodule(name).register_forward_hook(recorder)
            for name, recorder in recorders.items()
        ]
        try:
            with torch.no_grad():
                expected = teacher(*inputs, **without_labels(named))
        finally:
            for hook in hooks:
                hook.remove()
        loss = self._of_outputs(outputs, expected)
        if not recorders:
            return loss
        errors = [self._of_feature(name, recorders[name].take()) for name in recorders]
        return loss + torch.stack(errors).mean()

    def of(self, model: Module, batch: Batch) -> Tensor:
        """The loss of what the model, in its wrappers, returns for a batch. Items that its
        `forward` does not take, and labels, are left out."""
        batch = taken(self._teacher.module.forward, batch)
        positional, named = arguments(batch, device_of(model))
        kept = without_labels(named)
        return self(model(*positional, **kept), *positional, **kept)

    def _recorder(self, name: str) -> Recorder:
        part = dict(self._student.named_modules()).get(name)
        if part is None:
            raise UsageError(f"the model has no module {name!r}", where="features=")
        if isinstance(part, Product) and part.has_folded_norm:
            raise UsageError(
                f"the output of {name!r} has the BatchNorm after it, which the teacher's has not",
                where="features=",
                hint="name the BatchNorm",
            )
        recorder = Recorder()
        part.register_forward_hook(recorder)
        return recorder

    def _of_outputs(self, outputs: object, expected: object) -> Tensor:
        if callable(self._loss):
            return self._loss(outputs, expected)
        pairs = _pairs(outputs, expected)
        if self._loss == "mse":
            return torch.stack([normalized_error(*pair) for pair in pairs.values()]).mean()
        chosen = [pairs["logits"]] if "logits" in pairs else list(pairs.values())
        return torch.stack([divergence(*pair, self._temperature) for pair in chosen]).mean()

    def _of_feature(self, name: str, expected: object) -> Tensor:
        found = self._recorders[name].take()
        if found is None:
            raise UsageError(
                f"{name!r} did not run since the last loss",
                where="features=",
                hint="call the prepared module before the loss",
            )
        pairs = _pairs(found, expected)
        return torch.stack([normalized_error(*pair) for pair in pairs.values()]).mean()


def _check_dropout(student: Module) -> None:
    for name, part in student.named_modules():
        if isinstance(part, _DropoutNd) and part.training and part.p > 0:
            raise UsageError(
                f"{name!r} drops numbers, which the teacher does not",
                where=type(student).__name__,
                hint="train it in evaluation mode, which has gradients too: net.eval()",
            )


def normalized_error(y: Tensor, expected: Tensor) -> Tensor:
    """The power of the error over that of the expected numbers: 1 / SQNR."""
    y, expected = y.float(), expected.float()
    power = expected.square().sum().clamp_min(torch.finfo(torch.float32).tiny)
    return (y - expected).square().sum() / power


def divergence(logits: Tensor, expected: Tensor, temperature: float) -> Tensor:
    """KL(teacher, student) · temperature², the mean of all positions. The classes are the last axis
    of [batch, classes] and [batch, tokens, classes], and axis 1 of [batch, classes, height, …]."""
    axis = 1 if logits.ndim > 3 else -1
    student = F.log_softmax(logits.float() / temperature, axis)
    teacher = F.log_softmax(expected.float() / temperature, axis)
    per_class = F.kl_div(student, teacher, reduction="none", log_target=True)
    return per_class.sum(axis).mean() * temperature**2


def _pairs(outputs: object, expected: object) -> Mapping[str, tuple[Tensor, Tensor]]:
    """The float outputs of the student with those of the teacher, by name."""
    ours, theirs = _floats(outputs), _floats(expected)
    pairs = {name: (ours[name], theirs[name]) for name in theirs if name in ours}
    if not pairs or any(y.shape != other.shape for y, other in pairs.values()):
        raise UsageError(
            f"the student returns {_listed(ours)}, the teacher {_listed(theirs)}",
            where="distillation",
            hint="call both with the same inputs, or give a function as `loss`",
        )
    return pairs


def _floats(outputs: object) -> dict[str, Tensor]:
    return {
        name: leaf
        for name, leaf in leaves(outputs).items()
        if isinstance(leaf, Tensor) and leaf.is_floating_point()
    }


def _listed(outputs: Mapping[str, Tensor]) -> str:
    return ", ".join(f"{name} {list(y.shape)}" for name, y in outputs.items()) or "no float tensor"
