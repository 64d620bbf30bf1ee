"""The price of a bought device."""

from __future__ import annotations

from optkit.facts.documents.record import Positive, Record


class Purchase(Record):
    """US dollars for a device, as of a day. `watts`: what it takes; null: its board's power."""

    usd: Positive
    watts: Positive | None = None
    provider: str
    as_of: str
    source: str
