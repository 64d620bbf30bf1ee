"""The efficiencies that `experiments/prediction/fit.py` found, and how far predictions were off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType

from optkit.craft.prediction.work_time import Efficiencies
from optkit.facts.codec import from_json
from optkit.facts.measurement import Interval

_ALL = "all"  # the category of what belongs to no other
UNSEEN = "unseen"  # a kind of model, or a generation of devices, that no measurement covers
_RATIO = "ratio"  # of two precisions of one model on one device

FILE = Path(__file__).resolve().parent / "efficiencies.yaml"


@dataclass(frozen=True)
class _Number:
    value: float
    spread: float
    prior: float
    prior_spread: float
    prior_source: str


@dataclass(frozen=True)
class _Factor:
    value: float
    spread: float


@dataclass(frozen=True)
class _File:
    rows: int
    kernels: int
    generations: tuple[str, ...]
    fitted: dict[str, _Number]
    own: dict[str, _Factor]
    widths: dict[str, float]
    few: dict[str, int]


@dataclass(frozen=True)
class FittedEfficiencies:
    """`widths`: category → factor k of the interval [t / k, k · t] that held nine of ten
    measurements of GPUs and publications that were left out of the fit; `ratio` and the category:
    of gains. `few`: those of them that rest on few groups of measurements, with how many; a group
    is a publication on a GPU. `digest`: of the file, for keys."""

    efficiencies: Efficiencies
    widths: Mapping[str, float]
    few: Mapping[str, int]
    rows: int  # measurements it was fitted to
    generations: tuple[str, ...]  # compute capabilities that were among them
    digest: str

    def band(self, category: str, value: float) -> Interval:
        """The interval around a prediction of that category; `all` where no row belongs to it."""
        factor = self.widths.get(category, self.widths[_ALL])
        return Interval(value / factor, value * factor)

    def ratio_band(self, category: str, value: float) -> Interval:
        """The same of a gain of one precision over another."""
        factor = self.widths.get(f"{_RATIO} {category}", self.widths[_RATIO])
        return Interval(value / factor, value * factor)

    def doubts(self, category: str) -> tuple[str, ...]:
        """Why the intervals of a category are wide; nothing where enough was measured."""
        told = ((category, "time", ""), (f"{_RATIO} {category}", "gain", " in two precisions"))
        return tuple(
            f"wide interval of the {what}: few measured {category}{more} "
            f"({self.few[name]} of a publication and a GPU)"
            for name, what, more in told
            if name in self.few
        )


@cache
def fitted() -> FittedEfficiencies:
    from ruamel.yaml import YAML

    content = FILE.read_bytes()
    read = from_json(_File, YAML(typ="safe", pure=True).load(content))
    own = {name: float(factor.value) for name, factor in read.own.items()}
    numbers = {name: float(number.value) for name, number in read.fitted.items()}
    return FittedEfficiencies(
        Efficiencies(**numbers, own=own),
        MappingProxyType(read.widths),
        MappingProxyType(read.few),
        read.rows,
        read.generations,
        sha256(content).hexdigest(),
    )
