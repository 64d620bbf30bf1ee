"""Why the `ort` form writes what it writes: operators that compute the same, timed in turns.

    python experiments/fusion/kernels.py [--threads 2] [--rounds 200]

In each group the first is what the form writes; the others are what it could, and how long they
take beside it. The result goes to kernels.json beside this file.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import race

HEAD = '<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]>'
TYPES = {"float32": "float", "int32": "int32", "int64": "int64", "bool": "bool"}


@dataclass(frozen=True)
class Group:
    """Nodes as ONNX text by name; they make y of the inputs and constants that they name."""

    name: str
    inputs: race.Feed
    constants: race.Feed
    ways: dict[str, str]


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def groups() -> list[Group]:
    return [
        *(_norm(batch, rows, 384) for batch, rows in ((1, 128), (8, 128))),
        *(_rms(batch, rows, 512) for batch, rows in ((1, 1), (1, 128))),
        *(_gelu(batch, rows, 384) for batch, rows in ((1, 128), (8, 128))),
        *(_swish(batch, rows, 1408) for batch, rows in ((1, 1), (1, 128))),
        *(_attention(batch, rows, 12, 32) for batch, rows in ((1, 128), (8, 128))),
        *(_cache(*sizes) for sizes in ((1, 1, 512), (4, 1, 512), (1, 1, 2048), (1, 128, 0))),
        *(_bags(bags, 10, 32) for bags in (8, 64, 256, 1024)),
    ]


def _norm(batch: int, rows: int, width: int) -> Group:
    shape = (batch, rows, width)
    return Group(
        f"residual, LayerNormalization {list(shape)}",
        {"x": random(*shape), "z": random(*shape)},
        {name: random(width) for name in "gbc"},
        {
            "Sum of three, LayerNormalization": "s = Sum(x, c, z) y = LayerNormalization(s, g, b)",
            "Add, Add, LayerNormalization": (
                "t = Add(x, c) s = Add(t, z) y = LayerNormalization(s, g, b)"
            ),
            "SkipLayerNormalization": (
                "y = com.microsoft.SkipLayerNormalization<epsilon = 1e-5>(x, z, g, b, c)"
            ),
        },
    )


def _rms(batch: int, rows: int, width: int) -> Group:
    shape = (batch, rows, width)
    skip = "com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 1e-5>"
    return Group(
        f"residual, RMSNormalization {list(shape)}",
        {"x": random(*shape), "z": random(*shape)},
        {"g": random(width)},
        {
            "Add, RMSNormalization": "s = Add(x, z) y = RMSNormalization(s, g)",
            "SkipSimplifiedLayerNormalization": f"y = {skip}(x, z, g)",
        },
    )


def _gelu(batch: int, rows: int, width: int) -> Group:
    product = "p = MatMul(x, w)"
    erf = "i = Div(a, r) e = Erf(i) o = Add(e, n) h = Mul(o, f) y = Mul(a, h)"
    return Group(
        f"product, gelu {[batch, rows, width, 4 * width]}",
        {"x": random(batch, rows, width)},
        {
            "w": random(width, 4 * width) / 20,
            "b": random(4 * width),
            "r": np.float32(2**0.5),
            "n": np.float32(1),
            "f": np.float32(0.5),
        },
        {
            "BiasGelu": f"{product} y = com.microsoft.BiasGelu(p, b)",
            "Add, Gelu": f"{product} a = Add(p, b) y = Gelu(a)",
            "as exported": f"{product} a = Add(p, b) {erf}",
        },
    )


def _swish(batch: int, rows: int, width: int) -> Group:
    shape = (batch, rows, width)
    return Group(
        f"swish, gate {list(shape)}",
        {"x": random(*shape), "z": random(*shape)},
        {},
        {
            "QuickGelu, Mul": "s = com.microsoft.QuickGelu<alpha = 1.0>(x) y = Mul(s, z)",
            "Sigmoid, Mul, Mul": "g = Sigmoid(x) s = Mul(x, g) y = Mul(s, z)",
        },
    )


def _attention(batch: int, rows: int, heads: int, size: int) -> Group:
    width = heads * size
    weights = {f"w{n}": random(width, width) / np.float32(width**0.5) for n in "qkv"}
    biases = {f"b{n}": random(width) for n in "qkv"}
    joined = np.concatenate([*weights.values()], axis=1)
    apart = " ".join(f"p{n} = MatMul(x, w{n}) {n} = Add(p{n}, b{n})" for n in "qkv")
    masked = "k1 = Cast<to = 9>(m) k2 = Unsqueeze(k1, ones) k3 = Where(k2, zero, low) "
    masked += "mask = Expand(k3, square)"
    low = "mask_filter_value = -3.4e38"
    return Group(
        f"self-attention with its projections, a mask per key {[batch, rows, heads, size]}",
        {"x": random(batch, rows, width), "m": np.ones((batch, rows), np.int32)},
        {
            **weights,
            **biases,
            "weight": joined,
            "bias": np.concatenate([*biases.values()]),
            "ones": np.array([1, 2]),
            "zero": np.float32(0),
            "low": np.float32(-3.4e38),
            "square": np.array([batch, 1, rows, rows]),
        },
        {
            "com.microsoft.Attention": (
                f"y = com.microsoft.Attention<num_heads = {heads}, {low}>(x, weight, bias, m)"
            ),
            "Attention": (
                f"{apart} {masked} "
                f"y = Attention<q_num_heads = {heads}, kv_num_heads = {heads}>(q, k, v, mask)"
            ),
            "MultiHeadAttention": (
                f"{apart} y = com.microsoft.MultiHeadAttention<num_heads = {heads}, {low}>"
                "(q, k, v, , m)"
            ),
        },
    )


def _cache(batch: int, rows: int, past: int, heads: int = 8, groups: int = 4) -> Group:
    size, total = 64, past + rows
    seen = np.arange(total)[None] <= np.arange(rows)[:, None] + past
    mask = np.broadcast_to(np.where(seen, 0, -3.4e38), (batch, 1, rows, total))
    cache = {name: random(batch, groups, past, size) for name in ("pk", "pv")}
    grouped = f"com.microsoft.GroupQueryAttention<num_heads = {heads}, kv_num_heads = {groups}>"
    return Group(
        f"{rows} tokens behind {past}, batch {batch}, {heads} heads on {groups} of {size}",
        {
            "q": random(batch, rows, heads * size),
            "k": random(batch, rows, groups * size),
            "v": random(batch, rows, groups * size),
            **cache,
            "mask": mask.astype(np.float32),
        },
        {"last": np.full(batch, total - 1, np.int32), "total": np.array(total, np.int32)},
        {
            "Attention": (
                f"y, kc, vc = Attention<q_num_heads = {heads}, kv_num_heads = {groups}>"
                "(q, k, v, mask, pk, pv)"
            ),
            "GroupQueryAttention, causal, no mask": (
                f"y, kc, vc = {grouped}(q, k, v, pk, pv, last, total)"
            ),
            "GroupQueryAttention, mask": (
                f"y, kc, vc = {grouped}(q, k, v, pk, pv, last, total, , , , mask)"
            ),
        },
    )


def _bags(bags: int, entries: int, width: int) -> Group:
    """EmbeddingBag over the rows of a [bags, entries] input, as a lookup and a sum."""
    table = random(1000, width)
    ids = np.random.default_rng(0).integers(0, len(table), (bags, entries))
    columns = [f"i{k}" for k in range(entries)]
    gathers = " ".join(f"e{k} = Gather(w, {column})" for k, column in enumerate(columns))
    split = f"{', '.join(columns)} = Split<axis = 0, num_outputs = {entries}>(t)"
    rows = ", ".join(f"e{k}" for k in range(entries))
    return Group(
        f"bags of {entries} rows, {width} wide, {bags} bags",
        {"ids": ids},
        {"w": table, "one": np.array([1]), "zero": np.array([0])},
        {
            "Gather, ReduceSum": "e = Gather(w, ids) y = ReduceSum<keepdims = 0>(e, one)",
            "transposed, ReduceSum over axis 0": (
                "t = Transpose<perm = [1, 0]>(ids) e = Gather(w, t) "
                "y = ReduceSum<keepdims = 0>(e, zero)"
            ),
            "a Gather for each entry, Sum": (
                f"t = Transpose<perm = [1, 0]>(ids) {split} {gathers} s = Sum({rows}) "
                "y = Squeeze(s, zero)"
            ),
        },
    )


def model(group: Group, body: str) -> bytes:
    def declared(values: race.Feed) -> str:
        return ", ".join(
            f"{TYPES[array.dtype.name]}{list(array.shape) if array.ndim else ''} {name}"
            for name, array in values.items()
        )

    constants = {name: np.asarray(array) for name, array in group.constants.items()}
    head = declared({**group.inputs, **constants})
    made = ir.from_onnx_text(f"{HEAD} g ({head}) => (float y) {{ {body} }}")
    made.graph.outputs[0].shape = None
    for value in list(made.graph.inputs):
        if value.name in constants:
            made.graph.inputs.remove(value)
            value.const_value = ir.Tensor(constants[value.name], name=value.name)
            made.graph.register_initializer(value)
    proto: bytes = ir.to_proto(made).SerializeToString()
    return proto


def row(group: Group, threads: int, rounds: int) -> dict[str, Any]:
    sessions = {
        name: race.session(model(group, body), threads, optimized=False)
        for name, body in group.ways.items()
    }
    results = [each.run(["y"], group.inputs)[0] for each in sessions.values()]
    times = race.race(sessions, group.inputs, rounds)
    first = next(iter(times.values()))
    return {
        "group": group.name,
        "difference": max(float(np.abs(results[0] - each).max()) for each in results),
        "ways": {
            name: {"ms": round(float(np.median(taken)) * 1e3, 4), **race.ratio(taken, first)}
            for name, taken in times.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Time operators that compute the same.")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=200)
    given = parser.parse_args()
    rows = []
    for group in groups():
        rows.append(row(group, given.threads, given.rounds))
        print(f"{group.name}   difference {rows[-1]['difference']:.1e}")
        for name, way in rows[-1]["ways"].items():
            spread = f"[{way['low']:.2f}, {way['high']:.2f}]"
            print(f"    {name:40} {way['ms']:8.3f} ms   {way['ratio']:.2f} {spread}")
    result = {**race.circumstances(given.threads, "onnxruntime", "onnx-ir"), "groups": rows}
    Path(__file__).with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
