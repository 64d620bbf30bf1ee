"""A key of the recipe that reaches the quantizer: how much wider than its values a range is."""

from __future__ import annotations

from tests.probes.probe import Edit, Probe

PROBE = Probe(
    "a recipe key that reaches the quantizer",
    3,
    (
        Edit(
            "optkit/ground/recipe/sections.py",
            "    bias_correction: bool = True\n",
            """    bias_correction: bool = True
    headroom: float = later(0.0, ge=0)  # of activations, as a share of their range
""",
        ),
        Edit(
            "optkit/craft/quantization/choose_qparams.py",
            "scales.activation_scale(span.low, span.high, placement",
            "scales.activation_scale("
            "*(end * (1 + self.settings.headroom) for end in (span.low, span.high)), placement",
        ),
    ),
)


def check() -> None:
    """The recipe takes it, its schema has it, and the scales of a graph follow it; a recipe without
    it has the same JSON as before."""
    import tempfile
    from pathlib import Path

    import pytest

    from optkit.ground.recipe import Recipe
    from optkit.ground.recipe.json_schema import json_schema
    from tests.networks import NETWORKS, network
    from tests.quantization.workshop import PLAIN, Workshop

    recipe = Recipe.from_dict({"name": "net", "quantization": {"headroom": 0.5}})
    assert "headroom" in json_schema()["$defs"]["Quantization"]["properties"]  # type: ignore[index,operator]
    assert "headroom" not in str(Recipe.from_dict({"name": "net"}).to_json())
    with tempfile.TemporaryDirectory() as folder:
        model = network(NETWORKS["residual"])
        scales = []
        for headroom in (0.0, recipe.quantization.headroom):  # type: ignore[attr-defined]
            settings = PLAIN.model_copy(update={"headroom": headroom})
            _, _, log = Workshop(Path(folder)).quantize(model, "gpu", settings=settings)
            scales.append(log.activations["x"].scale)
    assert scales[1] == pytest.approx(1.5 * scales[0], rel=1e-3)


if __name__ == "__main__":
    check()
