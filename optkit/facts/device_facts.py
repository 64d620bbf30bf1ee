"""What is known of a device: figures with their sources, support of precisions, prices, the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from optkit.facts.plain_record import PlainRecord, Positive

Answer = Literal["yes", "limited", "reference", "unverified", "no", "unknown"]


@dataclass(frozen=True)
class Fact:
    """One figure in the unit of its key. `verified`: read in the source, or computed from verified
    figures; `derived`: computed, not read."""

    value: float | int | str | None
    source: str
    verified: bool
    derived: bool = False
    note: str | None = None


@dataclass(frozen=True)
class Support:
    """The answer of the toolchain's support matrix for one precision on one target.

    `limited`: with exceptions; `reference`: it runs, but without optimized kernels; `unverified`:
    no source; `unknown`: optkit compiles nothing for this target. `reason`: for "no" and "unknown"
    a predicate that follows the name of the precision; else a note.
    """

    answer: Answer
    verified: bool
    reason: str | None = None


@dataclass(frozen=True)
class Option:
    """A backend that serves the target. `documented` False: the documentation does not name this
    board, only its compute capability fits; `note` says why."""

    name: str
    documented: bool
    note: str | None = None


@dataclass(frozen=True)
class Price(PlainRecord):
    """US dollars per device and hour, as of a day."""

    usd_per_hour: Positive
    provider: str
    as_of: str
    verified: bool
    source: str


@dataclass(frozen=True)
class CpuInfo:
    """The facts about the CPU that `optkit devices` prints, and on which a CPU build depends.

    `threads`: physical cores that this process may use (affinity, then quota); `clock_mhz`:
    nominal, not turbo; None if the system does not report it.
    """

    name: str
    machine: str
    """The architecture: x86_64, aarch64, …"""
    features: tuple[str, ...]
    logical_cores: int
    physical_cores: int
    threads: int
    memory_bytes: int
    clock_mhz: int | float | None
    kind: str | None
    """The nearest target, such as `cpu-avx2`."""
