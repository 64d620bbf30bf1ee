"""A model with quantized activations that is larger than memory is calibrated part by part, and
quantized as one that fits: the same statistics, scales, codes and placements."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from optkit.craft.quantization.choose_qparams import choose_qparams
from optkit.craft.quantization.numerics.code_store import IN_MEMORY, CodeStore
from optkit.craft.quantization.numerics.qparams import QParams
from optkit.craft.quantization.placement.assign import assign
from optkit.facts.assignment import Scheme
from optkit.facts.codec import to_json
from optkit.facts.placement import PlacementRules
from optkit.facts.precisions import PRECISIONS, Precision
from optkit.ground import graph
from optkit.ground.data import spool_writer
from optkit.ground.devices import target
from optkit.ground.recipe import Quantization
from optkit.ground.runtimes import backend
from optkit.ground.statistics import load
from optkit.road.pipeline import large
from optkit.road.steps import perform
from optkit.road.steps.file_names import STATISTICS
from tests.conftest import Optkit
from tests.quantization.workshop import Chain
from tests.scripts import script

VOCABULARY = 300
SMALL = 1 << 21  # a part reads 128 KiB of weights: two thirds of a layer
PLANNED = 2 * SMALL  # enough to solve each weight beside its second moments


def decoder() -> ir.Model:
    module = script("experiments/large/decoder.py")
    shape = module.Shape(hidden=64, ffn=160, layers=3, heads=4, vocabulary=VOCABULARY)
    return graph.upgrade(module.decoder(shape))


def encoder() -> ir.Model:
    """FP32: layers whose tokens see each other, behind norms, with a bias and a Gelu; a head."""
    rng, width, inner = np.random.default_rng(3), 64, 192
    shapes: dict[str, tuple[int, ...]] = {"table": (VOCABULARY, width), "w_head": (width, 10)}
    lines = ["[embed] x0 = Gather (table, tokens)"]
    for n in range(3):
        shapes |= {f"w_{what}{n}": (width, width) for what in "qkvo"}
        shapes |= {f"w_up{n}": (width, inner), f"w_down{n}": (inner, width), f"b_up{n}": (inner,)}
        shapes |= {f"{what}_{of}{n}": (width,) for what in "gb" for of in ("first", "second")}
        lines += [
            f"[q{n}] q{n} = MatMul (x{n}, w_q{n})",
            f"[k{n}] k{n} = MatMul (x{n}, w_k{n})",
            f"[v{n}] v{n} = MatMul (x{n}, w_v{n})",
            f"[turn{n}] t{n} = Transpose <perm=[0,2,1]> (k{n})",
            f"[scores{n}] s{n} = MatMul (q{n}, t{n})",
            f"[scaled{n}] e{n} = Mul (s{n}, eighth)",
            f"[softmax{n}] p{n} = Softmax (e{n})",
            f"[mix{n}] m{n} = MatMul (p{n}, v{n})",
            f"[out{n}] o{n} = MatMul (m{n}, w_o{n})",
            f"[sum{n}] r{n} = Add (x{n}, o{n})",
            f"[first{n}] y{n} = LayerNormalization (r{n}, g_first{n}, b_first{n})",
            f"[up{n}] u{n} = MatMul (y{n}, w_up{n})",
            f"[bias{n}] c{n} = Add (u{n}, b_up{n})",
            f"[gelu{n}] a{n} = Gelu (c{n})",
            f"[down{n}] d{n} = MatMul (a{n}, w_down{n})",
            f"[more{n}] h{n} = Add (y{n}, d{n})",
            f"[second{n}] x{n + 1} = LayerNormalization (h{n}, g_second{n}, b_second{n})",
        ]
    shapes["eighth"] = ()
    lines += [
        "axes = Constant <value_ints=[1]> ()",
        "[mean] z = ReduceMean <keepdims=0> (x3, axes)",
    ]
    lines.append("[head] y = MatMul (z, w_head)")
    given = ", ".join(f"float[{','.join(map(str, s))}] {n}" for n, s in shapes.items())
    text = f'<ir_version: 10, opset_import: ["" : 21]> g (int64[batch,sequence] tokens, {given}) '
    model = ir.from_onnx_text(f"{text} => (float[batch,10] y) {{ {' '.join(lines)} }}")
    for value in list(model.graph.inputs)[1:]:
        name, shape = str(value.name), shapes[str(value.name)]
        numbers = rng.standard_normal(shape) / ((len(shape) > 1 and shape[0] ** 0.5) or 10)
        numbers = np.array(0.125) if name == "eighth" else numbers + name.startswith("g_")
        value.const_value = ir.tensor(numbers.astype(np.float32), name=name)
        model.graph.inputs.remove(value)
        model.graph.register_initializer(value)
    return graph.infer_shapes(graph.upgrade(model))


MODELS: dict[str, Callable[[], ir.Model]] = {"decoder": decoder, "encoder": encoder}


def tokens(count: int = 24) -> np.ndarray:
    found: np.ndarray = np.random.default_rng(0).zipf(1.2, (count, 20)) % VOCABULARY
    return found


def quantized(
    optkit: Optkit, folder: Path, words: tuple[str, ...], *, parts: bool
) -> tuple[dict[str, bytes], str]:
    """The graphs that `optkit quantize` writes for folder/model.onnx, and what it says."""
    out = folder / ("parts" if parts else "whole")
    done = optkit(
        "quantize", folder / "model.onnx", "--out", out,
        "--set", "calibration.source=arrays", "--set", "calibration.samples=24",
        "--set", f"calibration.args={{path: {folder / 'samples.npz'}}}", *words,
        cache=folder / "cache",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert ("calibrate part by part" in done.err) == parts
    return {path.name: path.read_bytes() for path in out.glob("*.onnx")}, done.err


def as_if_large(patch: pytest.MonkeyPatch) -> None:
    """Every model with quantized activations is too large for a run."""
    patch.setattr(large, "_BYTES_TO_CALIBRATE", 1 << 50)
    patch.setattr(large, "_BYTES_TO_RUN", 1 << 50)
    patch.setattr(large, "planned_memory", lambda limit: PLANNED)


_CASES = [
    ("encoder", "l4", "int8", ()),
    ("decoder", "l4", "int8", ("calibration.method=minmax",)),
    ("decoder", "l4", "fp8", ()),
    ("decoder", "cpu", "int8", ("quantization.two_term=[]",)),
    ("encoder", "cpu", "int8", ("quantization.two_term=[]", "quantization.smooth=0.7")),
    ("encoder", "rtx5090", "nvfp4", ("calibration.method=entropy",)),
    ("encoder", "l4", "fp8", ("quantization.weights=mse", "calibration.method=percentile")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "where", "precision", "settings"), _CASES)
def test_in_parts_the_graph_is_the_same(
    tmp_path: Path, optkit_here: Optkit, monkeypatch: pytest.MonkeyPatch,
    name: str, where: str, precision: str, settings: tuple[str, ...],
) -> None:  # fmt: skip
    """Bit by bit, and its simulation too."""
    graph.save(MODELS[name](), tmp_path / "model.onnx")
    np.savez(tmp_path / "samples.npz", tokens=tokens())
    chosen = (word for setting in settings for word in ("--set", setting))
    words = ("--target", where, "--precision", precision, *chosen)
    whole, _ = quantized(optkit_here, tmp_path, words, parts=False)
    as_if_large(monkeypatch)
    parts, _ = quantized(optkit_here, tmp_path, words, parts=True)
    assert whole == parts and len(whole) == (1 if where == "cpu" else 2)
    ops = [node.op_type for node in graph.load(tmp_path / "parts" / "model.onnx").graph]
    assert "DequantizeLinear" in ops or "MatMulIntegerToFloat" in ops


@pytest.mark.slow
def test_what_a_large_model_does_without_is_told(
    tmp_path: Path, optkit_here: Optkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph.save(encoder(), tmp_path / "model.onnx")
    np.savez(tmp_path / "samples.npz", tokens=tokens())
    as_if_large(monkeypatch)
    words = ("--target", "cpu", "--precision", "int8")
    _, said = quantized(optkit_here, tmp_path, words, parts=True)
    assert "activations were judged at their products" in said
    assert "does not fit in --memory, so it goes part by part. Estimate" in said
    assert "judged at their products" in (tmp_path / "parts" / "details.json").read_text()


def int8_on(where: str) -> dict[Precision, PlacementRules]:
    return {PRECISIONS["int8"]: backend("tensorrt-rtx").rules(target(where), PRECISIONS["int8"])}


def calibrate(folder: Path, out: str, *, progress: Any = None, **params: Any) -> bytes:
    """The statistics that the step `calibrate` writes for folder/fused and folder/samples."""
    families = [
        {name: to_json(backend(own).rules(target(where), PRECISIONS[name])) for name in names}
        for own, where, names in (
            ("onnxruntime", "cpu", ["int8"]), ("tensorrt-rtx", "l4", ["int8", "fp8"])
        )
    ]  # fmt: skip
    place = folder / out
    place.mkdir()
    told = {"batch": 8, "families": families, "moments": True, "memory": 4 << 30, **params}
    inputs = {"graph": folder / "fused", "samples": folder / "samples"}
    perform("calibrate", inputs, told, place, progress or (lambda what, share: None))
    return (place / "statistics.safetensors").read_bytes()


@pytest.fixture
def spooled(tmp_path: Path) -> Path:
    """A folder with an encoder and its samples."""
    model = encoder()
    (tmp_path / "fused").mkdir()
    graph.save(model, tmp_path / "fused" / "model.onnx", inline_limit=0)
    feeds = ({"tokens": part} for part in np.split(tokens(), 6))
    spool_writer.write(
        feeds, tmp_path / "samples", list(graph.inputs(model)), limit_samples=None,
        memory_bytes=1 << 28, progress=lambda what, share: None,
    )  # fmt: skip
    return tmp_path


def test_statistics_are_those_of_the_whole_graph(spooled: Path) -> None:
    """Also second moments, and also if the process is killed between two parts."""
    whole = calibrate(spooled, "whole")
    seen: list[str] = []
    parts = calibrate(
        spooled, "parts", planned_memory=SMALL, progress=lambda what, share: seen.append(what)
    )
    assert parts == whole
    assert max(int(text.split()[3][:-1]) for text in seen if text.startswith("part ")) >= 4

    def stop(what: str, share: float) -> None:
        if what.startswith("part 3"):
            raise KeyboardInterrupt

    kept = {"planned_memory": SMALL, "checkpoint": str(spooled / "kept")}
    with pytest.raises(KeyboardInterrupt):
        calibrate(spooled, "killed", progress=stop, **kept)
    again: list[str] = []
    assert whole == calibrate(
        spooled, "again", progress=lambda what, share: again.append(what), **kept
    )
    assert not [text for text in again if text.startswith(("part 1 ", "part 2 "))]


def test_weights_in_files_get_the_same_factors(spooled: Path) -> None:
    """They are multiplied when the graph is written, some of them along both axes."""
    calibrate(spooled, "statistics")
    graph.save(graph.load(spooled / "fused" / "model.onnx"), spooled / "model.onnx")
    (spooled / "inline").mkdir()
    (spooled / "model.onnx").rename(spooled / "inline" / "model.onnx")
    params = {
        "precision": "int8", "carrier": "fp32", "order": [], "inputs": [], "axes": {},
        "rules": {str(name): to_json(own) for name, own in int8_on("l4").items()},
        "settings": Quantization(smooth=0.5).model_dump(mode="json"),
        "method": "minmax", "percentile": 99.99, "compare": False, "uncompared": "",
    }  # fmt: skip
    made = []
    for form in ("fused", "inline"):
        out = spooled / f"from-{form}"
        out.mkdir()
        inputs = {"graph": spooled / form, "statistics": spooled / "statistics"}
        told = perform("prepare", inputs, params, out, lambda what, share: None)
        assert told["log"]["counts"]["folded"] >= 3
        made.append((out / "model.onnx").read_bytes())
    assert made[0] == made[1]


def test_a_weight_that_is_too_large_to_be_solved_is_rounded_and_named(tmp_path: Path) -> None:
    """The others keep the codes that they have in memory, solved one by one."""
    model = encoder()
    feeds = [{"tokens": part} for part in np.split(tokens(), 6)]
    found = Chain(tmp_path / "chain", model, feeds)
    statistics, rules = load(found.statistics / STATISTICS), int8_on("l4")
    fused = graph.load(found.fused / "model.onnx")
    assignment = assign(fused, Scheme(PRECISIONS["int8"], "fp16", rules), statistics)

    def chosen(store: CodeStore, weights: str) -> QParams:
        return choose_qparams(
            fused, assignment, statistics, rules, Quantization(weights=weights), method="minmax",
            percentile=100.0, carrier=np.float16, store=store,
        )  # fmt: skip

    # 64 x 64 numbers fit beside as many moments, 64 x 192 do not
    short = chosen(CodeStore(tmp_path / "codes", 32 * 10_000), "auto")
    solved, rounded = chosen(IN_MEMORY, "auto"), chosen(IN_MEMORY, "rtn")
    named = {text.split("'")[1] for text in short.warnings if "rounded to nearest" in text}
    assert named == {f"w_{what}{n}" for what in ("up", "down") for n in range(3)}
    for name, weight in short.weights.items():
        wanted = rounded if weight.name in named else solved
        assert np.array_equal(weight.codes, wanted.weights[name].codes), name
        assert isinstance(weight.stored_codes, graph.MappedTensor)
    assert any((solved.weights[n].codes != rounded.weights[n].codes).any() for n in solved.weights)
