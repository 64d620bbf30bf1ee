"""The keys of a recipe: pydantic models, closed (an unknown key is an error) and frozen; those of
the model and its inputs are in `model_sections`. The text below a key describes it in the JSON
schema and in docs/reference/recipe_keys.md.

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


class Axis(RecipeSection):
    """A dynamic axis: multiples of a number from min to max (0: it may be empty); opt is tuned."""

    min: int = Field(ge=0)
    """The smallest size; 0: the axis may be empty."""
    opt: int = Field(ge=0)
    """The size for which the engine is tuned."""
    max: int = Field(ge=1)
    """The largest size."""
    multiple: int = later(1, ge=1)
    """All sizes are multiples of this number."""

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

    source: str | None = None
    """A name (`text`, `images`, `audio`, `arrays`, `digits`), `file.py`, `file.py:function`, or
    `memory` for the batches of `build(calibration=batches)`."""
    ranges: str | None = None
    """Ranges that another tool has chosen: a calibration cache of TensorRT, or encodings of AIMET;
    a source may then be left out."""
    samples: int = Field(default=256, ge=1)
    """How many samples are used; later ones are not read."""
    method: Method = "auto"
    """How the range of an activation follows from its values; `auto`: for each tensor the method
    with the least error in the products that read it."""
    percentile: float = Field(default=99.99, gt=50, le=100)
    """Of the method `percentile`: the percentage of the values inside the range."""
    batch: int = Field(default=8, ge=1)
    """Samples per forward pass."""
    args: Args = {}
    """Keyword arguments of the source; a relative path starts at the recipe's folder."""
    depends: Depends = later(None)
    """As `model.depends`, of the source's code."""

    @model_validator(mode="after")
    def samples_or_ranges(self) -> Self:
        if self.source is None and self.ranges is None:
            raise ValueError("give a source of samples, or ranges")
        return self


Operators = Annotated[tuple[Literal["Conv", "MatMul", "Gemm"], ...], Field(strict=False)]


class Placement(RecipeSection):
    """Settings that override the backend's placement rules; null: the rule of the backend."""

    residual_adds: bool | None = None
    """Quantize the shortcut that is added to a convolution."""
    tensor_ops: Operators | None = None
    """Operators whose weights get one scale per tensor."""
    split_scale: Operators | None = None
    """Operators whose weights get one scalar scale before the product, and the ratios of the
    channels after it."""
    nbits_accuracy: Literal[0, 4] | None = None
    """Of `int4` and `int2` on a CPU: 0 multiplies in floats, 4 rounds activations to 8 bits."""
    zero_points: bool | None = later(None)
    """Of `int4` and `w4a8` on a CPU: codes with zero points, or else signed scales."""


Effort = Literal["fast", "balanced", "best"]
"""How much time a quantization may take for its accuracy."""


class Quantization(RecipeSection):
    """How scales and zero points are computed, and which nodes are exceptions."""

    effort: Effort = "balanced"
    """How much time the quantization may take for its accuracy."""
    weights: Literal["auto", "rtn", "mse", "gptq", "gptaq", "awq", "hqq"] = "auto"
    """How weights are rounded; `auto`: `gptq` where there is calibration data, except with the
    effort `fast`; for weights in blocks `gptaq` with the effort `best`."""
    block_size: Literal[16, 32, 64, 128] | None = None
    """How many numbers share a scale in `int4`, `int2` and `nf4`; null: 32, and 64 for `int2` and
    `nf4`."""
    smooth: Literal["auto", "off"] | Annotated[float, Field(gt=0, lt=1)] = "auto"
    """SmoothQuant: `auto` searches alpha for each tensor; `off`; or an alpha between 0 and 1."""
    equalize: Literal["auto", "off"] = "auto"
    """Cross-layer equalization of convolutions."""
    bias_correction: bool = True
    """Correct biases for the mean error of their product."""
    embeddings: bool = True
    """Store embedding tables in 8 bits, if the backend can look them up in 8 bits."""
    two_term: Literal["auto"] | Annotated[tuple[str, ...], Field(strict=False)] = "auto"
    """Patterns of names of nodes whose activation is the sum of two 8-bit terms; `auto`: on a CPU,
    where one term leaves too much noise; `[]`: never."""
    outlier_channels: Literal["auto", "off"] = later("auto")
    """`auto`: an INT8 build for a CPU may multiply few outlier channels of an activation in float;
    `off`: never."""
    kv_cache: Literal["int8", "int4", "fp8"] | None = later(None)
    """How a decoder for a CPU stores its key-value cache (int8, int4); null: as floats. `fp8`: as
    floats, with scales for servers that store it in FP8 (package compressed-tensors)."""
    nodes: dict[str, Precision] = {}
    """Pattern of a node's name → its precision."""
    placement: Placement = Placement()
    """Settings that override the placement rules of the backend."""

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

    task: str
    """A name, such as `top1`, `f1` or `perplexity`, or `file.py`."""
    args: Args = {}
    """Keyword arguments of the task's functions."""
    stop_early: bool = False
    """Stop before the last sample if the verdict is certain."""
    depends: Depends = later(None)
    """As `model.depends`, of the task's code."""


class Limits(RecipeSection):
    """Limits that decide pass or fail; null: no such gate."""

    max_drop: Fraction = 0.01
    """The largest drop against the baseline."""
    min_value: Amount = None
    """The smallest value of the metric."""
    max_value: Amount = None
    """The largest value of the metric."""
    max_slice_drop: Fraction = None
    """The largest drop in any slice of the samples."""
    min_slice_value: Amount = None
    """The smallest value of the metric in any slice."""
    max_slice_value: Amount = None
    """The largest value of the metric in any slice."""
    min_sqnr: float | None = None
    """The smallest SQNR of the worst output against the FP32 graph, in dB."""
    max_latency_ms: float | None = Field(default=None, gt=0)
    """The largest latency at the tuned batch, in milliseconds."""
    min_speedup: float | None = Field(default=None, gt=0)
    """The smallest speedup over the baseline."""
    min_throughput: float | None = Field(default=None, gt=0)
    """The smallest throughput, in samples per second."""
    max_bytes: int | None = Field(default=None, ge=1)
    """The largest size of the engine, in bytes."""
    max_memory_bytes: int | None = Field(default=None, ge=1)
    """The largest peak of memory that a run adds, in bytes."""
    accept: Annotated[
        tuple[Literal["measured", "simulated", "predicted"], ...], Field(strict=False)
    ] = ()
    """Evidence besides `measured` that gates on time accept."""

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
    """Target → limits that hold for it instead; null removes a limit."""

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
    """Scratch memory of kernels, in bytes; null: by the memory of the target."""
    optimization_level: int | None = Field(default=None, ge=0, le=5)
    """How long the builder searches for kernels; null: 3."""
    search_minutes: float | None = later(None, ge=0)
    """How many minutes TensorRT may also search at level 5 after the first engine, which stays if
    the search does not end. Null: no search."""
    hardware_compatibility: Literal["NONE", "SAME_COMPUTE_CAPABILITY", "AMPERE_PLUS"] | None = None
    """Which other devices may run the engine; null: `NONE`."""
    version_compatible: bool | None = None
    """The engine also runs on newer versions of TensorRT; null: it does not."""
    refittable: bool | None = None
    """The weights in the engine can be replaced; null: they cannot."""
    cuda_graph: bool | None = None
    """Kernel launches are recorded and replayed; null: if at most one axis is dynamic."""


class Bench(RecipeSection):
    """How latency is measured."""

    batches: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(strict=False)] = (1, 8)
    """The batch sizes to time."""
    seconds: float = Field(default=3.0, gt=0, le=3600)
    """The time per batch size, for candidate and baseline together."""
    warmup_seconds: float = Field(default=5.0, ge=0, le=600)
    """The longest warm-up of a session per batch size; it ends when the session is steady."""
    threads: int | None = Field(default=None, ge=1)
    """Threads within an operator; null: the physical cores."""
