"""The progress of a calibration."""

from __future__ import annotations

import time

from optkit.ground.runtimes import Progress


class CalibrationClock:
    """Reports progress: samples, their rate, and the time left."""

    def __init__(self, progress: Progress, samples: int | None, batches: int) -> None:
        self._progress, self._samples, self._batches = progress, samples, batches
        self.feeds = 0  # that are done in this pass
        self.start(0)

    def start(self, done: int) -> None:
        """A pass begins, or continues with `done` samples."""
        self._begun, self._started = done, time.monotonic()

    def tell(self, done: int, index: int, passes: int) -> None:
        """Report that `done` samples of pass `index` of `passes` are done."""
        whole, part = (self._samples, done) if self._samples else (self._batches, self.feeds)
        share = min(part / whole, 1.0) if whole else 0.0
        rate = (done - self._begun) / max(time.monotonic() - self._started, 1e-9)
        text = f"{done} of {self._samples} samples" if self._samples else f"{done} samples"
        if passes > 1:
            text = f"pass {index + 1} of {passes}, {text}"
        text += f", {rate:.3g}/s"
        if self._samples and rate:
            left = (self._samples * (passes - index) - done) / rate
            text += f", {max(left, 0):.0f} s left"
        self._progress(text, (index + share) / passes)
