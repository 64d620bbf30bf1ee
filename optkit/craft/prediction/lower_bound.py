"""The least that work can take on a target, whatever the kernels: a roofline that gives away all
that it does not know.

    t ≥ Σ max(F / P, B / W)

F operations at the highest peak P of their type, B bytes from memory at bandwidth W (Williams,
Waterman, Patterson: Roofline, CACM 52(4), 2009). B leaves out what an L2 cache could hold,
activations and constants each; launches cost nothing. `work_time.py` says what is expected
instead.
"""

from __future__ import annotations

from collections.abc import Sequence

from optkit.craft.prediction.work import Work
from optkit.craft.prediction.work_time import highest_peak
from optkit.facts.errors import ToolchainMissing
from optkit.ground.devices import Target


def at_least(works: Sequence[Work], target: Target) -> float:
    """Seconds. Raises ToolchainMissing where a peak or the bandwidth is unknown."""
    if target.bandwidth is None:
        raise ToolchainMissing("no memory bandwidth is known", where=target.name)
    cache, bandwidth = float(target.l2_bytes or 0), target.bandwidth
    total = 0.0
    for work in works:
        compute = 0.0
        if work.operations:
            compute = work.operations / highest_peak(target, work.dtype)
        size = max(0.0, work.moved - cache) + max(0.0, work.weight_bytes - cache) + work.streamed
        total += work.times * max(compute, size / bandwidth)
    return total
