"""GPTQ part by part: as good as in one, on what quantized parts make, in little memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from optkit.craft.backends.onnxruntime import OnnxRuntime
from optkit.craft.calibration import observe
from optkit.craft.quantization.choose_qparams import choose_qparams
from optkit.craft.quantization.placement.assign import assign
from optkit.craft.quantization.qdq import insertion as qdq
from optkit.facts.assignment import Scheme
from optkit.facts.codec import from_json, to_json
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import PRECISIONS, Precision
from optkit.facts.tensors import Feed
from optkit.ground import graph
from optkit.ground.data import spool_writer
from optkit.ground.devices import target
from optkit.ground.recipe import Quantization
from optkit.ground.runtimes import SessionOptions, backend
from optkit.road.steps import perform

WIDTH, INNER, LAYERS, ROWS = 128, 256, 3, 8
PLENTY = 1 << 30


def decoder() -> ir.Model:
    """Residual blocks of a gated feed-forward behind a norm, with a head: products that share an
    input, values that cross borders, weights that several nodes read."""
    rng = np.random.default_rng(0)
    constants: list[str] = []

    def weight(name: str, rows: int, columns: int) -> str:
        constants.append(name)
        shapes[name] = (rows, columns)
        return name

    shapes: dict[str, tuple[int, int]] = {}
    lines, x = [], "x"
    for i in range(LAYERS):
        gate, up = weight(f"wg{i}", WIDTH, INNER), weight(f"wu{i}", WIDTH, INNER)
        down = weight(f"wd{i}", INNER, WIDTH)
        lines += [
            f"[norm{i}] n{i} = LayerNormalization ({x}, g_, b_)",
            f"[gate{i}] g{i} = MatMul (n{i}, {gate})",
            f"[up{i}] u{i} = MatMul (n{i}, {up})",
            f"[sigmoid{i}] s{i} = Sigmoid (g{i})",
            f"[act{i}] a{i} = Mul (s{i}, u{i})",
            f"[down{i}] d{i} = MatMul (a{i}, {down})",
            f"[sum{i}] x{i} = Add ({x}, d{i})",
        ]
        x = f"x{i}"
    lines.append(f"[head] y = MatMul ({x}, {weight('wh', WIDTH, 40)})")
    text = '<ir_version: 10, opset_import: ["" : 21]>\n'
    given = ", ".join(f"float[{r},{c}] {n}" for n, (r, c) in shapes.items())
    text += f"g (float[N,{ROWS},{WIDTH}] x, float[{WIDTH}] g_, float[{WIDTH}] b_, {given})"
    text += f" => (float[N,{ROWS},40] y) {{ {' '.join(lines)} }}"
    model = ir.from_onnx_text(text)
    for value in list(model.graph.inputs)[1:]:
        shape = value.shape.numpy()
        numbers = rng.standard_normal(shape) / np.sqrt(shape[0]) if len(shape) == 2 else None
        numbers = np.full(shape, value.name == "g_") if numbers is None else numbers
        value.const_value = ir.tensor(numbers.astype(np.float32), name=value.name)
        model.graph.inputs.remove(value)
        model.graph.register_initializer(value)
    return graph.upgrade(model)


def feeds(seed: int, batches: int = 16) -> Iterator[Feed]:
    """Rows near a subspace, as activations are: there is something to make up for."""
    shared = np.random.default_rng(99).standard_normal((24, WIDTH))
    rng = np.random.default_rng(seed)
    for _ in range(batches):
        rows = rng.standard_normal((4, ROWS, 24)) @ shared
        rows += 0.05 * rng.standard_normal(rows.shape)
        yield {"x": rows.astype(np.float32)}


class Bench:
    """The step on one model; `where`: "cpu" or a GPU, whose carriers are FP16."""

    def __init__(self, folder: Path, model: ir.Model) -> None:
        self.folder, self.model = folder, model
        (folder / "fused").mkdir()
        graph.save(model, folder / "fused" / "model.onnx", inline_limit=0)
        infos = list(graph.inputs(model))
        spool_writer.write(feeds(1), folder / "samples", infos, limit_samples=None,
                    memory_bytes=1 << 28, progress=quiet)  # fmt: skip

    def quantize(
        self, memory: int, *, where: str = "cpu", precision: str = "int4", weights: str = "gptq",
        checkpoint: Path | None = None, progress: Any = None,
    ) -> tuple[Path, dict[str, Any]]:  # fmt: skip
        """Folder of the graph, and what the step tells."""
        out = self.folder / f"out-{len(list(self.folder.iterdir()))}"
        out.mkdir()
        inputs = {name: self.folder / name for name in ("fused", "samples")}
        params = {
            "precision": precision, "carrier": "fp32" if where == "cpu" else "fp16",
            "rules": rules(where, precision), "batch": 4, "planned_memory": memory,
            "settings": Quantization(weights=weights).model_dump(mode="json"),
            "method": "mse", "percentile": 99.99, "order": [],
            "memory": 4 << 30, "checkpoint": checkpoint and str(checkpoint),
        }  # fmt: skip
        inputs["carrier"] = self._carrier(where)
        return out, perform("quantize_layers", inputs, params, out, progress or quiet)

    def sqnr(self, model: Path) -> float:
        """Of the outputs on other samples, dB."""
        signal = noise = 0.0
        with (
            OnnxRuntime().session(self.folder / "fused" / "model.onnx") as exact,
            OnnxRuntime().session(model) as found,
        ):
            for feed in feeds(2):
                wanted = exact.run(feed)["y"].astype(np.float64)
                signal += np.square(wanted).sum()
                noise += np.square(wanted - found.run(feed)["y"]).sum()
        return float(10 * np.log10(signal / noise))

    def _carrier(self, where: str) -> Path:
        if where == "cpu":
            return self.folder / "fused"
        cast = self.folder / "cast"
        if not cast.exists():
            cast.mkdir()
            perform("cast", {"graph": self.folder / "fused"}, {"carrier": "fp16"}, cast, quiet)
        return cast


def quiet(what: str, fraction: float) -> None: ...


def rules(where: str, precision: str) -> dict[str, Any]:
    chosen = backend("onnxruntime" if where == "cpu" else "tensorrt-rtx")
    found = chosen.rules(target(where), PRECISIONS[precision])
    if found.nbits_accuracy is not None:  # the codes alone decide, not how activations are rounded
        found = replace(found, nbits_accuracy=0)
    return {precision: to_json(found)}


def parts_in(memory: int, model: ir.Model) -> int:
    return len(graph.cut(model, graph.places(model, memory // 16)))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, decoder())


def operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in graph.load(path).graph)


def constants(path: Path) -> dict[str, bytes]:
    return {n: v.const_value.tobytes() for n, v in graph.load(path).graph.initializers.items()}


SMALL = 6 << 20  # a part holds three matrices


@pytest.mark.slow
@pytest.mark.parametrize("where", ["cpu", "l4"])
def test_in_parts_it_is_as_good_as_in_one_and_better_than_rounding(
    bench: Bench, where: str
) -> None:
    assert parts_in(SMALL, bench.model) >= 3 and parts_in(PLENTY, bench.model) == 1
    in_parts, told = bench.quantize(SMALL, where=where)
    in_one, _ = bench.quantize(PLENTY, where=where)
    starved, rounded = bench.quantize(1 << 16, where=where)
    assert len(told["log"]["nodes"]) == 3 * LAYERS + 1
    assert not [w for w in told["warnings"] if "rounded to nearest" in w]
    assert (
        len([w for w in rounded["log"]["warnings"] if "rounded to nearest" in w]) == 3 * LAYERS + 1
    )
    best, plain = bench.sqnr(in_one / "model.onnx"), bench.sqnr(starved / "model.onnx")
    assert bench.sqnr(in_parts / "model.onnx") > max(best - 0.3, plain + 3)
    written = operators(in_parts / "model.onnx")
    assert written == operators(in_one / "model.onnx")
    assert written["MatMulNBits" if where == "cpu" else "DequantizeLinear"] == 3 * LAYERS + 1


def weighted(text: str) -> ir.Model:
    """From text; all inputs but the first are weights."""
    model = ir.from_onnx_text(text)
    rng = np.random.default_rng(5)
    for value in list(model.graph.inputs)[1:]:
        numbers = rng.standard_normal(value.shape.numpy()) / WIDTH**0.5
        value.const_value = ir.tensor(numbers.astype(np.float32), name=value.name)
        model.graph.inputs.remove(value)
        model.graph.register_initializer(value)
    return graph.upgrade(model)


def in_memory(bench: Bench, model: ir.Model, samples: list[Feed], precision: str) -> ir.Model:
    """What `choose_qparams` and `qdq.apply` make of the whole model at once."""
    own, options = (
        from_json(dict[Precision, PlacementRules], rules("cpu", precision)),
        Quantization(weights="gptq"),
    )
    plan = assign(model, Scheme(PRECISIONS[precision], "fp32", own))
    wanted = qdq.taps(model, plan, own, moments=True)
    path = bench.folder / "tapped.onnx"
    graph.save(graph.expose(model, [tap.name for tap in wanted]), path, inline_limit=0)
    with OnnxRuntime().session(path, SessionOptions(level="none")) as session:
        statistics = observe(session, samples, wanted, memory_bytes=1 << 30, progress=quiet)
    qparams = choose_qparams(
        model, plan, statistics, own, options,
        method="minmax", percentile=100.0, carrier=np.float32,
    )  # fmt: skip
    quantized = model.clone()
    qdq.apply(quantized, qparams, plan, own, statistics, scale_dtype=np.float32)
    return quantized


@pytest.mark.parametrize(
    "precision",
    [pytest.param("int4", marks=pytest.mark.slow), pytest.param("nf4", marks=pytest.mark.slow),
     "int8-weight-only"],
)  # fmt: skip
def test_one_part_is_what_is_decided_in_memory(bench: Bench, precision: str) -> None:
    out, _ = bench.quantize(PLENTY, precision=precision)
    wanted = in_memory(bench, bench.model, list(feeds(1)), precision)
    graph.save(wanted, bench.folder / "wanted.onnx", inline_limit=0)
    found = constants(out / "model.onnx")
    assert found == constants(bench.folder / "wanted.onnx")
    assert operators(out / "model.onnx") == operators(bench.folder / "wanted.onnx")


def test_a_part_learns_from_what_the_quantized_parts_before_it_make(tmp_path: Path) -> None:
    """Codes of the second product are those decided on the outputs of the first one's codes."""
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
    g (float[N,{ROWS},{WIDTH}] x, float[{WIDTH},{WIDTH}] w, float[{WIDTH},{WIDTH}] v)
    => (float[N,{ROWS},{WIDTH}] y) {{ [one] a = MatMul (x, w) [two] y = MatMul (a, v) }}"""
    model = weighted(text)
    bench = Bench(tmp_path, model)
    memory = 16 * (2 * WIDTH * WIDTH * 4 - 1)  # a part holds one matrix, not two
    assert parts_in(memory, model) == 2
    out, told = bench.quantize(memory)
    assert not [w for w in told["warnings"] if "rounded to nearest" in w]
    first = in_memory(bench, model, list(feeds(1)), "int4")
    path = tmp_path / "first.onnx"
    graph.save(graph.between(first, (), ["a"]), path)
    with OnnxRuntime().session(path, SessionOptions(level="none")) as session:
        propagated = [feed | session.run(feed) for feed in feeds(1)]
    second = in_memory(bench, graph.between(model, ["a"], ["y"]), propagated, "int4")
    graph.save(second, path, inline_limit=0)
    found, wanted = constants(out / "model.onnx"), constants(path)
    assert found["v_quantized"] == wanted["v_quantized"]
    graph.save(first, path, inline_limit=0)
    assert found["w_quantized"] == constants(path)["w_quantized"]
    assert found["v_quantized"] != constants(path)["v_quantized"]


def test_a_shared_weight_is_quantized_once(tmp_path: Path) -> None:
    """Also where its nodes stand in different parts."""
    model = decoder()
    nodes = {node.name: node for node in model.graph}
    for i in range(1, LAYERS):
        nodes[f"gate{i}"].replace_input_with(1, nodes["gate0"].inputs[1])
        model.graph.initializers.pop(f"wg{i}")
    bench = Bench(tmp_path, model)
    out, told = bench.quantize(SMALL)
    quantized = {node.name: node for node in graph.load(out / "model.onnx").graph}
    assert len({quantized[f"gate{i}"].inputs[1] for i in range(LAYERS)}) == 1
    scales = {tuple(told["log"]["nodes"][f"gate{i}"]["weight_scale"]) for i in range(LAYERS)}
    assert len(scales) == 1 and bench.sqnr(out / "model.onnx") > 15


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_part_it_was_at(bench: Bench, tmp_path: Path) -> None:
    seen: list[str] = []

    def stop(what: str, fraction: float) -> None:
        if what.startswith("part 3"):
            raise KeyboardInterrupt

    whole, _ = bench.quantize(SMALL)
    with pytest.raises(KeyboardInterrupt):
        bench.quantize(SMALL, checkpoint=tmp_path / "kept", progress=stop)
    again, _ = bench.quantize(
        SMALL, checkpoint=tmp_path / "kept", progress=lambda what, share: seen.append(what)
    )
    assert constants(again / "model.onnx") == constants(whole / "model.onnx")
    assert seen[0].startswith("part 3") and not [w for w in seen if w.startswith("part 1")]
    assert [path.name for path in (tmp_path / "kept").glob("values-*")] == []


@pytest.mark.slow
def test_what_cannot_be_solved_is_named_and_rounded(bench: Bench) -> None:
    """128 wide fits, 256 wide does not."""
    out, told = bench.quantize(3 << 20)
    named = [w for w in told["log"]["warnings"] if "rounded to nearest" in w]
    assert named and all("'wd" in told for told in named)
    assert bench.sqnr(out / "model.onnx") > 10


@pytest.mark.slow
def test_a_weight_that_is_constant_is_reported(tmp_path: Path) -> None:
    model = decoder()
    model.graph.initializers["wu1"].const_value = ir.tensor(np.zeros((WIDTH, INNER), np.float32))
    bench = Bench(tmp_path, model)
    for memory in (SMALL, 1 << 16):
        _, told = bench.quantize(memory)
        assert "weight 'wu1' is constant (0)" in told["log"]["warnings"]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["cpu", "l4"])
def test_factors_of_awq_are_folded_inside_each_part(
    bench: Bench, where: str, tmp_path: Path
) -> None:
    """Into norms and products; the function stays, and salient channels are rounded more finely."""
    model = bench.model
    gains = np.ones(WIDTH, np.float32)
    gains[::17] = 30  # a few large channels behind every norm
    model.graph.initializers["g_"].const_value = ir.tensor(gains, name="g_")
    (tmp_path / "outliers").mkdir()
    loud = Bench(tmp_path / "outliers", model)
    protected, told = loud.quantize(SMALL, where=where, weights="awq")
    plain, _ = loud.quantize(1 << 16, where=where)
    assert not [w for w in told["warnings"] if "rounded to nearest" in w]
    names = set(constants(protected / "model.onnx"))
    assert [name for name in names if name.endswith("_rescaled")]
    better = loud.sqnr(protected / "model.onnx") - loud.sqnr(plain / "model.onnx")
    assert better > 1
    written = operators(protected / "model.onnx")
    assert written == operators(plain / "model.onnx")  # nothing was put in between


@pytest.mark.parametrize("weights", ["gptq", "awq"])
def test_factors_and_codes_agree_across_parts(tmp_path: Path, weights: str) -> None:
    """With 8 bits hardly any noise is left, so a factor on one side only would be seen; a weight
    that several parts read takes none."""
    model = decoder()
    nodes = {node.name: node for node in model.graph}
    nodes["gate2"].replace_input_with(1, nodes["gate0"].inputs[1])
    model.graph.initializers.pop("wg2")
    bench = Bench(tmp_path, model)
    out, _ = bench.quantize(SMALL, precision="int8-weight-only", weights=weights)
    assert bench.sqnr(out / "model.onnx") > 35


def test_values_without_a_batch_axis_cross_a_sample_at_a_time(tmp_path: Path) -> None:
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
    g (float[N,{ROWS},{WIDTH}] x, float[{WIDTH},{WIDTH}] w, float[{WIDTH},{WIDTH}] v)
    => (float[N,{ROWS},{WIDTH}] y) {{
      [flat] flat = Constant <value_ints=[-1, {WIDTH}]> ()
      [one] a = MatMul (x, w)
      [rows] r = Reshape (a, flat)
      [act] t = Tanh (r)
      [two] b = MatMul (t, v)
      [shape] s = Shape (x)
      [back] y = Reshape (b, s)
    }}"""
    bench = Bench(tmp_path, weighted(text))
    memory = 16 * (2 * WIDTH * WIDTH * 4 - 1)
    assert parts_in(memory, bench.model) == 2
    out, told = bench.quantize(memory)
    whole, _ = bench.quantize(PLENTY)
    assert not [w for w in told["warnings"] if "rounded to nearest" in w]
    assert bench.sqnr(out / "model.onnx") > bench.sqnr(whole / "model.onnx") - 1
