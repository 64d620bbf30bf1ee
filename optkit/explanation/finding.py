"""A finding: what costs time or accuracy, how much, with which evidence, and which change helps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from optkit.documents.explanation import ExplainFinding, FindingCost, RecipeChange, Rule
from optkit.evidence import Evidence
from optkit.explanation.words import line

Question = Literal["speed", "accuracy"]
Whole = Literal["latency", "layers", "noise"]


@dataclass(frozen=True)
class Cost:
    """What the change would gain.

    `share`: in [0, 1], of the latency, of the time of all layers (their sum is larger than the
    latency if a profiler times them one by one), or of the noise at the outputs, as `of` says;
    findings of all kinds are ranked by it. `ms`: milliseconds per call. `db`: SQNR of the outputs.
    `points`: this share of the drop, a fraction like the drop. None: unknown, or not applicable.
    """

    share: float
    of: Whole
    evidence: Evidence
    ms: float | None = None
    db: float | None = None
    points: float | None = None


@dataclass(frozen=True)
class Change:
    """The change that would help: in words, and, if a recipe can express it, as settings (key path
    → value)."""

    text: str
    settings: Mapping[tuple[str, ...], object] = field(default_factory=dict)

    @property
    def lines(self) -> list[str]:
        """The settings as lines of a recipe."""
        return [line(path, value) for path, value in self.settings.items()]

    def described(self) -> RecipeChange:
        """The change in the form of the document."""
        return RecipeChange(text=self.text, recipe=tuple(self.lines))


@dataclass(frozen=True)
class Finding:
    """`what`: one sentence; `why`: the reason; `nodes` and `modules`: the ONNX nodes and PyTorch
    modules that it concerns. `limit`: not a fault, but a cost of this model on this device at this
    batch; limits are listed after all faults. `always`: it is told whatever it costs."""

    rule: Rule
    question: Question
    what: str
    why: str
    nodes: tuple[str, ...]
    modules: tuple[str, ...]
    cost: Cost
    change: Change
    limit: bool = False
    always: bool = False

    def described(self) -> ExplainFinding:
        """The finding in the form of the document."""
        return ExplainFinding(
            rule=self.rule, question=self.question, what=self.what, why=self.why, nodes=self.nodes,
            modules=self.modules, cost=FindingCost.from_object(self.cost),
            change=self.change.described(), limit=self.limit,
        )  # fmt: skip
