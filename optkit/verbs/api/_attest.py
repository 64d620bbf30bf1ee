"""Writes the bill of materials and the provenance of an artifact: `attest`."""

from __future__ import annotations

from pathlib import Path

from optkit.facts.documents.attestation import ATTESTATION, Attestation, AttestedFile
from optkit.ground.artifact import Artifact
from optkit.ground.store import digest_file
from optkit.road.packaging import attesting


def attest(
    path: str | Path, *, out: str | Path = "attestations", key: str | Path | None = None
) -> Attestation:
    """Write two files about the artifact in folder `path`, after every file was verified: a bill
    of materials (CycloneDX 1.6, NAME.cdx.json) and its provenance (in-toto Statement v1 with SLSA
    Provenance v1, NAME.provenance.json).

    out: the folder for them; it must not be in the artifact.
    key: a private key of an elliptic curve, PEM, without a password. The provenance is then signed:
        a DSSE envelope, NAME.provenance.dsse.json.

    Raises InputRefused (no artifact), IntegrityError
    (damaged), UsageError (the key, the folder), ToolchainMissing, StorageError.
    """
    artifact = Artifact.load(Path(path))
    artifact.verify()
    files = attesting.attest(artifact, Path(out), None if key is None else Path(key))
    note = "it is not signed, so it does not show who made it"
    return Attestation(
        schema=ATTESTATION,
        status="ok",
        artifact=str(artifact.path),
        name=artifact.name,
        digest=artifact.digest,
        files=tuple(map(_described, files)),
        notes=() if key is not None else (note,),
    )


def _described(file: Path) -> AttestedFile:
    return AttestedFile(
        file=str(file),
        kind="cyclonedx" if file.name.endswith(attesting.BOM) else "provenance",
        signed=file.name.endswith(attesting.SIGNED),
        sha256=digest_file(file),
        bytes=file.stat().st_size,
    )
