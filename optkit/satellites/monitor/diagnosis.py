"""What limits a program: an ordered list of rules over its figures. The first rule that holds is
the verdict, and the output shows the figures behind it.

The GPU thresholds are heuristics without a primary source (a utilisation under 90 % points at the
host), and no rule about a GPU has been tested on a card: `verified` is false for these.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from optkit.satellites.monitor.sample_figures import AT_WORK, Figures

_SIGNS: Mapping[str, Callable[[float, float], bool]] = {">=": operator.ge, "<": operator.lt}


@dataclass(frozen=True)
class Condition:
    """A figure on one side of a threshold. `without_gpu`: the result on a machine without a GPU."""

    figure: str
    sign: Literal[">=", "<"]
    threshold: float
    without_gpu: bool = False

    def holds(self, figures: Mapping[str, float | None]) -> bool | None:
        """Whether the condition is true; None if there is a GPU but its figure is unknown."""
        value = figures[self.figure]
        if value is None:
            return None if figures["gpus"] else self.without_gpu
        return _SIGNS[self.sign](value, self.threshold)


@dataclass(frozen=True)
class DiagnosisRule:
    """A verdict that follows if all conditions in `when` are true. `verified`: tests confirm it on
    real programs."""

    verdict: str
    when: tuple[Condition, ...]
    advice: str
    verified: bool

    def holds(self, figures: Mapping[str, float | None]) -> bool | None:
        """Whether the rule is true; None if it depends on unknown figures."""
        answers = {condition.holds(figures) for condition in self.when}
        return False if False in answers else None if None in answers else True


@dataclass(frozen=True)
class DiagnosedRule:
    """A rule that is true, and the figures that it was evaluated on."""

    rule: DiagnosisRule
    figures: Figures


@dataclass(frozen=True)
class Diagnosis:
    """What limits the program, and warnings. `declined`: verdicts of earlier rules that may also be
    right, because their figures `untold` are unknown."""

    bound: DiagnosedRule
    warnings: tuple[DiagnosedRule, ...]
    declined: tuple[str, ...]
    untold: tuple[str, ...]


def diagnose(figures: Figures) -> Diagnosis:
    """The first of RULES that is true, and all of WARNINGS that are true."""
    bound = next(at for at, rule in enumerate(RULES) if rule.holds(figures))
    declined = [rule for rule in RULES[:bound] if rule.holds(figures) is None]
    untold = [c.figure for rule in declined for c in rule.when if c.holds(figures) is None]
    return Diagnosis(
        DiagnosedRule(RULES[bound], figures),
        tuple(DiagnosedRule(warning, figures) for warning in WARNINGS if warning.holds(figures)),
        tuple(dict.fromkeys(rule.verdict for rule in declined)),
        tuple(dict.fromkeys(untold)),
    )


_SHORT = Condition("seconds", "<", 0.5)
_HUNGRY = (Condition("gpu_util", ">=", AT_WORK), Condition("gpu_util", "<", 0.9))
_FULL = Condition("gpu_util", ">=", 0.9)
_NO_GPU = Condition("gpu_util", "<", AT_WORK, without_gpu=True)

RULES = (
    DiagnosisRule(
        "undetermined", (_SHORT,),
        "it ended before optkit could see what limits it: run it with more work",
        verified=True,
    ),
    # with a GPU at work
    DiagnosisRule(
        "disk-bound", (*_HUNGRY, Condition("disk_wait", ">=", 0.3)),
        "the GPU waits while the host waits for its disk: use faster storage, larger reads, a "
        "cache in memory, or readers that prefetch",
        verified=False,
    ),
    DiagnosisRule(
        "input-bound", (*_HUNGRY, Condition("gpu_pcie", ">=", 0.5)),
        "copies between host and GPU use the whole PCIe link: keep data on the GPU, copy smaller "
        "types, use pinned memory, and overlap copies with kernels",
        verified=False,
    ),
    DiagnosisRule(
        "input-bound",
        (*_HUNGRY, Condition("gpu_gaps", ">=", 0.2), Condition("running", ">=", 0.5)),
        "the GPU is idle at times while the host computes: use more loader processes or cheaper "
        "preprocessing, or preprocess the data once in advance",
        verified=False,
    ),
    DiagnosisRule(
        "launch-bound",
        (Condition("gpu_util", ">=", AT_WORK), Condition("running", ">=", 0.8),
         Condition("cores", "<", 1.5), Condition("gpu_power", "<", 0.5),
         Condition("gpu_memory_traffic", "<", 0.4)),
        "one thread is busy with the launches of kernels that are too short to fill the GPU: use "
        "larger batches, CUDA graphs or fused layers",
        verified=False,
    ),
    DiagnosisRule(
        "memory-bound", (_FULL, Condition("gpu_memory_traffic", ">=", 0.6)),
        "the bandwidth of device memory is the limit: use fewer bits per weight and activation, "
        "fused layers, or larger batches if the weights are read once per batch",
        verified=False,
    ),
    DiagnosisRule(
        "compute-bound", (_FULL, Condition("gpu_power", ">=", 0.7)),
        "arithmetic is the limit: use a precision with a higher peak, or fewer operations",
        verified=False,
    ),
    DiagnosisRule(
        "input-bound", (*_HUNGRY, Condition("running", ">=", 0.5)),
        "the host computes and the GPU has free time: find out what the host does between kernels",
        verified=False,
    ),
    DiagnosisRule(
        "idle", (*_HUNGRY, Condition("asleep", ">=", 0.7)),
        "host and GPU both wait: for requests, the network or a lock",
        verified=False,
    ),
    # without a GPU at work
    DiagnosisRule(
        "disk-bound", (_NO_GPU, Condition("disk_wait", ">=", 0.3)),
        "it waits for its disk: use faster storage, larger reads and writes, fewer flushes, or a "
        "cache in memory",
        verified=True,
    ),
    DiagnosisRule(
        "cpu-bound",
        (_NO_GPU, Condition("running", ">=", 0.7), Condition("cores", "<", 0.5)),
        "it is ready to run but gets no core: other programs use them, or a quota limits it",
        verified=True,
    ),
    DiagnosisRule(
        "cpu-bound",
        (_NO_GPU, Condition("running", ">=", 0.7), Condition("cores_share", ">=", 0.8)),
        "every core that it may use is busy: reduce the work, or give it more cores",
        verified=True,
    ),
    DiagnosisRule(
        "cpu-bound", (_NO_GPU, Condition("running", ">=", 0.7)),
        "it computes, but does not use every core: use more threads or processes",
        verified=True,
    ),
    DiagnosisRule(
        "idle", (_NO_GPU, Condition("asleep", ">=", 0.7)),
        "it sleeps, or it waits for requests, the network, a lock or another process",
        verified=True,
    ),
    DiagnosisRule("undetermined", (), "no rule applies; see the figures", verified=True),
)  # fmt: skip

WARNINGS = (
    DiagnosisRule(
        "out of memory near",
        (Condition("memory", ">=", 0.95),),
        "it uses nearly all the memory that it can get: use smaller batches or fewer processes",
        verified=False,
    ),
    DiagnosisRule(
        "out of GPU memory near",
        (Condition("gpu_memory", ">=", 0.95),),
        "use smaller batches, shorter sequences or fewer bits; memory can also look full because "
        "an allocator keeps freed blocks",
        verified=False,
    ),
    DiagnosisRule(
        "throttled",
        (Condition("gpu_throttled", ">=", 0.2),),
        "heat or the power supply lowers the clock: latencies measured now are too high",
        verified=False,
    ),
)
