"""A cache of codes: the graph computes what numpy computes, and its scales fit the samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optkit.craft.backends.ort_session import OrtSession
from optkit.craft.fusion.ort import to_ort
from optkit.craft.quantization.kv_cache import FORMATS, CacheRanges, quantize_caches
from optkit.facts.errors import InputRefused
from optkit.facts.tensors import Feed
from optkit.ground import graph
from optkit.ground.runtimes import SessionOptions, simulator
from tests.fusion.ort.conftest import _build
from tests.fusion.ort.test_cached import CARRIED, GROUPS, HEADS, SIZE, attention, feed

LIMITS = {"int8": (-128, 127), "int4": (-8, 7)}
NEW = {"nk": "k", "nv": "v"}


def scales(dtype: str) -> dict[str, np.ndarray]:
    """One of each channel is so small that its numbers are clipped."""
    random = np.random.default_rng(1)
    units = {name: random.uniform(2.5, 4.5, (1, GROUPS, 1, SIZE)) for name in CARRIED}
    units["nk"][0, 0, 0, 0] = 0.5
    return {name: (x / LIMITS[dtype][1]).astype(np.float32) for name, x in units.items()}


@pytest.fixture(scope="module", params=["int8", "int4"])
def coded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, OrtSession]:
    dtype = str(request.param)
    model = attention(_build)
    to_ort(model)
    quantize_caches(model, CARRIED, scales(dtype), FORMATS[dtype])
    path = tmp_path_factory.mktemp(dtype) / "attention.onnx"
    graph.save(model, path)
    graph.check(path)
    session = simulator().session(path, SessionOptions(threads=1))
    assert isinstance(session, OrtSession)
    return dtype, session


def codes(x: np.ndarray, scale: np.ndarray, dtype: str) -> np.ndarray:
    return np.clip(np.rint(x / scale), *LIMITS[dtype])


def heads(x: np.ndarray) -> np.ndarray:
    """[B, S, G·D] → [B, G, S, D]"""
    return x.reshape(*x.shape[:2], -1, SIZE).swapaxes(1, 2)


def packed(x: np.ndarray, dtype: str) -> np.ndarray:
    """The codes as the cache has them: with four bits two in a byte, the first one in the low half,
    each raised by 8."""
    if dtype == "int8":
        return x.astype(np.int8)
    nibbles = (x + 8).astype(np.uint8)
    return nibbles[..., ::2] | nibbles[..., 1::2] << 4


def reference(f: Feed, dtype: str) -> np.ndarray:
    """Attention of whole texts in float64, where each key and value is that of its code."""
    factors = scales(dtype)
    q = heads(f["q"]).astype(np.float64)
    k, v = (
        np.repeat(codes(heads(f[name]), factors[out], dtype) * factors[out].astype(float), 2, 1)
        for out, name in NEW.items()
    )
    rows = q.shape[2]
    hidden = np.arange(rows) > np.arange(rows)[:, None]
    hidden = hidden | (f["mask"] == 0)[:, None, None, :]
    scores = np.where(hidden, -np.inf, 0.3 * (q @ k.swapaxes(2, 3)))
    weights = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), -1e30))
    weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-300)
    found: np.ndarray = (weights @ v).swapaxes(1, 2).reshape(*f["q"].shape)
    return found


def empty(dtype: str, batch: int) -> Feed:
    width, kind = (SIZE, np.int8) if dtype == "int8" else (SIZE // 2, np.uint8)
    return {name: np.zeros((batch, GROUPS, 0, width), kind) for name in CARRIED.values()}


@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(1, 3), prompt=st.integers(1, 6), new=st.integers(0, 4),
    padding=st.integers(0, 5), spare=st.integers(0, 3),
)  # fmt: skip
def test_it_computes_what_numpy_computes_from_the_codes(
    coded: tuple[str, OrtSession], batch: int, prompt: int, new: int, padding: int, spare: int
) -> None:
    """A prompt, padded on the left, and then row by row, in one buffer and in caches that grow."""
    dtype, session = coded
    assert HEADS == 2 * GROUPS
    whole = feed(batch, prompt + new, 0, min(padding, prompt - 1))
    start = held = empty(dtype, batch)
    expected = reference(whole, dtype)
    loop = session.loop(CARRIED, start, room=prompt + new + spare)
    for first, last in ((0, prompt), *((at, at + 1) for at in range(prompt, prompt + new))):
        part = {name: whole[name][:, first:last] for name in "qkv"}
        part["mask"] = whole["mask"][:, :last]
        found, grown = loop.run(part), session.run({**part, **held})
        real = whole["mask"][:, first:last] == 1
        np.testing.assert_allclose(
            found["y"][real], expected[:, first:last][real], rtol=1e-4, atol=1e-4
        )
        np.testing.assert_allclose(found["y"], grown["y"], rtol=1e-5, atol=1e-6)
        held = {into: grown[out] for out, into in CARRIED.items()}
    for out, into in CARRIED.items():
        new_codes = codes(heads(whole[NEW[out]]), scales(dtype)[out], dtype)
        np.testing.assert_array_equal(held[into], packed(new_codes, dtype))


def test_eight_bits_reach_the_largest_number_of_all_samples() -> None:
    random = np.random.default_rng(0)
    ranges, seen = CacheRanges(("a",)), []
    for _ in range(3):
        x = random.standard_normal((4, GROUPS, 900, SIZE)).astype(np.float32)
        real = np.arange(900) >= random.integers(0, 9, (4, 1))
        x[~np.broadcast_to(real[:, None, :], x.shape[:3])] = 1e6  # of padding
        x[..., 3] = 0
        ranges.add({"a": x}, real)
        seen.append(x.swapaxes(1, 2)[real])
    rows = np.concatenate(seen)
    (scale,) = ranges.scales(FORMATS["int8"]).values()
    assert scale.shape == (1, GROUPS, 1, SIZE) and scale.dtype == np.float32
    largest = np.abs(rows).max(0)
    np.testing.assert_allclose(scale[0, :, 0] * 127, np.where(largest > 0, largest, 127), rtol=1e-6)


def test_four_bits_have_less_error_than_the_largest_number_gives() -> None:
    x = np.random.default_rng(0).standard_normal((8, GROUPS, 1000, SIZE)).astype(np.float32)
    ranges = CacheRanges(("a",))
    ranges.add({"a": x})
    (scale,) = ranges.scales(FORMATS["int4"]).values()
    absmax = np.abs(x).max((0, 2), keepdims=True) / 7

    def errors(s: np.ndarray) -> np.ndarray:
        return np.asarray(np.square(x - s * codes(x, s, "int4")).mean((0, 2)))

    best = min(errors(np.full_like(absmax, s)).mean() for s in np.linspace(0.2, 0.8, 60))
    assert (errors(scale) < 0.8 * errors(absmax)).all()
    assert errors(scale).mean() < 1.02 * best


def test_the_kept_tokens_are_drawn_from_all() -> None:
    """Each value is the number of its token; 2048 of 8000 are kept."""
    ranges = CacheRanges(("a", "b"))
    for first in range(0, 8000, 500):
        x = np.broadcast_to(np.arange(first, first + 500.0)[None, None, :, None], (1, 1, 500, 2))
        ranges.add({"a": x, "b": -x})
    kept = ranges._rows["a"][:, 0, 0]
    assert len(kept) == len(set(kept)) == 2048
    np.testing.assert_array_equal(ranges._rows["b"], -ranges._rows["a"])
    assert abs(kept.mean() - 4000) < 4 * 8000 / np.sqrt(12 * 2048)


def test_a_cache_that_is_not_finite_is_refused() -> None:
    ranges = CacheRanges(("present.0.key",))
    ranges.add({"present.0.key": np.full((1, 1, 2, 8), np.inf, np.float32)})
    with pytest.raises(InputRefused, match="not finite") as caught:
        ranges.scales(FORMATS["int8"])
    assert "present.0.key" in str(caught.value)


def test_a_cache_of_another_operator_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    model = attention(_build)  # in standard operators
    before = ir.to_proto(model).SerializeToString()
    with pytest.raises(InputRefused, match="GroupQueryAttention"):
        quantize_caches(model, CARRIED, scales("int8"), FORMATS["int8"])
    assert ir.to_proto(model).SerializeToString() == before
