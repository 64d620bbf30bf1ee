"""Fourteen faults planted into graphs, recipes and data: each is named first, and what its finding
says mends it, which is measured again.

A fault that a setting mends is mended by what `--apply` wrote, with the fault planted again. Of the
others `--apply` says that it cannot, and what the finding asks for is done instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import optkit
from optkit.ground.recipe import Recipe
from tests.explanation import faults, models, planting
from tests.explanation.faults import Fault

pytestmark = pytest.mark.slow

Network = Callable[[Path], Recipe]

_PERCENTILE = ("calibration.method=percentile", "calibration.percentile=80")
# finer activations would mend the fault by themselves
_ONE_TERM = ("quantization.two_term=[]", "quantization.outlier_channels=off")
_CONV = "blocks.0.conv2/Conv"


@dataclass(frozen=True)
class Mended:
    """The first finding and the rules that no setting mends, the SQNR before and after, and what is
    found after."""

    first: dict[str, Any]
    left: list[str]
    recipe: dict[str, Any] | None
    before: float
    after: float
    findings: list[dict[str, Any]]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mended") / "cache"


@pytest.fixture
def mended(cache: Path, tmp_path: Path) -> Callable[..., Mended]:
    def run(
        network: Network, target: str, fault: Fault | None = None, settings: Sequence[str] = (),
        *, mend: Network | None = None,
    ) -> Mended:  # fmt: skip
        """`mend`: the network as the finding wants it; None: as it is, without the fault."""
        recipe = network(tmp_path / "net").with_overrides(list(settings))
        path = planting.build(recipe, target, tmp_path / "out", cache, fault)
        new = tmp_path / "net" / "changed.yaml"
        found = optkit.explain(path, apply=new, workspace=optkit.Workspace(cache))
        assert (found["recipe"] is not None) == new.exists()
        if found["recipe"] is not None and mend is None:
            assert found["recipe"]["missing"] == []
            again = planting.build(Recipe.load(new), target, tmp_path / "again", cache, fault)
        else:
            other = (mend or network)(tmp_path / "sound").with_overrides(list(settings))
            again = planting.build(other, target, tmp_path / "again", cache)
        left = [one["rule"] for one in found["left"]]
        return Mended(
            found["findings"][0], left, found["recipe"], _outputs(path), _outputs(again),
            optkit.explain(again, workspace=optkit.Workspace(cache))["findings"],
        )  # fmt: skip

    return run


def _outputs(artifact: Path) -> float:
    report = json.loads((artifact / "report.json").read_text())
    found: float = report["layer_fidelity"]["sqnr_db"]
    return found


def _gone(found: Mended) -> bool:
    """Whether what was found first is not found any more, on any of its nodes."""
    rule, nodes = found.first["rule"], set(found.first["nodes"])
    return not any(one["rule"] == rule and nodes & set(one["nodes"]) for one in found.findings)


@pytest.mark.parametrize(
    ("network", "target"), [(models.stack, "cpu"), (models.residual, "cpu"), (models.stack, "l4")]
)
def test_ranges_that_clip_everywhere(
    mended: Callable[..., Mended], network: Network, target: str
) -> None:
    """1 to 3. A percentile of 80."""
    found = mended(network, target, settings=_PERCENTILE + _ONE_TERM)
    assert found.first["rule"] == "clipped" and "more tensors" in found.first["what"]
    assert found.first["change"]["recipe"] == ["calibration: {method: minmax}"]
    assert found.after > found.before + 20 and _gone(found)


def test_a_softmax_that_reads_codes(mended: Callable[..., Mended]) -> None:
    """4. No product reads the pair."""
    found = mended(models.classifier, "cpu", faults.unfused_pair("head/Gemm", 0.3))
    assert (found.first["rule"], found.first["nodes"]) == ("unread", ["soft/Softmax"])
    assert found.first["cost"]["share"] > 0.65
    assert found.recipe is None and "unread" in found.left
    assert found.after > found.before + 20 and _gone(found)


def test_an_activation_s_scale_that_is_too_coarse(mended: Callable[..., Mended]) -> None:
    """5."""
    found = mended(models.residual, "cpu", faults.rescaled("blocks.0.relu", 100.0), _ONE_TERM)
    assert (found.first["rule"], found.first["nodes"]) == ("coarse", [_CONV])
    assert "the recipe gives blocks.0.relu the range" in found.first["change"]["text"]
    assert "coarse" in found.left
    assert found.after > found.before + 10 and _gone(found)


def _with_an_outlier(folder: Path) -> Recipe:
    recipe = models.stack(folder)
    (folder / "source.py").write_text(models.OUTLIER.format(shape=(256,)))
    return recipe


def test_one_outlier_in_the_calibration_data(mended: Callable[..., Mended]) -> None:
    """6. Every range follows it."""
    found = mended(_with_an_outlier, "cpu", settings=_ONE_TERM, mend=models.stack)
    assert found.first["rule"] == "coarse" and "more tensors" in found.first["what"]
    assert "no setting of the recipe does that" in found.first["change"]["text"]
    assert "coarse" in found.left
    assert found.after > found.before + 5 and _gone(found)


def test_a_first_term_is_no_pair_to_remove(mended: Callable[..., Mended]) -> None:
    """The outlier gives products two terms, whose first pair is read twice."""
    settings = ("quantization.outlier_channels=off",)
    found = mended(_with_an_outlier, "cpu", settings=settings, mend=models.stack)
    ops = [node for one in found.findings for node in one["nodes"]]
    assert found.first["rule"] != "unfused_pair" and not any("Quantize" in node for node in ops)


@pytest.mark.parametrize(("factor", "told"), [(16.0, "use only"), (0.3, "are saturated")])
def test_a_weight_s_scales_that_do_not_fit(
    mended: Callable[..., Mended], factor: float, told: str
) -> None:
    """7 and 8. Too coarse, and so small that codes saturate."""
    found = mended(models.residual, "cpu", faults.weight_scaled(_CONV, factor))
    assert (found.first["rule"], found.first["nodes"]) == ("weight_scale", [_CONV])
    assert told in found.first["what"]
    assert found.first["change"]["recipe"] == [f'quantization: {{nodes: {{"{_CONV}": fp32}}}}']
    assert found.after > found.before + 10 and _gone(found)


def test_a_pair_on_a_pair(mended: Callable[..., Mended]) -> None:
    """9."""
    found = mended(models.stack, "l4", faults.duplicated("layers.1.relu", 12.3))
    assert (found.first["rule"], found.first["nodes"]) == ("duplicated", ["layers.2/Gemm"])
    assert "again/Q0" in found.first["change"]["text"] and "duplicated" in found.left
    assert found.after > found.before + 10 and _gone(found)


def test_a_zero_point_that_was_moved(mended: Callable[..., Mended]) -> None:
    """10. It cuts one side off."""
    found = mended(models.residual, "cpu", faults.shifted("blocks.0.relu", 215), _ONE_TERM)
    assert (found.first["rule"], found.first["nodes"]) == ("clipped", [_CONV])
    assert "clipped" in found.left
    assert found.after > found.before + 20 and _gone(found)


def test_rows_that_are_not_aligned(mended: Callable[..., Mended]) -> None:
    """11. K = 1021 of INT8 products on a GPU."""
    found = mended(
        lambda folder: models.stack(folder, width=1021, rows=256), "l4",
        mend=lambda folder: models.stack(folder, width=1024, rows=256),
    )  # fmt: skip
    assert found.first["rule"] == "alignment" and len(found.first["nodes"]) == 5
    assert "1021 → 1024" in found.first["change"]["text"] and "alignment" in found.left
    assert not any(one["rule"] == "alignment" for one in found.findings)


def test_casts_in_an_fp32_build(mended: Callable[..., Mended]) -> None:
    """12. Nothing there has to fit into FP16."""
    found = mended(models.stack, "cpu", faults.casts("layers.1.relu", 8))
    assert found.first["rule"] == "cast" and "FP16" not in found.first["change"]["text"]
    assert "planted.0/Cast_FLOAT16" in found.first["nodes"] and "cast" in found.left
    assert found.first["cost"]["evidence"] == "measured" and _gone(found)


def test_one_scale_for_all_channels_of_a_weight(mended: Callable[..., Mended]) -> None:
    """13. The recipe asks for it, and the channels have very different sizes."""
    settings = ["quantization.placement.tensor_ops=[Conv]"]
    found = mended(models.uneven, "l4", settings=settings)
    assert (found.first["rule"], found.first["nodes"]) == ("weight_axis", ["first/Conv"])
    assert found.first["change"]["recipe"] == ["quantization: {placement: {tensor_ops: []}}"]
    assert found.after > found.before + 20 and _gone(found)


def test_shortcuts_in_codes_that_no_kernel_sums(mended: Callable[..., Mended]) -> None:
    """14. Convolutions with one scale for all channels fuse no sum on a GPU, so the pairs on the
    shortcuts run as kernels of their own."""
    settings = ["quantization.placement.tensor_ops=[Conv]"]
    found = mended(models.residual, "l4", settings=settings)
    assert found.first["rule"] == "unfused_pair"
    assert "DequantizeLinear_stem.relu_dequantized" in found.first["nodes"]
    assert found.first["change"]["recipe"] == ["quantization: {placement: {residual_adds: false}}"]
    assert found.first["cost"]["share"] > 0.05 and _gone(found)
