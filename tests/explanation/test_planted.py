"""Faults planted into real quantized graphs: each is what `optkit explain` names first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import optkit
from optkit.ground.recipe import Recipe
from tests.explanation import faults, models, planting
from tests.explanation.faults import Fault

Explained = Callable[..., list[dict[str, Any]]]

pytestmark = pytest.mark.slow

# per channel in the weight's own DequantizeLinear, where a wrong axis can stand
_BY_CHANNEL = "quantization.placement.split_scale=[]"
_WIDE = {"width": 1024, "rows": 256}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("planted") / "cache"


@pytest.fixture
def explained(cache: Path, tmp_path: Path) -> Explained:
    """What is found in an artifact with that fault."""

    def build(recipe: Recipe, target: str, fault: Fault | None) -> list[dict[str, Any]]:
        path = planting.build(recipe, target, tmp_path / "out", cache, fault)
        found: list[dict[str, Any]] = optkit.explain(path, workspace=optkit.Workspace(cache))[
            "findings"
        ]
        return found

    return build


def test_an_unfused_pair_between_a_convolution_and_its_sum(
    explained: Explained, tmp_path: Path
) -> None:
    # with finer activations in the head the sum's pair would be a smaller part of the noise
    recipe = models.residual(tmp_path / "net", channels=64).with_overrides(
        ["quantization.two_term=[]"]
    )
    found = explained(recipe, "cpu", faults.unfused_pair("blocks.0.conv2/Conv", 0.01))
    # the outputs are hardly noisier, and the sum's own pair reads what the planted one gives; where
    # other processes use the cores, another measured time may be larger
    timed = next(one for one in found if one["rule"] == "unfused_pair")
    noisy = next(one for one in found if one["question"] == "accuracy")
    assert (noisy["rule"], noisy["nodes"]) == ("duplicated", ["blocks.0/Add"])
    assert found.index(timed) < found.index(noisy)
    assert "planted/DequantizeLinear" in timed["nodes"]
    assert "blocks.0/Add" in timed["what"]
    assert timed["cost"]["ms"] > 0 and timed["cost"]["evidence"] == "measured"


def test_a_weight_whose_scales_lie_along_the_summed_axis(
    explained: Explained, tmp_path: Path
) -> None:
    recipe = models.residual(tmp_path / "net", largest=16.0)
    found = explained(recipe, "cpu", faults.weight_along_inputs("blocks.0.conv2/Conv"))
    assert (found[0]["rule"], found[0]["nodes"]) == ("weight_axis", ["blocks.0.conv2/Conv"])
    assert found[0]["modules"] == ["blocks.0.conv2"]
    assert found[0]["change"]["recipe"] == ['quantization: {nodes: {"blocks.0.conv2/Conv": fp32}}']
    assert found[0]["cost"]["db"] > 1


def test_activations_that_a_bad_range_clips(explained: Explained, tmp_path: Path) -> None:
    recipe = models.residual(tmp_path / "net")
    found = explained(recipe, "cpu", faults.rescaled("blocks.0.relu", 0.1))
    assert (found[0]["rule"], found[0]["nodes"]) == ("clipped", ["blocks.0.conv2/Conv"])
    assert found[0]["cost"]["share"] > 0.99 and found[0]["cost"]["db"] > 20
    # no setting made that range, so none can widen it
    assert found[0]["change"]["recipe"] == []
    assert "the recipe gives blocks.0.relu the range" in found[0]["change"]["text"]


def test_a_tail_that_only_moves_data(explained: Explained, tmp_path: Path) -> None:
    found = explained(models.stack(tmp_path / "net"), "cpu", faults.reshaping_tail(4))
    assert found[0]["rule"] == "layout"
    assert all(node.startswith("tail.") for node in found[0]["nodes"])
    assert found[0]["cost"]["share"] > 0.2


def test_a_convolution_left_in_floats_on_the_cpu(explained: Explained, tmp_path: Path) -> None:
    recipe = models.residual(tmp_path / "net")
    found = explained(recipe, "cpu", faults.left_in_float("blocks.0.conv2/Conv"))
    assert (found[0]["rule"], found[0]["nodes"]) == ("left_in_float", ["blocks.0.conv2/Conv"])


def test_a_product_in_fp16_between_two_in_int8(explained: Explained, tmp_path: Path) -> None:
    recipe = models.stack(tmp_path / "net", **_WIDE)
    found = explained(recipe, "l4", faults.left_in_float("layers.2/Gemm"))
    assert (found[0]["rule"], found[0]["nodes"]) == ("left_in_float", ["layers.2/Gemm"])
    assert "between" in found[0]["what"] and "float16" in found[0]["what"]
    assert found[0]["cost"]["evidence"] == "predicted" and found[0]["cost"]["ms"] > 0


def test_the_recipe_s_own_line_is_what_mends_it(explained: Explained, tmp_path: Path) -> None:
    recipe = models.stack(tmp_path / "net", **_WIDE)
    recipe = recipe.with_overrides(["quantization.nodes={'layers.2/*': fp16}"])
    found = explained(recipe, "l4", None)
    assert (found[0]["rule"], found[0]["nodes"]) == ("left_in_float", ["layers.2/Gemm"])
    assert found[0]["change"]["recipe"] == ['quantization: {nodes: {"layers.2/*": int8}}']


def test_a_wrong_axis_in_an_engine_for_a_gpu(explained: Explained, tmp_path: Path) -> None:
    recipe = models.uneven(tmp_path / "net").with_overrides([_BY_CHANNEL])
    found = explained(recipe, "l4", faults.weight_along_inputs("first/Conv"))
    assert (found[0]["rule"], found[0]["nodes"]) == ("weight_axis", ["first/Conv"])


@pytest.mark.parametrize("target", ["cpu", "l4"])
def test_no_fault_is_found_where_none_was_planted(
    explained: Explained, tmp_path: Path, target: str
) -> None:
    found = explained(models.stack(tmp_path / "net", **_WIDE), target, None)
    faulty = {"unfused_pair", "left_in_float", "clipped", "weight_axis"}
    assert not faulty & {one["rule"] for one in found}
