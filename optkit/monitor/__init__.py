"""What a program waits for: its process tree and the GPUs, sampled while it runs, and diagnosed.

    command ─watch→ samples ─figures→ figures ─rules→ diagnosis

Everything behind the samples is pure: the same series gives the same figures and the same verdict.
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
