"""The objects that `--json` prints and report.json contains: one pydantic model per document.

    result    optkit.result/v1, optkit.results/v1 of several, and optkit.error/v1
    report    optkit.report/v1     fleet  optkit.fleet/v1
    plan      optkit.plan/v1       tune   optkit.tune/v1
    model_figures  optkit.bench/v1, eval       stages    optkit.export/v1, fuse, quantize, compile
    diff      optkit.diff/v1       explanation  optkit.explain/v1   against   optkit.against/v1
    package   optkit.package/v1    signature  optkit.signature/v1
    attestation  optkit.attestation/v1    quantized_graph  optkit.quantized-graph/v1
    devices   optkit.targets/v1, devices    installation    optkit.doctor/v1
    inspection  optkit.inspect/v1  store_entries  optkit.cache/v1   dry_run  optkit.rehearsal/v1
    measured_card  optkit.card/v1  serving_plan  optkit.serving/v1
    observation  optkit.monitor/v1          generated_text  optkit.generate/v1
    record    common parts of all models    measured, prices    parts that several documents share
    rewrites  what fusion rules did         schema_texts, common_texts  descriptions of keys
    data_finding, export_check, given_graph    parts that workers make, without pydantic

`optkit schema result` prints a JSON schema (draft 2020-12). The models are imported
only when a document is written or read, so start-up and `--help` do not import pydantic.
"""

from __future__ import annotations

from functools import reduce
from importlib import import_module
from operator import or_
from typing import TYPE_CHECKING

from optkit.facts.errors import unknown_name

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from optkit.facts.documents.record import Record

# The name of a document → its module and class; its schema is optkit.NAME/v1. Two commands may
# print objects of one name: then it has two classes.
_MODELS = {
    "result": "result:Result", "results": "result:Results", "report": "report:Report",
    "fleet": "fleet:Fleet", "plan": "plan:Plan", "tune": "tune:Tune", "diff": "diff:Diff",
    "explain": "explanation:Explained", "against": "against:Against",
    "package": "package:Package", "signature": "signature:VerifiedArtifact",
    "attestation": "attestation:Attestation",
    "quantized-graph": "quantized_graph:QuantizedGraph",
    "bench": "model_figures:BenchFigures", "eval": "model_figures:EvalFigures",
    "export": "stages:ExportFiles", "fuse": "stages:FuseFiles",
    "quantize": "stages:QuantizeFiles", "compile": "stages:CompileFiles",
    "error": "result:FailedCommand",
    "targets": "devices:Targets", "devices": "devices:Devices|DeviceFacts",
    "doctor": "installation:Installation", "inspect": "inspection:Inspection",
    "cache": "store_entries:StoreEntries|StoreCheck", "rehearsal": "dry_run:DryRun",
    "card": "measured_card:MeasuredCard", "serving": "serving_plan:ServingPlan",
    "monitor": "observation:Observation", "generate": "generated_text:TextGeneration",
}  # fmt: skip

NAMES = tuple(_MODELS)


def model(name: str) -> TypeAdapter[Record]:
    """The model of a document, or the union of its models. Raises UnknownName."""
    if name not in _MODELS:
        raise unknown_name("document", name, NAMES)
    from pydantic import TypeAdapter

    place, _, classes = _MODELS[name].partition(":")
    module = import_module(f"{__name__}.{place}")
    return TypeAdapter(reduce(or_, (getattr(module, cls) for cls in classes.split("|"))))


def schema(name: str) -> dict[str, object]:
    """The JSON schema (draft 2020-12) of a document, generated from its model. Raises
    UnknownName."""
    from optkit.facts.documents.schema_texts import ClosedSchema

    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:optkit:{name}:v1",
        **model(name).json_schema(mode="serialization", schema_generator=ClosedSchema),
        "title": f"optkit.{name}/v1",
    }
