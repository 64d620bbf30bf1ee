"""What a report says of the arithmetic of a simulation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from optkit.facts.precisions import PRECISIONS
from optkit.road.pipeline.simulated_arithmetic import assumed
from optkit.road.steps.file_names import GRAPH, SIMULATION


def build(baseline: str, simulation: str, *, measured: bool = False) -> Any:
    return SimpleNamespace(
        job=SimpleNamespace(precision=PRECISIONS["int4"]), baseline_precision=PRECISIONS[baseline],
        simulation=simulation, measured=measured,
    )  # fmt: skip


@pytest.mark.parametrize("carrier", ["fp16", "bf16"])
def test_a_graph_without_a_simulation_is_told(carrier: str) -> None:
    for file, words in ((SIMULATION, "rounds its result once"), (GRAPH, "not simulated")):
        found = assumed(build(carrier, file))
        assert found is not None and found.carrier == carrier
        assert words in found.assumed and carrier.upper() in found.assumed


def test_fp32_and_a_measurement_assume_nothing() -> None:
    assert assumed(build("fp32", GRAPH)) is None
    assert assumed(build("fp16", GRAPH, measured=True)) is None
