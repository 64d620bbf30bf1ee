"""What was found in a graph that another tool has quantized. Workers import this module, so it has
no pydantic."""

from __future__ import annotations

from dataclasses import dataclass, field

from optkit.facts.plain_record import BESIDE, PlainRecord


@dataclass(frozen=True)
class Quantizer(PlainRecord):
    """The tool that quantized the graph, and by what it was recognized."""

    name: str
    version: str | None
    recognized_by: str


@dataclass(frozen=True)
class OperandFormat(PlainRecord):
    """The codes of an operand. `symmetric`: code zero stands for zero."""

    dtype: str
    granularity: str
    """tensor, channel, block, or dynamic: a scale for each run."""
    symmetric: bool


@dataclass(frozen=True)
class AskedProduct(PlainRecord):
    """A Conv, MatMul or Gemm with a constant weight, as the file has it."""

    node: str
    op: str
    weight: OperandFormat | None
    """Null: it is not quantized."""
    activation: OperandFormat | None
    """Null: it is not quantized."""
    precision: str | None
    """The precision that is meant; null: none of 8 bits or less."""


@dataclass(frozen=True)
class GraphRepair(PlainRecord):
    """A repair that changed the graph."""

    text: str
    exact: bool
    """It changes numbers by float rounding at most."""
    nodes: tuple[str, ...]
    name: str = field(default="", metadata=BESIDE)
