from __future__ import annotations

from pathlib import Path

import numpy as np

from optkit.craft.benchmarking import fidelity
from optkit.facts.errors import InputRefused
from optkit.facts.measurement import Fidelity
from optkit.ground.data.spool import Spool
from optkit.ground.execute.step import Progress, StepInput
from optkit.ground.runtimes import Session
from optkit.road.steps.bodies.compare import reference_of
from optkit.road.steps.bodies.sessions import simulated
from optkit.road.steps.compare_sizes import ComparedSizes, CompareSizes
from optkit.road.steps.file_names import GRAPH
from optkit.road.steps.resize import POINTS, Point


def run(step: CompareSizes, out: Path, progress: Progress) -> ComparedSizes:
    given: dict[Point, StepInput | None] = {point: getattr(step, point) for point in POINTS}
    tried = {at: Spool(samples.path) for at, samples in given.items() if samples is not None}
    compared: dict[str, Fidelity] = {}
    failed: dict[str, str] = {}
    broken = []
    with (
        reference_of(step.reference.path / GRAPH) as reference,
        simulated(step.graph.path / step.file, step.evidence) as candidate,
    ):
        for done, (at, samples) in enumerate(tried.items()):
            progress(f"the {at} declared sizes", done / len(tried))
            try:
                compared[at] = fidelity.fidelity(
                    reference, candidate, samples, name=step.to, evidence=step.evidence
                )
            except InputRefused as error:  # a size at which the graph does not run, or overflows
                failed[at] = error.line
                broken += [at] if _runs(reference, samples) else []
    return ComparedSizes(fidelity=compared, failed=failed, broken=tuple(broken))


def _runs(session: Session, samples: Spool) -> bool:
    """Whether a graph runs on the samples, and gives numbers."""
    try:
        outputs = [session.run(feed) for feed, _ in samples]
    except InputRefused:
        return False
    return all(
        not np.isnan(values).any()
        for each in outputs
        for values in each.values()
        if values.dtype.kind == "f"
    )
