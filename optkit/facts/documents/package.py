"""What `optkit package` wrote."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from optkit.facts.documents.record import Digest, Record, Rows, said
from optkit.facts.plain_record import Count

PACKAGE: Final = "optkit.package/v1"


class PackagedFile(Record):
    """A file of the package."""

    name: Annotated[str, said("Relative to the folder.")]
    sha256: Digest
    bytes: Count


class PackagedVariant(Record):
    """An artifact in the package."""

    target: str
    precision: str
    artifact: Annotated[str, said("Its folder.")]
    digest: Digest


class Package(Record):
    """What `optkit package` wrote."""

    schema_: Literal["optkit.package/v1"] = Field(alias="schema")
    status: Literal["ok"]
    format: str
    name: Annotated[str, said("The name of the model in the package.")]
    folder: str
    digest: Annotated[Digest, said("The same artifacts and format give the same digest.")]
    variants: Rows[PackagedVariant]
    files: Rows[PackagedFile]
    notes: Annotated[Rows[str], said("What the format cannot hold, and what to do next.")]
