"""Bill of materials and provenance: valid by the owners' own libraries, signed, with the figures of
the artifact and their evidence."""

from __future__ import annotations

import base64
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from optkit.facts.documents.report import Report
from optkit.facts.documents.result import Result
from optkit.facts.errors import IntegrityError, UsageError
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import GateRow, Interval
from optkit.ground.artifact import Artifact
from optkit.ground.store import digest_file
from optkit.road.packaging.bom import metrics
from optkit.verbs import api
from tests.documents.test_documents import WRITTEN
from tests.packaging import tiny

REPORT = next(file for file in WRITTEN if file.stem == "report-l4")


@pytest.fixture
def made(tmp_path: Path) -> Artifact:
    return tiny.artifact(tmp_path / "artifacts", content={**tiny.files(), "report.json": REPORT})


@pytest.fixture
def private(tmp_path: Path) -> Path:
    ec = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ec")
    from tests.packaging.test_signing import pem

    (tmp_path / "private.pem").write_bytes(pem(ec.generate_private_key(ec.SECP384R1())))
    return tmp_path / "private.pem"


def written(artifact: Artifact, out: Path, end: str, **options: Any) -> Any:
    api.attest(artifact.path, out=out, **options)
    return json.loads((out / f"{artifact.name}{end}").read_text())


def check_bom(document: object) -> None:
    json_validation = pytest.importorskip("cyclonedx.validation.json", reason="no cyclonedx")
    from cyclonedx.schema import SchemaVersion

    validator = json_validation.JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(json.dumps(document)) is None


def test_the_bill_of_materials_is_valid_by_the_schema_of_cyclonedx(
    made: Artifact, tmp_path: Path
) -> None:
    document = written(made, tmp_path / "out", ".cdx.json")
    check_bom(document)
    with pytest.raises(AssertionError):  # the check itself
        check_bom({**document, "evidence": "measured"})
    files = {row["name"]: row["hashes"] for row in document["components"] if row["type"] == "file"}
    assert files.keys() == {*made.manifest.files, "manifest.json"}
    for name, [row] in files.items():
        assert row == {"alg": "SHA-256", "content": digest_file(made.path / name)}


def test_the_figures_have_intervals_and_evidence(made: Artifact, tmp_path: Path) -> None:
    model = written(made, tmp_path / "out", ".cdx.json")["metadata"]["component"]
    assert model["type"] == "machine-learning-model"
    rows = {
        row["type"]: row for row in model["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]
    }
    result = Result.from_json(made.result)
    assert result.accuracy is not None and result.drop is not None
    assert float(rows["top1"]["value"]) == result.accuracy.value
    interval = rows["top1"]["confidenceInterval"]
    assert (float(interval["lowerBound"]), float(interval["upperBound"])) == result.accuracy.ci95
    assert float(rows["drop of top1 against fp16"]["value"]) == result.drop.value
    about = {row["name"]: row["value"] for row in model["modelCard"]["properties"]}
    assert about["optkit:evidence:top1"] == "simulated"
    assert about["optkit:evidence:latency_p50_ms"] == "predicted"
    assert "nine of ten" in about["optkit:interval:latency_p50_ms"]
    for name in rows:
        assert f"optkit:evidence:{name}" in about


def test_the_slices_of_gates_and_other_batch_sizes_are_metrics() -> None:
    report = Report.from_json(json.loads(REPORT.read_text()))
    reason = "worst of 10 slices: '3', 87 samples, 1.00 points exceeds the limit"
    gate = GateRow(
        gate="max_slice_drop", limit=0.01, value=0.02, ci95=Interval(0.01, 0.03),
        evidence=Evidence.SIMULATED, outcome="fail", reason=reason,
    )  # fmt: skip
    judged = report.model_copy(update={"gates": (*report.gates, gate)})
    found = [*metrics(report.result, judged)]
    [row] = [metric for metric in found if metric.name == "max_slice_drop"]
    assert row.to_json() == {
        "type": "max_slice_drop", "value": "0.02", "slice": "worst of 10 slices: '3'",
        "confidenceInterval": {"lowerBound": "0.01", "upperBound": "0.03"},
    }  # fmt: skip
    batches = {metric.part for metric in found if metric.name == "latency_p50_ms"}
    assert batches == {f"batch {row.batch}" for row in report.latencies.engine}


def test_the_provenance_is_a_statement_of_in_toto(made: Artifact, tmp_path: Path) -> None:
    pb2 = pytest.importorskip("in_toto_attestation.v1.statement_pb2", reason="no in-toto")
    from google.protobuf import json_format
    from in_toto_attestation.v1.statement import Statement

    statement = written(made, tmp_path / "out", ".provenance.json")
    Statement.copy_from_pb(json_format.ParseDict(statement, pb2.Statement())).validate()
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    subjects = {row["name"]: row["digest"]["sha256"] for row in statement["subject"]}
    assert subjects == {
        name: digest_file(made.path / name) for name in (*made.manifest.files, "manifest.json")
    }
    build, run = (statement["predicate"][key] for key in ("buildDefinition", "runDetails"))
    # the fields that SLSA requires
    assert build["buildType"] and run["builder"]["id"]
    assert build["externalParameters"] == {
        "recipe": made.manifest.recipe, "target": "l4", "precision": "int8"
    }  # fmt: skip
    inputs = {row["name"]: row["digest"] for row in build["resolvedDependencies"]}
    assert inputs["exported graph"]["optkitFiles"]
    assert run["builder"]["version"] == made.manifest.versions


def test_data_is_a_dependency_by_its_digest(made: Artifact, tmp_path: Path) -> None:
    from optkit.road.packaging.bom import bill_of_materials
    from optkit.road.packaging.provenance import provenance

    data = {"evaluation": {"source": "given:task.py", "args": {}, "samples": 8, "digest": "ab"}}
    artifact = Artifact(made.path, replace(made.manifest, data=data))
    text = json.dumps(provenance(artifact)) + json.dumps(bill_of_materials(artifact))
    assert '{"optkitSamples": "ab"}' in text and '"value": "given:task.py"' in text
    check_bom(bill_of_materials(artifact))


def test_a_signed_provenance_is_verified_by_the_rules_of_dsse(
    made: Artifact, private: Path, tmp_path: Path
) -> None:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    envelope = written(made, tmp_path / "out", ".provenance.dsse.json", key=private)
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    payload = base64.b64decode(envelope["payload"])
    plain = written(made, tmp_path / "plain", ".provenance.json")
    assert json.loads(payload) == plain
    kind = envelope["payloadType"].encode()
    # the pre-authentication encoding, DSSE 1.0.2, protocol.md
    signed = b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)
    key = serialization.load_pem_private_key(private.read_bytes(), None).public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    [signature] = envelope["signatures"]
    key.verify(base64.b64decode(signature["sig"]), signed, ec.ECDSA(hashes.SHA384()))
    with pytest.raises(InvalidSignature):
        key.verify(base64.b64decode(signature["sig"]), signed + b" ", ec.ECDSA(hashes.SHA384()))


def test_the_same_artifact_gives_the_same_files(made: Artifact, tmp_path: Path) -> None:
    again = Artifact.load(shutil.copytree(made.path, tmp_path / "copy" / made.name))
    for end in (".cdx.json", ".provenance.json"):
        assert written(made, tmp_path / "a", end) == written(again, tmp_path / "b", end)


def test_a_slim_copy_has_a_bill_of_materials_too(made: Artifact, tmp_path: Path) -> None:
    folder = Path(api.package(made.path, format="slim", out=tmp_path / "packages")["folder"])
    slim = Artifact.load(folder / made.name)
    check_bom(written(slim, tmp_path / "out", ".cdx.json"))
    assert written(slim, tmp_path / "out", ".provenance.json")["subject"]


def test_nothing_is_written_for_a_damaged_artifact_or_into_it(
    made: Artifact, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="cannot be in it"):
        api.attest(made.path, out=made.path / "attestations")
    made.verify()
    (made.path / "report.md").write_bytes(b"changed")
    with pytest.raises(IntegrityError, match=r"report\.md was changed"):
        api.attest(made.path, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["public", "rsa", "text"])
def test_keys_that_cannot_sign_are_refused(
    kind: str, made: Artifact, private: Path, tmp_path: Path
) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    from tests.packaging.test_signing import pem

    key = serialization.load_pem_private_key(private.read_bytes(), None)
    content = {
        "public": key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
        "rsa": pem(rsa.generate_private_key(65537, 2048)),
        "text": b"key",
    }[kind]
    (tmp_path / "wrong.pem").write_bytes(content)
    with pytest.raises(UsageError):
        api.attest(made.path, out=tmp_path / "out", key=tmp_path / "wrong.pem")
    assert not (tmp_path / "out").exists()
