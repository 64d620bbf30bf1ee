"""The memory of training a model on a target."""

from __future__ import annotations

from optkit.craft.prediction import memory
from optkit.craft.prediction.planned_model import Decoding, OneCallModel
from optkit.facts.documents.plan import Method, PlannedTraining, TrainingMemory
from optkit.ground.devices import Target


def planned(model: OneCallModel | Decoding, target: Target, method: Method) -> PlannedTraining:
    """Itemised, for one sample (one prompt of a decoder), activations kept and recomputed. Of a
    graph every node's output is kept; what recomputing leaves is known of layers alone."""
    capacity = float(target.memory_bytes or 0)

    def held(recompute: memory.Recompute) -> TrainingMemory:
        sizes = memory.training(
            model.parameters,
            method,
            adapters=memory.adapter_parameters(_ends(model)),
            activations=_activations(model, recompute),
            kept=_unquantized(model),
            temporary=_logits(model),
        )
        devices = memory.devices_to_train(sizes, capacity)
        return TrainingMemory(**sizes.rounded().model_dump(), devices=devices)

    return PlannedTraining(
        method=method,
        tokens=model.prompt if isinstance(model, Decoding) else None,
        evidence="predicted",
        recompute_none=held("none"),
        recompute_selective=held("selective"),
        recompute_full=held("full"),
    )


def _ends(model: OneCallModel | Decoding) -> list[tuple[float, float]]:
    """Inputs and outputs of every product with weights."""
    if isinstance(model, Decoding):
        encoder = [] if model.encoder is None else _ends(model.encoder)
        return encoder + memory.decoder_products(model.shape)
    return [
        (c.weight_bytes * 8 / c.bits / c.columns, c.columns)
        for c in model.at(1).values()
        if c.macs and c.weight_bytes and c.columns and c.bits
    ]


def _unquantized(model: OneCallModel | Decoding) -> float:
    """Parameters that QLoRA leaves in 16 bits: those outside the layers of a decoder, and what no
    product of a graph multiplies with."""
    if isinstance(model, Decoding):
        encoder = 0.0 if model.encoder is None else model.encoder.parameters
        kept = 0.0 if model.encoder is None else _unquantized(model.encoder)
        return max(0.0, model.parameters - encoder - model.shape.body) + kept
    return max(0.0, model.parameters - sum(rows * columns for rows, columns in _ends(model)))


def _logits(model: OneCallModel | Decoding) -> float:
    """Those of a graph are among the outputs of its nodes."""
    return memory.decoder_logits(model.shape, model.prompt) if isinstance(model, Decoding) else 0.0


def _activations(model: OneCallModel | Decoding, recompute: memory.Recompute) -> float | None:
    if isinstance(model, Decoding):
        if model.encoder is not None:
            return None  # what its encoder keeps is not known
        kept = memory.decoder_activations(model.shape, model.prompt, 1, recompute)
        return kept + _logits(model)
    if recompute != "none":
        return None
    return sum((c.out_bytes or 0) * 16 / (c.bits or 16) for c in model.at(1).values())
