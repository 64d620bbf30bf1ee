from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from optkit.facts.errors import InputRefused, IntegrityError
from optkit.facts.tensors import InputSpec, TensorInfo
from optkit.ground.data import packing, spool_writer
from optkit.ground.data.checking import STORABLE
from optkit.ground.data.spool import Spool, counting, overlap
from optkit.ground.data.spool_writer import SpoolInfo
from optkit.ground.data.synthetic import random_feed

IMAGE = (TensorInfo("image", "float32", ("batch", 2, 3)),)
TEXT = (
    TensorInfo("ids", "int64", ("batch", "length")),
    TensorInfo("mask", "bool", ("batch", "length")),
    TensorInfo("temperature", "float32", ()),
)


def write(
    batches: Iterable[Any],
    path: Path,
    inputs: tuple[TensorInfo, ...] = IMAGE,
    *,
    limit: int | None = None,
    memory: int = 1 << 20,
    fill: bool = False,
) -> SpoolInfo:
    return spool_writer.write(
        batches, path, inputs, limit_samples=limit, memory_bytes=memory, progress=lambda *_: None,
        fill=fill,
    )  # fmt: skip


def images(*sizes: int, start: int = 0) -> Iterator[dict[str, np.ndarray]]:
    """Batches of numbered samples: sample k holds k everywhere."""
    for size in sizes:
        numbers = np.arange(start, start + size, dtype=np.float32)
        yield {"image": np.broadcast_to(numbers[:, None, None], (size, 2, 3))}
        start += size


def numbers(feeds: Iterable[Any]) -> list[list[int]]:
    return [feed["image"][:, 0, 0].astype(int).tolist() for feed, _ in feeds]


@pytest.mark.parametrize("labelled", [True, False])
def test_chosen_samples_come_in_their_order_with_or_without_labels(
    tmp_path: Path, labelled: bool
) -> None:
    items = [(feed, feed["image"][:, 0, 0].astype(int)) if labelled else feed
             for feed in images(3, 4, 2)]  # fmt: skip
    write(items, tmp_path)
    found = list(Spool(tmp_path).chosen([8, 1, 4, 2]))
    assert numbers((feed, None) for feed, *_ in found) == [[1, 2], [4], [8]]
    for feed, labels, slices, groups in found:
        told = None if labels is None else labels.tolist()
        names = [str(number) for number in feed["image"][:, 0, 0].astype(int)]
        assert (told, slices) == ((list(map(int, names)), names) if labelled else (None, []))
        assert groups == []


# --- round trip ---------------------------------------------------------------------------------


@given(
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=8),
    size=st.integers(1, 9),
    memory=st.integers(400, 2000),
)
def test_rebatching_keeps_every_sample_in_order(sizes: list[int], size: int, memory: int) -> None:
    total = sum(sizes)
    with tempfile.TemporaryDirectory() as folder:
        pairs = [(f, f["image"][:, 0, 0].astype(np.int64)) for f in images(*sizes)]
        info = write(pairs, Path(folder), memory=memory)
        read = Spool(Path(folder))
        assert (info.samples, info.batches, len(read)) == (total, len(sizes), total)
        assert numbers(read) == numbers((f, None) for f in images(*sizes))
        rebatched = list(read.batches(size))
        assert [n for batch in numbers(rebatched) for n in batch] == list(range(total))
        assert [len(labels) for _, labels in rebatched] == [
            min(size, total - at) for at in range(0, total, size)
        ]
        for feed, labels in rebatched:
            assert labels is not None
            assert feed["image"].shape[1:] == (2, 3)
            assert labels.tolist() == feed["image"][:, 1, 2].tolist()


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 3), st.sampled_from([0.5, 1.0])),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 6),
)
def test_batches_never_mix_shapes_or_shared_inputs(
    rows: list[tuple[int, int, float]], size: int
) -> None:
    feeds = [
        {
            "ids": np.full((count, length), at, np.int64),
            "mask": np.ones((count, length), bool),
            "temperature": np.float32(temperature),
        }
        for at, (count, length, temperature) in enumerate(rows)
    ]
    with tempfile.TemporaryDirectory() as folder:
        write(feeds, Path(folder), TEXT)
        found = []
        for feed, labels in Spool(Path(folder)).batches(size):
            assert labels is None
            assert feed["ids"].shape == feed["mask"].shape
            assert 1 <= len(feed["ids"]) <= size
            for at in feed["ids"][:, 0].tolist():
                assert rows[at][1:] == (feed["ids"].shape[1], float(feed["temperature"]))
                found.append(at)
        assert found == [at for at, row in enumerate(rows) for _ in range(row[0])]


@pytest.mark.parametrize("dtype", sorted(STORABLE))
def test_every_dtype_comes_back_bit_equal(dtype: str, tmp_path: Path) -> None:
    inputs = (TensorInfo("x", dtype, ("batch", 3)),)
    array = np.array([[0, 1, 1], [1, 0, 100 if dtype != "bool" else 1]]).astype(dtype)
    write([{"x": array}], tmp_path, inputs)
    ((feed, _),) = Spool(tmp_path)
    assert feed["x"].dtype == np.dtype(dtype)
    assert feed["x"].tobytes() == array.tobytes()


def test_views_reused_buffers_and_byte_order(tmp_path: Path) -> None:
    buffer = np.zeros((3, 2, 2), np.float32)

    def source() -> Iterator[dict[str, np.ndarray]]:
        for value in (1.0, 2.0):
            buffer[:] = value
            yield {"image": buffer.T}  # [2, 2, 3], not contiguous
        yield {"image": np.full((1, 2, 3), 3, ">f4")}

    write(source(), tmp_path)
    assert numbers(Spool(tmp_path)) == [[1, 1], [2, 2], [3]]


def test_the_digest_ignores_byte_order_and_layout(tmp_path: Path) -> None:
    native = next(images(3))["image"]
    forms = [native, native.astype(">f4"), np.asfortranarray(native)]
    labels = [np.arange(3), np.arange(3).astype(">i8"), np.arange(6)[::2] // 2]
    digests = {
        write([({"image": form}, tags)], tmp_path / str(at)).digest
        for at, (form, tags) in enumerate(zip(forms, labels, strict=True))
    }
    assert len(digests) == 1


def test_a_limit_cuts_the_last_batch_and_stops_the_source(tmp_path: Path) -> None:
    def source() -> Iterator[dict[str, np.ndarray]]:
        yield from images(4, 4)
        raise AssertionError("asked for more than the limit")

    assert write(source(), tmp_path, limit=6).samples == 6
    assert numbers(Spool(tmp_path)) == [[0, 1, 2, 3], [4, 5]]


def test_memory_holds_one_shard_only(tmp_path: Path) -> None:
    info = write(images(*[10] * 20), tmp_path, memory=1000)  # 240 bytes a batch, two in a shard
    assert info.bytes == 200 * 24
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert len(shards) == 10
    assert all(shard.stat().st_size < 1000 for shard in shards)


def test_progress_is_reported(tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []
    spool_writer.write(
        images(2, 2), tmp_path, IMAGE, limit_samples=4, memory_bytes=1 << 20,
        progress=lambda *news: told.append(news),
    )  # fmt: skip
    assert told == [("2 of 4 samples", 0.5), ("4 of 4 samples", 1.0)]


# --- fixed batch, single feeds ------------------------------------------------------------------

FIXED = (TensorInfo("image", "float32", (4, 2, 3)), TensorInfo("table", "float32", (3, 1)))


def fixed(*starts: int) -> Iterator[dict[str, np.ndarray]]:
    for start in starts:
        yield {**next(images(4, start=start)), "table": np.ones((3, 1), np.float32)}


def test_a_fixed_batch_stays_whole(tmp_path: Path) -> None:
    assert write(fixed(0, 4, 8), tmp_path, FIXED, limit=5).samples == 8
    read = Spool(tmp_path)
    assert numbers(read.batches(4)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert read.feed(4)["table"].shape == (3, 1)
    for ask in (lambda: list(read.batches(8)), lambda: read.feed(1)):
        with pytest.raises(InputRefused, match="fixed at 4"):
            ask()


def test_an_incomplete_batch_of_a_fixed_model_is_filled_up(tmp_path: Path) -> None:
    """Rows without labels do not count, in a session's outputs as in the feed."""
    infos = (*FIXED, TensorInfo("mask", "int64", (4, 2)))
    feeds = [{**one, "mask": np.ones((4, 2), np.int64)} for one in fixed(0, 4)]
    feeds[1] = {name: a if name == "table" else a[:3] for name, a in feeds[1].items()}
    batches = list(zip(feeds, (np.arange(4), np.arange(4, 7)), strict=True))
    info = write(batches, tmp_path / "a", infos, fill=True)
    read = Spool(tmp_path / "a")
    assert (info.samples, info.left_out, len(read)) == (7, 0, 7)
    assert numbers(read.batches(4)) == [[0, 1, 2, 3], [4, 5, 6, 4]]
    (first, all_four), (feed, labels) = read.batches(None)
    assert labels is not None and labels.tolist() == [4, 5, 6] and feed["table"].shape == (3, 1)
    kept = counting({"y": feed["image"][:, 0, 0], "mean": np.zeros(2)}, feed, labels)
    assert kept["y"].tolist() == [4, 5, 6] and kept["mean"].shape == (2,)
    assert counting(first, first, all_four) is first
    one = [(counting(feed, feed, labels), labels) for feed, labels in read.batches(None)]
    assert write(one, tmp_path / "b", infos, fill=True).digest == info.digest


def test_an_incomplete_batch_that_is_not_filled_up_is_reported(tmp_path: Path) -> None:
    short = {n: a[:3] if n == "image" else a for n, a in next(fixed(4)).items()}
    info = write([next(fixed(0)), short], tmp_path / "a", FIXED)
    assert (info.samples, info.left_out) == (4, 3)
    assert numbers(Spool(tmp_path / "a").batches(4)) == [[0, 1, 2, 3]]
    with pytest.raises(InputRefused, match=r"fewer samples \(3\) than .* fixed batch of 4"):
        write([short], tmp_path / "b", FIXED)
    with pytest.raises(InputRefused, match="two batches have fewer samples") as caught:
        write([next(fixed(0)), short, short], tmp_path / "c", FIXED)
    assert caught.value.where == "sample 4"


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_feed_of_any_size(size: int, tmp_path: Path) -> None:
    write(images(2, 1), tmp_path)
    feed = Spool(tmp_path).feed(size)
    assert feed["image"][:, 0, 0].tolist() == [at % 3 for at in range(size)]


def test_no_batch_of_zero(tmp_path: Path) -> None:
    write(images(2), tmp_path)
    with pytest.raises(InputRefused, match="0 samples"):
        list(Spool(tmp_path).batches(0))


# --- identity -----------------------------------------------------------------------------------


def test_the_digest_ignores_how_samples_were_batched(tmp_path: Path) -> None:
    one = write(images(5), tmp_path / "one")
    two = write(images(2, 3), tmp_path / "two", memory=500)
    assert one.digest == two.digest == Spool(tmp_path / "two").digest
    assert Spool(tmp_path / "one").digests() == Spool(tmp_path / "two").digests()


@pytest.mark.parametrize("change", ["value", "order", "labels", "label_type", "fewer"])
def test_the_digest_sees_every_change(change: str, tmp_path: Path) -> None:
    feed, labels = next(images(4)), np.arange(4)
    reference = write([(feed, labels)], tmp_path / "a").digest
    array = feed["image"].copy()
    if change == "value":
        array[3, 1, 2] = np.nextafter(array[3, 1, 2], 9)
    elif change == "order":
        array, labels = array[::-1], labels[::-1]
    elif change == "labels":
        labels = labels[::-1]
    elif change == "label_type":
        labels = labels.astype(np.int32)
    else:
        array, labels = array[:3], labels[:3]
    assert write([({"image": array}, labels)], tmp_path / "b").digest != reference


def test_the_bytes_are_the_same_each_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(images(3, 3, 3), tmp_path / name, memory=200)
    files = {p.name: p.read_bytes() for p in (tmp_path / "a").iterdir()}
    assert files == {p.name: p.read_bytes() for p in (tmp_path / "b").iterdir()}
    assert len(files) == 4


@given(
    a=st.lists(st.integers(0, 9), min_size=1, max_size=9),
    b=st.lists(st.integers(0, 9), min_size=1, max_size=9),
)
@settings(max_examples=25)
def test_overlap_finds_just_the_shared_samples(a: list[int], b: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        read = []
        for name, values in (("a", a), ("b", b)):
            feeds = ({"image": np.full((1, 2, 3), v, np.float32)} for v in values)
            write(feeds, Path(folder) / name)
            read.append(Spool(Path(folder) / name))
        assert overlap(*read) == [(i, b.index(v)) for i, v in enumerate(a) if v in b]


BERT = (
    TensorInfo("input_ids", "int64", ("batch", "sequence")),
    TensorInfo("attention_mask", "int64", ("batch", "sequence")),
    TensorInfo("token_type_ids", "int64", ("batch", "sequence")),
)
DECODER = (
    *BERT[:1],
    TensorInfo("attention_mask", "int64", ("batch", "past_sequence + sequence")),
    TensorInfo("position_ids", "int64", ("batch", "sequence")),
    TensorInfo("past_key_values.0.key", "float32", ("batch", 2, "past_sequence", 4)),
)
PAIRED = (  # two inputs of tokens, and a mask of one of them
    TensorInfo("input_ids", "int64", ("batch", "encoder_sequence")),
    TensorInfo("attention_mask", "int64", ("batch", "encoder_sequence")),
    TensorInfo("decoder_input_ids", "int64", ("batch", "sequence")),
)


def padded(texts: list[list[int]], width: int, side: str, inputs: Any, fill: int = 0) -> Any:
    """Texts as a feed of these inputs, `width` wide."""
    feed = packing.pad(texts, value=fill, side=side, length=width).feed(
        {info.name: info for info in inputs}
    )
    if inputs is PAIRED:
        feed["decoder_input_ids"] = np.asarray([[text[0], 9, 9] for text in texts])
    return feed


@given(
    texts=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=6),
    others=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=6),
    widths=st.tuples(st.integers(4, 7), st.integers(4, 7)),
    sides=st.tuples(st.sampled_from(["left", "right"]), st.sampled_from(["left", "right"])),
    inputs=st.sampled_from([BERT, DECODER, PAIRED]),
)
@settings(max_examples=40)
def test_a_text_is_found_again_whatever_it_is_padded_to(
    texts: list[list[int]], others: list[list[int]], widths: Any, sides: Any, inputs: Any
) -> None:
    """The padding's own id may be one of a text's; only the mask tells them apart."""
    with tempfile.TemporaryDirectory() as folder:
        read = []
        for name, rows, width, side in zip("ab", (texts, others), widths, sides, strict=True):
            spool_writer.write(
                [padded(rows, width, side, inputs)], Path(folder) / name, inputs,
                limit_samples=None, memory_bytes=1 << 20, progress=lambda *_: None,
                optional=("past_sequence",),
            )  # fmt: skip
            read.append(Spool(Path(folder) / name))
        assert overlap(*read) == [(i, others.index(t)) for i, t in enumerate(texts) if t in others]


def test_what_no_mask_hides_is_data(tmp_path: Path) -> None:
    """Ids alone, packed blocks, and weights that are no mask of zeros and ones; the digest of all
    is exact."""
    ids = BERT[:1]
    for name, row in (("a", [7, 8, 0]), ("b", [7, 8])):
        write([{"input_ids": np.array([row])}], tmp_path / name, ids)
    assert not overlap(Spool(tmp_path / "a"), Spool(tmp_path / "b"))
    weighed = (ids[0], TensorInfo("attention_mask", "float32", ("batch", "sequence")))
    for name, row in (("c", [0.5, 0.0]), ("d", [0.5, 0.0, 0.0])):
        feed = {"input_ids": np.full((1, len(row)), 7), "attention_mask": np.array([row], "f4")}
        write([feed], tmp_path / name, weighed)
    assert not overlap(Spool(tmp_path / "c"), Spool(tmp_path / "d"))
    exact = {
        write([padded([[7, 8]], width, side, BERT)], tmp_path / f"{width}{side}", BERT).digest
        for width in (3, 4)
        for side in ("left", "right")
    }
    assert len(exact) == 4


@pytest.mark.parametrize("labelled", [False, True])
def test_a_single_file_holds_it_all(labelled: bool, tmp_path: Path) -> None:
    pairs = [(f, f["image"][:, 0, 0] if labelled else None) for f in images(3, 2)]
    write(pairs if labelled else (f for f, _ in pairs), tmp_path / "folder", memory=200)
    whole = Spool(tmp_path / "folder")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        whole.to_file(tmp_path / name / "eval.safetensors", {"metric": "top1", "none": None})
    read = Spool(tmp_path / "a" / "eval.safetensors")
    assert (tmp_path / "a" / "eval.safetensors").read_bytes() == (
        tmp_path / "b" / "eval.safetensors"
    ).read_bytes()
    assert read.metadata == {"metric": "top1", "none": None}
    assert (read.digest, read.digests(), read.inputs, read.labelled) == (
        whole.digest, whole.digests(), whole.inputs, labelled,
    )  # fmt: skip
    for (feed, tags), (expected, expected_tags) in zip(read, whole, strict=True):
        assert np.array_equal(feed["image"], expected["image"])
        assert np.array_equal(tags, expected_tags) if labelled else tags is expected_tags is None


def test_a_file_that_holds_no_spool(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\0" * 100)
    with pytest.raises(IntegrityError):
        Spool(tmp_path / "x")
    save_file({"w": np.zeros(2)}, tmp_path / "y")
    with pytest.raises(IntegrityError):
        Spool(tmp_path / "y")


# --- what is refused ----------------------------------------------------------------------------

GOOD = np.zeros((2, 2, 3), np.float32)


def with_value(value: float, at: tuple[int, ...]) -> np.ndarray:
    array = GOOD.copy()
    array[at] = value
    return array


class Stubborn:
    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise RuntimeError("I require grad")


def test_a_value_without_axes_is_given_once(tmp_path: Path) -> None:
    infos = (TensorInfo("image", "float32", ("batch", 2)), TensorInfo("t", "float32", ()))
    feed = {"image": np.zeros((3, 2), np.float32), "t": np.zeros(3, np.float32)}
    with pytest.raises(InputRefused, match=r"\[3\], but the model takes \[\]") as caught:
        write([feed], tmp_path, infos)
    assert "it has no axes" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("bad", "text", "hint"),
    [
        ({}, "lacks input 'image'", "nothing"),
        ({"img": GOOD}, "no input 'img'", "'image'"),
        ({"image": GOOD, "zzz": GOOD}, "no input 'zzz'", "name of an input: image"),
        ({"image": GOOD.astype(float)}, "dtype is float64, but the model takes float32", "astype"),
        ({"image": GOOD.tolist()}, "dtype is float64", "astype"),
        ({"image": GOOD[0]}, r"shape is \[2, 3\], but the model takes \[batch, 2, 3\]", "axis 0"),
        ({"image": GOOD[..., :2]}, r"shape is \[2, 2, 2\]", "axis 2 has one size"),
        ({"image": GOOD.transpose(0, 2, 1)}, r"shape is \[2, 3, 2\]", "transpose(0, 2, 1)"),
        ({"image": GOOD[:0]}, "'image' is empty", "axis 'batch'"),
        ({"image": None}, "dtype is object", None),
        ({"image": Stubborn()}, "I require grad", "numpy"),
        ([GOOD], "yields list, not a feed", "yield"),
        (GOOD, "yields ndarray, not a feed", "yield"),
        (({"image": GOOD}, np.arange(3)), "some samples have labels", "with every batch"),
    ],
)  # fmt: skip
def test_a_feed_that_does_not_fit(bad: Any, text: str, hint: str | None, tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match=text) as caught:
        write([{"image": GOOD}, bad], tmp_path)
    assert "sample 2" in str(caught.value.where)
    assert hint is None or hint in str(caught.value.hint)
    assert not (tmp_path / "index.json").exists()


def test_the_sizes_of_an_example_are_named(tmp_path: Path) -> None:
    infos = (TensorInfo("image", "float32", (4, 3, 8, 8)),)
    with pytest.raises(InputRefused, match=r"takes \[4, 3, 8, 8\]") as caught:
        write([{"image": np.zeros((4, 3, 6, 7), np.float32)}], tmp_path, infos)
    hint = str(caught.value.hint)
    assert "shape: [batch, 3, axis2, axis3]" in hint and "axis 3 has one size, 8" in hint
    assert "{axis2: {min: ..., opt: ..., max: ...}, axis3: {min: " in hint


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [(0, 0, 0), (1, 1, 2)])
def test_values_that_are_not_finite_are_kept_and_noted(
    value: float, at: tuple[int, ...], tmp_path: Path
) -> None:
    feeds = [{"image": GOOD}, {"image": with_value(value, at)}]
    assert write(feeds, tmp_path).not_finite == {"image": 2 + at[0]}
    found = np.concatenate([feed["image"] for feed, _ in Spool(tmp_path)])
    np.testing.assert_array_equal(found[2:], feeds[1]["image"])


def test_a_shared_value_that_is_not_finite_is_noted(tmp_path: Path) -> None:
    feeds = [
        {"ids": np.zeros((2, 1), np.int64), "mask": np.ones((2, 1), bool), "temperature": value}
        for value in (np.float32(1), np.float32(np.nan))
    ]
    assert write(feeds, tmp_path, TEXT).not_finite == {"temperature": 2}


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        (np.arange(3), "3 labels for a batch of 2"),
        (7, "1 labels for a batch of 2"),
        (["cat", "dog"], "labels of dtype <U3"),
        ([None, None], "labels of dtype object"),
        ([[1], [1, 2]], "no array"),
    ],
)
def test_labels_that_do_not_fit(labels: Any, text: str, tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match=text):
        write([({"image": GOOD}, labels)], tmp_path)


@pytest.mark.parametrize("later", [np.zeros(2, np.float32), np.zeros((2, 5), np.int64), None])
def test_labels_may_not_change_their_kind(later: Any, tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match="labels"):
        write([({"image": GOOD}, np.arange(2)), ({"image": GOOD}, later)], tmp_path)


def test_a_scalar_labels_a_batch_of_one(tmp_path: Path) -> None:
    info = write([({"image": GOOD[:1]}, 7), ({"image": GOOD[:1]}, 8)], tmp_path)
    assert info.labelled
    ((_, labels),) = Spool(tmp_path).batches(2)
    assert labels is not None
    assert labels.tolist() == [7, 8]


def test_one_axis_has_one_size(tmp_path: Path) -> None:
    feed = {
        "ids": np.zeros((2, 5), np.int64),
        "mask": np.ones((2, 4), bool),
        "temperature": np.float32(1),
    }
    with pytest.raises(InputRefused, match="'length' is 5 in input 'ids' and 4 in 'mask'"):
        write([feed], tmp_path, TEXT)
    feed["mask"] = np.ones((3, 5), bool)
    with pytest.raises(InputRefused, match="'batch' is 2"):
        write([feed], tmp_path, TEXT)


def test_no_samples(tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match="no samples"):
        write([], tmp_path)


def test_a_batch_of_no_samples_is_refused_where_its_axis_may_be_empty(tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match="input 'image' is empty") as caught:
        spool_writer.write(
            images(2, 0), tmp_path, IMAGE, limit_samples=None, memory_bytes=1 << 20,
            progress=lambda *_: None, optional=["batch"],
        )  # fmt: skip
    assert caught.value.where == "sample 2"


def test_an_axis_that_the_model_says_is_empty(tmp_path: Path) -> None:
    """An optional input of a Resize, for one."""
    inputs = (*IMAGE, TensorInfo("roi", "float32", (0,)))
    roi = np.zeros(0, np.float32)
    write([{**feed, "roi": roi} for feed in images(2)], tmp_path, inputs)
    assert [feed["roi"].shape for feed, _ in Spool(tmp_path).batches(1)] == [(0,), (0,)]


def test_a_batch_beyond_the_memory_budget(tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match="budget of 100") as caught:
        write(images(10), tmp_path, memory=100)
    assert "--memory" in str(caught.value.hint)


def test_an_input_type_that_no_file_keeps(tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match="bfloat16"):
        write([], tmp_path, (TensorInfo("x", "bfloat16", ("batch",)),))


# --- disk ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["no_index", "index", "schema", "shard", "no_shard"])
def test_a_damaged_spool_is_reported(damage: str, tmp_path: Path) -> None:
    write(images(3), tmp_path)
    index, shard = tmp_path / "index.json", tmp_path / "00000.safetensors"
    if damage == "no_index":
        index.unlink()
    elif damage == "index":
        index.write_bytes(index.read_bytes()[:-1])
    elif damage == "schema":
        index.write_text(index.read_text().replace("spool/v1", "spool/v9"))
    elif damage == "shard":
        shard.write_bytes(b"\xff" * 100)
    else:
        shard.unlink()
    with pytest.raises(IntegrityError):
        list(Spool(tmp_path))


def test_a_full_disk_is_a_storage_error(tmp_path: Path) -> None:
    """In a child: the limit on file size stands in for a disk that is full."""
    code = (
        "import resource, sys\nfrom pathlib import Path\nimport numpy as np\n"
        "from optkit.ground.data import spool_writer\nfrom optkit.errors import StorageError\n"
        "from optkit.tensors import TensorInfo\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "try: spool_writer.write([{'x': np.zeros((1, 3 << 20), np.float32)}], Path(sys.argv[1]),\n"
        "    [TensorInfo('x', 'float32', ('batch', 3 << 20))], limit_samples=None,\n"
        "    memory_bytes=1 << 30, progress=lambda *_: None)\n"
        "except StorageError as error: print(error); sys.exit(8)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 8, done.stderr
    assert "File too large" in done.stdout
    assert not (tmp_path / "index.json").exists()


# --- random feeds -------------------------------------------------------------------------------


def test_random_feeds_keep_dtype_shape_and_range() -> None:
    specs = [
        InputSpec(TensorInfo("x", "float16", ("batch", 500))),
        InputSpec(TensorInfo("u", "float32", (500,)), (2.0, 3.0)),
        InputSpec(TensorInfo("ids", "int64", ("batch", "length")), (3, 5)),
        InputSpec(TensorInfo("mask", "int32", ("batch", 500))),
        InputSpec(TensorInfo("flag", "bool", ("batch", 500))),
        InputSpec(TensorInfo("scalar", "float32", ())),
    ]
    feed = random_feed(specs, {"batch": 2, "length": 100}, seed=1)
    assert {n: (a.dtype.name, a.shape) for n, a in feed.items()} == {
        "x": ("float16", (2, 500)), "u": ("float32", (500,)), "ids": ("int64", (2, 100)),
        "mask": ("int32", (2, 500)), "flag": ("bool", (2, 500)), "scalar": ("float32", ()),
    }  # fmt: skip
    assert abs(float(feed["x"].astype(float).std()) - 1) < 0.1
    assert 2 <= feed["u"].min() < 2.1 < 2.9 < feed["u"].max() <= 3
    assert set(feed["ids"].flat) == {3, 4, 5}
    assert set(feed["mask"].flat) == {0, 1}
    assert set(feed["flag"].flat) == {False, True}
    again = random_feed(specs, {"batch": 2, "length": 100}, seed=1)
    other = random_feed(specs, {"batch": 2, "length": 100}, seed=2)
    assert all(np.array_equal(feed[n], again[n]) for n in feed)
    assert not np.array_equal(feed["x"], other["x"])


@pytest.mark.parametrize("most", [1, 3, 7, 100])
def test_samples_at_equal_distances(most: int, tmp_path: Path) -> None:
    write(images(4, 1, 6, 2), tmp_path, memory=160)
    found = [feed["image"] for feed in Spool(tmp_path).spread(most)]
    assert {image.shape for image in found} == {(1, 2, 3)}
    taken = min(most, 13)
    assert [int(image[0, 0, 0]) for image in found] == [i * 13 // taken for i in range(taken)]


def test_of_a_fixed_batch_whole_batches_are_spread(tmp_path: Path) -> None:
    fixed = (TensorInfo("image", "float32", (2, 2, 3)),)
    write(images(2, 2, 2, 2), tmp_path, fixed)
    found = [feed["image"] for feed in Spool(tmp_path).spread(4)]
    assert [image[:, 0, 0].tolist() for image in found] == [[0, 1], [4, 5]]
