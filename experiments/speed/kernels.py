"""How fast are the kernels of a build on this CPU, with each instruction set that it has?

    python -m tests.avx2.environment build/avx2
    python -m tests.avx2.environment build/vnni --keep-avx512
    python experiments/speed/kernels.py AMX=python VNNI=build/vnni/bin/python \\
        AVX2=build/avx2/bin/python

NAME=PYTHON: an instruction set, and an interpreter that sees no better one. Every kernel runs
inside the graph that a build gives it: an integer convolution between float ones, so that its
conversions change the layout as well. ONNX Runtime's profile names the kernels and times each. The
interpreters run in turn, on one thread and on two, and the least time of each kernel counts,
because other processes and the hypervisor only add to it.

Writes kernels.json (each kernel) and kernels.md (speeds by kind) beside itself. `kernels:` in
`optkit/ground/devices/data/cpu-*.yaml` has what `distilled` makes of them. With `--kind` only
kernels of this kind are measured, and the others keep their rows.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from scipy.optimize import nnls

from optkit.craft.backends.ort_session import DISABLED
from optkit.craft.quantization.qdq import nbits
from optkit.facts.precisions import NumberFormat
from optkit.ground.devices import cpu

HERE = Path(__file__).resolve().parent
THREADS = (1, 2)
_RUNS = 12  # of each graph, in turn with the others
_SETTLING = 2  # first runs that do not count
_WRITTEN = (
    "`kernels.py` beside it wrote this; do not edit it. Billions of multiply-adds per second "
    "(convolutions, products) or of elements per second (the others): all shapes of a kind "
    "together, by their least times. On one thread, in brackets on two."
)

# channels in and out, side of the picture, kernel, groups
CONVOLUTIONS = {
    "pointwise": [(24, 144, 56), (144, 24, 56), (64, 256, 28), (40, 240, 28), (240, 40, 28),
                  (480, 112, 14), (112, 672, 14), (512, 512, 14), (960, 160, 7), (160, 960, 7)],
    "3×3": [(32, 32, 56), (64, 64, 56), (128, 128, 28), (256, 256, 14), (128, 32, 14),
            (512, 512, 7)],
    "thin 3×3": [(4, 4, 56), (8, 8, 56), (12, 12, 56)],
    "thin 7×7": [(8, 8, 56), (12, 12, 56)],
    "depthwise 3×3": [(96, 96, 56), (144, 144, 56), (240, 240, 28), (480, 480, 14), (960, 960, 7)],
    "depthwise 5×5": [(72, 72, 28), (240, 240, 28), (480, 480, 14), (672, 672, 14), (960, 960, 7)],
    "grouped 3×3": [(64, 64, 56), (128, 128, 28), (320, 320, 14), (768, 768, 7)],
}  # fmt: skip
GROUP = 16  # channels per group of the grouped ones
PRODUCTS = [(1, 768, 768), (128, 384, 384), (128, 768, 768), (128, 768, 3072), (128, 3072, 768)]
WEIGHT_ONLY = [(8, 128, 4), (4, 32, 4), (4, 32, 0)]  # bits, block, accuracy level
MAPS = [(64, 56), (128, 28), (256, 14)]  # channels, side: of sums, concatenations, pooling


@dataclass(frozen=True)
class Case:
    """A graph, and which of its kernels count. `work`: multiply-adds, or elements, by the name
    under which the time of a kernel counts."""

    graph: onnx.ModelProto
    feed: Mapping[str, np.ndarray]
    kernels: Mapping[str, tuple[str, str]]  # operator in the profile → kind and type of numbers
    work: Mapping[str, int]  # by kind
    shape: str


class Graph:
    """Writes an ONNX graph operator by operator. Codes have random values; kernels take as long
    with any."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op: str, *inputs: str, **attributes: object) -> str:
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def codes(self, x: str) -> str:
        """Q/DQ with one scale."""
        scale, zero = self.constant(np.float32(0.05)), self.constant(np.uint8(128))
        codes = self.node("QuantizeLinear", x, scale, zero)
        return self.node("DequantizeLinear", codes, scale, zero)

    def weight(self, shape: Sequence[int], integer: bool, axis: int = 0) -> str:
        if not integer:
            return self.constant(self.rng.standard_normal(shape).astype(np.float32))
        codes = self.rng.integers(-63, 64, shape).astype(np.int8)
        channels = shape[axis]
        scale = self.constant(np.full(channels, 0.01, np.float32))
        zero = self.constant(np.zeros(channels, np.int8))
        return self.node("DequantizeLinear", self.constant(codes), scale, zero, axis=axis)

    def bias(self, channels: int, integer: bool) -> str:
        if not integer:
            return self.constant(np.zeros(channels, np.float32))
        scale = self.constant(np.full(channels, 0.0005, np.float32))
        zero = self.constant(np.zeros(channels, np.int32))
        codes = self.constant(np.ones(channels, np.int32))
        return self.node("DequantizeLinear", codes, scale, zero, axis=0)

    def conv(
        self, x: str, channels: tuple[int, int], kernel: int, groups: int, integer: bool
    ) -> str:
        shape = (channels[1], channels[0] // groups, kernel, kernel)
        return self.node(
            "Conv", x, self.weight(shape, integer), self.bias(channels[1], integer),
            kernel_shape=[kernel, kernel], pads=[kernel // 2] * 4, group=groups,
        )  # fmt: skip

    def pad(self, x: str, channels: int) -> str:
        """The float neighbour of an integer kernel: the cheapest one, in blocks of channels."""
        return self.conv(x, (channels, channels), 1, channels, False)

    def case(
        self, result: str, shape: Sequence[int], kernels: Mapping[str, tuple[str, str]],
        work: Mapping[str, int], text: str,
    ) -> Case:  # fmt: skip
        """From x, of this shape, to `result`."""
        graph = helper.make_graph(
            self.nodes, "kernels", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(result, TensorProto.FLOAT, None)], self.constants,
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        return Case(model, {"x": np.ones(shape, np.float32)}, kernels, work, text)


def convolution(kind: str, size: tuple[int, int, int], integer: bool) -> Case:
    """Float neighbour, convolution, float neighbour."""
    c_in, c_out, side = size
    kernel = int(kind[-1]) if kind[-1].isdigit() else 1
    groups = c_in if kind.startswith("depthwise") else c_in // GROUP if "grouped" in kind else 1
    graph, shape = Graph(), (1, c_in, side, side)
    x = graph.pad("x", c_in)
    if integer:
        x = graph.codes(x)
    y = graph.conv(x, (c_in, c_out), kernel, groups, integer)
    if integer:
        y = graph.codes(y)
    result = graph.pad(y, c_out)
    macs = c_out * side * side * (c_in // groups) * kernel * kernel
    into, out = prod(shape), c_out * side * side
    work = {kind: macs, "into codes": into, "out of codes": out, "QuantizeLinear alone": into,
            "DequantizeLinear alone": out}  # fmt: skip
    kernels = {"QLinearConv": (kind, "int8")} if integer else {"Conv": (kind, "float")}
    return graph.case(result, shape, kernels, work, f"{c_in}→{c_out}, {side}²")


def sums(channels: int, side: int, integer: bool) -> Case:
    """The sum of two convolutions, joined with a third, pooled and read by a fourth. In floats, the
    sum is part of the convolution before it."""
    graph, shape = Graph(), (1, channels, side, side)
    codes = graph.codes if integer else str
    x = codes(graph.pad("x", channels))
    same = (channels, channels)
    a = codes(graph.conv(x, same, 1, 1, integer))
    b = codes(graph.conv(x, same, 1, 1, integer))
    c = codes(graph.conv(x, same, 1, 1, integer))
    summed = codes(graph.node("Add", a, b))
    joined = codes(graph.node("Concat", summed, c, axis=1))
    pooled = codes(graph.node("MaxPool", joined, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4))
    result = graph.pad(codes(graph.conv(pooled, (2 * channels, channels), 1, 1, integer)), channels)
    size = prod(shape)
    work = {"sum": size, "concatenation": 2 * size, "max pooling 3×3": 2 * size}
    number = "int8" if integer else "float"
    kernels = {
        op: (kind, number)
        for op, kind in (
            ("QLinearAdd", "sum"), ("QLinearConcat", "concatenation"),
            ("NhwcMaxPool", "max pooling 3×3"),
            ("Concat", "concatenation"), ("MaxPool", "max pooling 3×3"),
        )
        if (op in ("Concat", "MaxPool")) != integer
    }  # fmt: skip
    return graph.case(result, shape, kernels, work, f"{channels}, {side}²")


def product(size: tuple[int, int, int], integer: bool) -> Case:
    rows, summed, columns = size
    graph = Graph()
    x = graph.codes("x") if integer else "x"
    y = graph.node("Gemm", x, graph.weight((summed, columns), integer, axis=1),
                   graph.bias(columns, integer))  # fmt: skip
    kind = "product" if rows > 1 else "product, 1 row"
    kernels = {"QGemm": (kind, "int8")} if integer else {"Gemm": (kind, "float")}
    return graph.case(y, size[:2], kernels, {kind: prod(size)}, " × ".join(map(str, size)))


def weight_only(size: tuple[int, int, int], bits: int, block: int, level: int) -> Case:
    rows, summed, columns = size
    graph = Graph()
    fmt = NumberFormat("int8", "block", symmetric=True, limit_bits=bits, block_size=block)
    codes = graph.rng.integers(-(1 << bits - 1), 1 << bits - 1, (columns, summed))
    scale = graph.constant(np.full((columns, summed // block), 0.01, np.float32))
    y = graph.node(
        "MatMulNBits", "x", graph.constant(nbits.pack(codes, fmt, block)), scale,
        domain="com.microsoft", **nbits.attributes(columns, summed, bits, block, level),
    )  # fmt: skip
    kind = "product" if rows > 1 else "product, 1 row"
    kernels = {"MatMulNBits": (kind, f"{bits} bits in blocks of {block}, level {level}")}
    return graph.case(y, size[:2], kernels, {kind: prod(size)}, " × ".join(map(str, size)))


def two_terms(size: tuple[int, int, int]) -> Case:
    """A product whose activation is the sum of two terms of 8 bits, as builds write it."""
    rows, summed, columns = size
    graph = Graph()
    first = graph.codes("x")
    second = graph.codes(graph.node("Sub", "x", first))
    weight = graph.weight((summed, columns), True, axis=1)
    products = [graph.node("MatMul", term, weight) for term in (first, second)]
    y = graph.node("Add", *products)
    elements = {"QuantizeLinear": "codes of a term", "DequantizeLinear": "value of a term",
                "Sub": "rest of a term", "Add": "sum of two products"}  # fmt: skip
    work = dict.fromkeys(elements.values(), rows * summed) | {"sum of two products": rows * columns}
    kernels = {op: (kind, "two terms") for op, kind in elements.items()}
    return graph.case(y, (1, rows, summed), kernels, work, " × ".join(map(str, size)))


def cases() -> Iterator[Case]:
    for integer in (False, True):
        for kind, sizes in CONVOLUTIONS.items():
            yield from (convolution(kind, size, integer) for size in sizes)
        yield from (sums(*size, integer) for size in MAPS)
        yield from (product(size, integer) for size in PRODUCTS)
    for form in WEIGHT_ONLY:
        yield from (weight_only(size, *form) for size in PRODUCTS[:1] + PRODUCTS[2:4])
    yield from (two_terms(size) for size in PRODUCTS[1:])


def measure(threads: int, kind: str | None = None) -> list[dict[str, Any]]:
    """The least time of each kernel (of this kind) on this interpreter's instruction set: kind,
    numbers, shape, work, ns."""
    listed = [case for case in cases() if kind in (None, *(k for k, _ in case.kernels.values()))]
    with tempfile.TemporaryDirectory() as folder:
        sessions = []
        for at, case in enumerate(listed):
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = threads
            options.add_session_config_entry("session.intra_op.allow_spinning", "1")
            options.log_severity_level = 4
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(folder) / str(at))
            sessions.append(onnxruntime.InferenceSession(
                case.graph.SerializeToString(), options, disabled_optimizers=list(DISABLED),
                providers=["CPUExecutionProvider"],
            ))  # fmt: skip
        for case, session in zip(listed, sessions, strict=True):
            for _ in range(_RUNS):  # the caches are warm, as between the layers of a model
                session.run(None, dict(case.feed))
        return [
            row
            for case, session in zip(listed, sessions, strict=True)
            for row in times(case, json.loads(Path(session.end_profiling()).read_text()))
        ]


def times(case: Case, events: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """One row for each kernel of the case that counts; for an integer convolution also what is
    before it and behind it, between the float convolutions."""
    kernels = [e for e in events if e.get("cat") == "Node" and e["name"].endswith("_kernel_time")]
    length = len(kernels) // _RUNS
    names = [each["args"]["op_name"] for each in kernels[:length]]
    ns = np.asarray([each["dur"] for each in kernels], float).reshape(_RUNS, length) * 1e3
    least = ns[_SETTLING:].min(0)
    ends = [at for at, name in enumerate(names) if name == "Conv"]
    found = {}
    for at, name in enumerate(names):
        if name in case.kernels and not (name == "Conv" and at in (ends[0], ends[-1])):
            found[case.kernels[name]] = least[at]
    if missing := {kind for kind, _ in case.kernels.values()} - {kind for kind, _ in found}:
        print(f"{case.shape}: no kernel for {missing} in {names}", file=sys.stderr)
    if "QLinearConv" in names and len(ends) == 2 and names.count("QLinearConv") == 1:
        middle = names.index("QLinearConv")
        found["into codes", "conversion"] = least[ends[0] + 1 : middle].sum()
        found["out of codes", "conversion"] = least[middle + 1 : ends[1]].sum()
        for op in ("QuantizeLinear", "DequantizeLinear"):
            found[f"{op} alone", "conversion"] = least[names.index(op)]
    for (kind, numbers), spent in found.items():
        yield {"kind": kind, "numbers": numbers, "shape": case.shape, "work": case.work[kind],
               "results": case.work.get("out of codes"), "ns": float(spent)}  # fmt: skip


def compared(
    pythons: Mapping[str, str], minutes: float, kind: str | None = None
) -> list[dict[str, Any]]:
    """The rows, with `ns` by instruction set and threads."""
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    ends = time.monotonic() + 60 * minutes
    while not rows or time.monotonic() < ends:
        for name, python in pythons.items():
            for threads in THREADS:
                command = [python, __file__, "--threads", str(threads)]
                command += [] if kind is None else ["--kind", kind]
                told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
                for row in json.loads(told):
                    key = (row["kind"], row["numbers"], row["shape"])
                    least = rows.setdefault(key, {**row, "ns": {}})["ns"].setdefault(name, {})
                    before = least.get(str(threads), float("inf"))
                    least[str(threads)] = min(before, row["ns"])
    return list(rows.values())


def speeds(rows: Sequence[Mapping[str, Any]], name: str, threads: int) -> dict[str, float]:
    """Billions of multiply-adds, or of elements, per second: the sum of all shapes of a kind by the
    sum of their times."""
    work: dict[str, int] = {}
    spent: dict[str, float] = {}
    for row in rows:
        kind = f"{row['kind']}, {row['numbers']}"
        work[kind] = work.get(kind, 0) + row["work"]
        spent[kind] = spent.get(kind, 0.0) + _least(row, name)[str(threads)]
    return {kind: work[kind] / spent[kind] for kind in sorted(work)}


def _least(row: Mapping[str, Any], name: str) -> Mapping[str, float]:
    """The times of a kernel by threads. Where AMX was not measured they are those of VNNI, whose
    kernels of convolutions it has."""
    found: Mapping[str, float] = row["ns"].get(name) or row["ns"]["VNNI"]
    return found


CONV_KINDS = {
    "conv": ("pointwise", "3×3"),
    "thin_conv": ("thin 3×3", "thin 7×7"),
    "grouped_conv": ("grouped 3×3",),
    "depthwise_conv": ("depthwise 3×3", "depthwise 5×5"),
}
OPERATORS = {
    "conversion": (("into codes", "out of codes"), "conversion"),
    "sum": (("sum",), "int8"),
}

PRODUCT_FORMS = (
    ("float", "float"), ("int8", "int8"), ("blocks", "8 bits in blocks of 128, level 4"),
)  # fmt: skip
TERM_KINDS = ("codes of a term", "value of a term", "rest of a term", "sum of two products")


def distilled(rows: Sequence[Mapping[str, Any]], name: str) -> dict[str, float]:
    """What a build needs of one instruction set, on one thread, in three digits. The time of a
    convolution is fitted as multiply-adds · a + elements of the result · b, that of other operators
    as elements · a + b, with relative errors and no negative term. The second term of an activation
    costs the value of the first, the rest and its codes."""
    found = {}
    for kind, kinds in CONV_KINDS.items():
        for numbers in ("float", "int8"):
            by_mac, by_result = _fitted(rows, name, kinds, numbers, ("work", "results"))
            found[f"{kind}_{numbers}_gmacs"] = 1 / by_mac
            found[f"{kind}_{numbers}_result_ns"] = by_result
    for kind, (kinds, numbers) in OPERATORS.items():
        by_element, once = _fitted(rows, name, kinds, numbers, ("work", "runs"))
        found |= {f"{kind}_element_ns": by_element, f"{kind}_operator_us": once / 1e3}
    each = speeds(rows, name, 1)
    found |= {f"product_{form}_gmacs": each[f"product, {kind}"] for form, kind in PRODUCT_FORMS}
    ns = {kind: 1 / each[f"{kind}, two terms"] for kind in TERM_KINDS}
    found["product_first_term_ns"] = ns["codes of a term"]
    found["product_second_term_ns"] = sum(ns[kind] for kind in TERM_KINDS[:3])
    found["product_terms_sum_ns"] = ns["sum of two products"]
    return {key: float(f"{value:.3g}") for key, value in found.items()}


def _fitted(
    rows: Sequence[Mapping[str, Any]],
    name: str,
    kinds: Sequence[str],
    numbers: str,
    columns: Sequence[str],
) -> np.ndarray:
    """Nanoseconds by column of the rows."""
    chosen = [
        {**row, "runs": 1} for row in rows if row["kind"] in kinds and row["numbers"] == numbers
    ]
    ns = np.asarray([_least(row, name)["1"] for row in chosen])
    each = np.asarray([[row[column] for column in columns] for row in chosen], float)
    found: np.ndarray = nnls(each / ns[:, None], np.ones(len(ns)))[0]
    return found


def page(found: Mapping[str, Any]) -> str:
    rows, names = found["rows"], found["sets"]
    lines = [
        "# Kernels of a build, by instruction set", "",
        _WRITTEN, "",
        f"{found['date']}, {found['cpu']}, ONNX Runtime {found['onnxruntime']}.", "",
        f"| kind, numbers | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|",
    ]  # fmt: skip
    tables = [[speeds(rows, name, threads) for threads in THREADS] for name in names]
    for kind in tables[0][0]:
        cells = [f"{one[kind]:.3g} ({two[kind]:.3g})" for one, two in tables]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    for cpu_, kinds in elsewhere(rows).items():
        lines += ["", f"Measured elsewhere: {', '.join(kinds)}: {cpu_}."]
    lines += ["", "As `optkit/ground/devices/data/` keeps them:", ""]
    lines += [f"- {name}: {distilled(rows, name)}" for name in names]
    return "\n".join(lines) + "\n"


def elsewhere(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The kinds of kernels that were measured on another CPU, or later, by where and when."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if "where" in row and row["kind"] not in found.setdefault(row["where"], []):
            found[row["where"]].append(row["kind"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("pythons", nargs="*", metavar="NAME=PYTHON")
    parser.add_argument("--threads", type=int, help="measure this interpreter; print JSON")
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--kind", help="measure kernels of this kind; keep the other rows")
    asked = parser.parse_args()
    if asked.threads:
        print(json.dumps(measure(asked.threads, asked.kind)))
        return
    pythons = dict(each.split("=", 1) for each in asked.pythons)
    rows = compared(pythons, asked.minutes, asked.kind)
    found = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "cpu": f"{cpu().name} ({', '.join(cpu().features)}), {cpu().threads} cores",
        "onnxruntime": onnxruntime.__version__,
        "sets": list(pythons),
        "rows": rows,
    }
    if asked.kind is not None:
        where = f"{found['date']}, {found['cpu']}, ONNX Runtime {found['onnxruntime']}"
        found = json.loads((HERE / "kernels.json").read_text())
        kept = [row for row in found["rows"] if row["kind"] != asked.kind]
        anew = [{**row, "where": where} for row in rows if row["kind"] == asked.kind]
        found["rows"] = kept + anew
    (HERE / "kernels.json").write_text(json.dumps(found, indent=1) + "\n")
    (HERE / "kernels.md").write_text(page(found))
    print(page(found))


if __name__ == "__main__":
    main()
