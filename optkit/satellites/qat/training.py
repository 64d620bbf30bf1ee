"""A short training by distillation, for a person who trains nothing else."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor, distributed
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from optkit.craft.sources import wrappers
from optkit.facts.errors import InputRefused, UsageError
from optkit.ground.workspace import Workspace
from optkit.road.jobs.batches import Batch
from optkit.satellites.qat.adapters import paths
from optkit.satellites.qat.calls import device_of
from optkit.satellites.qat.checks import (
    check_above_zero,
    check_batches,
    check_count,
    check_rate,
    unwrapped,
)
from optkit.satellites.qat.distillation import Distillation

_CHECKS = 10  # of the held-out batches, in the whole budget
_PATIENCE = 5  # checks without a gain, one after the other, before the rates are lowered
_SLOWER = 1 / 3  # the rates then
_END = 8  # checks without a gain, one after the other
_WARM_UP = 0.03  # of the budget
_MOST_HELD = 8  # batches
_OF_SCALES, _OF_ADAPTERS = 3.0, 100.0  # their rates, as multiples of that of weights
_LEAST_SIZE = 1e-2  # of the numbers of a parameter that is no scale: biases may start at 0


@dataclass(frozen=True)
class Distilled:
    """What a training gained. `loss_before`, `loss_after`: the mean loss of the held-out batches,
    at the start and of the state that was kept, which is that after `best_step` steps; 0: nothing
    was gained, and the module is as before. `stopped`: by the budget, or because eight checks
    gained nothing, one after the other."""

    steps: int
    seconds: float
    loss_before: float
    loss_after: float
    best_step: int
    stopped: Literal["budget", "no gain"]


def distill(
    model: Module,
    batches: Iterable[Batch],
    *,
    loss: Distillation | None = None,
    steps: int = 400,
    seconds: float | None = None,
    learning_rate: float = 3e-4,
    held_out: Iterable[Batch] | None = None,
    workspace: Workspace = Workspace(),
) -> Distilled:
    """Train a prepared module, in place, until it returns what its float module returns. Labels are
    not needed.

    Each step takes a batch. Adam with a warm-up and a cosine schedule; the module is in evaluation
    mode, so that statistics stay and nothing is dropped. Held-out batches are checked ten times,
    and the best state is kept. After five checks without a gain the training goes on from the
    best state, with a third of the rates.

    model: what `prepare` or `prepare_adapters` returned, also in DDP or torch.compile, on the
        device where it is. Its parameters that require gradients are trained. In DDP, each process
        gives its own batches, and all keep the same state.
    batches: read as often as the budget needs. Items that `forward` does not take, such as labels,
        are left out.
    loss: None: `Distillation(model)`.
    steps, seconds: the budget; the first one that is used up ends the training.
    learning_rate: of each parameter, as a part of the root mean square of its numbers; scales have
        three times the rate, and adapters a hundred times.
    held_out: None: the first batches, an eighth of them and at most 8, which are not trained. If
        the loader shuffles, later passes train these samples too.
    workspace: its listener gets the progress.

    Raises UsageError for a module that `prepare` did not return, a loss that is no Distillation, a
    budget or rate that is no number above 0, batches that can be read only once, and fewer than
    two; InputRefused if the loss is not finite before the training.
    """
    check_batches("batches", batches)
    if not isinstance(loss, Distillation | None):
        raise UsageError(
            f"{loss!r} is no Distillation",
            where="loss=",
            hint='loss=qat.Distillation(model, loss="kl")',
        )
    training = _Training(model, loss or Distillation(model), _Budget(steps, seconds), learning_rate)
    stream, held = _split(batches, held_out)
    listener, label = workspace.runner().listener, f"distil {type(training.student).__name__}"
    listener.start("distill", label)
    try:
        with wrappers.evaluating(model):
            distilled = training.run(stream, held, listener.progress)
    except BaseException:
        listener.failed("distill", label)
        raise
    listener.done("distill", label, False, distilled.seconds)
    if distilled.best_step == 0:
        listener.note("the distillation gained nothing; the module is as before")
    return distilled


def parameter_groups(model: Module, learning_rate: float = 3e-4) -> list[dict[str, Any]]:
    """Groups for Adam or AdamW, one for each parameter of a prepared module that requires a
    gradient. Adam moves every number by about its rate, so the rate follows the size of the
    parameter. `learning_rate`: as of `distill`. No group has weight decay. Raises UsageError for a
    rate that is no number from 0 on."""
    check_rate("learning_rate=", learning_rate)
    module = unwrapped(model)
    adapters = {f"{path}.weight" for path in paths(module)}
    return [
        {
            "params": [x],
            "weight_decay": 0.0,
            "lr": learning_rate * _size(name, x) * (_OF_ADAPTERS if name in adapters else 1.0),
        }
        for name, x in module.named_parameters()
        if x.requires_grad
    ]


class _Budget:
    """Steps, and seconds from now on; None: no limit."""

    def __init__(self, steps: int, seconds: float | None) -> None:
        check_count("steps=", steps)
        if seconds is not None:
            check_above_zero("seconds=", seconds)
        self.steps, self.seconds = steps, seconds
        self.started = time.monotonic()

    def elapsed(self) -> float:
        return time.monotonic() - self.started

    def spent(self, steps: int) -> float:
        """The part that is used after so many steps, from 0 on."""
        timed = 0.0 if self.seconds is None else self.elapsed() / self.seconds
        return max(steps / self.steps, timed)


@dataclass(frozen=True)
class _State:
    """The parameters after `step` steps, and the mean loss of the held-out batches."""

    step: int
    loss: float
    parameters: list[Tensor]


class _Training:
    """The module, its parameters with their rates, and the budget."""

    def __init__(
        self, model: Module, loss: Distillation, budget: _Budget, learning_rate: float
    ) -> None:
        self.model, self.loss, self.budget = model, loss, budget
        self.student = wrappers.unwrapped(model)
        self.device = device_of(model)
        self.parallel = any(isinstance(part, DistributedDataParallel) for part in model.modules())
        groups = parameter_groups(model, learning_rate)
        self.parameters: list[Tensor] = [x for group in groups for x in group["params"]]
        self.rates = [group["lr"] for group in groups]
        self.optimizer = torch.optim.Adam(groups, betas=(0.9, 0.99))

    def run(
        self, stream: Iterator[Batch], held: list[Batch], progress: Callable[[str, float], None]
    ) -> Distilled:
        first = best = self._state(0, held)
        if not math.isfinite(first.loss):
            raise InputRefused(
                f"the loss is {first.loss} before the training", where=type(self.student).__name__
            )
        step, spent, checks, without_gain, slowed = 0, 0.0, 0, 0, 1.0
        while spent < 1 and without_gain < _END:
            self._train(next(stream), spent, slowed)
            step += 1
            spent = self._agreed(self.budget.spent(step), distributed.ReduceOp.MAX)
            if spent * _CHECKS >= checks + 1:
                checks = int(spent * _CHECKS)
                found = self._state(step, held)
                without_gain = 0 if found.loss < best.loss else without_gain + 1
                best = min(best, found, key=_loss)
                if without_gain == _PATIENCE:
                    self._return_to(best)
                    slowed *= _SLOWER
            progress(f"loss {best.loss:.3g}, {first.loss:.3g} before", min(spent, 1.0))
        self._return_to(best)
        return Distilled(
            step,
            self.budget.elapsed(),
            first.loss,
            best.loss,
            best.step,
            "budget" if spent >= 1 else "no gain",
        )

    @torch.no_grad()
    def _return_to(self, state: _State) -> None:
        for parameter, kept in zip(self.parameters, state.parameters, strict=True):
            parameter.copy_(kept)

    def _train(self, batch: Batch, spent: float, slowed: float) -> None:
        factor = slowed * min(1.0, (spent + 1 / self.budget.steps) / _WARM_UP)
        factor *= (1 + math.cos(math.pi * spent)) / 2
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        self.optimizer.zero_grad()
        torch.autograd.backward(self.loss.of(self.model, batch))
        self.optimizer.step()

    @torch.no_grad()
    def _state(self, step: int, held: list[Batch]) -> _State:
        losses = [self.loss.of(self.model, batch).item() for batch in held]
        total = self._agreed(sum(losses), distributed.ReduceOp.SUM)
        count = self._agreed(len(losses), distributed.ReduceOp.SUM)
        return _State(step, total / count, [x.detach().clone() for x in self.parameters])

    def _agreed(self, number: float, reduction: distributed.ReduceOp.RedOpType) -> float:
        """The same number in all processes of a DDP."""
        if not self.parallel:
            return number
        shared = torch.tensor(number, dtype=torch.float64, device=self.device)
        distributed.all_reduce(shared, reduction)
        return shared.item()


def _loss(state: _State) -> float:
    return state.loss


def _size(name: str, parameter: Tensor) -> float:
    """The size of a parameter, by which its rate is multiplied: the root mean square."""
    size = parameter.detach().float().square().mean().sqrt().item()
    return _OF_SCALES * size if name.endswith("quantizer.scale") else max(size, _LEAST_SIZE)


def _split(
    batches: Iterable[Batch], held_out: Iterable[Batch] | None
) -> tuple[Iterator[Batch], list[Batch]]:
    """The batches for the training, without an end, and the held-out ones."""
    if iter(batches) is batches:
        raise UsageError(
            "they can be read only once", where="batches", hint="give a list or a loader"
        )
    count = 0
    if held_out is None:
        count = min(max(operator.length_hint(batches) // 8, 1), _MOST_HELD)
        held_out = islice(batches, count)
    check_batches("held_out=", held_out)
    held = list(held_out)
    if not held or next(islice(batches, count, None), None) is None:
        raise UsageError(
            "at least one batch to train and one to hold out are needed",
            where="batches",
            hint="give more batches, of fewer samples",
        )
    return _endless(batches, count), held


def _endless(batches: Iterable[Batch], skipped: int) -> Iterator[Batch]:
    while True:
        yield from islice(batches, skipped, None)
