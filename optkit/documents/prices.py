"""The price of a device per hour."""

from __future__ import annotations

from optkit.documents.record import Positive, Record


class DatedPrice(Record):
    """US dollars per device and hour, as of a day."""

    usd_per_hour: Positive
    provider: str
    as_of: str
    verified: bool
    source: str
