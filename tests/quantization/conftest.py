"""Small networks as text, their statistics, and how a quantized one is judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from optkit import graph
from optkit.assignment import Assignment
from optkit.backends.onnxruntime import OnnxRuntime
from optkit.calibration import observe
from optkit.data import spool
from optkit.devices import target
from optkit.placement import PlacementRules
from optkit.precisions import PRECISIONS, NumberFormat
from optkit.quantization.choose_qparams import decide
from optkit.quantization.placement.assign import assign
from optkit.quantization.qdq.apply import QuantLog, apply, taps
from optkit.quantization.ranges import Method
from optkit.recipe import Quantization
from optkit.runtimes import SessionOptions, backend
from optkit.statistics import Statistics, Tap
from optkit.steps import STEPS
from optkit.tensors import Feed, TensorInfo

OPS = frozenset({"Conv", "MatMul", "Gemm"})
RULES = {
    "cpu": PlacementRules(
        activation=NumberFormat("uint8", "tensor", symmetric=False),
        weight=NumberFormat("int8", "channel", symmetric=True),
        ops=OPS,
        residual_adds=True,
        quantize_outputs=frozenset({"Conv"}),
        float_output=True,
        min_conv_channels=4,
        integer_bias=frozenset({"Conv", "Gemm"}),
        gemm_for_matrices=True,
    ),
    "gpu": PlacementRules(
        activation=NumberFormat("int8", "tensor", symmetric=True),
        weight=NumberFormat("int8", "channel", symmetric=True),
        ops=OPS,
        residual_adds=True,
        quantize_outputs=frozenset(),
        float_output=True,
        split_scale=OPS,
    ),
}

PLAIN = Quantization(weights="rtn", bias_correction=False)  # the numbers that follow from ranges

RESIDUAL = """<ir_version: 10, opset_import: ["" : 21]>
g (float[N,3,12,12] x, float[24,3,3,3] w_stem, float[24] b_stem, float[24,24,3,3] w_1,
   float[24] b_1, float[24,24,3,3] w_2, float[24] b_2, float[48,24,3,3] w_3, float[48] b_3,
   float[48,24,1,1] w_skip, float[48] b_skip, float[10,48] w_head, float[10] b_head)
=> (float[N,10] y) {
  [stem] s = Conv <pads=[1,1,1,1]> (x, w_stem, b_stem)
  [stem_relu] sr = Relu (s)
  [conv1] c1 = Conv <pads=[1,1,1,1]> (sr, w_1, b_1)
  [relu1] r1 = Relu (c1)
  [conv2] c2 = Conv <pads=[1,1,1,1]> (r1, w_2, b_2)
  [add1] a1 = Add (c2, sr)
  [relu2] r2 = Relu (a1)
  [conv3] c3 = Conv <pads=[1,1,1,1], strides=[2,2]> (r2, w_3, b_3)
  [skip] k = Conv <strides=[2,2]> (r2, w_skip, b_skip)
  [add2] a2 = Add (c3, k)
  [relu3] r3 = Relu (a2)
  [pool] p = GlobalAveragePool (r3)
  [flat] f = Flatten (p)
  [head] y = Gemm <transB=1> (f, w_head, b_head)
}"""

# fused query/key/value as timm writes it: one product, taken apart behind
ATTENTION = """<ir_version: 10, opset_import: ["" : 21]>
g (float[N,8,32] x, float[32] g_1, float[32] b_1, float[32,96] w_qkv, float[32] g_2, float[32] b_2,
   float[32,32] w_o, float[32,128] w_up, float[128] b_up, float[128,32] w_down)
=> (float[N,8,32] y) {
  [norm1] n1 = LayerNormalization (x, g_1, b_1)
  [qkv] qkv = MatMul (n1, w_qkv)
  [shape] heads = Constant <value_ints=[0, 8, 3, 4, 8]> ()
  [reshape] h = Reshape (qkv, heads)
  [spread] t = Transpose <perm=[2, 0, 3, 1, 4]> (h)
  [zero] i0 = Constant <value_int=0> ()
  [one] i1 = Constant <value_int=1> ()
  [two] i2 = Constant <value_int=2> ()
  [q] q = Gather <axis=0> (t, i0)
  [k] k = Gather <axis=0> (t, i1)
  [v] v = Gather <axis=0> (t, i2)
  [kt] kt = Transpose <perm=[0, 1, 3, 2]> (k)
  [scores] sc = MatMul (q, kt)
  [root] root = Constant <value_float=0.35> ()
  [scaled] ss = Mul (sc, root)
  [softmax] at = Softmax (ss)
  [mix] m = MatMul (at, v)
  [back] mt = Transpose <perm=[0, 2, 1, 3]> (m)
  [flatshape] flat = Constant <value_ints=[0, 8, 32]> ()
  [merge] mm = Reshape (mt, flat)
  [out] o = MatMul (mm, w_o)
  [add1] r1 = Add (x, o)
  [norm2] n2 = LayerNormalization (r1, g_2, b_2)
  [up] u = MatMul (n2, w_up)
  [upbias] ub = Add (u, b_up)
  [gelu] ge = Gelu (ub)
  [down] d = MatMul (ge, w_down)
  [add2] y = Add (r1, d)
}"""


def network(text: str, **given: np.ndarray) -> ir.Model:
    """A model from text. Inputs named w*, b*, g* become weights, seeded by their name."""
    model = ir.from_onnx_text(text)
    for value in list(model.graph.inputs):
        name = str(value.name)
        if name[0] not in "wbg":
            continue
        model.graph.inputs.remove(value)
        assert value.shape is not None
        shape = value.shape.numpy()
        rng = np.random.default_rng(list(name.encode()))
        numbers = rng.standard_normal(shape) / np.sqrt(max(np.prod(shape[1:]), 1.0))
        numbers = given.get(name, numbers + (1.0 if name[0] == "g" else 0.0))
        value.const_value = ir.tensor(numbers.astype(np.float32), name=name)
        model.graph.register_initializer(value)
    return graph.upgrade(model)


def feed(model: ir.Model, batch: int = 16, seed: int = 0) -> Feed:
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal([batch if isinstance(d, str) else d for d in shape]).astype(dtype)
        for name, dtype, shape in graph.inputs(model)
    }


class Workshop:
    """Calibrates, quantizes and runs models in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, model: ir.Model, given: Feed) -> Feed:
        """Outputs by name; none of ONNX Runtime's own rewrites, so the graph is judged as it is."""
        path = self.folder / "run.onnx"
        graph.save(model, path)
        graph.check(path)
        with OnnxRuntime().session(path, SessionOptions(level="none", threads=1)) as session:
            return session.run(given)

    def statistics(self, model: ir.Model, wanted: list[Tap]) -> Statistics:
        path = self.folder / "taps.onnx"
        graph.save(graph.expose(model, [tap.name for tap in wanted]), path)
        with OnnxRuntime().session(path, SessionOptions(threads=1)) as session:
            return observe(
                session,
                [feed(model, seed=1), feed(model, seed=2)],
                wanted,
                memory_bytes=1 << 30,
                progress=lambda what, fraction: None,
            )

    def quantize(
        self,
        model: ir.Model,
        kind: str | PlacementRules,
        *,
        precision: str = "int8",
        method: Method = "minmax",
        carrier: ir.Model | None = None,
        settings: Quantization = PLAIN,
        overrides: dict[str, str] | None = None,
        simulated: bool = False,
    ) -> tuple[ir.Model, Assignment, QuantLog]:
        """Calibrate `model` and quantize a copy of it (or of `carrier`, its FP16 cast)."""
        own = kind if isinstance(kind, PlacementRules) else RULES[kind]
        rules = {precision: own}
        assignment = assign(model, precision, rules, "fp32", overrides=overrides)
        moments = settings.weights in ("auto", "gptq")
        wanted = taps(model, assignment, rules, moments=moments)
        statistics = self.statistics(model, wanted) if wanted else None
        symmetric = own.activation is None or own.activation.symmetric
        dtype = np.float16 if symmetric else np.float32
        decisions = decide(
            model, assignment, statistics, rules, settings,
            method=method, percentile=99.0, carrier=dtype,
        )  # fmt: skip
        quantized = (carrier or model).clone()
        log = apply(
            quantized, decisions, assignment, rules, statistics,
            scale_dtype=dtype, simulated=simulated,
        )  # fmt: skip
        return quantized, assignment, log


class Chain:
    """The steps of the pipeline from a graph to its quantized form, in this process. A form of it
    that quantizes better is made once for each `where`; `quantize` may then be asked often."""

    def __init__(self, folder: Path, model: ir.Model, feeds: Iterable[Feed]) -> None:
        self.folder = folder
        exported, samples = folder / "exported", folder / "samples"
        exported.mkdir(parents=True)
        graph.save(model, exported / "model.onnx")
        infos = [TensorInfo(*spec) for spec in graph.inputs(model)]
        spool.write(
            feeds, samples, infos, limit_samples=None, memory_bytes=1 << 28, progress=_silent
        )
        self.fused, _ = self._step("fuse", {"graph": exported}, **_ALONE)
        families = [rules_of("cpu", ["int8"]), rules_of("l4", ["int8", "fp8"])]
        self.statistics, self.calibrated = self._step(
            "calibrate", {"graph": self.fused, "samples": samples},
            batch=8, families=families, moments=True, memory=4 << 30,
        )  # fmt: skip
        self._prepared: dict[tuple[str, str], dict[str, Path]] = {}

    def quantize(
        self, where: str, precision: str, *, method: Method = "minmax", **settings: Any
    ) -> tuple[Path, dict[str, Any]]:
        """Folder of the graph (on a GPU also its simulation) and what the step tells of it."""
        chosen = Quantization(**settings)
        names = {precision, *chosen.nodes.values()} & PRECISIONS.keys()
        params = {
            "precision": precision,
            "carrier": "fp32" if where == "cpu" else "fp16",
            "rules": rules_of(where, [n for n in names if PRECISIONS[n].quantized]),
            "method": method, "percentile": 99.99, "settings": chosen.model_dump(mode="json"),
        }  # fmt: skip
        key = (where, precision)
        if key not in self._prepared:
            self._prepared[key] = self._prepare(where, params)
        return self._step("quantize", self._prepared[key], **params)

    def deployed(self, quantized: Path) -> Path:
        """The form that ONNX Runtime runs on a CPU."""
        return self._step("ort", {"graph": quantized})[0] / "model.onnx"

    def _prepare(self, where: str, params: dict[str, Any]) -> dict[str, Path]:
        inputs = {"graph": self.fused, "statistics": self.statistics}
        prepared, _ = self._step("prepare", inputs, **params, **_ALONE)
        made = {"fused": prepared, "statistics": prepared, "carrier": prepared}
        if where != "cpu":
            made["carrier"], _ = self._step("cast", {"graph": prepared}, carrier="fp16")
        return made

    def _step(self, name: str, inputs: dict[str, Path], **params: Any) -> tuple[Path, Any]:
        out = self.folder / f"{name}-{len(list(self.folder.iterdir()))}"
        out.mkdir()
        return out, STEPS[name].run(inputs, params, out, _silent)


_ALONE = {"compare": False, "uncompared": "tests look themselves"}


def _silent(what: str, fraction: float) -> None: ...


def rules_of(where: str, precisions: Iterable[str]) -> dict[str, Any]:
    """Precision → placement rules as JSON, of the backend that runs `where`."""
    chosen = backend("onnxruntime" if where == "cpu" else "tensorrt-rtx")
    return {name: chosen.rules(target(where), name).to_json() for name in precisions}


def sqnr(reference: np.ndarray, found: np.ndarray) -> float:
    """Signal to quantization noise ratio, dB."""
    noise = np.square(reference.astype(np.float64) - found).sum()
    return float(10 * np.log10(np.square(reference.astype(np.float64)).sum() / noise))


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


@pytest.fixture(scope="session")
def chain() -> type[Chain]:
    return Chain


@pytest.fixture(scope="session")
def workshop_in() -> type[Workshop]:
    return Workshop


@pytest.fixture(scope="session")
def nets() -> dict[str, str]:
    return {"residual": RESIDUAL, "attention": ATTENTION}


@pytest.fixture
def rules() -> dict[str, PlacementRules]:
    return dict(RULES)


@pytest.fixture(name="network", scope="session")
def _network() -> Callable[..., ir.Model]:
    return network


@pytest.fixture(name="feed", scope="session")
def _feed() -> Callable[..., Feed]:
    return feed


@pytest.fixture(name="sqnr", scope="session")
def _sqnr() -> Callable[[np.ndarray, np.ndarray], float]:
    return sqnr
