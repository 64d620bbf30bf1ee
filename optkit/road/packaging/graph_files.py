"""The files of an artifact's graph."""

from __future__ import annotations

from pathlib import Path

from optkit.facts.errors import IntegrityError
from optkit.ground import graph
from optkit.ground.artifact import MODEL, Artifact


def graph_files(artifact: Artifact) -> dict[str, Path]:
    """The graph first, then its data files, by their names in the artifact. Raises IntegrityError
    if the manifest does not list one, InputRefused."""
    locations = graph.data_locations(artifact.model_path)
    if missing := [name for name in locations if name not in artifact.manifest.files]:
        raise IntegrityError(
            f"the manifest does not list the data file {missing[0]}", where=str(artifact.model_path)
        )
    return {name: artifact.path / name for name in (MODEL, *locations)}
