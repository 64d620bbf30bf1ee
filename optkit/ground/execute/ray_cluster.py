"""Connects this process to a Ray cluster: its address, and the single connection."""

from __future__ import annotations

import logging
import os
import signal
import threading
from pathlib import Path
from types import ModuleType

from optkit.facts.errors import ToolchainMissing, UsageError

_joined: dict[str, str] = {}  # "address": the address to which this process is connected


def checked(address: str) -> str:
    """The address that a user gave, if it is valid. Raises UsageError."""
    if address == "ray" or address.startswith("ray://"):
        return address
    raise UsageError(
        f"{address!r} is not the address of a cluster",
        where="--on",
        hint="ray, or ray://HOST:10001",
    )


def connected(address: str) -> ModuleType:
    """The ray module, connected once per process.

    Raises ToolchainMissing if Ray is not installed or the cluster does not answer, UsageError if
    this process uses another cluster.
    """
    # otherwise Ray would write a new token into the home folder, and send usage reports
    token = Path.home() / ".ray" / "auth_token"
    if not ({"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys() or token.exists()):
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise ToolchainMissing(
            "ray is not installed", where="--on", hint="pip install 'optkit[ray]'"
        ) from None
    joined = _joined.get("address", address)
    if ray.is_initialized() and address.startswith("ray://") and address != joined:
        raise UsageError(
            f"this process already uses another cluster: {joined}",
            where="on",
            hint="call ray.shutdown() first",
        )
    if not ray.is_initialized():
        _joined["address"] = address
        where = {"include_dashboard": False} if address == "ray" else {"address": address}
        terminated = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(**where, logging_level=logging.ERROR, log_to_driver=False)
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, terminated)  # Ray replaces the handler by its handler
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise ToolchainMissing(
                f"the cluster does not answer: {str(error).splitlines()[0]}",
                where=f"--on {address}",
                hint="is it running, with the same versions of Ray and Python?",
            ) from error
    return ray
