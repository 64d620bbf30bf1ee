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
RATIO = "ratio"  # of two precisions of one model on one device

FILE = Path(__file__).resolve().parent / "efficiencies.yaml"


@dataclass(frozen=True)
class _Number:
    value: float
    spread: float
    prior: float
    prior_spread: float
    prior_source: str


@dataclass(frozen=True)
class _File:
    rows: int
    generations: tuple[str, ...]
    fitted: dict[str, _Number]
    widths: dict[str, float]


@dataclass(frozen=True)
class FittedEfficiencies:
    """`widths`: category → factor k of the interval [t / k, k · t] that held nine of ten
    measurements of GPUs that were left out of the fit. `digest`: of the file, for keys."""

    efficiencies: Efficiencies
    widths: Mapping[str, float]
    rows: int  # measurements it was fitted to
    generations: tuple[str, ...]  # compute capabilities that were among them
    digest: str

    def band(self, category: str, value: float) -> Interval:
        """The interval around a prediction of that category; `all` where no row belongs to it."""
        factor = self.widths.get(category, self.widths[_ALL])
        return Interval(value / factor, value * factor)


@cache
def fitted() -> FittedEfficiencies:
    from ruamel.yaml import YAML

    content = FILE.read_bytes()
    read = from_json(_File, YAML(typ="safe", pure=True).load(content))
    numbers = Efficiencies(**{name: float(number.value) for name, number in read.fitted.items()})
    widths, digest = MappingProxyType(read.widths), sha256(content).hexdigest()
    return FittedEfficiencies(numbers, widths, read.rows, read.generations, digest)
