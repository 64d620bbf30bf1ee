"""Kernels that are timed on a card, and what their times change in its predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from optkit.facts.plain_record import Count, PlainRecord, Positive

CardKind = Literal["gemm", "attention", "conv", "copy"]
CardPrecision = Literal["fp16", "int8", "fp8", "int4"]
_SIZES: Mapping[CardKind, int] = {"gemm": 3, "attention": 4, "conv": 6, "copy": 1}
Library = Literal["torch", "onnxruntime"]


@dataclass(frozen=True)
class CardKernel(PlainRecord):
    """One kernel, by its sizes.

    gemm        rows, inner, columns
    attention   batch, heads, length, size of a head
    conv        batch, side, input channels, output channels, kernel, stride
    copy        bytes
    """

    kind: CardKind
    precision: CardPrecision
    """int4: of weights alone."""
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.sizes) != _SIZES[self.kind] or min(self.sizes) < 1:
            raise ValueError(f"{self.kind} has {_SIZES[self.kind]} sizes of at least 1")

    @property
    def name(self) -> str:
        if self.kind == "gemm":
            return f"gemm {self.precision} {'x'.join(map(str, self.sizes))}"
        if self.kind == "attention":
            return f"attention {'x'.join(map(str, self.sizes))}"
        if self.kind == "copy":
            return f"copy {self.sizes[0]}"
        batch, side, ins, outs, kernel, stride = self.sizes
        return f"conv {batch}x{ins}x{side} to {outs}, {kernel}x{kernel}/{stride}"


@dataclass(frozen=True)
class KernelTime(PlainRecord):
    kernel: CardKernel
    ms: Positive


@dataclass(frozen=True)
class KernelFailure(PlainRecord):
    """A kernel that has no time."""

    kernel: CardKernel
    reason: str


@dataclass(frozen=True)
class CardFactors(PlainRecord):
    """Of one kind of work in one precision, measured time over that of the performance model."""

    launch: Positive
    """Of the launch."""
    body: Positive
    """Of the rest."""
    width: Positive
    """Nine of ten kernels lie within this factor of the corrected prediction."""
    kernels: Count


@dataclass(frozen=True)
class CardCorrection:
    """What the kernels of a card change in its predictions. `digest`: of the file with their times;
    `told`: what they are, in words; `groups`: kind and precision → factors."""

    digest: str
    told: str
    groups: Mapping[str, CardFactors]
