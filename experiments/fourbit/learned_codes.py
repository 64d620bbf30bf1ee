"""Ways to choose the codes of linear layers that look at more than the inputs of one layer in
float: at the inputs that the quantized layers before give, and at the outputs of blocks or of the
whole network."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch
from layer_inputs import hooked
from torch import Tensor, nn
from torch.nn.utils import parametrize

from optkit.precisions import NumberFormat
from optkit.quantization.numerics import formats
from optkit.quantization.rounding.gptaq import compensated
from optkit.quantization.rounding.gptq import gptq
from optkit.quantization.rounding.rtn import Quantized

Batch = tuple[Tensor, ...]
DAMPING, SWEEPS = 0.01, 2  # of a build
REACH = 0.4  # how far from its code a weight starts at most, in units
CHECKS = 10
RATE = 3e-3  # of Adam, in units of the codes


class _Enough(Exception):
    pass


@dataclass(frozen=True)
class Network:
    """A network, the blocks whose layers are quantized, in order, and the last layer, which stays
    in float. `sums`: of a layer whose output is added to another value, the module that reads the
    sum, or the block that returns it."""

    net: nn.Module
    blocks: Sequence[str]
    sums: Mapping[str, str]
    last: str

    def layers(self, block: str) -> dict[str, nn.Linear]:
        modules = self.net.get_submodule(block).named_modules(prefix=block)
        return {name: part for name, part in modules if isinstance(part, nn.Linear)}

    def copy(self) -> Network:
        return Network(copy.deepcopy(self.net), self.blocks, self.sums, self.last)

    @torch.no_grad()
    def take(self, codes: Mapping[str, Quantized]) -> None:
        for name, quantized in codes.items():
            weight = torch.from_numpy(quantized.dequantize().T)
            self.net.get_submodule(name).weight.copy_(weight)  # type: ignore[operator, union-attr]


@dataclass
class Chosen:
    """The codes of each layer, and another float weight for the last one."""

    codes: dict[str, Quantized] = field(default_factory=dict)
    last: Tensor | None = None

    @torch.no_grad()
    def applied(self, network: Network) -> nn.Module:
        student = network.copy()
        student.take(self.codes)
        if self.last is not None:
            student.net.get_submodule(network.last).weight.copy_(self.last)  # type: ignore[operator, union-attr]
        return student.net


@dataclass(frozen=True)
class Call:
    """What a block was called with, and what it returned."""

    positional: tuple[Any, ...]
    named: dict[str, Any]
    output: Tensor


@torch.no_grad()
def call(net: nn.Module, block: str, batch: Batch) -> Call:
    """The call of a block when the network runs; what is behind it does not run."""
    found: list[Call] = []

    def seen(_: nn.Module, positional: Any, named: Any, output: Any) -> None:
        found.append(Call(positional, named, _first(output)))
        raise _Enough

    handle = net.get_submodule(block).register_forward_hook(seen, with_kwargs=True)
    with suppress(_Enough):
        net(*batch)
    handle.remove()
    return found[0]


@torch.no_grad()
def values(network: Network, block: str, given: Call) -> dict[str, np.ndarray]:
    """The inputs of the layers of a block, [rows, K], and as "sum LAYER" the sums behind them."""
    found: dict[str, np.ndarray] = {}

    def rows(x: Tensor) -> np.ndarray:
        return x.flatten(0, -2).numpy()

    def seen(name: str, x: Tensor) -> None:
        found[name] = rows(x)

    reads = {f"sum {name}": at for name, at in network.sums.items() if at != block}
    modules: dict[str, Any] = network.layers(block) | {
        name: network.net.get_submodule(at)
        for name, at in reads.items()
        if at.startswith(f"{block}.")
    }
    with hooked(modules, seen):
        output = network.net.get_submodule(block)(*given.positional, **given.named)
    whole = {
        f"sum {name}": rows(_first(output)) for name, at in network.sums.items() if at == block
    }
    return found | whole


def groups(network: Network, block: str, given: Call) -> list[list[str]]:
    """The layers of a block that read one input, in the order in which they run."""
    inputs: list[Tensor] = []
    found: list[list[str]] = []

    def seen(name: str, x: Tensor) -> None:
        for other, group in zip(inputs, found, strict=True):
            if other is x:
                group.append(name)
                return
        inputs.append(x)
        found.append([name])

    with torch.no_grad(), hooked(network.layers(block), seen):
        network.net.get_submodule(block)(*given.positional, **given.named)
    return found


def of_layers(network: Network, fmt: NumberFormat, batches: list[Batch], sweeps: int) -> Chosen:
    """GPTQ from the inputs in float, as a build does."""
    chosen = Chosen()
    for block in network.blocks:
        calls = [call(network.net, block, batch) for batch in batches]
        seen = [values(network, block, given) for given in calls]
        for group in groups(network, block, calls[0]):
            moments = _mean(part[group[0]].T @ part[group[0]] for part in seen) / len(
                seen[0][group[0]]
            )
            columns = [_columns(network, name) for name in group]
            found = gptq(columns, moments, fmt, np.float32, damping=DAMPING, sweeps=sweeps)
            chosen.codes |= dict(zip(group, found, strict=True))
    return chosen


def in_order(
    network: Network, fmt: NumberFormat, batches: list[Batch], *, alpha: float = 1.0,
    sums: bool = True,
) -> Chosen:  # fmt: skip
    """GPTAQ, layer after layer (`optkit.quantization.in_order`). `alpha`: the share of the error
    for which a layer makes up; 0: only the second moments are those of the quantized network.
    `sums`: a layer whose output is added makes up for the error of the sum."""
    student, chosen = network.copy(), Chosen()
    for block in (*network.blocks, network.last):
        exact = [values(network, block, call(network.net, block, batch)) for batch in batches]
        calls = [call(student.net, block, batch) for batch in batches]
        for group in groups(network, block, calls[0]):
            given = [values(student, block, one) for one in calls]
            first, count = group[0], len(given[0][group[0]])
            moments = _mean(part[first].T @ part[first] for part in given) / count
            moved = []
            for name in group:
                w, whole = _columns(network, name), f"sum {name}"
                missing = _mean(
                    part[first].T @ (
                        other[whole] - part[whole] if sums and whole in part
                        else (other[first] - part[first]) @ w
                    )
                    for part, other in zip(given, exact, strict=True)
                ) / count  # fmt: skip
                moved.append(compensated(w, moments, alpha * missing, DAMPING))
            if block == network.last:
                chosen.last = torch.from_numpy(moved[0].T.copy())
                continue
            found = gptq(moved, moments, fmt, np.float32, damping=DAMPING, sweeps=SWEEPS)
            chosen.codes |= dict(zip(group, found, strict=True))
            student.take(dict(zip(group, found, strict=True)))
    return chosen


def _mean(products: Iterator[np.ndarray]) -> np.ndarray:
    found = [product.astype(np.float64) for product in products]
    return np.asarray(sum(found) / len(found))


def _columns(network: Network, name: str) -> np.ndarray:
    """The weight, [K, N]"""
    weight = network.net.get_submodule(name).weight
    assert isinstance(weight, Tensor)
    return weight.detach().numpy().T


class _Rounded(nn.Module):
    """u [N, K], in units of the scales → the weight of the nearest codes. Gradients pass."""

    def __init__(self, start: Quantized) -> None:
        super().__init__()
        size = start.fmt.block_size or len(start.codes)
        wide = np.repeat(np.atleast_2d(start.scale.scale), size, axis=0)[: len(start.codes)]
        self.scale = torch.from_numpy(wide.T.copy())
        self.low, self.high = float(start.fmt.qmin), float(start.fmt.qmax)

    def units(self, u: Tensor) -> Tensor:
        return u.clamp(self.low, self.high).round()

    def forward(self, u: Tensor) -> Tensor:
        inside = u.clamp(self.low, self.high)
        return (inside + (self.units(u) - inside).detach()) * self.scale


@contextmanager
def learning(network: Network, chosen: Chosen, names: Sequence[str]) -> Iterator[list[Tensor]]:
    """Inside, the weights of these layers are rounded numbers; those that are trained start with
    the codes, each as near to its float weight as `REACH` allows. `chosen` has the codes found
    afterwards."""
    parts: list[Any] = [network.net.get_submodule(name) for name in names]
    for name, part in zip(names, parts, strict=True):
        start = chosen.codes[name]
        rounded = _Rounded(start)
        units = torch.from_numpy(formats.decode(start.codes, start.fmt, 0.0).T.copy())
        with torch.no_grad():
            near = part.weight / rounded.scale
            near = torch.minimum(torch.maximum(near, units - REACH), units + REACH)
            part.weight.copy_(near)
        parametrize.register_parametrization(part, "weight", rounded)
    trained = [part.parametrizations.weight.original for part in parts]
    for u in trained:
        u.requires_grad_(True)
    yield trained
    for name, part, u in zip(names, parts, trained, strict=True):
        start = chosen.codes[name]
        units = part.parametrizations.weight[0].units(u.detach()).numpy().T
        codes = formats.encode(np.ascontiguousarray(units), start.fmt, 0.0)
        chosen.codes[name] = start._replace(codes=codes)
        parametrize.remove_parametrizations(part, "weight")
        part.weight.requires_grad_(False)


def descend(
    trained: list[Tensor], loss: Callable[[int], Tensor], train: list[int], held: list[int],
    steps: int,
) -> None:  # fmt: skip
    """Train, and keep the state with the least loss on `held`, which may be the first one."""
    optimizer = torch.optim.Adam(trained, lr=RATE, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 - t / steps)
    random = np.random.default_rng(0)

    def mean() -> float:
        with torch.no_grad():
            return float(np.mean([loss(index).item() for index in held]))

    best, kept = mean(), [u.detach().clone() for u in trained]
    order: list[int] = []
    for step in range(1, steps + 1):
        order = order or [int(index) for index in random.permutation(train)]
        optimizer.zero_grad()
        torch.autograd.backward(loss(order.pop()))
        optimizer.step()
        schedule.step()
        if step % max(steps // CHECKS, 1) == 0 and (now := mean()) < best:
            best, kept = now, [u.detach().clone() for u in trained]
    with torch.no_grad():
        for u, state in zip(trained, kept, strict=True):
            u.copy_(state)


def of_moments(network: Network, start: Chosen, batches: list[Batch], steps: int) -> Chosen:
    """Codes of each layer that are learned from tr(DᵀHD), D = w - w', as GPTQ's (AdaRound without
    the nonlinearity behind the layer, Nagel et al. 2020, arXiv:2004.10568)."""
    student, chosen = network.copy(), Chosen(dict(start.codes))
    student.net.requires_grad_(False)
    for block in network.blocks:
        calls = [call(network.net, block, batch) for batch in batches]
        seen = [values(network, block, given) for given in calls]
        for name, part in student.layers(block).items():
            h = torch.from_numpy(_mean(x[name].T @ x[name] for x in seen)).float()
            w = part.weight.detach().clone()
            power = torch.sum((w @ h) * w)

            def loss(_: int, part: nn.Linear = part, w: Tensor = w, h: Any = h / power) -> Tensor:
                d = part.weight - w
                return torch.sum((d @ h) * d)

            with learning(student, chosen, [name]) as trained:
                descend(trained, loss, [0], [0], steps)
    return chosen


def of_blocks(network: Network, start: Chosen, batches: list[Batch], steps: int) -> Chosen:
    """Codes that are learned from the outputs of each block in turn, whose inputs are those that
    the quantized blocks before give (AutoRound, Cheng et al. 2023, arXiv:2309.05516)."""
    student, chosen = network.copy(), Chosen(dict(start.codes), start.last)
    student.net.requires_grad_(False)
    held = max(len(batches) // 8, 1)
    for block in network.blocks:
        part = student.net.get_submodule(block)
        given = [call(student.net, block, batch) for batch in batches]
        wanted = [call(network.net, block, batch).output for batch in batches]

        def loss(i: int, part: Any = part, given: Any = given, wanted: Any = wanted) -> Tensor:
            return error(_first(part(*given[i].positional, **given[i].named)), wanted[i])

        names = list(network.layers(block))
        with learning(student, chosen, names) as trained:
            descend(trained, loss, list(range(held, len(batches))), list(range(held)), steps)
        student.take({name: chosen.codes[name] for name in names})
    return chosen


def of_the_network(network: Network, start: Chosen, batches: list[Batch], steps: int) -> Chosen:
    """Codes that are learned from the outputs of the network."""
    student, chosen = network.copy(), Chosen(dict(start.codes), start.last)
    student.net.requires_grad_(False)
    held = max(len(batches) // 8, 1)
    with torch.no_grad():
        wanted = [network.net(*batch) for batch in batches]
    names = list(chain.from_iterable(network.layers(block) for block in network.blocks))
    with learning(student, chosen, names) as trained:
        descend(
            trained, lambda i: error(student.net(*batches[i]), wanted[i]),
            list(range(held, len(batches))), list(range(held)), steps,
        )  # fmt: skip
    return chosen


def error(y: Tensor, expected: Tensor) -> Tensor:
    """1 / SQNR"""
    return (y - expected).square().sum() / expected.square().sum()


def _first(output: Any) -> Tensor:
    found: Tensor = output if isinstance(output, Tensor) else output[0]
    return found
