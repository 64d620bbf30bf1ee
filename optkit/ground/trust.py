"""Which files this machine may open: engines that it compiled, and graphs that it has tried.

The checksums of a manifest prove that files belong together, but not who wrote them: their author
also wrote the checksums. The digests of files that were written or tried here are recorded beside
the store. So are those of an artifact whose signature the user has verified and trusts:

    root/known/<sha256>
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path

import numpy as np

from optkit.facts.errors import InputRefused, WorkerFailed
from optkit.facts.tensors import Feed, TensorInfo
from optkit.ground import intake as stage
from optkit.ground.devices import available_memory
from optkit.ground.execute.proxy import Proxy
from optkit.ground.execute.task import TaskLimits
from optkit.ground.store import default_root

_SECONDS = 600.0  # the time for opening and running a graph
_FEED_BYTES = 256 << 20  # a graph with a larger feed is not run

FOREIGN = "it was not compiled on this machine, and loading it runs its code"
HINT = (
    "if you know and trust its author: optkit.load(path, trusted=True), or --trusted; if it is "
    "signed: optkit verify ARTIFACT --key FILE --trust"
)


def know(sha256: str) -> None:
    """Record the digest for this user on this machine, if it can be written."""
    place = default_root() / "known" / sha256
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        place.touch()


def knows(sha256: str) -> bool:
    return (default_root() / "known" / sha256).is_file()


def try_graph(
    path: Path,
    inputs: Sequence[TensorInfo],
    sizes: Mapping[str, int],
    options: Mapping[str, object],
) -> None:
    """Check a foreign graph as the intake does, then open it and run it once, on zeros of these
    sizes, in a child with limits (half of the free memory, ten minutes).

    Raises InputRefused (the reasons of the intake, or it does not load), WorkerFailed. This does
    not limit what depends on the values of a feed, for example the length of a loop.
    """
    stage.check_onnx(path)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="optkit-") as folder,
            Proxy(path, options, _limits(), Path(folder)) as tried,
        ):
            feed = _zeros(inputs, sizes)
            with suppress(InputRefused):  # the graph may refuse zeros
                if feed is not None:
                    tried.run(feed)
    except WorkerFailed as error:
        error.where, error.hint = str(path), HINT
        raise


def _limits() -> TaskLimits:
    return TaskLimits(available_memory() // 2, _SECONDS)


def _zeros(inputs: Sequence[TensorInfo], sizes: Mapping[str, int]) -> Feed | None:
    """One sample of each input; None if that is large, or of a type that numpy does not have."""
    shapes = {
        info.name: tuple(d if isinstance(d, int) else sizes.get(d, 1) for d in info.shape)
        for info in inputs
    }
    try:
        dtypes = {info.name: np.dtype(info.dtype) for info in inputs}
    except TypeError:
        return None
    # numpy refuses some shapes although a dimension of size 0 makes them empty
    sizes_of = {name: prod(max(size, 1) for size in shape) for name, shape in shapes.items()}
    if sum(sizes_of[name] * dtypes[name].itemsize for name in shapes) > _FEED_BYTES:
        return None
    return {name: np.zeros(shape, dtypes[name]) for name, shape in shapes.items()}
