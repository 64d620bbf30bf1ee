"""The calibration loop: what is counted, how often the model runs, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optkit.craft.calibration import observe
from optkit.facts.errors import InputRefused, IntegrityError
from optkit.facts.tensors import Feed, TensorInfo
from optkit.ground.statistics import CHUNK, Statistics, Tap, load, merge, save

MIB = 1 << 20


class Doubling:
    """A session with one input x and the outputs y = 2x and rows = y as [batch * 2, 2]."""

    def __init__(self, batch: int | str = "batch") -> None:
        self.inputs = (TensorInfo("x", "float32", (batch, 4)),)
        self.outputs = ()
        self.sizes: list[int] = []

    def run(self, feed: Feed) -> Feed:
        self.sizes.append(len(feed["x"]))
        with np.errstate(over="ignore"):
            y = feed["x"] * np.float32(2)
        return {"y": y, "rows": y.reshape(-1, 2)}

    def close(self) -> None: ...

    def __enter__(self) -> Doubling:
        return self

    def __exit__(self, *exc: object) -> None: ...


def feeds(x: np.ndarray, batch: int = 8) -> list[Feed]:
    return [{"x": x[start : start + batch]} for start in range(0, len(x), batch)]


def run(
    source: object, session: Doubling | None = None, memory: int = MIB, **options: object
) -> Statistics:
    taps = [Tap("y", -1, rows=True, moments=True), Tap("x")]
    return observe(
        session or Doubling(),
        source,  # type: ignore[arg-type]
        options.pop("taps", taps),  # type: ignore[arg-type]
        memory_bytes=memory,
        progress=options.pop("progress", lambda what, fraction: None),  # type: ignore[arg-type]
        **options,  # type: ignore[arg-type]
    )


PLAIN = [Tap("y"), Tap("x")]


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(3).standard_normal((50, 4)).astype(np.float32)


def test_one_forward_per_batch_serves_all_values(x: np.ndarray) -> None:
    session = Doubling()
    found = run(feeds(x), session)
    assert session.sizes == [1, 8, 8, 8, 8, 8, 8, 2]  # the first measures one sample's size
    assert found.samples == 50
    y = found.value("y")
    assert (y.low, y.high, y.count) == (2 * x.min(), 2 * x.max(), 200)
    assert (found.value("x").low, found.value("x").high) == (x.min(), x.max())  # of the feed itself


def test_shards_merge_to_the_bytes_of_one_run(x: np.ndarray, tmp_path: Path) -> None:
    shards = [
        run(feeds(part, batch), taps=PLAIN)
        for part, batch in zip(np.split(x, [7, 30]), (3, 8, 5), strict=True)
    ]
    merged = merge(shards[2], merge(shards[0], shards[1]))
    save(merged, tmp_path / "merged")
    save(run(feeds(x), taps=PLAIN), tmp_path / "whole")
    assert (tmp_path / "merged").read_bytes() == (tmp_path / "whole").read_bytes()


def test_the_digest_depends_on_the_samples_and_not_on_their_order(x: np.ndarray) -> None:
    changed = x.copy()
    changed[17, 2] += 1
    assert run(feeds(x)).data == run(feeds(x[::-1], 7)).data != run(feeds(changed)).data


def test_a_small_budget_runs_batches_in_parts(x: np.ndarray) -> None:
    session = Doubling()
    one_sample = 4 * 2 * 4 * 4  # the factor, two outputs, four floats
    parts = run(feeds(x, 50), session, memory=one_sample * 16, taps=PLAIN)
    assert session.sizes == [1, 16, 16, 16, 2]
    assert parts.value("y").counts.tolist() == run(feeds(x, 50)).value("y").counts.tolist()


def test_a_later_sample_that_is_larger_is_measured_anew() -> None:
    class Wide(Doubling):
        def run(self, feed: Feed) -> Feed:
            self.sizes.append(feed["x"].size)
            return {"y": feed["x"]}

    session = Wide()
    long = [{"x": np.ones((4, 2), np.float32)}, {"x": np.ones((4, 8), np.float32)}]
    run(long, session, memory=4 * 4 * 8, taps=PLAIN)  # room for four short samples, one long
    assert session.sizes == [2, 8, 8, 8, 8, 8, 8]


def test_a_sample_beyond_the_budget_is_refused(x: np.ndarray) -> None:
    with pytest.raises(InputRefused, match="one sample needs about") as error:
        run(feeds(x), memory=10)
    assert "--memory" in str(error.value.hint)
    with pytest.raises(InputRefused, match="fixed batch of 8"):
        run(feeds(x), Doubling(batch=8), memory=10)


def test_memory_does_not_grow_with_the_number_of_samples() -> None:
    import tracemalloc

    def endless(batches: int) -> Iterator[Feed]:
        rng = np.random.default_rng(0)
        for _ in range(batches):
            yield {"x": rng.standard_normal((16, 4096)).astype(np.float32)}

    def peak(batches: int) -> int:
        tracemalloc.start()
        run(endless(batches), memory=64 * MIB, taps=PLAIN)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    peak(1)
    assert peak(200) < peak(10) + 8 * MIB  # 50 MiB of samples; two threads vary by a few


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_input_that_is_not_finite_is_left_without_a_range(x: np.ndarray, bad: float) -> None:
    x[21, 3] = bad
    found = run(feeds(x), taps=[Tap("x")])
    told = {"nan": "NaN", "inf": "Inf", "-inf": "-Inf"}[str(bad)]
    assert found.value("x").unbounded == f"{told} in sample 21"


def test_an_overflowing_activation_is_left_without_a_range_by_name(x: np.ndarray) -> None:
    x[33, 1], x[40] = 3e38, np.float32(1e38)
    found = run(feeds(x), taps=[Tap("y"), Tap("rows", -1, rows=True, moments=True), Tap("x")])
    for name in ("y", "rows"):
        value = found.value(name)
        assert value.unbounded == "Inf in sample 33"
        assert value.count == 0 and value.rows is value.moments is value.channels is None
    assert found.value("x").unbounded == "3e+38, beyond what FP16 can scale, in sample 33"
    assert "tensor 'y' has no range: Inf in sample 33" in found.warnings()


@pytest.mark.parametrize("source", [[], [{"x": np.ones((0, 4), np.float32)}]])
def test_an_empty_set_is_refused(source: list[Feed]) -> None:
    with pytest.raises(InputRefused, match="empty"):
        run(source)


def test_a_sample_without_an_input_is_refused(x: np.ndarray) -> None:
    with pytest.raises(InputRefused) as error:
        run([{"z": x}])
    assert error.value.where == "input 'x'"


def test_inputs_of_unequal_length_are_refused(x: np.ndarray) -> None:
    session = Doubling()
    session.inputs = (*session.inputs, TensorInfo("m", "float32", ("batch", 1)))
    with pytest.raises(InputRefused, match="differ in length"):
        run([{"x": x, "m": x[:3]}], session)


def test_progress_ends_at_one_and_tells_the_rate(x: np.ndarray) -> None:
    seen: list[tuple[str, float]] = []
    run(feeds(x), progress=lambda what, fraction: seen.append((what, fraction)))
    run(feeds(x), total=50, progress=lambda what, fraction: seen.append((what, fraction)))
    for half in (seen[:7], seen[7:]):
        fractions = [fraction for _, fraction in half]
        assert fractions == sorted(fractions) and fractions[-1] == 1.0
    assert seen[-1][0].startswith("50 of 50 samples, ") and "/s" in seen[-1][0]


def test_means_moments_and_rows_are_those_of_the_data(x: np.ndarray) -> None:
    value = run(feeds(x)).value("y")
    y = 2 * x.astype(np.float64)
    assert value.channels is not None and value.moments is not None and value.rows is not None
    assert (value.channels.low == 2 * x.min(axis=0)).all()
    assert (value.channels.high == 2 * x.max(axis=0)).all()
    assert np.allclose(value.channels.mean, y.mean(axis=0), rtol=1e-6, atol=1e-7)
    assert np.allclose(value.moments.matrix(), y.T @ y / 50, rtol=1e-6, atol=1e-6)
    assert sorted(value.rows.data.tolist()) == sorted((2 * x).tolist())  # few rows: all of them


@pytest.mark.slow
@given(
    st.integers(1, 5).flatmap(lambda n: st.permutations(range(n))), st.sampled_from([1, 3, 8, 32])
)
@settings(max_examples=25, deadline=None)
def test_shards_at_chunk_borders_merge_bit_equal_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], batch: int
) -> None:
    x = np.random.default_rng(7).standard_normal((CHUNK * 4 + 9, 4)).astype(np.float32)
    pieces = np.split(x, [CHUNK * i for i in range(1, len(order))])
    shards = [run(feeds(piece, batch), first=CHUNK * i, taps=ALL) for i, piece in enumerate(pieces)]
    merged = shards[order[0]]
    for index in order[1:]:
        merged = merge(merged, shards[index])
    folder = tmp_path_factory.mktemp("shards")
    save(merged, folder / "merged")
    save(run(feeds(x, batch), taps=ALL), folder / "whole")
    assert (folder / "merged").read_bytes() == (folder / "whole").read_bytes()


ALL = [Tap("y", -1, rows=True, moments=True), Tap("rows", -1, rows=True), Tap("x", -1)]


def test_another_batch_size_changes_nothing_but_the_last_bits_of_sums(x: np.ndarray) -> None:
    found = [run(feeds(x, batch), taps=ALL) for batch in (1, 7, 50)]
    for other in found[1:]:
        assert found[0].data == other.data
        for name, value in found[0].values.items():
            same = other.value(name)
            assert (value.low, value.high) == (same.low, same.high)
            assert (value.counts == same.counts).all() and (value.bins == same.bins).all()
            if value.rows is not None and same.rows is not None:
                assert (value.rows.data == same.rows.data).all()
            if value.moments is not None and same.moments is not None:
                matrices = value.moments.matrix(), same.moments.matrix()
                assert np.allclose(*matrices, rtol=1e-5, atol=1e-6)


def test_rows_are_a_sample_of_fixed_size_chosen_without_their_numbers() -> None:
    x = np.random.default_rng(5).standard_normal((600, 4)).astype(np.float32)
    one = run(feeds(x), taps=ALL).value("rows").rows
    assert one is not None and one.data.shape == (512, 2)
    known = {tuple(row) for row in (2 * x).reshape(-1, 2).tolist()}
    assert {tuple(row) for row in one.data.tolist()} <= known
    assert abs(float(one.data.mean()) - 2 * float(x.mean())) < 0.3


class Layers(Doubling):
    """Six values of 8 channels whose moments do not fit together."""

    def run(self, feed: Feed) -> Feed:
        self.sizes.append(len(feed["x"]))
        wide = np.tile(feed["x"], 2)
        return {f"v{i}": wide * np.float32(i + 1) for i in range(6)}


LAYERS = [Tap(f"v{i}", -1, moments=True) for i in range(6)]


def test_moments_that_do_not_fit_get_passes_of_their_own(x: np.ndarray) -> None:
    once, often = Layers(), Layers()
    whole = run(feeds(x), once, taps=LAYERS)
    need, each = 4 * 6 * 8 * 4, 12 * 8 * (8 + 512)  # a sample's values, a matrix
    parts = run(feeds(x), often, memory=need + 4 * each, taps=LAYERS)
    assert sum(once.sizes) == 51 and sum(often.sizes) == 1 + 3 * 50  # two at a time: three passes
    for name, value in whole.values.items():
        same = parts.value(name)
        assert value.moments is not None and same.moments is not None
        assert np.allclose(value.moments.matrix(), same.moments.matrix(), rtol=1e-5, atol=1e-6)
        assert (value.counts == same.counts).all()
    with pytest.raises(InputRefused, match="second moments need") as error:
        run(feeds(x), Layers(), memory=need + each // 2, taps=LAYERS)
    assert error.value.where == "tensor 'v0'"


class Killed(Exception):
    pass


@pytest.mark.parametrize("memory", [MIB, 4 * 6 * 8 * 4 + 4 * 12 * 8 * 520])
@pytest.mark.parametrize("after", [3, 5, 9])
def test_a_killed_run_goes_on_and_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int, memory: int
) -> None:
    monkeypatch.setattr("optkit.craft.calibration.checkpoint._SECONDS", 0.0)
    monkeypatch.setattr("optkit.craft.calibration.checkpoint._SHARE", 0)
    x = np.random.default_rng(11).standard_normal((70, 4)).astype(np.float32)

    class Dying(Layers):
        def run(self, feed: Feed) -> Feed:
            if len(self.sizes) == after:
                raise Killed
            return super().run(feed)

    save(run(feeds(x), Layers(), memory, taps=LAYERS), tmp_path / "whole")
    folder = tmp_path / "checkpoint"
    for attempt in range(100):
        try:
            # a budget of another size: the cuts are those of the first run all the same
            found = run(feeds(x), Dying(), memory + attempt, taps=LAYERS, checkpoint=folder)
            break
        except Killed:
            assert (folder / "state.safetensors").exists()
    assert attempt > 0
    save(found, tmp_path / "resumed")
    assert (tmp_path / "resumed").read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_checkpoint_of_other_samples_is_refused_and_of_another_run_not_used(
    x: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optkit.craft.calibration.checkpoint._SECONDS", 0.0)
    monkeypatch.setattr("optkit.craft.calibration.checkpoint._SHARE", 0)
    run(feeds(x), checkpoint=tmp_path)
    other = run(feeds(x), taps=PLAIN, checkpoint=tmp_path)
    assert other.samples == 50
    run(feeds(x), checkpoint=tmp_path)
    with pytest.raises(IntegrityError, match="other samples"):
        run(feeds(x + 1), checkpoint=tmp_path)
    state = tmp_path / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-5])
    assert run(feeds(x + 1), checkpoint=tmp_path).samples == 50


class Masked:
    """Tokens embedded as [batch, tokens, 2], their pairs as [batch * tokens, 2], their scores as
    [batch, 1, tokens, tokens]."""

    inputs = (
        TensorInfo("ids", "float32", ("batch", "tokens")),
        TensorInfo("attention_mask", "int64", ("batch", "tokens")),
    )
    outputs = ()

    def run(self, feed: Feed) -> Feed:
        ids = feed["ids"]
        h = np.stack([ids, -ids], axis=-1)
        return {
            "h": h,
            "pairs": h.reshape(-1, 2),
            "scores": ids[:, None, :, None] * ids[:, None, None],
        }

    def close(self) -> None: ...

    def __enter__(self) -> Masked:
        return self

    def __exit__(self, *exc: object) -> None: ...


def test_padding_is_left_out_where_a_mask_tells_it() -> None:
    random = np.random.default_rng(2)
    ids = random.uniform(1, 2, (20, 6)).astype(np.float32)
    real = np.arange(6) < random.integers(1, 7, (20, 1))
    ids[~real] = 1000
    source = [
        {"ids": ids[i : i + 4], "attention_mask": real[i : i + 4].astype(np.int64)}
        for i in range(0, 20, 4)
    ]
    taps = [Tap("h", -1, rows=True, moments=True), Tap("pairs", -1, rows=True), Tap("scores")]
    found = run(source, Masked(), taps=taps)  # type: ignore[arg-type]
    h, pairs = found.value("h"), found.value("pairs")
    assert h.high == pairs.high == ids[real].max() and h.count == pairs.count == 2 * real.sum()
    assert h.moments is not None and h.moments.count == real.sum()
    assert h.rows is not None and pairs.rows is not None
    assert (h.rows.hashes == pairs.rows.hashes).all() and (h.rows.data == pairs.rows.data).all()
    assert sorted(h.rows.data[:, 0].tolist()) == sorted(ids[real].tolist())
    assert found.value("scores").high == 1e6  # its axes are not the mask's two: all of it counts


@pytest.mark.parametrize("mask", [np.zeros((20, 6)), np.full((20, 6), 2), np.ones((20, 6))])
def test_a_mask_that_is_none_leaves_nothing_out(mask: np.ndarray) -> None:
    source = [{"ids": np.ones((20, 6), np.float32), "attention_mask": mask.astype(np.int64)}]
    found = run(source, Masked(), taps=[Tap("h")])  # type: ignore[arg-type]
    assert found.value("h").count == 240


def test_the_mask_of_an_encoder_says_nothing_of_the_decoders_tokens() -> None:
    class Decoding(Masked):
        inputs = (Masked.inputs[0], replace(Masked.inputs[1], name="encoder_attention_mask"))

    real = np.arange(6) < np.arange(1, 6)[:, None]
    source = [{"ids": np.ones((5, 6), np.float32), "encoder_attention_mask": real.astype(np.int64)}]
    found = run(source, Decoding(), taps=[Tap("h")])  # type: ignore[arg-type]
    assert found.value("h").count == 60


def test_convolution_channels_are_on_axis_one() -> None:
    class Images(Doubling):
        def run(self, feed: Feed) -> Feed:
            x = feed["x"]
            return {"y": np.stack([x, 10 * x, -x], axis=1).reshape(-1, 3, 2, 2)}

    x = np.random.default_rng(4).standard_normal((40, 4)).astype(np.float32)
    value = run(feeds(x), Images(), taps=[Tap("y", 1, rows=True, moments=True)]).value("y")
    assert value.channels is not None and value.rows is not None and value.moments is not None
    assert value.channels.high.tolist() == [x.max(), 10 * x.max(), -x.min()]
    pixels = np.stack([x, 10 * x, -x], axis=-1).reshape(-1, 3)
    assert sorted(value.rows.data.tolist()) == sorted(pixels.tolist())
    expected = pixels.T.astype(np.float64) @ pixels / len(pixels)
    assert np.allclose(value.moments.matrix(), expected, rtol=1e-5)


def test_statistics_with_extras_survive_the_file(x: np.ndarray, tmp_path: Path) -> None:
    found = run(feeds(x), taps=ALL)
    save(found, tmp_path / "s")
    again = load(tmp_path / "s")
    save(again, tmp_path / "t")
    assert (tmp_path / "s").read_bytes() == (tmp_path / "t").read_bytes()
    moments = again.value("y").moments
    assert moments is not None and isinstance(moments.total, np.memmap)
