"""optkit: from a trained PyTorch model to a verified deploy artifact for a named GPU.

    import optkit
    artifact = optkit.build(model, example_inputs, calibration=loader, evaluate=fn, target="l4")
    outputs = optkit.load("artifacts/model-l4-int8").run({"image": images})

Importing this package loads nothing heavy; each name loads what it needs on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optkit import errors as errors
    from optkit.facts.request import Request as Request
    from optkit.ground.artifact import Artifact as Artifact
    from optkit.ground.decoder import DecoderSizes as DecoderSizes
    from optkit.ground.devices import Target as Target
    from optkit.ground.devices import targets as targets
    from optkit.ground.recipe import Recipe as Recipe
    from optkit.ground.workspace import Workspace as Workspace
    from optkit.satellites.generation import Sampling as Sampling
    from optkit.satellites.generation import Speculation as Speculation
    from optkit.satellites.generation import generate as generate
    from optkit.satellites.tuning import Budget as Budget
    from optkit.satellites.tuning import SearchOptions as SearchOptions
    from optkit.verbs.api import attest as attest
    from optkit.verbs.api import bench as bench
    from optkit.verbs.api import build as build
    from optkit.verbs.api import build_fleet as build_fleet
    from optkit.verbs.api import compile as compile
    from optkit.verbs.api import diff as diff
    from optkit.verbs.api import evaluate as evaluate
    from optkit.verbs.api import explain as explain
    from optkit.verbs.api import export as export
    from optkit.verbs.api import finish as finish
    from optkit.verbs.api import fuse as fuse
    from optkit.verbs.api import inspect as inspect
    from optkit.verbs.api import load as load
    from optkit.verbs.api import package as package
    from optkit.verbs.api import plan as plan
    from optkit.verbs.api import quantize as quantize
    from optkit.verbs.api import sign as sign
    from optkit.verbs.api import tune as tune
    from optkit.verbs.api import verify as verify

    __version__: str
else:  # hidden from type checkers, which would otherwise accept any name

    def __getattr__(name: str) -> Any:
        if name == "errors":
            return import_module("optkit.errors")
        if name == "__version__":
            from importlib.metadata import version  # slow to load

            return version("optkit")
        if name not in _HOMES:
            raise AttributeError(f"module 'optkit' has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)


_FUNCTIONS = ("attest", "bench", "build", "build_fleet", "compile", "diff", "evaluate",
              "explain", "export", "finish", "fuse", "inspect", "load", "package", "plan",
              "quantize", "sign", "tune", "verify")  # fmt: skip
_HOMES = {
    **dict.fromkeys(_FUNCTIONS, "optkit.verbs.api"),
    "Artifact": "optkit.ground.artifact",
    "Budget": "optkit.satellites.tuning",
    "DecoderSizes": "optkit.ground.decoder",
    "Recipe": "optkit.ground.recipe",
    "Request": "optkit.facts.request",
    "Sampling": "optkit.satellites.generation",
    "SearchOptions": "optkit.satellites.tuning",
    "Speculation": "optkit.satellites.generation",
    "Target": "optkit.ground.devices",
    "Workspace": "optkit.ground.workspace",
    "generate": "optkit.satellites.generation",
    "targets": "optkit.ground.devices",
}

__all__ = sorted([*_HOMES, "errors"])  # noqa: PLE0605  # names, all of them


def __dir__() -> list[str]:
    return sorted(__all__)
