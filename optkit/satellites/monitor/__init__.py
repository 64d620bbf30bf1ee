"""What limits a program: samples of its process tree and the GPUs while it runs, and a diagnosis.

    command ─watch→ samples ─figures→ figures ─rules→ diagnosis

All functions after the samples are pure: the same samples give the same figures and verdict.
"""

from __future__ import annotations

from optkit.satellites.monitor.diagnosis import DiagnosedRule, Diagnosis, diagnose
from optkit.satellites.monitor.sample_figures import Figures, figures
from optkit.satellites.monitor.samples import GpuSample, ProcessSample
from optkit.satellites.monitor.watch import WatchedProcess, watch_command, watch_process

__all__ = [
    "DiagnosedRule",
    "Diagnosis",
    "Figures",
    "GpuSample",
    "ProcessSample",
    "WatchedProcess",
    "diagnose",
    "figures",
    "watch_command",
    "watch_process",
]
