"""The objects that `--json` prints and report.json contains: one pydantic model per document.

    result    optkit.result/v1, and optkit.results/v1 of several    report    optkit.report/v1
    fleet     optkit.fleet/v1      plan   optkit.plan/v1            tune      optkit.tune/v1
    figures   figures of optkit.bench/v1 and optkit.eval/v1
    diff      optkit.diff/v1       explanation  optkit.explain/v1   against   optkit.against/v1
    package   optkit.package/v1    signature  optkit.signature/v1
    attestation  optkit.attestation/v1    quantized_graph  optkit.quantized-graph/v1
    record    common parts of all models    measured, prices    parts of several documents share
    foreign   documents that another machine may have written

`optkit schema result` prints a JSON schema (draft 2020-12). The models are imported
only when a document is written or read, so start-up and `--help` do not import pydantic.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from optkit.errors import unknown_name

if TYPE_CHECKING:
    from optkit.documents.record import Record

# The name of a document → its module and class; its schema is optkit.NAME/v1.
_MODELS = {
    "result": "result:Result", "results": "result:Results", "report": "report:Report",
    "fleet": "fleet:Fleet", "plan": "plan:Plan", "tune": "tune:Tune", "diff": "diff:Diff",
    "explain": "explanation:Explained", "against": "against:Against",
    "package": "package:Package", "signature": "signature:Verified",
    "attestation": "attestation:Attested",
    "quantized-graph": "quantized_graph:QuantizedGraph",
}  # fmt: skip

NAMES = tuple(_MODELS)


def model(name: str) -> type[Record]:
    """The model of a document. Raises UnknownName."""
    if name not in _MODELS:
        raise unknown_name("document", name, NAMES)
    module, _, cls = _MODELS[name].partition(":")
    found: type[Record] = getattr(import_module(f"{__name__}.{module}"), cls)
    return found


def schema(name: str) -> dict[str, object]:
    """The JSON schema (draft 2020-12) of a document, generated from its model. Raises
    UnknownName."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:optkit:{name}:v1",
        **model(name).model_json_schema(mode="serialization"),
        "title": f"optkit.{name}/v1",
    }
