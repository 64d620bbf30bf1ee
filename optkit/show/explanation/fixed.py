"""The time that no precision shortens: of the operators that are no matrix products.

If products took no time at all, a call would still take this time, so the speedup is at most

    total / fixed      (Amdahl, "Validity of the single processor approach", AFIPS 1967)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from optkit.facts.documents.explanation import ExplainFinding, FindingCost, FixedOperator, FixedTime
from optkit.facts.engines import LayerTensor
from optkit.facts.evidence import Evidence
from optkit.facts.timed_layers import TimedLayer
from optkit.ground.devices import target
from optkit.show.explanation.quantization_gains import slow
from optkit.show.explanation.subject import ELEMENTWISE, Subject, connected
from optkit.show.explanation.words import advice, does, named, several

_SHOWN = 8  # operators in the document
RARE = 0.05  # share from which an operator that few models need is a finding
COMMON = 0.2  # the same for an operator that most models need
CHAIN = 4  # kernels
KINDS = 3  # of operators in a chain: residual sums of one kind are no chain
DECIDES = 0.5  # share of a call
_START_MS = 1e-3
MORE = 8  # times the batch
SMALL = 4  # samples: a larger batch is no fault
_REDUCTIONS = frozenset(
    {"ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
     "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"}
)  # fmt: skip
_USUAL = frozenset(
    {"Softmax", "LogSoftmax", "LayerNormalization", "RMSNormalization",
     "SimplifiedLayerNormalization", "SkipLayerNormalization", "GroupNormalization",
     "GroupNorm", "InstanceNormalization",
     "BatchNormalization", "Gelu", "BiasGelu", "FastGelu", "QuickGelu", "MaxPool", "AveragePool",
     "GlobalAveragePool", "Attention", "MultiHeadAttention", "GroupQueryAttention",
     "RotaryEmbedding", "elementwise operators", *ELEMENTWISE, *_REDUCTIONS}
)  # fmt: skip


class _Remedy(NamedTuple):
    why: str
    change: str


_ORDER = _Remedy(
    "it compares and moves numbers one by one; products of fewer bits do not shorten it",
    "order fewer numbers: a smaller k, a threshold first, groups of numbers, or do it outside the "
    "model",
)
_BOXES = _Remedy(
    "it compares boxes pair by pair, and its time depends on their number",
    "give it fewer boxes (a higher score threshold, fewer per class), or do it outside the model",
)
_STEPS = _Remedy(
    "its steps depend on each other, so each one is small and waits for the one before",
    "unroll it, compute all steps in one product if they allow it (a convolution, an attention), "
    "or use larger batches",
)
_PLACES = _Remedy(
    "it reads or writes single numbers at computed places, which uses little of the bandwidth of "
    "memory",
    "select fewer elements, or whole rows; use a mask, a Slice or a Gather along one axis",
)
_ATTENTION = _Remedy(
    "it multiplies activations by activations, which stay in floats, and its scores grow with the "
    "square of the tokens",
    "use fewer tokens, a window instead of all pairs, or fewer heads",
)
_RESIZE = _Remedy(
    "it computes every output pixel from several input pixels in floats",
    "resize smaller maps or fewer channels: first the 1 × 1 convolution, then the Resize; or use "
    "mode nearest",
)
_SCAN = _Remedy(
    "each element depends on the one before",
    "compute it over a shorter axis, or as a product with a triangular matrix",
)
_SOFTPLUS = _Remedy(
    "its kernel on a CPU computes a logarithm for every number, without vector instructions",
    "use another activation (SiLU in place of Mish or Softplus), and train with it",
)
_OTHER = _Remedy(
    "it is no matrix product, so fewer bits do not shorten it",
    "compute it on fewer elements or at fewer places, or replace it",
)
_WHOLE = _Remedy(
    "a CPU has few vector instructions for integers of 64 bits, and none for their remainders",
    "compute with int32 or float32, or outside of the model",
)
_SHARED = _Remedy(
    "it reads and writes every number once and computes little, so memory limits it in any "
    "precision",
    "compute it on fewer elements (a smaller map, fewer channels or tokens), or leave it out where "
    "the accuracy allows it",
)
REMEDIES: Mapping[str, _Remedy] = MappingProxyType(
    {
        **dict.fromkeys(("TopK", "ArgMax", "ArgMin", "Unique"), _ORDER),
        **dict.fromkeys(("NonMaxSuppression",), _BOXES),
        **dict.fromkeys(
            ("Loop", "Scan", "If", "GRU", "LSTM", "RNN", "DynamicQuantizeLSTM"), _STEPS,
        ),
        **dict.fromkeys(
            ("NonZero", "GatherND", "GatherElements", "ScatterND", "ScatterElements", "Scatter",
             "Compress", "OneHot", "GridSample", "RoiAlign"), _PLACES,
        ),
        **dict.fromkeys(("Resize", "Upsample"), _RESIZE),
        **dict.fromkeys(("Attention", "MultiHeadAttention", "GroupQueryAttention"), _ATTENTION),
        **dict.fromkeys(("CumSum", "CumProd"), _SCAN),
        **dict.fromkeys(("Softplus", "Mish"), _SOFTPLUS),
    }
)  # fmt: skip


def fixed(subject: Subject) -> FixedTime | None:
    """What no precision makes faster; None if the times of layers are not known."""
    if subject.times is None or not subject.total_ms:
        return None
    unfused = [timed.ms for timed in subject.candidate if subject.is_unfused(timed)]
    both = [timed for timed in subject.candidate if not subject.is_unfused(timed)]
    groups = _by_operator(subject, both, ("other", "layout"))
    spent = {op: sum(timed.ms for timed in group) for op, group in groups.items()}
    total = sum(spent.values())
    operators = sorted(spent.items(), key=lambda one: -one[1])
    return FixedTime(
        evidence=subject.times.evidence,
        ms=total,
        share=subject.share(total),
        at_most=subject.total_ms / total if total else None,
        unfused_ms=sum(unfused) if unfused else None,
        operators=tuple(
            FixedOperator(op=op, ms=ms, share=subject.share(ms), nodes=_nodes(groups[op]))
            for op, ms in operators[:_SHOWN]
        ),
    )


def slow_operators(subject: Subject) -> Iterator[ExplainFinding]:
    """Operators that are no products and take much of the time. One that most models have is a
    limit, unless it takes more than half. Where the baseline computes them inside its products,
    that is the reason."""
    for op, group in _by_operator(subject, subject.candidate, ("other",)).items():
        ms = sum(timed.ms for timed in group)
        whole = op in ELEMENTWISE and _dtype(group) == "int64"
        usual = op in _USUAL and not whole
        if subject.share(ms) < (COMMON if usual else RARE):
            continue
        remedy = _WHOLE if whole else REMEDIES.get(op, _SHARED if usual else _OTHER)
        if sum(timed.ms for timed in group if subject.is_unfused(timed)) > ms / 2:
            remedy = _fused_in_baseline(subject)
        nodes = _nodes(group)
        yield slow(
            subject,
            "slow_operator",
            nodes,
            ms,
            what=f"{op} {does(_count(op), 'take')} {subject.share(ms):.0%} of the time of all "
            f"layers, in {several(len(group), 'kernel')}: {named(nodes)}{_sizes(group)}",
            why=remedy.why,
            change=advice(remedy.change),
            limit=usual and subject.share(ms) < 0.5,
        )


def _count(op: str) -> int:
    """How many things the words of `Subject.operator` name."""
    return 2 if " " in op else 1


def _fused_in_baseline(subject: Subject) -> _Remedy:
    engine = subject.result.engine
    compiler = "the compiler" if engine is None else engine.backend
    change = f"`optkit tune --target {subject.result.target}` finds the layers that pay"
    if engine is not None and engine.serving is not None:
        change += f"; {engine.serving}, which serves here, may fuse them: `optkit finish` tells"
    return _Remedy(
        f"{subject.baseline} computes them inside its products; in {subject.precision} {compiler} "
        "runs them as kernels of their own, with the quantization",
        change,
    )


def written_out(subject: Subject) -> Iterator[ExplainFinding]:
    """Chains of kernels that compute number by number, and reductions between them: an activation
    or a normalization written in several operators that no fusion rule knows. Each kernel reads and
    writes all numbers; one operator would do it once. The same chain in several places is one
    finding."""
    small = [
        timed
        for timed in subject.candidate
        if subject.kind(timed) == "other" and _is_small(subject, timed)
    ]
    alike: dict[tuple[str, ...], list[list[TimedLayer]]] = {}
    for group in connected(small):
        ops = tuple(sorted({subject.operator(timed) for timed in group}))
        if len(group) >= CHAIN and len(ops) >= KINDS:
            alike.setdefault(ops, []).append(group)
    for ops, groups in alike.items():
        ms = sum(sum(t.ms for t in group) - max(t.ms for t in group) for group in groups)
        nodes = _nodes([timed for group in groups for timed in group])
        places = "" if len(groups) == 1 else f" in each of {len(groups)} places"
        yield slow(
            subject,
            "written_out",
            nodes,
            ms,
            what=f"{len(groups[0])} kernels{places} ({', '.join(ops)}) compute one after the other "
            f"what one operator could: {named(nodes)}",
            why="each kernel reads and writes all of its numbers; the largest of them would be "
            "enough",
            change=advice(
                "write it with one function of the framework (gelu, silu, softmax, layer_norm, …); "
                "optkit makes one operator of every form of these that it knows"
            ),
        )


def launches(subject: Subject) -> Iterator[ExplainFinding]:
    """A batch so small that starting kernels takes more time than computing. On a GPU the time of a
    launch is a part of each predicted layer; ONNX Runtime needs about a microsecond to start a
    kernel (shapes, memory, threads), of the latency that was measured. A batch of eight times the
    size starts each kernel once for eight samples. If the batch is large already, it is a limit."""
    latency = subject.result.latency
    if subject.times is None or latency is None:
        return
    count = len(subject.candidate)
    of: Literal["latency", "layers"] = "latency"
    whole = "a call"
    if subject.times.evidence is Evidence.PREDICTED:
        spent = sum(timed.launch_ms or 0.0 for timed in subject.candidate)
        total, of, whole = subject.total_ms, "layers", "all layers"
    elif target(str(subject.result.target)).is_cpu:
        spent, total = count * _START_MS, latency.p50_ms
    else:
        return
    if not total or spent < DECIDES * total:
        return
    share = min(spent / total, 1.0) * (1 - 1 / MORE)
    cost = FindingCost(share, of, Evidence.PREDICTED, ms=share * total)
    batch = latency.batch
    yield ExplainFinding(
        "launches",
        "speed",
        f"starting {several(count, 'kernel')} takes about {min(spent / total, 1.0):.0%} of the "
        f"{total:.3g} ms of {whole} at batch {batch}; a batch of {MORE} times the size saves "
        f"{MORE - 1}/{MORE} of that for each sample, which is the cost above",
        "a kernel takes the same time to start at every batch size and in every precision",
        (),
        (),
        cost,
        advice(
            f"use a larger batch{subject.tuned_for(MORE * batch)}: each kernel then starts "
            f"once for {MORE} times as many samples"
        ),
        limit=batch > SMALL,
    )


def _is_small(subject: Subject, timed: TimedLayer) -> bool:
    ops = {subject.nodes[name].op for name in timed.layer.nodes if name in subject.nodes}
    return (ops or {timed.layer.kind}) <= ELEMENTWISE | _REDUCTIONS


def _by_operator(
    subject: Subject, layers: Iterable[TimedLayer], kinds: tuple[str, ...]
) -> dict[str, list[TimedLayer]]:
    groups: dict[str, list[TimedLayer]] = {}
    for timed in layers:
        if subject.kind(timed) in kinds:
            groups.setdefault(subject.operator(timed), []).append(timed)
    return groups


def _nodes(group: list[TimedLayer]) -> tuple[str, ...]:
    """The nodes of the layers, those of the slowest first."""
    slowest = sorted(group, key=lambda timed: -timed.ms)
    names = (name for timed in slowest for name in timed.layer.nodes or (timed.layer.name,))
    return tuple(dict.fromkeys(names))


def _largest(group: list[TimedLayer]) -> LayerTensor | None:
    """The largest value that the slowest layer reads."""
    slowest = max(group, key=lambda timed: timed.ms).layer
    return max(slowest.inputs, key=lambda tensor: tensor.bytes or 0, default=None)


def _dtype(group: list[TimedLayer]) -> str | None:
    largest = _largest(group)
    return None if largest is None else largest.dtype


def _sizes(group: list[TimedLayer]) -> str:
    largest = _largest(group)
    if largest is None or any(size < 0 for size in largest.shape):
        return ""
    return f"; the slowest reads {' × '.join(map(str, largest.shape)) or 1} {largest.dtype}"
