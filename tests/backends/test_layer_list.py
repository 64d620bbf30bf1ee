"""The layer list of an engine: what is written is read, in the forms of TensorRT 8.6, 10, 11 and
TensorRT-RTX; what is unknown stays so.

lists/*: networks made up here, in the form of what the libraries were seen to write.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.craft.backends import layer_list
from optkit.facts.engines import FusedLayer, LayerTensor
from optkit.facts.errors import ToolchainMissing

LISTS = Path(__file__).with_name("lists")
WORDS = {
    "float32": "Float", "float16": "Half", "int8": "Int8", "int64": "Int64", "bool": "Bool",
    "float8e4m3fn": "FP8", "float4e2m1": "FP4E2M1", "int4": "Int4",
}  # fmt: skip

# names as exporters write them: with slashes, dots, brackets, commas and spaces
names = st.text("abz019_/.:+-[](), ", min_size=1, max_size=24).map(str.strip).filter(bool)
tensors = st.builds(
    LayerTensor,
    name=names,
    shape=st.lists(st.integers(-1, 4096), max_size=4).map(tuple),
    dtype=st.sampled_from(sorted(WORDS)),
)
groups = st.lists(tensors, max_size=3).map(tuple)
layers = st.builds(
    FusedLayer,
    name=names,
    kind=st.sampled_from(["gemm", "correlation", "kgen", "runtime_fusion"]),
    inputs=groups,
    constants=groups,
    outputs=groups,
    nodes=st.lists(names.filter(lambda n: "]" not in n), unique=True, max_size=3).map(tuple),
)


def written(layer: FusedLayer, kind: str | None = None) -> str:
    """One row in the builder's form."""

    def group(items: tuple[LayerTensor, ...]) -> str:
        rows = []
        for item in items:
            dims = ",".join(map(str, item.shape))
            rows.append(
                f"{{ Name: {item.name}, Dimensions: [{dims}], Strides: [{dims}], StrideOrder: "
                f"[{dims}], Datatype: {WORDS[item.dtype]}, Format: (NHWC) Channel major format }}"
            )
        return f"[ {', '.join(rows)}]" if rows else "[]"

    metadata = "\x1f".join(f"[ONNX Layer: {node}]" for node in layer.nodes)
    return (
        f"Name: {layer.name}, LayerType: {kind or layer.kind}, Inputs: {group(layer.inputs)}, "
        f"Constants: {group(layer.constants)}, Outputs: {group(layer.outputs)}, "
        f"TacticName: __myelin_CASK_STUB, StreamId: 0, Metadata: {metadata}"
    )


def message(*rows: str) -> str:
    return "\n".join(("Layers:", *rows)) + "\n\nI/O Tensors:\n Name: x, IOMode: Input\n"


def layer(name: str, kind: str, dtypes: str, nodes: tuple[str, ...]) -> FusedLayer:
    given, made = (
        LayerTensor(end, (8, 4), dtype) for end, dtype in zip("io", dtypes.split(), strict=True)
    )
    weight = LayerTensor("w", (4, 4), "float16")
    return FusedLayer(name, kind, (given,), (weight,), (made,), nodes)


@given(st.lists(layers, max_size=4))
def test_what_is_written_is_read(rows: list[FusedLayer]) -> None:
    assert layer_list.parse_layers(message(*map(written, rows)), ()) == tuple(rows)


@pytest.mark.parametrize("kind", ["signal", "wait", "shape_call"])
def test_rows_without_a_kernel_are_no_layers(kind: str) -> None:
    nothing = FusedLayer("s", kind, (), (), (), ())
    assert layer_list.parse_layers(message(written(nothing)), ()) == ()


NAMED = {"Name": "a", "LayerType": "gemm"}
TENSOR = {"Name": "x", "Dimensions": [1], "Datatype": "Half"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Engine Layer Information:\nLayer(Constant): w, Tactic: 0x0",
        message("Name: a, Inputs: [], Outputs: []"),
        message("Name: a, LayerType: gemm, Inputs: []"),
        message(written(layer("a", "gemm", "int8 float16", ())).replace("Dimensions", "Sizes")),
        message(written(layer("a", "gemm", "int8 float16", ()))[:120]),
        "{",
        "[" * 100_000,
        '{"Bindings": []}',
        json.dumps({"Layers": [NAMED]}),
        json.dumps({"Layers": [{**NAMED, "Inputs": [TENSOR], "Outputs": "y"}]}),
        json.dumps({"Layers": [{**NAMED, "Inputs": [{"Name": "x"}], "Outputs": []}]}),
        (LISTS / "tensorrt-10-names.json").read_text(),
    ],
)
def test_an_unknown_form_is_an_error(text: str) -> None:
    with pytest.raises(ToolchainMissing, match="has an unknown form"):
        layer_list.parse_layers(text, ())


@pytest.mark.parametrize(
    ("kind", "ends"),
    [
        ("ShapeHostToDevice", "[ { Name: y, Location: Device, Dimensions: [], Datatype: Int32 }]"),
        ("cjmp", "[], TacticName: , StreamId: 0, JumpTargetThen: a_myl0_5, JumpTargetElse: <EXIT>"),
        ("jmp", "[], TacticName: , StreamId: 0, JumpTarget: a_myl0_5"),
    ],
)
def test_branches_and_host_copies_are_no_layers_whatever_their_form(kind: str, ends: str) -> None:
    row = f"Name: [Copy 0], LayerType: {kind}, Inputs: [], Outputs: {ends}, Metadata: "
    kernel = layer("a_myl0_5", "gemm", "int8 float16", ("a",))
    assert layer_list.parse_layers(message(row, written(kernel)), ()) == (kernel,)


def listed(name: str, *products: str) -> dict[str, FusedLayer]:
    """The layers of a file, by name."""
    found = layer_list.parse_layers((LISTS / name).read_text(), products)
    return {layer.name: layer for layer in found}


def multiplied(layers: dict[str, FusedLayer]) -> dict[str, tuple[str | None, str | None]]:
    """Node → what it multiplies in, and what it reads of its weight."""
    return {node: (one.dtype, one.weight_dtype) for one in layers.values() for node in one.products}


def test_convolutions_of_tensorrt_10() -> None:
    nodes = ("/stem/Conv", "/block/a/Conv", "/block/b/Conv", "/deep/Conv", "/head/MatMul")
    found = listed("tensorrt-10-convolutions.json", *nodes)
    assert multiplied(found) == {
        "/stem/Conv": ("int8", "int8"),
        "/block/a/Conv": ("int8", "int8"),
        "/block/b/Conv": ("int8", "int8"),
        "/deep/Conv": ("float16", "float16"),
        "/head/MatMul": (None, None),  # inside a foreign node, which tells nothing of it
    }
    kinds = {layer.kind for layer in found.values()}
    assert {"CaskConvActPool", "CudaDepthwiseConvolution", "CaskPooling", "PluginV3"} <= kinds
    assert "NoOp" not in kinds
    summed = found["/block/b/Conv + /block/Add + /block/Relu"]
    assert summed.nodes == ("/block/b/Conv", "/block/Add", "/block/Relu")
    assert summed.bytes_moved == 3 * 4 * 64 * 32 * 32
    assert summed.constant_bytes == 36_864 + 4 * 64
    copy = found["Reformatting CopyNode for Input Tensor 0 to /deep/Conv + /deep/Relu"]
    assert copy.nodes == () and copy.bytes_moved == 3 * 4 * 64 * 32 * 32


def test_where_sizes_are_dynamic_a_kernel_tells_what_it_reads() -> None:
    found = listed("tensorrt-10-dynamic.json", "/a/Conv", "/b/Conv", "/c/Conv")
    assert multiplied(found) == {
        "/a/Conv": ("int8", "int8"),
        "/b/Conv": ("float16", "float16"),
        "/c/Conv": (None, "int8"),  # of this one nothing tells
    }
    assert all(layer.bytes_moved is None for layer in found.values())


def test_names_stand_for_nodes_where_there_is_no_metadata() -> None:
    found = listed("tensorrt-8.6-convolutions.json", "/one/Conv", "/two/Conv", "/three/Conv")
    assert multiplied(found) == {
        "/one/Conv": ("int8", "int8"),
        "/two/Conv": ("int8", "int8"),
        "/three/Conv": ("int8", "int8"),
    }


def test_an_encoder_in_the_builders_log_of_tensorrt_10() -> None:
    layer_0 = ("key", "query", "qk", "pv", "out", "last")
    nodes = ("/embed/Conv", *(f"/layers.0/{name}/MatMul" for name in layer_0))
    found = listed("tensorrt-10-encoder.log", *nodes)
    assert multiplied(found) == {
        "/embed/Conv": ("float16", "float16"),
        "/layers.0/key/MatMul": ("float16", "float16"),
        "/layers.0/query/MatMul": ("float16", "float16"),
        "/layers.0/qk/MatMul": ("float16", None),
        "/layers.0/pv/MatMul": ("float16", None),
        "/layers.0/out/MatMul": ("int8", "int8"),
        "/layers.0/last/MatMul": ("float16", "float16"),  # by its name: its metadata is empty
    }
    joined = found["/layers_0/key/MatMul+/layers_0/query/MatMul_myl0_1"]
    assert [tensor.name for tensor in joined.inputs] == ["h_1"]
    assert joined.constant_bytes == 2 * 256 * 512 + 4 + 4
    assert {"Reformat", "kgen", "gemm", "fusion"} <= {one.kind for one in found.values()}


def test_products_of_tensorrt_11() -> None:
    nodes = tuple(f"/fc{n}/MatMul" for n in (1, 2, 3))
    found = listed("tensorrt-11-products.json", *nodes)
    assert multiplied(found) == {
        "/fc1/MatMul": ("int8", "int8"),
        "/fc2/MatMul": ("float8e4m3fn", "float8e4m3fn"),
        "/fc3/MatMul": (None, "int8"),  # something is done in front of the product
    }


@pytest.mark.parametrize("kind", ["SomeKindOfTomorrow", "DLA", "MyelinV2", "PluginV2DynamicExt"])
def test_an_unknown_kind_is_what_it_calls_itself(kind: str) -> None:
    row = written(layer("a", kind, "int8 float16", ("conv",)))
    (found,) = layer_list.parse_layers(message(row), ("conv",))
    assert (found.kind, found.products, found.dtype) == (kind, ("conv",), None)


def test_an_unknown_type_of_a_tensor_is_unknown() -> None:
    row = written(layer("a", "gemm", "int8 float16", ("fc",))).replace("Int8", "FP7")
    (found,) = layer_list.parse_layers(message(row), ("fc",))
    assert found.inputs[0].dtype == "unknown" and found.bytes_moved is None
    assert (found.dtype, found.weight_dtype) == (None, "float16")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Half", "float16"),
        ("Row major linear FP32", "float32"),
        ("Row major linear FP16 format", "float16"),
        ("Thirty-two wide channel vectorized row major Int8 format.", "int8"),
        ("Channel major INT8 format where channel % 16 == 0", "int8"),
        ("Channel major BFloat16 format where channel % 8 == 0", "bfloat16"),
        ("Row major linear FP8 format", "float8e4m3fn"),
        ("Row major linear FP4 format (kLINEAR)", "float4e2m1"),
        ("Row major linear BOOL", "bool"),
        ("Row major linear UInt8 format", "uint8"),
        ("Row major linear Int64 format", "int64"),
        ("N/A due to dynamic shapes", "unknown"),
        ("Unknown format", "unknown"),
    ],
)
def test_formats_name_their_type(text: str, expected: str) -> None:
    tensor = {"Name": "x", "Dimensions": [1, 64], "Format/Datatype": text}
    row = {"Name": "a", "LayerType": "kgen", "Inputs": [tensor], "Outputs": []}
    (found,) = layer_list.parse_layers(json.dumps({"Layers": [row]}), ())
    assert found.inputs[0].dtype == expected


def test_a_node_belongs_to_the_layer_that_multiplies_it() -> None:
    rows = (
        layer("pad", "kgen", "float32 int8", ("quantize", "conv")),
        layer("conv_myl0", "correlation", "int8 float16", ("conv",)),
        layer("__myl_MulAdd", "kgen", "float16 int8", ("conv", "relu")),
        layer("_gemm_mha_v2", "kgen", "float16 float16", ("qk", "softmax", "pv")),
    )
    found = layer_list.parse_layers(message(*map(written, rows)), ("conv", "qk", "pv"))
    assert [row.products for row in found] == [(), ("conv",), (), ("qk", "pv")]
    assert [row.dtype for row in found] == [None, "int8", None, "float16"]


@pytest.mark.parametrize(
    ("name", "kind", "dtypes", "expected"),
    [
        ("fc_myl0_1", "gemm", "int8 float16", "int8"),
        ("__myl_FcAddGelu_myl0_1", "runtime_fusion", "int8 float16", "int8"),
        ("__myl_CorrCast_myl0_1", "runtime_fusion", "int8 float32", "int8"),
        ("__myl_CastMulFc_myl0_1", "runtime_fusion", "int8 float16", "float16"),
        ("__myl_CastMulFcMulRounCast_myl0_1", "runtime_fusion", "int8 int8", "float16"),
        ("__myl_CastMulSum_myl0_1", "kgen", "int8 float16", "float16"),
    ],
)
def test_operands_dequantized_before_the_product_are_not_integers(
    name: str, kind: str, dtypes: str, expected: str
) -> None:
    row = written(layer(name, kind, dtypes, ("fc",)))
    (found,) = layer_list.parse_layers(message(row), ("fc",))
    assert (found.products, found.dtype) == (("fc",), expected)


@pytest.mark.parametrize(
    ("constants", "expected"),
    [
        ((("s", (1, 64), "float16"), ("w", (64, 64), "int8")), "int8"),
        ((("w", (64, 64), "float8e4m3fn"), ("a", (1,), "float32"), ("b", (), "float32")),
         "float8e4m3fn"),
        ((("w", (2, 8), "int8"), ("s", (2, 8), "float16")), "int8"),  # as many scales as codes
        ((("a", (1,), "float32"), ("b", (1,), "float32")), None),  # a product of two activations
        ((), None),
    ],
)  # fmt: skip
def test_the_weight_is_the_largest_constant(
    constants: tuple[tuple[str, tuple[int, ...], str], ...], expected: str | None
) -> None:
    given = FusedLayer(
        "fc_myl0_1", "gemm", (LayerTensor("x", (8, 64), "float16"),),
        tuple(LayerTensor(*row) for row in constants), (), ("fc",),
    )  # fmt: skip
    (found,) = layer_list.parse_layers(message(written(given)), ("fc",))
    assert found.weight_dtype == expected


def test_memory_rows() -> None:
    rows = [
        "Total Host Persistent Memory: 80 bytes",
        "Max Scratch Memory: 8279040 bytes",
        "Total Weights Memory: 66944 bytes",
        "[MemUsageStats] Peak memory usage of TRT CPU/GPU memory allocators: CPU 0 MiB, GPU 4 MiB",
    ]
    expected = {"host_persistent": 80, "scratch": 8279040, "weights": 66944}
    assert layer_list.parse_memory(rows) == expected
