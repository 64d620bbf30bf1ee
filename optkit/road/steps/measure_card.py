from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optkit.facts.card_facts import KernelFailure, KernelTime, Library
from optkit.ground.execute.step import Step, StepResult


@dataclass(frozen=True, kw_only=True)
class CardTimes(StepResult):
    """The device as its driver reports it, and the times of its kernels. `marks`: the reasons why
    they may not be reliable."""

    target: str
    device: str
    compute_capability: str
    memory_bytes: int | None
    driver: str | None
    versions: Mapping[str, str]
    seconds: float
    marks: tuple[str, ...]
    kernels: tuple[KernelTime, ...]
    failed: tuple[KernelFailure, ...]


@dataclass(frozen=True, kw_only=True)
class MeasureCard(Step[CardTimes]):
    """Times of kernels on the first GPU that a process sees. `seconds`: after which no further
    kernel starts; `at`: the time of the measurement, so that no earlier result is used."""

    name = "measure_card"
    version = 1

    library: Library
    seconds: float
    at: str
