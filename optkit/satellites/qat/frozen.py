"""The quantized weights of a build in a module, with adapters beside them.

An adapter starts as the matrix of its rank that is nearest to what the quantization has lost, for
the inputs x of the calibration (EoRA, Liu et al. 2024, arXiv:2410.21271):

    min E|(W - W_q) x - up down x|²        by the SVD of (W - W_q) L,  E[x xᵀ] = L Lᵀ

Without calibration samples L is the identity, as in LoftQ (Li et al. 2023, arXiv:2310.08659).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from optkit.craft.quantization.qdq import weight_reader
from optkit.craft.quantization.qdq.codes import Codes, FloatCodes
from optkit.facts.errors import InputRefused, UsageError
from optkit.facts.precisions import NumberFormat
from optkit.ground import statistics
from optkit.ground.statistics import Statistics
from optkit.satellites.qat.adapters import NAME, Adapter
from optkit.satellites.qat.fake_quantization import FrozenWeight
from optkit.satellites.qat.products import Product
from optkit.satellites.qat.quantization_plan import QuantizationPlan, QuantizedWeight

_MOST_BITS = 4  # codes of more bits lose nothing that an adapter could win back
_SHARE = 0.25  # of the bytes of codes and scales: what an adapter may add by itself
_MOST_RANK = 64
_DAMPING = 0.01  # of the mean second moment, so that L has an inverse


@dataclass(frozen=True)
class Lost:
    """What the quantization of a layer has lost. `error`: W - W_q [N, K], float32."""

    layer: Product
    weight: QuantizedWeight
    error: np.ndarray


def freeze(model: nn.Module, plan: QuantizationPlan) -> list[Lost]:
    """Give the products that `placing.place` found the weights of the graph, and freeze all
    parameters. Returns the layers of few bits. Raises InputRefused if there are none."""
    by_node = {weight.node: weight for weight in plan.weights}
    values = {
        str(node.name): weight_reader.matrix(node)
        for node in plan.written().graph
        if node.name in by_node
    }
    lost = []
    for part in model.modules():
        if not isinstance(part, Product) or part.weight_quantizer is None:
            continue
        weight = by_node[part.weight_quantizer.node]
        held = _numbers(values.pop(weight.node))
        before = part.weight.detach()
        part.weight = nn.Parameter(torch.from_numpy(held).to(before))
        part.weight_quantizer = FrozenWeight(weight.node, torch.from_numpy(weight.scale.copy()))
        if weight.format.bits <= _MOST_BITS:
            lost.append(Lost(part, weight, np.asarray(before.cpu()) - held))
    for parameter in model.parameters():
        parameter.requires_grad = False
    if not lost:
        raise InputRefused(
            "no linear layer is quantized in 4 bits or fewer",
            where=type(model).__name__,
            hint="adapters stand beside nn.Linear; train another model with optkit.qat.prepare",
        )
    return lost


def attach(lost: list[Lost], plan: QuantizationPlan, rank: int | None) -> None:
    """Put an adapter beside each of these layers. Raises UsageError for a rank that is larger than
    a layer."""
    known = None if plan.statistics is None else statistics.load(plan.statistics)
    for each in lost:
        device = each.layer.weight.device
        least = min(each.error.shape)
        fitting = fitting_rank(each.error.shape, each.weight.format)
        chosen = fitting if rank is None else rank
        if chosen > least:
            raise UsageError(
                f"rank {chosen}, and the weight is {list(each.error.shape)}",
                where=f"node {each.weight.node!r}",
                hint=f"give a rank from 1 to {least}, or none",
            )
        down, up = start(each.error, _moments(known, each.weight.reads), chosen)
        adapter = Adapter(torch.from_numpy(down).to(device), torch.from_numpy(up).to(device))
        each.layer.register_module(NAME, adapter)


def fitting_rank(shape: tuple[int, ...], fmt: NumberFormat) -> int:
    """The rank whose matrices have a quarter of the bytes of the codes and scales of a weight
    [N, K], all floats in float32; at least 1 and at most 64."""
    n, k = shape
    assert fmt.block_size is not None
    held = n * k * (fmt.bits / 8 + 4 / fmt.block_size)
    return int(np.clip(_SHARE * held // (4 * (n + k)), 1, min(_MOST_RANK, n, k)))


def start(
    error: np.ndarray, moments: np.ndarray | None, rank: int
) -> tuple[np.ndarray, np.ndarray]:
    """down [rank, K] and up [N, rank], float32, for the error [N, K] and E[x xᵀ] [K, K]."""
    k = error.shape[1]
    moments = np.eye(k) if moments is None else moments.astype(np.float64)
    damping = _DAMPING * max(float(np.trace(moments)) / k, np.finfo(np.float32).tiny)
    root = np.linalg.cholesky(moments + damping * np.eye(k))
    u, s, v = np.linalg.svd(error @ root, full_matrices=False)
    half = np.sqrt(s[:rank])
    down = np.linalg.solve(root.T, (half[:, None] * v[:rank]).T).T
    return down.astype(np.float32), (u[:, :rank] * half).astype(np.float32)


def _numbers(stored: Codes | FloatCodes | np.ndarray) -> np.ndarray:
    """float32 [N, K], in memory of its own."""
    numbers = stored if isinstance(stored, np.ndarray) else stored.numbers()
    return np.array(numbers, np.float32)


def _moments(known: Statistics | None, value: str) -> np.ndarray | None:
    found = None if known is None else known.values.get(value)
    if found is None or found.unbounded is not None:
        return None
    if found.moments is not None:
        return found.moments.matrix()
    rows = found.rows
    return None if rows is None or not rows.count else rows.data.T @ rows.data / rows.count
