"""What `optkit attest` wrote."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from optkit.documents.record import Count, Digest, Record, Rows, said

ATTESTATION: Final = "optkit.attestation/v1"


class AttestedFile(Record):
    """A bill of materials or a provenance."""

    file: str
    kind: Literal["cyclonedx", "provenance"]
    signed: bool
    sha256: Digest
    bytes: Count


class Attested(Record):
    """The files about an artifact."""

    schema_: Literal["optkit.attestation/v1"] = Field(alias="schema")
    status: Literal["ok"]
    artifact: Annotated[str, said("Its folder.")]
    name: str
    digest: Annotated[Digest, said("Identifies the build.")]
    files: Rows[AttestedFile]
    notes: Annotated[Rows[str], said("What the files do not show.")]
