"""The public functions: a model or a path in, an Artifact out.

    optkit.build(model, example_inputs, calibration=loader, evaluate=fn, target="l4")
    optkit.build("model.py:create", recipe="digits-vit", target="l4")
    optkit.load("artifacts/digits-vit-l4-int8").run({"image": images})

    request    what a call asks for: recipe, target and precision, store and limits, a job
    building   a model to an artifact
    artifacts  artifacts again, opened
    fleet      a model to an artifact for each target and precision
    finishing  what is pending in an artifact, done on its device
    elsewhere  the same on the node of a cluster that has the device
    tuned      the search in front of a build
    stages     the road as far as one stage, or one figure
    differing  two artifacts, graphs or reports compared
    explaining why an artifact is not faster, and why its accuracy fell
    planning   predictions before anything is built

The command line is a thin skin over this module: it parses, calls, prints.
"""

from __future__ import annotations

from optkit.api.against import bench_against
from optkit.api.artifacts import Built, inspect, load
from optkit.api.building import build, build_one, rehearse
from optkit.api.checks import diagnose
from optkit.api.differing import diff, diff_one
from optkit.api.explaining import explain, explain_one
from optkit.api.finishing import finish
from optkit.api.fleet import Fleet, build_fleet
from optkit.api.planning import plan, plan_described, plan_one
from optkit.api.request import Silent, open_runner, open_store, pair, resolve
from optkit.api.stages import bench, compile, evaluate, export, figures, files, fuse, quantize
from optkit.api.tuned import Found, tune, tune_one

__all__ = [
    "Built", "Fleet", "Found", "Silent", "bench", "bench_against", "build", "build_fleet",
    "build_one", "compile", "diagnose", "diff", "diff_one", "evaluate", "explain", "explain_one",
    "export", "figures", "files", "finish", "fuse", "inspect", "load", "open_runner", "open_store",
    "pair", "plan", "plan_described", "plan_one", "quantize", "rehearse", "resolve", "tune",
    "tune_one",
]  # fmt: skip
