"""The sizes for which the forms of products are compared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from optkit.facts.tensors import TensorInfo
from optkit.ground.recipe import Recipe
from optkit.road.pipeline import quantization

AXES = {"batch": {"min": 1, "opt": 4, "max": 8}, "tokens": {"min": 1, "opt": 64, "max": 128},
        "past": {"min": 0, "opt": 32, "max": 128}}  # fmt: skip
IDS = TensorInfo("input_ids", "int64", ("batch", "tokens"))
LOGITS = TensorInfo("logits", "float32", ("batch", "tokens", 50))
PAST = tuple(
    TensorInfo(f"past_key_values.0.{name}", "float32", ("batch", 2, "past", 8))
    for name in ("key", "value")
)
PRESENT = tuple(
    TensorInfo(f"present.0.{name}", "float32", ("batch", 2, "past + tokens", 8))
    for name in ("key", "value")
)


def sizes(inputs: tuple[TensorInfo, ...], outputs: tuple[TensorInfo, ...]) -> dict[str, int]:
    recipe = Recipe.model_validate({"name": "m", "model": {"path": "m.onnx"}, "axes": AXES})
    build: Any = SimpleNamespace(job=SimpleNamespace(recipe=recipe), inputs=inputs, outputs=outputs)
    return quantization._sizes(build)


def test_they_are_those_that_the_engine_is_tuned_for() -> None:
    assert sizes((IDS,), (LOGITS,)) == {"batch": 4, "tokens": 64, "past": 32}


def test_a_decoder_runs_for_one_token_at_a_time() -> None:
    found = sizes((IDS, *PAST), (LOGITS, *PRESENT))
    assert found == {"batch": 1, "tokens": 1, "past": 32}
