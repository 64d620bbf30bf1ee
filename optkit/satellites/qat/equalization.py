"""Cross-layer equalization of a build in the module: each factor that the build has folded into a
constant of the graph multiplies the parameter of the module that this constant is.

The module returns what it returned before, up to float rounding. Its parameters are in other units:
a state of the float model gets the same factors when it is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.nn import Module

from optkit.craft.sources import wrappers
from optkit.ground import graph
from optkit.road.jobs.batches import Batch
from optkit.satellites.qat.agreement import alike, results
from optkit.satellites.qat.products import MODULES, Product
from optkit.satellites.qat.quantization_plan import QuantizationPlan, path_of

_NORMS = ("BatchNormalization", "InstanceNormalization", "LayerNormalization")
_MODULES_OF_NORMS = nn.modules.batchnorm._NormBase, nn.LayerNorm
_WEIGHT, _BIAS = 1, 2  # inputs of products and of normalizations


def equalize(
    model: Module, example_inputs: Batch, plan: QuantizationPlan
) -> Mapping[str, Tensor] | None:
    """Multiply the parameters of the module by the factors of the plan. Returns what each one was
    multiplied by; None, and the module is as before, if a constant with a factor is no parameter,
    or if the outputs would change."""
    factors = _of_parameters(model, plan)
    if factors is None:
        return None
    with wrappers.evaluating(model):
        before = results(model, example_inputs)
        kept = {name: model.get_parameter(name).detach().clone() for name in factors}
        multiply(model, factors)
        if alike(before, results(model, example_inputs)):
            return factors
    with torch.no_grad():
        for name, parameter in kept.items():
            model.get_parameter(name).copy_(parameter)
    return None


@torch.no_grad()
def multiply(model: Module, factors: Mapping[str, Tensor]) -> None:
    """Multiply the named parameters by their factors, in place."""
    for name, factor in factors.items():
        parameter = model.get_parameter(name)
        parameter.copy_(parameter.double() * factor.to(parameter.device))


def scale_states(model: Module, factors: Mapping[str, Tensor]) -> None:
    """A state of the float model, which has no quantizers, gets the factors when `model` loads
    it."""
    model.qat_factors = dict(factors)  # type: ignore[assignment]
    model.register_load_state_dict_pre_hook(_scale_state)  # type: ignore[no-untyped-call]


def _scale_state(model: Module, state: dict[str, Any], prefix: str, *others: object) -> None:
    factors: Mapping[str, Tensor] = vars(model).get("qat_factors", {})
    if any("quantizer." in name.removeprefix(prefix) for name in state):
        return
    for name in factors.keys() & {name.removeprefix(prefix) for name in state}:
        number = state[prefix + name]
        state[prefix + name] = (number.double() * factors[name].to(number.device)).to(number)


def _of_parameters(model: Module, plan: QuantizationPlan) -> dict[str, Tensor] | None:
    """The factors by the names of parameters, float64; None if a constant is no parameter."""
    nodes = {str(node.name): node for node in graph.load(plan.fused).graph}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    modules = dict(model.named_modules())
    by_constant: dict[str, dict[int, np.ndarray]] = {}
    for factor in plan.factors:
        of_node = by_constant.setdefault(factor.node, {})
        of_node[factor.index] = of_node.get(factor.index, np.ones(1)) * factor.numbers
    found = {}
    for node, of_node in by_constant.items():
        module = modules.get(path_of(node))
        for parameter, numbers in _parameters(module, nodes[node], of_node):
            name = names.get(id(parameter))
            if name is None:
                return None
            if (numbers != 1).any():
                found[name] = torch.from_numpy(numbers)
    return found


def _scaled_by(module: Any) -> Any:
    """The module whose weight scales the results, and whose bias is added: the norm that is folded
    into a product, or else the module."""
    if isinstance(module, Product) and module._norm:
        return module._norm[0]
    return module


def _parameters(
    module: Any, node: ir.Node, factors: Mapping[int, np.ndarray]
) -> Iterator[tuple[Tensor | None, np.ndarray]]:
    """Parameters with their factors, for the factors of the inputs of the node, which the module
    computes; None: a constant that is no parameter of the module, or there is no module."""
    product = type(module) in MODULES or isinstance(module, Product)
    known = product or (isinstance(module, _MODULES_OF_NORMS) and node.op_type in _NORMS)
    if not known or factors.keys() - {_WEIGHT, _BIAS}:
        yield None, np.ones(1)
        return
    weight, bias = factors.get(_WEIGHT), factors.get(_BIAS)
    if product and weight is not None and weight.ndim == 2:
        weight = weight if node.attributes.get_int("transB", 0) else weight.T
    norm = _scaled_by(module)
    if norm is not module and weight is not None and bias is not None:
        yield norm.weight, bias  # of the results, which BatchNorm multiplies too
        weight = weight / bias.reshape(-1, *[1] * (weight.ndim - 1))
    if weight is not None:
        yield module.weight, weight
    if bias is not None:
        yield norm.bias, bias
