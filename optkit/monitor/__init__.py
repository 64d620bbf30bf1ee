"""What limits a program: samples of its process tree and the GPUs while it runs, and a diagnosis.

    command ─watch→ samples ─figures→ figures ─rules→ diagnosis

All functions after the samples are pure: the same samples give the same figures and verdict.
"""

from __future__ import annotations

from optkit.monitor.diagnosis import Condition, Diagnosis, Finding, Rule, diagnose
from optkit.monitor.figures import Figures, figures
from optkit.monitor.samples import GpuSample, Sample
from optkit.monitor.watch import Ended, watch_command, watch_process

__all__ = [
    "Condition",
    "Diagnosis",
    "Ended",
    "Figures",
    "Finding",
    "GpuSample",
    "Rule",
    "Sample",
    "diagnose",
    "figures",
    "watch_command",
    "watch_process",
]
