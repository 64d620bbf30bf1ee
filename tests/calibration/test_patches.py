"""Patches of convolutions: what a window shows, and their rows and second moments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optkit.craft.calibration import observe
from optkit.craft.calibration.part import Data, SamplePart
from optkit.craft.calibration.patches import PatchView
from optkit.facts.errors import IntegrityError
from optkit.facts.tensors import Feed, TensorInfo
from optkit.ground.statistics import (
    CHUNK,
    PATCHES,
    Patches,
    Statistics,
    Tap,
    Window,
    load,
    merge,
    merged_taps,
    save,
)

PLAIN = Window((3, 3), (1, 1), (1, 1, 1, 1), (1, 1))
IN_GROUPS = Window((3, 2), (2, 1), (0, 1, 1, 0), (1, 2), groups=2)
WHOLE = Window((1, 1), (1, 1), (0, 0, 0, 0), (1, 1))


class Images:
    """A session whose only value is its input, images [batch, 4, 7, 7]."""

    def __init__(self) -> None:
        self.inputs = (TensorInfo("x", "float32", ("batch", 4, 7, 7)),)
        self.outputs = ()

    def run(self, feed: Feed) -> Feed:
        return {}

    def close(self) -> None: ...

    def __enter__(self) -> Images:
        return self

    def __exit__(self, *exc: object) -> None: ...


def images(count: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.standard_normal((count, 4, 7, 7)).astype(np.float32)


def run(
    x: np.ndarray,
    *windows: Window,
    batch: int = 8,
    first: int = 0,
    memory: int = 1 << 24,
    told: list[str] | None = None,
) -> Statistics:
    return observe(
        Images(),
        [{"x": x[start : start + batch]} for start in range(0, len(x), batch)],
        [Tap("x", 1, rows=True, moments=True, windows=windows)],
        memory_bytes=memory,
        progress=lambda what, fraction: None if told is None else told.append(what),
        first=first,
    )


def patches(found: Statistics, window: Window) -> Patches:
    return found.value("x").patches[window]


def unfolded(x: np.ndarray, window: Window) -> np.ndarray:
    """float64 [n, positions, groups, K] by torch, which knows neither ends apart nor groups."""
    torch = pytest.importorskip("torch")
    (top, bottom), (left, right) = window.padding(x.shape[2:])
    padded = torch.nn.functional.pad(torch.from_numpy(x), (left, right, top, bottom))
    columns = torch.nn.functional.unfold(
        padded, window.kernel, dilation=window.dilations, stride=window.strides
    )  # [n, C * taps, positions]
    rows = columns.numpy().swapaxes(1, 2).astype(np.float64)
    return rows.reshape(*rows.shape[:2], window.groups, -1)


pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@given(
    kernel=pairs,
    strides=pairs,
    dilations=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    pads=st.tuples(*[st.integers(0, 2)] * 4),
    groups=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_moments_are_those_of_the_unfolded_input(
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilations: tuple[int, int],
    pads: tuple[int, int, int, int],
    groups: int,
    seed: int,
) -> None:
    window = Window(kernel, strides, pads, dilations, groups)
    x = images(3, seed)
    expected = unfolded(x, window)
    part = SamplePart(0, [bytes([seed, i]) * 16 for i in range(len(x))])
    view = PatchView(Data(x, x, -9.0, 9.0, len(x), None, None), part, window)
    positions = expected.shape[1]
    every = view.rows(np.arange(len(x) * positions))
    assert (every == expected.reshape(len(every), -1)).all()
    chosen = view.for_moments()
    assert chosen.shape[:2] == (groups, len(x) * min(positions, PATCHES))
    if positions <= PATCHES:
        moments = patches(run(x, window), window).moments
        assert moments is not None and moments.count == len(x) * positions
        second = np.einsum("npgi,npgj->gij", expected, expected) / (len(x) * positions)
        np.testing.assert_allclose(moments.matrix(), second, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_padding_named_by_the_operator(auto_pad: str, stride: int) -> None:
    window = Window((3, 2), (stride, stride), (), (1, 2), auto_pad=auto_pad)
    shape = window.view(images(1)).shape[2:4]
    size = np.array([7, 7])
    if auto_pad == "VALID":
        size -= [2, 2]  # what a kernel of 3, or of 2 apart by 2, reaches beyond its first
    assert shape == tuple(-(-size // stride))
    if auto_pad != "VALID" and stride == 1:
        ends = (1, 1), (1, 1)
        assert tuple(window.padding((7, 7))) == ends
    if auto_pad != "VALID" and stride == 2:
        odd = Window((4, 4), (2, 2), (), (1, 1), auto_pad=auto_pad).padding((7, 7))
        assert odd == [(1, 2) if auto_pad == "SAME_UPPER" else (2, 1)] * 2


@pytest.mark.slow
@given(
    order=st.integers(1, 4).flatmap(lambda n: st.permutations(range(n))),
    batch=st.sampled_from([1, 5, 32]),
)
@settings(max_examples=15, deadline=None)
def test_shards_at_chunk_borders_merge_bit_equal(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], batch: int
) -> None:
    x = images(CHUNK * 3 + 5)
    pieces = np.split(x, [CHUNK * i for i in range(1, len(order))])
    windows = (PLAIN, IN_GROUPS)
    shards = [run(piece, *windows, batch=batch, first=CHUNK * i) for i, piece in enumerate(pieces)]
    merged = shards[order[0]]
    for index in order[1:]:
        merged = merge(merged, shards[index])
    folder = tmp_path_factory.mktemp("shards")
    save(merged, folder / "merged")
    save(run(x, *windows, batch=17), folder / "whole")
    assert (folder / "merged").read_bytes() == (folder / "whole").read_bytes()


def test_of_a_large_map_each_sample_gives_a_few_patches_whatever_the_batch() -> None:
    x = images(40)
    found = [run(x, WHOLE, batch=batch) for batch in (1, 40)]
    first, second = (patches(one, WHOLE).moments for one in found)
    assert first is not None and second is not None
    assert first.count == second.count == 40 * PATCHES < 40 * 49
    assert (first.total == second.total).all()
    plain = np.einsum("ncij,ndij->cd", x, x, dtype=np.float64) / (40 * 49)
    assert np.abs(first.matrix()[0] - plain).max() < 0.2  # a fair sample of them


def test_patches_that_do_not_fit_beside_each_other_get_passes_of_their_own() -> None:
    x, told = images(40), list[str]()
    at_once, apart = run(x, PLAIN, WHOLE), run(x, PLAIN, WHOLE, memory=400 << 10, told=told)
    assert any(what.startswith("pass 2 of 2") for what in told)
    for window in (PLAIN, WHOLE):
        a, b = (patches(one, window).moments for one in (at_once, apart))
        assert a is not None and b is not None and (a.total == b.total).all()


@pytest.mark.parametrize("groups", [1, 2])
def test_a_value_divided_by_factors_has_the_patches_of_the_divided_value(groups: int) -> None:
    window = Window((3, 3), (3, 3), (1, 1, 1, 1), (1, 1), groups)  # few enough to keep them all
    x, s = images(20), np.array([0.5, 2, 4, 8], np.float32)
    expected = run(x / s[:, None, None], window).value("x").patches[window]
    found = run(x, window).value("x").scaled(s).patches[window]
    assert expected.moments is not None and found.moments is not None
    np.testing.assert_allclose(found.moments.matrix(), expected.moments.matrix(), rtol=1e-5)
    assert sorted(found.rows.data.tolist()) == sorted(expected.rows.data.tolist())


def test_the_file_keeps_patches_and_refuses_others(tmp_path: Path) -> None:
    found = run(images(9), PLAIN, IN_GROUPS)
    save(found, tmp_path / "s")
    again = load(tmp_path / "s")
    save(again, tmp_path / "t")
    assert (tmp_path / "s").read_bytes() == (tmp_path / "t").read_bytes()
    moments = patches(again, IN_GROUPS).moments
    assert moments is not None and isinstance(moments.total, np.memmap)
    content = (tmp_path / "s").read_bytes()
    for old, new in ((b'\\"groups\\": 2', b'\\"groups\\": 4'), (b"[3, 3]", b"[3, 4]")):
        assert old in content
        (tmp_path / "u").write_bytes(content.replace(old, new))
        with pytest.raises(IntegrityError):
            load(tmp_path / "u")


def test_taps_of_several_convolutions_keep_all_their_windows() -> None:
    taps = [Tap("x", 1, windows=(PLAIN,)), Tap("x", 1, moments=True, windows=(WHOLE, PLAIN))]
    assert merged_taps(taps) == [Tap("x", 1, moments=True, windows=(WHOLE, PLAIN))]
