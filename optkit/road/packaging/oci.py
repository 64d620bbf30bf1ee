"""OCI: an image layout that a registry takes as it is; each artifact is a ModelPack of the CNCF.

    oci-layout, index.json      the entry: a reference TARGET-PRECISION for each artifact, and
                                `fleet` for an index of all of them
    blobs/sha256/<digest>       manifests, configurations, and every file of the artifacts

Each file of an artifact, also its manifest.json, is a layer of its own, as it is: not in an
archive, not compressed. Its path is in two annotations: ModelPack's, and the one by which oras
names the files that it pulls. Nothing in the layout depends on the time or the machine, so the same
artifact always gives the same digests.

ModelPack 0.0.7 (model-spec: docs/spec.md, docs/config.md), OCI image specification 1.1.1.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from optkit.facts.dtypes import BY_SHORT
from optkit.facts.precisions import precision
from optkit.ground.artifact import MANIFEST, SAMPLES, SIGNATURE, Manifest
from optkit.ground.store import digest_file
from optkit.road.packaging.formats import PackageContent
from optkit.road.packaging.variants import PackageSubject, Variant

FLEET = "fleet"
"""The reference of the index of all artifacts of a fleet."""

_MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
_MODEL_TYPE = "application/vnd.cncf.model.manifest.v1+json"
_CONFIG_TYPE = "application/vnd.cncf.model.config.v1+json"

_WEIGHT, _WEIGHT_CONFIG, _DOC, _DATASET = (
    f"application/vnd.cncf.model.{kind}.v1.raw"
    for kind in ("weight", "weight.config", "doc", "dataset")
)
_TYPES = {
    ".json": _WEIGHT_CONFIG,
    ".yaml": _WEIGHT_CONFIG,
    ".txt": _WEIGHT_CONFIG,
    ".jinja": _WEIGHT_CONFIG,
    ".model": _WEIGHT_CONFIG,
    ".md": _DOC,
    ".html": _DOC,
    ".sig": _DOC,
}
_REPORT = "report.json"

_PATH = "org.cncf.model.filepath"
_TITLE = "org.opencontainers.image.title"
_REFERENCE = "org.opencontainers.image.ref.name"
_CODES = {"float8e4m3fn": "float8_e4m3", "float4e2m1": "float4_e2m1"}
"""ModelPack's words for our dtypes, where they differ. It has none for codes of four bits."""

_PUSH = (
    "push a reference to a registry with its digest: skopeo copy --preserve-digests "
    "oci:FOLDER:REFERENCE docker://REGISTRY/NAME:TAG; for a fleet with --all"
)
_NO_PLATFORM = (
    "the entries of a fleet's index name no platform of OCI, which cannot say a GPU: their "
    "annotation optkit.target says it"
)


@dataclass
class _Blobs:
    """The blobs of a layout: the name in the layout → the file, or the bytes."""

    files: dict[str, Path | bytes] = field(default_factory=dict)

    def put(self, kind: str, content: Path | bytes, **more: object) -> dict[str, object]:
        """Add a blob; return its descriptor, with these fields too."""
        if isinstance(content, bytes):
            digest, size = hashlib.sha256(content).hexdigest(), len(content)
        else:
            digest, size = digest_file(content), content.stat().st_size
        self.files[f"blobs/sha256/{digest}"] = content
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": size, **more}

    def put_json(self, kind: str, document: object, **more: object) -> dict[str, object]:
        return self.put(kind, _json(document), **more)


def files(subject: PackageSubject, scratch: Path) -> PackageContent:
    blobs = _Blobs()
    variants = sorted(subject.variants, key=lambda variant: variant.name)
    manifests = [_model(blobs, subject.name, variant) for variant in variants]
    entries = [
        _named(each, _reference(variant.artifact.manifest))
        for each, variant in zip(manifests, variants, strict=True)
    ]
    if len(manifests) > 1:
        whole = {
            "schemaVersion": 2,
            "mediaType": _INDEX_TYPE,
            "artifactType": _MODEL_TYPE,
            "manifests": manifests,
            "annotations": {_TITLE: subject.name, "optkit.digest": subject.digest},
        }
        entries.append(_named(blobs.put_json(_INDEX_TYPE, whole), FLEET))
    index = {"schemaVersion": 2, "mediaType": _INDEX_TYPE, "manifests": entries}
    layout = {"imageLayoutVersion": "1.0.0"}
    return PackageContent(
        {**blobs.files, "oci-layout": _json(layout), "index.json": _json(index)},
        (_PUSH, _NO_PLATFORM) if len(manifests) > 1 else (_PUSH,),
    )


def _model(blobs: _Blobs, name: str, variant: Variant) -> dict[str, object]:
    """The descriptor of an artifact's ModelPack manifest, which is added to the blobs."""
    artifact = variant.artifact
    signature = [SIGNATURE] if (artifact.path / SIGNATURE).is_file() else []
    layers = [
        blobs.put(_media_type(file), artifact.path / file, annotations={_PATH: file, _TITLE: file})
        for file in sorted((*artifact.manifest.files, MANIFEST, *signature))
    ]
    config = _config(name, artifact.manifest, (str(layer["digest"]) for layer in layers))
    about = {
        "optkit.target": artifact.manifest.target,
        "optkit.precision": artifact.manifest.precision,
        "optkit.digest": artifact.digest,
    }
    figures = {"optkit.status": variant.result.status, **_evidence(artifact.manifest)}
    document = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST_TYPE,
        "artifactType": _MODEL_TYPE,
        "config": blobs.put_json(_CONFIG_TYPE, config),
        "layers": layers,
        "annotations": {_TITLE: artifact.name, **about, **figures},
    }
    # no artifactType: skopeo 1.9 does not know it here, and then cannot keep an index's digest
    return blobs.put_json(_MANIFEST_TYPE, document, annotations=about)


def _config(name: str, manifest: Manifest, layers: Iterable[str]) -> dict[str, object]:
    """The configuration, by ModelPack's schema. `layers`: digests of the layers, which are those
    of their content because none is compressed."""
    engine = manifest.engine
    form = engine.backend if engine is not None and engine.file in manifest.compiled else "onnx"
    scheme = precision(manifest.precision)
    codes = [str(fmt.dtype) for fmt in (scheme.weights, scheme.activations) if fmt is not None]
    dtypes = codes or [BY_SHORT[scheme.carrier].name]
    quantization = {"quantization": scheme.name} if scheme.quantized else {}
    return {
        "descriptor": {
            "name": name,
            "title": manifest.name,
            "revision": manifest.digest,
            "description": f"{name} for {manifest.target} in {manifest.precision}, "
            f"made by optkit; the evidence of its figures is in report.json",
        },
        "modelfs": {"type": "layers", "diffIds": [*layers]},
        "config": {
            "format": form,
            "precision": ",".join(dict.fromkeys(_CODES.get(dtype, dtype) for dtype in dtypes)),
            **quantization,
        },
    }


def _evidence(manifest: Manifest) -> dict[str, str]:
    return {f"optkit.evidence.{figure}": said for figure, said in manifest.evidence.items()}


def _media_type(file: str) -> str:
    """ModelPack's media type for a file of an artifact. What is neither configuration nor
    documentation nor data counts as weights: graphs, engines, tensors."""
    path = Path(file)
    if path.name == SAMPLES:
        return _DATASET
    return _DOC if path.name == _REPORT else _TYPES.get(path.suffix, _WEIGHT)


def _reference(manifest: Manifest) -> str:
    return f"{manifest.target}-{manifest.precision}"


def _named(descriptor: Mapping[str, object], reference: str) -> dict[str, object]:
    """The descriptor with a reference, by which programs choose an entry of the layout."""
    annotations = descriptor.get("annotations", {})
    assert isinstance(annotations, dict)
    return {**descriptor, "annotations": {**annotations, _REFERENCE: reference}}


def _json(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
