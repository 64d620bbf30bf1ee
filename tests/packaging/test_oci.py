"""The OCI layout: by the schemas of OCI and of ModelPack, every file in it, and through a registry
and back."""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft4Validator, Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT4

from optkit.facts.documents.package import Package
from optkit.ground.artifact import Artifact
from optkit.road.packaging import formats
from optkit.road.packaging.variants import PackageSubject, Variant
from tests.conftest import MainJob, Optkit
from tests.packaging import tiny

SCHEMAS = Path("/usr/share/gocode/src/github.com/opencontainers/image-spec/schema")
"""Of OCI itself, where Debian's golang-github-opencontainers-image-spec-dev is installed."""
PATH = "org.cncf.model.filepath"
REFERENCE = "org.opencontainers.image.ref.name"


def subject(*artifacts: Artifact) -> PackageSubject:
    return PackageSubject("net", tuple(Variant(each) for each in artifacts))


@pytest.fixture
def pair(tmp_path: Path) -> PackageSubject:
    return subject(
        tiny.artifact(tmp_path / "artifacts"),
        tiny.artifact(tmp_path / "artifacts", "cpu", "fp32", {"model.onnx": tiny.graph()}),
    )


def layout(of: PackageSubject, out: Path) -> Path:
    return Path(formats.package(of, "oci", out).folder)


def read(folder: Path, name: str) -> dict[str, Any]:
    found = json.loads((folder / name).read_text())
    assert isinstance(found, dict)
    return found


def blob(folder: Path, descriptor: dict[str, Any]) -> Path:
    file = folder / "blobs" / descriptor["digest"].replace(":", "/")
    assert file.stat().st_size == descriptor["size"]
    return file


def referred(folder: Path, reference: str) -> dict[str, Any]:
    """The manifest or index that a reference names."""
    entries = read(folder, "index.json")["manifests"]
    [entry] = [each for each in entries if each["annotations"][REFERENCE] == reference]
    found = json.loads(blob(folder, entry).read_text())
    assert isinstance(found, dict)
    return found


def restore(folder: Path, manifest: dict[str, Any], out: Path) -> Artifact:
    """What a program that reads ModelPack does: each layer to its path."""
    for layer in manifest["layers"]:
        file = out / layer["annotations"][PATH]
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(blob(folder, layer), file)
    return Artifact.load(out)


def contents(folder: Path) -> dict[str, bytes]:
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def check_oci(document: object, schema: str) -> None:
    def find(address: str) -> Resource[Any]:
        text = (SCHEMAS / address.rpartition("/")[2]).read_text()
        return Resource.from_contents(json.loads(text), default_specification=DRAFT4)

    rules = json.loads((SCHEMAS / f"{schema}-schema.json").read_text())
    Draft4Validator(rules, registry=Registry(retrieve=find)).validate(document)


def check_config(document: object) -> None:
    reader = pytest.importorskip("modelpack_client.schema", reason="no modelpack-client")
    Draft202012Validator(reader.CONFIG_SCHEMA).validate(document)


def test_the_configuration_is_valid_by_the_schema_of_modelpack(
    pair: PackageSubject, tmp_path: Path
) -> None:
    folder = layout(pair, tmp_path / "out")
    for name in ("l4-int8", "cpu-fp32"):
        manifest = referred(folder, name)
        config = json.loads(blob(folder, manifest["config"]).read_text())
        check_config(config)
        assert config["modelfs"]["diffIds"] == [layer["digest"] for layer in manifest["layers"]]


@pytest.mark.skipif(not SCHEMAS.is_dir(), reason="no schemas of OCI (Debian: see SCHEMAS)")
def test_the_layout_is_valid_by_the_schemas_of_oci(pair: PackageSubject, tmp_path: Path) -> None:
    folder = layout(pair, tmp_path / "out")
    check_oci(read(folder, "oci-layout"), "image-layout")
    check_oci(read(folder, "index.json"), "image-index")
    fleet = referred(folder, "fleet")
    check_oci(fleet, "image-index")
    for descriptor in fleet["manifests"]:
        manifest = json.loads(blob(folder, descriptor).read_text())
        check_oci(manifest, "image-manifest")
        assert manifest["artifactType"] == "application/vnd.cncf.model.manifest.v1+json"
        assert manifest["config"]["mediaType"] == "application/vnd.cncf.model.config.v1+json"


def test_every_blob_is_what_its_name_says_and_all_are_used(
    pair: PackageSubject, tmp_path: Path
) -> None:
    folder = layout(pair, tmp_path / "out")
    blobs = {file.name: file for file in (folder / "blobs" / "sha256").iterdir()}
    for name, file in blobs.items():
        assert hashlib.sha256(file.read_bytes()).hexdigest() == name
    used = [*read(folder, "index.json")["manifests"]]
    for name in ("l4-int8", "cpu-fp32"):
        manifest = referred(folder, name)
        used += [manifest["config"], *manifest["layers"]]
    assert {each["digest"].removeprefix("sha256:") for each in used} == blobs.keys()


def test_the_files_of_an_artifact_are_layers_as_they_are(
    pair: PackageSubject, tmp_path: Path
) -> None:
    folder = layout(pair, tmp_path / "out")
    manifest = referred(folder, "l4-int8")
    kinds = {layer["annotations"][PATH]: layer["mediaType"] for layer in manifest["layers"]}
    start = "application/vnd.cncf.model."
    assert kinds == {
        "baseline/model.onnx": f"{start}weight.v1.raw",
        "empty": f"{start}weight.v1.raw",
        "engine.plan": f"{start}weight.v1.raw",
        "manifest.json": f"{start}weight.config.v1.raw",
        "model.onnx": f"{start}weight.v1.raw",
        "recipe.yaml": f"{start}weight.config.v1.raw",
        "report.json": f"{start}doc.v1.raw",
        "report.md": f"{start}doc.v1.raw",
    }
    original = pair.variants[0].artifact
    back = restore(folder, manifest, tmp_path / "back")
    back.verify()
    assert contents(back.path) == contents(original.path)


def test_the_manifest_says_target_precision_build_and_evidence(
    pair: PackageSubject, tmp_path: Path
) -> None:
    folder = layout(pair, tmp_path / "out")
    manifest = referred(folder, "l4-int8")
    assert manifest["annotations"] == {
        "org.opencontainers.image.title": "net-l4-int8",
        "optkit.target": "l4",
        "optkit.precision": "int8",
        "optkit.digest": pair.variants[0].artifact.digest,
        "optkit.status": "ok",
        "optkit.evidence.engine": "compiled",
        "optkit.evidence.latency": "predicted",
        "optkit.evidence.accuracy": "simulated",
        "optkit.evidence.speedup": "predicted",
        "optkit.evidence.drop": "simulated",
    }
    config = json.loads(blob(folder, manifest["config"]).read_text())["config"]
    assert config == {"format": "tensorrt", "precision": "int8", "quantization": "int8"}
    plain = json.loads(blob(folder, referred(folder, "cpu-fp32")["config"]).read_text())["config"]
    assert plain == {"format": "onnx", "precision": "float32"}
    targets = [each["annotations"]["optkit.target"]
               for each in referred(folder, "fleet")["manifests"]]  # fmt: skip
    assert targets == ["cpu", "l4"]


def test_the_same_artifact_gives_the_same_digests(pair: PackageSubject, tmp_path: Path) -> None:
    def document(of: PackageSubject, out: Path) -> Package:
        return formats.package(of, "oci", out)

    first = document(pair, tmp_path / "first")
    moved = []
    for variant in reversed(pair.variants):
        variant.artifact.path.rename(tmp_path / variant.name)
        moved.append(Artifact.load(tmp_path / variant.name))
    second = document(subject(*moved), tmp_path / "second")
    assert first.digest == second.digest
    assert first.files == second.files


NAMES = st.from_regex(r"[a-z0-9]{1,6}(/[a-z0-9]{1,6})?(\.(json|md|onnx|bin))?", fullmatch=True)


@settings(max_examples=10)
@given(st.dictionaries(NAMES, st.binary(max_size=64), max_size=6))
def test_any_files_come_back(extra: dict[str, bytes]) -> None:
    tops = {name.split("/")[0] for name in extra if "/" in name}
    given_files = {name: text for name, text in extra.items() if name not in tops}
    given_files.pop("manifest.json", None)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        made = tiny.artifact(root / "artifacts", content={**given_files, "model.onnx": b"x"})
        folder = layout(subject(made), root / "out")
        back = restore(folder, referred(folder, "l4-int8"), root / "back")
        back.verify()
        assert contents(back.path) == contents(made.path)


# --- through a registry --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry on loopback: HOST:PORT."""
    for program in ("docker-registry", "skopeo"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} here (Debian: apt-get install {program})")
    folder = tmp_path_factory.mktemp("registry")
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    config = {
        "version": 0.1,
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": address},
    }
    (folder / "config.yml").write_text(json.dumps(config))
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            ["docker-registry", "serve", folder / "config.yml"], stdout=log, stderr=log
        )
    try:
        _await(address, folder / "log")
        yield address
    finally:
        server.terminate()
        server.wait(30)


def _await(address: str, log: Path) -> None:
    host, port = address.split(":")
    for _ in range(300):
        with closing(socket.socket()) as probe:
            if probe.connect_ex((host, int(port))) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(log.read_text())


def skopeo(command: str, *rest: object) -> bytes:
    done = subprocess.run(
        ["skopeo", command, *map(str, rest)], capture_output=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def digest_of(*place: object) -> str:
    return hashlib.sha256(skopeo("inspect", "--raw", *place)).hexdigest()


@pytest.mark.slow
def test_a_fleet_goes_through_a_registry_and_back(
    pair: PackageSubject, registry: str, tmp_path: Path
) -> None:
    folder, back = layout(pair, tmp_path / "out"), tmp_path / "back"
    there = f"docker://{registry}/net:fleet"
    skopeo("copy", "--all", "--preserve-digests", "--dest-tls-verify=false",
           f"oci:{folder}:fleet", there)  # fmt: skip
    assert digest_of("--tls-verify=false", there) == digest_of(f"oci:{folder}:fleet")
    skopeo("copy", "--all", "--preserve-digests", "--src-tls-verify=false", there,
           f"oci:{back}:fleet")  # fmt: skip
    assert referred(back, "fleet") == referred(folder, "fleet")
    for variant, name in zip(pair.variants, ("l4", "cpu"), strict=True):
        [entry] = [each for each in referred(back, "fleet")["manifests"]
                   if each["annotations"]["optkit.target"] == name]  # fmt: skip
        manifest = json.loads(blob(back, entry).read_text())
        pulled = restore(back, manifest, tmp_path / name)
        pulled.verify()
        assert contents(pulled.path) == contents(variant.artifact.path)


@pytest.mark.slow
def test_the_main_job_goes_through_a_registry_to_readers_of_modelpack_and_of_oras(
    main_job: MainJob, registry: str, optkit_here: Optkit, tmp_path: Path
) -> None:
    modelpack = pytest.importorskip("modelpack_client", reason="no modelpack-client")
    oras = pytest.importorskip("oras.client", reason="no oras")
    artifact = main_job.out / MainJob.NAME
    packed = optkit_here("package", artifact, "--format", "oci", "--out", tmp_path, "--json").json
    there = f"{registry}/digits:l4-int8"
    skopeo("copy", "--preserve-digests", "--dest-tls-verify=false",
           f"oci:{packed['folder']}:l4-int8", f"docker://{there}")  # fmt: skip
    modelpack.ModelPackClient(insecure=True).pull(there, tmp_path / "modelpack")
    oras.OrasClient(insecure=True, tls_verify=False).pull(
        target=there, outdir=str(tmp_path / "oras"), allowed_media_type=[]
    )
    for reader in ("modelpack", "oras"):
        Artifact.load(tmp_path / reader).verify()
        assert contents(tmp_path / reader) == contents(artifact)
