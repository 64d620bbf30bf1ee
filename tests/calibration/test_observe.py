"""The calibration loop: what is counted, how often the model runs, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from optkit.calibration import observe
from optkit.errors import InputRefused
from optkit.runtime import Feed, TensorInfo
from optkit.statistics import Statistics, merge, save

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


def run(source: object, session: Doubling | None = None, memory: int = MIB) -> Statistics:
    return observe(
        session or Doubling(),
        source,  # type: ignore[arg-type]
        ["y", "x"],
        memory_bytes=memory,
        progress=lambda what, fraction: None,
    )


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(3).standard_normal((50, 4)).astype(np.float32)


def test_one_forward_per_batch_serves_all_values(x: np.ndarray) -> None:
    session = Doubling()
    found = run(feeds(x), session)
    assert session.sizes == [1, 8, 8, 8, 8, 8, 8, 2]  # the first measures one sample's size
    assert found.samples == 50
    assert found.range("y", "minmax", 0) == (2 * x.min(), 2 * x.max())
    assert found.range("x", "minmax", 0) == (x.min(), x.max())  # a tap on an input: the feed's
    assert found.value("y").count == 200


def test_shards_merge_to_the_bytes_of_one_run(x: np.ndarray, tmp_path: Path) -> None:
    shards = [
        run(feeds(part, batch)) for part, batch in zip(np.split(x, [7, 30]), (3, 8, 5), strict=True)
    ]
    merged = merge(shards[2], merge(shards[0], shards[1]))
    save(merged, tmp_path / "merged")
    save(run(feeds(x)), tmp_path / "whole")
    assert (tmp_path / "merged").read_bytes() == (tmp_path / "whole").read_bytes()


def test_the_digest_depends_on_the_samples_and_not_on_their_order(x: np.ndarray) -> None:
    changed = x.copy()
    changed[17, 2] += 1
    assert run(feeds(x)).data == run(feeds(x[::-1], 7)).data != run(feeds(changed)).data


def test_a_small_budget_runs_batches_in_parts(x: np.ndarray) -> None:
    session = Doubling()
    one_sample = 3 * 2 * 4 * 4  # the factor, two outputs, four floats
    parts = run(feeds(x, 50), session, memory=one_sample * 16)
    assert session.sizes == [1, 16, 16, 16, 2]
    assert parts.value("y").counts.tolist() == run(feeds(x, 50)).value("y").counts.tolist()


def test_a_later_sample_that_is_larger_is_measured_anew() -> None:
    class Wide(Doubling):
        def run(self, feed: Feed) -> Feed:
            self.sizes.append(feed["x"].size)
            return {"y": feed["x"]}

    session = Wide()
    long = [{"x": np.ones((4, 2), np.float32)}, {"x": np.ones((4, 8), np.float32)}]
    run(long, session, memory=3 * 4 * 8)  # room for four short samples, one long
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
            yield {"x": rng.standard_normal((16, 4)).astype(np.float32)}

    def peak(batches: int) -> int:
        tracemalloc.start()
        run(endless(batches))
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    peak(1)
    assert peak(400) < peak(20) * 1.2


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_input_names_tensor_and_sample(x: np.ndarray, bad: float) -> None:
    x[21, 3] = bad
    with pytest.raises(InputRefused, match=str(bad)) as error:
        run(feeds(x))
    assert error.value.where == "tensor 'x', sample 21"


def test_an_overflowing_activation_names_tensor_and_sample(x: np.ndarray) -> None:
    x[33, 1] = 3e38
    with pytest.raises(InputRefused, match="inf") as error:
        run(feeds(x))
    assert error.value.where == "tensor 'y', sample 33"
    with pytest.raises(InputRefused) as error:
        observe(
            Doubling(), feeds(x), ["rows"], memory_bytes=MIB, progress=lambda what, fraction: None
        )
    assert error.value.where == "tensor 'rows', sample 33"


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


def test_progress_ends_at_one(x: np.ndarray) -> None:
    seen: list[float] = []
    observe(
        Doubling(),
        feeds(x),
        ["y"],
        memory_bytes=MIB,
        progress=lambda what, fraction: seen.append(fraction),
    )
    assert seen == sorted(seen) and seen[-1] == 1.0
