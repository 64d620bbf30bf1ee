"""The key-value cache of a decoder in 8 or 4 bits, for GroupQueryAttention (com.microsoft).

    c = clip(round(x / s), -128, 127)    int8 [B, G, T, D]
    c = clip(round(x / s), -8, 7)        two codes in a byte, c + 8, uint8 [B, G, T, D / 2]
    x' = s c                             s: float32 [1, G, 1, D], one for each channel of each head

The operator rounds the keys and values of new tokens (half to even), appends the codes, and
attends to the numbers that the codes stand for, also for the new tokens. So one run over a whole
text computes what as many runs of one token compute.

The scales are constants, found on samples. Each channel has one, because outliers of keys stay in
the same few channels (Liu et al. 2024, arXiv:2402.02750, section 3.1). With 8 bits a scale covers
the largest number of all samples, so that nothing is clipped. With 4 bits it has the least squared
error (`numerics.clipping`) on some of the tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from optkit.craft.quantization.numerics import clipping
from optkit.facts.errors import InputRefused
from optkit.facts.precisions import NumberFormat
from optkit.facts.tensors import Feed
from optkit.ground import graph

FORMATS = MappingProxyType(
    {name: NumberFormat(name, "channel", symmetric=True) for name in ("int8", "int4")}
)
_ROWS = 2048  # tokens that are kept to find a scale of 4 bits
_PAST = (3, 4)  # inputs of GroupQueryAttention: keys, values
SCALES = (12, 13)
"""Its inputs with the scales of the cache of keys and of values."""


@dataclass
class CacheRanges:
    """What is known of the caches `names`, after some samples: the largest magnitude of each
    channel, float32 [G, D], and the rows [tokens, G, D] of some tokens, drawn from all with equal
    probability (Vitter 1985, reservoir sampling: those with the smallest random numbers)."""

    names: tuple[str, ...]
    largest: dict[str, np.ndarray] = field(default_factory=dict)
    _rows: dict[str, np.ndarray] = field(default_factory=dict)
    _drawn: np.ndarray = field(default_factory=lambda: np.zeros(0))
    _random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def add(self, caches: Feed, real: np.ndarray | None = None) -> None:
        """Count the caches [B, G, T, D] of some samples. `real`: bool [B, T], false for padding."""
        first = caches[self.names[0]]
        tokens = np.ones((len(first), first.shape[2]), bool) if real is None else real
        drawn = np.concatenate([self._drawn, self._random.random(int(tokens.sum()))])
        kept = np.argsort(drawn)[:_ROWS]
        self._drawn = drawn[kept]
        for name in self.names:
            rows = caches[name].swapaxes(1, 2)[tokens]
            before = self._rows.get(name, rows[:0])
            largest = np.abs(rows).max(axis=0, initial=0.0)
            self.largest[name] = np.maximum(self.largest.get(name, largest), largest)
            self._rows[name] = np.concatenate([before, rows])[kept]

    def reach(self) -> dict[str, float]:
        """The largest magnitude of each cache. Raises InputRefused for values that are not
        finite."""
        return {name: float(self._finite(name).max(initial=0.0)) for name in self.names}

    def scales(self, fmt: NumberFormat) -> dict[str, np.ndarray]:
        """The scale of each channel, float32 [1, G, 1, D]; 1 for a channel that is always zero.
        Raises InputRefused for values that are not finite."""
        return {name: self._scale(name, fmt)[None, :, None] for name in self.names}

    def _scale(self, name: str, fmt: NumberFormat) -> np.ndarray:
        largest = self._finite(name).astype(np.float64)
        ideal = np.where(largest > 0, largest / fmt.qmax, 1.0)
        if fmt.bits < 8:
            rows = self._rows[name].reshape(-1, ideal.size)
            best = clipping.least_error(rows, ideal.ravel(), 0.0, fmt, np.asarray)
            ideal = best.reshape(ideal.shape)
        return np.maximum(ideal, np.finfo(np.float32).tiny).astype(np.float32)

    def _finite(self, name: str) -> np.ndarray:
        largest = self.largest[name]
        if not np.isfinite(largest).all():
            raise InputRefused("a value of the cache is not finite", where=f"output {name!r}")
        return largest


def quantize_caches(
    model: ir.Model, caches: Collection[str], scales: Mapping[str, np.ndarray], fmt: NumberFormat
) -> None:
    """Store the `caches` (outputs of the graph) as codes, in place. `scales`: by cache, [1, G, 1,
    D]. Raises InputRefused, before any change, for a cache that no GroupQueryAttention keeps."""
    kept = {
        str(output.name): node
        for node in model.graph
        if node.op_type == "GroupQueryAttention" and node.domain == "com.microsoft"
        for output in node.outputs[1:3]
    }
    for name in caches:
        if name not in kept:
            raise InputRefused(
                "this cache cannot be stored as codes: its attention is not GroupQueryAttention",
                where=f"output {name!r}",
                hint="leave out quantization.kv_cache; docs/understand/fusion.md (the cache in "
                "one buffer) says for which attentions optkit writes this operator",
            )
    for node in dict.fromkeys(kept[name] for name in caches):
        _quantize(model.graph, node, scales, fmt)


def _quantize(
    owner: ir.Graph, node: ir.Node, scales: Mapping[str, np.ndarray], fmt: NumberFormat
) -> None:
    node.resize_inputs(SCALES[-1] + 1)
    for past, scale, present in zip(_PAST, SCALES, node.outputs[1:3], strict=True):
        for value in (node.inputs[past], present):
            assert value is not None and value.shape is not None
            _store_codes(value, fmt)
        name = f"{present.name}.scale"
        numbers = scales[str(present.name)]
        node.replace_input_with(scale, graph.new_constant(owner, name, numbers))
    for side in "kv":
        node.attributes[f"{side}_quant_type"] = ir.AttrString(f"{side}_quant_type", "PER_CHANNEL")
    node.attributes["kv_cache_bit_width"] = ir.AttrInt64("kv_cache_bit_width", fmt.bits)


def _store_codes(value: ir.Value, fmt: NumberFormat) -> None:
    *dims, size = value.shape.dims if value.shape is not None else ()
    packed = fmt.bits < 8
    value.type = ir.TensorType(ir.DataType.UINT8 if packed else ir.DataType.INT8)
    value.shape = ir.Shape([*dims, size // 2 if packed else size])
