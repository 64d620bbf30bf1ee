"""The fields of ONNX messages that the intake reads, and how each data type is stored.

The numbers are from onnx.proto (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto).
"""

from __future__ import annotations

from typing import NamedTuple

from optkit.ground.intake import wire

_INT = (wire.VARINT,)
_INTS = (wire.VARINT, wire.LENGTH)  # packed or not
_BYTES = (wire.LENGTH,)
_FLOATS = (wire.FIXED32, wire.LENGTH)
_DOUBLES = (wire.FIXED64, wire.LENGTH)


class Field(NamedTuple):
    """A field that is read: its name, its wire types, and whether it may repeat."""

    name: str
    wires: tuple[int, ...] = _BYTES
    many: bool = False


def _many(name: str, wires: tuple[int, ...] = _BYTES) -> Field:
    return Field(name, wires, many=True)


# Every field that leads to a tensor, a graph or a shape, and the fields that are read.
MESSAGES: dict[str, dict[int, Field]] = {
    "ModelProto": {
        7: Field("graph"), 20: _many("training"), 25: _many("function"),
    },
    "TrainingInfoProto": {1: Field("graph"), 2: Field("algorithm")},
    "GraphProto": {
        1: _many("node"), 5: _many("tensor"), 11: _many("input"), 12: _many("output"),
        13: _many("value"), 15: _many("sparse"),
    },
    "FunctionProto": {
        1: Field("name"), 4: _many("input"), 5: _many("output"), 7: _many("node"),
        10: Field("domain"), 11: _many("attribute"), 12: _many("value"), 13: Field("overload"),
    },
    "NodeProto": {
        1: _many("input"), 2: _many("output"), 3: Field("name"), 4: Field("op_type"),
        5: _many("attribute"), 7: Field("domain"), 8: Field("overload"),
    },
    "AttributeProto": {
        3: Field("int", _INT), 5: Field("tensor"), 6: Field("graph"), 8: _many("int", _INTS),
        10: _many("tensor"), 11: _many("graph"), 14: Field("type"), 15: _many("type"),
        22: Field("sparse"), 23: _many("sparse"),
    },
    "TensorProto": {
        1: _many("dims", _INTS), 2: Field("data_type", _INT), 3: Field("segment"),
        4: _many("float_data", _FLOATS), 5: _many("int32_data", _INTS), 6: _many("string_data"),
        7: _many("int64_data", _INTS), 8: Field("name"), 9: Field("raw_data"),
        10: _many("double_data", _DOUBLES), 11: _many("uint64_data", _INTS),
        13: _many("external"), 14: Field("data_location", _INT),
    },
    "SparseTensorProto": {1: Field("values"), 2: Field("indices"), 3: _many("dims", _INTS)},
    "StringStringEntryProto": {1: Field("key"), 2: Field("value")},
    "ValueInfoProto": {1: Field("name"), 2: Field("type")},
    "TypeProto": {
        1: Field("tensor"), 4: Field("wrapped"), 5: Field("map"), 8: Field("tensor"),
        9: Field("wrapped"),
    },
    "TypeProto.Tensor": {2: Field("shape")},
    "TypeProto.Sequence": {1: Field("type")},
    "TypeProto.Map": {2: Field("type")},
    "TensorShapeProto": {1: _many("dim")},
    "TensorShapeProto.Dimension": {2: Field("axis")},
}  # fmt: skip


class Storage(NamedTuple):
    """How a data type is stored: bits per element in raw or external data, and the typed field."""

    bits: int  # of no meaning for strings
    typed: str  # the field that may hold it instead
    per_entry: int = 1  # elements packed into one entry of that field
    entries: int = 1  # entries that one element takes (complex: 2)


STORAGE = {
    data_type: storage
    for data_types, storage in (
        ((1,), Storage(32, "float_data")),
        ((14,), Storage(64, "float_data", entries=2)),
        ((11,), Storage(64, "double_data")),
        ((15,), Storage(128, "double_data", entries=2)),
        ((7,), Storage(64, "int64_data")),
        ((12,), Storage(32, "uint64_data")),
        ((13,), Storage(64, "uint64_data")),
        ((6,), Storage(32, "int32_data")),
        ((4, 5, 10, 16), Storage(16, "int32_data")),  # (u)int16, float16, bfloat16
        ((2, 3, 9, 17, 18, 19, 20, 24), Storage(8, "int32_data")),  # (u)int8, bool, float8
        ((27, 28), Storage(6, "int32_data")),  # float6
        ((21, 22, 23), Storage(4, "int32_data", per_entry=2)),  # (u)int4, float4
        ((25, 26), Storage(2, "int32_data", per_entry=4)),  # (u)int2
        ((8,), Storage(8, "string_data")),
    )
    for data_type in data_types
}
