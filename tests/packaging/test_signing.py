"""Signatures of artifacts: by key and by certificate, read by the command of model-signing, the
cases of the specification's conformance suite, and many tamperings, each found and named."""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("model_signing", reason="no model-signing: pip install 'optkit[sign]'")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

import optkit
from optkit.facts.errors import IntegrityError, OptkitError, UsageError
from optkit.ground.artifact import Artifact
from optkit.road.packaging import formats, signing
from optkit.road.packaging.signing import Signer, Trust
from optkit.road.packaging.variants import PackageSubject
from tests.conftest import Optkit
from tests.figures import Figures
from tests.packaging import tiny

Key = ec.EllipticCurvePrivateKey


def pem(key: Key | rsa.RSAPrivateKey, password: bytes | None = None) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password)
        if password
        else serialization.NoEncryption(),
    )


def public(key: Key) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def certificate(
    name: str, key: Key, issuer: str, by: Key, *, authority: bool, days: tuple[int, int] = (-1, 9)
) -> bytes:
    """A certificate, valid from and to so many days from now."""
    now = datetime.now(UTC)
    usage = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
         "crl_sign", "encipher_only", "decipher_only"), False,
    )  # fmt: skip
    found = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=days[0]))
        .not_valid_after(now + timedelta(days=days[1]))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=not authority, key_cert_sign=authority, **usage),
            critical=True,
        )
        .sign(by, hashes.SHA256())
    )
    return found.public_bytes(serialization.Encoding.PEM)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """private.pem with public.pem, other.pem with other_public.pem; root.pem above between.pem
    above mine.pem (which has expired in expired.pem), and other_root.pem."""
    folder = tmp_path_factory.mktemp("keys")
    mine, other, root, between = (ec.generate_private_key(ec.SECP256R1()) for _ in range(4))
    files = {
        "private": pem(mine), "public": public(mine),
        "other": pem(other), "other_public": public(other),
        "root": certificate("root", root, "root", root, authority=True, days=(-90, 9)),
        "other_root": certificate("root", other, "root", other, authority=True),
        "between": certificate("between", between, "root", root, authority=True, days=(-90, 9)),
        "mine": certificate("me", mine, "between", between, authority=False),
        "expired": certificate("me", mine, "between", between, authority=False, days=(-80, -40)),
    }  # fmt: skip
    for name, text in files.items():
        (folder / f"{name}.pem").write_bytes(text)
    return folder


@pytest.fixture
def made(tmp_path: Path) -> Artifact:
    return tiny.artifact(tmp_path / "artifacts")


def signer(keys: Path, certificate: str | None = None) -> Signer:
    if certificate is None:
        return Signer(keys / "private.pem")
    return Signer(keys / "private.pem", keys / f"{certificate}.pem", (keys / "between.pem",))


def by_key(keys: Path, name: str = "public") -> Trust:
    return Trust(keys / f"{name}.pem")


def by_root(keys: Path, name: str = "root") -> Trust:
    return Trust(None, (keys / f"{name}.pem",))


def refused(folder: Path, trust: Trust, *parts: str) -> None:
    with pytest.raises(IntegrityError) as error:
        signing.verify(folder, trust)
    for part in parts:
        assert part in str(error.value)


# --- sign and verify -----------------------------------------------------------------------------


def test_a_signed_artifact_verifies_where_it_is_and_after_a_move(
    made: Artifact, keys: Path, tmp_path: Path
) -> None:
    signed = optkit.sign(made.path, key=keys / "private.pem")
    for folder in (made.path, Path(shutil.copytree(made.path, tmp_path / "another-name"))):
        found = optkit.verify(folder, key=keys / "public.pem")
        assert found["signature"]["root"] == signed["signature"]["root"]
        assert found["signature"]["files"] == len(made.manifest.files) + 1
        assert found["notes"] == []
        Artifact.load(folder).verify()


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()])
def test_the_curves_of_the_specification(
    made: Artifact, tmp_path: Path, curve: ec.EllipticCurve
) -> None:
    key = ec.generate_private_key(curve)
    (tmp_path / "key.pem").write_bytes(pem(key))
    (tmp_path / "public.pem").write_bytes(public(key))
    signing.sign(made.path, Signer(tmp_path / "key.pem"))
    signing.verify(made.path, Trust(tmp_path / "public.pem"))


def test_a_certificate_is_verified_up_to_a_root_that_the_user_trusts(
    made: Artifact, keys: Path
) -> None:
    signing.sign(made.path, signer(keys, "mine"))
    signing.verify(made.path, by_root(keys))
    refused(made.path, by_root(keys, "other_root"), "model.sig", "does not verify")
    refused(made.path, by_key(keys), "signed with a certificate", "--certificate-chain")


def test_the_statement_is_that_of_the_specification(made: Artifact, keys: Path) -> None:
    file = signing.sign(made.path, signer(keys))
    bundle = json.loads(file.read_text())
    assert bundle["mediaType"] == "application/vnd.dev.sigstore.bundle.v0.3+json"
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://model_signing/signature/v1.0"
    names = [resource["name"] for resource in statement["predicate"]["resources"]]
    assert names == sorted([*made.manifest.files, "manifest.json"])
    serialization_of = statement["predicate"]["serialization"]
    assert serialization_of["method"] == "files"
    assert serialization_of["hash_type"] == "sha256"
    assert serialization_of["allow_symlinks"] is False


@pytest.mark.slow
def test_the_command_of_model_signing_reads_it_and_writes_what_is_read(
    made: Artifact, keys: Path
) -> None:
    def command(*words: object) -> None:
        line = [sys.executable, "-m", "model_signing", *map(str, words)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr + done.stdout

    file = signing.sign(made.path, signer(keys))
    command("verify", "key", made.path, "--signature", file, "--public_key", keys / "public.pem")
    command("sign", "key", made.path, "--signature", file, "--private_key", keys / "private.pem")
    signing.verify(made.path, by_key(keys))


# --- the commands --------------------------------------------------------------------------------


def test_the_commands_sign_verify_and_name_the_file(
    made: Artifact, keys: Path, optkit_here: Optkit
) -> None:
    done = optkit_here("verify", made.path)
    assert done.code == 0
    assert "7 files and manifest.json" in done.out
    done.told("it is not signed")
    done = optkit_here("verify", made.path, "--key", keys / "public.pem")
    assert done.code == 7
    done.told("it is not signed", "optkit sign")
    assert optkit_here("sign", made.path, "--key", keys / "private.pem").code == 0
    assert "signed" not in optkit_here("verify", made.path).out
    optkit_here("verify", made.path).told("its signature was not verified")
    done = optkit_here("verify", made.path, "--key", keys / "public.pem", "--json")
    assert done.result["signature"]["method"] == "key"
    assert optkit_here("verify", made.path, "--key", keys / "other_public.pem").code == 7
    (made.path / "engine.plan").write_bytes(b"engine of another")
    done = optkit_here("verify", made.path, "--key", keys / "public.pem")
    assert done.code == 7
    done.told("engine.plan was changed")


def test_a_damaged_artifact_is_not_signed(made: Artifact, keys: Path) -> None:
    (made.path / "added").touch()
    with pytest.raises(IntegrityError, match="'added' was added"):
        optkit.sign(made.path, key=keys / "private.pem")
    assert not (made.path / "model.sig").exists()


def test_keys_that_cannot_be_used_are_refused(made: Artifact, keys: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.pem"
    secret.write_bytes(pem(ec.generate_private_key(ec.SECP256R1()), b"password"))
    foreign = tmp_path / "rsa.pem"
    foreign.write_bytes(pem(rsa.generate_private_key(65537, 2048)))
    koblitz = tmp_path / "koblitz.pem"
    koblitz.write_bytes(pem(ec.generate_private_key(ec.SECP256K1())))
    for key in (secret, foreign, koblitz):
        with pytest.raises(UsageError, match="without a password"):
            optkit.sign(made.path, key=key)
    with pytest.raises(UsageError, match="it holds no private key"):
        optkit.sign(made.path, key=keys / "public.pem")
    with pytest.raises(UsageError):  # the certificate is for another key
        optkit.sign(made.path, key=keys / "other.pem", certificate=keys / "mine.pem")
    with pytest.raises(UsageError, match="--certificate"):
        optkit.sign(made.path, key=keys / "private.pem", certificate_chain=[keys / "root.pem"])
    optkit.sign(made.path, key=keys / "private.pem")
    with pytest.raises(UsageError, match="public"):
        optkit.verify(made.path, key=keys / "private.pem")
    with pytest.raises(UsageError, match="--key or"):
        optkit.verify(made.path, key=keys / "public.pem", certificate_chain=[keys / "root.pem"])


def test_a_new_build_of_the_artifact_is_not_signed(made: Artifact, keys: Path) -> None:
    optkit.sign(made.path, key=keys / "private.pem")
    tiny.artifact(made.path.parent)
    refused(made.path, by_key(keys), "it is not signed")


def test_an_oci_package_carries_the_signature(made: Artifact, keys: Path, tmp_path: Path) -> None:
    file = optkit.sign(made.path, key=keys / "private.pem")["signature"]["file"]
    package = formats.package(PackageSubject.of(made.path), "oci", tmp_path / "out")
    blobs = [Path(package.folder, row.name).read_bytes() for row in package.files]
    assert Path(file).read_bytes() in blobs


# --- the offline cases of the conformance suite ---------------------------------------------------

Case = Callable[[dict[str, Any], dict[str, Any]], None]


def _drop(place: str) -> Case:
    def change(bundle: dict[str, Any], statement: dict[str, Any]) -> None:
        for part in (bundle, statement):
            part.pop(place, None)

    return change


def _set(place: str, value: object) -> Case:
    def change(bundle: dict[str, Any], statement: dict[str, Any]) -> None:
        for part in (bundle, statement, bundle["dsseEnvelope"], statement["predicate"]):
            if place in part:
                part[place] = value

    return change


MALFORMED: dict[str, Case] = {
    "wrong media type": _set("mediaType", "application/json"),
    "no envelope": _drop("dsseEnvelope"),
    "no verification material": _drop("verificationMaterial"),
    "no signature": _set("signatures", []),
    "wrong payload type": _set("payloadType", "text/plain"),
    "wrong statement type": _set("_type", "https://in-toto.io/Statement/v0.1"),
    "wrong predicate": _set("predicateType", "https://model_signing/Digests/v0.1"),
    "no predicate": _drop("predicate"),
    "no subject": _set("subject", []),
    "two subjects": _set("subject", [{"name": "a", "digest": {"sha256": "00"}}] * 2),
    "no resources": _set("resources", []),
}


def test_a_bundle_that_does_not_list_itself_as_ignored_is_verified(
    made: Artifact, keys: Path, tmp_path: Path
) -> None:
    file = signing.sign(made.path, signer(keys))
    outside = Path(shutil.move(file, tmp_path / "model.sig"))
    with_none = _set("serialization", {"method": "files", "hash_type": "sha256",
                                       "allow_symlinks": False})  # fmt: skip
    _sign_again(outside, keys, with_none)
    shutil.move(outside, file)
    signing.verify(made.path, by_key(keys))
    (made.path / "engine.plan").unlink()
    refused(made.path, by_key(keys), "'engine.plan' is missing")


def test_an_empty_folder_is_not_signed(keys: Path, tmp_path: Path) -> None:
    (tmp_path / ".gitignore").touch()  # the specification leaves it out
    with pytest.raises(UsageError, match="no file"):
        signing.sign(tmp_path, signer(keys))


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_bundle_is_refused_also_if_its_signature_is_correct(
    made: Artifact, keys: Path, case: str
) -> None:
    file = signing.sign(made.path, signer(keys))
    _sign_again(file, keys, MALFORMED[case])
    refused(made.path, by_key(keys), "model.sig", "OpenSSF Model Signing 1.0")


def _sign_again(file: Path, keys: Path, change: Case) -> None:
    """Change a bundle, and sign what it then says."""
    bundle = json.loads(file.read_text())
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    envelope = bundle["dsseEnvelope"]
    change(bundle, statement)
    payload = json.dumps(statement).encode()
    key = serialization.load_pem_private_key((keys / "private.pem").read_bytes(), None)
    assert isinstance(key, Key)
    start = f"DSSEv1 28 application/vnd.in-toto+json {len(payload)} ".encode()
    envelope["payload"] = base64.b64encode(payload).decode()
    for signature in envelope["signatures"]:
        sig = key.sign(start + payload, ec.ECDSA(hashes.SHA256()))
        signature["sig"] = base64.b64encode(sig).decode()
    file.write_text(json.dumps(bundle))


def test_what_the_malformed_cases_change_is_all_that_is_wrong(made: Artifact, keys: Path) -> None:
    MALFORMED["harmless"] = _set("nothing", None)
    try:
        with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
            test_a_malformed_bundle_is_refused_also_if_its_signature_is_correct(
                made, keys, "harmless"
            )
    finally:
        del MALFORMED["harmless"]


def test_damaged_bundles_and_foreign_signers_are_refused(made: Artifact, keys: Path) -> None:
    file = signing.sign(made.path, signer(keys))
    whole = file.read_bytes()
    for text in (b"", b"{}", whole[: len(whole) // 2], b"\xff" * 40, b"[" * 100000):
        file.write_bytes(text)
        refused(made.path, by_key(keys), "model.sig")
    bundle = json.loads(whole)
    sig = bytearray(base64.b64decode(bundle["dsseEnvelope"]["signatures"][0]["sig"]))
    sig[-1] ^= 1
    bundle["dsseEnvelope"]["signatures"][0]["sig"] = base64.b64encode(sig).decode()
    file.write_text(json.dumps(bundle))
    refused(made.path, by_key(keys), "does not verify")
    file.write_bytes(whole)
    refused(made.path, by_key(keys, "other_public"), "does not verify")
    refused(made.path, by_root(keys), "signed with a key", "--key")
    file.rename(outside := made.path.with_name("model.sig"))
    file.symlink_to(outside)  # a sound signature, but where anybody may change it
    refused(made.path, by_key(keys), "model.sig")
    with pytest.raises(IntegrityError, match=r"model\.sig' was added"):
        made.verify()


def test_a_certificate_that_has_expired_is_refused(made: Artifact, keys: Path) -> None:
    signing.sign(made.path, signer(keys, "expired"))
    refused(made.path, by_root(keys), "valid from")


@pytest.mark.parametrize(
    "names",
    [
        ["model.bin"], ["a", "deep/er/b", ".config", ".local/share/data"],
        ["file (copy).bin", "path with spaces/b", "模型.bin"],
    ],
    ids=["one", "hidden", "unusual"],
)  # fmt: skip
def test_any_folder_makes_the_round_trip(tmp_path: Path, keys: Path, names: list[str]) -> None:
    folder = tmp_path / "model"
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    signing.sign(folder, signer(keys))
    statement = signing.verify(folder, by_key(keys))
    assert [each.name for each in statement.predicate.resources] == sorted(names)
    (folder / names[-1]).write_bytes(b"other")
    refused(folder, by_key(keys), f"{names[-1]!a} was changed")


# --- tampering -----------------------------------------------------------------------------------

KINDS = (
    "flipped", "truncated", "added", "removed", "renamed", "hidden", "linked", "exchanged",
    "signature", "statement", "another_key", "replayed",
)  # fmt: skip
OF_SIGNATURES = KINDS[-4:]
"""Which only a verification with a key can find."""


def tamper(folder: Path, kind: str, draw: random.Random) -> list[str]:
    """Change one file of the folder; the names that have to be reported."""
    files = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*")
                   if file.is_file() and file.name != "model.sig")  # fmt: skip
    name = draw.choice([each for each in files if (folder / each).stat().st_size])
    file, new = folder / name, f"{draw.choice(['', 'baseline/'])}new{draw.randrange(99)}"
    text = bytearray(file.read_bytes())
    if kind == "flipped":
        text[draw.randrange(len(text))] ^= 1 << draw.randrange(8)
        file.write_bytes(text)
    elif kind == "truncated":
        file.write_bytes(text[: draw.randrange(len(text))])
    elif kind == "added":
        (folder / new).write_bytes(draw.randbytes(draw.randrange(9)))
        return [new]
    elif kind == "hidden":  # libraries for models leave such files out
        hidden = draw.choice([".gitattributes", ".gitignore", ".git/config", ".github/x", ".x"])
        (folder / hidden).parent.mkdir(exist_ok=True)
        (folder / hidden).write_bytes(draw.randbytes(draw.randrange(9)))
        return [hidden]
    elif kind == "removed":
        file.unlink()
    elif kind == "linked":
        file.rename(folder.with_name(f"{folder.name}-moved"))
        file.symlink_to(folder.with_name(f"{folder.name}-moved"))
    elif kind == "exchanged":
        contents = {each: (folder / each).read_bytes() for each in files}
        others = [each for each in files if contents[each] != contents[name]]
        other = draw.choice(others)
        (folder / other).write_bytes(contents[name])
        file.write_bytes(contents[other])
        return [name, other] if "manifest.json" not in (name, other) else ["manifest.json"]
    else:
        file.rename(folder / new)
        return [name] if name == "manifest.json" else [name, new]
    return [name]


def tamper_signature(folder: Path, kind: str, draw: random.Random, keys: Path) -> None:
    """Change the signature, or put another one in its place."""
    file = folder / "model.sig"
    bundle = json.loads(file.read_text())
    envelope = bundle["dsseEnvelope"]
    if kind == "another_key":
        file.unlink()
        signing.sign(folder, Signer(keys / "other.pem"))
    elif kind == "replayed":  # a sound signature, of the same signer, of another artifact
        content = {**tiny.files(), "engine.plan": draw.randbytes(9)}
        other = tiny.artifact(folder.with_name(f"{folder.name}-other"), content=content)
        file.write_bytes(signing.sign(other.path, signer(keys)).read_bytes())
        if draw.random() < 0.5:
            (folder / "manifest.json").write_bytes((other.path / "manifest.json").read_bytes())
    else:
        holder, key = (
            (envelope["signatures"][0], "sig") if kind == "signature" else (envelope, "payload")
        )
        data = bytearray(base64.b64decode(holder[key]))
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        holder[key] = base64.b64encode(data).decode()
        file.write_text(json.dumps(bundle))


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory, keys: Path) -> Iterator[Path]:
    made = tiny.artifact(tmp_path_factory.mktemp("signed"))
    signing.sign(made.path, signer(keys))
    yield made.path


@pytest.mark.slow
def test_every_tampering_is_found_and_the_error_names_the_file(
    signed: Path, keys: Path, tmp_path: Path, figures: Figures
) -> None:
    tampered = figures.times(60, 2000)
    for number in range(tampered):
        kind, draw = KINDS[number % len(KINDS)], random.Random(number)
        folder = tmp_path / f"{number}"
        shutil.copytree(signed, folder)
        names: list[str] = []
        if kind in OF_SIGNATURES:
            tamper_signature(folder, kind, draw, keys)
        else:
            names = tamper(folder, kind, draw)
            with pytest.raises(OptkitError) as unsigned:
                optkit.verify(folder)
            assert unsigned.value.exit_code in (5, 7)
        with pytest.raises(OptkitError) as caught:
            optkit.verify(folder, key=keys / "public.pem")
        found = caught.value
        if names == ["manifest.json"] and kind in ("removed", "renamed"):
            assert found.exit_code == 5  # it is no artifact any more
        else:
            assert found.exit_code == 7, found
        for name in names:
            assert name in str(found), (number, kind, str(found))
        shutil.rmtree(folder)
    figures.tell(
        "tampered artifacts", tampered,
        "12 ways: a bit, the length, a file more, less, renamed, hidden, linked, two exchanged; "
        "and of the signature: a bit of it, of its statement, another key, that of another "
        "artifact; the error names the file",
    )  # fmt: skip


def test_a_tampering_that_also_mends_the_manifest_is_found_by_the_signature(
    signed: Path, keys: Path, tmp_path: Path
) -> None:
    """Whoever changes a file can write a manifest that agrees, but no signature."""
    folder = tmp_path / "artifact"
    shutil.copytree(signed, folder)
    good = (folder / "model.sig").read_bytes()
    content = {**tiny.files(), "engine.plan": b"a bad engine"}
    forged = tiny.artifact(tmp_path / "forged", content=content)
    (forged.path / "model.sig").write_bytes(good)
    assert optkit.verify(forged.path)["signature"] is None
    with pytest.raises(IntegrityError) as error:
        optkit.verify(forged.path, key=keys / "public.pem")
    assert "'engine.plan' was changed" in str(error.value)
    assert "'manifest.json' was changed" in str(error.value)


@pytest.mark.slow
def test_an_unchanged_artifact_raises_no_alarm(
    signed: Path, keys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], figures: Figures
) -> None:
    """Whatever a copy may change: times, modes, the name of the folder, a link to it."""
    times = figures.times(12, 200)
    for number in range(times):
        draw = random.Random(number)
        folder = tmp_path / f"copy {number}"
        shutil.copytree(signed, folder, copy_function=draw.choice([shutil.copy, os.link]))
        for file in folder.rglob("*"):
            os.utime(file, (draw.randrange(1 << 31), draw.randrange(1 << 31)))
            if file.is_file() and file.stat().st_nlink == 1:
                file.chmod(draw.choice([0o400, 0o600, 0o644, 0o755]))
        (tmp_path / "link").symlink_to(folder)
        for place in (folder, tmp_path / "link"):
            assert optkit.verify(place, key=keys / "public.pem")["notes"] == []
            assert optkit.verify(place)["files"]
        (tmp_path / "link").unlink()
        shutil.rmtree(folder)
    assert capsys.readouterr() == ("", "")
    figures.tell(
        "no alarm about sound artifacts", times,
        "copies with other times and modes, hard links, another name, behind a link; verified "
        "with and without the key",
    )  # fmt: skip
