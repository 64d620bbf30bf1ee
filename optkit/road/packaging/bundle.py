"""The bundle of a signature, as OpenSSF Model Signing 1.0 defines it (spec/v1.0.md, sections 4, 5
and 8): a Sigstore bundle with a DSSE envelope, whose payload is an in-toto statement.

The check is stricter than that of the library model-signing, which reads the bundle after it: the
specification's constants must be there, with at least one file, and the form before 1.0 is refused.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Base64Bytes, BaseModel, ConfigDict, Field, ValidationError

from optkit.facts.errors import IntegrityError

_BYTES = 64 << 20

Method = Literal["key", "certificate"]
Text = Annotated[str, Field(min_length=1)]
Hex = Annotated[str, Field(pattern=r"^[0-9a-f]+$")]


def _relative(name: str) -> str:
    """The specification's form of a path: it stays in the folder (section 6.1.2)."""
    if not name or name.startswith("/") or ".." in name.split("/"):
        raise ValueError("not a path in the folder")
    return name


class _Part(BaseModel):
    """A part of a bundle. Fields that optkit does not use may be there."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Resource(_Part):
    """A file: its path in the folder, with / between the parts."""

    name: Annotated[str, AfterValidator(_relative)]
    digest: Hex
    algorithm: Text


class Serialization(_Part):
    """How files were listed and hashed."""

    method: Literal["files", "shards"]
    hash_type: Text
    allow_symlinks: bool
    ignore_paths: tuple[str, ...] = ()


class Predicate(_Part):
    resources: Annotated[tuple[Resource, ...], Field(min_length=1)]
    serialization: Serialization


class RootDigest(_Part):
    sha256: Hex


class Root(_Part):
    """The signed folder as a whole. The name is information only."""

    name: Text
    digest: RootDigest


class Statement(_Part):
    """What is signed."""

    kind: Annotated[Literal["https://in-toto.io/Statement/v1"], Field(alias="_type")]
    subject: Annotated[tuple[Root, ...], Field(min_length=1, max_length=1)]
    predicate_type: Annotated[
        Literal["https://model_signing/signature/v1.0"], Field(alias="predicateType")
    ]
    predicate: Predicate


class _Signature(_Part):
    sig: Base64Bytes


class _Envelope(_Part):
    payload: Base64Bytes
    payload_type: Annotated[Literal["application/vnd.in-toto+json"], Field(alias="payloadType")]
    signatures: Annotated[tuple[_Signature, ...], Field(min_length=1)]


class _Certificate(_Part):
    raw: Annotated[Base64Bytes, Field(alias="rawBytes")]


class _Chain(_Part):
    certificates: Annotated[tuple[_Certificate, ...], Field(min_length=1)]


class _PublicKey(_Part):
    hint: str | None = None


class _Material(_Part):
    public_key: Annotated[_PublicKey | None, Field(alias="publicKey")] = None
    chain: Annotated[_Chain | None, Field(alias="x509CertificateChain")] = None


class Bundle(_Part):
    """A signature file."""

    media_type: Annotated[
        Literal["application/vnd.dev.sigstore.bundle.v0.3+json"], Field(alias="mediaType")
    ]
    material: Annotated[_Material, Field(alias="verificationMaterial")]
    envelope: Annotated[_Envelope, Field(alias="dsseEnvelope")]

    @classmethod
    def read(cls, file: Path) -> Self:
        """Raises IntegrityError (none, damaged, or of another kind)."""
        try:
            return cls.model_validate_json(_read(file))
        except ValidationError as error:
            raise _damaged(file, error) from error

    @property
    def method(self) -> Method | None:
        """How it was signed; None: neither way, as with Sigstore's short-lived certificates."""
        if self.material.chain is not None:
            return "certificate"
        return None if self.material.public_key is None else "key"

    @property
    def leaf(self) -> bytes:
        """The signer's certificate, in DER; empty if there is none."""
        return b"" if self.material.chain is None else self.material.chain.certificates[0].raw

    def statement(self, file: Path) -> Statement:
        """What is signed; only `signing.verify` knows whether the signature is correct. Raises
        IntegrityError."""
        try:
            return Statement.model_validate_json(self.envelope.payload)
        except ValidationError as error:
            raise _damaged(file, error) from error


def _read(file: Path) -> bytes:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise IntegrityError(
            "it is not signed: the file is missing",
            where=str(file),
            hint="sign the artifact with `optkit sign`, or verify its files without a key",
        ) from error
    except OSError as error:
        raise IntegrityError(f"cannot be read: {error.strerror}", where=str(file)) from error
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise IntegrityError("not a regular file", where=str(file))
        return stream.read(_BYTES)


def _damaged(file: Path, error: ValidationError) -> IntegrityError:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(map(str, first["loc"]))
    what = f"{place}: {first['msg']}" if place else first["msg"]
    return IntegrityError(
        f"damaged, or no signature by OpenSSF Model Signing 1.0: {json.dumps(what)[1:-1]}",
        where=str(file),
        hint="copy the artifact again, or sign it again",
    )
