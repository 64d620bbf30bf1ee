"""`optkit monitor`: run a command, or observe a process, and say what limits it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from optkit.facts.errors import UsageError
from optkit.ground.progress.terminal import stderr
from optkit.satellites import monitor as watching
from optkit.satellites.monitor import (
    DiagnosedRule,
    Diagnosis,
    Figures,
    GpuSample,
    ProcessSample,
    WatchedProcess,
)
from optkit.satellites.monitor.sample_figures import UNITS
from optkit.verbs.cli import command_output
from optkit.verbs.cli.command_output import Output

if TYPE_CHECKING:
    from optkit.facts.documents.observation import Observation, ObservedLimit

_LINE_SECONDS = 10  # between two lines if stderr is not a terminal


def monitor(
    command: tuple[str, ...],
    pid: int | None,
    seconds: float | None,
    interval: float,
    output: Output,
) -> int:
    if bool(command) == (pid is not None):
        raise UsageError(
            "give either COMMAND or --pid",
            where="command line",
            hint="for example `optkit monitor -- python train.py`",
        )
    if seconds is not None and pid is None:
        raise UsageError(
            "--seconds needs --pid: a command is observed until it ends", where="command line"
        )
    ears = _Ears(quiet=output.quiet)
    try:
        if pid is None:
            ended = watching.watch_command(
                command, interval=interval, heard=ears, quiet_stdout=output.json
            )
        else:
            ended = watching.watch_process(pid, interval=interval, heard=ears, seconds=seconds)
    finally:
        ears.close()
    figures = watching.figures(ended.samples, ended.cores)
    diagnosis = watching.diagnose(figures)
    if output.json:
        command_output.put_json(_document(command, ended, figures, diagnosis))
    else:
        for line in _lines(ended, figures, diagnosis):
            stderr().print(line, markup=False)
    return ended.exit_code or 0


class _Ears:
    """Shows samples: a live line on a terminal, else a plain line every ten seconds."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._console = stderr()
        self._live: Any = None
        self._seconds = self._printed = 0.0

    def __call__(self, sample: ProcessSample) -> None:
        self._seconds += sample.seconds
        if self._quiet:
            return
        text = f"  {self._seconds:.0f} s: {_line(sample)}"
        if self._console.is_terminal:
            self._draw(text)
        elif self._seconds - self._printed >= _LINE_SECONDS:
            self._printed = self._seconds
            self._console.print(text, markup=False)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()

    def _draw(self, text: str) -> None:
        from rich.live import Live
        from rich.text import Text

        if self._live is None:
            # without a thread: it would receive the signals for the command
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)


def _line(sample: ProcessSample) -> str:
    parts = [
        f"{sample.cores:.1f} cores",
        f"disk wait {sample.disk_wait:.0%}",
        f"read {_rate(sample.read_bytes)}",
        f"written {_rate(sample.written_bytes)}",
        f"{sample.memory_bytes / 2**30:.1f} GiB",
    ]
    return "  ".join([*parts, *(_gpu_line(gpu) for gpu in sample.gpus)])


def _gpu_line(gpu: GpuSample) -> str:
    parts = [f"GPU {gpu.index}"]
    if gpu.util is not None:
        parts.append(_percent(gpu.util))
    if gpu.memory_bytes is not None:
        parts.append(f"{gpu.memory_bytes / 2**30:.1f} GiB")
    if gpu.pcie_bytes is not None:
        parts.append(f"PCIe {_rate(gpu.pcie_bytes)}")
    if gpu.power_watts is not None:
        parts.append(f"{gpu.power_watts:.0f} W")
    if gpu.clock_mhz is not None:
        parts.append(f"{gpu.clock_mhz:.0f} MHz")
    return " ".join([*parts, *(gpu.throttled or ())])


def _lines(ended: WatchedProcess, figures: Figures, diagnosis: Diagnosis) -> list[str]:
    found = diagnosis.bound
    lines = [f"{found.rule.verdict}: {found.rule.advice}", *_because(found)]
    for warning in diagnosis.warnings:
        lines += [f"warning: {warning.rule.verdict}: {warning.rule.advice}", *_because(warning)]
    shown = [
        f"{name} {_value(name, value)}" for name, value in figures.items() if value is not None
    ]
    lines.append(f"  measured: {', '.join(shown)}")
    if ended.no_gpu is not None:
        lines.append(f"  no GPU figures: {ended.no_gpu}")
    if diagnosis.declined:
        missing = ", ".join(diagnosis.untold)
        verdicts = " or ".join(diagnosis.declined)
        lines.append(f"  also possible: {verdicts}; not known on this machine: {missing}")
    return lines


def _because(finding: DiagnosedRule) -> list[str]:
    conditions = ", ".join(
        f"{c.figure} {_value(c.figure, value)} {c.sign} {_value(c.figure, c.threshold)}"
        for c in finding.rule.when
        if (value := finding.figures[c.figure]) is not None
    )
    trust = "" if finding.rule.verified else "; this rule is not verified on real programs"
    return [f"  because {conditions}{trust}"] if conditions else []


def _value(figure: str, value: float) -> str:
    shows: dict[str, Callable[[float], str]] = {
        "share": _percent,
        "B/s": _rate,
        "B": lambda held: f"{held / 2**30:.2f} GiB" if held >= 2**30 else f"{held / 2**20:.0f} MiB",
        "s": lambda seconds: f"{seconds:.1f} s",
        "cores": lambda cores: f"{cores:.2f}",
        "count": lambda count: f"{count:.0f}",
    }
    return shows[UNITS[figure]](value)


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _rate(bytes_per_second: float | None) -> str:
    return "?" if bytes_per_second is None else f"{bytes_per_second / 1e6:.1f} MB/s"


def _document(
    command: tuple[str, ...], ended: WatchedProcess, figures: Figures, diagnosis: Diagnosis
) -> Observation:
    # loads pydantic, which would take time from the program that is observed
    from optkit.facts.documents.observation import (
        MONITOR,
        Observation,
        ObservedFigure,
        OpenVerdicts,
    )

    return Observation(
        schema=MONITOR,
        status="ok",
        evidence="measured",
        command=command or None,
        pid=ended.pid,
        exit_code=ended.exit_code,
        cores_usable=ended.cores,
        samples=len(ended.samples),
        figures={
            name: ObservedFigure(value=value, unit=UNITS[name]) for name, value in figures.items()
        },
        gpus=tuple(gpu.name for gpu in ended.samples[-1].gpus) if ended.samples else (),
        no_gpu=ended.no_gpu,
        diagnosis=_limit(diagnosis.bound),
        warnings=tuple(map(_limit, diagnosis.warnings)),
        declined=OpenVerdicts(verdicts=diagnosis.declined, untold=diagnosis.untold),
    )


def _limit(finding: DiagnosedRule) -> ObservedLimit:
    from optkit.facts.documents.observation import JudgedFigure, ObservedLimit

    rule = finding.rule
    because = tuple(
        JudgedFigure(
            figure=condition.figure,
            value=finding.figures[condition.figure],
            unit=UNITS[condition.figure],
            sign=condition.sign,
            threshold=condition.threshold,
        )
        for condition in rule.when
    )
    return ObservedLimit(
        verdict=rule.verdict, because=because, advice=rule.advice, verified=rule.verified
    )
