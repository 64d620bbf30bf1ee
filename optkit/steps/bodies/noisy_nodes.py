from __future__ import annotations

import tempfile
from collections.abc import Collection, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from math import log10
from pathlib import Path
from typing import Self

import numpy as np

from optkit import graph
from optkit.benchmarking.sensitivity import record
from optkit.data.spool import Spool
from optkit.errors import InputRefused
from optkit.execute.local import trim
from optkit.execute.step import Progress
from optkit.quantization.choose_qparams import choose_activations
from optkit.quantization.noisy_nodes import SWITCHES, Rounded, chosen, insert_switches
from optkit.quantization.numerics.output_noise import OF_MODEL, ONE_TERM
from optkit.quantization.placement.assign import assign
from optkit.runtimes import Session
from optkit.statistics import load
from optkit.steps.bodies.sessions import cpu
from optkit.steps.files import GRAPH, STATISTICS
from optkit.steps.noisy_nodes import FindNoisyNodes, NoisyNodes
from optkit.tensors import Feed

_SAMPLES = 8


def run(step: FindNoisyNodes, out: Path, progress: Progress) -> NoisyNodes:
    progress("choosing ranges", 0.0)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / GRAPH
        inside, activations = _switched(step, place)
        trim()
        if not any(one.able for one in activations):
            return NoisyNodes(nodes=inside, warnings=_told(inside, ()))
        with cpu(place, pooled=False) as session:
            return _judged(step, session, inside, activations, progress)


def _switched(step: FindNoisyNodes, place: Path) -> tuple[tuple[str, ...], list[Rounded]]:
    """Write the graph whose activations can be rounded one by one. Returns the nodes whose product
    already has too much noise, and the other activations."""
    model = graph.load(step.graph.path / GRAPH)
    statistics = load(step.statistics.path / STATISTICS)
    scheme, own = step.scheme, step.settings
    assignment = assign(model, scheme, statistics, own.settings.nodes)
    numbers = choose_activations(
        model, assignment, statistics, scheme.rules, own.settings,
        method=own.method, percentile=own.percentile, carrier=scheme.dtype,
    )  # fmt: skip
    inside = [
        str(node.name)
        for placement, each in numbers
        if each.rest is not None
        for node, _ in placement.readers
    ]
    activations = insert_switches(model, numbers, assignment, scheme.rules)
    graph.save(model, place, inline_limit=0)  # the runtime maps weights
    asked = own.settings.nodes  # what the recipe asks for them stays
    free = [replace(one, able=one.able and not _named(one.nodes, asked)) for one in activations]
    return tuple(name for name in inside if not _named((name,), asked)), free


def _named(nodes: Sequence[str], patterns: Collection[str]) -> bool:
    return any(fnmatchcase(node, pattern) for node in nodes for pattern in patterns)


def _judged(
    step: FindNoisyNodes,
    session: Session,
    inside: tuple[str, ...],
    activations: Sequence[Rounded],
    progress: Progress,
) -> NoisyNodes:
    count = len(activations)
    able = [at for at, one in enumerate(activations) if one.able]
    rest = [at for at, one in enumerate(activations) if not one.able]
    feeds = Spool(step.samples.path).spread(_SAMPLES)
    recorded = record(_Switched(session, (), count), feeds, samples=_SAMPLES)

    def noise(switched: Collection[int]) -> float:
        return recorded.deviation(_Switched(session, switched, count)).noise

    noises = []
    try:
        together, others = noise(able), noise(rest) if rest else 0.0
        for done, at in enumerate(able if together > max(OF_MODEL, others) else ()):
            progress(f"activation {done + 1} of {len(able)}", done / len(able))
            noises.append(noise([at]))
    except InputRefused:  # outputs whose sizes depend on the numbers cannot be compared
        return NoisyNodes(nodes=inside, warnings=_told(inside, ()))
    costs = [activations[at].cost for at in able]
    picked = chosen(noises, costs, together, others) if noises else []
    outside = [name for at in picked for name in activations[able[at]].nodes]
    return NoisyNodes(
        nodes=(*inside, *outside), noise=together, others=others, warnings=_told(inside, outside)
    )


def _told(inside: Sequence[str], outside: Sequence[str]) -> tuple[str, ...]:
    """Notes about the nodes that become finer, by the reason."""
    reasons = (
        (inside, f"leaves less than {_db(ONE_TERM)} of the product"),
        (outside, f"for each activation leaves less than {_db(OF_MODEL)} at the outputs"),
    )
    return tuple(
        f"{_some(names)} int8-weight-only, which rounds activations at run time in blocks, because "
        f"one scale {reason}; `--set quantization.two_term=[]` forbids it"
        for names, reason in reasons
        if names
    )


def _some(names: Sequence[str]) -> str:
    more = len(names) - 1
    return f"{names[0]!r} and {more} more are" if more else f"{names[0]!r} is"


def _db(noise: float) -> str:
    return f"{-10 * log10(noise):.0f} dB"


class _Switched:
    """The session with some activations rounded. It takes the feeds of the model."""

    def __init__(self, session: Session, switched: Collection[int], count: int) -> None:
        self._session = session
        self._switches = np.isin(np.arange(count), list(switched))
        self.inputs = tuple(one for one in session.inputs if one.name != SWITCHES)
        self.outputs = session.outputs

    def run(self, feed: Feed) -> Feed:
        return self._session.run({**feed, SWITCHES: self._switches})

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None: ...
