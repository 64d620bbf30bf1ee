"""Ranges that hold at the ends of the declared sizes: statistics there, beside the usual ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from optkit.craft.quantization.choose_qparams import choose_activations
from optkit.craft.quantization.covering import LOSS, Covering, cover
from optkit.craft.quantization.placement.assign import assign
from optkit.craft.quantization.qdq.insertion import taps
from optkit.craft.quantization.ranges import fake_quantized
from optkit.facts.assignment import Scheme
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import PRECISIONS, Precision
from optkit.ground.statistics import Statistics
from tests.networks import network
from tests.quantization.workshop import PLAIN, RULES, Workshop

MODEL = network("""<ir_version: 10, opset_import: ["" : 21]>
    g (float[N,32] x, float[32,64] w) => (float[N,64] y) {
      [product] y = MatMul (x, w)
    }""")  # fmt: skip


@pytest.fixture(params=["cpu", "gpu"])
def rules(request: pytest.FixtureRequest) -> dict[Precision, PlacementRules]:
    return {PRECISIONS["int8"]: RULES[request.param]}


def covered(
    folder: Path, rules: dict[Precision, PlacementRules], scales: dict[str, float]
) -> tuple[Covering, Statistics, dict[str, Statistics]]:
    """`scales`: end → its values beside the usual ones."""
    scheme = Scheme(PRECISIONS["int8"], "fp32", rules)
    assignment = assign(MODEL, scheme)
    random = np.random.default_rng(0)

    def statistics(scale: float) -> Statistics:
        x = random.standard_normal((64, 32)).astype(np.float32) * np.float32(scale)
        feeds = [{"x": x}]
        wanted = taps(MODEL, assignment, rules, moments=True)
        return Workshop(folder).statistics(MODEL, wanted, feeds)

    usual = statistics(1.0)
    ends = {name: statistics(scale) for name, scale in scales.items()}
    numbers = choose_activations(
        MODEL, assignment, usual, rules, PLAIN,
        method="minmax", percentile=99.99, carrier=np.float32,
    )  # fmt: skip
    return cover(numbers, assignment.quantized(), usual, ends, "minmax", 99.99), usual, ends


def test_the_same_range_at_both_ends_changes_nothing(
    tmp_path: Path, rules: dict[Precision, PlacementRules]
) -> None:
    found, *_ = covered(tmp_path, rules, {"least": 1.0, "largest": 0.9})
    assert not found.values and not found.moved


def test_a_range_that_is_a_little_wider_at_one_end_serves_both(
    tmp_path: Path, rules: dict[Precision, PlacementRules]
) -> None:
    found, usual, _ = covered(tmp_path, rules, {"largest": 1.3})
    value = found.values["x"]
    assert not found.moved
    assert value.high > usual.values["x"].high
    assert value.moments is usual.values["x"].moments  # weights learn from the usual samples


@pytest.mark.parametrize("scale", [4.0, 1 / 4])
def test_products_that_keep_enough_keep_their_speed(
    tmp_path: Path, rules: dict[Precision, PlacementRules], scale: float
) -> None:
    """Of 42 dB the size with the smaller values loses 12, but 30 dB remain."""
    found, *_ = covered(tmp_path, rules, {"largest": scale})
    assert found.values and not found.moved


@pytest.mark.parametrize("scale", [16.0, 1 / 16])
def test_no_range_serves_sizes_whose_values_differ_sixteenfold(
    tmp_path: Path, rules: dict[Precision, PlacementRules], scale: float
) -> None:
    found, *_ = covered(tmp_path, rules, {"largest": scale})
    [moved] = found.moved
    assert [node.name for node in moved.nodes] == ["product"]
    # the size with the smaller values loses: about 20·log10(16) dB
    [(end, (left, fitted))] = moved.sqnr_db.items()
    assert end == ("" if scale > 1 else "largest")
    assert fitted - left == pytest.approx(24, abs=3)


def test_the_noise_of_the_case_is_that_of_its_product(
    tmp_path: Path, rules: dict[Precision, PlacementRules]
) -> None:
    """A range of sixteen times the width, against the product of the codes themselves."""
    found, usual, ends = covered(tmp_path, rules, {"largest": 16.0})
    [moved] = found.moved
    assert not found.values  # the usual range stays
    rows, widest = usual.values["x"].rows, ends["largest"].values["x"]
    assert rows is not None
    weight = np.asarray(MODEL.graph.initializers["w"].const_value, np.float64)
    exact = rows.data @ weight
    through = fake_quantized(rows.data, widest.low, widest.high, moved.placement.format)
    noise = through @ weight - exact
    expected = 10 * np.log10(np.square(exact).mean() / np.square(noise).mean())
    assert moved.sqnr_db[""][0] == pytest.approx(expected, abs=1)
    assert 10 ** ((moved.sqnr_db[""][1] - moved.sqnr_db[""][0]) / 10) > LOSS
