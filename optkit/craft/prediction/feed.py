"""What a host must deliver so that the devices never wait: inputs over the link, samples from
storage, time of its cores."""

from __future__ import annotations

from optkit.craft.prediction.planned_model import Decoding, OneCallModel
from optkit.facts.documents.plan import PlannedFeed, PlannedLatency, PlanRow
from optkit.ground.devices import Target

_TOKEN_BYTES = 8  # of an id


def fed(
    row: PlanRow, model: OneCallModel | Decoding, target: Target, stored: float | None
) -> PlanRow:
    """The row with what feeds each of its calls. `stored`: bytes of a sample in storage."""
    latency = tuple(
        call.model_copy(update={"feed": _feed(call, model, target, stored)}) for call in row.latency
    )
    return row.model_copy(update={"latency": latency})


def _feed(
    call: PlannedLatency, model: OneCallModel | Decoding, target: Target, stored: float | None
) -> PlannedFeed:
    rate = call.throughput / (model.new if isinstance(model, Decoding) else 1)
    link = target.facts.get("pcie_gbs")
    return PlannedFeed(
        evidence="predicted",
        samples_per_s=rate,
        to_device_mb_per_s=rate * _input_bytes(model) / 1e6,
        link_mb_per_s=float(link.value) * 1e3 if link and link.value else None,
        storage_mb_per_s=None if stored is None else rate * stored / 1e6,
        core_ms_per_sample=1e3 / rate,
    )


def _input_bytes(model: OneCallModel | Decoding) -> float:
    """Bytes that a sample brings to the device."""
    if isinstance(model, OneCallModel):
        return model.inputs
    encoder = 0.0 if model.encoder is None else model.encoder.inputs
    return encoder + _TOKEN_BYTES * model.prompt
