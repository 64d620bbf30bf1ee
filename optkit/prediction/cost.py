"""What a prediction costs: dollars from dated prices, energy from the board's power."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path

from optkit.devices import Target, names
from optkit.devices import target as find_target
from optkit.documents.prices import DatedPrice
from optkit.errors import InputRefused, UsageError, unknown_name


def price_of(target: Target, overrides: Mapping[str, DatedPrice]) -> DatedPrice | None:
    """The user's price, else the lowest of the target's file, verified ones first."""
    if target.name in overrides or not target.prices:
        return overrides.get(target.name)
    lowest = min(target.prices, key=lambda price: (not price.verified, price.usd_per_hour))
    return DatedPrice.from_object(lowest)


def read_prices(path: Path) -> dict[str, DatedPrice]:
    """A price file: target → {usd_per_hour, provider, as_of}, or a list of such, of which the
    lowest counts. Raises UsageError for an unknown target or a malformed entry, InputRefused for a
    file that is no YAML."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        data = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        reason = str(error).splitlines()[0]
        raise InputRefused(f"no price file: {reason}", where=str(path)) from error
    if not isinstance(data, dict) or not data:
        raise UsageError("it names no target", where=str(path), hint=_FORM)
    found = {}
    for name, entries in data.items():
        if str(name) not in names():
            raise unknown_name("target", str(name), names(), where=str(path))
        listed = entries if isinstance(entries, list) else [entries]
        prices = [_price(entry, f"{path}: {name}", path.name) for entry in listed]
        if not prices:
            raise UsageError("it has no price", where=f"{path}: {name}", hint=_FORM)
        found[find_target(str(name)).name] = min(prices, key=lambda p: p.usd_per_hour)
    return found


_KEYS = ("as_of", "provider", "usd_per_hour")
_FORM = 'write it like l4: {usd_per_hour: 0.70, provider: "mine", as_of: 2026-11-01}'


def _price(entry: object, where: str, source: str) -> DatedPrice:
    if not isinstance(entry, dict) or set(entry) != set(_KEYS):
        raise UsageError(f"a price has exactly {', '.join(_KEYS)}", where=where, hint=_FORM)
    as_of, provider, usd_per_hour = (entry[key] for key in _KEYS)
    try:
        hourly, day = float(usd_per_hour), date.fromisoformat(str(as_of))
    except (TypeError, ValueError) as error:
        raise UsageError(str(error), where=where, hint=_FORM) from error
    if not 0 < hourly < 1e6:
        raise UsageError(f"{hourly} dollars per hour is not a price", where=where, hint=_FORM)
    return DatedPrice(
        usd_per_hour=hourly, provider=str(provider), as_of=day.isoformat(), verified=True,
        source=source,
    )  # fmt: skip


def per_million(price: DatedPrice, throughput: float, devices: int = 1) -> float:
    """Dollars for a million of what `throughput` counts per second over all devices."""
    return price.usd_per_hour * devices / 3600 / throughput * 1e6


def energy_per_million(target: Target, throughput: float, devices: int = 1) -> float | None:
    """Kilowatt-hours for a million at full board power, an upper bound; None: power unknown."""
    if target.tdp_w is None:
        return None
    return target.tdp_w * devices / throughput * 1e6 / 3.6e6
