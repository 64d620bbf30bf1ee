"""Whether calibration data is what the model expects: told before hours are spent on it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optkit.steps.files import ASSETS, GRAPH, Inputs, Params, Progress, cpu

if TYPE_CHECKING:
    import onnx_ir as ir

    from optkit.calibration.suspects import Entrance, Seen
    from optkit.data.spool import Spool
    from optkit.tensors import Feed

_COMPARED = 512  # evaluation samples, spread over all: mean and deviation are known to 5 %
_RUN = 64  # calibration samples through the first layer, spread over all


def check_data(inputs: Inputs, params: Params, out: Path, progress: Progress) -> dict[str, Any]:
    """Calibration samples, the model's graph as exported, and evaluation samples where there are
    any → verdict "clean" or "suspect", and the findings. Only the nodes up to the first batch-norm
    are run.

    params: inputs (with the ranges that the recipe declares).
    """
    from optkit import graph
    from optkit.calibration import suspects
    from optkit.data.spool import Spool
    from optkit.recipe import inputs_from_json

    samples = Spool(inputs["samples"])
    model = graph.load(inputs["graph"] / GRAPH)
    tables = suspects.tables(model)
    progress("looking at calibration samples", 0.1)
    calibration = suspects.profile(_counted(samples), samples.inputs, tables, samples.digests())
    evaluation = None
    if "evaluation" in inputs:
        progress("looking at evaluation samples", 0.4)
        others = Spool(inputs["evaluation"])
        evaluation = suspects.profile(
            others.spread(_COMPARED), others.inputs, tables, others.digests()
        )
    progress("running the first layer", 0.7)
    entrances = suspects.entrances(model)
    known = suspects.Known(
        entrances,
        _seen(model, entrances, samples),
        suspects.of_preprocessor(inputs["graph"] / ASSETS),
        {
            spec.info.name: spec.range
            for spec in inputs_from_json(params["inputs"])
            if spec.range is not None
        },
    )
    findings = suspects.judge(calibration, evaluation, known)
    return {
        "check": suspects.to_json(findings, calibration, evaluation is not None),
        "warnings": [f"calibration data is suspect: {finding}" for finding in findings],
    }


def _counted(samples: Spool) -> Iterator[Feed]:
    from optkit.data.spool import counting

    return (counting(feed, feed, labels) for feed, labels in samples)


def _seen(model: ir.Model, entrances: Mapping[str, Entrance], samples: Spool) -> dict[str, Seen]:
    """What the first products and batch-norms read and make of some samples; nothing of those that
    are not FP32, which a CPU may not run."""
    from optkit import graph
    from optkit.calibration import suspects

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
