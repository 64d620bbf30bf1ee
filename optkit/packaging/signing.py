"""Signatures by OpenSSF Model Signing 1.0, with a key or a certificate, offline.

The library model-signing hashes, signs and verifies. The signature is the file model.sig in the
folder of the artifact. It signs every other file in it, also manifest.json, and no file of an
artifact changes for it. Each signing gives other bytes, because ECDSA draws a random number.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

from optkit.artifact import SIGNATURE
from optkit.errors import IntegrityError, ToolchainMissing, UsageError
from optkit.intake.files import show
from optkit.packaging.bundle import Bundle, Method, Statement
from optkit.store import digest_file, storage_errors, write_durably

_NEVER_SIGNED = {SIGNATURE, ".git", ".gitignore", ".gitattributes", ".github"}
_MISMATCH = "Signature mismatch"  # the library's words, after the signature itself was correct


@dataclass(frozen=True)
class Signer:
    """A private key, and the certificate for it with its chain (all PEM) if there is one."""

    key: Path
    certificate: Path | None = None
    chain: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Trust:
    """Who may have signed: the owner of a public key, or of a certificate under one of these roots
    (all PEM). One of the two is given."""

    key: Path | None = None
    roots: tuple[Path, ...] = ()

    @property
    def method(self) -> Method:
        return "certificate" if self.key is None else "key"


def sign(folder: Path, signer: Signer) -> Path:
    """Sign every file in `folder`; return the signature's file, which replaces an older one.

    Raises UsageError (the key, the certificate, no file), ToolchainMissing, StorageError.
    """
    signing, hashing, _ = _library()
    files = (found.relative_to(folder) for found in folder.rglob("*") if found.is_file())
    if all(name.parts[0] in _NEVER_SIGNED for name in files):
        raise UsageError("there is no file to sign", where=str(folder))
    config = signing.Config()
    with _keys(signer.key if signer.certificate is None else signer.certificate):
        if signer.certificate is None:
            config.use_elliptic_key_signer(private_key=signer.key)
        else:
            config.use_certificate_signer(
                private_key=signer.key,
                signing_certificate=signer.certificate,
                certificate_chain=signer.chain,
            )
    config.set_hashing_config(hashing.Config().set_ignored_paths(paths=[SIGNATURE]))
    with storage_errors(folder), tempfile.TemporaryDirectory() as scratch:
        draft = Path(scratch) / SIGNATURE
        config.sign(folder, draft)
        write_durably(folder / SIGNATURE, draft.read_bytes())
    return folder / SIGNATURE


def verify(folder: Path, trust: Trust, file: Path | None = None) -> Statement:
    """What is signed, after the signature and every file have been verified.

    file: the signature; None: the one in the folder.

    Raises IntegrityError (with the names of files that differ), UsageError (the key, the roots),
    ToolchainMissing.
    """
    _, hashing, verifying = _library()
    file = file or folder / SIGNATURE
    bundle = Bundle.read(file)
    statement = bundle.statement(file)
    _check_method(bundle, trust, file)
    config = verifying.Config()
    with _keys(trust.key or trust.roots[0]):
        if trust.key is not None:
            config.use_elliptic_key_verifier(public_key=trust.key)
        else:
            config.use_certificate_verifier(certificate_chain=trust.roots)
    if trust.method == "certificate":
        _check_period(bundle, file)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # the library prints warnings
            if statement.predicate.serialization.method == "files":
                config.set_hashing_config(_hashing(hashing, statement, file.name))
            config.verify(folder, file)
    except Exception as error:  # cryptography, OpenSSL and the library each have their own
        if isinstance(error, ValueError) and str(error).startswith(_MISMATCH):
            raise _mismatch(folder, file, statement, error) from error
        raise IntegrityError(
            f"the signature does not verify: {str(error) or type(error).__name__}",
            where=str(file),
            hint="another key or certificate signed it, or it was changed after signing",
        ) from error
    return statement


def _library() -> tuple[ModuleType, ModuleType, ModuleType]:
    try:
        from model_signing import hashing, signing, verifying
    except ImportError as error:
        raise ToolchainMissing(
            f"model-signing does not load: {error}", hint="pip install 'optkit[sign]'"
        ) from error
    return signing, hashing, verifying


def _hashing(hashing: ModuleType, statement: Statement, signature: str) -> Any:
    """How the library lists the files: without the signature, which some signers do not put into
    the list of ignored paths. The library adds that list."""
    how = statement.predicate.serialization
    config = hashing.Config().use_file_serialization(
        hashing_algorithm=how.hash_type, allow_symlinks=how.allow_symlinks
    )
    return config.set_ignored_paths(paths=[signature])


@contextlib.contextmanager
def _keys(file: Path) -> Iterator[None]:
    """What the library says about a key or a certificate is about a file that the user named."""
    try:
        yield
    except (ValueError, TypeError, OSError, AttributeError) as error:
        raise UsageError(
            f"no such key or certificate: {error}",
            where=str(file),
            hint="use PEM files without a password, with a key of the curve P-256, P-384 or P-521; "
            "`sign` needs a private key, `verify` its public key (openssl pkey -pubout)",
        ) from error


def _check_method(bundle: Bundle, trust: Trust, file: Path) -> None:
    if bundle.method == trust.method:
        return
    if bundle.method is None:
        raise IntegrityError(
            "it was signed with Sigstore's service, which optkit does not ask", where=str(file)
        )
    use = "--key" if bundle.method == "key" else "--certificate-chain"
    raise IntegrityError(
        f"it was signed with a {bundle.method}", where=str(file), hint=f"verify it with {use}"
    )


def _check_period(bundle: Bundle, file: Path) -> None:
    """The specification requires that the signer's certificate is valid now; the library takes the
    day on which its validity began."""
    from cryptography import x509

    try:
        leaf = x509.load_der_x509_certificate(bundle.leaf)
    except ValueError as error:
        raise IntegrityError("damaged: not a certificate", where=str(file)) from error
    start, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    if not start <= datetime.now(UTC) <= end:
        raise IntegrityError(
            f"the signer's certificate is valid from {start:%Y-%m-%d} to {end:%Y-%m-%d} only",
            where=str(file),
            hint="sign the artifact again with a certificate that is valid",
        )


def _mismatch(folder: Path, file: Path, statement: Statement, error: ValueError) -> IntegrityError:
    """The names of the files that are not as they were signed."""
    predicate = statement.predicate
    ignored = {*predicate.serialization.ignore_paths, file.name}
    present = {
        found.relative_to(folder).as_posix(): found
        for found in sorted(folder.rglob("*"))
        if found.is_file()
    }
    signed = {resource.name: resource.digest for resource in predicate.resources}
    if predicate.serialization.method != "files" or predicate.serialization.hash_type != "sha256":
        return IntegrityError(str(error), where=str(folder))
    added = [name for name in present if name not in signed and name.split("/")[0] not in ignored]
    problems = [f"{show(name)} was added" for name in added]
    for name, digest in signed.items():
        if name not in present:
            problems.append(f"{show(name)} is missing")
        elif digest_file(present[name]) != digest:
            problems.append(f"{show(name)} was changed")
    more = f", and {len(problems) - 5} more" if len(problems) > 5 else ""
    return IntegrityError(
        f"not as it was signed: {', '.join(problems[:5])}{more}",
        where=str(folder),
        hint="copy the artifact again from an undamaged copy, or sign this one if it is yours",
    )
