"""Artifacts of a net with a report, written by hand: nothing is built."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onnx import TensorProto, helper
from pydantic import TypeAdapter

from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Latency
from optkit.facts.tensors import TensorInfo
from optkit.ground.artifact import Artifact, EngineFile, Manifest, write
from optkit.ground.store import digest_json
from tests.packaging import tiny

X, Y = TensorInfo("x", "float32", ("batch", 4)), TensorInfo("y", "float32", ("batch", 4))
AXES = {"batch": {"min": 1, "opt": 8, "max": 32}}
WEIGHT = "the weight"
_LATENCY = TypeAdapter(Latency)
PROFILE = {"x": [[1, 4], [8, 4], [32, 4]]}
DTYPES = {
    "float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16,
    "float64": TensorProto.DOUBLE, "bool": TensorProto.BOOL,
    "int8": TensorProto.INT8, "int16": TensorProto.INT16, "int32": TensorProto.INT32,
    "int64": TensorProto.INT64, "uint8": TensorProto.UINT8, "uint16": TensorProto.UINT16,
    "uint32": TensorProto.UINT32, "uint64": TensorProto.UINT64,
    "float8_e4m3fn": TensorProto.FLOAT8E4M3FN,
}  # fmt: skip


def row(batch: int, ms: float, evidence: Evidence = Evidence.MEASURED, **more: Any) -> Any:
    given = {"throughput": 1000 * batch / ms, "marks": (), **more}
    return Latency(evidence=evidence, p50_ms=ms, batch=batch, **given)


def report(rows: Sequence[Any], finished: Mapping[str, str] | None) -> bytes:
    """A report with these latencies, for artifacts of the target that the result names."""
    nothing: dict[str, object] = {"engine": [], "baseline": []}
    provenance: dict[str, object] = {
        "recipe": {}, "digests": {}, "versions": {}, "steps": [],
        "build_spec": {"engine, tensorrt": {
            "backend": "tensorrt", "precision": "int8", "profile": PROFILE, "reasons": {},
            "workspace_bytes": 1 << 30, "options": {"optimization_level": 5, "cuda_graph": True},
        }},
    }  # fmt: skip
    if finished is not None:
        provenance["finished"] = {"machine": {}, "versions": finished}
    latencies = [_LATENCY.dump_python(one, mode="json") for one in rows]
    return json.dumps({
        "schema": "optkit.report/v1", "result": tiny.result("l4", "int8").to_json(), "gates": [],
        "latencies": {**nothing, "engine": latencies},
        "latency_samples": nothing, "latency_rounds": {"engine": 0, "baseline": 0},
        "layers": nothing, "landing": [], "landing_activations": [], "cost": None,
        "conditions": {}, "quantization": [], "fusion": [], "cast": {}, "preparation": [],
        "provenance": provenance,
    }).encode()  # fmt: skip


def graph(
    inputs: Sequence[TensorInfo] = (X,),
    outputs: Sequence[TensorInfo] = (Y,),
    weight: TensorProto | None = None,
    opset: int = 21,
    **metadata: str,
) -> bytes:
    """A graph with these inputs and outputs. It need not compute anything."""
    infos = [
        [helper.make_tensor_value_info(i.name, DTYPES[i.dtype], i.shape) for i in group]
        for group in (inputs, outputs)
    ]
    nodes = [helper.make_node("Add", [inputs[0].name, WEIGHT], [one.name]) for one in outputs]
    weight = weight or helper.make_tensor(WEIGHT, TensorProto.FLOAT, [], [1.0])
    body = helper.make_graph(nodes, "g", *infos, [weight])
    made = helper.make_model(body, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    helper.set_model_props(made, {f"optkit.build.{key}": text for key, text in metadata.items()})
    return bytes(made.SerializeToString())


def manifest(target: str, precision: str = "int8", **more: Any) -> Manifest:
    given = {
        "name": f"net-{target}-{precision}", "digest": digest_json([target, precision]),
        "recipe": {"name": "net", "axes": AXES}, "inputs": (X,), "outputs": (Y,),
        "versions": {}, "result": tiny.result(target, precision).to_json(), **more,
    }  # fmt: skip
    return Manifest(target=target, precision=precision, **given)


def artifact(
    out: Path,
    target: str = "cpu",
    precision: str = "int8",
    content: Mapping[str, bytes] | None = None,
    rows: Sequence[Any] = (),
    finished: Mapping[str, str] | None = None,
    **more: Any,
) -> Artifact:
    files: dict[str, Path | bytes] = {
        "model.onnx": graph(), "report.json": report(rows, finished), **(content or {}),
    }  # fmt: skip
    return write(out, manifest(target, precision, **more), files)


def with_engine(out: Path, backend: str, version: str, **more: Any) -> Artifact:
    """An artifact for an L4 with an engine that this version built."""
    file = f"{backend}.engine"
    return artifact(
        out, "l4", content={file: b"engine"}, engine=EngineFile(backend, file),
        versions={backend: version}, **more,
    )  # fmt: skip
