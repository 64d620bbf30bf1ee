from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from optkit.craft.quantization.choose_qparams import choose_activations
from optkit.craft.quantization.covering import MovedValue, cover
from optkit.craft.quantization.placement.assign import assign
from optkit.craft.quantization.placement.product_forms import BY_BLOCKS, fastest, products
from optkit.craft.quantization.placement.read_weight import MATRIX
from optkit.facts.placement import ProductForm
from optkit.facts.precisions import Precision
from optkit.ground import graph
from optkit.ground.execute.step import Progress
from optkit.ground.statistics import load, save
from optkit.road.steps.bodies.noisy_nodes import some_are
from optkit.road.steps.cover_sizes import CoveredSizes, CoverSizes
from optkit.road.steps.file_names import GRAPH, STATISTICS

_USUAL = "the samples' sizes"


def run(step: CoverSizes, out: Path, progress: Progress) -> CoveredSizes:
    progress("comparing ranges", 0.0)
    model = graph.load(step.graph.path / GRAPH)
    usual = load(step.statistics.path / STATISTICS)
    given = {"least": step.least, "largest": step.largest}
    ends = {end: load(one.path / STATISTICS) for end, one in given.items() if one is not None}
    scheme, own = step.scheme, step.settings
    assignment = assign(model, scheme, usual, own.settings.nodes)
    numbers = choose_activations(
        model,
        assignment,
        usual,
        scheme.rules,
        own.settings,
        method=own.method,
        percentile=own.percentile,
        carrier=scheme.dtype,
    )
    planned = assignment.quantized()
    found = cover(numbers, planned, usual, ends, own.method, own.percentile)
    if found.values:
        save(replace(usual, values={**usual.values, **found.values}), out / STATISTICS)
    nodes: dict[str, ProductForm] = {}
    reasons: dict[str, str] = {}
    notes = []
    for one in found.moved:
        asked = own.settings.nodes  # what the recipe asks for them stays
        names = [str(n.name) for n in one.nodes]
        free = [name for name in names if not any(fnmatchcase(name, p) for p in asked)]
        if not free:
            continue
        form, why = _form(step, one, planned)
        lost = _lost(step.at, one)
        nodes |= dict.fromkeys(free, form)
        reasons |= dict.fromkeys(free, f"{form}, because {lost}; {why}")
        notes.append(f"{some_are(free)} {form}: {lost}")
    return CoveredSizes(
        widened=len(found.values), nodes=nodes, reasons=reasons, warnings=tuple(notes)
    )


def _form(
    step: CoverSizes, moved: MovedValue, planned: Mapping[str, Precision]
) -> tuple[ProductForm, str]:
    """The form of the products that read the value, and why: the fastest one that the backend
    has."""
    rules = [step.scheme.rules[planned[str(node.name)]] for node in moved.nodes]
    able = step.settings.settings.two_term == "auto" and all(
        node.op_type in MATRIX and own.two_term
        for node, own in zip(moved.nodes, rules, strict=True)
    )
    if not able:
        return "float", "the backend has no other form for it"
    read = products(moved.placement.value, moved.nodes, step.sizes)
    return fastest(read, next((own.kernels for own in rules), None), BY_BLOCKS)


def _lost(at: Mapping[str, str], moved: MovedValue) -> str:
    """Where one scale loses most, in words."""
    end = max(moved.sqnr_db, key=lambda one: moved.sqnr_db[one][1] - moved.sqnr_db[one][0])
    left, fitted = moved.sqnr_db[end]
    return (
        f"one scale for all sizes leaves {left:.0f} dB of the product at {at.get(end, _USUAL)}, "
        f"one for these sizes alone {fitted:.0f} dB"
    )
