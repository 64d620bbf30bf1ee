"""Random graphs: every value is float32 [2, 4, 6, 6], and each step takes some and gives another,
by one operator or a few. A seed gives the same graph everywhere.

What jumps (floor, sign, comparisons) is applied to inputs alone: behind a sum, rounding would turn
it and say nothing of the graph.
"""

from __future__ import annotations

import re

import numpy as np
import onnx
from onnx import parser

from tests.conformance.judging import Case

_HEAD = """float one = {1.0}, float two = {2.0}, float tenth = {0.1}, float low = {-1.5},
    float high = {1.5}, float huge = {70000.0}, bool no = {0}, int64[1] last = {-1},
    int64[1] first = {1}, int64 axis = {2}, int64[3] rows = {2, 4, 36},
    int64[4] whole = {2, 4, 6, 6}, int64[1] zero = {0}, int64[2] flat = {2, 144},
    int64[1] six = {6}, int64[1] four = {4}, int64[1] twelve = {12}, int64[4] turn = {3, 0, 2, 1},
    int64[4] twice = {1, 1, 1, 2}, int64[2] halves = {2, 4},
    int64[8] pads = {0, 0, 1, 1, 0, 0, 1, 1}, int64[8] cut = {0, 0, -1, -1, 0, 0, -1, -1},
    float[4] scales = {1.0, 1.0, 2.0, 2.0}, int64[1] k = {6}, int64 count = {6},
    int64 start = {0}, int64 step = {1}, float[2] onoff = {0.0, 1.0}, int64[2] z = {3, 4}"""
_UNARY = (
    *("Abs", "Neg", "Sigmoid", "Tanh", "Relu", "LeakyRelu", "Elu", "Selu", "Softplus", "Softsign"),
    *("HardSigmoid", "HardSwish", "Gelu", "Mish", "Celu", "ThresholdedRelu", "Erf", "Sin", "Cos"),
    *("Atan", "Identity", "Softmax", "LogSoftmax", "Shrink", "LpNormalization", "Asinh", "Dropout"),
    "MeanVarianceNormalization<axes = [0, 2, 3]>",
)
_JUMPS = ("Floor", "Ceil", "Round", "Sign", "Hardmax")
_BINARY = ("Add", "Sub", "Mul", "Max", "Min", "Mean", "Sum", "PRelu")
_REDUCED = (
    *("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2"),
    *("ReduceSumSquare", "ReduceLogSumExp"),
)
_NORM = """m1 = ReduceMean<keepdims = 1> (a, last) c1 = Sub (a, m1) s1 = Pow (c1, two)
    v1 = ReduceMean<keepdims = 1> (s1, last) e1 = Add (v1, tenth) r1 = Sqrt (e1)
    n1 = Div (c1, r1) g1 = Mul (n1, l) y = Add (g1, l)"""
_STEPS = (
    *(f"y = {op} (a)" for op in _UNARY),
    *(f"y = {op} (x)" for op in _JUMPS),
    *(f"y = {op} (a, b)" for op in _BINARY),
    *(f"p = {op}<keepdims = 1> (a, last) y = Add (p, b)" for op in _REDUCED),
    "p = Abs (a) y = Sqrt (p)", "p = Abs (a) q = Add (p, one) y = Log (q)",
    "p = Abs (b) q = Add (p, one) y = Div (a, q)", "p = Tanh (a) y = Exp (p)",
    "p = Abs (a) q = Add (p, one) y = Reciprocal (q)", "y = Pow (a, two)",
    "y = Clip (a, low, high)", "p = Reshape (a, rows) y = Reshape (p, whole)",
    "p = Flatten (a) y = Reshape (p, whole)",
    "p = Transpose<perm = [3, 1, 0, 2]> (a) y = Transpose<perm = [2, 1, 3, 0]> (p)",
    "p = Transpose<perm = [0, 1, 3, 2]> (a) y = Mul (p, b)",
    "p = Unsqueeze (a, last) y = Squeeze (p, last)",
    "p = Concat<axis = -1> (a, b) y = Slice (p, six, twelve, last)",
    "p = Concat<axis = 1> (a, b) q = Slice (p, zero, four, first) y = Add (q, a)",
    "p, q = Split<axis = 2> (a, halves) y = Concat<axis = 2> (q, p)",
    "i = Range (start, count, step) y = Gather<axis = 2> (a, i)",
    "p = Tile (a, twice) y = Slice (p, zero, six, last)", "y = Expand (a, whole)",
    "p = Pad (a, pads) y = Pad (p, cut)", "p = Tanh (a) y = CumSum (p, axis)",
    "p = MatMul (a, w) y = Add (p, b)", "y = MatMul (a, w)",
    "p = Transpose<perm = [0, 1, 3, 2]> (b) q = MatMul (a, p) y = Tanh (q)",
    "p = MatMul (a, b) y = Mul (p, tenth)",
    ("p = Reshape (a, flat) q = Transpose<perm = [1, 0]> (p) r = Gemm<transA = 1> (q, m) "
     "y = Reshape (r, whole)"),
    "y = Conv<pads = [1, 1, 1, 1]> (a, c)", "y = Conv<pads = [1, 1, 1, 1]> (a, c, v)",
    "y = Conv<pads = [1, 1, 1, 1], group = 4> (a, d)",
    "p = Conv<pads = [1, 1, 1, 1]> (a, c) y = BatchNormalization (p, v, v, v, u)",
    "y = ConvTranspose<pads = [1, 1, 1, 1]> (a, c)", "y = BatchNormalization (a, v, v, v, u)",
    "y = InstanceNormalization (a, v, v)", "y = LayerNormalization (a, l, l)",
    "y = GroupNormalization<num_groups = 2> (a, v, v)", "y = LRN<size = 3> (a)",
    "p = GlobalAveragePool (a) y = Mul (p, b)", "p = GlobalMaxPool (a) y = Add (p, b)",
    "y = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (a)",
    "y = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (a)",
    "y = LpPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (a)",
    ('p = Resize<mode = "nearest"> (a, , scales) '
     "y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]> (p)"),
    "p = DepthToSpace<blocksize = 2> (a) y = SpaceToDepth<blocksize = 2> (p)",
    'y = Einsum<equation = "bchw,wv->bchv"> (a, w)', "y = Trilu (a)",
    "p, i = TopK (a, k) y = Add (p, b)",
    "s = Shape (a) n = Gather (s, turn) p = ConstantOfShape (s) y = Add (p, a)",
    "s = Shape (a) p = Flatten (a) y = Reshape (p, s)", "y = CastLike (a, b)",
    "p = Cast<to = 10> (a) y = Cast<to = 1> (p)", "p = Cast<to = 16> (a) y = Cast<to = 1> (p)",
    "q = Mul (a, huge) p = Cast<to = 10> (q) y = Cast<to = 1> (p)",
    "p = Cast<to = 11> (a) y = Cast<to = 1> (p)", "t = IsNaN (a) y = Where (t, b, a)",
    "t = Greater (x, one) y = Where (t, a, b)", "t = Less (x, one) n = Not (t) y = Where (n, a, b)",
    "t = Greater (x, one) r = LessOrEqual (x, two) n = And (t, r) y = Where (n, a, b)",
    "t = Greater (x, one) n = Or (t, no) r = Xor (n, no) y = Where (r, b, a)",
    "t = GreaterOrEqual (x, one) p = Cast<to = 1> (t) y = Add (p, a)",
    "i = ArgMax<axis = 2, keepdims = 1> (x) p = Cast<to = 1> (i) y = Add (a, p)",
    "i = ArgMin<axis = 2, keepdims = 1> (x) p = Cast<to = 1> (i) y = Add (a, p)",
    "i = ArgMax<axis = 3, keepdims = 0> (x) p = OneHot (i, six, onoff) y = Mul (p, a)",
    "i = ArgMax<axis = 2, keepdims = 1> (x) p = GatherElements<axis = 2> (a, i) y = Add (p, b)",
    "t = IsInf (a) n = Not (t) p = Cast<to = 1> (n) y = Mul (p, b)",
    "y = ReverseSequence<batch_axis = 0, time_axis = 1> (a, z)",
    "i = Shape (a) p = Size (i) q = Cast<to = 1> (p) y = Mul (q, a)",
    _NORM,
)  # fmt: skip
_WEIGHTS = """float[6,6] w, float[4,4,3,3] c, float[4,1,3,3] d, float[4] v, float[4] u,
    float[6] l, float[144,144] m"""


def random_graph(seed: int, length: int = 20) -> Case:
    """A graph of about `length` steps, some of whose values are outputs, and one feed."""
    random = np.random.default_rng(seed)
    values, lines = ["x", "x2"], []
    for at in range(length):
        line = _STEPS[int(random.integers(len(_STEPS)))]
        a, b = (values[-1 - int(random.integers(min(5, len(values))))] for _ in range(2))
        lines.append(_renamed(line, at, a, b))
        values.append(f"n{at}_y")
    wanted = [values[-1], values[2 + int(random.integers(length))]]
    outputs = [f"y{index}" for index, _ in enumerate(wanted)]
    lines += [f"{name} = Tanh ({value})" for name, value in zip(outputs, wanted, strict=True)]
    declared = ", ".join(f"float[?,?,?,?] {name}" for name in outputs)
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
    g (float[2,4,6,6] x, float[2,4,6,6] x2, {_WEIGHTS}) => ({declared})
    <{_HEAD}> {{ {" ".join(lines)} }}"""
    model = parser.parse_model(text)
    for value in list(model.graph.input)[2:]:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        numbers = np.asarray(random.uniform(0.1, 0.5, shape), np.float32)
        if len(shape) > 1:
            numbers *= random.choice([-1, 1], shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(numbers, value.name))
        model.graph.input.remove(value)
    feed = {n: random.standard_normal((2, 4, 6, 6)).astype(np.float32) for n in ("x", "x2")}
    return Case(f"random/{seed}", model, [feed])


def operators(cases: list[Case]) -> set[str]:
    return {node.op_type for case in cases for node in case.model.graph.node}


def _renamed(line: str, at: int, a: str, b: str) -> str:
    """A step on other values: what it makes gets a name of its own."""
    made = set(re.findall(r"(\w+)(?:, \w+)? = [A-Z]", line)) | set(
        re.findall(r"\w+, (\w+) = [A-Z]", line)
    )
    names = {"a": a, "b": b} | {name: f"n{at}_{name}" for name in made}
    parts = re.split(r"(<[^<>]*>|\w+)", line)
    return "".join(names.get(part, part) for part in parts)
