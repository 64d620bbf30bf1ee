"""The Recipe: it is loaded, overridden and checked. Every error names its place and the nearest
key.

    Recipe.load("optkit.yaml").with_model("net.onnx").with_overrides(["gates.max_drop=1%"])

A recipe keeps its data and the place of each key (`origin`). So an override is validated exactly
like a file, and an error points at the line or the option that is wrong.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, JsonValue, PrivateAttr, ValidationError

from optkit.facts.codec import to_json
from optkit.facts.errors import RecipeError, nearest, unknown_name
from optkit.facts.tensors import AxisRange, InputSpec, TensorInfo, axes_of, batch_axis
from optkit.ground import places
from optkit.ground.places import Place
from optkit.ground.recipe import yaml_document
from optkit.ground.recipe.model_sections import Input, Model
from optkit.ground.recipe.named_files import check_factory, find_named
from optkit.ground.recipe.origin import HINT, KeyPath, Origin
from optkit.ground.recipe.problems import refusal
from optkit.ground.recipe.sections import (
    Axis,
    Bench,
    Calibration,
    Compiler,
    Eval,
    Gates,
    Name,
    Quantization,
    RecipeSection,
    fixed,
)

DEFAULT_BATCH = Axis(min=1, opt=8, max=32)
"""The range of an axis `batch` that no `axes:` declares."""


@dataclass(frozen=True)
class Source:
    """The source of the model, resolved. `place`: None for a factory of an installed module, or a
    model on the hub."""

    kind: Literal["python", "onnx", "pt2", "hf"]
    place: Place | None
    module: str | None = None
    attribute: str | None = None  # the factory
    weights: Place | None = None
    args: Mapping[str, object] = field(default_factory=dict)
    hub: str | None = None
    task: str | None = None
    adapter: Place | None = None
    part: str | None = None  # for an encoder-decoder
    trusted: bool = False  # whether the model's own code may run
    custom_ops: Place | None = None  # the library of the operators that ONNX Runtime lacks
    plugins: Place | None = None  # the library of the same operators for TensorRT

    @property
    def factory(self) -> str:
        """The name of a Python model's factory in keys, which is the same on every machine."""
        return f"{self.module}:{self.attribute}" if self.place is None else str(self.place)


SampleRole = Literal["calibration", "evaluation"]


@dataclass(frozen=True)
class SampleSource:
    """Code that yields samples, and its arguments. `section`: that of the recipe; `folders`: arg →
    the folder to which its relative path refers; `limit`: the number of samples to read; None:
    all."""

    section: Literal["calibration", "eval"]
    place: Place
    args: Mapping[str, object]
    folders: Mapping[str, Path]
    limit: int | None = None

    @property
    def data(self) -> Path | None:
        """The file or folder that a source or task of optkit reads; None for other code."""
        path = self.args.get("path")
        if self.place.root != "content" or not isinstance(path, str):
            return None
        return self.folders["path"] / path


_Axis = Annotated[
    Axis, BeforeValidator(fixed, json_schema_input_type=Axis | Annotated[int, Field(ge=1)])
]


class Recipe(RecipeSection):
    """The model and the settings of its build. Without `model`, the model is given by `with_model`
    or in memory."""

    name: Name
    """The first part of the artifact's name."""
    model: Model | None = None
    """The model; a command may name another one."""
    inputs: dict[str, Input] = Field(default_factory=dict)
    """Name → input; needed for a Python factory, else read from the model."""
    axes: dict[str, _Axis] = Field(default_factory=dict)
    """Name of a dynamic axis → its sizes, or one number for a single size. Without it `batch` has 1
    to 32, tuned for 8, and other axes have the sizes in the samples."""
    calibration: Calibration | None = None
    """The calibration data, which `int8` needs."""
    quantization: Quantization = Quantization()
    """How weights and activations are quantized."""
    eval: Eval | None = None
    """The task that judges accuracy; null: none does."""
    gates: Gates = Gates()
    """Limits that the artifact must keep."""
    compiler: Compiler = Compiler()
    """Options of the compiler."""
    bench: Bench = Bench()
    """How latency is measured."""

    _origin: Origin = PrivateAttr()
    _places: dict[str, Place] = PrivateAttr()

    @classmethod
    def load(cls, path: str | Path, model: str | None = None) -> Self:
        """Read a YAML recipe. `model` (see `with_model`) replaces the one that it names, which need
        not exist then. Raises RecipeError with file, line and column."""
        path = Path(path)
        if not path.is_file():
            raise RecipeError("no such recipe", where=str(path), hint="`optkit init` writes one")
        with path.open("rb") as file:
            parsed = yaml_document.parse(file.read(yaml_document.MAX_BYTES + 1), str(path))
        base = path.resolve().parent
        return cls._build(Origin(parsed.data, str(path), base, parsed.marks).modelled(model))

    @classmethod
    def from_dict(
        cls, data: Mapping[str, object], base: Path | None = None, model: str | None = None
    ) -> Self:
        """A recipe from plain data; files are relative to `base` (default: the current folder).
        `model` as in `load`."""
        base = (base or Path.cwd()).resolve()
        return cls._build(Origin(copy.deepcopy(dict(data)), "recipe", base).modelled(model))

    @classmethod
    def for_model(cls, model: str) -> Self:
        """A recipe with only the model, which gives the recipe its name."""
        return cls.from_dict({"name": places.model_name(model)}, model=model)

    def with_model(self, model: str) -> Self:
        """The recipe with another model: "file.py:factory", "package.module:factory", "x.onnx",
        "x.pt2" or a Hugging Face folder, relative to the current folder, or "org/name" on the hub.
        Raises RecipeError."""
        return self._build(self._origin.modelled(model))

    def with_inputs(self, specs: Iterable[InputSpec], axes: Mapping[str, AxisRange]) -> Self:
        """The recipe with the inputs and axis ranges of the model itself; ranges in the recipe
        stay."""
        inputs = {
            spec.info.name: Input.model_validate(
                {"dtype": spec.info.dtype, "shape": spec.info.shape, "range": spec.range}
            )
            for spec in specs
        }
        return self.model_copy(update={"inputs": inputs}).with_axes(axes)

    def with_axes(self, axes: Mapping[str, AxisRange]) -> Self:
        """The recipe with ranges for the axes that have none in it."""
        others = {name: Axis.model_validate(to_json(r)) for name, r in axes.items()}
        return self.model_copy(update={"axes": {**others, **self.axes}})

    def argument_folders(self, section: Literal["calibration", "eval"]) -> dict[str, Path]:
        """Arg of a section → the folder to which its relative path refers: the recipe's folder, or
        the current one for an arg from the command line."""
        settings, origin = self.calibration if section == "calibration" else self.eval, self._origin
        return {
            name: origin.cwd if origin.is_given((section, "args", name)) else origin.base
            for name in (settings.args if settings is not None else ())
        }

    def with_overrides(self, texts: Iterable[str]) -> Self:
        """The recipe with `key.path=value` settings applied, each value in YAML. Raises RecipeError
        whose `where` is the setting."""
        origin = self._origin
        for text in texts:
            origin = origin.overridden(text)
        return self.rebuilt(origin)

    @property
    def origin(self) -> Origin:
        """The data of the recipe, and the place of each key."""
        return self._origin

    def rebuilt(self, origin: Origin) -> Self:
        """The recipe from this data. Raises RecipeError."""
        return self._build(origin)

    @property
    def source(self) -> Source | None:
        """The source of the model; None if the recipe names no model."""
        if self.model is None:
            return None
        weights = self._places.get("model.weights")
        if self.model.is_hugging_face:
            return Source(
                "hf",
                self._places.get("model.path"),
                hub=self.model.hub,
                task=self.model.task,
                part=self.model.part,
                adapter=self._places.get("model.adapter"),
                trusted=self._origin.trusted,
            )
        if self.model.path is not None:
            kind: Literal["onnx", "pt2"] = "pt2" if self.model.path.endswith(".pt2") else "onnx"
            return Source(
                kind,
                self._places.get("model.path"),
                trusted=self._origin.trusted,
                custom_ops=self._places.get("model.custom_ops"),
                plugins=self._places.get("model.plugins"),
            )
        place = self._places.get("model.factory")
        args = self.model.args
        if place is not None:
            return Source("python", place, None, place.attribute, weights, args)
        module, _, attribute = str(self.model.factory).partition(":")
        return Source("python", None, module, attribute, weights, args)

    def check_factory(self) -> None:
        """Raise RecipeError if the module of the factory shows that it has no such function."""
        if self.model is not None and self.model.factory is not None:
            check_factory(self._origin, self.model.factory, self._places.get("model.factory"))

    @property
    def opset(self) -> int | None:
        """The newest opset that written graphs may have; None: any."""
        return None if self.model is None else self.model.opset

    @property
    def calibration_source(self) -> Place | None:
        """File and function of the calibration samples."""
        return self._places.get("calibration.source")

    @property
    def ranges_file(self) -> Place | None:
        """The file with ranges that another tool has chosen."""
        return self._places.get("calibration.ranges")

    @property
    def eval_task(self) -> Place | None:
        """File of the evaluation task."""
        return self._places.get("eval.task")

    def samples(self, role: SampleRole) -> SampleSource | None:
        """The source of the samples for a role; None if the recipe names no code for them."""
        if role == "calibration":
            place, settings = self.calibration_source, self.calibration
            if place is None or settings is None:
                return None
            folders = self.argument_folders("calibration")
            return SampleSource("calibration", place, settings.args, folders, settings.samples)
        if self.eval_task is None or self.eval is None:
            return None
        return SampleSource("eval", self.eval_task, self.eval.args, self.argument_folders("eval"))

    def axis_ranges(self) -> dict[str, AxisRange]:
        """The range of every dynamic axis; `batch` has a default if nothing declares it."""
        axes = dict(self.axes)
        if "batch" not in axes and (not self.inputs or "batch" in self._used_axes()):
            axes["batch"] = DEFAULT_BATCH
        return {name: AxisRange(**dict(axis)) for name, axis in axes.items()}

    def optional_axes(self) -> list[str]:
        """The axes that may be empty."""
        return [name for name, axis in self.axes.items() if not axis.min]

    def describe(self, model: Iterable[TensorInfo] | None = None) -> tuple[InputSpec, ...]:
        """The inputs of the recipe, or those of `model` with the ranges of the recipe. Raises
        RecipeError if the recipe's inputs do not fit those of the model."""
        declared = {
            name: InputSpec(TensorInfo(name, part.dtype, part.shape), part.range)
            for name, part in self.inputs.items()
        }
        if model is None:
            return tuple(declared.values())
        infos = {info.name: info for info in model}
        for name, spec in declared.items():
            if name not in infos:
                hint = unknown_name("input", name, infos).hint
                raise self._refused(("inputs", name), "the model has no such input", hint)
            if spec.info.dtype != infos[name].dtype:
                problem = f"the model wants {infos[name].dtype}, not {spec.info.dtype}"
                raise self._refused(("inputs", name, "dtype"), problem, "correct the recipe")
        ranges = {name: spec.range for name, spec in declared.items()}
        return tuple(InputSpec(info, ranges.get(name)) for name, info in infos.items())

    def to_json(self) -> dict[str, JsonValue]:
        """The recipe as JSON, the same on every machine: files are relative to a root, see `Place`.
        Without `depends`, which changes no result."""
        data = self.model_dump(mode="json")
        for section in ("model", "calibration", "eval"):
            (data[section] or {}).pop("depends", None)
        data |= {"axes": to_json(self.axis_ranges())}
        for key, place in self._places.items():
            section, _, name = key.partition(".")
            data[section][name] = str(place)
        if self._origin.trusted:
            # a record of the past, which a recipe cannot set
            data["model"]["trust_remote_code"] = True
        return data

    @classmethod
    def of_record(cls, record: Mapping[str, object]) -> Self:
        """The recipe that `to_json` wrote into a manifest or a report; the files that it names need
        not exist. Raises ValidationError."""
        data = dict(record)
        if isinstance(model := data.get("model"), dict):
            data["model"] = {key: model[key] for key in model if key != "trust_remote_code"}
        return cls.model_validate(data)

    @classmethod
    def _build(cls, origin: Origin) -> Self:
        if not isinstance(origin.data, dict):
            raise RecipeError("a recipe is a mapping of keys", where=origin.where(()), hint=HINT)
        origin.check_texts()
        try:
            recipe = cls.model_validate(origin.data)
        except ValidationError as error:
            raise refusal(error, origin, cls) from None
        recipe._origin = origin
        recipe._check_axes()
        recipe._places = find_named(origin, recipe.model, recipe.calibration, recipe.eval)
        return recipe

    def _used_axes(self) -> dict[str, KeyPath]:
        """Axis name → the first input whose shape contains it."""
        used: dict[str, KeyPath] = {}
        for name, part in self.inputs.items():
            for i, size in enumerate(part.shape):
                for axis in axes_of([size]):
                    used.setdefault(axis, ("inputs", name, "shape", i))
        return used

    def _check_axes(self) -> None:
        """Every axis in a shape must be declared, and every declared axis must be in a shape. A
        Hugging Face model has axes that the recipe need not contain; those of an `.onnx` file may
        take their sizes from the samples."""
        self._check_batch()
        if self.model is not None and self.model.is_hugging_face:
            return
        used = self._used_axes()
        source = self.model.path if self.model is not None else None
        sized_later = source is not None and source.endswith(".onnx")
        for axis, path in () if sized_later else used.items():
            if axis not in self.axes and axis != "batch":
                close = nearest(axis, self.axes)
                hint = f"did you mean {close[0]}? else add" if close else "add"
                hint += f" axes: {{{axis}: {{min: 1, opt: 8, max: 32}}}}"
                raise self._refused(path, f"axis {axis!r} is not declared", hint)
        for axis in self.axes if self.inputs else ():
            if axis not in used:
                close = nearest(axis, used)
                hint = f"did you mean {close[0]}?" if close else "remove it, or name it in a shape"
                raise self._refused(("axes", axis), "no input has this axis", hint)

    def _check_batch(self) -> None:
        batch = batch_axis(TensorInfo(n, i.dtype, i.shape) for n, i in self.inputs.items())
        for axis, span in self.axes.items():
            if axis in ("batch", batch) and not span.min:
                hint = "give 1 or more; only an axis of tokens of the past may be empty"
                raise self._refused(("axes", axis, "min"), "a batch is never empty", hint)

    def _refused(self, path: KeyPath, problem: str, hint: str | None) -> RecipeError:
        return self._origin.refused(path, problem, hint)

    def range_of(self, axis: str) -> dict[str, int]:
        """min, opt and max of an axis; empty if nothing declares it."""
        known = self.axes.get(axis) or (DEFAULT_BATCH if axis == "batch" else None)
        return {} if known is None else known.model_dump()
