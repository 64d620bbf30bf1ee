"""A finding: what costs time or accuracy, how much, how that is known, and what would mend it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from optkit.documents.explanation import ExplainFinding, FindingCost, RecipeChange, Rule
from optkit.evidence import Evidence
from optkit.explanation.words import line

Question = Literal["speed", "accuracy"]
Whole = Literal["latency", "layers", "noise"]


@dataclass(frozen=True)
class Cost:
    """What the change would win back.

    `share`, in [0, 1]: `of` the latency, of the time of all layers (which a profiler tells one by
    one, so that it is not the latency), or of the noise at the outputs, whichever is more; findings
    of all kinds are ranked by it. `ms`: milliseconds a call. `db`: of the outputs' SQNR. `points`:
    the drop's part that falls to that noise, a fraction as the drop is. None: unknown, or it does
    not apply.
    """

    share: float
    of: Whole
    evidence: Evidence
    ms: float | None = None
    db: float | None = None
    points: float | None = None


@dataclass(frozen=True)
class Change:
    """What would mend it, in words, and as settings of a recipe (key path → value) where a recipe
    can say it."""

    text: str
    settings: Mapping[tuple[str, ...], Any] = field(default_factory=dict)

    @property
    def lines(self) -> list[str]:
        """The settings as lines of a recipe."""
        return [line(path, value) for path, value in self.settings.items()]

    def described(self) -> RecipeChange:
        """As the document has it."""
        return RecipeChange(text=self.text, recipe=tuple(self.lines))


@dataclass(frozen=True)
class Finding:
    """`what`: one sentence; `why`: the reason behind it; `nodes`: the ONNX nodes, and `modules`:
    the PyTorch modules that it is about. `limit`: no fault, but what this model costs on this
    device at this batch; it stands behind all faults."""

    rule: Rule
    question: Question
    what: str
    why: str
    nodes: tuple[str, ...]
    modules: tuple[str, ...]
    cost: Cost
    change: Change
    limit: bool = False

    def described(self) -> ExplainFinding:
        """As the document has it."""
        return ExplainFinding(
            rule=self.rule, question=self.question, what=self.what, why=self.why, nodes=self.nodes,
            modules=self.modules, cost=FindingCost.from_object(self.cost),
            change=self.change.described(), limit=self.limit,
        )  # fmt: skip
