"""What another program computes in another way than the artifact, for the notes of a package."""

from __future__ import annotations

from types import MappingProxyType

from optkit.facts.precisions import PRECISIONS
from optkit.ground.artifact import Artifact
from optkit.ground.decoder import Decoder
from optkit.road.packaging.decoders.architecture import Architecture

_CACHES = MappingProxyType(
    {
        ("llama.cpp", "int8"): "--cache-type-k q8_0 --cache-type-v q8_0 --flash-attn on",
        ("llama.cpp", "int4"): "--cache-type-k q4_0 --cache-type-v q4_0 --flash-attn on",
        ("mlx-lm", "int8"): "--kv-bits 8",
        ("mlx-lm", "int4"): "--kv-bits 4",
    }
)
"""(program, format of the artifact's cache) → its options for a cache of as many bits."""


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
    decoder = Decoder.of(artifact.manifest.inputs, artifact.manifest.outputs)
    if decoder is not None and decoder.codes is not None:
        notes.append(
            f"the cache in {decoder.codes} is not in this package, because {program} decides how "
            f"it stores a cache when it runs: {_CACHES[program, decoder.codes]}. Its scales are "
            "other ones, so the accuracy of the artifact does not hold for it"
        )
    if architecture.positions < architecture.context:
        notes.append(
            f"the context is limited to {architecture.positions} positions, the sliding window of "
            f"the model: {program}'s network for it has none"
        )
    return tuple(notes)
