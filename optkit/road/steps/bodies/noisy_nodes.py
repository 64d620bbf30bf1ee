from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import log10
from pathlib import Path
from typing import Self

import numpy as np

from optkit.craft.benchmarking.sensitivity import ReferenceRuns, record
from optkit.craft.quantization.choose_qparams import choose_activations
from optkit.craft.quantization.noisy_cells import CELLS, CodedCell, insert_cells
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
from optkit.ground.data.checking import fixed_batch
from optkit.ground.data.spool import Spool
from optkit.ground.execute.local import trim
from optkit.ground.execute.step import Progress
from optkit.ground.runtimes import Session
from optkit.ground.statistics import load
from optkit.road.steps.bodies.sessions import cpu
from optkit.road.steps.file_names import GRAPH, STATISTICS
from optkit.road.steps.noisy_nodes import FindNoisyNodes, NoisyNodes

_SAMPLES = 8
_BATCHES = 4  # of as many samples, in which cells are judged
_INSIDE = f"leaves less than {LEAST_DB:.0f} dB of the product"
_OUTSIDE = f"for each activation leaves less than {LEAST_DB:.0f} dB at the outputs"
_FORMS: Mapping[ProductForm, str] = {
    "two terms": "computed twice, with an activation of two terms",
    "int8-weight-only": "int8-weight-only, which rounds activations at run time in blocks",
    "float": "kept in float",
}
_LEAST = f"less than {LEAST_DB:.0f} dB at the outputs"
_IN_FLOAT = (
    f"kept in float, because codes of weights leave {_LEAST}; `quantization.nodes` can give int8 "
    "all the same"
)
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


@dataclass(frozen=True)
class _Graph:
    """What switches of the graph stand for. `inside`: nodes whose product already has too much
    noise."""

    inside: list[_Finer]
    activations: list[RoundedActivation]
    cells: list[CodedCell]


def run(step: FindNoisyNodes, out: Path, progress: Progress) -> NoisyNodes:
    progress("choosing ranges", 0.0)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / GRAPH
        made = _switched(step, place)
        trim()
        able = any(one.products or one.slower is not None for one in made.activations)
        unjudged = _told(made.inside, None, None)
        if not able and not made.cells:
            return unjudged
        with cpu(place, pooled=False) as session:
            trials = _Trials.of(step, session, made)
            found = _judged(step, trials, made, progress) if able else unjudged
            return _and_cells(found, trials, made.cells, progress)


def _switched(step: FindNoisyNodes, place: Path) -> _Graph:
    """Write the graph whose activations can be rounded one by one, and whose cells can have codes
    one by one."""
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
    cells = insert_cells(model, assignment, scheme.rules[scheme.precision].weight)
    graph.save(model, place, inline_limit=0)  # the runtime maps weights
    free_to_choose = [
        replace(one, products=None, slower=None)
        if _named((*one.nodes, one.maker or ""), asked)
        else one
        for one in activations
    ]
    return _Graph(inside, free_to_choose, cells)


def _named(nodes: Sequence[str], patterns: Collection[str]) -> bool:
    return any(fnmatchcase(node, pattern) for node in nodes for pattern in patterns)


def _speeds(step: FindNoisyNodes) -> KernelSpeeds | None:
    return next((own.kernels for own in step.scheme.rules.values() if own.two_term), None)


def _finer(
    nodes: tuple[str, ...], read: Products, need: str, speeds: KernelSpeeds | None
) -> _Finer:
    form, why = fastest(read, speeds)
    return _Finer(nodes, form, need, why)


def _judged(step: FindNoisyNodes, trials: _Trials, made: _Graph, progress: Progress) -> NoisyNodes:
    activations = made.activations
    products, convolutions = _products(activations, _speeds(step)), _convolutions(activations)

    def found(able: Sequence[_Candidate], together: float, allowed: float) -> list[_Finer]:
        if together <= allowed:
            return []
        noises = []
        for done, one in enumerate(able):
            progress(f"activation {done + 1} of {len(able)}", done / len(able))
            noises.append(trials.noise(one.switches))
        costs = [one.slower for one in able]
        return [able[at].finer for at in chosen(noises, costs, together, allowed)]

    able = _switches(products)
    rest = sorted(set(range(len(activations))) - able)
    try:
        together = trials.noise(able) if able else 0.0
        others = trials.noise(rest) if rest else 0.0
        finer = found(products, together, max(OF_MODEL, others))
        if others > OF_CONVOLUTIONS and convolutions:
            finer += found(convolutions, trials.noise(_switches(convolutions)), OF_CONVOLUTIONS)
    except InputRefused:  # outputs whose sizes depend on the numbers cannot be compared
        return _told(made.inside, None, None)
    return _told([*made.inside, *finer], together, others)


def _and_cells(
    found: NoisyNodes, trials: _Trials, cells: Sequence[CodedCell], progress: Progress
) -> NoisyNodes:
    """The result, with the form of each cell."""
    noises = []
    try:
        for at in range(len(cells)):
            progress(f"recurrent cell {at + 1} of {len(cells)}", at / len(cells))
            noises.append(trials.noise_of_cells([at]))
        coded = _coded(trials, cells, noises)
    except InputRefused:
        return found
    forms: dict[str, ProductForm] = {}
    reasons = {}
    for at, (cell, noise) in enumerate(zip(cells, noises, strict=True)):
        forms[cell.name] = "int8" if at in coded else "float"
        leaves = f"{_db(noise)} at the outputs" if at in coded else f"{_LEAST}: these {_db(noise)}"
        reasons[cell.name] = f"codes of its weights leave {leaves}{trials.reach}"
    floats = [name for name, form in forms.items() if form == "float"]
    return replace(
        found,
        nodes=found.nodes | forms,
        reasons=found.reasons | reasons,
        warnings=(*found.warnings, *([f"{some_are(floats)} {_IN_FLOAT}"] if floats else ())),
    )


def _coded(trials: _Trials, cells: Sequence[CodedCell], noises: Sequence[float]) -> list[int]:
    """The cells that get codes: all, without those of the most noise per weight while together
    they leave more than OF_MODEL."""
    coded = list(range(len(cells)))
    while coded and (together := trials.noise_of_cells(coded)) > OF_MODEL:
        weights = [cells[at].weights for at in coded]
        out = chosen([noises[at] for at in coded], weights, together, OF_MODEL)
        if not out:  # none has any noise alone
            return []
        coded = [at for place, at in enumerate(coded) if place not in out]
    return coded


def _db(noise: float) -> str:
    return "the exact values" if not noise else f"{-10 * log10(noise):.1f} dB"


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


@dataclass(frozen=True)
class _Trials:
    """Runs of the graph beside those without any switch: of single samples, and, if the graph has
    cells and takes any batch, of batches, because all samples of a batch share the scale of a
    cell's input."""

    session: Session
    activations: int
    cells: int
    single: ReferenceRuns
    batches: ReferenceRuns | None

    @classmethod
    def of(cls, step: FindNoisyNodes, session: Session, made: _Graph) -> Self:
        counts = len(made.activations), len(made.cells)
        spool = Spool(step.samples.path)
        exact = _Switched(session, _switch(counts[0], ()), _switch(counts[1], ()))
        single = record(exact, spool.spread(_SAMPLES), samples=_SAMPLES)
        batches = None
        if made.cells and fixed_batch(exact.inputs) is None:
            feeds = (feed for feed, _ in spool.batches(_SAMPLES))
            batches = record(exact, feeds, samples=_BATCHES * _SAMPLES)
        return cls(session, *counts, single, batches)

    @property
    def reach(self) -> str:
        """Of what is known about cells."""
        return "" if self.batches is None else f" (single samples, and batches of {_SAMPLES})"

    def noise(self, rounded: Collection[int]) -> float:
        """Of rounded activations at the outputs, relative to their power. Raises InputRefused."""
        return self._noise(self.single, rounded, ())

    def noise_of_cells(self, coded: Collection[int]) -> float:
        """The same of cells with codes: of single samples or of batches, whichever is more."""
        known = [runs for runs in (self.single, self.batches) if runs is not None]
        return max(self._noise(runs, (), coded) for runs in known)

    def _noise(
        self, runs: ReferenceRuns, rounded: Collection[int], coded: Collection[int]
    ) -> float:
        switches = _switch(self.activations, rounded), _switch(self.cells, coded)
        return runs.deviation(_Switched(self.session, *switches)).noise


def _switch(count: int, on: Collection[int]) -> np.ndarray:
    return np.isin(np.arange(count), list(on))


class _Switched:
    """The session with some activations rounded and some cells in codes. It takes the feeds of the
    model."""

    def __init__(self, session: Session, rounded: np.ndarray, coded: np.ndarray) -> None:
        self._session = session
        self._switches = {SWITCHES: rounded} | ({CELLS: coded} if coded.size else {})
        self.inputs = tuple(one for one in session.inputs if one.name not in self._switches)
        self.outputs = session.outputs

    def run(self, feed: Feed) -> Feed:
        return self._session.run({**feed, **self._switches})

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None: ...
