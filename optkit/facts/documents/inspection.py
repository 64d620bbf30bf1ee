"""The content of an artifact or of an ONNX file: the object of `optkit inspect`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import Field

from optkit.facts.documents.record import Record, Rows, said
from optkit.facts.documents.result import Result
from optkit.facts.node_cost import GraphSummary
from optkit.facts.plain_record import Count

INSPECT: Final = "optkit.inspect/v1"


class InspectedArtifact(Record):
    """An artifact, all files of which were verified."""

    name: str
    digest: str
    files: Annotated[Count, said("The number of files that were verified.")]
    omitted: Annotated[Rows[str], said("Files of the build that a slim copy does not contain.")]
    result: Result


class Inspection(Record):
    """An artifact or an ONNX file."""

    schema_: Literal["optkit.inspect/v1"] = Field(alias="schema")
    artifact: Annotated[InspectedArtifact | None, said("Null for an ONNX file.")] = None
    path: str
    axes: Annotated[Mapping[str, int], said("The sizes for which an artifact is tuned.")]
    graph: Annotated[GraphSummary | None, said("Null if there are `parts`.")] = None
    parts: Annotated[
        dict[str, Inspection] | None, said("The graphs of an artifact of several graphs.")
    ] = None
