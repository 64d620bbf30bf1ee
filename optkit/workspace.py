"""Where work is done: the store of finished steps, the limits of a step, and who executes steps.

Every public function takes a Workspace; without one it is `Workspace()`, the user's own store and
this machine. Making one opens nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the command line makes a Workspace before it knows whether work will be done
    from optkit.execute.runner import Listener, Runner
    from optkit.store import Store

_SECONDS = 3600.0

Executor = Callable[..., "dict[str, Any]"]
"""Runs one task of a step under limits and returns what the step tells, as
`execute.warm_workers.Workers` does in a child process."""


class Silent:
    """A listener that ignores everything."""

    def start(self, step: str, label: str) -> None: ...

    def progress(self, what: str, fraction: float) -> None: ...

    def done(self, step: str, label: str, hit: bool, seconds: float) -> None: ...

    def note(self, text: str) -> None: ...


@dataclass(frozen=True)
class Workspace:
    """The store, the limits, and where steps run.

    cache: folder of the store; None: $OPTKIT_CACHE, else the user's cache folder.
    remote: URL of a place through which machines share finished steps (docs/sharing.md); None:
        $OPTKIT_REMOTE; "": none.
    memory: bytes that a step may use; None: half of what is available.
    timeout: seconds that a step may take; None: one hour.
    executor: "ray" or "ray://HOST:10001", a Ray cluster whose nodes run the steps (docs/ray.md);
        None: child processes of this one; or an object that runs tasks itself.
    listener: is told which step starts, how far it is, and what a user should know; None: nobody.
    """

    cache: str | Path | None = None
    remote: str | None = None
    memory: int | None = None
    timeout: float | None = None
    executor: str | Executor | None = None
    listener: Listener | None = None

    def store(self) -> Store:
        """The store on this machine, without the remote. Raises UsageError where `cache` is a
        URL."""
        from optkit.store import Store

        return Store(self._folder())

    def runner(self) -> Runner:
        """What runs the steps of one call, with records of its own.

        Raises UsageError where `cache` is a URL, `remote` is none of a known kind or `executor` is
        no cluster's address, ToolchainMissing where the remote's library is not installed.
        """
        from optkit.devices import available_memory
        from optkit.execute.local import Limits
        from optkit.execute.ray import RayCluster
        from optkit.execute.ray_cluster import checked
        from optkit.execute.runner import Runner
        from optkit.execute.transfer import SharedFolder, ThroughRemote
        from optkit.store import Remote, Store

        limits = Limits(self.memory or available_memory() // 2, self.timeout or _SECONDS)
        listener = self.listener or Silent()
        url = os.environ.get("OPTKIT_REMOTE") if self.remote is None else self.remote
        store = Store(self._folder(), Remote(url) if url else None)
        if self.executor is None:
            return Runner(store, limits, listener)
        if not isinstance(self.executor, str):
            return Runner(store, limits, listener, self.executor)
        transfer = ThroughRemote(store) if url else SharedFolder()
        cluster = RayCluster(checked(self.executor), listener.note, transfer)
        return Runner(store, limits, listener, cluster)

    def _folder(self) -> Path:
        from optkit.errors import UsageError
        from optkit.store import default_root

        root = default_root() if self.cache is None else Path(self.cache).expanduser()
        if re.match(r"[a-z][a-z0-9+.-]*:/", str(root)):
            raise UsageError(
                "the store is a folder of this machine, and no URL",
                where="--cache",
                hint="share it with other machines through that place: --remote URL",
            )
        return root.absolute()
