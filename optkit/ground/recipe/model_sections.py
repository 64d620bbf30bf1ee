"""The keys of a recipe that name the model and its inputs."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import Field, WithJsonSchema, model_validator

from optkit.ground.recipe.sections import Args, Depends, RecipeSection, later

_AXIS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Model(RecipeSection):
    """The place of the model: a Python factory with weights, a file, or a Hugging Face model in a
    folder or on the hub. Exactly one of factory, path and hub is set."""

    factory: str | None = None
    """A Python factory, `file.py:function` or `package.module:function`, that returns an
    `nn.Module`; give exactly one of factory, path and hub."""
    path: str | None = None
    """A file `model.onnx` or `model.pt2`, or a Hugging Face folder."""
    hub: str | None = None
    """A model on the Hugging Face hub, `org/name`."""
    weights: str | None = None
    """A `.safetensors` file, loaded strictly into the module that the factory returns."""
    args: Args = Field(default={})
    """Keyword arguments of the factory."""
    task: str | None = None
    """Task of a Hugging Face model, such as `text-classification`; null: that of its
    `config.json`."""
    adapter: str | None = None
    """Folder of a PEFT LoRA adapter, merged into a Hugging Face model before the export."""
    part: Literal["encoder", "decoder"] | None = None
    """The part of an encoder-decoder to build; null: both, in one artifact."""
    opset: Annotated[int, Field(ge=19)] | None = None
    """The newest opset that written graphs may have, for older runtimes and servers; null: any."""
    depends: Depends = later(None)
    """What the code of the factory reads: files, folders, globs, `$NAME` for a variable of the
    environment; the code then runs only if that changes. Null: it runs in every command."""
    custom_ops: str | None = later(None)
    """A shared library (`.so`) with the operators of a `.onnx` that ONNX Runtime lacks; it is
    opened only with `--trust`."""
    plugins: str | None = later(None)
    """A shared library (`.so`) of TensorRT plugins, which computes the operators of `custom_ops`
    on a GPU; it is opened only with `--trust`."""

    @model_validator(mode="before")
    @classmethod
    def no_trust(cls, data: object) -> object:
        if isinstance(data, dict) and "trust_remote_code" in data:
            raise ValueError(
                "trust_remote_code runs code of the model: only the user of a build may allow it, "
                "with --trust-remote-code; a recipe may not"
            )
        return data

    @model_validator(mode="after")
    def one_of(self) -> Self:
        if sum(place is not None for place in (self.factory, self.path, self.hub)) != 1:
            named = {"factory": self.factory, "path": self.path, "hub": self.hub}
            given = [name for name, place in named.items() if place is not None]
            told = "give exactly one of factory, path and hub"
            told += f"; it has {' and '.join(given)}" if given else ""
            raise ValueError(told)
        if self.factory is None and (self.weights is not None or self.args):
            raise ValueError("weights and args belong to a factory")
        if self.factory is None and self.depends is not None:
            raise ValueError("depends belongs to a factory: a file's content is always compared")
        if not self.is_hugging_face and (self.task or self.adapter or self.part):
            raise ValueError("task, adapter and part belong to a Hugging Face model")
        return self

    @model_validator(mode="after")
    def operators_of_a_graph(self) -> Self:
        if self.custom_ops is not None and not (self.path or "").endswith(".onnx"):
            raise ValueError("custom_ops belongs to a graph: path: MODEL.onnx")
        if self.plugins is not None and self.custom_ops is None:
            raise ValueError(
                "plugins need custom_ops too: the same operators for ONNX Runtime, which computes "
                "ranges and the reference"
            )
        return self

    @property
    def is_hugging_face(self) -> bool:
        return self.factory is None and not (self.path or "").endswith((".onnx", ".pt2"))


# not prefixItems, which editors of YAML do not know
_PAIR = WithJsonSchema({"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2})


class Input(RecipeSection):
    """One input: numpy dtype, shape with axis names, and for random integers their range."""

    dtype: Literal[
        "float32", "float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool"
    ]
    """The numpy name of the dtype."""
    shape: Annotated[tuple[Annotated[int, Field(ge=1)] | str, ...], Field(strict=False)]
    """Numbers, names of axes, and sums of axes such as `past + new`."""
    range: Annotated[tuple[float, float], Field(strict=False), _PAIR] | None = None
    """The lowest and the highest random value of an integer input; null: 0 and 1."""

    @model_validator(mode="after")
    def ordered(self) -> Self:
        if self.range is not None and self.range[0] > self.range[1]:
            raise ValueError(f"range {self.range[0]:g} to {self.range[1]:g} is empty")
        for size in self.shape:
            if isinstance(size, str) and not all(map(_AXIS.fullmatch, size.split(" + "))):
                raise ValueError(f"{size!r} is not an axis name (letters, digits and _), nor a sum")
        return self
