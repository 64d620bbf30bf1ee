"""Forms of the graph: fused, cast to its carriers, in the operators of the backend."""

from __future__ import annotations

from optkit.execute.runner import Steps
from optkit.execute.step import Folder
from optkit.pipeline.job import Build, calibration_of
from optkit.pipeline.sources import given_samples
from optkit.steps.cast import Cast, Measured
from optkit.steps.fuse import Fuse
from optkit.steps.graph import Graph, RandomInputs
from optkit.steps.ort import ToOrt

_BYTES_TO_COMPARE = 12  # per parameter: float32, of two sessions, one laying its copy out anew

_BYTES_TO_MEASURE = 8  # per parameter: float32, and laid out anew by the runtime


def fuse(made: Build, runner: Steps) -> None:
    """graph → graph: the `standard` form, compared before and after where memory allows it."""
    source = made.entries["source"]
    random, reason = comparison(made, runner, "fused")
    samples = None
    # a shape or an axis that is an input: random numbers may be none, and samples are
    if any(one.numbers is None for one in random.arguments.values()):
        samples = given_samples(made, runner)
    step = Fuse(
        graph=source, samples=samples, random=random, compare=reason is None, uncompared=reason
    )
    made.entries["fused"] = runner.do(step, "fuse")


def carry(made: Build, runner: Steps) -> None:
    """The carriers: FP16 on GPUs, FP32 on a CPU; and the casts that the job asks for."""
    fused, entries = made.entries["fused"], made.entries
    wanted = {made.baseline_precision.name, made.job.precision.name}
    casts: dict[str, Folder] = {
        name: cast(made, fused, name, runner) for name in ("fp16", "bf16") if name in wanted
    }
    entries["carrier"] = casts.get(made.baseline_precision.name, fused)
    if casts:
        entries["cast"] = casts.get(made.job.precision.name, entries["carrier"])


def refer(made: Build, runner: Steps) -> None:
    """What the candidate is compared with: the carrier graph in the backend's own operators, so
    that a speedup is due to precision alone."""
    carrier = made.entries["carrier"]
    made.entries["baseline"] = written(made, carrier, made.baseline_precision.name, runner)


def cast(made: Build, graph: Folder, carrier: str, runner: Steps, what: str = "") -> Graph:
    """FP32 graph → its cast, with FP32 islands by the reach of values on calibration samples, else
    on evaluation samples or random inputs; by the operators alone where memory forbids a run."""
    label = f"cast {what}to {carrier.upper()}"
    needed = _BYTES_TO_MEASURE * made.entries["source"].meta.get("parameters", 0)
    limit = runner.limits.memory_bytes
    if needed > limit:
        reason = (
            f"values were not measured for the cast to {carrier.upper()}: a run needs about "
            f"{needed / 2**30:.3g} GiB, the limit is {limit / 2**30:.3g} GiB"
        )
        return runner.do(Cast(graph=graph, carrier=carrier, unmeasured=reason), label)
    role = next((r for r in ("calibration", "evaluation") if r in made.entries), "probe")
    told = "random inputs" if role == "probe" else f"{role} samples"
    # one at a time: the runtime keeps all watched values, and larger batches are no faster
    measured = Measured(sample_batch(made) and 1, told)
    step = Cast(graph=graph, carrier=carrier, samples=made.entries[role], measured=measured)
    return runner.do(step, label)


def sample_batch(made: Build) -> int | None:
    """Samples per run of the graph; None, as they were written, where its batch size is fixed."""
    found: int = calibration_of(made.job.recipe)["batch"]
    return found if isinstance(made.batch_axis, str) else None


def written(made: Build, graph: Folder, what: str, runner: Steps) -> Folder:
    """The graph in the operators of ONNX Runtime, where the backend wants them."""
    if made.traits.operators == "standard":
        return graph
    label = f"write {what} in ONNX Runtime's operators"
    return runner.do(ToOrt(graph=graph), label)


def comparison(made: Build, runner: Steps, what: str) -> tuple[RandomInputs, str | None]:
    """What a graph and the one it was made of are compared on, and the reason where memory does not
    allow to run both."""
    limit = runner.limits.memory_bytes
    needed = _BYTES_TO_COMPARE * made.entries["source"].meta.get("parameters", 0)
    if needed <= limit:
        return made.sizes, None
    reason = (
        f"the {what} graph is not compared with what it was made of: running both needs about "
        f"{needed / 2**30:.3g} GiB, the limit is {limit / 2**30:.3g} GiB"
    )
    return made.sizes, reason
