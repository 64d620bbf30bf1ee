from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from optkit.craft.precision_cast.simulation import simulate
from optkit.craft.quantization.choose_qparams import choose_qparams
from optkit.craft.quantization.numerics.code_store import IN_MEMORY, CodeStore
from optkit.craft.quantization.numerics.output_noise import LEAST_DB
from optkit.craft.quantization.numerics.qparams import QParams
from optkit.craft.quantization.out_of_core import streamed
from optkit.craft.quantization.placement.assign import assign
from optkit.craft.quantization.placement.weighted_nodes import constant
from optkit.craft.quantization.qdq import insertion as qdq
from optkit.craft.quantization.qdq.coded_experts import few_tokens
from optkit.craft.quantization.qdq.insertion import QuantLog
from optkit.craft.quantization.rounding.expert_rounding import ExpertRounding
from optkit.facts.assignment import Assignment
from optkit.ground import graph
from optkit.ground.execute.step import Progress
from optkit.ground.statistics import Statistics, load
from optkit.ground.trained_scales import KEY, TrainedScales
from optkit.road.steps.bodies.signature import signature
from optkit.road.steps.bodies.weight_remarks import shortened
from optkit.road.steps.file_names import GRAPH, SIMULATION, STATISTICS
from optkit.road.steps.quantize import QuantizationResult, Quantize

_SOLVING_SHARE = 2  # share of the memory for weights that are solved together


def run(step: Quantize, out: Path, progress: Progress) -> QuantizationResult:
    scheme, settings = step.scheme, step.settings.settings
    rules, dtype = scheme.rules, scheme.dtype
    statistics = load(step.statistics.path / STATISTICS) if step.statistics is not None else None
    fused = graph.load(step.fused.path / GRAPH)
    trained = TrainedScales.of(fused.metadata_props)
    adapters = () if trained is None else trained.adapters
    assignment = assign(fused, scheme, statistics, settings.nodes, adapters)
    observed = statistics.values.values() if statistics is not None else ()
    learned = settings.learns and any(value.rows is not None for value in observed)
    if trained is None and streamed.is_for(fused, assignment, rules, settings, learned=learned):
        place = step.carrier.path / GRAPH
        told = streamed.quantize(place, out / GRAPH, assignment, rules, settings, carrier=dtype)
        written = signature(graph.load(out / GRAPH))
        return QuantizationResult(
            log=told.to_json(),
            assignment=assignment,
            warnings=shortened(told.warnings),
            **vars(written),
        )
    progress("finding scales and codes", 0.1)
    with tempfile.TemporaryDirectory() as folder:
        qparams = choose_qparams(
            fused,
            assignment,
            statistics,
            rules,
            settings,
            method=step.settings.method,
            percentile=step.settings.percentile,
            carrier=dtype,
            trained=trained,
            store=_store(step, Path(folder), fused, assignment, progress),
        )
        qparams = replace(qparams, warnings=(*qparams.warnings, *step.left_out))
        progress("writing Q/DQ", 0.8)
        return write(step, qparams, assignment, statistics, out)


def _store(
    step: Quantize, folder: Path, fused: ir.Model, assignment: Assignment, progress: Progress
) -> CodeStore:
    """Where codes wait until the graph is written."""
    if step.planned_memory is None:
        return IN_MEMORY
    planned = assignment.quantized()
    weights = {constant(node) for node in fused.graph if node.name in planned}
    total = sum(weight.const_value.size for weight in weights if weight.const_value is not None)
    done = 0

    def told(count: int) -> None:
        nonlocal done
        done += count
        progress("finding scales and codes", 0.1 + 0.7 * min(done / max(total, 1), 1.0))

    return CodeStore(folder / "codes", step.planned_memory // _SOLVING_SHARE, told)


def write(
    step: Quantize,
    qparams: QParams,
    assignment: Assignment,
    statistics: Statistics | None,
    out: Path,
) -> QuantizationResult:
    """Write the numbers into the carrier graph; for half precision, also the simulation."""
    scheme, settings = step.scheme, step.settings.settings
    rules, dtype = scheme.rules, scheme.dtype
    carrier = graph.load(step.carrier.path / GRAPH)
    carrier.metadata_props.pop(KEY, None)  # the graph has these scales now
    if any(own.weight.has_two_levels for own in rules.values()):
        carrier = graph.upgrade(carrier, 23)  # the first that knows E2M1
    tables = settings.embeddings and any(own.embeddings for own in rules.values())
    rounding = ExpertRounding(settings, statistics)
    log = qdq.apply(
        carrier,
        qparams,
        assignment,
        rules,
        statistics,
        scale_dtype=dtype,
        embeddings=tables,
        experts=rounding,
    )
    graph.save(carrier, out / GRAPH)
    graph.check(out / GRAPH)
    if scheme.carrier != "fp32":
        again = graph.load(step.carrier.path / GRAPH)
        again.metadata_props.pop(KEY, None)
        qdq.apply(again, qparams, assignment, rules, statistics, scale_dtype=dtype, simulated=True)
        simulate(again)
        graph.save(again, out / SIMULATION)
    return QuantizationResult(
        log=log.to_json(),
        assignment=assignment,
        warnings=(
            *(_doubled(log) if settings.two_term == "auto" else ()),
            *few_tokens(log.experts),
            *shortened(qparams.warnings),
        ),
        **vars(signature(carrier)),
    )


def _doubled(log: QuantLog) -> tuple[str, ...]:
    """A note about the products that run twice, if there are any."""
    terms = {value: quantized.terms for value, quantized in log.activations.items()}
    twice = [name for name, node in log.nodes.items() if terms.get(node.activation or "", 1) > 1]
    if not twice:
        return ()
    more = len(twice) - 1
    some = f"{twice[0]!r} and {more} more run" if more else f"{twice[0]!r} runs"
    note = (
        f"{some} twice, with an activation of two terms, because one term leaves less than "
        f"{LEAST_DB:.0f} dB of the product; `--set quantization.two_term=[]` forbids it"
    )
    return (note,)
