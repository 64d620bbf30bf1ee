"""How the weights of each expert of a mixture are rounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optkit.craft.quantization.numerics.scales import Search
from optkit.craft.quantization.rounding import solver_inputs
from optkit.craft.quantization.rounding.gptq import gptq
from optkit.craft.quantization.rounding.hqq import hqq
from optkit.craft.quantization.rounding.rtn import WeightCodes, round_to_nearest
from optkit.facts.precisions import NumberFormat
from optkit.ground.statistics import Moments, Statistics, of_expert

if TYPE_CHECKING:
    from optkit.ground.recipe import Quantization

_SWEEPS = 2  # as of other products

FEWEST_TOKENS = 32
"""With fewer tokens of an expert its weights are rounded without data: GPTQ would fit these tokens
and lose others."""


@dataclass(frozen=True)
class ExpertRounding:
    """GPTQ for an expert whose tokens are known, the rounding without data for others."""

    settings: Quantization
    statistics: Statistics | None = None
    carrier: np.dtype | type = np.float32

    def known(self, rows: str, experts: int) -> int:
        """Of how many experts GPTQ knows the tokens. `rows`: the value that they multiply."""
        return sum(self._moments(rows, each) is not None for each in range(experts))

    def tokens(self, rows: str, experts: int) -> tuple[int, ...]:
        """How many calibration tokens each expert got; empty if that is not known."""
        values = {} if self.statistics is None else self.statistics.values
        seen = [values.get(of_expert(rows, each)) for each in range(experts)]
        if not any(seen):
            return ()
        moments = [None if each is None else each.moments for each in seen]
        return tuple(0 if each is None else each.count for each in moments)

    def codes(self, rows: str, expert: int, weight: np.ndarray, fmt: NumberFormat) -> WeightCodes:
        """The codes of the weight [K, N] of an expert. Raises InputRefused if it is not finite."""
        moments = self._moments(rows, expert)
        if moments is not None:
            damping = solver_inputs.damping(len(weight), moments.count)
            return gptq(
                [weight], moments.matrix(), fmt, self.carrier, damping=damping, sweeps=_SWEEPS
            )[0]
        if self.settings.weights == "hqq":
            return hqq(weight, fmt, self.carrier)
        search: Search = "absmax" if self.settings.weights == "rtn" else "mse"
        return round_to_nearest(weight, fmt, self.carrier, search=search)

    def _moments(self, rows: str, expert: int) -> Moments | None:
        if self.statistics is None or not self.settings.learns:
            return None
        value = self.statistics.values.get(of_expert(rows, expert))
        moments = None if value is None else value.moments
        return None if moments is None or moments.count < FEWEST_TOKENS else moments
