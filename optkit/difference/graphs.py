"""Two graphs: nodes by name, what products multiply, weights by digest, scales by factor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

QDQ = ("QuantizeLinear", "DequantizeLinear")
_TOLERANCE = 1e-6  # relative: a scale that was stored in another float type has not moved


@dataclass(frozen=True)
class Outline:
    """A graph as the step `outline` tells it; scales float64 [count] by tensor."""

    data: Mapping[str, Any]
    scales: Mapping[str, np.ndarray]


def compare(a: Outline, b: Outline) -> dict[str, Any]:
    """`graph` of optkit.diff/v1. A node is the same where its name is; one whose inputs alone have
    other names is `rewired`."""
    nodes, weights = _nodes(a.data, b.data), _weights(a.data, b.data)
    found: dict[str, Any] = {
        "opset": [a.data["opset"], b.data["opset"]],
        "inputs": [a.data["inputs"], b.data["inputs"]],
        "outputs": [a.data["outputs"], b.data["outputs"]],
        "operators": _operators(a.data, b.data),
        "nodes": nodes,
        "precision": _precision(a.data, b.data),
        "weights": weights,
        "scales": _scales(a.scales, b.scales),
    }
    same = all(found[key][0] == found[key][1] for key in ("opset", "inputs", "outputs")) and not (
        found["operators"] or found["precision"] or nodes["rewired"] or found["scales"]["moved"]
        or any(nodes[key] or weights[key] for key in ("added", "removed", "changed"))
    )  # fmt: skip
    return {"same": same, **found}


def _operators(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Operators that occur more or less often."""
    counts = [Counter(node["op"] for node in side["nodes"]) for side in (a, b)]
    return [
        {"op": op, "a": counts[0][op], "b": counts[1][op]}
        for op in sorted({*counts[0], *counts[1]})
        if counts[0][op] != counts[1][op]
    ]


def _nodes(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    before, after = ({node["name"]: node for node in side["nodes"]} for side in (a, b))
    changed, rewired = [], 0
    for name in before.keys() & after.keys():
        old, new = before[name], after[name]
        attributes = sorted(
            key
            for key in {*old["attributes"], *new["attributes"]}
            if old["attributes"].get(key) != new["attributes"].get(key)
        )
        if attributes or old["op"] != new["op"]:
            changed.append({"name": name, "op": [old["op"], new["op"]], "attributes": attributes})
        elif old["inputs"] != new["inputs"]:
            rewired += 1
    return {
        "a": len(a["nodes"]),
        "b": len(b["nodes"]),
        "added": _only(after, before),
        "removed": _only(before, after),
        "changed": sorted(changed, key=lambda row: str(row["name"])),
        "rewired": rewired,
    }


def _only(these: Mapping[str, Any], those: Mapping[str, Any]) -> list[dict[str, str]]:
    return [{"name": name, "op": node["op"]} for name, node in these.items() if name not in those]


def _precision(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What products of the same name multiply, where that differs."""
    before, after = (
        {node["name"]: node["multiplies"] for node in side["nodes"] if node["multiplies"]}
        for side in (a, b)
    )
    return [
        {"node": name, "a": before[name], "b": after[name]}
        for name in before
        if name in after and before[name] != after[name]
    ]


def _weights(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    before, after = ({one["name"]: one for one in side["weights"]} for side in (a, b))
    keys = ("dtype", "shape", "bytes")
    return {
        "bytes": [sum(one["bytes"] for one in side.values()) for side in (before, after)],
        "added": [name for name in after if name not in before],
        "removed": [name for name in before if name not in after],
        "changed": [
            {"name": name, "a": {key: before[name][key] for key in keys},
             "b": {key: after[name][key] for key in keys}}
            for name in before
            if name in after and before[name]["digest"] != after[name]["digest"]
        ],
    }  # fmt: skip


def _scales(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Scales of the same tensor that moved, the furthest first: by which factor, lowest and highest
    over its channels; null where their number differs."""
    moved: list[dict[str, Any]] = []
    for name in a.keys() & b.keys():
        old, new = a[name], b[name]
        if old.size != new.size:
            moved.append({"tensor": name, "count": [old.size, new.size], "factor": None})
        elif not np.allclose(old, new, rtol=_TOLERANCE, atol=0.0):
            factors = new / np.where(old == 0, np.nan, old)
            ends = [float(np.nanmin(factors)), float(np.nanmax(factors))]
            known = all(map(np.isfinite, ends))
            moved.append({"tensor": name, "count": [old.size, new.size],
                          "factor": ends if known else None})  # fmt: skip
    return {
        "a": len(a),
        "b": len(b),
        "moved": sorted(moved, key=lambda row: (-_distance(row["factor"]), str(row["tensor"]))),
    }


def _distance(factor: list[float] | None) -> float:
    if factor is None:
        return float("inf")
    return max(abs(float(np.log(abs(end)))) if end else float("inf") for end in factor)
