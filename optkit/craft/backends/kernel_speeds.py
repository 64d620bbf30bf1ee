"""The measured speeds of ONNX Runtime's kernels on a kind of CPU, by which placement decides."""

from __future__ import annotations

from dataclasses import fields
from typing import TypeVar

from optkit.facts.placement import ConvSpeed, KernelSpeeds, OperatorSpeed, ProductSpeeds
from optkit.ground.devices import Target
from optkit.ground.devices import target as target_of
from optkit.ground.devices.machine import kernel_kind

_Speed = TypeVar("_Speed", ConvSpeed, OperatorSpeed, ProductSpeeds)


def kernel_speeds(target: Target) -> KernelSpeeds:
    """Of the kind of CPU that has the integer instructions of this one. Arm and AVX-VNNI without
    AVX-512 were not measured; they are taken as VNNI, whose ratio of integers to floats is theirs
    by their instructions."""
    kind = kernel_kind(str(target.machine), target.features)
    like = target_of(kind)
    measured = set(like.features) <= set(target.features)
    figure = {name: float(fact.value or 0) for name, fact in like.kernels.items()}

    def speed(of: type[_Speed], kind: str) -> _Speed:
        return of(**{key.name: figure[f"{kind}_{key.name}"] for key in fields(of)})

    return KernelSpeeds(
        conv=speed(ConvSpeed, "conv"),
        grouped_conv=speed(ConvSpeed, "grouped_conv"),
        depthwise_conv=speed(ConvSpeed, "depthwise_conv"),
        product=speed(ProductSpeeds, "product"),
        conversion=speed(OperatorSpeed, "conversion"),
        sum=speed(OperatorSpeed, "sum"),
        thin_conv=speed(ConvSpeed, "thin_conv"),
        source=kind if measured else f"{kind}, assumed for this CPU",
    )
