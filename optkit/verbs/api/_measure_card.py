"""Kernels of this machine's card, timed for the predictions of its target."""

from __future__ import annotations

import importlib.util
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from optkit.facts.card_facts import Library
from optkit.facts.documents.measured_card import CARD, MeasuredCard
from optkit.facts.errors import ToolchainMissing
from optkit.ground import card_files
from optkit.ground.devices import gpus, has_driver
from optkit.ground.devices.gpus import torch_build
from optkit.ground.runtimes import backend
from optkit.ground.workspace import Workspace
from optkit.road.steps.measure_card import MeasureCard

_SECONDS = 110.0  # the rest of two minutes is for loading the library


def measure_card(
    share: str | Path | None = None, *, workspace: Workspace = Workspace()
) -> MeasuredCard:
    """Time kernels on the first GPU that a process sees, and keep them for predictions of its
    target.

    share: write the measurement there too, for the maintainers of optkit.

    Raises ToolchainMissing without a GPU, without a library that runs kernels on it, or for a card
    that optkit does not know; WorkerFailed if no kernel ran; StorageError.
    """
    found = gpus()
    if not found.devices:
        elsewhere = (
            "run this on the machine with the GPU, and copy the file that it keeps into "
            f"{card_files.path_of('TARGET').parent} of this one"
        )
        raise ToolchainMissing(
            f"there is no card to measure: {found.reason}",
            hint="pip install nvidia-ml-py lists the GPUs of this driver"
            if has_driver()
            else elsewhere,
        )
    library = _library()
    step = MeasureCard(library=library, seconds=_SECONDS, at=str(time.time_ns()))
    times = workspace.runner().do(step, f"time kernels through {library}")
    card = MeasuredCard(
        schema=CARD,
        target=times.target,
        device=times.device,
        compute_capability=times.compute_capability,
        memory_bytes=times.memory_bytes,
        driver=times.driver,
        library=library,
        versions={**times.versions, "optkit": version("optkit")},
        date=datetime.now(UTC).date().isoformat(),
        seconds=times.seconds,
        marks=times.marks,
        kernels=times.kernels,
        failed=times.failed,
    )
    kept = card_files.keep(card)
    if share is not None:
        card_files.write(card, Path(share), "--share")
    return kept


def _library() -> Library:
    """torch if its build is for CUDA, else ONNX Runtime with the CUDA provider."""
    spec, build = importlib.util.find_spec("torch"), None
    if spec is not None and spec.origin is not None:
        build = torch_build(Path(spec.origin).with_name("version.py")) or "build unknown"
        if build.startswith("CUDA"):
            return "torch"
    try:
        backend("onnxruntime-cuda").check()
    except ToolchainMissing as error:
        has = "torch is not installed" if build is None else f"torch is a {build}"
        raise ToolchainMissing(
            f"no library here runs kernels on a GPU: {has}; {error.message}",
            hint="pip install 'optkit[torch]' with a CUDA build of torch (pytorch.org), or "
            "pip uninstall -y onnxruntime && pip install 'optkit[gpu]'",
        ) from error
    return "onnxruntime"
