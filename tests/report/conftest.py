"""Report documents as builds make them: one predicted for a GPU, one measured on a CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pytest

from optkit.craft.benchmarking.accuracy import from_samples
from optkit.craft.benchmarking.gates import judge
from optkit.craft.benchmarking.latency import ratio, summarize
from optkit.craft.benchmarking.paired_drop import drop
from optkit.facts.assignment import Assignment
from optkit.facts.codec import to_json
from optkit.facts.documents.data_finding import DataFinding
from optkit.facts.documents.record import Record
from optkit.facts.documents.report import LayerFidelity, Provenance, Report
from optkit.facts.documents.result import CalibrationCheck, PendingEngine, Result
from optkit.facts.engines import Engine, FusedLayer, Landing, LandingRow, LayerTensor
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import (
    ChannelSpread,
    Fidelity,
    Interval,
    Latencies,
    Latency,
    OutputFidelity,
    Score,
)
from optkit.facts.precisions import PRECISIONS
from optkit.show.report import document
from optkit.show.report.build_result import BuildRun, Findings, PrecisionResult, result
from optkit.show.report.document import Rewrites, compose

Kind = TypeVar("Kind", bound=Record)
Names = Callable[[str], str]


@dataclass(frozen=True)
class Limits:
    max_drop: float | None = 0.01
    min_value: float | None = None
    max_value: float | None = None
    max_slice_drop: float | None = None
    min_slice_value: float | None = None
    max_slice_value: float | None = None
    max_memory_bytes: int | None = None
    min_sqnr: float | None = None
    max_latency_ms: float | None = 1.0
    min_speedup: float | None = None
    min_throughput: float | None = None
    max_bytes: int | None = None
    accept: tuple[str, ...] = ()


BLOCKS = [f"blocks.{i}/{op}" for i in range(3) for op in ("qkv", "proj", "fc1", "fc2")]


def one_row_each(value: Any) -> Any:
    """A report whose lists hold one row each, so that a change meets other fields as often."""
    if isinstance(value, dict):
        return {key: one_row_each(one) for key, one in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [one_row_each(value[0])]
    return value


def read(data: dict[str, Any]) -> Report:
    """A report from its JSON."""
    return parsed(Report, data)


def read_result(data: dict[str, Any]) -> Result:
    return parsed(Result, data)


def parsed(model: type[Kind], data: dict[str, Any]) -> Kind:
    return model.model_validate_json(in_json(json.dumps(data, ensure_ascii=False)))


def in_json(text: str) -> str:
    """With a question mark for half a character, which no JSON file holds."""
    return text.encode("utf-8", "replace").decode()


def engine(dtype: str, backend: str, name: Names, lost: int = 0) -> Engine:
    rows, layers = [], []
    for index, block in enumerate(BLOCKS):
        landed = index >= lost
        runs = dtype if landed else "float16"
        node = name(f"{block}/MatMul")
        data = LayerTensor("x", (8, 17, 64), runs)
        weight = LayerTensor("w", (64, 192), runs)
        layers.append(
            FusedLayer(
                name(f"__myl_{block}_fc_myl0_{index}"), "gemm", (data,), (weight,),
                (LayerTensor("y", (8, 17, 192), runs),), (node, name(f"{block}/Add")),
                (node,), runs,
            )
        )  # fmt: skip
        rows.append(LandingRow(node, "MatMul", "int8", landed, runs, layers[-1].name))
    norm = LayerTensor("n", (8, 17, 64), "float16")
    layers.append(FusedLayer(name("norm_softmax"), "kgen", (norm,), (), (norm, norm), ()))
    activations = (
        LandingRow(name("attn/scores"), "MatMul", "float", False, "float16", name("kgen")),
    )
    landing = Landing(
        len(rows), len(rows) - lost, {dtype: len(rows) - lost}, tuple(rows), activations
    )
    moved = sum(layer.bytes_moved or 0 for layer in layers)
    return Engine(
        backend, "l4", f"model.{dtype}.engine", 310_000 if dtype == "int8" else 590_000,
        tuple(layers), landing, batch=8, bytes_moved=moved,
        note=name("RTX engines are documented for GeForce and RTX boards; unverified on L4."),
    )  # fmt: skip


def likeness(sqnr_db: float) -> dict[str, Any]:
    return {"sqnr_db": sqnr_db, "cosine": 1 - 10 ** (-sqnr_db / 10), "max_abs_error": 0.2}


def layer_fidelity(name: Names) -> dict[str, Any]:
    """Of every quantized node; the later the noisier, the last of a block clips."""
    rows = [
        {
            "node": name(f"{block}/MatMul"), "op": "MatMul", "module": name(f"model.{block}"),
            "precision": "int8", "tensor": name(f"{block}_y"), "reads": [name(f"{block}/MatMul_x")],
            "propagated": likeness(38.0 - index), "isolated": likeness(51.0 - 3 * index),
            "weights": likeness(55.0), "scales": "channel", "by_channel_db": 45.0,
            "codes": {"reach": 1.0, "saturated": 0.004},
            "restored": {"sqnr_db": 34.0} if index == 11 else None,
        }
        for index, block in enumerate(BLOCKS)
    ]  # fmt: skip
    values = [
        {
            "pair": name(f"{block}/QuantizeLinear"), "read": True, "again": False,
            "value": name(f"{block}/MatMul_x"), "readers": [name(f"{block}/MatMul")],
            "fault": None, "without": None,
            "sqnr_db": 40.0, "share": 0.002, "noise": 0.6, "low": -3.0, "high": 3.0,
            "seen": [-4.5, 4.0],
        }
        for block in BLOCKS
    ]  # fmt: skip
    return {"evidence": "simulated", "reference": "fp32", "samples": 32, "sqnr_db": 31.4,
            "reason": None, "rows": rows, "values": values, "faults": []}  # fmt: skip


def calibration(name: Names) -> dict[str, Any]:
    """What the check says of data that was multiplied by 255."""
    found = DataFinding(
        "scale", name("image"), "calibration data is 255 times as large as evaluation data",
        95.2, 0.373, "prepare both sets in the same way",
    )  # fmt: skip
    whole = replace(found, kind="duplicates", input=None, what="only 3 of 64 samples are different")
    findings = [to_json(found), to_json(whole)]
    return {"verdict": "suspect", "samples": 64, "compared": True, "findings": findings}


def scores(name: Names, flips: int, evidence: Evidence) -> tuple[Score, Score]:
    right = np.ones(899)
    right[::57] = 0  # 16 of them
    candidate = right.copy()
    candidate[(1 + 21 * np.arange(flips)) % 899] = 0  # none of these
    metric = name("top1")
    return (
        from_samples(right, metric=metric, evidence=evidence),
        from_samples(candidate, metric=metric, evidence=evidence),
    )


def predicted(p50: float, high: float) -> Latency:
    return Latency(
        Evidence.PREDICTED, p50, 8, 8e3 / p50, band=Interval(p50, high),
        note="A roofline bound over the compiled fused layers; optimistic.",
    )  # fmt: skip


def measured(scale: float, batch: int) -> Latency:
    rng = np.random.default_rng(int(scale * 10) + batch)
    times = scale * batch * 1e6 * rng.lognormal(0, 0.08, size=(40, 30))
    return replace(
        summarize(times.astype(int).tolist(), batch=batch),
        measured_at="2026-11-20T14:03:12Z", machine="A CPU", from_store=False,
    )  # fmt: skip


def build(
    name: Names = str,
    *,
    measure: bool = False,
    flips: int = 2,
    lost: int = 0,
    suspect: bool = False,
) -> dict[str, Any]:
    """The JSON of a whole report. `name` turns every name a model brings into another one."""
    evidence = Evidence.MEASURED if measure else Evidence.SIMULATED
    backend = "onnxruntime" if measure else "tensorrt-rtx"
    floating, quantized = scores(name, flips, evidence)
    if measure:
        latencies = Latencies(
            [measured(0.21, 1), measured(0.2, 8)], [measured(0.5, 1), measured(0.55, 8)]
        )
    else:
        latencies = Latencies([predicted(0.011, 0.05)], [predicted(0.019, 0.08)])
    known = Evidence.MEASURED if measure else Evidence.COMPILED
    candidate = PrecisionResult(
        "int8", backend, engine("int8", backend, name, lost), known,
        latency=latencies.engine[-1], accuracy=quantized,
    )  # fmt: skip
    baseline = PrecisionResult(
        "fp16", backend, engine("float16", backend, name), known,
        latency=latencies.baseline[-1], accuracy=floating,
    )  # fmt: skip
    speedup = ratio(baseline.latency, candidate.latency)  # type: ignore[arg-type]
    dropped = drop(floating, quantized)
    logits = OutputFidelity(
        name("logits"), sqnr_db=31.4, cosine=0.99964, max_abs_error=0.21,
        ci95=Interval(31.0, 31.9), channels=ChannelSpread(1, 10, 27.5, 27.9, 31.2),
    )  # fmt: skip
    fidelity = Fidelity(Evidence.SIMULATED, "fp32", 31.4, 0.99964, 0.21, 899, outputs=(logits,))
    verdict = judge(
        Limits(), drop=dropped, scores=(floating, quantized), fidelity=fidelity,
        latency=candidate.latency, speedup=speedup,
    )  # fmt: skip
    findings = Findings(fidelity, speedup, dropped, verdict)
    run = BuildRun({"export": 9.12, "compile": 4.4, "total": 21.9}, cache_hits=3)
    found = result(
        candidate, baseline, findings, run,
        model=name("digits-vit"), target="cpu" if measure else "l4",
        artifact=name("artifacts/digits-vit-l4-int8"),
        references=[PrecisionResult("fp32", accuracy=floating)],
        pending=[] if measure else [
            PendingEngine(
                backend="tensorrt", finish=name("optkit finish artifacts/digits-vit-l4-int8")
            )
        ],
        calibration=parsed(CalibrationCheck, calibration(name))
        if suspect else None,
    )  # fmt: skip
    nodes = [name(f"{block}/MatMul") for block in BLOCKS]
    rewrites = Rewrites(
        fusion={
            "entries": [
                {"rule": "fold_batchnorm", "node": name("stem/Conv"), "outcome": "applied",
                 "reason": "folded into the convolution"},
                {"rule": "merge_reshapes", "node": name("head/Reshape"), "outcome": "declined",
                 "reason": "its result is a graph output"},
            ],
        },
        cast={"half_nodes": 120, "islands": {name("norm/Pow"): "overflows half precision"}},
        quantization={
            "nodes": {node: {"activation": name(f"{node}_x")} for node in nodes},
            "activations": {
                name(f"{node}_x"): {"low": -3.2, "high": 3.1, "clipped": 0.0004} for node in nodes
            },
        },
        assignment=Assignment(
            {**dict.fromkeys(nodes, PRECISIONS["int8"]), name("patch/Conv"): PRECISIONS["fp16"]},
            {name("patch/Conv"): "one input channel never lands"},
        ),
    )  # fmt: skip
    conditions = {
        "cores": [2, 4], "load_average": [0.4, 0.6], "governor": None,
        "frequency_mhz": [2445.0, 2450.0], "other_cpu_share": 0.04,
    } if measure else {}  # fmt: skip
    return compose(
        found,
        document.measured(found, candidate, baseline, findings, latencies, conditions),
        rewrites=rewrites,
        layer_fidelity=parsed(LayerFidelity, layer_fidelity(name)),
        provenance=parsed(Provenance, {
            "recipe": {"name": name("digits-vit"), "bench": {"batches": [1, 8]}},
            "digests": {"graph": "ab" * 32, "statistics": "cd" * 32},
            "versions": {"optkit": "0.1.0", "tensorrt-rtx": "1.7.1"},
            "steps": [
                {"step": "export", "label": name("export digits"), "key": "0123456789abcdef",
                 "hit": True, "seconds": 0.01},
                {"step": "compile", "label": "compile int8", "key": "fedcba9876543210",
                 "hit": False, "seconds": 4.4},
            ],
            "build_spec": {
                "engine": {
                    "backend": "tensorrt-rtx",
                    "precision": "int8",
                    "profile": {name("image"): [[1, 1, 8, 8], [8, 1, 8, 8], [32, 1, 8, 8]]},
                    "workspace_bytes": 1 << 30,
                    "options": {"strongly_typed": True},
                    "reasons": {"strongly_typed": "precision lives in the graph"},
                },
            },
        }),
    ).to_json()  # fmt: skip


@pytest.fixture(scope="session")
def make() -> Callable[..., dict[str, Any]]:
    return build


HOSTILE = "<img src=x onerror=alert(1)>\u202e"


def point(latency_ms: float, sqnr_db: float | None, size: int, **more: Any) -> dict[str, Any]:
    return {
        "precision": "int8", "quantized": 3, "nodes": {}, "two_term": [], "placement": "default",
        "sqnr_db": sqnr_db, "divergence": None, "latency_ms": latency_ms, "bytes": size,
        "bytes_moved": None, "fused_layers": None, "landed": 3, "planned": 3, "chosen": False,
        "fresh": None,
    } | more  # fmt: skip


@pytest.fixture
def tune(make: Any) -> dict[str, Any]:
    """The document of a search, with names of strangers."""
    result = make()["result"]
    fresh = {key: result[key] for key in ("accuracy", "fidelity", "latency", "speedup", "gate")}
    fresh["drop"] = {"value": 0.002, "ci95": [-0.001, 0.004], "evidence": "simulated"}
    layer = {"precision": "int8", "sqnr_db": 25.0, "divergence": None, "chosen": "fp16"}
    return {
        "schema": "optkit.tune/v1", "status": "ok", "error": None, "model": "m", "target": "l4",
        "precisions": ["int8"],
        "budget": {"max_drop": 0.01, "min_sqnr": None, "max_latency_ms": 1.5, "max_bytes": None},
        "quantized": True, "reason": None, "artifact": "out/m-tuned-l4-int8", "digest": "ab" * 32,
        "recipe": "out/m-tuned-l4-int8.tune/recipe.yaml", "command": f"optkit build {HOSTILE}",
        "search": {"seed": 0, "trials": 9, "limit": 9, "failed": 0, "converged": True,
                   "parallel": 1},
        "evidence": {"sqnr_db": "simulated", "latency_ms": "predicted", "bytes": "compiled"},
        "front": [
            point(0.01, 30.0, 100),
            point(0.02, 40.0, 200, chosen=True, fresh=fresh),
            point(0.03, None, 300, quantized=0, precision="fp32", planned=0, landed=0),
        ],
        "layers": [
            {**layer, "layers": [f"{HOSTILE}0", "b"], "share": 0.7},
            {**layer, "layers": ["c"], "share": 0.3, "sqnr_db": None},
        ],
        "excluded": {HOSTILE: "one channel"}, "result": result,
    }  # fmt: skip
