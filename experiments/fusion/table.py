"""The fusion table: what the `ort` form makes of exported transformers.

    python experiments/fusion/table.py SCRATCH [--threads 2] [--rounds 200]

For each network: nodes as exported, in the standard form and in the `ort` form; its fused
operators; the largest difference of any output from the export, all optimisations off, over the
shapes in exports.py (padding on the left, empty cache, several tokens behind a cache). For each
workload: how many times as fast as the plain export, both at ORT_ENABLE_ALL, in turns. The
result goes to table.json beside this file. Needs optkit[cpu,torch] and transformers.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import exports
import numpy as np
import race

from optkit import graph
from optkit.fusion import fuse
from optkit.fusion.ort import to_ort

FUSED = frozenset(
    {
        *("Attention", "MultiHeadAttention", "GroupQueryAttention"),
        *("RotaryEmbedding", "RMSNormalization"),
        *("Gelu", "BiasGelu", "FastGelu", "QuickGelu", "FusedGemm"),
    }
)
PACKAGES = ("onnxruntime", "torch", "transformers", "onnx", "onnx-ir", "onnxscript")


def row(network: exports.Network, scratch: Path, threads: int, rounds: int) -> dict[str, Any]:
    plain, fused = scratch / f"{network.name}.onnx", scratch / f"{network.name}.ort.onnx"
    network.write(plain)
    model = graph.upgrade(graph.load(plain))
    nodes = {"exported": len(graph.load(plain).graph)}
    fuse(model)
    nodes["standard"] = len(model.graph)
    to_ort(model)
    nodes["ort"] = len(model.graph)
    graph.save(model, fused)
    kinds = Counter(_kind(node) for node in model.graph if node.op_type in FUSED)
    return {
        "network": network.name,
        "nodes": nodes,
        "operators": dict(sorted(kinds.items())),
        "difference": _difference(plain, fused, network.shapes, threads),
        "latency": [
            {"workload": each.name, **_latency(plain, fused, each.feed, threads, rounds)}
            for each in network.workloads
        ],
    }


def _kind(node: Any) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else str(node.op_type)


def _difference(plain: Path, fused: Path, feeds: tuple[race.Feed, ...], threads: int) -> float:
    before = race.session(plain, threads, optimized=False)
    after = race.session(fused, threads)
    return max(
        float(np.abs(one - two).max(initial=0))
        for feed in feeds
        for one, two in zip(before.run(None, feed), after.run(None, feed), strict=True)
    )


def _latency(
    plain: Path, fused: Path, feed: race.Feed, threads: int, rounds: int
) -> dict[str, float]:
    sessions = {"plain": race.session(plain, threads), "ort": race.session(fused, threads)}
    times = race.race(sessions, feed, rounds)
    milliseconds = {f"{name}_ms": round(float(np.median(t)) * 1e3, 3) for name, t in times.items()}
    return {**milliseconds, **race.ratio(times["plain"], times["ort"])}


def _print(result: dict[str, Any]) -> None:
    print("| network | nodes | standard | ort | fused operators | difference |")
    print("|---|---|---|---|---|---|")
    for each in result["networks"]:
        nodes = each["nodes"]
        kinds = ", ".join(f"{count} {kind}" for kind, count in each["operators"].items())
        print(
            f"| {each['network']} | {nodes['exported']} | {nodes['standard']} | {nodes['ort']} "
            f"| {kinds} | {each['difference']:.1e} |"
        )
    print("\n| network | workload | plain export ms | ort ms | speed ratio (quartiles) |")
    print("|---|---|---|---|---|")
    for each in result["networks"]:
        for timed in each["latency"]:
            print(
                f"| {each['network']} | {timed['workload']} | {timed['plain_ms']:.2f} "
                f"| {timed['ort_ms']:.2f} "
                f"| {timed['ratio']:.2f} [{timed['low']:.2f}, {timed['high']:.2f}] |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the fusion table; write table.json.")
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=200)
    given = parser.parse_args()
    given.scratch.mkdir(parents=True, exist_ok=True)
    result = {
        **race.circumstances(given.threads, *PACKAGES),
        "networks": [
            row(network, given.scratch, given.threads, given.rounds)
            for network in exports.networks()
        ],
    }
    Path(__file__).with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    _print(result)


if __name__ == "__main__":
    main()
