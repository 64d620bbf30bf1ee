"""Tiny artifacts with a whole result, written by hand: nothing is built."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from onnx import TensorProto, helper

from optkit.facts.documents.measured import GateVerdict
from optkit.facts.documents.result import RESULT, EngineFacts, PrecisionFigures, Result
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Difference, Interval, Latency, Score
from optkit.facts.tensors import TensorInfo
from optkit.ground.artifact import Artifact, EngineFile, Manifest, write
from optkit.ground.store import digest_json

RECIPE = {"name": "net", "axes": {"batch": {"min": 1, "opt": 8, "max": 32}}}


def graph(addend: float = 1.0) -> bytes:
    """y = x + addend."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])
    weight = helper.make_tensor("w", TensorProto.FLOAT, [], [addend])
    body = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    opset = [helper.make_opsetid("", 21)]
    return bytes(helper.make_model(body, opset_imports=opset, ir_version=10).SerializeToString())


def result(target: str, precision: str, backend: str = "tensorrt") -> Result:
    score = Score(
        Evidence.SIMULATED, "top1", 0.9833, Interval(0.97, 0.99), samples=899, proportion=True
    )
    latency = Latency(
        evidence=Evidence.PREDICTED,
        p50_ms=0.25,
        batch=8,
        throughput=32000.0,
        band=Interval(0.1, 0.5),
        marks=(),
    )
    return Result(
        schema=RESULT, model="net", target=target, precision=precision, status="ok",
        engine=EngineFacts(backend=backend, evidence=Evidence.COMPILED, bytes=7),
        latency=latency, accuracy=score,
        drop=Difference(value=0.0011, ci95=Interval(-0.0032, 0.0063), evidence=Evidence.SIMULATED),
        speedup=Difference(1.3, None, Evidence.PREDICTED),
        baseline=PrecisionFigures(precision="fp16", accuracy=score),
        gate=GateVerdict(verdict="pass", reasons=()),
        pending=(), references=(), seconds={"total": 1.5}, cache_hits=0,
    )  # fmt: skip


def files(mark: bytes = b"") -> dict[str, Path | bytes]:
    return {
        "model.onnx": graph(),
        "engine.plan": b"engine" + mark,
        "baseline/model.onnx": graph(2.0),
        "recipe.yaml": b"name: net\n",
        "report.json": b"{}",
        "report.md": b"# net\n",
        "empty": b"",
    }


def artifact(
    out: Path,
    target: str = "l4",
    precision: str = "int8",
    content: Mapping[str, Path | bytes] | None = None,
) -> Artifact:
    content = files() if content is None else content
    manifest = Manifest(
        name=f"net-{target}-{precision}",
        target=target,
        precision=precision,
        digest=digest_json([target, precision]),
        recipe=RECIPE,
        inputs=(TensorInfo("x", "float32", ("batch", 4)),),
        outputs=(TensorInfo("y", "float32", ("batch", 4)),),
        versions={"onnx": "1.23.2"},
        result=result(target, precision).to_json(),
        engine=EngineFile("tensorrt", "engine.plan") if "engine.plan" in content else None,
    )
    return write(out, manifest, content)
