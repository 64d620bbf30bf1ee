"""Where a candidate is measured slower than its baseline on this CPU: fewer nodes in integers.

Placement decides by the speeds of kernels on a kind of CPU. Where these do not foretell a model,
its latency does: each kind of node goes to floats, then the kinds that gained, and at last all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from copy import copy
from dataclasses import replace

from optkit.facts.errors import InputRefused
from optkit.ground.execute.runner import Steps
from optkit.road.pipeline.compilation import compile_
from optkit.road.pipeline.evaluation import evaluate
from optkit.road.pipeline.job import Build
from optkit.road.pipeline.quantization import quantize
from optkit.road.pipeline.timing import time
from optkit.road.steps.bench import BenchResult, TimedPair

_SLOWER = 0.98  # times as fast as the baseline: nearer to 1 is no loss that a user would see
_LEAST_MS = 0.2  # per call: less is not worth other graphs, and near what two runs differ by


def place_faster(build: Build, runner: Steps) -> None:
    """Give nodes to floats if the candidate is slower than the baseline, and keep the fastest
    placement whose outputs are finite. Not with the least effort, nor for codes or scales that the
    user has given, nor for weights alone, whose bytes are what was asked for."""
    if not _may(build) or not _is_slower(build):
        return
    kinds, fastest, gained = _kinds(build), build, []
    for kind in kinds if len(kinds) > 1 else ():
        tried = _in_floats(build, [kind], kinds[kind], runner)
        if tried is not None:
            gained.append(kind)
            fastest = max(fastest, tried, key=_speed)
    for together in (gained if len(gained) < len(kinds) else [], list(kinds)):
        if len(together) > 1 or together == list(kinds):
            if not _is_slower(fastest):
                break
            nodes = set[str]().union(*(kinds[kind] for kind in together))
            tried = _in_floats(build, together, nodes, runner)
            fastest = fastest if tried is None else max(fastest, tried, key=_speed)
    vars(build).update(vars(fastest))


def _may(build: Build) -> bool:
    job, given = build.job, build.given is not None or build.source.trained
    fast = job.recipe.quantization.effort == "fast"
    return not (given or fast or job.precision.weight_codes_only)


def _timed(build: Build) -> TimedPair | None:
    """At the batch size that is tuned for; None if it is not measured, or under bad conditions, or
    not on a CPU."""
    timed = build.latency
    if not isinstance(timed, BenchResult) or build.is_baseline or not timed.rows or timed.marked:
        return None
    rows = [row for row in timed.rows if row.engine.batch == build.batch] or timed.rows
    return rows[0] if build.traits.on_cpu else None


def _speed(build: Build) -> float:
    pair = _timed(build)
    return 0.0 if pair is None else pair.speedup.value


def _is_slower(build: Build) -> bool:
    pair = _timed(build)
    if pair is None or pair.speedup.value >= _SLOWER or not pair.speedup.below(1):
        return False
    return pair.engine.p50_ms - pair.baseline.p50_ms >= _LEAST_MS


def _kinds(build: Build) -> dict[str, set[str]]:
    """The nodes in integers by what they are, by the operators of the compiled graph."""
    assert build.engine is not None and build.assignment is not None
    planned = build.assignment.planned().keys()
    found: dict[str, set[str]] = defaultdict(set)
    for layer in build.engine.engine.layers:
        if nodes := planned & set(layer.nodes):
            found[_kind(layer.kind)] |= nodes
    return found


def _kind(operator: str) -> str:
    parts = {"Conv": "convolutions", "NBits": "products in blocks", "LSTM": "recurrent cells"}
    return next((kind for part, kind in parts.items() if part in operator), "matrix products")


def _in_floats(build: Build, kinds: Sequence[str], nodes: set[str], runner: Steps) -> Build | None:
    """The build with these nodes in floats, if it is faster and its outputs are finite."""
    tried = copy(build)
    tried.specs, tried.scores, tried.looks, tried.prepared = dict(build.specs), {}, [], None
    tried.in_floats = frozenset(nodes)
    for stage in (quantize, compile_, time):
        stage(tried, runner)
    if _speed(tried) <= _speed(build):
        return None
    try:
        evaluate(tried, runner)
    except InputRefused:  # an infinite value that an integer layer behind it cut off before
        return None
    baseline = build.baseline_precision.name.upper()
    reason = (
        f"in integers the build is slower: measured {_speed(build):.2f} times as fast as "
        f"{baseline} with its {' and '.join(kinds)} in integers, and {_speed(tried):.2f} times "
        "with them in floats"
    )
    assert tried.quantized is not None
    told = tried.quantized.assignment.told(dict.fromkeys(nodes, reason))
    tried.quantized = replace(tried.quantized, assignment=told)
    return tried
