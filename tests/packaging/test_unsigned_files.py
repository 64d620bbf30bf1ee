"""Files that are left out of a signature, and files beside an artifact that nobody signed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("model_signing", reason="no model-signing: pip install 'optkit[sign]'")

from cryptography.hazmat.primitives.asymmetric import ec

import optkit
from optkit.facts.errors import IntegrityError, UnsafeFile, UsageError
from optkit.ground.artifact import Artifact
from optkit.road.packaging import signing
from optkit.road.packaging.signing import Signer, Trust
from tests.packaging import tiny
from tests.packaging.test_signing import pem, public


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    folder = tmp_path_factory.mktemp("keys")
    (folder / "public.pem").write_bytes(public(key))
    (folder / "private.pem").write_bytes(pem(key))
    return folder / "private.pem"


@pytest.fixture
def made(tmp_path: Path) -> Artifact:
    return tiny.artifact(tmp_path / "artifacts")


def test_what_is_left_out_of_a_signature_is_still_in_the_signed_manifest(
    made: Artifact, private: Path
) -> None:
    signed = optkit.sign(made.path, key=private, ignore_paths=["baseline", "report.md"])
    assert signed["signature"]["files"] == len(made.manifest.files) + 1 - 2
    key = private.with_name("public.pem")
    optkit.verify(made.path, key=key)
    # the signature alone does not find a change of such a file, but the signed manifest does
    (made.path / "report.md").write_bytes(b"changed")
    signing.verify(made.path, Trust(key))
    with pytest.raises(IntegrityError, match=r"report\.md was changed"):
        optkit.verify(made.path, key=key)


@pytest.mark.parametrize("path", ["manifest.json", "./manifest.json", "../x", "/etc", "."])
def test_the_manifest_and_paths_elsewhere_cannot_be_left_out(
    path: str, made: Artifact, private: Path
) -> None:
    with pytest.raises(UsageError):
        optkit.sign(made.path, key=private, ignore_paths=[path])
    assert not (made.path / "model.sig").exists()


def test_files_that_nobody_signed_are_refused_unless_they_are_allowed(
    made: Artifact, private: Path
) -> None:
    optkit.sign(made.path, key=private)
    key = private.with_name("public.pem")
    (made.path / "notes.txt").write_text("of the host")
    with pytest.raises(IntegrityError, match=r"'notes\.txt' was added"):
        optkit.verify(made.path, key=key)
    optkit.verify(made.path, key=key, ignore_unsigned_files=True)
    (made.path / "model.onnx").unlink()
    for check in (
        lambda: optkit.verify(made.path, key=key, ignore_unsigned_files=True),
        lambda: signing.verify(made.path, Trust(key), ignore_unsigned=True),
    ):
        with pytest.raises(IntegrityError, match=r"model\.onnx'? is missing"):
            check()


def test_a_file_that_nobody_signed_is_found_by_the_signature_alone(
    made: Artifact, private: Path
) -> None:
    signing.sign(made.path, Signer(private))
    (made.path / "notes.txt").write_text("of the host")
    with pytest.raises(IntegrityError, match=r"'notes\.txt' was added"):
        signing.verify(made.path, Trust(private.with_name("public.pem")))


def test_a_file_that_a_verifier_allows_must_not_be_a_signed_one(
    made: Artifact, private: Path
) -> None:
    signing.sign(made.path, Signer(private))
    key = Trust(private.with_name("public.pem"))
    (made.path / "cache").mkdir()
    (made.path / "cache/a").write_text("of the host")
    signing.verify(made.path, key, ignored=["cache"])
    with pytest.raises(IntegrityError):
        signing.verify(made.path, key, ignored=["cache", "model.onnx"])


def test_a_verified_signature_makes_the_engine_known_only_if_the_user_says_so(
    tmp_path: Path, private: Path, cache: Path
) -> None:
    made = tiny.artifact(tmp_path / "artifacts")  # after `cache`, which then knows it
    optkit.sign(made.path, key=private)
    shutil.rmtree(cache / "known")  # another machine
    key = private.with_name("public.pem")

    def refused() -> None:
        with pytest.raises(UnsafeFile, match="not compiled on this machine") as told:
            optkit.load(made.path).require_own_engine()
        assert "optkit verify ARTIFACT --key FILE --trust" in str(told.value.hint)

    refused()
    optkit.verify(made.path, key=key)
    refused()
    with pytest.raises(UsageError, match="nothing shows who made it"):
        optkit.verify(made.path, trust=True)
    other = private.with_name("other.pem")
    other.write_bytes(public(ec.generate_private_key(ec.SECP256R1())))
    with pytest.raises(IntegrityError, match="does not verify"):
        optkit.verify(made.path, key=other, trust=True)
    refused()
    optkit.verify(made.path, key=key, trust=True)
    optkit.load(made.path).require_own_engine()


def test_a_signed_path_outside_the_folder_is_refused(tmp_path: Path) -> None:
    from pydantic import ValidationError

    from optkit.road.packaging.bundle import Resource

    for name in ("../x", "a/../../x", "/etc/passwd", ""):
        with pytest.raises(ValidationError):
            Resource(name=name, digest="ab", algorithm="sha256")
