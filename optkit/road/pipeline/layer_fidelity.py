"""The noise of each quantized layer, compared with the same layer of the FP32 graph."""

from __future__ import annotations

from optkit.ground.execute.runner import Steps
from optkit.road.pipeline.job import Build
from optkit.road.steps.compare_layers import CompareLayers, LayerComparison, uncompared
from optkit.road.steps.file_names import GRAPH, SIMULATION

_SAMPLES = 16
_LARGE = 1 << 22  # parameters from which half as many suffice, because each has more values
_RESTORED = 4  # groups of layers that run in FP32 again, each group in a separate run
_BYTES = 24  # per parameter: FP32, its codes and their values, and the runtime's copy of each


def compare_layers(build: Build, runner: Steps) -> None:
    """Compare every quantized layer, alone and with all others, with the FP32 graph. If there is no
    comparison, the build has the reason."""
    quantized = build.quantized
    if quantized is None:
        return
    parameters, limit = build.source.parameters, runner.limits.memory_bytes
    simulated = SIMULATION in quantized.files
    if _BYTES * parameters > limit:
        reason = (
            f"running both graphs in one needs about {_BYTES * parameters / 2**30:.3g} GiB, the "
            f"limit is {limit / 2**30:.3g} GiB"
        )
    elif not simulated and build.baseline_precision.name != "fp32" and quantized.files:
        reason = "there is no FP32 simulation of a graph that was quantized piece by piece"
    else:
        step = CompareLayers(
            reference=build.prepared or build.fused,
            graph=quantized,
            samples=build.compared or build.probe,
            file=SIMULATION if simulated else GRAPH,
            nodes=build.planned,
            count=_SAMPLES // 2 if parameters >= _LARGE else _SAMPLES,
            restored=_RESTORED,
        )
        build.layer_fidelity = runner.do(step, "compare the layers with FP32")
        return
    build.layer_fidelity = LayerComparison(layers=uncompared(reason))
