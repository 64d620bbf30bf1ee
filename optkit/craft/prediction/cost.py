"""What a prediction costs: dollars from dated prices, energy from the board's power."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from optkit.facts.device_facts import Price
from optkit.facts.documents.prices import Purchase
from optkit.facts.errors import InputRefused, UsageError, unknown_name
from optkit.ground.devices import Target, names
from optkit.ground.devices import target as find_target


def price_of(target: Target, overrides: Mapping[str, Price]) -> Price | None:
    """The user's price, else the lowest of the target's file, verified ones first."""
    if target.name in overrides or not target.prices:
        return overrides.get(target.name)
    return min(target.prices, key=lambda price: (not price.verified, price.usd_per_hour))


@dataclass(frozen=True)
class PriceFile:
    """A user's prices by target: per hour, per hour of a spot device, of a device."""

    rents: Mapping[str, Price]
    spots: Mapping[str, Price]
    purchases: Mapping[str, Purchase]


NO_PRICES = PriceFile({}, {}, {})


def read_prices(path: Path) -> PriceFile:
    """A price file: target → {provider, as_of, and prices}, or a list of such, of which the lowest
    counts. Raises UsageError for an unknown target or a malformed entry, InputRefused for a file
    that is no YAML."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        data = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        reason = str(error).splitlines()[0]
        raise InputRefused(f"no price file: {reason}", where=str(path)) from error
    if not isinstance(data, dict) or not data:
        raise UsageError("it names no target", where=str(path), hint=_FORM)
    entries: dict[str, list[_Entry]] = {}
    for name, listed in data.items():
        if str(name) not in names():
            raise unknown_name("target", str(name), names(), where=str(path))
        listed = listed if isinstance(listed, list) else [listed]
        if not listed:
            raise UsageError("it has no price", where=f"{path}: {name}", hint=_FORM)
        entries[find_target(str(name)).name] = [_entry(e, f"{path}: {name}") for e in listed]
    return PriceFile(
        _lowest(entries, "usd_per_hour", path.name),
        _lowest(entries, "spot_usd_per_hour", path.name),
        {
            name: Purchase(
                usd=least.prices["purchase_usd"],
                watts=least.prices.get("watts"),
                provider=least.provider,
                as_of=least.as_of,
                source=path.name,
            )
            for name, least in _least(entries, "purchase_usd").items()
        },
    )


@dataclass(frozen=True)
class _Entry:
    """`prices`: those of `_PRICES` that the entry has, and its watts."""

    provider: str
    as_of: str
    prices: Mapping[str, float]


def _least(entries: Mapping[str, Sequence[_Entry]], key: str) -> dict[str, _Entry]:
    """Target → the entry with the lowest price of that kind."""
    priced = {name: [e for e in of if key in e.prices] for name, of in entries.items()}
    return {name: min(of, key=lambda e: e.prices[key]) for name, of in priced.items() if of}


def _lowest(entries: Mapping[str, Sequence[_Entry]], key: str, source: str) -> dict[str, Price]:
    return {
        name: Price(
            usd_per_hour=least.prices[key],
            provider=least.provider,
            as_of=least.as_of,
            verified=True,
            source=source,
        )
        for name, least in _least(entries, key).items()
    }


_PRICES = ("usd_per_hour", "spot_usd_per_hour", "purchase_usd")
_NUMBERS = (*_PRICES, "watts")
_KEYS = (*_NUMBERS, "provider", "as_of")
_FORM = 'write it like l4: {usd_per_hour: 0.70, provider: "mine", as_of: 2026-11-01}'


def _entry(entry: object, where: str) -> _Entry:
    if not isinstance(entry, dict):
        raise UsageError(f"{str(entry)[:40]!r} has no keys", where=where, hint=_FORM)
    if unknown := [str(key) for key in entry if key not in _KEYS]:
        raise UsageError(
            f"unknown key {unknown[0]!r}, not one of {', '.join(_KEYS)}", where=where, hint=_FORM
        )
    if missing := [key for key in ("provider", "as_of") if key not in entry]:
        told = f"a price needs provider and as_of, and it lacks {' and '.join(missing)}"
        raise UsageError(told, where=where, hint=_FORM)
    if not set(_PRICES) & set(entry):
        raise UsageError(f"it has no price: none of {', '.join(_PRICES)}", where=where, hint=_FORM)
    prices = {key: _number(key, entry[key], where) for key in _NUMBERS if key in entry}
    try:
        day = date.fromisoformat(str(entry["as_of"]))
    except ValueError as error:
        told = f"as_of: {str(entry['as_of'])[:40]!r} is no date"
        raise UsageError(told, where=where, hint=_FORM) from error
    for key, value in prices.items():
        if not 0 < value < 1e6:
            what = "a number of watts" if key == "watts" else "a price"
            raise UsageError(f"{key}: {value} is not {what}", where=where, hint=_FORM)
    return _Entry(str(entry["provider"]), day.isoformat(), prices)


def _number(key: str, value: object, where: str) -> float:
    try:
        return float(str(value))
    except ValueError as error:
        told = f"{key}: {str(value)[:40]!r} is no number"
        raise UsageError(told, where=where, hint=_FORM) from error


def per_million(usd_per_hour: float, throughput: float, devices: int = 1) -> float:
    """Dollars for a million of what `throughput` counts per second over all devices, each of which
    costs `usd_per_hour`."""
    return usd_per_hour * devices / 3600 / throughput * 1e6


def energy_per_million(target: Target, throughput: float, devices: int = 1) -> float | None:
    """Kilowatt-hours for a million at full board power, an upper bound; None: power unknown."""
    if target.tdp_w is None:
        return None
    return target.tdp_w * devices / throughput * 1e6 / 3.6e6
