from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx_ir as ir

from optkit.craft.calibration import suspects
from optkit.craft.calibration.suspects import ChannelMoments, Entrance
from optkit.facts.tensors import Feed
from optkit.ground import graph
from optkit.ground.data.spool import Spool, counting
from optkit.ground.execute.step import Progress
from optkit.road.steps.bodies.sessions import cpu
from optkit.road.steps.check_data import CheckData, DataCheck
from optkit.road.steps.file_names import ASSETS, GRAPH

_COMPARED = 512  # evaluation samples at equal distances: mean and deviation are known to 5 %
_RUN = 64  # calibration samples for the first layer, at equal distances


def run(step: CheckData, out: Path, progress: Progress) -> DataCheck:
    samples = Spool(step.samples.path)
    model = graph.load(step.graph.path / GRAPH)
    tables = suspects.tables(model)
    progress("looking at calibration samples", 0.1)
    inputs = tuple(info for info in samples.inputs if info.name not in step.without)
    calibration = suspects.profile(_counted(samples), inputs, tables, samples.digests())
    evaluation = None
    if step.evaluation is not None:
        progress("looking at evaluation samples", 0.4)
        others = Spool(step.evaluation.path)
        evaluation = suspects.profile(others.spread(_COMPARED), inputs, tables, others.digests())
    progress("running the first layer", 0.7)
    entrances = suspects.entrances(model)
    known = suspects.ModelProperties(
        entrances,
        _seen(model, entrances, samples),
        suspects.of_preprocessor(step.graph.path / ASSETS),
        {spec.info.name: spec.range for spec in step.specs if spec.range is not None},
    )
    findings = suspects.judge(calibration, evaluation, known)
    return DataCheck(
        check=suspects.to_json(findings, calibration, evaluation is not None),
        warnings=tuple(f"calibration data is suspect: {finding}" for finding in findings),
    )


def _counted(samples: Spool) -> Iterator[Feed]:
    return (counting(feed, feed, labels) for feed, labels in samples)


def _seen(
    model: ir.Model, entrances: Mapping[str, Entrance], samples: Spool
) -> dict[str, ChannelMoments]:
    """The inputs and outputs of the first products and batch norms, on some samples. Empty for
    operators that are not FP32, which a CPU may be unable to run."""
    axes, limits = suspects.watched(entrances.values())
    given = {info.name for info in samples.inputs}
    known = graph.typed(model, axes.keys())
    axes = {name: axis for name, axis in axes.items() if known.get(name) == "float32"}
    inner = [name for name in axes if name not in given]
    feeds = samples.spread(_RUN)
    if not inner:
        return suspects.measure(feeds, axes, limits)
    with tempfile.TemporaryDirectory() as folder:
        graph.save(graph.between(model, (), inner), Path(folder) / GRAPH)
        with cpu(Path(folder) / GRAPH, pooled=False) as session:
            names = [info.name for info in session.inputs]
            values = (feed | session.run({name: feed[name] for name in names}) for feed in feeds)
            return suspects.measure(values, axes, limits)
