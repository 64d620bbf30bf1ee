"""How an artifact was built, as an in-toto Statement v1 with SLSA's predicate Provenance v1.

It says what the manifest says: recipe, target, precision, the digests of what went in, and the
versions of the tools. It claims no level of SLSA: nothing proves what the host of the build did.
"""

from __future__ import annotations

from collections.abc import Iterator

from optkit.ground.artifact import MANIFEST, Artifact
from optkit.ground.store import digest_file
from optkit.show.report.contract import REPORT_FILE, report_of

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:optkit:build:v1"
BUILDER = "urn:optkit:builder:v1"

_SAMPLES, _FILES = "optkitSamples", "optkitFiles"
"""Names of digests in a DigestSet: SHA-256 of the samples, as optkit counts them; SHA-256 of the
canonical JSON that maps the files of a folder to their SHA-256."""


def provenance(artifact: Artifact) -> dict[str, object]:
    """The statement. The same files give the same statement. Raises IntegrityError for a damaged
    report."""
    manifest = artifact.manifest
    files = {name: file.sha256 for name, file in manifest.files.items()}
    files[MANIFEST] = digest_file(artifact.path / MANIFEST)
    return {
        "_type": STATEMENT,
        "subject": [
            {"name": name, "digest": {"sha256": sha256}} for name, sha256 in sorted(files.items())
        ],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "recipe": manifest.recipe,
                    "target": manifest.target,
                    "precision": manifest.precision,
                },
                "internalParameters": {"digest": manifest.digest},
                "resolvedDependencies": [*_inputs(artifact)],
            },
            "runDetails": {"builder": {"id": BUILDER, "version": manifest.versions}},
        },
    }


def _inputs(artifact: Artifact, prefix: str = "") -> Iterator[dict[str, object]]:
    """The samples, and the graph that was exported from the model. A slim copy has no report, and
    so it does not know the graph."""
    for role, data in sorted(artifact.manifest.data.items()):
        if isinstance(digest := data.get("digest"), str):
            yield {
                "name": f"{prefix}{role} samples",
                "digest": {_SAMPLES: digest},
                "annotations": {"source": str(data.get("source"))},
            }
    if REPORT_FILE in artifact.manifest.files:
        exported = report_of(artifact).provenance.digests.get("source")
        if exported is not None:
            yield {"name": f"{prefix}exported graph", "digest": {_FILES: exported}}
    for name, part in artifact.parts.items():
        yield from _inputs(part, f"{name} ")
