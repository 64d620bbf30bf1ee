"""An ensemble for an encoder-decoder: the encoder, then the decoder for the first tokens.

The encoder's keys and values go to the decoder inside the server. They are also outputs of the
ensemble, like the decoder's own cache, because the client sends both to the decoder's model for
each further token: an ensemble cannot repeat a step. An input of the decoder that has the name of
an input of the encoder gets the prefix `decoder_`.
"""

from __future__ import annotations

from dataclasses import replace

from optkit.facts.errors import UsageError
from optkit.ground.data.sequences import ENCODER_MASK, MASK
from optkit.ground.decoder import PAST, PRESENT
from optkit.road.packaging.triton.model_config import (
    EnsembleStep,
    Ensembling,
    ModelConfig,
    ModelTensor,
)

ENCODER, DECODER = "encoder", "decoder"
_LATEST = -1


def ensemble(name: str, encoder: ModelConfig, decoder: ModelConfig) -> ModelConfig:
    """Raises UsageError if the decoder reads nothing of the encoder."""
    theirs = {tensor.name for tensor in encoder.input}
    passed = {tensor.name for tensor in encoder.output}
    sources = {tensor.name: _source(tensor.name, theirs, passed) for tensor in decoder.input}
    if passed.isdisjoint(sources.values()):
        raise UsageError(f"{decoder.name} reads no output of {encoder.name}", where=name)
    inputs = [
        *encoder.input,
        *(
            replace(tensor, name=sources[tensor.name])
            for tensor in decoder.input
            if sources[tensor.name] not in theirs | passed
        ),
    ]
    steps = (
        EnsembleStep(encoder.name, _LATEST, _same(encoder.input), _same(encoder.output)),
        EnsembleStep(decoder.name, _LATEST, sources, _same(decoder.output)),
    )
    return ModelConfig(
        name=name,
        platform="ensemble",
        backend=None,
        max_batch_size=min(encoder.max_batch_size, decoder.max_batch_size),
        # a model of the ensemble reshapes a tensor itself
        input=tuple(replace(tensor, reshape=None) for tensor in inputs),
        output=tuple(replace(t, reshape=None) for t in (*decoder.output, *encoder.output)),
        ensemble_scheduling=Ensembling(steps),
    )


def _source(name: str, theirs: set[str], passed: set[str]) -> str:
    """The ensemble's tensor for an input of the decoder. `theirs`: the encoder's inputs; `passed`:
    its outputs."""
    if (output := name.replace(PAST, PRESENT)) in passed:
        return output
    if name == ENCODER_MASK and MASK in theirs:
        return MASK
    return f"{DECODER}_{name}" if name in theirs else name


def _same(tensors: tuple[ModelTensor, ...]) -> dict[str, str]:
    return {tensor.name: tensor.name for tensor in tensors}
