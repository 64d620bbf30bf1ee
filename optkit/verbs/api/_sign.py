"""Signs an artifact, and verifies its files and its signature: `sign`, `verify`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from optkit.facts.documents.signature import SIGNED, SignatureFile, VerifiedArtifact
from optkit.facts.errors import UsageError
from optkit.ground.artifact import MANIFEST, SIGNATURE, Artifact
from optkit.road.packaging import signing
from optkit.road.packaging.bundle import Bundle, Method, Statement


def sign(
    path: str | Path,
    *,
    key: str | Path,
    certificate: str | Path | None = None,
    certificate_chain: Sequence[str | Path] = (),
    ignore_paths: Sequence[str] = (),
) -> VerifiedArtifact:
    """Sign the artifact in folder `path`, after every file was verified. The signature is its file
    model.sig, by OpenSSF Model Signing 1.0; an older one is replaced.

    key: a private key of an elliptic curve (P-256, P-384, P-521), PEM, without a password.
    certificate, certificate_chain: the certificate for the key, and those above it, PEM.
    ignore_paths: files and folders, relative to the artifact, that are left out of the signature.
        The signed manifest.json, which cannot be left out, still has their digests.

    Raises InputRefused (no artifact), IntegrityError
    (damaged), UsageError (the key), ToolchainMissing, StorageError.
    """
    if certificate_chain and certificate is None:
        raise UsageError("a chain needs the certificate for the key", hint="add --certificate")
    if MANIFEST in map(os.path.normpath, ignore_paths):
        raise UsageError(
            "it has the digests of all other files, so it is always signed", where=MANIFEST
        )
    artifact = Artifact.load(Path(path))
    artifact.verify()
    signer = signing.Signer(
        Path(key),
        None if certificate is None else Path(certificate),
        tuple(map(Path, certificate_chain)),
    )
    file = signing.sign(artifact.path, signer, ignored=ignore_paths)
    method: Method = "key" if certificate is None else "certificate"
    return _verified(artifact, _signature(file, method, Bundle.read(file).statement(file)))


def verify(
    path: str | Path,
    *,
    key: str | Path | None = None,
    certificate_chain: Sequence[str | Path] = (),
    ignore_unsigned_files: bool = False,
    trust: bool = False,
) -> VerifiedArtifact:
    """Compare every file of the artifact in folder `path` with its manifest. With a public key, or
    the root certificates that you trust, also verify its signature.

    ignore_unsigned_files: files may be there that neither the manifest nor the signature lists.
        `load` and `session` still refuse them.
    trust: after the signature was verified, record on this machine that you trust its owner with
        this artifact. `load`, `generate`, `bench` and the others then open its engines, which can
        run code.

    Raises InputRefused (no artifact), IntegrityError (with
    the names of the files; not signed; another key), UsageError (the key), ToolchainMissing.
    """
    if key is not None and certificate_chain:
        raise UsageError("a signature has one method", hint="--key or --certificate-chain")
    if trust and key is None and not certificate_chain:
        raise UsageError(
            "without a key nothing shows who made it",
            hint="name --key or --certificate-chain; if you know the author by other means, use "
            "--trusted of the command that opens it",
        )
    artifact = Artifact.load(Path(path))
    artifact.verify(added=ignore_unsigned_files)
    if key is None and not certificate_chain:
        return _verified(artifact, None)
    owner = signing.Trust(None if key is None else Path(key), tuple(map(Path, certificate_chain)))
    statement = signing.verify(artifact.path, owner, ignore_unsigned=ignore_unsigned_files)
    if trust:
        artifact.trust_here()
    signature = _signature(artifact.path / SIGNATURE, owner.method, statement)
    return _verified(artifact, signature)


def _signature(file: Path, method: Method, statement: Statement) -> SignatureFile:
    return SignatureFile(
        file=str(file),
        method=method,
        root=statement.subject[0].digest.sha256,
        files=len(statement.predicate.resources),
    )


def _verified(artifact: Artifact, signature: SignatureFile | None) -> VerifiedArtifact:
    signed = (artifact.path / SIGNATURE).exists()
    note = (
        "its signature was not verified: name --key or --certificate-chain"
        if signed
        else "it is not signed, so this does not show who made it"
    )
    omitted = artifact.manifest.omitted
    slim = f"a slim copy: {len(omitted)} files that prove its figures are not in it"
    return VerifiedArtifact(
        schema=SIGNED,
        status="ok",
        artifact=str(artifact.path),
        name=artifact.name,
        digest=artifact.digest,
        files=len(artifact.manifest.files),
        signature=signature,
        notes=(*((note,) if signature is None else ()), *((slim,) if omitted else ())),
    )
