"""Runs in an environment with tritonclient: reads configurations with Triton's own protobuf.

python protobuf.py < JSON list of texts > JSON list: the fields of each that are set, or the error
"""

import json
import sys
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2


def read(text: str) -> object:
    message = model_config_pb2.ModelConfig()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        return str(error)
    return fields(message)


def fields(message: Any) -> dict[str, object]:
    return {field.name: value_of(field, value) for field, value in message.ListFields()}


def value_of(field: Any, value: Any) -> object:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        inner = field.message_type.fields_by_name["value"]
        return {key: single(inner, value[key]) for key in value}
    if isinstance(value, (str, bytes, bool, int, float)) or hasattr(value, "ListFields"):
        return single(field, value)
    return [single(field, item) for item in value]


def single(field: Any, value: Any) -> object:
    if field.message_type is not None:
        return fields(value)
    return value if field.enum_type is None else field.enum_type.values_by_number[value].name


if __name__ == "__main__":
    json.dump([read(text) for text in json.load(sys.stdin)], sys.stdout)
