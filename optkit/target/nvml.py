"""What NVML tells of the GPUs of this machine, asked so that nothing raises: the driver, the
binding or the card may each lack an answer, which is None then.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}
"""nvmlClocksEventReason bits that slow a busy card (nvml.h)."""


class Nvml:
    """The library, and a handle of each GPU. `reason`: why there is none to ask."""

    def __init__(self) -> None:
        self.handles: list[Any] = []
        self.reason: str | None = None
        try:
            self._library = importlib.import_module("pynvml")
        except ImportError:
            self.reason = "nvidia-ml-py is not installed (extra: gpu)"
            return
        try:
            self._library.nvmlInit()
            count = self._library.nvmlDeviceGetCount()
            self.handles = [self._library.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        except self._library.NVMLError as error:
            self.reason = f"NVML: {error}"
        if not self.handles and self.reason is None:
            self.reason = "NVML lists no device"

    def ask(self, function: str, *arguments: Any) -> Any:
        """None where the binding lacks the function or the card its answer."""
        call: Callable[..., Any] | None = getattr(self._library, function, None)
        if call is not None:
            with suppress(self._library.NVMLError):
                return call(*arguments)
        return None

    def measure(self, function: str, handle: Any, *arguments: Any, scale: float) -> float | None:
        """A number, times `scale`."""
        value = self.ask(function, handle, *arguments)
        return None if value is None else float(value) * scale

    def throttled(self, handle: Any) -> tuple[str, ...]:
        """Why the clock is lower than it could be; having nothing to do is no such reason."""
        bits = self.ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if bits is None:  # its name before driver 535
            bits = self.ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
        return tuple(text for bit, text in _REASONS.items() if bits & bit)
