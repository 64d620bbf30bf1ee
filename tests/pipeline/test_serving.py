"""The backend whose latency a build tells: the one that is documented for the board."""

from __future__ import annotations

import pytest

from optkit.facts.precisions import precision
from optkit.ground.devices import target
from optkit.ground.recipe import Recipe
from optkit.road.pipeline.job import Build, Job


def build(device: str, backend: str | None, *pending: str) -> Build:
    job = Job(Recipe(name="m"), target(device), precision("int8"))
    return Build(job, backend, pending, precision("fp16"))


@pytest.mark.parametrize(
    ("device", "backend", "pending", "serving"),
    [
        ("l4", "tensorrt-rtx", ("tensorrt",), "tensorrt"),
        ("l4", "tensorrt", (), "tensorrt"),
        ("l4", None, ("tensorrt-rtx", "tensorrt"), "tensorrt"),
        ("l4", "tensorrt-rtx", (), "tensorrt-rtx"),  # TensorRT lacks the precision
        ("rtx4090", "tensorrt-rtx", (), "tensorrt-rtx"),
        ("h100", None, ("tensorrt",), "tensorrt"),
    ],
)
def test_the_documented_one_serves(
    device: str, backend: str | None, pending: tuple[str, ...], serving: str
) -> None:
    assert build(device, backend, *pending).serving == serving
