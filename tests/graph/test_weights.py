"""Weights on disk: rows, tensors computed while they are written, links between data files."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optkit.facts.errors import InputRefused, OptkitError, UnsafeFile
from optkit.ground import graph
from optkit.ground.graph import data_files
from optkit.ground.graph.weights import MappedTensor

DTYPES = {
    "float32": ir.DataType.FLOAT,
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
    "int8": ir.DataType.INT8,
    "int64": ir.DataType.INT64,
    "int4": ir.DataType.INT4,
    "uint4": ir.DataType.UINT4,
    "float4_e2m1fn": ir.DataType.FLOAT4E2M1,
    "float8_e4m3fn": ir.DataType.FLOAT8E4M3FN,
}


def random(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> np.ndarray:
    numbers = np.random.default_rng(seed).integers(0, 7, shape)
    return numbers.astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))


def model(tensors: dict[str, np.ndarray | ir.TensorProtocol]) -> ir.Model:
    """A graph that only holds constants, each behind an Identity."""
    nodes, values = [], []
    for name, given_ in tensors.items():
        if isinstance(given_, np.ndarray):
            given_ = ir.Tensor(given_, name=name)
        value = ir.Value(name=name, shape=ir.Shape(given_.shape.numpy()),
                         type=ir.TensorType(given_.dtype), const_value=given_)  # fmt: skip
        node = ir.node("Identity", [value], name=f"{name}_identity")
        node.outputs[0].name = f"{name}_out"
        node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
        nodes.append(node)
        values.append(value)
    outputs = [node.outputs[0] for node in nodes]
    return ir.Model(
        ir.Graph([], outputs, nodes=nodes, initializers=values, opset_imports={"": 23}),
        ir_version=11,
    )


def numbers(loaded: ir.Model) -> dict[str, np.ndarray]:
    found = loaded.graph.initializers.items()
    return {name: value.const_value.numpy().copy() for name, value in found if value.const_value}


def same(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes(), name


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def linking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data files of any size are worth a link."""
    monkeypatch.setattr(data_files, "_WORTH_A_LINK", 1)


# reading


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (700, 33), (3, 1500, 2)])
def test_every_dtype_comes_back(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    given_ = {"w": random(shape, dtype), "v": random((5, *shape), dtype, 1)}
    graph.save(model(given_), tmp_path / "m.onnx", inline_limit=0)
    same(numbers(graph.load(tmp_path / "m.onnx")), given_)
    proto = onnx.load(tmp_path / "m.onnx")  # the library reads the same
    for tensor in proto.graph.initializer:
        read = onnx.numpy_helper.to_array(tensor)
        assert read.tobytes() == given_[tensor.name].tobytes()


@settings(deadline=None, max_examples=30)
@given(rows=st.integers(0, 70), columns=st.integers(1, 40), count=st.integers(1, 80),
       dtype=st.sampled_from(["float16", "float32", "int4"]))  # fmt: skip
def test_rows_are_the_tensor_in_blocks(
    rows: int, columns: int, count: int, dtype: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("rows") / "m.onnx"
    given_ = random((rows, columns), dtype)
    graph.save(model({"w": given_, "big": random((40, 40))}), path, inline_limit=0)
    for source in (graph.load(path).graph.initializers["w"], ir.Tensor(given_)):
        blocks = list(graph.rows(source, count))
        assert [len(block) for block in blocks[:-1]] == [count] * (len(blocks) - 1)
        joined = np.concatenate(blocks) if blocks else np.empty((0, columns), given_.dtype)
        assert joined.tobytes() == given_.tobytes()


@settings(deadline=None, max_examples=30)
@given(rows=st.integers(1, 70), columns=st.integers(1, 40), piece=st.integers(1, 4000),
       along=st.sampled_from([(1, 1), (0, 1), (1, 0), (0, 0)]), half=st.booleans())  # fmt: skip
def test_a_scaled_tensor_is_the_product_wherever_it_is(
    rows: int, columns: int, piece: int, along: tuple[int, int], half: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    """In memory, in a file, and of a product that is itself computed."""
    path = tmp_path_factory.mktemp("scaled") / "m.onnx"
    given_ = random((rows, columns), "float16" if half else "float32")
    graph.save(model({"w": given_, "big": random((40, 40))}), path, inline_limit=0)
    stored = graph.load(path).graph.initializers["w"].const_value
    assert stored is not None
    factor = np.random.default_rng(1).uniform(0.1, 3, (along[0] or rows, along[1] or columns))
    once = (given_.astype(np.float64) * factor).astype(given_.dtype)
    twice = (once.astype(np.float64) * factor.T[:1, :1]).astype(given_.dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("optkit.ground.graph.weights._PIECE_BYTES", piece)
        for tensor in (stored, ir.Tensor(given_)):
            found = graph.scaled(tensor, factor)
            assert found.numpy().tobytes() == once.tobytes()
            assert graph.scaled(found, factor[:1, :1]).numpy().tobytes() == twice.tobytes()


def test_a_product_larger_than_the_tensor_is_in_memory(tmp_path: Path) -> None:
    graph.save(model({"w": random((1, 900), "float32")}), tmp_path / "m.onnx", inline_limit=0)
    stored = graph.load(tmp_path / "m.onnx").graph.initializers["w"].const_value
    assert stored is not None and isinstance(stored, graph.MappedTensor)
    assert graph.scaled(stored, np.ones((3, 1))).shape.numpy() == (3, 900)


def test_rows_of_a_scalar(tmp_path: Path) -> None:
    assert [block.tolist() for block in graph.rows(ir.Tensor(np.array(3.0)), 5)] == [3.0]


def test_a_read_weight_leaves_memory_with_its_array(tmp_path: Path) -> None:
    given_ = random((4096, 2048))
    graph.save(model({"w": given_}), tmp_path / "m.onnx", inline_limit=0)
    value = graph.load(tmp_path / "m.onnx").graph.initializers["w"]
    before = mapped()
    array = value.const_value.numpy()
    assert not array.flags.writeable and array.sum() == given_.sum()
    assert mapped() == before + 1
    del array
    assert mapped() == before


def mapped() -> int:
    return Path("/proc/self/maps").read_text().count("m.onnx.data")


def test_a_data_file_that_was_cut_is_reported(tmp_path: Path) -> None:
    graph.save(model({"w": random((64, 64))}), tmp_path / "m.onnx", inline_limit=0)
    value = graph.load(tmp_path / "m.onnx").graph.initializers["w"]
    os.truncate(tmp_path / "m.onnx.data", 100)
    with pytest.raises(OptkitError, match="cut"):
        list(graph.rows(value, 64))
    with pytest.raises(UnsafeFile, match="too short"):
        graph.load(tmp_path / "m.onnx")


def test_a_length_that_is_not_said_is_checked_too(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    graph.save(model({"w": random((64, 64))}), path, inline_limit=0)
    proto = onnx.load(path, load_external_data=False)
    kept = [e for e in proto.graph.initializer[0].external_data if e.key != "length"]
    del proto.graph.initializer[0].external_data[:]
    proto.graph.initializer[0].external_data.extend(kept)
    path.write_bytes(proto.SerializeToString())
    graph.load(path)
    os.truncate(tmp_path / "m.onnx.data", 64 * 64 * 4 - 1)
    with pytest.raises(UnsafeFile, match="'w'"):
        graph.load(path)


def test_a_hard_link_is_the_stores_own_only(tmp_path: Path) -> None:
    """What somebody may still write is no part of the store: a link to it may be an attack."""
    path = tmp_path / "m.onnx"
    graph.save(model({"w": random((64, 64))}), path, inline_limit=0)
    (tmp_path / "other").hardlink_to(tmp_path / "m.onnx.data")
    graph.load(path)
    (tmp_path / "other").chmod(0o644)
    with pytest.raises(UnsafeFile, match="hard link"):
        graph.load(path)


def test_a_link_put_in_after_the_look_is_not_followed(tmp_path: Path) -> None:
    graph.save(model({"w": random((64, 64))}), tmp_path / "m.onnx", inline_limit=0)
    value = graph.load(tmp_path / "m.onnx").graph.initializers["w"]
    (tmp_path / "m.onnx.data").rename(tmp_path / "secret")
    (tmp_path / "m.onnx.data").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError):
        value.const_value.numpy()


# computing


@settings(deadline=None, max_examples=40)
@given(data=st.data(), dtype=st.sampled_from(["float16", "int4", "uint4", "bfloat16", "int8"]),
       inline=st.booleans())  # fmt: skip
def test_computed_tensors_are_their_pieces(
    data: st.DataObject, dtype: str, inline: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Codes and scales from one pass, in pieces of any even number of rows."""
    size, columns = data.draw(st.integers(0, 40)) * 2, data.draw(st.integers(1, 30))
    step = data.draw(st.integers(1, 20)) * 2
    codes, scales = random((size, columns), dtype), random((size // 2, columns), "float16", 1)
    runs = []

    def compute() -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        runs.append(1)
        for at in range(0, size, step):
            yield codes[at : at + step], None
        yield codes[:0], scales

    forms = [
        graph.TensorForm("codes", DTYPES[dtype], codes.shape),
        graph.TensorForm("scales", ir.DataType.FLOAT16, scales.shape),
    ]
    tensors = graph.computed(forms, compute)
    path = tmp_path_factory.mktemp("computed") / "m.onnx"
    middle = random((33, 44))
    built = model({"codes": tensors[0], "between": middle, "scales": tensors[1]})
    graph.save(built, path, inline_limit=1 << 20 if inline else 0)
    assert len(runs) == 1
    wanted = {"codes": codes, "between": middle, "scales": scales}
    same(numbers(graph.load(path)), wanted)
    assert tensors[0].numpy().tobytes() == codes.tobytes()


def test_four_bits_may_come_packed(tmp_path: Path) -> None:
    codes = random((8, 6), "int4")
    packed = np.frombuffer(ir.Tensor(codes).tobytes(), np.uint8)
    form = graph.TensorForm("w", ir.DataType.INT4, (8, 6))
    (tensor,) = graph.computed([form], lambda: [(packed[:10],), (packed[10:],)])
    graph.save(model({"w": tensor}), tmp_path / "m.onnx", inline_limit=0)
    same(numbers(graph.load(tmp_path / "m.onnx")), {"w": codes})


@pytest.mark.parametrize(
    ("piece", "text"),
    [
        (np.zeros((3, 4), np.float32), "missing"),
        (np.zeros((5, 4), np.float32), "more than"),
        (np.zeros((4, 4), np.float64), "float64"),
    ],
)
def test_pieces_that_do_not_fit_are_reported(piece: np.ndarray, text: str, tmp_path: Path) -> None:
    (tensor,) = graph.computed(
        [graph.TensorForm("w", ir.DataType.FLOAT, (4, 4))], lambda: [(piece,)]
    )
    with pytest.raises(OptkitError, match=text) as caught:
        graph.save(model({"w": tensor}), tmp_path / "m.onnx", inline_limit=0)
    assert caught.value.where == "tensor 'w'"


def test_shape_inference_computes_no_weight() -> None:
    form = graph.TensorForm("w", ir.DataType.FLOAT, ())  # small, yet it may come with a large one
    (tensor,) = graph.computed([form], lambda: pytest.fail("computed"))
    graph.infer_shapes(model({"w": tensor}))


def test_spread_keeps_the_order_and_few_items() -> None:
    taken = []

    def items() -> Iterator[int]:
        for item in range(40):
            taken.append(item)
            yield item

    found = []
    for result in graph.spread(lambda item: item * item, items()):
        found.append(result)
        assert len(taken) - len(found) <= 5
    assert found == [item * item for item in range(40)]


# links


@pytest.mark.usefixtures("linking")
def test_untouched_weights_are_linked_and_new_ones_written(tmp_path: Path) -> None:
    given_ = {"a": random((300, 40)), "b": random((50, 20), seed=1), "c": random((400, 30), seed=2)}
    first, second, third = tmp_path / "1", tmp_path / "2", tmp_path / "3"
    for folder in (first, second, third):
        folder.mkdir()
    graph.save(model(given_), first / "m.onnx", inline_limit=0)
    loaded = graph.load(first / "m.onnx")
    changed = random((50, 20), seed=9)
    loaded.graph.initializers["b"].const_value = ir.Tensor(changed, name="b")
    graph.save(loaded, second / "m.onnx", inline_limit=0)
    assert (second / "m.onnx.0.data").samefile(first / "m.onnx.data")
    assert (second / "m.onnx.data").stat().st_size == changed.nbytes
    again = graph.load(second / "m.onnx")
    same(numbers(again), {**given_, "b": changed})
    graph.save(again, third / "m.onnx", inline_limit=0)
    assert (third / "m.onnx.0.data").samefile(first / "m.onnx.data")
    assert (third / "m.onnx.1.data").samefile(second / "m.onnx.data")
    same(numbers(graph.load(third / "m.onnx")), {**given_, "b": changed})
    graph.check(third / "m.onnx")
    assert {path.stat().st_mode & 0o777 for path in third.glob("*.data")} == {0o444}


@pytest.mark.usefixtures("linking")
def test_a_file_of_which_little_is_left_does_not_travel(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    given_ = {"large": random((300, 300)), "small": random((50, 20))}
    graph.save(model(given_), tmp_path / "m.onnx", inline_limit=0)
    loaded = graph.load(tmp_path / "m.onnx")
    loaded.graph.initializers["large"].const_value = ir.Tensor(random((300,), "int8"), name="large")
    graph.save(loaded, tmp_path / "new" / "m.onnx", inline_limit=0)
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "new").glob("*.data")}
    assert sizes == {"m.onnx.data": given_["small"].nbytes}


@pytest.mark.usefixtures("linking")
def test_what_somebody_may_write_is_copied(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    given_ = {"w": random((300, 300))}
    graph.save(model(given_), tmp_path / "m.onnx", inline_limit=0)
    (tmp_path / "m.onnx.data").chmod(0o644)
    graph.save(graph.load(tmp_path / "m.onnx"), tmp_path / "new" / "m.onnx", inline_limit=0)
    (tmp_path / "m.onnx.data").write_bytes(b"changed")
    same(numbers(graph.load(tmp_path / "new" / "m.onnx")), given_)


@pytest.mark.usefixtures("linking")
@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EMLINK])
def test_where_no_link_can_be_the_bytes_are_the_same(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph.save(model({"w": random((300, 300))}), tmp_path / "m.onnx", inline_limit=0)
    loaded = graph.load(tmp_path / "m.onnx")
    for name in ("linked", "copied"):
        (tmp_path / name).mkdir()
    graph.save(loaded, tmp_path / "linked" / "m.onnx", inline_limit=0)

    def refuse(*args: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    monkeypatch.setattr(os, "copy_file_range", refuse)
    graph.save(loaded, tmp_path / "copied" / "m.onnx", inline_limit=0)
    assert files(tmp_path / "linked") == files(tmp_path / "copied")
    copy = (tmp_path / "copied" / "m.onnx.0.data").stat()
    assert (copy.st_nlink, copy.st_mode & 0o777) == (1, 0o444)


def test_tensors_with_the_same_bytes_are_stored_once(tmp_path: Path) -> None:
    shared = ir.Tensor(random((100, 100)))
    graph.save(model({"a": shared, "b": shared}), tmp_path / "m.onnx", inline_limit=0)
    (tmp_path / "new").mkdir()
    graph.save(graph.load(tmp_path / "m.onnx"), tmp_path / "new" / "m.onnx", inline_limit=0)
    for folder in (tmp_path, tmp_path / "new"):
        assert sum(path.stat().st_size for path in folder.glob("*.data")) == shared.nbytes
        same(numbers(graph.load(folder / "m.onnx")), dict.fromkeys("ab", shared.numpy()))


@pytest.mark.usefixtures("linking")
def test_saving_over_what_was_loaded(tmp_path: Path) -> None:
    given_ = {"a": random((300, 300)), "b": random((400, 300), seed=1)}
    path = tmp_path / "m.onnx"
    graph.save(model(given_), path, inline_limit=0)
    for _ in range(3):
        loaded = graph.load(path)
        loaded.graph.initializers["b"].const_value = ir.Tensor(given_["b"], name="b")
        graph.save(loaded, path, inline_limit=0)
        same(numbers(graph.load(path)), given_)
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


@pytest.mark.usefixtures("linking")
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_any_mixture_comes_back_and_has_the_same_bytes(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Linked, moved, new, computed, tied and tiny tensors, over a chain of three graphs."""
    folder = tmp_path_factory.mktemp("mixture")
    wanted = {
        f"w{i}": random(
            (data.draw(st.integers(0, 60)), data.draw(st.integers(1, 60))),
            data.draw(st.sampled_from(sorted(DTYPES))), i,
        )
        for i in range(data.draw(st.integers(1, 6)))
    }  # fmt: skip
    current = model(wanted)
    for step in range(3):
        for name, value in current.graph.initializers.items():
            kind = data.draw(st.sampled_from(["keep", "keep", "keep", "new", "computed"]))
            if kind != "keep":
                wanted[name] = random(wanted[name].shape, str(wanted[name].dtype), 100 + step)
                value.const_value = fresh(name, wanted[name], kind == "computed")
        for name in ("a", "b"):
            (folder / f"{step}{name}").mkdir()
            graph.save(current, folder / f"{step}{name}" / "m.onnx", inline_limit=0)
        assert files(folder / f"{step}a") == files(folder / f"{step}b")
        current = graph.load(folder / f"{step}a" / "m.onnx")
        same(numbers(current), wanted)


def fresh(name: str, array: np.ndarray, lazy: bool) -> ir.TensorProtocol:
    if not lazy:
        return ir.Tensor(array, name=name)
    form = graph.TensorForm(name, ir.Tensor(array).dtype, array.shape)
    half = len(array) // 4 * 2
    return graph.computed([form], lambda: [(array[:half],), (array[half:],)])[0]


def test_constants_of_nodes_are_kept(tmp_path: Path) -> None:
    """A Constant whose number lies in a data file, before anything lifts it."""
    array = random((20, 20))
    (tmp_path / "w.bin").write_bytes(array.tobytes())
    tensor = ir.ExternalTensor("w.bin", 0, array.nbytes, ir.DataType.FLOAT,
                               shape=ir.Shape(array.shape), name="c")  # fmt: skip
    built = model({"w": array})
    node = ir.node("Constant", [], {"value": tensor}, name="constant")
    node.outputs[0].name = "c"
    built.graph.insert_before(built.graph[0], node)
    (tmp_path / "m.onnx").write_bytes(ir.to_proto(built).SerializeToString())
    (tmp_path / "new").mkdir()
    graph.save(graph.load(tmp_path / "m.onnx"), tmp_path / "new" / "m.onnx")
    kept = graph.load(tmp_path / "new" / "m.onnx").graph[0].attributes["value"].as_tensor()
    assert not isinstance(kept, MappedTensor) and kept.numpy().tobytes() == array.tobytes()


# numbers


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_one_bad_number_among_many_is_found(dtype: str, bad: float, tmp_path: Path) -> None:
    """In the last block of several. The largest finite numbers pass."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    array = np.full((9, 1 << 18), ml_dtypes.finfo(kind).max, kind)
    array[0, :2] = -array[0, 0], 0
    graph.save(model({"w": array, "v": random((3,))}), tmp_path / "m.onnx", inline_limit=0)
    graph.check_finite(graph.load(tmp_path / "m.onnx"))
    array[8, 7] = bad
    graph.save(model({"w": array}), tmp_path / "m.onnx", inline_limit=0)
    with pytest.raises(InputRefused, match=f"1 of {array.size} numbers") as caught:
        graph.check_finite(graph.load(tmp_path / "m.onnx"))
    assert caught.value.where == "tensor 'w'"


@pytest.mark.parametrize(
    ("reader", "numbers", "passes"),
    [
        ("Where (c, x, w)", [np.nan, 0, np.inf], True),
        ("Where (c, x, w)", [np.nan, 2, 3], True),
        ("Mul (x, w)", [np.nan, 2, 3], False),
        ("MatMul (x, w)", [np.nan, 0, 0], False),
        ("Mul (x, w)", [-np.inf, 0, 0], True),
    ],
)
def test_a_fill_may_be_nan(reader: str, numbers: list[float], passes: bool) -> None:
    built = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        g (bool[3] c, float[3] x) => (y) <float[3] w = {{0, 0, 0}}> {{ [here] y = {reader} }}"""
    )
    built.graph.initializers["w"].const_value = ir.tensor(np.array(numbers, np.float32))
    if passes:
        graph.check_finite(built)
        return
    with pytest.raises(InputRefused, match="used by here"):
        graph.check_finite(built)


# memory


def test_saving_holds_one_piece(tmp_path: Path) -> None:
    """96 MiB of weights in pieces of 1 MiB; numpy reports its arrays to tracemalloc."""

    def weight(index: int) -> ir.TensorProtocol:
        def compute() -> Iterator[tuple[np.ndarray]]:
            for row in range(8):
                yield (np.full((1, 512, 512), index + row, np.float32),)

        return graph.computed(
            [graph.TensorForm(f"w{index}", ir.DataType.FLOAT, (8, 512, 512))], compute
        )[0]

    built = model({f"w{index}": weight(index) for index in range(12)})
    tracemalloc.start()
    try:
        graph.save(built, tmp_path / "m.onnx", inline_limit=0)
        loaded = graph.load(tmp_path / "m.onnx")
        graph.check_finite(loaded)
        for value in loaded.graph.initializers.values():
            assert sum(float(block.sum()) for block in graph.rows(value, 1)) > 0
        (tmp_path / "new").mkdir()
        (tmp_path / "m.onnx.data").chmod(0o644)  # so that it is copied
        graph.save(loaded, tmp_path / "new" / "m.onnx", inline_limit=0)
        assert tracemalloc.get_traced_memory()[1] < 48 << 20
    finally:
        tracemalloc.stop()


# its own most: ru_maxrss of a child begins with what its parent held
SLOW = """
import re, sys
from pathlib import Path
import numpy as np
import onnx_ir as ir
from optkit.ground import graph

folder, count = Path(sys.argv[1]), int(sys.argv[2])
loaded = graph.load(folder / "m.onnx")
graph.check_finite(loaded)
for name, value in list(loaded.graph.initializers.items())[:count]:
    tensor = value.const_value
    def compute(tensor=tensor):
        yield from graph.spread(lambda b: ((b + b).astype(np.float16),), graph.rows(tensor, 256))
    form = graph.TensorForm(name, ir.DataType.FLOAT16, tensor.shape.numpy())
    value.const_value = graph.computed([form], compute)[0]
graph.save(loaded, folder / "new" / "m.onnx")
graph.check(folder / "new" / "m.onnx")
print(int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024)
"""


def _resident(name: str) -> int:
    """Resident memory of this process in bytes: "VmRSS", now, or "VmHWM", its peak."""
    found = re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.slow
@pytest.mark.parametrize("gigabytes", [1, 2])
def test_memory_is_flat_in_the_size_of_the_model(gigabytes: int, tmp_path: Path) -> None:
    """Checked, half rewritten and saved within 400 MiB, whatever it weighs."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before = _resident("VmRSS")
    count = gigabytes * 16  # of 64 MiB each
    rng = np.random.default_rng(0)
    block = rng.standard_normal((1024, 8192), np.float32).astype(np.float16)

    def weight(index: int) -> ir.TensorProtocol:
        form = graph.TensorForm(f"w{index}", ir.DataType.FLOAT16, (4096, 8192))
        return graph.computed([form], lambda: ((block,) for _ in range(4)))[0]

    graph.save(model({f"w{i}": weight(i) for i in range(count)}), tmp_path / "m.onnx")
    (tmp_path / "new").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", SLOW, str(tmp_path), str(count // 2)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert int(done.stdout) < 400 << 20
    loaded = graph.load(tmp_path / "new" / "m.onnx")
    assert (next(graph.rows(loaded.graph.initializers["w0"], 1024)) == block + block).all()
    assert (next(graph.rows(loaded.graph.initializers[f"w{count - 1}"], 1024)) == block).all()
    assert _resident("VmHWM") - before < 800 << 20
