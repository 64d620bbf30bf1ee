"""What another program computes in another way than the artifact, for the notes of a package."""

from __future__ import annotations

from optkit.artifact import Artifact
from optkit.packaging.decoders.architecture import Architecture
from optkit.precisions import PRECISIONS


def caveats(artifact: Artifact, architecture: Architecture, program: str) -> tuple[str, ...]:
    """`program`: whose networks compute activations as floats, and have no sliding window."""
    notes = []
    precision = PRECISIONS.get(artifact.manifest.precision)
    if precision is not None and precision.weights is not None and not precision.weights.is_integer:
        notes.append(f"weights in {precision} are stored as floats, the dequantized numbers")
    if precision is not None and precision.activations is not None:
        notes.append(
            "activations are not quantized as in the artifact: its accuracy does not hold for this "
            "package"
        )
    if architecture.positions < architecture.context:
        notes.append(
            f"the context is limited to {architecture.positions} positions, the sliding window of "
            f"the model: {program}'s network for it has none"
        )
    return tuple(notes)
