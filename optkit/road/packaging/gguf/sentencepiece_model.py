"""tokenizer.model, the file of SentencePiece: a protobuf message (sentencepiece_model.proto)."""

from __future__ import annotations

from pathlib import Path

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from optkit.facts.errors import InputRefused, UsageError

FILE = "tokenizer.model"

_BPE = 2  # TrainerSpec.ModelType
_FIELDS = {  # message → its fields that are read: name, number, type
    "Piece": (("piece", 1, "TYPE_STRING"), ("score", 2, "TYPE_FLOAT")),
    "Trainer": (("model_type", 3, "TYPE_INT32"),),
}


def scores(file: Path) -> dict[str, float]:
    """Piece → score. Raises UsageError (not byte-pair encoding), InputRefused (damaged)."""
    schema = FileDescriptorProto(name="model.proto", package="sentencepiece_model")
    for name, fields in _FIELDS.items():
        message = schema.message_type.add(name=name)
        for field, number, kind in fields:
            message.field.add(
                name=field, number=number, type=FieldDescriptorProto.Type.Value(kind), label=1
            )
    whole = schema.message_type.add(name="Model")
    for field, number, label, kind in (("pieces", 1, 3, "Piece"), ("trainer", 2, 1, "Trainer")):
        whole.field.add(
            name=field,
            number=number,
            label=label,
            type_name=f".sentencepiece_model.{kind}",
            type=FieldDescriptorProto.Type.Value("TYPE_MESSAGE"),
        )
    pool = DescriptorPool()
    pool.Add(schema)
    model = GetMessageClass(pool.FindMessageTypeByName("sentencepiece_model.Model"))()
    try:
        model.ParseFromString(file.read_bytes())
    except DecodeError as error:
        raise InputRefused("not the file of a SentencePiece tokenizer", where=str(file)) from error
    if model.trainer.model_type != _BPE:
        raise UsageError(
            "llama.cpp has no tokenizer for it: it is not byte-pair encoding", where=str(file)
        )
    return {piece.piece: piece.score for piece in model.pieces}
