"""What is built after a training: every target in every precision."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from optkit.craft.sources.wrappers import unwrapped
from optkit.facts.errors import OptkitError
from optkit.ground.artifact import Artifact
from optkit.ground.workspace import Workspace
from optkit.road import jobs
from optkit.road.jobs import RecipeLike
from optkit.road.jobs.batches import Batch, taken
from optkit.road.jobs.in_memory import Evaluate
from optkit.verbs import api
from optkit.verbs.integrations import tracking

if TYPE_CHECKING:
    from torch.nn import Module

LOG = logging.getLogger("optkit")


@dataclass(frozen=True)
class Deployment:
    """What is built after a training. The fields are the arguments of `optkit.build`; `targets` and
    `precisions` are one name or several.

    `calibration`: None: the batches that the model was trained with, if the recipe names no source.
    `tracker`: where `tracking.log` writes the figures of each artifact, in runs of `project`; None:
    nowhere.
    """

    targets: str | Sequence[str]
    precisions: str | Sequence[str] = ("int8",)
    calibration: Iterable[Batch] | None = None
    evaluate: Evaluate | None = None
    recipe: RecipeLike | None = None
    out: str | Path = "artifacts"
    name: str | None = None
    defer: bool = False
    workspace: Workspace = Workspace()
    tracker: tracking.Tracker | None = None
    project: str = "optkit"

    def check(self) -> None:
        """Raise UnknownName, or Impossible for a precision that a target does not have. The
        callbacks call it when they are created: a training may take days."""
        for target, precision in self._pairs():
            jobs.pair(target, precision)

    def build(self, model: Module, batches: Iterable[Batch]) -> tuple[Artifact, ...]:
        """The artifacts of a trained module, in the order of targets and precisions. What cannot be
        built is logged as an error and left out.

        batches: those of the training; the first one is the example. Items that `forward` does not
            take, such as labels, are ignored.
        """
        built = []
        for target, precision in self._pairs():
            artifact = self._one(model, batches, target, precision)
            if artifact is not None:
                built.append(artifact)
                self._track(artifact)
        return tuple(built)

    def _pairs(self) -> Iterable[tuple[str, str]]:
        """Every target with every precision; a text is one name."""
        targets, precisions = (
            (names,) if isinstance(names, str) else names
            for names in (self.targets, self.precisions)
        )
        return product(targets, precisions)

    def _one(
        self, model: Module, batches: Iterable[Batch], target: str, precision: str
    ) -> Artifact | None:
        try:
            artifact = api.build(
                model,
                example_of(model, batches),
                target=target,
                precision=precision,
                recipe=self.recipe,
                calibration=batches if self.calibration is None else self.calibration,
                evaluate=self.evaluate,
                out=self.out,
                name=self.name,
                defer=self.defer,
                workspace=self.workspace,
            )
        except OptkitError as error:
            LOG.error("no artifact for %s in %s: %s", target, precision, error)
            return None
        except Exception:  # of the caller's own code, or a bug: the training goes on too
            LOG.exception("no artifact for %s in %s", target, precision)
            return None
        LOG.info("built %s", artifact.path)
        return artifact

    def _track(self, artifact: Artifact) -> None:
        if self.tracker is None:
            return
        try:
            tracking.log(artifact, to=self.tracker, project=self.project)
        except OptkitError as error:
            LOG.error("%s has no run in %s: %s", artifact.name, self.tracker, error)
        except Exception:  # a bug: the training goes on too
            LOG.exception("%s has no run in %s", artifact.name, self.tracker)


def deploy(
    model: Module,
    batches: Iterable[Batch],
    *,
    targets: str | Sequence[str],
    precisions: str | Sequence[str] = ("int8",),
    calibration: Iterable[Batch] | None = None,
    evaluate: Evaluate | None = None,
    recipe: RecipeLike | None = None,
    out: str | Path = "artifacts",
    name: str | None = None,
    workspace: Workspace = Workspace(),
    tracker: tracking.Tracker | None = None,
    project: str = "optkit",
) -> tuple[Artifact, ...]:
    """Build artifacts of a module after its training, in the process of rank 0; elsewhere nothing
    happens.

    batches: a loader of the training; the first batch is the example. The other arguments are those
        of `optkit.build`.
    tracker, project: where the figures of each artifact are written, see `tracking.log`.

    Raises nothing: what cannot be built is logged by the logger "optkit" and left out.
    """
    if not is_first_rank():
        return ()
    deployment = Deployment(
        targets,
        precisions,
        calibration,
        evaluate,
        recipe,
        out,
        name,
        workspace=workspace,
        tracker=tracker,
        project=project,
    )
    return deployment.build(model, batches)


def is_first_rank() -> bool:
    """Whether this is the only process of the training, or the one of rank 0."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank() == 0
    return os.environ.get("RANK", "0") == "0"  # of torchrun, if the script has no process group


def example_of(model: Module, batches: Iterable[Batch]) -> Batch:
    """The first batch, without the items that `forward` does not take. Raises ValueError if there
    is no batch."""
    batch = next(iter(batches), None)
    if batch is None:
        raise ValueError("the loader has no batch, and the export needs one as an example")
    return taken(unwrapped(model).forward, batch)
