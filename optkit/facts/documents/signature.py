"""What `optkit sign` signed, or `optkit verify` verified."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from optkit.facts.documents.record import Digest, Record, Rows, said
from optkit.facts.plain_record import Count

SIGNED: Final = "optkit.signature/v1"


class SignatureFile(Record):
    """A signature by OpenSSF Model Signing 1.0."""

    file: str
    method: Literal["key", "certificate"]
    root: Annotated[Digest, said("The statement's digest of all signed files.")]
    files: Annotated[Count, said("The number of signed files.")]


class NamedArtifact(Record):
    """An artifact that a command has found sound."""

    schema_: str = Field(alias="schema")
    status: Literal["ok"]
    artifact: Annotated[str, said("Its folder.")]
    name: str
    digest: Annotated[Digest, said("Identifies the build.")]


class VerifiedArtifact(NamedArtifact):
    """An artifact whose files are as its manifest says."""

    schema_: Literal["optkit.signature/v1"] = Field(alias="schema")
    files: Annotated[Count, said("The number of files that were verified.")]
    signature: Annotated[
        SignatureFile | None, said("Null if it was not verified; notes say whether there is one.")
    ] = None
    notes: Annotated[Rows[str], said("What was not verified.")]
