"""Where steps run: the store of finished steps, the limits of a step, and the executor of steps.

Every public function takes a Workspace. The default is `Workspace()`: the user's store, and steps
that run on this machine. Creating a Workspace opens no file.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from optkit.facts.errors import UsageError
from optkit.ground import progress
from optkit.ground.devices import available_memory
from optkit.ground.execute.ray import RayCluster
from optkit.ground.execute.ray_cluster import checked
from optkit.ground.execute.runner import Listener, Runner
from optkit.ground.execute.task import Executor, TaskLimits
from optkit.ground.execute.transfer import SharedFolder, ThroughRemote
from optkit.ground.store import Remote, Store, default_root


class Silent:
    """A listener that ignores everything."""

    def start(self, step: str, label: str) -> None: ...

    def progress(self, what: str, fraction: float) -> None: ...

    def done(self, step: str, label: str, hit: bool, seconds: float) -> None: ...

    def failed(self, step: str, label: str) -> None: ...

    def note(self, text: str) -> None: ...


@dataclass(frozen=True)
class Workspace:
    """The store, the limits, and where steps run.

    cache: folder of the store; None: $OPTKIT_CACHE, otherwise the user's cache folder.
    remote: URL of the file system through which machines share finished steps
        (docs/how_to/sharing.md); None: $OPTKIT_REMOTE; "": no remote.
    memory: bytes that a step may use; None: half of the available memory.
    timeout: seconds that a step may take; None: one hour, and 12 hours for a compiler that times
        kernels on the device.
    fresh: run your code although what it `depends` on is unchanged.
    executor: "ray" or "ray://HOST:10001": the nodes of this Ray cluster run the steps
        (docs/how_to/ray.md); an object that runs tasks; None: child processes of this process.
    listener: gets the start, the progress and the end of each step, and notes for the user.
        "default": progress in a notebook and on a terminal; elsewhere the logger "optkit" gets a
        line for each step. None: nothing is shown or logged.
    """

    cache: str | Path | None = None
    remote: str | None = None
    memory: int | None = None
    timeout: float | None = None
    fresh: bool = False
    executor: str | Executor | None = None
    listener: Listener | Literal["default"] | None = "default"

    def store(self) -> Store:
        """The store on this machine, without the remote. Raises UsageError if `cache` is a
        URL."""
        return Store(self._folder())

    def runner(self) -> Runner:
        """The runner for the steps of one call, with separate records.

        Raises UsageError if `cache` is a URL, if the kind of `remote` is unknown or if `executor`
        is not the address of a cluster; ToolchainMissing if the library of the remote is not
        installed.
        """
        memory = self.memory or available_memory() // 2
        limits = (
            TaskLimits(memory)
            if self.timeout is None
            else TaskLimits(memory, self.timeout, chosen=True)
        )
        listener = self._listener()
        url = os.environ.get("OPTKIT_REMOTE") if self.remote is None else self.remote
        store = Store(self._folder(), Remote(url) if url else None)
        if self.executor is None:
            return Runner(store, limits, listener, fresh=self.fresh)
        if not isinstance(self.executor, str):
            return Runner(store, limits, listener, self.executor, fresh=self.fresh)
        transfer = ThroughRemote(store) if url else SharedFolder()
        cluster = RayCluster(checked(self.executor), listener.note, transfer)
        return Runner(store, limits, listener, cluster, fresh=self.fresh)

    def _listener(self) -> Listener:
        if self.listener == "default":
            return progress.default()
        return self.listener or Silent()

    def _folder(self) -> Path:
        root = default_root() if self.cache is None else Path(self.cache).expanduser()
        if re.match(r"[a-z][a-z0-9+.-]*:/", str(root)):
            raise UsageError(
                "the store must be a folder of this machine, not a URL",
                where="--cache",
                hint="share it with other machines through that place: --remote URL",
            )
        return root.absolute()
