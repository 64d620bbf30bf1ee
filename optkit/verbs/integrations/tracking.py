"""The figures of an artifact in an experiment tracker: MLflow, Weights & Biases, or trackio.

    tracking.log(artifact, to="mlflow", project="digits")

A run of the artifact's name gets each figure as a number, and its evidence and interval beside it.
MLflow also gets the model, with signature and input example. Where the tracker stores it is said as
for any other program: MLFLOW_TRACKING_URI, WANDB_MODE, TRACKIO_DIR, … A run that the caller has
open stays open, and gets nothing.
"""

from __future__ import annotations

import contextlib
import contextvars
import importlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Literal

from optkit.facts.errors import OptkitError, StorageError, ToolchainMissing, unknown_name
from optkit.ground.artifact import Artifact
from optkit.road.packaging import formats
from optkit.road.packaging.scalars import Scalar, facts, scalars
from optkit.road.packaging.variants import PackageSubject

Tracker = Literal["mlflow", "wandb", "trackio"]


@dataclass(frozen=True)
class LoggedRun:
    """What was logged. `run`: its identity in the tracker. `model`: MLflow's URI of the model, for
    `mlflow.pyfunc.load_model`; None for other trackers."""

    run: str
    model: str | None = None


@dataclass(frozen=True)
class _Entry:
    """What a tracker gets."""

    name: str
    facts: Mapping[str, str]
    figures: Mapping[str, Scalar]
    subject: PackageSubject

    @property
    def numbers(self) -> dict[str, int | float]:
        return {name: each.value for name, each in self.figures.items()}

    @property
    def notes(self) -> dict[str, str]:
        """The evidence of each figure, and its interval if it has one."""
        notes = {f"evidence.{name}": each.evidence.value for name, each in self.figures.items()}
        for name, each in self.figures.items():
            if each.interval is not None:
                low, high = each.interval
                notes[f"interval.{name}"] = f"{low:.6g} to {high:.6g}"
        return notes


def log(artifact: Artifact | str | Path, *, to: Tracker, project: str = "optkit") -> LoggedRun:
    """Log an artifact as a new run of a project; MLflow's word for a project is experiment. Every
    file of the artifact is verified first.

    Raises UnknownName (the tracker), ToolchainMissing (its library), UsageError (an artifact of
    several graphs), InputRefused (no artifact), IntegrityError (damaged), StorageError (the tracker
    refuses, or cannot be reached).
    """
    if to not in _TRACKERS:
        raise unknown_name("tracker", to, tuple(_TRACKERS))
    library = _library(to)
    if not isinstance(artifact, Artifact):
        artifact = Artifact.load(Path(artifact))
    subject = PackageSubject.of(artifact.path)
    [variant] = subject.variants
    manifest, result = variant.artifact.manifest, variant.result
    entry = _Entry(manifest.name, facts(manifest, result), scalars(result), subject)
    with _refusals(to), contextlib.redirect_stdout(sys.stderr):  # trackers print
        return _TRACKERS[to](library, entry, project)


def _library(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ToolchainMissing(
            f"{name} does not load: {error}", hint=f"pip install 'optkit[{name}]'"
        ) from error


@contextlib.contextmanager
def _refusals(tracker: str) -> Iterator[None]:
    """Errors of a tracker are about its store; each has exceptions of its own."""
    try:
        yield
    except OptkitError:
        raise
    except Exception as error:
        raise StorageError(
            f"{tracker} did not take the figures: {error}",
            hint="check where it stores runs: MLFLOW_TRACKING_URI, WANDB_MODE, TRACKIO_DIR, …",
        ) from error


def _to_mlflow(mlflow: ModuleType, entry: _Entry, project: str) -> LoggedRun:
    """A run with metrics, params and tags; and the model, which has the same params and tags."""
    client, entities = mlflow.MlflowClient(), importlib.import_module("mlflow.entities")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(formats.package(entry.subject, "mlflow", Path(scratch)).folder)
        (folder / formats.MARKER).unlink()  # it names folders of this machine
        found = client.get_experiment_by_name(project)
        experiment = client.create_experiment(project) if found is None else found.experiment_id
        tags = {f"optkit.{name}": note for name, note in entry.notes.items()}
        run = client.create_run(experiment, run_name=entry.name, tags=tags).info.run_id
        name = entry.name.replace(".", "_")  # which MLflow does not take in the name of a model
        model = client.create_logged_model(experiment, name, run, tags, dict(entry.facts)).model_id
        try:
            client.log_model_artifacts(model, str(folder))
            now = int(time.time() * 1000)
            metrics = [
                entities.Metric(name, value, now, 0, model_id=model, run_id=run)
                for name, value in entry.numbers.items()
            ]
            params = [entities.Param(name, fact) for name, fact in entry.facts.items()]
            client.log_batch(run, metrics=metrics, params=params)
        except Exception:
            client.finalize_logged_model(model, "FAILED")
            client.set_terminated(run, "FAILED")
            raise
    client.finalize_logged_model(model, "READY")
    client.set_terminated(run)
    return LoggedRun(run, f"models:/{model}")


def _to_wandb(wandb: ModuleType, entry: _Entry, project: str) -> LoggedRun:
    run = wandb.init(
        project=project,
        name=entry.name,
        job_type="optkit",
        config={**entry.facts, **entry.notes},
        reinit="create_new",  # leaves a run of the caller open
        settings=wandb.Settings(console="off"),
    )
    with run:
        run.log(entry.numbers)
        return LoggedRun(run.id)


def _to_trackio(trackio: ModuleType, entry: _Entry, project: str) -> LoggedRun:
    def write() -> LoggedRun:
        run = trackio.init(
            project,
            entry.name,
            config={**entry.facts, **entry.notes},
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        run.log(entry.numbers)
        run.finish()
        return LoggedRun(run.id)

    # the current run is a context variable: in an empty context a run of the caller stays open
    return contextvars.Context().run(write)


_TRACKERS: Mapping[str, Callable[[ModuleType, _Entry, str], LoggedRun]] = MappingProxyType(
    {"mlflow": _to_mlflow, "wandb": _to_wandb, "trackio": _to_trackio}
)
