"""Steps as records of the logger "optkit"."""

from __future__ import annotations

import logging

from optkit.facts.printable import printable

_LOGGER = logging.getLogger("optkit")


class Log:
    """A listener: INFO for each step that ran, DEBUG for each result that was in the store, WARNING
    for each note. `logging` is not configured: by default Python shows warnings only."""

    def start(self, step: str, label: str) -> None: ...

    def progress(self, what: str, fraction: float) -> None: ...

    def done(self, step: str, label: str, hit: bool, seconds: float) -> None:
        if hit:
            _LOGGER.debug("in the store: %s", printable(label))
        else:
            _LOGGER.info("%s: %.1f s", printable(label), seconds)

    def failed(self, step: str, label: str) -> None: ...  # the caller gets the error

    def note(self, text: str) -> None:
        _LOGGER.warning("%s", printable(text))
