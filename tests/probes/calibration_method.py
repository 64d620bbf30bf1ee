"""A calibration method: half of each extreme."""

from __future__ import annotations

from tests.probes.probe import Edit, Probe

RANGES = "optkit/craft/quantization/ranges.py"
PROBE = Probe(
    "a calibration method",
    2,
    (
        Edit(
            "optkit/ground/recipe/sections.py",
            'Method = Literal["auto", "minmax",',
            'Method = Literal["auto", "half", "minmax",',
        ),
        Edit(
            RANGES,
            "def divergences(",
            """def half(
    value: ValueStatistics, fmt: NumberFormat, percentile: float
) -> tuple[float, float]:
    return value.low / 2, value.high / 2


def divergences(""",
        ),
        Edit(RANGES, '"mse": mse}', '"mse": mse, "half": half}'),
    ),
)


def check() -> None:
    """A recipe takes it, the schema has it, and it gives the ranges of a graph."""
    import json
    import tempfile
    from pathlib import Path

    from optkit.ground.recipe import Calibration
    from optkit.ground.recipe.json_schema import json_schema
    from tests.networks import NETWORKS, network
    from tests.quantization.workshop import Workshop

    method = Calibration(source="samples.py", method="half").method  # type: ignore[arg-type]
    assert '"half"' in json.dumps(json_schema())
    with tempfile.TemporaryDirectory() as folder:
        model = network(NETWORKS["residual"])
        _, _, log = Workshop(Path(folder)).quantize(model, "gpu", method=method)
    assert {value.method for value in log.activations.values()} == {"half"}


if __name__ == "__main__":
    check()
