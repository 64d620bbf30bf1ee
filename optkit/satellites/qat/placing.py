"""Puts the quantizers of a plan into the modules that compute its values."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn
from torch.nn import Module

from optkit.facts.errors import InputRefused
from optkit.satellites.qat.activations import quantize_result
from optkit.satellites.qat.additions import RESULT, quantize_addition
from optkit.satellites.qat.fake_quantization import (
    ActivationQuantizer,
    RunTimeQuantizer,
    WeightQuantizer,
)
from optkit.satellites.qat.products import MODULES, Product, as_product
from optkit.satellites.qat.quantization_plan import (
    PRODUCTS,
    QuantizationPlan,
    QuantizedValue,
    QuantizedWeight,
    Reader,
    path_of,
)


class _Refusal(Exception):
    """A node that cannot be quantized. `nodes`: the pattern of those that have to stay in float;
    None: the node."""

    def __init__(self, node: str, problem: str, nodes: str | None = None) -> None:
        self.node, self.problem, self.nodes = node, problem, nodes or node


def place(model: Module, plan: QuantizationPlan, *, learned: bool) -> None:
    """Quantize the module as the plan says. Raises InputRefused for nodes that no module of MODULES
    computes, or that are computed by a module which runs more than once; the hint names all."""
    modules = dict(model.named_modules())
    refusals: list[_Refusal] = []
    taken: set[str] = set()
    for weight in plan.weights:
        with _kept(refusals):
            _place_weight(modules, plan, weight, taken, learned=learned)
    for value in plan.values:
        quantizer = ActivationQuantizer(
            value.value, value.format, value.scale, value.zero_point, plan.carrier, learned=learned
        )
        with _kept(refusals):
            for put in _places(modules, plan, value):
                put(quantizer)
    if refusals:
        raise _refused(refusals)
    for lookup, width in plan.embeddings.items():
        module = modules.get(path_of(lookup))
        if isinstance(module, nn.Embedding):  # one scale per row, which follows the table
            quantize_result(module, RunTimeQuantizer(width))
    trained = next(model.parameters(), None)
    for part in model.modules():
        if trained is not None and isinstance(part, ActivationQuantizer | WeightQuantizer):
            part.to(trained.device)


def _place_weight(
    modules: dict[str, Module],
    plan: QuantizationPlan,
    weight: QuantizedWeight,
    taken: set[str],
    *,
    learned: bool,
) -> None:
    """`taken`: the paths of the modules that have a quantizer already."""
    product = as_product(_product(modules, weight.node))
    path = path_of(weight.node)
    if path in taken:
        raise _Refusal(weight.node, "its module runs more than once", f"{path}/*")
    taken.add(path)
    product.weight_quantizer = WeightQuantizer(
        weight.node,
        weight.format,
        torch.from_numpy(weight.scale.copy()),
        weight.common,
        plan.carrier,
        floored=weight.integer_bias,
        learned=learned,
    )
    if weight.rounded is not None:
        product.input_quantizer = RunTimeQuantizer(weight.rounded)


def _places(
    modules: dict[str, Module], plan: QuantizationPlan, value: QuantizedValue
) -> Sequence[partial[None]]:
    """Before each reader if all are known, otherwise after the node that makes the value."""
    quantized = {weight.node for weight in plan.weights}
    readers = [_reader(modules, plan, reader, quantized) for reader in value.readers]
    known = [put for put in readers if put is not None]
    if len(known) == len(readers):
        return known
    made = value.made_by and _maker(modules, plan, value.made_by)
    if not made:
        reader = next(r for r, put in zip(value.readers, readers, strict=True) if put is None)
        raise _Refusal(reader.node, f"its {reader.op} reads {value.value!r} in codes")
    return [made]


def _reader(
    modules: dict[str, Module], plan: QuantizationPlan, reader: Reader, quantized: Collection[str]
) -> partial[None] | None:
    """`quantized`: the products; another product reads what its quantized maker returns."""
    if reader.node in quantized and reader.index == 0:
        product = as_product(_product(modules, reader.node))
        return partial(setattr, product, "input_quantizer")
    return _addition(modules, plan, reader, reader.index)


def _maker(
    modules: dict[str, Module], plan: QuantizationPlan, node: Reader
) -> partial[None] | None:
    if node.op in PRODUCTS:
        return partial(setattr, as_product(_product(modules, node.node)), "output_quantizer")
    if node.node in plan.additions:
        return _addition(modules, plan, node, RESULT)
    module = modules.get(path_of(node.node))
    if module is None or [*module.children(), *module.parameters()]:
        return None
    return partial(quantize_result, module)


def _addition(
    modules: dict[str, Module], plan: QuantizationPlan, node: Reader, place: int
) -> partial[None] | None:
    if node.node not in plan.additions:
        return None
    path, number = plan.additions[node.node]
    return partial(quantize_addition, _module(modules, path, node.node), number, place)


def _product(modules: dict[str, Module], node: str) -> Module:
    module = _module(modules, path_of(node), node)
    if type(module) not in MODULES and not isinstance(module, Product):
        raise _Refusal(node, f"{type(module).__name__} computes it, which qat does not quantize")
    return module


def _module(modules: dict[str, Module], path: str, node: str) -> Module:
    if path not in modules:
        raise _Refusal(node, f"the model has no module {path!r}")
    return modules[path]


@contextmanager
def _kept(refusals: list[_Refusal]) -> Iterator[None]:
    """Append a refusal, so that the others are found too."""
    try:
        yield
    except _Refusal as refusal:
        refusals.append(refusal)


def _refused(refusals: Sequence[_Refusal]) -> InputRefused:
    """The error for the first one, with a hint for all."""
    first = refusals[0]
    others = len({refusal.node for refusal in refusals}) - 1
    nouns = "node" if others == 1 else "nodes"
    nodes = dict.fromkeys((refusal.nodes for refusal in refusals), "fp16")
    return InputRefused(
        first.problem + (f"; the hint names {others} more such {nouns}" if others else ""),
        where=f"node {first.node!r}",
        hint=f"leave {'them' if others else 'it'} in float: "
        f"recipe={json.dumps({'quantization': {'nodes': nodes}})}",
    )
