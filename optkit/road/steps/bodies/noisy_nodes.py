from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import log10
from pathlib import Path
from typing import Self

import numpy as np

from optkit.craft.benchmarking.sensitivity import record
from optkit.craft.quantization.choose_qparams import choose_activations
from optkit.craft.quantization.noisy_nodes import (
    SWITCHES,
    RoundedActivation,
    chosen,
    insert_switches,
    two_terms,
)
from optkit.craft.quantization.numerics.output_noise import LEAST_DB, OF_CONVOLUTIONS, OF_MODEL
from optkit.craft.quantization.placement.assign import assign
from optkit.craft.quantization.placement.product_forms import Products, fastest
from optkit.facts.errors import InputRefused
from optkit.facts.placement import KernelSpeeds, ProductForm
from optkit.facts.tensors import Feed
from optkit.ground import graph
from optkit.ground.data.spool import Spool
from optkit.ground.execute.local import trim
from optkit.ground.execute.step import Progress
from optkit.ground.runtimes import Session
from optkit.ground.statistics import load
from optkit.road.steps.bodies.sessions import cpu
from optkit.road.steps.file_names import GRAPH, STATISTICS
from optkit.road.steps.noisy_nodes import FindNoisyNodes, NoisyNodes

_SAMPLES = 8
_INSIDE = f"leaves less than {LEAST_DB:.0f} dB of the product"
_OUTSIDE = f"for each activation leaves less than {LEAST_DB:.0f} dB at the outputs"
_FORMS: Mapping[ProductForm, str] = {
    "two terms": "computed twice, with an activation of two terms",
    "int8-weight-only": "int8-weight-only, which rounds activations at run time in blocks",
    "float": "kept in float",
}


_RESULT = f"for its result leaves less than {-10 * log10(OF_CONVOLUTIONS):.0f} dB at the outputs"
_ITS_RESULT = "an integer convolution rounds its result too"


@dataclass(frozen=True)
class _Finer:
    """Nodes that multiply one activation, the form of their products, why they need it, and why
    they have this form."""

    nodes: tuple[str, ...]
    form: ProductForm
    need: str
    why: str


@dataclass(frozen=True)
class _Candidate:
    """`switches`: of the activations that are not rounded in this form; `slower`: nanoseconds that
    it takes longer."""

    switches: tuple[int, ...]
    finer: _Finer
    slower: float


def run(step: FindNoisyNodes, out: Path, progress: Progress) -> NoisyNodes:
    progress("choosing ranges", 0.0)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / GRAPH
        inside, activations = _switched(step, place)
        trim()
        if not any(one.products or one.slower is not None for one in activations):
            return _told(inside, None, None)
        with cpu(place, pooled=False) as session:
            return _judged(step, session, inside, activations, progress)


def _switched(step: FindNoisyNodes, place: Path) -> tuple[list[_Finer], list[RoundedActivation]]:
    """Write the graph whose activations can be rounded one by one. Returns the nodes whose product
    already has too much noise, and the other activations."""
    model = graph.load(step.graph.path / GRAPH)
    statistics = load(step.statistics.path / STATISTICS)
    scheme, own = step.scheme, step.settings
    assignment = assign(model, scheme, statistics, own.settings.nodes)
    numbers = choose_activations(
        model,
        assignment,
        statistics,
        scheme.rules,
        own.settings,
        method=own.method,
        percentile=own.percentile,
        carrier=scheme.dtype,
    )
    asked = own.settings.nodes  # what the recipe asks for them stays
    inside = []
    for one in two_terms(numbers, step.sizes):
        assert one.products is not None
        named = tuple(name for name in one.nodes if _named((name,), asked))
        free = tuple(name for name in one.nodes if name not in named)
        inside += [_Finer(named, "two terms", _INSIDE, "the recipe gives it int8")] * bool(named)
        inside += [_finer(free, one.products, _INSIDE, _speeds(step))] * bool(free)
    activations = insert_switches(model, numbers, assignment, scheme.rules, step.sizes, statistics)
    graph.save(model, place, inline_limit=0)  # the runtime maps weights
    return inside, [
        replace(one, products=None, slower=None)
        if _named((*one.nodes, one.maker or ""), asked)
        else one
        for one in activations
    ]


def _named(nodes: Sequence[str], patterns: Collection[str]) -> bool:
    return any(fnmatchcase(node, pattern) for node in nodes for pattern in patterns)


def _speeds(step: FindNoisyNodes) -> KernelSpeeds | None:
    return next((own.kernels for own in step.scheme.rules.values() if own.two_term), None)


def _finer(
    nodes: tuple[str, ...], read: Products, need: str, speeds: KernelSpeeds | None
) -> _Finer:
    form, why = fastest(read, speeds)
    return _Finer(nodes, form, need, why)


def _judged(
    step: FindNoisyNodes,
    session: Session,
    inside: Sequence[_Finer],
    activations: Sequence[RoundedActivation],
    progress: Progress,
) -> NoisyNodes:
    count = len(activations)
    products, convolutions = _products(activations, _speeds(step)), _convolutions(activations)
    feeds = Spool(step.samples.path).spread(_SAMPLES)
    recorded = record(_Switched(session, (), count), feeds, samples=_SAMPLES)

    def noise(switched: Collection[int]) -> float:
        return recorded.deviation(_Switched(session, switched, count)).noise

    def found(able: Sequence[_Candidate], together: float, allowed: float) -> list[_Finer]:
        if together <= allowed:
            return []
        noises = []
        for done, one in enumerate(able):
            progress(f"activation {done + 1} of {len(able)}", done / len(able))
            noises.append(noise(one.switches))
        costs = [one.slower for one in able]
        return [able[at].finer for at in chosen(noises, costs, together, allowed)]

    able = _switches(products)
    rest = sorted(set(range(count)) - able)
    try:
        together, others = noise(able) if able else 0.0, noise(rest) if rest else 0.0
        finer = found(products, together, max(OF_MODEL, others))
        if others > OF_CONVOLUTIONS and convolutions:
            finer += found(convolutions, noise(_switches(convolutions)), OF_CONVOLUTIONS)
    except InputRefused:  # outputs whose sizes depend on the numbers cannot be compared
        return _told(inside, None, None)
    return _told([*inside, *finer], together, others)


def _products(
    activations: Sequence[RoundedActivation], speeds: KernelSpeeds | None
) -> list[_Candidate]:
    """Activations that can be finer."""
    found = []
    for at, one in enumerate(activations):
        if one.products is not None:
            finer = _finer(one.nodes, one.products, _OUTSIDE, speeds)
            found.append(_Candidate((at,), finer, one.products.slower(finer.form, speeds)))
    return found


def _convolutions(activations: Sequence[RoundedActivation]) -> list[_Candidate]:
    """Convolutions that can be in float: without the rounding of their result, and of what they
    alone read, unless another convolution rounds it."""
    found = []
    for at, one in enumerate(activations):
        if one.maker is not None and one.slower is not None:
            read = [i for i, each in enumerate(activations) if each.nodes == (one.maker,)]
            alone = [i for i in read if activations[i].maker is None]
            finer = _Finer((one.maker,), "float", _RESULT, _ITS_RESULT)
            found.append(_Candidate((at, *alone), finer, one.slower))
    return found


def _switches(able: Sequence[_Candidate]) -> set[int]:
    return {at for one in able for at in one.switches}


def _told(found: Sequence[_Finer], noise: float | None, others: float | None) -> NoisyNodes:
    """The result, with a note for each form and need."""
    groups: dict[tuple[ProductForm, str], list[str]] = {}
    for one in found:
        groups.setdefault((one.form, one.need), []).extend(one.nodes)
    notes = (
        f"{some_are(names)} {_FORMS[form]}, because one scale {need}; "
        "`--set quantization.two_term=[]` forbids it"
        for (form, need), names in groups.items()
    )
    return NoisyNodes(
        nodes={name: one.form for one in found for name in one.nodes},
        reasons={
            name: f"{one.form}, because one scale {one.need}; {one.why}"
            for one in found
            for name in one.nodes
        },
        noise=noise,
        others=others,
        warnings=tuple(notes),
    )


def some_are(names: Sequence[str]) -> str:
    """The first of the nodes and how many more there are, as the start of a sentence."""
    more = len(names) - 1
    return f"{names[0]!r} and {more} more are" if more else f"{names[0]!r} is"


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
