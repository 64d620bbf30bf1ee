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
    from optkit.api import attest as attest
    from optkit.api import bench as bench
    from optkit.api import build as build
    from optkit.api import build_fleet as build_fleet
    from optkit.api import compile as compile
    from optkit.api import diff as diff
    from optkit.api import evaluate as evaluate
    from optkit.api import explain as explain
    from optkit.api import export as export
    from optkit.api import finish as finish
    from optkit.api import fuse as fuse
    from optkit.api import inspect as inspect
    from optkit.api import load as load
    from optkit.api import package as package
    from optkit.api import plan as plan
    from optkit.api import quantize as quantize
    from optkit.api import sign as sign
    from optkit.api import tune as tune
    from optkit.api import verify as verify
    from optkit.artifact import Artifact as Artifact
    from optkit.decoder import DecoderSizes as DecoderSizes
    from optkit.devices import Target as Target
    from optkit.devices import targets as targets
    from optkit.generation import Sampling as Sampling
    from optkit.generation import Speculation as Speculation
    from optkit.generation import generate as generate
    from optkit.recipe import Recipe as Recipe
    from optkit.request import Request as Request
    from optkit.tuning import Budget as Budget
    from optkit.tuning import SearchOptions as SearchOptions
    from optkit.workspace import Workspace as Workspace

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
    **dict.fromkeys(_FUNCTIONS, "optkit.api"),
    "Artifact": "optkit.artifact",
    "Budget": "optkit.tuning",
    "DecoderSizes": "optkit.decoder",
    "Recipe": "optkit.recipe",
    "Request": "optkit.request",
    "Sampling": "optkit.generation",
    "SearchOptions": "optkit.tuning",
    "Speculation": "optkit.generation",
    "Target": "optkit.devices",
    "Workspace": "optkit.workspace",
    "generate": "optkit.generation",
    "targets": "optkit.devices",
}

__all__ = sorted([*_HOMES, "errors"])  # noqa: PLE0605  # names, all of them


def __dir__() -> list[str]:
    return sorted(__all__)
