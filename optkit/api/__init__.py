"""The public functions: a model or a path in, an Artifact or a document out.

    optkit.build(model, example_inputs, calibration=loader, evaluate=fn, target="l4")
    optkit.build("model.py:create", recipe="digits-vit", target="l4")
    optkit.load("artifacts/digits-vit-l4-int8").run({"image": images})

    _build          a model to an artifact                  fleet       for several targets
    _tune           the search in front of a build          _plan       predictions before a build
    stages          the chain as far as one stage           figures     latency, or accuracy, alone
    _finish         what is pending, done on its device     artifacts   opened again
    _explain        what costs time and accuracy            _diff       two compared
    regression      two artifacts timed side by side        doctor      which libraries work
    jobs            what the arguments mean together        in_memory   modules and loaders
    cluster_finish  `finish` on a node of a cluster         plan_subject  a model, weighed

Each takes a Workspace: the store, the limits and where steps run. The command line is a thin skin
over this module: it parses, calls, prints.
"""

from __future__ import annotations

from optkit.api._build import build, rehearse
from optkit.api._diff import diff
from optkit.api._explain import explain
from optkit.api._finish import finish
from optkit.api._plan import plan
from optkit.api._tune import tune
from optkit.api.artifacts import inspect, load
from optkit.api.doctor import diagnose
from optkit.api.figures import bench, evaluate
from optkit.api.fleet import build_fleet
from optkit.api.jobs import pair, resolve
from optkit.api.regression import bench_against
from optkit.api.stages import compile, export, fuse, quantize, stage_files

__all__ = [
    "bench", "bench_against", "build", "build_fleet", "compile", "diagnose", "diff", "evaluate",
    "explain", "export", "finish", "fuse", "inspect", "load", "pair", "plan", "quantize",
    "rehearse", "resolve", "stage_files", "tune",
]  # fmt: skip
