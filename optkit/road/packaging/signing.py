"""Signatures by OpenSSF Model Signing 1.0, with a key or a certificate, offline.

The library model-signing hashes, signs and verifies. The signature is the file model.sig in the
folder of the artifact. It signs every other file in it, also manifest.json, and no file of an
artifact changes for it. Each signing gives other bytes, because ECDSA draws a random number.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePath, PurePosixPath
from types import ModuleType
from typing import Any

from optkit.facts.errors import IntegrityError, ToolchainMissing, UsageError
from optkit.ground.artifact import SIGNATURE
from optkit.ground.intake.files import show
from optkit.ground.store import digest_file, storage_errors, write_durably
from optkit.road.packaging.bundle import Bundle, Method, Statement

_NEVER_SIGNED = {".git", ".gitignore", ".gitattributes", ".github"}
# the library's words about files, after the signature itself was correct
_MISMATCH = ("Signature mismatch", "Cannot use")


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


def sign(
    folder: Path, signer: Signer, file: Path | None = None, *, ignored: Sequence[str] = ()
) -> Path:
    """Sign every file in `folder`; return the signature's file, which replaces an older one.

    file: the signature; None: the one in the folder.
    ignored: relative paths of files and folders that are not signed.

    Raises UsageError (the key, the certificate, a path, no file), ToolchainMissing, StorageError.
    """
    signing, hashing, _ = _library()
    file = file or folder / SIGNATURE
    folder = folder.resolve()  # a link to it belongs to the user
    left_out = [*_checked(ignored), *_inside(file, folder)]
    if not any(
        _is_signed(found.relative_to(folder), left_out)
        for found in folder.rglob("*")
        if found.is_file()
    ):
        hint = "name the folder of an artifact"
        raise UsageError("there is no file to sign", where=str(folder), hint=hint)
    config = signing.Config()
    with keys(signer.key if signer.certificate is None else signer.certificate):
        if signer.certificate is None:
            config.use_elliptic_key_signer(private_key=signer.key)
        else:
            config.use_certificate_signer(
                private_key=signer.key,
                signing_certificate=signer.certificate,
                certificate_chain=signer.chain,
            )
    config.set_hashing_config(hashing.Config().set_ignored_paths(paths=left_out))
    with storage_errors(folder), tempfile.TemporaryDirectory() as scratch:
        draft = Path(scratch) / SIGNATURE
        try:
            config.sign(folder, draft)
        except ValueError as error:  # a link, or another thing that is no file
            raise UsageError(f"it cannot be signed: {error}", where=str(folder)) from error
        write_durably(file, draft.read_bytes())
    return file


def verify(
    folder: Path,
    trust: Trust,
    file: Path | None = None,
    *,
    ignored: Sequence[str] = (),
    ignore_unsigned: bool = False,
) -> Statement:
    """What is signed, after the signature and every signed file have been verified.

    file: the signature; None: the one in the folder.
    ignored: relative paths of files and folders that may be there although they are not signed.
    ignore_unsigned: any file may be there that is not signed. A signed file is always verified.

    Raises IntegrityError (with the names of files that differ), UsageError (the key, the roots),
    ToolchainMissing.
    """
    _, hashing, verifying = _library()
    file = file or folder / SIGNATURE
    folder = folder.resolve()  # a link to it belongs to the user
    bundle = Bundle.read(file)
    statement = bundle.statement(file)
    _check_method(bundle, trust, file)
    config = verifying.Config().set_ignore_unsigned_files(ignore_unsigned)
    left_out = [*_checked(ignored), *_inside(file, folder)]
    with keys(trust.key or trust.roots[0]):
        if trust.key is not None:
            config.use_elliptic_key_verifier(public_key=trust.key)
        else:
            config.use_certificate_verifier(certificate_chain=trust.roots)
    if trust.method == "certificate":
        _check_period(bundle, file)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # the library prints warnings
            if statement.predicate.serialization.method == "files":
                config.set_hashing_config(_hashing(hashing, statement, left_out))
            config.verify(folder, file)
    except Exception as error:  # cryptography, OpenSSL and the library each have their own
        if isinstance(error, ValueError) and str(error).startswith(_MISMATCH):
            names = left_out if not ignore_unsigned else None
            raise _mismatch(folder, statement, names, error) from error
        reason = str(error).strip() or type(error).__name__
        if reason.startswith("Key mismatch"):
            reason = "it was signed with another key"
        raise IntegrityError(
            f"the signature does not verify: {reason}",
            where=str(file),
            hint="give the public key or the roots of its signer; if they are right, the signature "
            "was changed: copy the artifact again",
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


def _checked(paths: Sequence[str]) -> list[str]:
    """Relative paths. Raises UsageError for one that leaves the folder."""
    for path in paths:
        pure = PurePosixPath(path)
        if not path or pure.is_absolute() or ".." in pure.parts or path == ".":
            raise UsageError("name a path in the folder, relative to it", where=show(path))
    return [PurePosixPath(path).as_posix() for path in paths]


def _inside(file: Path, folder: Path) -> list[str]:
    """The relative path of the signature, if it is in the folder, which is no link."""
    file = file.parent.resolve() / file.name
    return [file.relative_to(folder).as_posix()] if file.is_relative_to(folder) else []


def _is_signed(name: PurePath, ignored: Sequence[str]) -> bool:
    """Whether a file is signed: it is in no ignored folder, and it is none of git's own files."""
    return name.parts[0] not in _NEVER_SIGNED and not any(map(name.is_relative_to, ignored))


def _hashing(hashing: ModuleType, statement: Statement, ignored: Sequence[str]) -> Any:
    """How the library lists the files: without the signature, which some signers do not put into
    the list of ignored paths. The library adds that list."""
    how = statement.predicate.serialization
    config = hashing.Config().use_file_serialization(
        hashing_algorithm=how.hash_type, allow_symlinks=how.allow_symlinks
    )
    return config.set_ignored_paths(paths=ignored)


@contextlib.contextmanager
def keys(file: Path) -> Iterator[None]:
    """What the library says about a key or a certificate is about a file that the user named."""
    try:
        yield
    except (ValueError, TypeError, OSError, AttributeError) as error:
        if "for a private key" in str(error):
            raise UsageError(
                "it holds no private key",
                where=str(file),
                hint="`optkit sign` needs the private key of the pair; the public key is for "
                "`optkit verify`",
            ) from error
        # the library asks any key for its curve
        reason = (
            "its key is not on an elliptic curve"
            if isinstance(error, AttributeError)
            else str(error)
        )
        raise UsageError(
            f"not a key or certificate that can be used: {reason}",
            where=str(file),
            hint="use PEM files without a password, with a key of the curve P-256, P-384 or P-521 "
            "(openssl ecparam -name prime256v1 -genkey -noout -out signing.pem); `sign` needs a "
            "private key, `verify` its public key (openssl pkey -in signing.pem -pubout -out "
            "signing-public.pem)",
        ) from error


def _check_method(bundle: Bundle, trust: Trust, file: Path) -> None:
    if bundle.method == trust.method:
        return
    if bundle.method is None:
        raise IntegrityError(
            "it was signed with Sigstore's service, which optkit does not ask",
            where=str(file),
            hint="verify it with `model_signing verify sigstore`, or sign it again with a key",
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


def _mismatch(
    folder: Path, statement: Statement, ignored: Sequence[str] | None, error: Exception
) -> IntegrityError:
    """The names of the files that are not as they were signed. `ignored`: None: files that are not
    signed may be there."""
    predicate = statement.predicate
    present = {
        found.relative_to(folder).as_posix(): found
        for found in sorted(folder.rglob("*"))
        if found.is_file()
    }
    signed = {resource.name: resource.digest for resource in predicate.resources}
    if predicate.serialization.method != "files" or predicate.serialization.hash_type != "sha256":
        return IntegrityError(str(error), where=str(folder))
    added = []
    if ignored is not None:
        left_out = [*predicate.serialization.ignore_paths, *ignored]
        added = [
            name
            for name in present
            if name not in signed and _is_signed(PurePosixPath(name), left_out)
        ]
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
