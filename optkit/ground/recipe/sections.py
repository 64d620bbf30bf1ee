"""The keys of a recipe: pydantic models, closed (an unknown key is an error) and frozen.

Types are strict: `"8"` is not an integer and `true` is not a number. Validators describe the error
in words; `recipe.py`, which knows the file, adds the place.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    field_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from optkit.facts import precisions
from optkit.facts.precisions import PRECISIONS
from optkit.ground import devices as targets
from optkit.ground.recipe.percentages import Amount, Fraction

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_AXIS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Args = dict[str, JsonValue]


def file_name(value: str) -> str:
    """The name, which becomes part of folder names. Raises ValueError."""
    if not _NAME.fullmatch(value):
        raise ValueError(f"{value!r} is not a name: letters, digits, '.', '_' and '-'")
    return value


def known_precision(value: object) -> precisions.Precision:
    """A precision that is implemented. Raises the error of a Literal of these names."""
    if str(value) not in PRECISIONS:
        known = ", ".join(map(repr, PRECISIONS))
        raise PydanticCustomError("literal_error", "one of {expected}", {"expected": known})
    return PRECISIONS[str(value)]


def fixed(value: object) -> object:
    """`batch: 8` is an axis with one size."""
    if isinstance(value, int) and not isinstance(value, bool):
        return {"min": value, "opt": value, "max": value}
    return value


def later(default: object, **settings: Any) -> Any:
    """A key that is left out of the dump if it has its default value. A key that recipes gain is
    declared so: a build that does not use it then keeps its digest and the keys of its steps."""
    return Field(default=default, exclude_if=lambda value: value == default, **settings)


class RecipeSection(BaseModel):
    """The base of all sections."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


Name = Annotated[
    str,
    AfterValidator(file_name),
    WithJsonSchema({"type": "string", "pattern": f"^{_NAME.pattern}$"}),
]
Precision = Annotated[
    precisions.Precision,
    PlainValidator(known_precision),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "enum": list(PRECISIONS)}),
]


Depends = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False)] | None
"""What code depends on: files, folders, globs, and "$NAME" for a variable of the environment."""


class Model(RecipeSection):
    """The place of the model: a Python factory with weights, a file, or a Hugging Face model in a
    folder or on the hub. Exactly one of factory, path and hub is set."""

    factory: str | None = None  # file.py:function
    path: str | None = None  # model.onnx, model.pt2 or a Hugging Face folder
    hub: str | None = None  # org/name
    weights: str | None = None  # .safetensors, loaded into the module that the factory returns
    args: Args = {}  # keyword arguments of the factory
    task: str | None = None  # for a Hugging Face model; default: the task in its config.json
    adapter: str | None = None  # folder of a PEFT LoRA adapter, merged before export
    part: Literal["encoder", "decoder"] | None = None  # for an encoder-decoder; null: both
    opset: Annotated[int, Field(ge=19)] | None = None  # the newest that written graphs may have
    depends: Depends = later(None)  # of the factory's code
    custom_ops: str | None = later(None)  # .so with operators of a .onnx that ONNX Runtime lacks

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
        if self.custom_ops is not None and not (self.path or "").endswith(".onnx"):
            raise ValueError("custom_ops belongs to a graph: path: MODEL.onnx")
        if not self.is_hugging_face and (self.task or self.adapter or self.part):
            raise ValueError("task, adapter and part belong to a Hugging Face model")
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
    shape: Annotated[tuple[Annotated[int, Field(ge=1)] | str, ...], Field(strict=False)]
    range: Annotated[tuple[float, float], Field(strict=False), _PAIR] | None = None

    @model_validator(mode="after")
    def ordered(self) -> Self:
        if self.range is not None and self.range[0] > self.range[1]:
            raise ValueError(f"range {self.range[0]:g} to {self.range[1]:g} is empty")
        for size in self.shape:
            if isinstance(size, str) and not all(map(_AXIS.fullmatch, size.split(" + "))):
                raise ValueError(f"{size!r} is not an axis name (letters, digits and _), nor a sum")
        return self


class Axis(RecipeSection):
    """A dynamic axis: multiples of a number from min to max (0: it may be empty); opt is tuned."""

    min: int = Field(ge=0)
    opt: int = Field(ge=0)
    max: int = Field(ge=1)
    multiple: int = later(1, ge=1)

    @model_validator(mode="after")
    def ordered(self) -> Self:
        for low, high in (("min", "opt"), ("opt", "max")):
            if (least := getattr(self, low)) > (most := getattr(self, high)):
                raise ValueError(f"{low} {least} is larger than {high} {most}")
        wrong = [f"{name} {size}" for name, size in self if size % self.multiple]
        if wrong:
            raise ValueError(f"{wrong[0]} is not a multiple of {self.multiple}")
        return self


MEMORY = "memory"
"""The source of calibration samples from Python: build(calibration=batches)."""


Method = Literal["auto", "minmax", "percentile", "entropy", "mse"]
"""How the range of an activation follows from its statistics; `quantization.ranges` computes it."""


class Calibration(RecipeSection):
    """The samples for activation ranges, and the method; or ranges that another tool has chosen."""

    source: str | None = None  # a name, file.py or file.py:function; or MEMORY
    ranges: str | None = None  # a calibration cache of TensorRT, or encodings of AIMET
    samples: int = Field(default=256, ge=1)
    method: Method = "auto"
    percentile: float = Field(default=99.99, gt=50, le=100)
    batch: int = Field(default=8, ge=1)
    args: Args = {}
    depends: Depends = later(None)  # of the source's code

    @model_validator(mode="after")
    def samples_or_ranges(self) -> Self:
        if self.source is None and self.ranges is None:
            raise ValueError("give a source of samples, or ranges")
        return self


Operators = Annotated[tuple[Literal["Conv", "MatMul", "Gemm"], ...], Field(strict=False)]


class Placement(RecipeSection):
    """Settings that override the backend's placement rules; null: the rule of the backend."""

    residual_adds: bool | None = None  # quantize the shortcut that is added to a convolution
    tensor_ops: Operators | None = None  # operators whose weights get one scale per tensor
    # ... a scalar before the product, the ratios of the channels after it
    split_scale: Operators | None = None
    # of MatMulNBits: multiply in floats (0), or round activations to 8 bits (4)
    nbits_accuracy: Literal[0, 4] | None = None
    # of MatMulNBits with codes of 4 bits: zero points, or else signed scales
    zero_points: bool | None = later(None)


Effort = Literal["fast", "balanced", "best"]
"""How much time a quantization may take for its accuracy."""


class Quantization(RecipeSection):
    """How qparams are computed, and which nodes are exceptions."""

    effort: Effort = "balanced"
    weights: Literal["auto", "rtn", "mse", "gptq", "gptaq", "awq", "hqq"] = "auto"
    block_size: Literal[16, 32, 64, 128] | None = None  # for int4, int2 and nf4
    smooth: Literal["auto", "off"] | Annotated[float, Field(gt=0, lt=1)] = "auto"
    equalize: Literal["auto", "off"] = "auto"
    bias_correction: bool = True
    embeddings: bool = True  # embedding tables in 8 bits, if the backend can look them up in 8 bits
    # patterns of node names; auto: where one term leaves too much noise
    two_term: Literal["auto"] | Annotated[tuple[str, ...], Field(strict=False)] = "auto"
    # whether few outlier channels of an activation may be multiplied in float
    outlier_channels: Literal["auto", "off"] = later("auto")
    # of a decoder, stored as codes; null: as floats
    kv_cache: Literal["int8", "int4"] | None = later(None)
    # pattern of a node's name → its precision
    nodes: dict[str, Precision] = {}
    placement: Placement = Placement()

    @property
    def learns(self) -> bool:
        """Whether weights are rounded by GPTQ where the inputs of their products are known."""
        return self.weights in ("gptq", "gptaq") or (
            self.weights == "auto" and self.effort != "fast"
        )

    @property
    def compensates(self) -> bool:
        """Whether weights in blocks make up for the errors of the layers before them, where samples
        are known."""
        return self.weights == "gptaq" or (self.weights == "auto" and self.effort == "best")

    def is_two_term(self, node: str) -> bool:
        """Whether the recipe gives the activation of the node two terms, by a pattern."""
        return self.two_term != "auto" and any(fnmatchcase(node, one) for one in self.two_term)


class Eval(RecipeSection):
    """The task that judges accuracy."""

    task: str  # a name or file.py
    args: Args = {}
    stop_early: bool = False  # before the last sample, if the verdict is certain
    depends: Depends = later(None)  # of the task's code


class Limits(RecipeSection):
    """Limits that decide pass or fail; null: no such gate."""

    max_drop: Fraction = 0.01
    min_value: Amount = None  # for the metric
    max_value: Amount = None
    max_slice_drop: Fraction = None  # in every slice of the samples
    min_slice_value: Amount = None
    max_slice_value: Amount = None
    min_sqnr: float | None = None  # in dB
    max_latency_ms: float | None = Field(default=None, gt=0)
    min_speedup: float | None = Field(default=None, gt=0)
    min_throughput: float | None = Field(default=None, gt=0)  # in samples per second
    max_bytes: int | None = Field(default=None, ge=1)
    max_memory_bytes: int | None = Field(default=None, ge=1)  # for the peak of a run
    accept: Annotated[
        tuple[Literal["measured", "simulated", "predicted"], ...], Field(strict=False)
    ] = ()

    @property
    def on_slices(self) -> bool:
        """Whether a limit holds for every slice."""
        limits = (self.max_slice_drop, self.min_slice_value, self.max_slice_value)
        return any(limit is not None for limit in limits)


ACCURACY_LIMITS = (
    "max_drop",
    "min_value",
    "max_value",
    "max_slice_drop",
    "min_slice_value",
    "max_slice_value",
    "min_sqnr",
)
"""The limits that need only samples, on any machine."""

ENGINE_LIMITS = ("max_latency_ms", "min_speedup", "min_throughput", "max_bytes", "max_memory_bytes")
"""The limits that need an engine."""


def known_target(value: str) -> str:
    """A known target. Raises the error of a Literal of the targets."""
    if value not in targets.names():
        known = ", ".join(map(repr, targets.names()))
        raise PydanticCustomError("literal_error", "one of {expected}", {"expected": known})
    return value


def _with_target_names(schema: dict[str, JsonValue]) -> None:
    schema["propertyNames"] = {"enum": list(targets.names())}


class Gates(Limits):
    """Limits for all targets, and other limits for some of them."""

    targets: Annotated[
        dict[Annotated[str, AfterValidator(known_target)], Limits],
        Field(json_schema_extra=_with_target_names),
    ] = {}

    @field_serializer("targets")
    def as_given(self, targets: dict[str, Limits]) -> dict[str, object]:
        """Only the keys that the section contains, because a default would override too."""
        return {
            name: limits.model_dump(mode="json", exclude_unset=True)
            for name, limits in targets.items()
        }

    def of(self, name: str) -> Limits:
        """The limits for a target: those of its own section come first."""
        limits = {field: getattr(self, field) for field in Limits.model_fields}
        if name in self.targets:
            section = self.targets[name]
            limits |= {field: getattr(section, field) for field in section.model_fields_set}
        # they were validated before, and no longer have the form of the file
        return Limits.model_construct(**limits)


class Compiler(RecipeSection):
    """Options that override the compiler's rules for the target; null: the rule."""

    workspace_bytes: int | None = Field(default=None, ge=1)
    optimization_level: int | None = Field(default=None, ge=0, le=5)
    search_minutes: float | None = later(None, ge=0)
    hardware_compatibility: Literal["NONE", "SAME_COMPUTE_CAPABILITY", "AMPERE_PLUS"] | None = None
    version_compatible: bool | None = None
    refittable: bool | None = None
    cuda_graph: bool | None = None


class Bench(RecipeSection):
    """How latency is measured."""

    batches: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(strict=False)] = (1, 8)
    seconds: float = Field(default=3.0, gt=0, le=3600)
    warmup_seconds: float = Field(default=5.0, ge=0, le=600)  # until a session is steady, at most
    threads: int | None = Field(default=None, ge=1)
