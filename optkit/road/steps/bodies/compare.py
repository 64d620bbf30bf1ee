from __future__ import annotations

from pathlib import Path

from optkit.craft.benchmarking import fidelity
from optkit.facts.errors import InputRefused
from optkit.ground.execute.step import Progress
from optkit.ground.runtimes import Session
from optkit.road.steps.bodies.batches import begun, joined
from optkit.road.steps.bodies.sessions import cpu, simulated
from optkit.road.steps.compare import ComparedOutputs, CompareOutputs
from optkit.road.steps.file_names import GRAPH


def run(step: CompareOutputs, out: Path, progress: Progress) -> ComparedOutputs:
    if (kept := joined(step)) is None:
        batches, kept = begun(step, step.samples, step.batch, progress)
        with (
            reference_of(step.reference.path / GRAPH) as reference,
            simulated(step.graph.path / step.file, step.evidence) as candidate,
        ):
            fidelity.run(reference, candidate, batches, kept)
        if step.shard is not None:
            kept.save(out)
            return ComparedOutputs()
    return ComparedOutputs(fidelity=fidelity.pool(kept, name=step.to, evidence=step.evidence))


def reference_of(graph: Path) -> Session:
    """A session of the reference. ONNX Runtime 1.31's optimizer writes an invalid QuantizeLinear
    into some Q/DQ graphs of other tools (a Reshape before a pair); such a graph runs as written."""
    try:
        return cpu(graph)
    except InputRefused:
        return cpu(graph, level="basic")
