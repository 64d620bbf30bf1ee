from __future__ import annotations

from dataclasses import dataclass

from optkit.facts.documents.report import PaddedTokens
from optkit.ground.execute.step import Step, StepInput, StepResult


@dataclass(frozen=True, kw_only=True)
class Padding(StepResult):
    """None if the samples have no padding that can be seen."""

    tokens: PaddedTokens | None


@dataclass(frozen=True, kw_only=True)
class CountPadding(Step[Padding]):
    """How many tokens of the samples are padding: by their mask or, without one, by the id that
    repeats at one end of most samples."""

    name = "padding"
    version = 1
    tools = ("numpy",)
    stays = True

    samples: StepInput
