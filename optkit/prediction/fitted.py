"""The efficiencies that `experiments/prediction/fit.py` found, and how far predictions were off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType

from optkit.measurement import Interval
from optkit.prediction.latency import Efficiencies

UNSEEN = "unseen"  # a kind of model, or a generation of devices, that no measurement covers
RATIO = "ratio"  # of two precisions of one model on one device

FILE = Path(__file__).resolve().parent / "efficiencies.yaml"


@dataclass(frozen=True)
class Fitted:
    """`widths`: category → factor k of the interval [t / k, k · t] that held nine of ten
    measurements of GPUs that were left out of the fit. `digest`: of the file, for keys."""

    efficiencies: Efficiencies
    widths: Mapping[str, float]
    rows: int  # measurements it was fitted to
    generations: tuple[str, ...]  # compute capabilities that were among them
    digest: str

    def band(self, category: str, value: float) -> Interval:
        """The interval around a prediction of that category; `all` where no row belongs to it."""
        factor = self.widths.get(category, self.widths["all"])
        return Interval(value / factor, value * factor)


@cache
def fitted() -> Fitted:
    from ruamel.yaml import YAML

    content = FILE.read_bytes()
    data = YAML(typ="safe", pure=True).load(content)
    numbers = {name: float(found["value"]) for name, found in data["fitted"].items()}
    return Fitted(Efficiencies(**numbers), MappingProxyType(dict(data["widths"])), data["rows"],
                  tuple(data["generations"]), sha256(content).hexdigest())  # fmt: skip
