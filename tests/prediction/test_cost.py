"""Dollars and energy of a prediction."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optkit.craft.prediction.cost import energy_per_million, per_million, price_of
from optkit.facts.device_facts import Price
from optkit.ground.devices import target

MINE = Price(
    usd_per_hour=3.6, provider="mine", as_of="2026-11-01", verified=True, source="prices.yaml"
)


def test_all_devices_are_paid_for() -> None:
    """3.60 dollars an hour are a tenth of a cent a second."""
    assert per_million(MINE.usd_per_hour, 1e6) == pytest.approx(0.001)
    assert per_million(MINE.usd_per_hour, 1e6, devices=4) == pytest.approx(0.004)


def test_all_devices_take_power() -> None:
    board = target("l4")
    one = energy_per_million(board, 1e6)
    assert board.tdp_w is not None and one == pytest.approx(board.tdp_w / 3.6e6)
    assert energy_per_million(board, 1e6, devices=3) == pytest.approx(3 * one)


def test_a_verified_price_goes_before_a_lower_one() -> None:
    listed = (
        Price(0.1, "a", "2026-01-01", verified=False, source="a forum"),
        Price(0.9, "b", "2026-01-01", verified=True, source="b's page"),
        Price(0.8, "c", "2026-01-01", verified=True, source="c's page"),
    )
    board = replace(target("l4"), prices=listed)
    chosen = price_of(board, {})
    assert chosen is not None and chosen.provider == "c"
    assert price_of(board, {"l4": MINE}) is MINE
    assert price_of(replace(board, prices=()), {}) is None
