"""Forms of the graph: fused, cast to its carriers, written in the backend's operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from optkit.ground.execute.runner import Steps
from optkit.road.pipeline.job import Build
from optkit.road.pipeline.run_samples import observed, sample_batch
from optkit.road.pipeline.sources import given_samples
from optkit.road.steps.cast import Cast, MagnitudeSamples
from optkit.road.steps.collect import Samples
from optkit.road.steps.dequantize import DequantizedGraph
from optkit.road.steps.fuse import Fuse
from optkit.road.steps.graph import Graph, RandomInputs, Rewritten
from optkit.road.steps.lower import Lower
from optkit.road.steps.ort import ToOrt

_BYTES_TO_COMPARE = 12  # per parameter: float32 in two sessions, one of which copies it
_BYTES_TO_MEASURE = 8  # per parameter: float32, and the copy of the runtime


def fuse(build: Build, runner: Steps) -> None:
    """graph → graph in the `standard` form, compared with the source if memory suffices. A graph
    that another tool has quantized keeps its form, so its float graph does too. For a quantized
    precision, its products are written so that their weights can be quantized; the baseline keeps
    the form that is faster in floats."""
    if build.given is not None and isinstance(build.source, DequantizedGraph):
        build.fused = build.plain = build.source
        return
    random, reason = comparison(build, runner, "fused")
    step = Fuse(
        graph=build.source,
        samples=compared_samples(build, runner),
        random=random,
        compare=reason is None,
        uncompared=reason,
    )
    build.fused = build.plain = plain = runner.do(step, "fuse")
    if not build.job.precision.quantized or build.source.trained:
        return
    arranged = runner.do(replace(step, graph=plain, arrange=True), "arrange products")
    if arranged.log.get("counts"):
        build.fused = replace(arranged, log=_after(plain.log, arranged.log))


def _after(first: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, object]:
    """The log of rewrites and of those after them."""
    counts = Counter(first["counts"])
    counts.update(then["counts"])
    return {
        **then,
        "entries": [*first["entries"], *then["entries"]],
        "nodes_before": first["nodes_before"],
        "counts": dict(sorted(counts.items())),
    }


def cast_carriers(build: Build, runner: Steps) -> None:
    """The carriers: FP16 on GPUs, FP32 on a CPU; and the casts that the precision needs."""
    names = {build.baseline_precision.name, build.job.precision.name}
    casts: dict[str, Rewritten] = {
        name: cast(build, build.fused, name, runner) for name in ("fp16", "bf16") if name in names
    }
    carrier = casts.get(build.baseline_precision.name, build.fused)
    build.carrier = carrier
    if casts:
        build.cast = casts.get(build.job.precision.name, carrier)


def write_baseline(build: Build, runner: Steps) -> None:
    """The graph with which the candidate is compared: the fused graph in the baseline's floats and
    the backend's operators. On a CPU, a graph that another tool has quantized runs as it is."""
    if build.shipped is not None and build.traits.on_cpu and not build.is_baseline:
        build.baseline = build.shipped
        return
    build.baseline = written(build, in_floats(build, runner), build.baseline_precision.name, runner)


def in_floats(build: Build, runner: Steps) -> Graph:
    """The carrier in the form that is fastest in floats."""
    if build.plain is build.fused:
        return build.carrier
    return carried(build, build.plain, runner, "the baseline ")


def carried(build: Build, graph: Graph, runner: Steps, what: str) -> Graph:
    """A graph in the floats of the baseline. `what`: names it in the progress."""
    name = build.baseline_precision.name
    return graph if name == "fp32" else cast(build, graph, name, runner, what)


def cast(build: Build, graph: Graph, carrier: str, runner: Steps, what: str = "") -> Rewritten:
    """FP32 graph → its cast. The magnitudes of values decide which nodes stay in FP32. optkit
    measures them on calibration samples, otherwise on evaluation samples or random inputs. If
    memory does not suffice for a run, only the operators decide."""
    label = f"cast {what}to {carrier.upper()}"
    needed = _BYTES_TO_MEASURE * build.source.parameters
    limit = runner.limits.memory_bytes
    if needed > limit:
        reason = (
            f"values were not measured for the cast to {carrier.upper()}: a run needs about "
            f"{needed / 2**30:.3g} GiB, the limit is {limit / 2**30:.3g} GiB"
        )
        return runner.do(Cast(graph=graph, carrier=carrier, unmeasured=reason), label)
    samples, what = build.probe, "random inputs"
    if (known := observed(build, runner)) is not None:
        samples, what = known, "calibration samples"
    elif build.evaluation is not None:
        samples, what = build.evaluation, "evaluation samples"
    # one sample at a time: the runtime keeps all watched values, and larger batches are no faster
    measured = MagnitudeSamples(sample_batch(build) and 1, what)
    step = Cast(graph=graph, carrier=carrier, samples=samples, measured=measured)
    return runner.do(step, label)


def written(build: Build, graph: Graph, what: str, runner: Steps) -> Graph:
    """The graph in the operators that the backend needs: standard ones or ONNX Runtime's."""
    if build.traits.operators == "standard":
        return lowered(build, graph, what, runner)
    label = f"write {what} in ONNX Runtime's operators"
    return runner.do(ToOrt(graph=graph, opset=build.job.recipe.opset), label)


def lowered(build: Build, graph: Graph, what: str, runner: Steps) -> Graph:
    """The graph in an opset that is not newer than the recipe allows."""
    opset = build.job.recipe.opset
    if opset is None:
        return graph
    return runner.do(Lower(graph=graph, opset=opset), f"write {what} in opset {opset}")


def compared_samples(build: Build, runner: Steps) -> Samples | None:
    """The samples on which a rewritten graph is compared with its source, if the model has an input
    for which random numbers may be invalid: a shape, an axis, the condition of a branch."""
    if any(argument.numbers is None for argument in build.sizes.arguments.values()):
        return given_samples(build, runner)
    return None


def comparison(build: Build, runner: Steps, what: str) -> tuple[RandomInputs, str | None]:
    """The inputs on which a rewritten graph is compared with its source, and the reason why it is
    not compared if memory does not suffice to run both."""
    limit = runner.limits.memory_bytes
    needed = _BYTES_TO_COMPARE * build.source.parameters
    if needed <= limit:
        return build.sizes, None
    reason = (
        f"the {what} graph is not compared with what it was made of: running both needs about "
        f"{needed / 2**30:.3g} GiB, the limit is {limit / 2**30:.3g} GiB"
    )
    return build.sizes, reason
