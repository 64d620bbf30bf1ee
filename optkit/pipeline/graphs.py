"""Forms of the graph: fused, cast to its carriers, in the operators of the backend."""

from __future__ import annotations

from optkit.execute.runner import Steps
from optkit.pipeline.job import Build, calibration_of
from optkit.pipeline.sources import given_samples
from optkit.steps.cast import Cast, Measured
from optkit.steps.fuse import Fuse
from optkit.steps.graph import Graph, RandomInputs
from optkit.steps.ort import ToOrt

_BYTES_TO_COMPARE = 12  # per parameter: float32, of two sessions, one laying its copy out anew

_BYTES_TO_MEASURE = 8  # per parameter: float32, and laid out anew by the runtime


def fuse(build: Build, runner: Steps) -> None:
    """graph → graph: the `standard` form, compared before and after where memory allows it."""
    random, reason = comparison(build, runner, "fused")
    samples = None
    # a shape or an axis that is an input: random numbers may be none, and samples are
    if any(one.numbers is None for one in random.arguments.values()):
        samples = given_samples(build, runner)
    step = Fuse(
        graph=build.source, samples=samples, random=random, compare=reason is None,
        uncompared=reason,
    )  # fmt: skip
    build.fused = runner.do(step, "fuse")


def cast_carriers(build: Build, runner: Steps) -> None:
    """The carriers: FP16 on GPUs, FP32 on a CPU; and the casts that the job asks for."""
    wanted = {build.baseline_precision.name, build.job.precision.name}
    casts: dict[str, Graph] = {
        name: cast(build, build.fused, name, runner) for name in ("fp16", "bf16") if name in wanted
    }
    build.carrier = casts.get(build.baseline_precision.name, build.fused)
    if casts:
        build.cast = casts.get(build.job.precision.name, build.carrier)


def write_baseline(build: Build, runner: Steps) -> None:
    """What the candidate is compared with: the carrier graph in the backend's own operators, so
    that a speedup is due to precision alone."""
    build.baseline = written(build, build.carrier, build.baseline_precision.name, runner)


def cast(build: Build, graph: Graph, carrier: str, runner: Steps, what: str = "") -> Graph:
    """FP32 graph → its cast, with FP32 islands by the reach of values on calibration samples, else
    on evaluation samples or random inputs; by the operators alone where memory forbids a run."""
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
    if build.calibration is not None:
        samples, what = build.calibration, "calibration samples"
    elif build.evaluation is not None:
        samples, what = build.evaluation, "evaluation samples"
    # one at a time: the runtime keeps all watched values, and larger batches are no faster
    measured = Measured(sample_batch(build) and 1, what)
    step = Cast(graph=graph, carrier=carrier, samples=samples, measured=measured)
    return runner.do(step, label)


def sample_batch(build: Build) -> int | None:
    """Samples per run of the graph; None, as they were written, where its batch size is fixed."""
    batch = calibration_of(build.job.recipe).batch
    return batch if isinstance(build.batch_axis, str) else None


def written(build: Build, graph: Graph, what: str, runner: Steps) -> Graph:
    """The graph in the operators of ONNX Runtime, where the backend wants them."""
    if build.traits.operators == "standard":
        return graph
    label = f"write {what} in ONNX Runtime's operators"
    return runner.do(ToOrt(graph=graph), label)


def comparison(build: Build, runner: Steps, what: str) -> tuple[RandomInputs, str | None]:
    """What a graph and the one it was made of are compared on, and the reason where memory does not
    allow to run both."""
    limit = runner.limits.memory_bytes
    needed = _BYTES_TO_COMPARE * build.source.parameters
    if needed <= limit:
        return build.sizes, None
    reason = (
        f"the {what} graph is not compared with what it was made of: running both needs about "
        f"{needed / 2**30:.3g} GiB, the limit is {limit / 2**30:.3g} GiB"
    )
    return build.sizes, reason
