"""A padded batch has the same fidelity as its tokens without padding, in every comparison."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from optkit.craft.backends.onnxruntime import OnnxRuntime
from optkit.craft.benchmarking.fidelity import fidelity
from optkit.craft.benchmarking.layer_comparison import NodeFidelity, side_by_side
from optkit.craft.benchmarking.sensitivity import record
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Deviation, Fidelity
from optkit.facts.tensors import Feed, TensorInfo
from optkit.ground import graph
from optkit.ground.runtimes import Session, SessionOptions

HEAD = """<ir_version: 10, opset_import: ["" : 21]>
g (int64[B,T] input_ids, int64[B,T] attention_mask, float[9,8] table, float[8,16] w1,
   float[16,4] w2, float s1, float s2, int8 z, int64[1] axis, int64[2] axes)
=> (float[B,T,4] tokens, float[B,2,T,8] heads, float[B,4] pooled) {
  [embed] e = Gather (table, input_ids)"""
TAIL = """
  [split] tokens2 = Concat <axis=-1> (tokens, tokens)
  [heads_of] heads1 = Unsqueeze (tokens2, axis)
  [heads_join] heads = Concat <axis=1> (heads1, heads1)
  [cast] m = Cast <to=1> (attention_mask)
  [wide] m3 = Unsqueeze (m, last)
  [hide] kept = Mul (tokens, m3)
  [pool] pooled = ReduceSum <keepdims=0> (kept, axis)
}""".replace("last", "axes")
FLOAT = f"""{HEAD}
  [first] h = MatMul (e, w1)
  [second] tokens = MatMul (h, w2){TAIL}"""
CODES = f"""{HEAD}
  [qe] eq = QuantizeLinear (e, s1, z)
  [de] ed = DequantizeLinear (eq, s1, z)
  [first] h = MatMul (ed, w1)
  [qh] hq = QuantizeLinear (h, s2, z)
  [dh] hd = DequantizeLinear (hq, s2, z)
  [second] tokens = MatMul (hd, w2){TAIL}"""

RNG = np.random.default_rng(3)
TABLE = RNG.standard_normal((9, 8)).astype(np.float32)
TABLE[0] *= 20  # what stands at places of padding is far beyond the pairs' ranges
NUMBERS = {
    "table": TABLE, "w1": RNG.standard_normal((8, 16)).astype(np.float32),
    "w2": RNG.standard_normal((16, 4)).astype(np.float32), "s1": np.float32(2.5 / 127),
    "s2": np.float32(9 / 127), "z": np.int8(0), "axis": np.array([1]), "axes": np.array([2]),
}  # fmt: skip
LENGTHS = (3, 5, 6, 2)
IDS = RNG.integers(1, 9, (len(LENGTHS), 6))
MASK = (np.arange(6) < np.array(LENGTHS)[:, None]).astype(np.int64)
PADDED = [{"input_ids": IDS * MASK, "attention_mask": MASK}]
REAL = [{"input_ids": IDS[n : n + 1, :size], "attention_mask": MASK[n : n + 1, :size]}
        for n, size in enumerate(LENGTHS)]  # fmt: skip


def model(text: str) -> ir.Model:
    made = ir.from_onnx_text(text)
    for value in [value for value in made.graph.inputs if value.name in NUMBERS]:
        made.graph.inputs.remove(value)
        value.const_value = ir.Tensor(np.asarray(NUMBERS[value.name]), name=value.name)
        made.graph.register_initializer(value)
    return graph.infer_shapes(made)


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Session, Session]]:
    with ExitStack() as stack:
        yield tuple(  # type: ignore[misc]
            stack.enter_context(_session(model(text), tmp_path_factory.mktemp("padded")))
            for text in (FLOAT, CODES)
        )


def _session(made: ir.Model, folder: Path) -> Session:
    graph.save(made, folder / "model.onnx")
    return OnnxRuntime().session(folder / "model.onnx", SessionOptions(level="basic"))


def test_fidelity_is_that_of_the_real_tokens(sessions: tuple[Session, Session]) -> None:
    def of(feeds: list[Feed]) -> Fidelity:
        batches = [(feed, None) for feed in feeds]
        return fidelity(*sessions, batches, name="fp32", evidence=Evidence.SIMULATED)

    padded, real = of(PADDED), of(REAL)
    assert padded.sqnr_db == pytest.approx(real.sqnr_db, abs=1e-4)
    assert padded.cosine == pytest.approx(real.cosine, abs=1e-7)
    assert padded.max_abs_error == pytest.approx(real.max_abs_error, rel=1e-5)


def test_what_a_search_sees_is_of_the_real_tokens(sessions: tuple[Session, Session]) -> None:
    def of(feeds: list[Feed]) -> Deviation:
        return record(sessions[0], feeds, samples=4).deviation(sessions[1])

    padded, real = of(PADDED), of(REAL)
    assert padded.noise == pytest.approx(real.noise, rel=1e-5)
    assert padded.divergence == pytest.approx(real.divergence, rel=1e-5)


def test_layers_and_pairs_are_compared_by_their_real_tokens(tmp_path: Path) -> None:
    made = side_by_side(model(FLOAT), model(CODES), ["first", "second"])

    def of(feeds: list[Feed]) -> NodeFidelity:
        with _session(made.model, tmp_path) as session:
            return made.compare(session, feeds)

    padded, real = of(PADDED), of(REAL)
    assert {kind for kind, _ in padded.likeness} == {"propagated", "isolated", "weights"}
    for key, found in padded.likeness.items():
        other = real.likeness[key]
        assert found is not None and other is not None
        assert found.sqnr_db == (other.sqnr_db and pytest.approx(other.sqnr_db, abs=1e-4))
        assert found.max_abs_error == pytest.approx(other.max_abs_error, rel=1e-5)
    for ours, theirs in zip(padded.clipping, real.clipping, strict=True):
        assert ours.value in ("e", "h")
        assert ours.sqnr_db == pytest.approx(theirs.sqnr_db, abs=1e-4)
        assert (ours.share, ours.noise) == pytest.approx((theirs.share, theirs.noise), abs=1e-6)
        assert ours.seen == pytest.approx(theirs.seen)


class Strided:
    """Every second frame, with an error that is large at the places of padding."""

    def __init__(self, error: float) -> None:
        self.inputs = (
            TensorInfo("x", "float32", ("batch", "t", 2)),
            TensorInfo("src_key_padding_mask", "bool", ("batch", "t")),
        )
        self.outputs = (TensorInfo("y", "float32", ("batch", "(t - 1)//2 + 1", 2)),)
        self._error = error

    def run(self, feed: Feed) -> Feed:
        padded = feed["src_key_padding_mask"][:, ::2, None]
        return {"y": feed["x"][:, ::2] + np.where(padded, 1e4, 1).astype("f4") * self._error}

    def close(self) -> None: ...

    def __enter__(self) -> Strided:
        return self

    def __exit__(self, *exc: object) -> None: ...


def test_fidelity_behind_strides_is_that_of_the_real_frames() -> None:
    x = RNG.standard_normal((4, 6, 2)).astype(np.float32)

    def of(feeds: list[Feed]) -> Fidelity:
        batches = [(feed, None) for feed in feeds]
        pair = Strided(0.0), Strided(0.01)
        return fidelity(*pair, batches, name="fp32", evidence=Evidence.SIMULATED)

    padded = of([{"x": x, "src_key_padding_mask": MASK == 0}])
    real = of(
        [
            {"x": x[n : n + 1, :size], "src_key_padding_mask": np.zeros((1, size), bool)}
            for n, size in enumerate(LENGTHS)
        ]
    )
    assert padded.sqnr_db == pytest.approx(real.sqnr_db, abs=1e-4)
    assert padded.max_abs_error == pytest.approx(0.01, rel=1e-4)
