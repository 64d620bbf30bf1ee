"""The public functions: a model or a path in, an Artifact or a document out.

    optkit.build(model, example_inputs, calibration=loader, evaluate=fn, target="l4")
    optkit.build("model.py:create", recipe="digits-vit", target="l4")
    optkit.load("artifacts/digits-vit-l4-int8").run({"image": images})

    _build          builds an artifact of a model           _build_fleet  several targets, one call
    _tune           searches, then builds                   _plan       predicts before a build
    _stages         runs a build up to one stage            _bench      bench and evaluate
    _finish         completes an artifact on its device     artifacts   opens artifacts
    _explain        why time and accuracy are lost          _diff       compares two builds
    _bench_against  times two artifacts in one run          doctor      which libraries work
    _sign           signs and verifies                      _attest     provenance and materials
    _inspect        describes an artifact or a graph        _package    other programs' layouts
    _measure_card   times kernels of a card
    cluster_finish  `finish` on a node of a cluster         plan_subject  the costs of a model

`optkit.road.jobs` makes a job of the arguments of a call.

Each function takes a Workspace: the store, the limits and where steps run. The command line only
parses its arguments, calls a function of this package, and prints the result. A module is imported
when one of its functions is first used, because some of them (for language models, for a search)
import more than a build needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optkit.verbs.api._attest import attest as attest
    from optkit.verbs.api._bench import bench as bench
    from optkit.verbs.api._bench import evaluate as evaluate
    from optkit.verbs.api._bench_against import bench_against as bench_against
    from optkit.verbs.api._build import build as build
    from optkit.verbs.api._build import rehearse as rehearse
    from optkit.verbs.api._build_fleet import build_fleet as build_fleet
    from optkit.verbs.api._diff import diff as diff
    from optkit.verbs.api._examine import examine as examine
    from optkit.verbs.api._explain import explain as explain
    from optkit.verbs.api._finish import finish as finish
    from optkit.verbs.api._inspect import inspect as inspect
    from optkit.verbs.api._measure_card import measure_card as measure_card
    from optkit.verbs.api._package import package as package
    from optkit.verbs.api._plan import plan as plan
    from optkit.verbs.api._sign import sign as sign
    from optkit.verbs.api._sign import verify as verify
    from optkit.verbs.api._stages import compile as compile
    from optkit.verbs.api._stages import export as export
    from optkit.verbs.api._stages import fuse as fuse
    from optkit.verbs.api._stages import quantize as quantize
    from optkit.verbs.api._stages import stage_files as stage_files
    from optkit.verbs.api._targets import describe_devices as describe_devices
    from optkit.verbs.api._targets import describe_targets as describe_targets
    from optkit.verbs.api._tune import tune as tune
    from optkit.verbs.api.artifacts import load as load
    from optkit.verbs.api.doctor import diagnose as diagnose
else:  # hidden from type checkers, which would otherwise accept any name

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module 'optkit.verbs.api' has no attribute {name!r}")
        return getattr(import_module(f"optkit.verbs.api.{_MODULES[name]}"), name)


_MODULES = {
    "attest": "_attest",
    "bench": "_bench",
    "bench_against": "_bench_against",
    "build": "_build",
    "build_fleet": "_build_fleet",
    "compile": "_stages",
    "describe_devices": "_targets",
    "describe_targets": "_targets",
    "diagnose": "doctor",
    "diff": "_diff",
    "evaluate": "_bench",
    "examine": "_examine",
    "explain": "_explain",
    "export": "_stages",
    "finish": "_finish",
    "fuse": "_stages",
    "inspect": "_inspect",
    "load": "artifacts",
    "measure_card": "_measure_card",
    "package": "_package",
    "plan": "_plan",
    "quantize": "_stages",
    "rehearse": "_build",
    "sign": "_sign",
    "stage_files": "_stages",
    "tune": "_tune",
    "verify": "_sign",
}

__all__ = [*_MODULES]  # noqa: PLE0604  # names, all of them
