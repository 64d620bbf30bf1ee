"""The builder's layer list: what is written is read, and what is unknown is an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.backends import layer_list
from optkit.errors import ToolchainMissing
from optkit.runtime import FusedLayer, LayerTensor

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


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Engine Layer Information:\nLayer(Constant): w, Tactic: 0x0",
        message("Name: a, LayerType: gemm, Inputs: [], Outputs: []"),
        message(written(layer("a", "gemm", "int8 float16", ())).replace("Int8", "FP7")),
        message(written(layer("a", "gemm", "int8 float16", ())).replace("StrideOrder", "Order")),
    ],
)
def test_an_unknown_form_is_an_error(text: str) -> None:
    with pytest.raises(ToolchainMissing, match="does not know"):
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
