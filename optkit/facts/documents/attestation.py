"""What `optkit attest` wrote."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from optkit.facts.documents.record import Digest, Record, Rows, said
from optkit.facts.documents.signature import NamedArtifact
from optkit.facts.plain_record import Count

ATTESTATION: Final = "optkit.attestation/v1"


class AttestedFile(Record):
    """A bill of materials or a provenance."""

    file: str
    kind: Literal["cyclonedx", "provenance"]
    signed: bool
    sha256: Digest
    bytes: Count


class Attestation(NamedArtifact):
    """The files about an artifact."""

    schema_: Literal["optkit.attestation/v1"] = Field(alias="schema")
    files: Rows[AttestedFile]
    notes: Annotated[Rows[str], said("What the files do not show.")]
