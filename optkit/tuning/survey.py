"""The space of a search: the layers of a model, and what each costs in accuracy alone.

Sensitivity is label-free: with one group quantized and all others in FP32, the noise at the model's
outputs on calibration samples. One alone rather than all but one, because these noises add up to
the noise of any assignment, before it is tried. A step measures eight groups, so that a survey that
was killed goes on from there.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from optkit import runtimes
from optkit.errors import InputRefused
from optkit.execute.runner import Made, Steps
from optkit.execute.step import Input
from optkit.graph import NodeCost
from optkit.pipeline import Build, calibration_of
from optkit.precisions import precision
from optkit.steps import STEPS
from optkit.steps.graph import RandomInputs
from optkit.steps.random import Random
from optkit.tuning.gains import gain
from optkit.tuning.space import TWO_TERM, Group, Option, Space

PROBE_SAMPLES = 64
_AT_ONCE = 8  # groups measured in one step
_TWO_TERM_GROUPS = 8  # the worst ones, which alone are looked at in two terms


@dataclass(frozen=True)
class Layer:
    """A product with a constant weight, the value it reads, and the precisions it can have."""

    node: str
    reads: str
    cost: NodeCost
    precisions: tuple[str, ...]


@dataclass(frozen=True)
class Survey:
    """The space, the operators in it, and why the layers that are not in it are not."""

    space: Space
    ops: frozenset[str]
    fixed: Mapping[str, str] = field(default_factory=dict)


def survey(
    made: Build, names: Sequence[str], runner: Steps, each: Callable[..., Iterable[Made]] = map
) -> Survey:
    """Measure the space of `names` (quantized precisions) on a model that was built in the first of
    them. `each`: applies a function to every group of groups, as `map` does, in threads if it
    likes. Raises InputRefused when no layer can be quantized."""
    backend = runtimes.backend(made.compiler)
    rules = {n: backend.rules(made.job.target, precision(n)).to_json() for n in names}
    entry = runner.step(
        STEPS["survey"].kind,
        "list the layers",
        {"graph": made.entries["fused"], **_statistics(made.entries.get("statistics"))},
        {"rules": rules, "carrier": made.baseline_precision.name,
         "axes": {name: axis.opt for name, axis in made.job.recipe.axis_ranges().items()}},
    )  # fmt: skip
    own = made.job.recipe.quantization.nodes
    layers = [_layer(row) for row in entry.meta["layers"]]
    free = [layer for layer in layers if not any(fnmatchcase(layer.node, p) for p in own)]
    groups = _grouped(free)
    if not groups:
        raise InputRefused(
            "no layer can be quantized", where=made.job.name, hint="`optkit build` says why of each"
        )
    found: dict[str, list[Option]] = {name: [] for name in groups}
    for option in _option_names(made, names):
        able = [n for n, group in groups.items() if option.precision in group[0].precisions]
        if option.is_two_term:
            able = _worst([n for n in able if _is_matrix(groups[n])], found)
        for name, noise, divergence in _sensitivity(
            made, option, able, groups, rules, runner, each
        ):
            saved = sum(
                gain(layer.cost, precision(option.precision), made.baseline_precision,
                     made.job.target, two_term=option.is_two_term)
                for layer in groups[name]
            )  # fmt: skip
            found[name].append(Option(option.name, noise, saved, divergence))
    space = Space(
        tuple(
            Group(tuple(layer.node for layer in layers), tuple(found[name]))
            for name, layers in groups.items()
        ),
        made.baseline_precision.name,
    )
    ops = frozenset(layer.cost.op for layers in groups.values() for layer in layers)
    return Survey(space, ops, dict(entry.meta["reasons"]))


def probe(made: Build, runner: Steps) -> Made:
    """Samples that the search may look at as often as it likes: those of calibration, or random
    ones; never those that judge."""
    found = made.entries.get("calibration")
    if found is not None:
        return found
    recipe = made.job.recipe
    drawn = RandomInputs(recipe.describe(made.inputs), recipe.axis_ranges())
    return runner.do(Random(random=drawn), "random inputs")


def probing(made: Build) -> dict[str, Any]:
    """How many samples are looked at, and how many at a time."""
    batch = calibration_of(made.job.recipe)["batch"]
    return {
        "samples": PROBE_SAMPLES,
        "batch": batch if isinstance(made.batch_axis, str) else None,
    }


def exactly(node: str) -> str:
    """The pattern that matches this node's name alone."""
    return glob.escape(node)


def _layer(row: Mapping[str, Any]) -> Layer:
    return Layer(row["node"], row["reads"], NodeCost(**row["cost"]), tuple(row["precisions"]))


def _grouped(layers: Iterable[Layer]) -> dict[str, list[Layer]]:
    """First node → the layers that read one value and can have the same precisions."""
    by_value: dict[tuple[str, tuple[str, ...]], list[Layer]] = {}
    for layer in layers:
        if layer.precisions:
            by_value.setdefault((layer.reads, layer.precisions), []).append(layer)
    return {group[0].node: group for group in by_value.values()}


def _is_matrix(group: Sequence[Layer]) -> bool:
    return all(layer.cost.op in ("MatMul", "Gemm") for layer in group)


def _worst(names: Sequence[str], found: Mapping[str, Sequence[Option]]) -> list[str]:
    """The few groups that need more than their own precision, in the order of the graph."""
    ranked = sorted(names, key=lambda name: -found[name][-1].noise)[:_TWO_TERM_GROUPS]
    return [name for name in names if name in ranked]


def _option_names(made: Build, names: Sequence[str]) -> Iterator[Option]:
    """Each precision; on the CPU also with activations in two terms, where it quantizes those."""
    for name in names:
        yield Option(name, 0.0, 0.0)
        if made.measured and precision(name).activations is not None:
            yield Option(name + TWO_TERM, 0.0, 0.0)


def _sensitivity(
    made: Build,
    option: Option,
    able: Sequence[str],
    groups: Mapping[str, Sequence[Layer]],
    rules: Mapping[str, Any],
    runner: Steps,
    each: Callable[..., Iterable[Made]],
) -> Iterator[tuple[str, float, float | None]]:
    """(group, noise, divergence) of every group that is able to be so."""
    prepared = made.entries.get("prepared")
    inputs: dict[str, Input] = {
        "graph": prepared or made.entries["fused"],
        "samples": probe(made, runner),
        **_statistics(prepared or made.entries.get("statistics")),
    }
    settings, calibration = made.job.recipe.quantization, calibration_of(made.job.recipe)

    def measure(start: int) -> Made:
        part = able[start : start + _AT_ONCE]
        nodes = [[layer.node for layer in groups[name]] for name in part]
        patterns = [exactly(node) for group in nodes for node in group]
        return runner.step(
            STEPS["sensitivity"].kind,
            f"sensitivity of layers {start + 1} to {start + len(part)} of {len(able)} "
            f"as {option.name}",
            inputs,
            {"precision": option.precision, "rules": {option.precision: rules[option.precision]},
             "carrier": made.baseline_precision.name, "groups": nodes, **probing(made),
             "method": calibration["method"], "percentile": calibration["percentile"],
             "settings": {**settings.model_dump(mode="json"), "nodes": {},
                          "two_term": patterns if option.is_two_term else []}},
        )  # fmt: skip

    rows = (row for entry in each(measure, range(0, len(able), _AT_ONCE))
            for row in entry.meta["rows"])  # fmt: skip
    for name, row in zip(able, rows, strict=True):
        yield name, row["noise"], row["divergence"]


def _statistics(entry: Made | None) -> dict[str, Made]:
    return {} if entry is None else {"statistics": entry}
