"""Calibrates, quantizes and runs small networks, function by function or step by step."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from optkit.craft.backends.onnxruntime import OnnxRuntime
from optkit.craft.calibration import observe
from optkit.craft.quantization.choose_qparams import choose_qparams
from optkit.craft.quantization.placement.assign import assign
from optkit.craft.quantization.qdq.insertion import QuantLog, apply, taps
from optkit.facts.assignment import Assignment, Scheme
from optkit.facts.codec import to_json
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import PRECISIONS, NumberFormat, Precision
from optkit.facts.tensors import Feed
from optkit.ground import graph
from optkit.ground.data import spool_writer
from optkit.ground.devices import target
from optkit.ground.recipe import Method, Quantization
from optkit.ground.runtimes import SessionOptions, backend
from optkit.ground.statistics import Statistics, Tap
from optkit.road.steps import perform
from optkit.road.steps.quantize_in_order import QuantizeInOrder
from tests.networks import feed

OPS = frozenset({"Conv", "MatMul", "Gemm"})
INT8, FP8, INT4, FP16 = (PRECISIONS[name] for name in ("int8", "fp8", "int4", "fp16"))

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

    def statistics(
        self, model: ir.Model, wanted: list[Tap], feeds: Iterable[Feed] | None = None
    ) -> Statistics:
        path = self.folder / "taps.onnx"
        graph.save(graph.expose(model, [tap.name for tap in wanted]), path)
        with OnnxRuntime().session(path, SessionOptions(threads=1)) as session:
            return observe(
                session,
                feeds or [feed(model, seed=1), feed(model, seed=2)],
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
        overrides: dict[str, Precision] | None = None,
        simulated: bool = False,
        feeds: Iterable[Feed] | None = None,
    ) -> tuple[ir.Model, Assignment, QuantLog]:
        """Calibrate `model` (on `feeds`, or on random numbers) and quantize a copy of it (or of
        `carrier`, its FP16 cast)."""
        own = kind if isinstance(kind, PlacementRules) else RULES[kind]
        rules = {PRECISIONS[precision]: own}
        assignment = assign(
            model, Scheme(PRECISIONS[precision], "fp32", rules), overrides=overrides
        )
        moments = settings.weights in ("auto", "gptq")
        wanted = taps(model, assignment, rules, moments=moments)
        statistics = self.statistics(model, wanted, feeds) if wanted else None
        symmetric = own.activation is None or own.activation.symmetric
        dtype = np.float16 if symmetric else np.float32
        qparams = choose_qparams(
            model, assignment, statistics, rules, settings,
            method=method, percentile=99.0, carrier=dtype,
        )  # fmt: skip
        quantized = (carrier or model).clone()
        log = apply(
            quantized, qparams, assignment, rules, statistics,
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
        infos = list(graph.inputs(model))
        spool_writer.write(
            feeds, samples, infos, limit_samples=None, memory_bytes=1 << 28, progress=_silent
        )
        self.fused, _ = self._step("fuse", {"graph": exported}, **_ALONE)
        families = [rules_of("cpu", ["int8"]), rules_of("l4", ["int8", "fp8"])]
        self.statistics, self.calibrated = self._step(
            "calibrate", {"graph": self.fused, "samples": samples},
            batch=8, families=families, moments=True, memory=4 << 30,
        )  # fmt: skip
        self._samples = samples
        self._prepared: dict[tuple[object, ...], dict[str, Path]] = {}

    def quantize(
        self, where: str, precision: str, *, method: Method = "minmax", **settings: Any
    ) -> tuple[Path, dict[str, Any]]:
        """Folder of the graph (on a GPU also its simulation) and what the step tells of it."""
        chosen = Quantization(**settings)
        params = _params(where, precision, method, chosen)
        key = (where, precision, chosen.two_term, chosen.smooth, chosen.outlier_channels)
        if key not in self._prepared:
            self._prepared[key] = self._prepare(where, params)
        inputs = self._prepared[key]
        if chosen.weights != "gptaq":
            return self._step("quantize", inputs, **params)
        inputs = {**inputs, "samples": self._samples}
        return self._step("quantize_in_order", inputs, **params, batch=8, memory=4 << 30)

    def in_order(
        self, precision: str, *, memory: int = 4 << 30, **settings: Any
    ) -> QuantizeInOrder:
        """The step on a CPU that `quantize` takes for weights that make up for errors."""
        params = _params("cpu", precision, "minmax", Quantization(weights="gptaq", **settings))
        inputs = {**self._prepare("cpu", params), "samples": self._samples}
        return QuantizeInOrder.of(inputs, {**params, "batch": 8, "memory": 4 << 30})

    def prepared(self, where: str, precision: str, **settings: Any) -> dict[str, Any]:
        """What the step tells that makes the graph easier to quantize."""
        params = _params(where, precision, "minmax", Quantization(**settings))
        inputs = {"graph": self.fused, "statistics": self.statistics}
        return dict(self._step("prepare", inputs, **params, **_ALONE)[1])

    def noisy_nodes(self, where: str, precision: str, **settings: Any) -> dict[str, Any]:
        """What the step tells that looks for products with too much noise."""
        params = _params(where, precision, "minmax", Quantization(**settings))
        prepared = self._prepare(where, params)["fused"]
        inputs = {"graph": prepared, "statistics": prepared, "samples": self._samples}
        return dict(self._step("noisy_nodes", inputs, **params, sizes={})[1])

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

    def _step(self, name: str, inputs: dict[str, Path], /, **params: Any) -> tuple[Path, Any]:
        out = self.folder / f"{name}-{len(list(self.folder.iterdir()))}"
        out.mkdir()
        return out, perform(name, inputs, params, out, _silent)


def _params(where: str, precision: str, method: Method, chosen: Quantization) -> dict[str, Any]:
    names = {precision, *map(str, chosen.nodes.values())}
    return {
        "precision": precision,
        "carrier": "fp32" if where == "cpu" else "fp16",
        "rules": rules_of(where, [n for n in names if PRECISIONS[n].quantized]),
        "method": method, "percentile": 99.99, "order": [],
        "settings": chosen.model_dump(mode="json"),
    }  # fmt: skip


_ALONE = {"inputs": [], "axes": {}, "compare": False, "uncompared": "tests look themselves"}


def _silent(what: str, fraction: float) -> None: ...


def rules_of(where: str, precisions: Iterable[str]) -> dict[str, Any]:
    """Precision → placement rules as JSON, of the backend that runs `where`."""
    chosen = backend("onnxruntime" if where == "cpu" else "tensorrt-rtx")
    return {name: to_json(chosen.rules(target(where), PRECISIONS[name])) for name in precisions}


def relative_noise(exact: np.ndarray, found: np.ndarray) -> float:
    """The noise in the outputs [rows, channels] of a product: the mean over the channels of the
    squared error over the variance, to which one hundredth of the median variance is added. Rows of
    more than sixteen times the median power, channels counted alike, are not in the variance."""
    spread = [float(np.std(channel.astype(np.float64))) or 1.0 for channel in exact.T]
    powers = [sum((float(y) / s) ** 2 for y, s in zip(row, spread, strict=True)) for row in exact]
    rows = exact[np.array(powers) <= 16 * np.median(powers)] if np.median(powers) else exact
    variances = [float(np.var(channel.astype(np.float64))) for channel in rows.T]
    floor = float(np.median(variances)) / 100
    ratios = [
        float(np.mean(np.square(b.astype(np.float64) - a))) / (variance + floor)
        for a, b, variance in zip(exact.T, found.T, variances, strict=True)
    ]
    return sum(ratios) / len(ratios)


def names(assignment: Assignment) -> dict[str, str]:
    """Node → the name of its precision."""
    return {node: chosen.name for node, chosen in assignment.nodes.items()}
