"""A model whose INT8 graph overflows in FP16 in 4 % of the rows, and whose FP16 graph does not: the
figures of the build are those of the graphs in the artifact, and the gate fails."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import optkit
from optkit.craft.backends.onnxruntime import OnnxRuntime
from optkit.ground import graph
from optkit.ground.runtimes import Level, SessionOptions
from tests.half_arithmetic import evaluate
from tests.networks import network

DIGITS = Path(__file__).parents[2] / "calibration" / "digits.npz"
HIDDEN, DIRECT = 192, 96
NEGATIVE = 36
TARGETS = ("l4", "rtx4090")

# the pixels, and hidden values times a gain, side by side; a norm makes their size irrelevant
TEXT = f"""<ir_version: 10, opset_import: ["" : 21]>
g (float[batch,64] x, float[64,{HIDDEN}] w_up, float[{HIDDEN}] b_up, float[{HIDDEN}] g_hidden,
   float[64,{DIRECT}] w_direct, float[{HIDDEN + DIRECT}] g_norm, float[{HIDDEN + DIRECT}] b_norm,
   float[{HIDDEN + DIRECT},10] w_head, float[10] b_head) => (float[batch,10] logits) {{
  [up] u = MatMul (x, w_up)
  [upbias] ub = Add (u, b_up)
  [relu] h = Relu (ub)
  [gain] e = Mul (h, g_hidden)
  [direct] s = MatMul (x, w_direct)
  [join] r = Concat <axis=1> (s, e)
  [norm] n = LayerNormalization (r, g_norm, b_norm)
  [head] p = MatMul (n, w_head)
  [headbias] logits = Add (p, b_head)
}}"""


def _pictures() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The digits [N, 64], the same as negatives of equal brightness, and the labels."""
    with np.load(DIGITS) as digits:
        x, labels = digits["images"].reshape(-1, 64) / 16, digits["labels"].astype(np.int64)
    negative = (1 - x) * (38 / (1 - x).sum(1, keepdims=True))
    negative[:, 0] = 0  # black in every digit
    return x.astype(np.float32), negative.astype(np.float32), labels


def _model() -> tuple[ir.Model, dict[str, np.ndarray], np.ndarray]:
    """The model, calibration and evaluation samples. Hidden value 0 is positive for negatives only.
    Its weights are 9.51 steps of their scale, so that INT8 makes them 5 % larger: in FP16 its
    product with the gain then is beyond 65504."""
    rng = np.random.default_rng(0)
    x, negative, labels = _pictures()
    up = rng.standard_normal((64, HIDDEN)) * 0.5
    shift = rng.standard_normal(HIDDEN) * 0.3
    gain = rng.uniform(1500, 2500, HIDDEN)
    direct = rng.standard_normal((64, DIRECT)) * 900
    up[:, 0], up[0, 0], shift[0] = 0.951, 12.7, -29
    gain[0] = 58000 / np.median((negative @ up + shift)[:, 0])

    def normed(x: np.ndarray) -> np.ndarray:
        r = np.concatenate([x @ direct, np.maximum(x @ up + shift, 0) * gain], 1)
        return np.asarray((r - r.mean(1, keepdims=True)) / r.std(1, keepdims=True))

    learned = np.concatenate([normed(x[::2]), normed(negative[::2])])
    with_one = np.concatenate([learned, np.ones((len(learned), 1))], 1)
    wanted = np.eye(10)[np.concatenate([labels[::2]] * 2)]
    gram = with_one.T @ with_one + 0.1 * np.eye(with_one.shape[1])
    head = np.linalg.solve(gram, with_one.T @ wanted)
    model = network(
        TEXT, w_up=up, b_up=shift, g_hidden=gain, w_direct=direct, w_head=head[:-1],
        b_head=head[-1], g_norm=np.ones(HIDDEN + DIRECT), b_norm=np.zeros(HIDDEN + DIRECT),
    )  # fmt: skip
    seen, known = (
        x[::2].copy(),
        labels[::2],
    )  # those it learned from: few of its decisions are close
    by_label = np.argsort(known, kind="stable")
    chosen = by_label[:: len(known) // NEGATIVE][:NEGATIVE]  # of each label nearly as many
    seen[chosen] = negative[::2][chosen]
    return model, {"x": seen, "label": known}, x[1::2][:256]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("tensorrt_rtx", exc_type=ImportError)
    folder = tmp_path_factory.mktemp("overflow")
    model, validation, calibration = _model()
    graph.save(model, folder / "model.onnx")
    np.savez(folder / "validation.npz", **validation)  # type: ignore[arg-type]
    np.savez(folder / "calibration.npz", x=calibration)
    (folder / "recipe.yaml").write_text(
        "name: overflow\n"
        "model: {path: model.onnx}\n"
        "inputs: {x: {dtype: float32, shape: [batch, 64]}}\n"
        "axes: {batch: {min: 1, opt: 8, max: 32}}\n"
        "calibration: {source: arrays, args: {path: calibration.npz}}\n"
        'quantization: {weights: rtn, bias_correction: false, smooth: "off", equalize: "off"}\n'
        "eval: {task: top1, args: {path: validation.npz}}\n"
        "gates: {max_drop: 1%}\n"
    )
    return folder


def _right(logits: np.ndarray, labels: np.ndarray) -> float:
    """Percent; a row of NaN is wrong."""
    known = np.isfinite(logits).all(1)
    return 100 * float(((logits.argmax(1) == labels) & known).mean())


def _run(file: Path, x: np.ndarray, level: Level = "none") -> np.ndarray:
    with OnnxRuntime().session(file, SessionOptions(level=level, threads=1)) as session:
        return np.asarray(session.run({"x": x})["logits"])


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_the_gate_judges_what_the_graphs_of_the_artifact_compute(
    target: str, folder: Path, cache: Path
) -> None:
    artifact = optkit.build(
        recipe=folder / "recipe.yaml", target=target, precision="int8", out=folder / "artifacts"
    )
    result = artifact.result
    sides = {"": result, "baseline": result["baseline"]}
    told = {name: 100 * side["accuracy"]["value"] for name, side in sides.items()}
    with np.load(folder / "validation.npz") as samples:
        x, labels = samples["x"], samples["label"]
    for side, figure in told.items():
        place = artifact.path / side
        assert figure == pytest.approx(_right(_run(place / "simulation.onnx", x), labels), abs=0.2)
        assert figure == pytest.approx(_right(_run(place / "model.onnx", x), labels), abs=0.2)
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
            computed = evaluate(graph.load(place / "model.onnx"), {"x": x})
        assert figure == pytest.approx(_right(computed["logits"], labels), abs=0.2)
        assert np.isinf(computed["r"]).any(1).sum() == (0 if side else NEGATIVE)
    assert told["baseline"] - told[""] > 3
    assert result["status"] == "gate_failed"
