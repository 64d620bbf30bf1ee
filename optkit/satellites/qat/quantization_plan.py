"""What a build would quantize, read from the Q/DQ graph that it writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import onnx_ir as ir
from torch.nn import Module

from optkit.craft.precision_cast.simulation import without_rounding
from optkit.craft.quantization.placement import weighted_nodes
from optkit.craft.quantization.rescaling.factors import Factor, load
from optkit.facts.errors import UsageError
from optkit.facts.node_names import module_of
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import NumberFormat
from optkit.ground import graph, runtimes
from optkit.ground.execute.runner import Runner
from optkit.ground.recipe import Recipe
from optkit.road import jobs, pipeline
from optkit.road.jobs import Pair, RecipeLike
from optkit.road.jobs.batches import Batch
from optkit.road.pipeline import Build
from optkit.road.steps.file_names import FACTORS, GRAPH, STATISTICS

# a Mul that smoothing inserts has no module, and the module has no second term, no second product
# for outlier channels, and no zero points
_AS_IN_THE_MODULE = (
    "quantization.smooth=off",
    "quantization.two_term=[]",
    "quantization.outlier_channels=off",
    "quantization.placement.zero_points=false",
)
_UNEQUALIZED = "quantization.equalize=off"
_UNCORRECTED = "quantization.bias_correction=false"
Rounding = Literal["nearest", "start", "frozen"]
"""nearest: weights are rounded to nearest, and biases stay; start: as in the build, and GPTQ in the
place of AWQ, which rescales; frozen: as in the build, but for biases."""
PRODUCTS = ("Conv", "Gemm", "MatMul")


@dataclass(frozen=True)
class Reader:
    """Input `index` of a node."""

    node: str
    op: str
    index: int


@dataclass(frozen=True)
class QuantizedValue:
    """A Q/DQ pair. `made_by`: the node whose result it is, before Relu (which gives the same
    before and after quantization); None if the float value has other readers too.
    `dequantized`: the result of the pair."""

    value: str
    dequantized: str
    format: NumberFormat
    scale: float
    zero_point: int
    readers: tuple[Reader, ...]
    made_by: Reader | None


@dataclass(frozen=True)
class QuantizedWeight:
    """The weight of a product. `scale`: of the codes, [channels], [channels, blocks] or rank 0;
    `common`: the scalar before the product if the rest of the scale is a Mul after it.
    `integer_bias`: the bias is int32. `rounded`: the size of the blocks in which the kernel rounds
    its input to 8 bits; None: it does not. `reads`: the value that it multiplies."""

    node: str
    reads: str
    format: NumberFormat
    scale: np.ndarray
    common: float | None
    integer_bias: bool
    rounded: int | None = None


@dataclass(frozen=True)
class QuantizationPlan:
    """`additions`: an Add of two values → the path of the module whose code adds, and which of its
    additions it is. `embeddings`: a lookup in a table of 8 bits per row → the width of the table.
    `graph`: the file of the Q/DQ graph; `fused`: that of the float graph that it is made from;
    `carrier`: that of the build. `factors`: of equalization, which the constants of `fused` have.
    `statistics`: those of the calibration, a file; None: there are none."""

    target: str
    precision: str
    carrier: str
    graph: Path
    fused: Path
    values: tuple[QuantizedValue, ...]
    weights: tuple[QuantizedWeight, ...]
    additions: Mapping[str, tuple[str, int]]
    embeddings: Mapping[str, int]
    factors: tuple[Factor, ...]
    statistics: Path | None

    def written(self) -> ir.Model:
        """The Q/DQ graph with FP32 carriers."""
        return _unrounded(self.graph)


def plan(
    model: Module,
    example_inputs: Batch,
    pair: Pair,
    recipe: RecipeLike | None,
    calibration: Iterable[Batch] | None,
    runner: Runner,
    *,
    rounding: Rounding,
    equalized: bool,
) -> QuantizationPlan:
    """Build the module until it is quantized; `equalized`: with equalization, unless the recipe
    says otherwise. Raises what `optkit.build` raises, and UsageError for frozen weights that AWQ
    rounds."""
    job = jobs.job_of(
        model,
        example_inputs,
        pair,
        recipe=recipe,
        calibration=calibration,
        name=None,
        runner=runner,
    )
    # no engine is built, so the compiler of a GPU need not be installed where the training runs
    deferred = not job.target.is_cpu
    changes = _AS_IN_THE_MODULE if equalized else (*_AS_IN_THE_MODULE, _UNEQUALIZED)
    recipe = job.recipe.with_overrides((*changes, *_overrides(rounding, job.recipe)))
    job = replace(job, recipe=recipe, deferred=deferred)
    build = pipeline.run(job, runner, pipeline.QUANTIZE)
    quantized = build.quantized
    assert quantized is not None
    observed, prepared = build.statistics, build.prepared
    file = quantized.path / quantized.simulation
    written = _unrounded(file)
    return QuantizationPlan(
        job.target.name,
        job.precision.name,
        build.baseline_precision.name,
        file,
        (prepared or build.fused).path / GRAPH,
        tuple(_values(written, build)),
        tuple(_weights(written, build)),
        _additions(graph.load(build.source.path / GRAPH)),
        dict(_embeddings(written)),
        () if prepared is None else tuple(load(prepared.path / FACTORS)),
        None if observed is None else observed.path / STATISTICS,
    )


def _unrounded(file: Path) -> ir.Model:
    """The Q/DQ graph in a file, without the rounding of the simulation of a GPU."""
    model = graph.load(file)
    without_rounding(model)
    return model


def _overrides(rounding: Rounding, recipe: Recipe) -> tuple[str, ...]:
    """The settings of the recipe that a way of rounding changes, as KEY=VALUE. Raises UsageError
    for frozen weights that AWQ rounds."""
    if rounding == "nearest":
        return "quantization.weights=rtn", _UNCORRECTED
    if rounding == "start":
        rescales = recipe.quantization.weights == "awq"
        return ("quantization.weights=auto",) if rescales else ()
    if recipe.quantization.weights == "awq":
        raise UsageError(
            "AWQ changes the layers before those that it quantizes",
            where="quantization.weights",
            hint="auto, gptq, hqq or rtn",
        )
    return (_UNCORRECTED,)


def path_of(node: str) -> str:
    """The module of the node as `named_modules` names it: "" for the root."""
    return module_of(node) or ""


def _rules(build: Build, node: str | None) -> PlacementRules:
    """The rules for the precision of a node; None: for that of the build."""
    chosen = build.planned.get(node or "", build.job.precision)
    rules = runtimes.backend(build.compiler).rules(build.job.target, chosen)
    return rules.with_zero_points(False)


def _values(written: ir.Model, build: Build) -> Iterator[QuantizedValue]:
    for node in written.graph:
        value = node.inputs[0] if node.op_type == "QuantizeLinear" else None
        if value is None or graph.is_constant(value):
            continue
        scale, zero_point = (graph.array(part) for part in node.inputs[1:3])
        assert scale is not None and zero_point is not None
        pair = next(iter(node.outputs[0].consumers())).outputs[0]
        uses = pair.uses()
        readers = tuple(Reader(str(use.node.name), use.node.op_type, use.idx) for use in uses)
        fmt = _rules(build, next((r.node for r in readers if r.node in build.planned), None))
        assert fmt.activation is not None
        yield QuantizedValue(
            str(weighted_nodes.uncast(value).name),
            str(pair.name),
            fmt.activation,
            float(scale),
            int(zero_point.astype(np.float32)),
            readers,
            _maker(value),
        )


def _maker(value: ir.Value) -> Reader | None:
    while len(value.uses()) == 1 and not value.is_graph_output():
        node = value.producer()
        if node is None or node.op_type != "Relu":
            return None if node is None else Reader(str(node.name), node.op_type, 0)
        before = node.inputs[0]
        assert before is not None
        value = before
    return None


def _weights(written: ir.Model, build: Build) -> Iterator[QuantizedWeight]:
    for node in written.graph:
        if str(node.name) not in build.planned:
            continue
        rules = _rules(build, str(node.name))
        if node.op_type in ("MatMulNBits", "MatMulBnb4"):
            yield _in_one_operator(node, rules.weight)
            continue
        weight = node.inputs[1].producer() if len(node.inputs) > 1 and node.inputs[1] else None
        if weight is None or weight.op_type != "DequantizeLinear":
            continue
        scale, fmt = graph.array(weight.inputs[1]), rules.weight_of(node.op_type)
        assert scale is not None and node.op_type in PRODUCTS
        if fmt.granularity == "block":
            fmt = replace(fmt, block_size=weight.attributes.get_int("block_size"))
            scale = scale if weight.attributes.get_int("axis") == 1 else scale.T
        ratio = _ratio(node)
        yield QuantizedWeight(
            str(node.name),
            _reads(node),
            fmt,
            scale if ratio is None else scale * ratio.reshape(-1),
            None if ratio is None else float(scale),
            node.op_type in rules.integer_bias and weighted_nodes.has_bias(node),
        )


def _in_one_operator(node: ir.Node, fmt: NumberFormat) -> QuantizedWeight:
    """Of a MatMulNBits or MatMulBnb4 (`qdq.nbits`), whose scales are [channels, blocks] or the same
    in a row."""
    scale, size = graph.array(node.inputs[2]), node.attributes.get_int("block_size")
    channels = node.attributes.get_int("N")
    assert scale is not None and channels is not None
    rounds = node.attributes.get_int("accuracy_level", 0) == 4
    return QuantizedWeight(
        str(node.name),
        _reads(node),
        replace(fmt, block_size=size),
        scale.reshape(channels, -1),
        None,
        integer_bias=False,
        rounded=size if rounds else None,
    )


def _reads(node: ir.Node) -> str:
    value = node.inputs[0]
    assert value is not None
    return str(weighted_nodes.uncast(value).name)


def _ratio(node: ir.Node) -> np.ndarray | None:
    """What the Mul after the product applies (`qdq.writer`); None if there is none."""
    for reader in node.outputs[0].consumers():
        factor = reader.inputs[1] if reader.op_type == "Mul" else None
        if factor is not None and factor.name == f"{node.name}_channel_scale":
            return graph.array(factor)
    return None


def _embeddings(written: ir.Model) -> Iterator[tuple[str, int]]:
    """The lookups that `qdq.embeddings` writes: (float) codes × scales of the rows."""
    for node in written.graph:
        wide = node.inputs[0].producer() if node.op_type == "Mul" and node.inputs[0] else None
        codes = wide.inputs[0] if wide is not None and wide.op_type == "Cast" else None
        rows = None if codes is None else codes.producer()
        table = None if rows is None or rows.op_type != "Gather" else graph.array(rows.inputs[0])
        if table is not None and table.dtype == np.int8:
            yield str(node.name), table.shape[1]


def _additions(exported: ir.Model) -> dict[str, tuple[str, int]]:
    """Each Add of two values, with the path of its module, and its number among the additions that
    the module and its parts run, in the order of the export, which is that of the calls."""
    adds = [
        str(node.name)
        for node in exported.graph
        if node.op_type == "Add"
        and len(weighted_nodes.computed(node)) == 2
        and all(
            value is None or value.shape is None or len(value.shape) > 1 for value in node.inputs
        )
    ]
    numbered = {}
    for name in adds:
        path = path_of(name)
        inside = [other for other in adds if _is_in(path_of(other), path)]
        numbered[name] = path, inside.index(name)
    return numbered


def _is_in(path: str, module: str) -> bool:
    return not module or path == module or path.startswith(f"{module}.")
