"""What a program is bound by: a list of rules over its figures, each told with what led to it.

The GPU thresholds are heuristics (utilisation under 90 % points at the host; none has a primary
source), and no rule about a GPU was tried on a card yet: `verified` says so.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from optkit.monitor.figures import AT_WORK, UNITS, Figures

_SIGNS: Mapping[str, Callable[[float, float], bool]] = {">=": operator.ge, "<": operator.lt}


@dataclass(frozen=True)
class Condition:
    """A figure on one side of a threshold. `without_gpu`: whether it holds where no GPU is."""

    figure: str
    sign: Literal[">=", "<"]
    threshold: float
    without_gpu: bool = False

    def holds(self, figures: Mapping[str, float | None]) -> bool | None:
        """None: nothing tells the figure of the GPU that is there."""
        value = figures[self.figure]
        if value is None:
            return None if figures["gpus"] else self.without_gpu
        return _SIGNS[self.sign](value, self.threshold)


@dataclass(frozen=True)
class Rule:
    """All of `when` make the verdict. `verified`: seen to be right on real programs."""

    verdict: str
    when: tuple[Condition, ...]
    advice: str
    verified: bool

    def holds(self, figures: Mapping[str, float | None]) -> bool | None:
        """None: it depends on figures that nothing tells."""
        answers = {condition.holds(figures) for condition in self.when}
        return False if False in answers else None if None in answers else True


@dataclass(frozen=True)
class Finding:
    """A rule that holds, and the figures that its conditions looked at."""

    rule: Rule
    figures: Figures

    def to_json(self) -> dict[str, Any]:
        because = [
            {
                "figure": condition.figure,
                "value": self.figures[condition.figure],
                "unit": UNITS[condition.figure],
                "sign": condition.sign,
                "threshold": condition.threshold,
            }
            for condition in self.rule.when
        ]
        return {
            "verdict": self.rule.verdict,
            "because": because,
            "advice": self.rule.advice,
            "verified": self.rule.verified,
        }


@dataclass(frozen=True)
class Diagnosis:
    """What bounds the program, and what else it should be warned of. `declined`: the verdicts that
    come before it and may be right, of rules that lack the figures `untold`."""

    bound: Finding
    warnings: tuple[Finding, ...]
    declined: tuple[str, ...]
    untold: tuple[str, ...]


def diagnose(figures: Figures) -> Diagnosis:
    """The first of RULES that holds, and every one of WARNINGS that does."""
    bound = next(at for at, rule in enumerate(RULES) if rule.holds(figures))
    declined = [rule for rule in RULES[:bound] if rule.holds(figures) is None]
    untold = [c.figure for rule in declined for c in rule.when if c.holds(figures) is None]
    return Diagnosis(
        Finding(RULES[bound], figures),
        tuple(Finding(warning, figures) for warning in WARNINGS if warning.holds(figures)),
        tuple(dict.fromkeys(rule.verdict for rule in declined)),
        tuple(dict.fromkeys(untold)),
    )


_SHORT = Condition("seconds", "<", 0.5)
_HUNGRY = (Condition("gpu_util", ">=", AT_WORK), Condition("gpu_util", "<", 0.9))
_FULL = Condition("gpu_util", ">=", 0.9)
_NO_GPU = Condition("gpu_util", "<", AT_WORK, without_gpu=True)

RULES = (
    Rule(
        "undetermined", (_SHORT,),
        "it ended too soon to tell: give it more work",
        verified=True,
    ),
    # with a GPU at work
    Rule(
        "disk-bound", (*_HUNGRY, Condition("disk_wait", ">=", 0.3)),
        "the GPU waits while the host waits for its disk: faster storage, larger reads, a cache in "
        "memory, or readers that work ahead",
        verified=False,
    ),
    Rule(
        "input-bound", (*_HUNGRY, Condition("gpu_pcie", ">=", 0.5)),
        "copies between host and GPU fill the link: keep data on the GPU, copy smaller types, pin "
        "memory and overlap copies with work",
        verified=False,
    ),
    Rule(
        "input-bound",
        (*_HUNGRY, Condition("gpu_gaps", ">=", 0.2), Condition("running", ">=", 0.5)),
        "the GPU has gaps in its work while the host computes: more loader processes, cheaper "
        "preprocessing, or do it once beforehand",
        verified=False,
    ),
    Rule(
        "launch-bound",
        (Condition("gpu_util", ">=", AT_WORK), Condition("running", ">=", 0.8),
         Condition("cores", "<", 1.5), Condition("gpu_power", "<", 0.5),
         Condition("gpu_memory_traffic", "<", 0.4)),
        "one thread is busy launching kernels too short to fill the GPU: larger batches, CUDA "
        "graphs, fused layers",
        verified=False,
    ),
    Rule(
        "memory-bound", (_FULL, Condition("gpu_memory_traffic", ">=", 0.6)),
        "device memory is the limit: fewer bits per weight and activation, fused layers, larger "
        "batches where weights are read once per batch",
        verified=False,
    ),
    Rule(
        "compute-bound", (_FULL, Condition("gpu_power", ">=", 0.7)),
        "arithmetic is the limit: a precision with a higher peak, or fewer operations",
        verified=False,
    ),
    Rule(
        "input-bound", (*_HUNGRY, Condition("running", ">=", 0.5)),
        "the host computes and the GPU could do more: look at what runs between the kernels",
        verified=False,
    ),
    Rule(
        "idle", (*_HUNGRY, Condition("asleep", ">=", 0.7)),
        "host and GPU both wait, for requests, the network or a lock",
        verified=False,
    ),
    # without
    Rule(
        "disk-bound", (_NO_GPU, Condition("disk_wait", ">=", 0.3)),
        "it waits for its disk: faster storage, larger reads and writes, fewer flushes, a cache in "
        "memory",
        verified=True,
    ),
    Rule(
        "cpu-bound",
        (_NO_GPU, Condition("running", ">=", 0.7), Condition("cores", "<", 0.5)),
        "it is ready to run and gets no core: other programs have them, or a quota holds it back",
        verified=True,
    ),
    Rule(
        "cpu-bound",
        (_NO_GPU, Condition("running", ">=", 0.7), Condition("cores_share", ">=", 0.8)),
        "every core it may use is busy: less work, or more cores",
        verified=True,
    ),
    Rule(
        "cpu-bound", (_NO_GPU, Condition("running", ">=", 0.7)),
        "it computes, and does not use every core: more threads or processes",
        verified=True,
    ),
    Rule(
        "idle", (_NO_GPU, Condition("asleep", ">=", 0.7)),
        "it sleeps, or waits for requests, the network, a lock or another process",
        verified=True,
    ),
    Rule("undetermined", (), "no rule fits; the figures stand beside it", verified=True),
)  # fmt: skip

WARNINGS = (
    Rule(
        "out of memory near", (Condition("memory", ">=", 0.95),),
        "it holds nearly all the memory it can get: smaller batches, fewer processes",
        verified=False,
    ),
    Rule(
        "out of GPU memory near", (Condition("gpu_memory", ">=", 0.95),),
        "smaller batches or shorter sequences, fewer bits; an allocator that keeps what was freed "
        "may only look full",
        verified=False,
    ),
    Rule(
        "throttled", (Condition("gpu_throttled", ">=", 0.2),),
        "heat or the supply lowers the clock: what is timed now is slower than it could be",
        verified=False,
    ),
)  # fmt: skip
