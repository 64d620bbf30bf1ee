"""Puts the quantizers of a plan into the modules that compute its values."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

import torch
from torch import nn
from torch.nn import Module

from optkit.errors import InputRefused
from optkit.qat.activations import quantize_result
from optkit.qat.additions import RESULT, quantize_addition
from optkit.qat.fake_quantization import ActivationQuantizer, RunTimeQuantizer, WeightQuantizer
from optkit.qat.plan import PRODUCTS, Plan, QuantizedValue, Reader, path_of
from optkit.qat.products import MODULES, Product, as_product


def place(model: Module, plan: Plan, *, learned: bool) -> None:
    """Quantize the module as the plan says. Raises InputRefused for a node that no module of
    MODULES computes, or that is computed by a module which runs more than once."""
    modules = dict(model.named_modules())
    taken: set[str] = set()
    for weight in plan.weights:
        product = as_product(_product(modules, weight.node))
        path = path_of(weight.node)
        if path in taken:
            raise _refused(weight.node, "its module runs more than once", f"{path}/*")
        taken.add(path)
        product.weight_quantizer = WeightQuantizer(
            weight.node, weight.format, torch.from_numpy(weight.scale.copy()), weight.common,
            plan.carrier, floored=weight.integer_bias, learned=learned,
        )  # fmt: skip
        if weight.rounded is not None:
            product.input_quantizer = RunTimeQuantizer(weight.rounded)
    for value in plan.values:
        quantizer = ActivationQuantizer(
            value.value, value.format, value.scale, value.zero_point, plan.carrier,
            learned=learned,
        )  # fmt: skip
        for put in _places(modules, plan, value):
            put(quantizer)
    for lookup, width in plan.embeddings.items():
        module = modules.get(path_of(lookup))
        if isinstance(module, nn.Embedding):  # one scale per row, which follows the table
            quantize_result(module, RunTimeQuantizer(width))
    trained = next(model.parameters(), None)
    for part in model.modules():
        if trained is not None and isinstance(part, ActivationQuantizer | WeightQuantizer):
            part.to(trained.device)


def _places(
    modules: dict[str, Module], plan: Plan, value: QuantizedValue
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
        raise _refused(reader.node, f"its {reader.op} reads {value.value!r} in codes")
    return [made]


def _reader(
    modules: dict[str, Module], plan: Plan, reader: Reader, quantized: Collection[str]
) -> partial[None] | None:
    """`quantized`: the products; another product reads what its quantized maker returns."""
    if reader.node in quantized and reader.index == 0:
        product = as_product(_product(modules, reader.node))
        return partial(setattr, product, "input_quantizer")
    return _addition(modules, plan, reader, reader.index)


def _maker(modules: dict[str, Module], plan: Plan, node: Reader) -> partial[None] | None:
    if node.op in PRODUCTS:
        return partial(setattr, as_product(_product(modules, node.node)), "output_quantizer")
    if node.node in plan.additions:
        return _addition(modules, plan, node, RESULT)
    module = modules.get(path_of(node.node))
    if module is None or [*module.children(), *module.parameters()]:
        return None
    return partial(quantize_result, module)


def _addition(
    modules: dict[str, Module], plan: Plan, node: Reader, place: int
) -> partial[None] | None:
    if node.node not in plan.additions:
        return None
    path, number = plan.additions[node.node]
    return partial(quantize_addition, _module(modules, path, node.node), number, place)


def _product(modules: dict[str, Module], node: str) -> Module:
    module = _module(modules, path_of(node), node)
    if type(module) not in MODULES and not isinstance(module, Product):
        raise _refused(node, f"{type(module).__name__} computes it, which qat does not quantize")
    return module


def _module(modules: dict[str, Module], path: str, node: str) -> Module:
    if path not in modules:
        raise _refused(node, f"the model has no module {path!r}")
    return modules[path]


def _refused(node: str, problem: str, nodes: str | None = None) -> InputRefused:
    """`nodes`: the pattern of those that have to stay in float; None: the node."""
    left = f'{{"quantization": {{"nodes": {{"{nodes or node}": "fp16"}}}}}}'
    return InputRefused(problem, where=f"node {node!r}", hint=f"leave it in float: recipe={left}")
