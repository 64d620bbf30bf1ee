from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import resource
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper
from safetensors.numpy import load_file, save_file

from optkit.facts.errors import InputRefused, StorageError, UnsafeFile
from optkit.ground.intake import (
    FileLimits,
    check_onnx,
    files,
    stage_onnx,
    stage_pt2,
    stage_ranges,
    stage_weights,
    tree,
)
from optkit.ground.intake.fields import MESSAGES
from optkit.ground.intake.scan import Scan
from optkit.ground.store import Store
from tests.figures import Figures
from tests.hostile import containers, onnx_files

CANARY, EXTERNAL_DATA = onnx_files.CANARY, onnx_files.EXTERNAL_DATA
MORE_EXTERNAL_DATA, SIZES = onnx_files.MORE_EXTERNAL_DATA, onnx_files.SIZES
external_model, message, plain_model = (
    onnx_files.external_model, onnx_files.message, onnx_files.plain_model,
)  # fmt: skip
save, secret = onnx_files.save, onnx_files.secret
Build = Callable[[Path], Path]
ALL = {
    **EXTERNAL_DATA, **MORE_EXTERNAL_DATA, **SIZES, **onnx_files.GRAPHS, **onnx_files.NAMES,
}  # fmt: skip


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    return tmp_path / "store" / "objects"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "foreign" / "model"
    path.mkdir(parents=True)
    return path


def published(objects: Path) -> list[Path]:
    """Everything in the store, work in progress included."""
    return [p for p in objects.parent.rglob("*") if p.is_file() or p.is_symlink()]


def weights(model: ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


# --- ONNX: what is refused ---------------------------------------------------------------------


@pytest.mark.parametrize("build", ALL.values(), ids=ALL.keys())
def test_hostile_model_is_refused_and_leaves_nothing(
    build: Build, folder: Path, objects: Path
) -> None:
    path = build(folder)
    with pytest.raises(UnsafeFile) as caught:
        stage_onnx(path, objects)
    error = caught.value
    assert error.exit_code == 5
    assert error.where is not None
    assert error.where.startswith(str(path))
    told = f"{error.where} {error.message} {error.hint}"
    assert CANARY.decode() not in told
    assert told.isprintable()
    assert len(told) < 1000
    assert published(objects) == []


def test_the_node_of_a_circle_is_named(folder: Path, objects: Path) -> None:
    with pytest.raises(
        UnsafeFile, match=r"node 'n0': it reads 'b', which no earlier node computes"
    ):
        stage_onnx(onnx_files.GRAPHS["circle"](folder), objects)


def test_a_subgraph_reads_what_was_made_around_it(folder: Path, objects: Path) -> None:
    model = plain_model()
    branch = helper.make_graph(
        [helper.make_node("Relu", ["y"], ["a"])],
        "b",
        [],
        [helper.make_empty_tensor_value_info("a")],
    )
    node = helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch)
    model.graph.initializer.append(helper.make_tensor("c", TensorProto.BOOL, [], [True]))
    model.graph.node.append(node)
    assert stage_onnx(save(model, folder), objects).nodes == 4
    model.graph.node.reverse()
    with pytest.raises(UnsafeFile, match="reads 'y'"):
        stage_onnx(save(model, folder), objects)


@pytest.mark.parametrize("build", [EXTERNAL_DATA["hard_link"], MORE_EXTERNAL_DATA["function"]])
def test_the_tensor_is_named(build: Build, folder: Path, objects: Path) -> None:
    with pytest.raises(UnsafeFile, match=r"model\.onnx, tensor 'w': "):
        stage_onnx(build(folder), objects)


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        ({"nodes": 0}, "nodes"),
        ({"tensors": 0}, "tensors"),
        ({"fields": 10}, "fields"),
        ({"rank": 0}, "dimensions"),
        ({"proto_bytes": 50}, "limit is 50"),
    ],
)
def test_each_limit_holds(limit: dict[str, int], text: str, folder: Path, objects: Path) -> None:
    path = save(plain_model(), folder)
    with pytest.raises(UnsafeFile, match=text):
        stage_onnx(path, objects, limits=FileLimits(**limit))


def test_a_sparse_tensor_counts_as_the_dense_one_that_runtimes_make() -> None:
    data = memoryview(message(7, message(15, message(3, b"\x04\x05"))))
    Scan(data, FileLimits(proto_bytes=20))
    with pytest.raises(UnsafeFile, match="a sparse tensor has 20 elements, which is too many"):
        Scan(data, FileLimits(proto_bytes=19))


def test_a_function_that_several_functions_call_counts_each_time(
    folder: Path, objects: Path
) -> None:
    """Three nodes of the model, two of each function that it calls, and twice the shared one."""
    model, opsets = plain_model(), [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
    bodies = {
        "shared": [helper.make_node("Relu", ["a"], ["b"])],
        "left": [
            helper.make_node("shared", ["a"], ["c"], domain="local"),
            helper.make_node("Neg", ["c"], ["b"]),
        ],
        "right": [
            helper.make_node("shared", ["a"], ["c"], domain="local"),
            helper.make_node("Abs", ["c"], ["b"]),
        ],
    }
    for name, nodes in bodies.items():
        model.functions.append(helper.make_function("local", name, ["a"], ["b"], nodes, opsets))
    for name in ("left", "right"):
        model.graph.node.append(helper.make_node(name, ["y"], [name], domain="local"))
    path, expanded = save(model, folder), 3 + 2 * (2 + 1)
    assert stage_onnx(path, objects, limits=FileLimits(expanded_nodes=expanded)).nodes == 8
    with pytest.raises(UnsafeFile, match=f"more than {expanded - 1} nodes after inlining"):
        stage_onnx(path, objects, limits=FileLimits(expanded_nodes=expanded - 1))


def test_the_type_in_an_attribute_is_checked_too(folder: Path, objects: Path) -> None:
    model, kind = plain_model(), onnx.TypeProto()
    inner = kind
    for _ in range(FileLimits().nesting):
        inner = inner.sequence_type.elem_type
    inner.sequence_type.SetInParent()  # of unknown elements
    model.graph.node.append(helper.make_node("Optional", [], ["none"], type=kind))
    assert stage_onnx(save(model, folder), objects).nodes == 2
    inner.sequence_type.elem_type.SetInParent()
    model.graph.node[-1].attribute[0].tp.CopyFrom(kind)
    with pytest.raises(UnsafeFile, match="types are nested deeper than 32"):
        stage_onnx(save(model, folder), objects)


def test_functions_count_even_without_nodes() -> None:
    names = (b"\xca\x01\x03\x0a\x01" + bytes([letter]) for letter in b"FGH")  # field 25
    data = memoryview(message(7, b"") + b"".join(names))
    assert Scan(data, FileLimits(nodes=3)).nodes == 0
    with pytest.raises(UnsafeFile, match="more than 2 functions"):
        Scan(data, FileLimits(nodes=2))


def test_the_data_files_together_count_against_the_limit(folder: Path, objects: Path) -> None:
    path = external_model(folder, "w.bin")
    model = ModelProto.FromString(path.read_bytes())
    other = model.graph.initializer.add()
    other.CopyFrom(model.graph.initializer[0])
    other.name, other.external_data[0].value = "v", "v.bin"
    for name in ("v.bin", "w.bin"):
        (folder / name).write_bytes(bytes(16))
    save(model, folder)
    stage_onnx(path, objects, limits=FileLimits(data_bytes=32))
    with pytest.raises(UnsafeFile, match="limit is 15"):
        stage_onnx(path, objects, limits=FileLimits(data_bytes=31))


def test_a_pointer_of_git_is_no_model(folder: Path, objects: Path) -> None:
    path = folder / "net.onnx"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(UnsafeFile, match=r"net\.onnx: it is a pointer of Git LFS") as caught:
        stage_onnx(path, objects)
    assert "git lfs pull" in str(caught.value.hint)
    assert published(objects) == []


@pytest.mark.parametrize("sound", [True, False])
def test_a_model_is_checked_where_it_lies(sound: bool, folder: Path) -> None:
    path = external_model(folder, "w.bin")
    (folder / "w.bin").write_bytes(bytes(16 if sound else 15))
    told = contextlib.nullcontext() if sound else pytest.raises(UnsafeFile, match="which has 15")
    with told:
        check_onnx(path)
    with pytest.raises(InputRefused, match="no such file"):
        check_onnx(folder / "absent.onnx")


def test_the_trip_count_is_read_where_it_lies(folder: Path) -> None:
    with pytest.raises(UnsafeFile, match="the Loop runs up to 4611686018427387904 times"):
        check_onnx(SIZES["loop_external"](folder))


def test_missing_model_is_refused(tmp_path: Path, objects: Path) -> None:
    with pytest.raises(InputRefused, match="no such file"):
        stage_onnx(tmp_path / "none.onnx", objects)


def test_every_way_to_a_tensor_graph_or_shape_is_walked() -> None:
    """A message type of onnx.proto that can lead to one of them must stand in MESSAGES."""
    targets = {"TensorProto", "GraphProto", "TypeProto", "TensorShapeProto"}
    aliases = {"Sequence": "TypeProto.Sequence", "Optional": "TypeProto.Sequence",
               "Map": "TypeProto.Map", "Tensor": "TypeProto.Tensor",
               "SparseTensor": "TypeProto.Tensor"}  # fmt: skip

    def reaches(descriptor: Any, seen: frozenset[str] = frozenset()) -> bool:
        if descriptor.name in targets:
            return True
        return any(
            field.message_type is not None
            and field.message_type.name not in seen
            and reaches(field.message_type, seen | {descriptor.name})
            for field in descriptor.fields
        )

    todo, done = [ModelProto.DESCRIPTOR], set()
    while todo:
        descriptor = todo.pop()
        if descriptor.name in done:
            continue
        done.add(descriptor.name)
        known = MESSAGES[aliases.get(descriptor.name, descriptor.name)]
        for field in descriptor.fields:
            inner = field.message_type
            if inner is not None and (reaches(inner) or descriptor.name == "TensorProto"):
                skipped = (descriptor.name, field.name) == ("TensorProto", "metadata_props")
                assert field.number in known or skipped, f"{descriptor.name}.{field.name}"
            if inner is not None and reaches(inner) and inner.name != "TensorShapeProto":
                todo.append(inner)
            if field.number in known:
                assert known[field.number].many == field.is_repeated, field.full_name
    assert {"FunctionProto", "TrainingInfoProto", "SparseTensorProto", "Optional"} <= done


# --- ONNX: no bytes may break the walker, nor be read in two ways -------------------------------


def seeds() -> list[bytes]:
    """Small models that together use every part of the walker."""
    names = ["function", "subgraph", "sparse", "attribute", "loop", "loop_value_int"]
    builds = [ALL[name] for name in (*names, "function_bomb", "nested_types")]
    found = [plain_model().SerializeToString()]
    for build in builds:
        with tempfile.TemporaryDirectory() as place:
            inner = Path(place) / "m"
            inner.mkdir()
            found.append(build(inner).read_bytes())
    return found


SEEDS = seeds()


def tensors_of(part: Any) -> Iterator[TensorProto]:
    """Every TensorProto in a parsed message, by reflection (independent of optkit's tables)."""
    if isinstance(part, TensorProto):
        yield part
        return
    for field, value in part.ListFields():
        if field.message_type is not None:
            for item in value if field.is_repeated else [value]:
                yield from tensors_of(item)


def scan_or_none(data: bytes) -> Scan | None:
    try:
        return Scan(memoryview(data), FileLimits())
    except UnsafeFile:
        return None


def check_agrees_with_protobuf(data: bytes) -> None:
    """Nothing but UnsafeFile; and an accepted file refers to just what protobuf's reader sees."""
    scan = scan_or_none(data)
    if scan is None:
        return
    try:
        parsed = list(tensors_of(ModelProto.FromString(data)))
    except Exception:
        return  # stricter than we are: graph.py refuses it
    assert scan.tensors == len(parsed)
    seen = [e.value for t in parsed for e in t.external_data if e.key == "location"]
    assert sorted(reference.location for reference in scan.external) == sorted(seen)


def with_tensor(data: bytes) -> bytes:
    return message(7, message(5, data))


FOUR_FLOATS = b"\x08\x04\x10\x01"  # dims: [4], data_type: FLOAT


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (message(7, b"") + message(7, b""), "field 7 occurs twice"),
        (with_tensor(FOUR_FLOATS + b"\x10\x01" + message(4, bytes(16))), "field 2 occurs twice"),
        (b"\x38\x01", "field 7 has the wrong wire type 0"),
        (with_tensor(b"\x0d\0\0\0\0"), "field 1 has the wrong wire type 5"),
        (b"\x02\x00", "not a protobuf message"),  # field number 0
        (b"\x82\x80\x80\x80\x10\x00", "not a protobuf message"),  # field number 2^29
        (b"\x08" + b"\xff" * 9 + b"\x02", "not a protobuf message"),  # 65 bits
        (b"\x0e\x00", "not a protobuf message"),  # wire type 6
        (b"\x3a\x05\x0a", "not a protobuf message"),  # length beyond the end
        (with_tensor(FOUR_FLOATS + message(4, bytes(17))), "ends inside an element"),
        (with_tensor(FOUR_FLOATS + message(4, bytes(16)) + b"\x70\x02"), "disagree"),
        (with_tensor(FOUR_FLOATS + message(4, bytes(16)) + b"\x70\x01"), "disagree"),
        (with_tensor(message(1, b"\xff" * 9 + b"\x01") + b"\x10\x01"), "negative dimension"),
        (with_tensor(message(1, b"\x01" * 33) + b"\x10\x01"), "more than 32 dimensions"),
        (with_tensor(FOUR_FLOATS + message(13, b"") * 5), "too many external_data entries"),
        (with_tensor(b"\x08\x04\x10\x81\x80\x80\x80\x10"), "element type 4294967297"),
        (
            with_tensor(
                FOUR_FLOATS
                + message(13, message(1, b"location") + message(2, b"\xff"))
                + b"\x70\x01"
            ),
            "external_data is not UTF-8",
        ),
    ],
)
def test_what_parsers_might_read_in_two_ways(data: bytes, text: str) -> None:
    packed = message(1, b"\x04") + b"\x10\x01"  # the same as FOUR_FLOATS
    for start in (FOUR_FLOATS, packed):
        sound = with_tensor(start + message(4, bytes(16)))
        assert Scan(memoryview(sound), FileLimits()).tensors == 1
    with pytest.raises(UnsafeFile, match=text):
        Scan(memoryview(data), FileLimits())


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_break_the_walker(data: bytes) -> None:
    check_agrees_with_protobuf(data)
    check_agrees_with_protobuf(message(7, data))


@pytest.mark.slow
@settings(deadline=None, max_examples=1500, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_mutated_models_never_break_the_walker(draw: st.DataObject) -> None:
    data = bytearray(draw.draw(st.sampled_from(SEEDS)))
    for _ in range(draw.draw(st.integers(1, 3))):
        at = draw.draw(st.integers(0, len(data) - 1))
        change = draw.draw(st.sampled_from(["set", "insert", "delete", "repeat", "cut"]))
        if change == "set":
            data[at] = draw.draw(st.integers(0, 255))
        elif change == "insert":
            data[at:at] = draw.draw(st.binary(min_size=1, max_size=4))
        elif change == "delete":
            del data[at : at + draw.draw(st.integers(1, 8))]
        elif change == "repeat":
            data[at:at] = data[at : at + draw.draw(st.integers(1, 64))]
        else:
            del data[at:]
        if not data:
            break
    check_agrees_with_protobuf(bytes(data))


@pytest.mark.slow
def test_a_million_mutations(figures: Figures) -> None:
    """Three in four are bytes set at random; the others are what hurts parsers most."""
    random = np.random.default_rng(0)
    times, refused = figures.times(30_000, 1_000_000), 0
    for number in range(times):
        data = bytearray(SEEDS[number % len(SEEDS)])
        for at in random.integers(len(data), size=random.integers(1, 4)).tolist():
            if number % 4:
                data[at] = int(random.integers(256))
            else:
                data[at : at + int(random.integers(3))] = EXTREMES[at % len(EXTREMES)]
        refused += scan_or_none(bytes(data)) is None
    assert times // 4 < refused < times
    figures.tell(
        "random bytes in ONNX files", times,
        f"1 to 3 changes of {len(SEEDS)} models that use every part of the reader: read, or "
        "refused with an error of the file; in the command's own process",
        refused=refused,
    )  # fmt: skip


EXTREMES = (b"", b"\xff" * 9, b"\x80" * 10, b"\xff\xff\xff\xff\x0f", b"\x0a\x00" * 40, b"\x00")


DATA_TYPES = [
    value for name, value in TensorProto.DataType.items() if name not in ("UNDEFINED", "STRING")
]


@settings(deadline=None)
@given(
    data_type=st.sampled_from(DATA_TYPES),
    shape=st.lists(st.integers(0, 5), max_size=3),
    raw=st.booleans(),
)
def test_every_data_type_is_accepted_in_both_forms(
    data_type: int, shape: list[int], raw: bool
) -> None:
    """Tensors written by onnx's own helper, from every type's own numpy array."""
    dtype = helper.tensor_dtype_to_np_dtype(data_type)
    array = np.zeros(shape, dtype)
    tensor = numpy_helper.from_array(array, "t")
    if not raw and data_type not in (TensorProto.FLOAT6E2M3, TensorProto.FLOAT6E3M2):
        values = array.flatten()
        tensor = helper.make_tensor("t", data_type, shape, values)
    assert tensor.HasField("raw_data") or not raw
    model = plain_model()
    model.graph.initializer.append(tensor)
    assert Scan(memoryview(model.SerializeToString()), FileLimits()).tensors == 2
    if array.size:
        tensor.dims.append(5)
        del model.graph.initializer[-1]
        model.graph.initializer.append(tensor)
        assert scan_or_none(model.SerializeToString()) is None


def test_strings_stand_in_their_own_field() -> None:
    model = plain_model()
    model.graph.initializer.append(helper.make_tensor("t", TensorProto.STRING, [2], ["a", "b"]))
    assert Scan(memoryview(model.SerializeToString()), FileLimits()).tensors == 2
    model.graph.initializer[1].string_data.append(b"c")
    assert scan_or_none(model.SerializeToString()) is None


def test_an_empty_list_of_integers_has_no_value() -> None:
    """Its packed form has no bytes, and no number for the loop that counts by it."""
    tensor = message(1, b"\0") + b"\x10\x07" + message(7, b"") + message(8, b"n")
    node = message(1, b"n") + message(4, b"Loop")
    assert Scan(memoryview(message(7, message(5, tensor) + message(1, node))), FileLimits()).nodes
    check_agrees_with_protobuf(with_tensor(tensor))
    one = tensor.replace(message(1, b"\0"), message(1, b"\1"))
    with pytest.raises(UnsafeFile, match="tensor 'n': its data does not have 1 elements"):
        Scan(memoryview(with_tensor(one)), FileLimits())


# --- ONNX: what is accepted ---------------------------------------------------------------------


def test_inline_model_is_copied_unchanged(folder: Path, objects: Path) -> None:
    path = save(plain_model(), folder)
    staged = stage_onnx(path, objects)
    assert staged.path.read_bytes() == path.read_bytes()
    assert staged.path.parent.parent.parent == objects
    assert (staged.nodes, staged.tensors, list(staged.files)) == (1, 1, ["model.onnx"])
    assert staged.size == path.stat().st_size
    assert stat.S_IMODE(staged.path.stat().st_mode) == 0o444


def test_what_a_training_would_set_first_is_no_graph(folder: Path, objects: Path) -> None:
    model = plain_model()
    model.training_info.add().initialization_binding.add(key="w", value="x")
    staged = stage_onnx(save(model, folder), objects)
    assert (staged.nodes, staged.tensors) == (1, 1)


def two_external_tensors(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    model = plain_model()
    values = {"w": np.arange(4, dtype=np.float32), "v": np.arange(3, dtype=np.int64)}
    model.graph.initializer.append(numpy_helper.from_array(values["v"], "v"))
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(values["w"], "w"))
    (folder / "data").mkdir()
    onnx.save_model(
        model, folder / "m.onnx", save_as_external_data=True, location="weights.bin",
        size_threshold=0,
    )  # fmt: skip
    return folder / "m.onnx", values


def test_external_data_comes_along(folder: Path, objects: Path) -> None:
    path, values = two_external_tensors(folder)
    staged = stage_onnx(path, objects)
    assert sorted(staged.files) == ["model.onnx", "weights.bin"]
    found = weights(onnx.load(staged.path))
    assert all(np.array_equal(found[name], value) for name, value in values.items())
    onnx.checker.check_model(staged.path)


def test_external_data_in_a_subfolder(folder: Path, objects: Path) -> None:
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "w é.bin").write_bytes(struct.pack("<4f", 1, 2, 3, 4) + CANARY)
    staged = stage_onnx(external_model(folder, "deep/er/w é.bin"), objects)
    assert weights(onnx.load(staged.path))["w"].tolist() == [1, 2, 3, 4]


def test_the_digest_depends_on_content_only(tmp_path: Path, objects: Path) -> None:
    digests = []
    for name, last in (("a", 4.0), ("b", 4.0), ("c", 5.0)):
        place = tmp_path / name
        place.mkdir()
        (place / "w.bin").write_bytes(struct.pack("<4f", 1, 2, 3, last))
        path = external_model(place, "w.bin")
        digests.append(stage_onnx(path.rename(place / f"{name}.onnx"), objects).sha256)
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("damage", ["flip", "remove", "add", "link", "pipe"])
def test_a_damaged_copy_is_replaced(damage: str, folder: Path, objects: Path) -> None:
    path, values = two_external_tensors(folder)
    data = stage_onnx(path, objects).path.with_name("weights.bin")
    before = data.read_bytes()
    if damage == "flip":
        data.chmod(0o644)
        data.write_bytes(bytes([before[0] ^ 1]) + before[1:])
    elif damage == "remove":
        data.unlink()
    elif damage == "add":
        data.with_name("other").touch()
    elif damage == "pipe":
        data.unlink()
        os.mkfifo(data)
    else:
        data.rename(folder / "elsewhere")
        data.symlink_to(folder / "elsewhere")
    staged = stage_onnx(path, objects)
    assert weights(onnx.load(staged.path))["v"].tolist() == values["v"].tolist()
    assert sorted(p.name for p in staged.path.parent.iterdir()) == [
        "entry.json", "model.onnx", "weights.bin",
    ]  # fmt: skip
    assert data.read_bytes() == before


def test_what_a_loop_and_functions_may_do(folder: Path, objects: Path) -> None:
    path = SIZES["loop"](folder)
    model = ModelProto.FromString(path.read_bytes())
    model.graph.initializer[1].int64_data[:] = [1_000_000]
    opsets = [helper.make_opsetid("", 21)]
    relu = helper.make_node("Relu", ["a"], ["b"])
    model.functions.append(helper.make_function("local", "F", ["a"], ["b"], [relu], opsets))
    model.graph.node.extend(
        helper.make_node("F", ["y"], [f"z{i}"], domain="local") for i in range(9)
    )
    # 1 Add, 1 Loop with 1 node in its body, 9 calls of a function with 1 node
    assert (
        stage_onnx(save(model, folder), objects, limits=FileLimits(expanded_nodes=21)).nodes == 13
    )
    with pytest.raises(UnsafeFile, match="more than 20 nodes after inlining"):
        stage_onnx(path, objects, limits=FileLimits(expanded_nodes=20))


@pytest.mark.parametrize("count", [-1, 0, 1_000_000])
@pytest.mark.parametrize("by", ["initializer", "raw", "constant", "value_int"])
def test_loops_within_the_limit(count: int, by: str, folder: Path, objects: Path) -> None:
    model = plain_model()
    onnx_files.loop(count, by=by)(model)
    stage_onnx(save(model, folder), objects)
    model = plain_model()
    onnx_files.loop(1_000_001, by=by)(model)
    with pytest.raises(UnsafeFile, match="1000001 times"):
        stage_onnx(save(model, folder), objects)


# --- Hugging Face's cache keeps files as links into blobs/ --------------------------------------


def hub(tmp_path: Path, target: str) -> Path:
    """A cache folder whose external data is a link with that target. Returns the model's path."""
    snapshot = tmp_path / "models--org--net" / "snapshots" / "c0ffee" / "onnx"
    snapshot.mkdir(parents=True)
    blobs = tmp_path / "models--org--net" / "blobs"
    blobs.mkdir()
    for name in ("b" * 64, "bbbb", "B" * 64):
        (blobs / name).write_bytes(struct.pack("<4f", 1, 2, 3, 4))
    path = external_model(snapshot, "w.bin")
    path.rename(blobs / ("a" * 64))
    path.symlink_to(f"../../../blobs/{'a' * 64}")
    (snapshot / "w.bin").symlink_to(target)
    secret(snapshot)
    return path


def test_hub_links_into_blobs_are_followed(tmp_path: Path, objects: Path) -> None:
    staged = stage_onnx(hub(tmp_path, f"../../../blobs/{'b' * 64}"), objects)
    assert weights(onnx.load(staged.path))["w"].tolist() == [1, 2, 3, 4]
    assert not any(p.is_symlink() for p in published(objects))


@pytest.mark.parametrize(
    "target",
    [
        "../secret.bin",
        "../../../blobs/../snapshots/secret.bin",
        "../../blobs/" + "b" * 64,
        "../../../../blobs/" + "b" * 64,
        "../../../blobs/" + "g" * 64,
        "../../../blobs/" + "c" * 64,
        "../../../blobs/bbbb",
        "../../../blobs/" + "B" * 64,
        "/etc/passwd",
    ],
)
def test_other_hub_links_are_refused(target: str, tmp_path: Path, objects: Path) -> None:
    with pytest.raises(UnsafeFile):
        stage_onnx(hub(tmp_path, target), objects)


def test_a_hub_blob_that_is_a_link_is_refused(tmp_path: Path, objects: Path) -> None:
    path = hub(tmp_path, f"../../../blobs/{'c' * 64}")
    (tmp_path / "models--org--net" / "blobs" / ("c" * 64)).symlink_to("/etc/passwd")
    with pytest.raises(UnsafeFile, match="link"):
        stage_onnx(path, objects)


# --- single files: weights, and archives, which are copied by the same code ---------------------


def safetensors(data: bytes) -> bytes:
    """A sound file with these bytes as its only tensor."""
    tensor = {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}
    return containers.safetensors({"x": tensor}, data)


@given(data=st.binary(max_size=5000))
@settings(
    deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_file_is_stored_under_its_digest(data: bytes, tmp_path: Path, objects: Path) -> None:
    path, written = tmp_path / "f", safetensors(data)
    path.write_bytes(written)
    staged = stage_weights(path, objects)
    assert staged.path == objects / staged.sha256[:2] / staged.sha256
    assert staged.sha256 == hashlib.sha256(written).hexdigest()
    assert staged.path.read_bytes() == written
    assert staged.size == len(written)
    assert staged.path.stat().st_nlink == 1
    assert stat.S_IMODE(staged.path.stat().st_mode) == 0o444


def test_a_damaged_object_is_replaced(tmp_path: Path, objects: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(safetensors(b"sound"))
    first = stage_weights(path, objects)
    first.path.chmod(0o644)
    first.path.write_bytes(b"rotten")
    assert stage_weights(path, objects).path.read_bytes() == path.read_bytes()


def test_the_users_own_link_is_followed(tmp_path: Path, objects: Path) -> None:
    (tmp_path / "real").write_bytes(safetensors(b"mine"))
    (tmp_path / "link").symlink_to("real")
    staged = stage_weights(tmp_path / "link", objects)
    assert staged.path.read_bytes() == safetensors(b"mine")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("folder", "not a regular file"),
        ("fifo", "not a regular file"),
        ("device", "not a regular file"),
        ("circle", "cannot be opened"),
        ("missing", "no such file"),
        ("nul", "cannot be opened"),
        ("long", "cannot be opened: File name too long"),
    ],
)
def test_what_is_no_file_is_refused(kind: str, text: str, tmp_path: Path, objects: Path) -> None:
    path = tmp_path / "f"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "circle":
        path.symlink_to(path)
    elif kind == "nul":
        path = Path("a\0b")
    elif kind == "long":
        path = tmp_path / ("f" * 256)
    with pytest.raises(InputRefused, match=text):
        stage_weights(path, objects)
    assert published(objects) == []


def test_a_file_over_the_limit_is_refused(tmp_path: Path, objects: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(safetensors(bytes(11)))
    size = path.stat().st_size
    assert stage_weights(path, objects, limits=FileLimits(data_bytes=size)).size == size
    with pytest.raises(UnsafeFile, match=f"limit is {size - 1}"):
        stage_weights(path, objects, limits=FileLimits(data_bytes=size - 1))


def test_a_file_larger_than_the_disk_is_a_storage_error(tmp_path: Path, objects: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 43)
    with pytest.raises(StorageError, match="free"):
        stage_weights(path, objects, limits=FileLimits(data_bytes=1 << 44))
    assert published(objects) == []


def test_an_unwritable_store_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(safetensors(b"x"))
    (tmp_path / "store").write_bytes(b"a file where a folder is needed")
    with pytest.raises(StorageError):
        stage_weights(tmp_path / "f", tmp_path / "store" / "objects")


def test_a_file_in_the_place_of_the_copy_is_a_storage_error(
    tmp_path: Path, folder: Path, objects: Path
) -> None:
    model = save(plain_model(), folder)
    sha256 = stage_onnx(model, tmp_path / "first/objects").sha256
    objects.mkdir(parents=True)
    (objects / sha256[:2]).touch()
    with pytest.raises(StorageError, match=f"/{sha256[:2]}: it is a file, not a folder"):
        stage_onnx(model, objects)
    assert published(objects) == [objects / sha256[:2]]
    (objects / sha256[:2]).unlink()
    assert stage_onnx(model, objects).sha256 == sha256


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, objects: Path) -> None:
    (tmp_path / "f").write_bytes(safetensors(bytes(3 << 20)))
    code = (
        "import sys; from pathlib import Path; from optkit.errors import StorageError\n"
        "from optkit.ground.intake import stage_weights\n"
        "try: stage_weights(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "except StorageError: sys.exit(8)\n"
    )

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "f"), str(objects)],
        preexec_fn=small_files, check=False,
    )  # fmt: skip
    assert done.returncode == 8
    assert published(objects) == []
    assert stage_weights(tmp_path / "f", objects).size == (tmp_path / "f").stat().st_size


def cloned(out: int, request: int, source: int) -> int:
    """`FICLONE` as on Btrfs and XFS: the copy has the bytes of this moment."""
    assert request == files._FICLONE
    return os.pwrite(out, os.pread(source, os.fstat(source).st_size, 0), 0)


def test_a_disk_that_shares_blocks_copies_no_bytes(
    tmp_path: Path, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, data = tmp_path / "f", safetensors(b"shared")
    path.write_bytes(data)
    monkeypatch.setattr(fcntl, "ioctl", cloned)
    monkeypatch.setattr(os, "readv", lambda *args: pytest.fail("it was read to be copied"))
    staged = stage_weights(path, objects)
    assert staged.path.read_bytes() == data and staged.size == len(data)
    assert staged.sha256 == hashlib.sha256(data).hexdigest()
    assert stat.S_IMODE(staged.path.stat().st_mode) == 0o444


def test_a_file_that_grows_before_its_blocks_are_shared_is_refused(
    tmp_path: Path, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(10))

    def grown(out: int, request: int, source: int) -> int:
        path.write_bytes(bytes(11))
        return cloned(out, request, source)

    monkeypatch.setattr(fcntl, "ioctl", grown)
    with pytest.raises(UnsafeFile, match="11 bytes or more; the limit is 10"):
        stage_weights(path, objects, limits=FileLimits(data_bytes=10))
    assert published(objects) == []


def test_a_large_source_does_not_displace_its_copy_in_memory(
    tmp_path: Path, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system is told to forget the pages of the source that were read, after the first ones."""
    for name, size in (("_CHUNK", 4096), ("_AHEAD", 8192), ("_PAGES_KEPT", 32768)):
        monkeypatch.setattr(files, name, size)
    path, real, forgotten = tmp_path / "f", os.posix_fadvise, set()
    path.write_bytes(safetensors(bytes(range(256)) * 300))
    size = path.stat().st_size

    def advised(source: int, start: int, length: int, advice: int) -> None:
        assert start >= 0
        if advice == os.POSIX_FADV_DONTNEED:
            assert os.fstat(source).st_ino == path.stat().st_ino
            forgotten.update(range(start, start + length))
        real(source, start, length, advice)

    monkeypatch.setattr(os, "posix_fadvise", advised)
    assert stage_weights(path, objects).path.read_bytes() == path.read_bytes()
    assert forgotten >= set(range(32768, size)) and not forgotten & set(range(16384))


# --- weights and archives -----------------------------------------------------------------------


def test_sound_safetensors_are_staged(tmp_path: Path, objects: Path) -> None:
    path = tmp_path / "w.safetensors"
    arrays = {
        "a": np.arange(6, dtype=np.float16).reshape(2, 3),
        "empty": np.zeros((0, 3), np.float32),
        "b": np.arange(5, dtype=np.int64),
        "scalar": np.array(True),
    }
    save_file(arrays, path, metadata={"format": "pt"})
    staged = stage_weights(path, objects)
    found = load_file(staged.path)
    assert all(np.array_equal(found[name], array) for name, array in arrays.items())


@pytest.mark.parametrize("data", containers.SAFETENSORS.values(), ids=containers.SAFETENSORS)
def test_hostile_safetensors_are_refused(data: bytes, tmp_path: Path, objects: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(data)
    with pytest.raises(UnsafeFile) as caught:
        stage_weights(path, objects)
    assert str(caught.value).startswith(str(path))
    assert published(objects) == []


@settings(deadline=None)
@given(st.data())
def test_mutated_safetensors_are_refused_or_load(draw: st.DataObject) -> None:
    data = bytearray(
        containers.safetensors(
            {
                "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                "b": {"dtype": "I64", "shape": [1, 1], "data_offsets": [8, 16]},
            }
        )
    )
    for _ in range(draw.draw(st.integers(1, 3))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "w.safetensors"
        path.write_bytes(data)
        try:
            staged = stage_weights(path, Path(place) / "objects")
        except UnsafeFile:
            return
        assert len(load_file(staged.path)) == 2


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".pkl", ".npz", ".npy", ".bin", ".PT"])
def test_pickles_are_turned_away_unread(suffix: str, tmp_path: Path, objects: Path) -> None:
    path = tmp_path / f"weights{suffix}"
    os.mkfifo(path)  # would hang a reader
    with pytest.raises(UnsafeFile, match="pickles are refused") as caught:
        stage_weights(path, objects)
    assert "safetensors" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("limit", "text"), [({"header_bytes": 20}, "truncated"), ({"header_items": 3}, "too large")]
)
def test_each_limit_of_a_header_holds(
    limit: dict[str, int], text: str, tmp_path: Path, objects: Path
) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(safetensors(b"sound"))
    stage_weights(path, objects)
    with pytest.raises(UnsafeFile, match=text):
        stage_weights(path, objects, limits=FileLimits(**limit))


@pytest.mark.parametrize(
    ("limit", "text"),
    [({"members": 1}, "2 members"), ({"ratio": 9}, "unpack"), ({"data_bytes": 1000}, "unpack")],
)
def test_each_limit_of_an_archive_holds(
    limit: dict[str, int], text: str, tmp_path: Path, objects: Path
) -> None:
    path = tmp_path / "m.pt2"
    path.write_bytes(containers.zip_file(("a", bytes(5000)), ("b", b""), packed=True))
    stage_pt2(path, objects)
    with pytest.raises(UnsafeFile, match=text):
        stage_pt2(path, objects, limits=FileLimits(**limit))


def test_ranges_of_many_gigabytes_are_refused(tmp_path: Path, objects: Path) -> None:
    path = tmp_path / "ranges.txt"
    path.touch()
    os.truncate(path, 3 << 30)
    with pytest.raises(UnsafeFile, match="the limit is"):
        stage_ranges(path, objects)


def test_sound_archives_are_staged(tmp_path: Path, objects: Path) -> None:
    path = tmp_path / "m.pt2"
    path.write_bytes(containers.zip_file(("m/model.json", b"{}"), ("m/data/w", bytes(64))))
    assert stage_pt2(path, objects).path.read_bytes() == path.read_bytes()


def test_hostile_archives_are_refused(tmp_path: Path, objects: Path, figures: Figures) -> None:
    path = tmp_path / "m.pt2"
    for kind, data in containers.ZIPS.items():
        path.write_bytes(data)
        with pytest.raises(UnsafeFile):
            stage_pt2(path, objects)
            pytest.fail(kind)
        assert published(objects) == []
    figures.tell(
        "hostile zip files (.pt2)", len(containers.ZIPS),
        "paths out of it, links, devices, pipes, bombs, bombs in a bomb, a million members, "
        "overlapping and encrypted ones; optkit unpacks none and opens no tar",
    )  # fmt: skip


@settings(deadline=None)
@given(st.data())
def test_mutated_archives_never_break_the_reader(draw: st.DataObject) -> None:
    data = bytearray(containers.zip_file(("a/b", b"12345"), ("c", bytes(40)), packed=True))
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(UnsafeFile):
        (Path(folder) / "m.pt2").write_bytes(data)
        stage_pt2(Path(folder) / "m.pt2", Path(folder) / "objects")


# --- large data files ---------------------------------------------------------------------------


@pytest.fixture
def large(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model whose data file counts as large, in this process that has hashed no other."""
    monkeypatch.setattr("optkit.ground.intake.deduplication._LEAST_BYTES", 1)
    monkeypatch.setattr("optkit.ground.store.digests._digests", {})
    (folder / "w.bin").write_bytes(struct.pack("<4f", 1, 2, 3, 4))
    return external_model(folder, "w.bin")


def test_what_the_store_holds_is_not_copied_again(large: Path, objects: Path) -> None:
    first = stage_onnx(large, objects)
    inode = (first.path.parent / "w.bin").stat().st_ino
    assert stage_onnx(large, objects) == first
    other = large.with_name("other.onnx")
    other.write_bytes(large.read_bytes() + b"\x12\x00")  # another producer, the same weights
    second = stage_onnx(other, objects)
    assert second.sha256 != first.sha256
    copy = second.path.parent / "w.bin"
    assert copy.stat().st_ino == inode and copy.stat().st_mode & 0o777 == 0o444
    (large.parent / "w.bin").write_bytes(bytes(16))  # the user's file is another one
    assert copy.read_bytes() == struct.pack("<4f", 1, 2, 3, 4)


def test_the_same_time_does_not_hide_other_bytes(large: Path, objects: Path) -> None:
    data = large.parent / "w.bin"
    before = data.stat()
    first = stage_onnx(large, objects)
    with data.open("r+b") as file:
        file.write(b"y")
    os.utime(data, ns=(before.st_atime_ns, before.st_mtime_ns))
    second = stage_onnx(large, objects)
    assert second.sha256 != first.sha256
    assert (second.path.parent / "w.bin").read_bytes() == data.read_bytes()


@pytest.mark.parametrize("how", ["gone", "changed", "link", "cut"])
def test_a_stored_copy_that_is_no_longer_one(how: str, large: Path, objects: Path) -> None:
    stored = stage_onnx(large, objects).path.parent / "w.bin"
    stored.chmod(0o644)
    if how == "changed":
        stored.write_bytes(bytes(16))
    elif how == "cut":
        stored.write_bytes(bytes(8))
    else:
        stored.unlink()
    if how == "link":
        stored.symlink_to(large.parent / "w.bin")
    copy = stage_onnx(large, objects).path.parent / "w.bin"
    assert copy.read_bytes() == (large.parent / "w.bin").read_bytes()
    assert not copy.is_symlink() and not copy.samefile(large.parent / "w.bin")


@pytest.mark.parametrize("path", ["../secret", "/etc/hostname", "ab/../../secret", ""])
def test_a_hint_leads_nowhere_else(path: str, large: Path, objects: Path) -> None:
    stage_onnx(large, objects)
    (objects.parent / "secret").write_bytes((large.parent / "w.bin").read_bytes())
    (hint,) = (objects.parent / "records").iterdir()
    Store(objects.parent).remember(hint.stem, {"path": path})
    shutil.rmtree(objects)
    (objects / "ab").mkdir(parents=True)
    copy = stage_onnx(large, objects).path.parent / "w.bin"
    assert copy.stat().st_nlink == 1 and copy.read_bytes() == (large.parent / "w.bin").read_bytes()


def test_what_is_not_copied_again_counts_against_the_limit_too(large: Path, objects: Path) -> None:
    stage_onnx(large, objects)
    with pytest.raises(UnsafeFile, match="the limit is 15"):
        stage_onnx(large, objects, limits=FileLimits(data_bytes=15))


def test_a_copy_that_is_used_again_counts_as_used_now(folder: Path, objects: Path) -> None:
    path = save(plain_model(), folder)
    record = stage_onnx(path, objects).path.with_name("entry.json")
    os.utime(record, (0, 0))
    stage_onnx(path, objects)
    assert record.stat().st_mtime > 0


def test_a_copy_stays_where_it_cannot_be_read_for_want_of_files(
    folder: Path, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(plain_model(), folder)
    inode = stage_onnx(path, objects).path.stat().st_ino

    def scarce(file: Path) -> str:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(file))

    with monkeypatch.context() as patch:
        patch.setattr(tree, "digest_once", scarce)
        with pytest.raises(StorageError):
            stage_onnx(path, objects)
    assert stage_onnx(path, objects).path.stat().st_ino == inode


# --- races --------------------------------------------------------------------------------------


def test_a_link_that_stands_only_while_the_file_is_opened(
    folder: Path, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hard link put in after the look at the file and gone before the next one."""
    hidden, data = secret(folder), folder / "w.bin"
    data.write_bytes(bytes(16))
    path = external_model(folder, "w.bin")
    real = os.open

    def open_swapped(name: Any, flags: int, *args: Any, **options: Any) -> int:
        if name != "w.bin":
            return real(name, flags, *args, **options)
        data.unlink()
        data.hardlink_to(hidden)
        descriptor = real(name, flags, *args, **options)
        data.unlink()
        data.write_bytes(bytes(16))
        return descriptor

    monkeypatch.setattr(os, "open", open_swapped)
    with pytest.raises(UnsafeFile, match="replaced while"):
        stage_onnx(path, objects)


def test_a_device_is_not_even_opened(objects: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To open one may act on it, for example rewind a tape."""
    real, opened = os.open, []

    def open_seen(name: Any, *args: Any, **options: Any) -> int:
        opened.append(str(name))
        return real(name, *args, **options)

    monkeypatch.setattr(os, "open", open_seen)
    with pytest.raises(UnsafeFile, match="not a regular file"):
        stage_weights(Path("/dev/zero"), objects)
    assert "/dev/zero" not in opened


def test_a_pipe_that_takes_the_place_of_the_file_before_it_is_opened(
    tmp_path: Path, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = (tmp_path / "f").resolve(), os.open
    path.write_bytes(safetensors(b"sound"))

    def open_swapped(name: Any, *args: Any, **options: Any) -> int:
        if name == path:
            path.unlink()
            os.mkfifo(path)
        return real(name, *args, **options)

    monkeypatch.setattr(os, "open", open_swapped)
    with pytest.raises(UnsafeFile, match="not a regular file"):
        stage_weights(path, objects)


def test_a_file_that_grows_while_it_is_read(
    tmp_path: Path, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(10))
    real = os.readv

    def read_grown(descriptor: int, buffers: Any) -> int:
        if path.stat().st_size < 20:
            with path.open("ab") as file:
                file.write(b"x")
        return real(descriptor, buffers)

    monkeypatch.setattr(os, "readv", read_grown)
    with pytest.raises(UnsafeFile, match="limit is 10"):
        stage_weights(path, objects, limits=FileLimits(data_bytes=10))
    assert published(objects) == []


def test_a_file_that_shrinks_before_it_is_copied(
    folder: Path, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = folder / "w.bin"
    data.write_bytes(bytes(16))
    real = files.copy_in

    def copy_shrunk(source: int, target: Path, **options: Any) -> tuple[str, int]:
        if target.name == "w.bin":
            os.truncate(data, 8)
        return real(source, target, **options)

    monkeypatch.setattr("optkit.ground.intake.deduplication.copy_in", copy_shrunk)
    with pytest.raises(UnsafeFile, match="which has 8"):
        stage_onnx(external_model(folder, "w.bin"), objects)
