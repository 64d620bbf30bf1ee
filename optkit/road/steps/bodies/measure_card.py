from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Protocol

from optkit.craft.benchmarking import machine_state
from optkit.craft.prediction import card_kernels
from optkit.facts.card_facts import CardKernel, KernelFailure, KernelTime, Library
from optkit.facts.errors import ToolchainMissing, WorkerFailed
from optkit.facts.measurement import Conditions
from optkit.ground.devices import Gpu, target
from optkit.ground.execute.step import Progress
from optkit.road.steps.measure_card import CardTimes, MeasureCard

_REASON = 300  # characters of a library's message
_LIBRARIES: Mapping[Library, str] = MappingProxyType(
    {
        "torch": "optkit.craft.backends.torch_kernels:TorchKernels",
        "onnxruntime": "optkit.craft.backends.ort_kernels:OrtKernels",
    }
)


class _Kernels(Protocol):
    """A library that runs kernels on the first device that it sees."""

    gpu: Gpu

    @property
    def versions(self) -> dict[str, str]: ...

    def milliseconds(self, kernel: CardKernel) -> float: ...


def run(step: MeasureCard, out: Path, progress: Progress) -> CardTimes:
    started = time.monotonic()
    library: _Kernels = resolve_name(_LIBRARIES[step.library])()
    gpu = library.gpu
    if gpu.target is None:
        raise ToolchainMissing(
            f"optkit has no figures of {gpu.name}, so it can predict nothing for it",
            hint="`optkit targets` lists the devices that it knows",
        )
    found: list[KernelTime] = []
    failed: list[KernelFailure] = []
    kernels = list(in_turn(card_kernels.kernels(target(gpu.target))))
    with machine_state.watched(gpu=True) as watch:
        for place, kernel in enumerate(kernels):
            progress(kernel.name, place / len(kernels))
            if time.monotonic() - started > step.seconds:
                failed.append(KernelFailure(kernel, f"not reached within {step.seconds:.0f} s"))
                continue
            try:
                found.append(KernelTime(kernel, library.milliseconds(kernel)))
            except Exception as error:  # what this card or this version cannot do, or no memory
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                failed.append(KernelFailure(kernel, reason[:_REASON]))
            watch.look()
    if not found:
        raise WorkerFailed(f"no kernel ran on {gpu.name}: {failed[0].reason}", where=step.library)
    return CardTimes(
        target=gpu.target,
        device=gpu.name,
        compute_capability=gpu.compute_capability,
        memory_bytes=gpu.memory_bytes,
        driver=gpu.driver,
        versions=library.versions,
        seconds=round(time.monotonic() - started, 1),
        marks=tuple(machine_state.judge(Conditions(gpu=watch.conditions.gpu))),
        kernels=tuple(found),
        failed=tuple(failed),
    )


def in_turn(kernels: Iterable[CardKernel]) -> Iterator[CardKernel]:
    """One of each kind and precision after another, so that a measurement that ends early has some
    of each."""
    groups: dict[tuple[str, str], list[CardKernel]] = {}
    for kernel in kernels:
        groups.setdefault((kernel.kind, kernel.precision), []).append(kernel)
    for row in zip_longest(*groups.values()):
        yield from filter(None, row)
