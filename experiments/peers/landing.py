"""Compiles a graph for compute capability 8.9 with TensorRT-RTX, through optkit's own backend.

    python landing.py --model FILE

Planned are the convolutions and matrix products that read both operands through a
DequantizeLinear; landed are those whose fused layer multiplies in 8 (or 4) bits. Layers and the
bytes between them are counted at batch 8. Prints one line of JSON; a graph that the parser refuses
gives {"refused": reason}.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from optkit.facts.errors import OptkitError
from optkit.facts.precisions import PRECISIONS
from optkit.facts.tensors import AxisRange
from optkit.ground import graph
from optkit.ground.devices import target
from optkit.ground.runtimes import backend

TARGET = "l4"
NARROW = ("int8", "uint8", "float8e4m3fn", "float4e2m1", "int4")


def land(model: Path) -> dict[str, Any]:
    loaded = graph.load(model)
    planned = {
        str(node.name): "int8"
        for node in loaded.graph.all_nodes()
        if node.op_type in graph.WEIGHTED and all(map(dequantized, node.inputs[:2]))
    }
    inputs = graph.inputs(loaded)
    trt = backend("tensorrt-rtx")
    batch = inputs[0].shape[0]
    axes = {batch: AxisRange(1, 8, 32)} if isinstance(batch, str) else {}
    spec = trt.spec(inputs, target(TARGET), PRECISIONS["int8"], axes)
    with tempfile.TemporaryDirectory() as folder:
        engine = trt.compile(model, spec, planned, Path(folder), lambda what, done: None)
    landed = sum(row.dtype in NARROW for row in engine.landing.rows)
    return {
        "planned": len(planned),
        "landed": landed,
        "lost": [row.node for row in engine.landing.rows if row.dtype not in NARROW],
        "layers": len(engine.static_layers),
        "bytes_moved": engine.bytes_moved,
        "engine_bytes": engine.bytes,
        "versions": engine.versions,
    }


def dequantized(value: Any) -> bool:
    producer = value.producer() if value is not None else None
    return producer is not None and producer.op_type == "DequantizeLinear"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    options = parser.parse_args()
    try:
        found = land(options.model)
    except OptkitError as error:
        found = {"refused": str(error)[:300]}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
