"""Bill of materials and provenance of an artifact, in files beside it, signed if there is a key.

They are not in the folder of the artifact: they name the digest of its manifest. A signature is a
DSSE envelope (Dead Simple Signing Envelope) around the statement.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

from optkit.facts.errors import ToolchainMissing, UsageError
from optkit.ground.artifact import Artifact, create
from optkit.ground.store import OUT_OPTION, storage_errors, write_durably
from optkit.road.packaging.bom import bill_of_materials
from optkit.road.packaging.provenance import provenance
from optkit.road.packaging.signing import keys

_PAYLOAD = "application/vnd.in-toto+json"
BOM, PROVENANCE, SIGNED = ".cdx.json", ".provenance.json", ".provenance.dsse.json"
"""The ends of the files' names, by the conventions of CycloneDX and of SLSA."""


def attest(artifact: Artifact, out: Path, key: Path | None = None) -> list[Path]:
    """Write the bill of materials and the provenance of a verified artifact into folder `out`;
    older ones are replaced.

    key: a private key of an elliptic curve, PEM, without a password: the provenance is signed.

    Raises UsageError (the key, `out` in the artifact), IntegrityError, ToolchainMissing,
    StorageError.
    """
    if out.resolve().is_relative_to(artifact.path.resolve()):
        raise UsageError(
            "the files name the digests of the artifact, so they cannot be in it",
            where=str(out),
            hint="choose another --out",
        )
    statement = _json(provenance(artifact))
    documents = {
        BOM: _json(bill_of_materials(artifact)),
        PROVENANCE if key is None else SIGNED: statement
        if key is None
        else _signed(statement, key),
    }
    with storage_errors(out, OUT_OPTION):
        create(out)
        for end, content in documents.items():
            write_durably(out / f"{artifact.name}{end}", content)
    return [out / f"{artifact.name}{end}" for end in documents]


def _signed(statement: bytes, key: Path) -> bytes:
    """The statement in an envelope with one signature."""
    dsse, signer, serialization = _libraries()
    with keys(key):
        private = serialization.load_pem_private_key(key.read_bytes(), password=None)
        crypto = signer.CryptoSigner(private)
        if not crypto.public_key.scheme.startswith("ecdsa-"):
            raise ValueError(f"it is of the kind {crypto.public_key.keytype}")
    envelope = dsse.Envelope(statement, _PAYLOAD, {})
    envelope.sign(crypto)
    return _json(envelope.to_dict())


def _libraries() -> tuple[ModuleType, ModuleType, ModuleType]:
    try:
        from cryptography.hazmat.primitives import serialization
        from securesystemslib import dsse, signer
    except ImportError as error:
        raise ToolchainMissing(
            f"securesystemslib does not load: {error}", hint="pip install 'optkit[sign]'"
        ) from error
    return dsse, signer, serialization


def _json(document: object) -> bytes:
    text = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False)
    return f"{text}\n".encode()
