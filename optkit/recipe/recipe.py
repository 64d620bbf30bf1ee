"""The Recipe: loaded, overridden, checked; every refusal names its place and the nearest key.

    Recipe.load("optkit.yaml").with_model("net.onnx").with_overrides(["gates.max_drop=1%"])

A recipe keeps the data it came from and where each key stands, so that an override is validated
exactly like a file, and an error points at the line, or at the option, that is wrong. Files that
it names must exist inside its project or be shipped with optkit; the command line may name any.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, Field, PrivateAttr, ValidationError

from optkit import places, shipped
from optkit.data.reading import READ, reader_of
from optkit.errors import RecipeError, UsageError, nearest, unknown_name
from optkit.places import Place
from optkit.recipe import checkpoint, document
from optkit.recipe.inputs import InputSpec
from optkit.recipe.schema import (
    MEMORY,
    Axis,
    Bench,
    Calibration,
    Compiler,
    Eval,
    Gates,
    Input,
    Model,
    Name,
    Part,
    Quantization,
    fixed,
)
from optkit.recipe.shapes import parse_shapes
from optkit.tensors import AxisRange, TensorInfo, axes_of, batch_axis

KeyPath = document.Path

DEFAULT_BATCH = Axis(min=1, opt=8, max=32)
"""The range of an axis named `batch` that no `axes:` declares."""

_MODULE_FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_MODEL_FORMS = (
    "a model is file.py:factory, package.module:factory, x.onnx, x.pt2, a Hugging Face folder or "
    "org/name on the hub"
)


@dataclass(frozen=True)
class Source:
    """Where the model comes from, resolved. `place` None: a factory of an installed module, or a
    model on the hub."""

    kind: Literal["python", "onnx", "pt2", "hf"]
    place: Place | None
    module: str | None = None
    attribute: str | None = None  # the factory
    weights: Place | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    hub: str | None = None
    task: str | None = None
    adapter: Place | None = None
    part: str | None = None  # of an encoder-decoder
    trusted: bool = False  # the model's own code may run


@dataclass(frozen=True)
class _Origin:
    """What a recipe was made from. `given`: keys that stand on the command line, whose files are
    relative to `cwd` and may be anywhere. `trusted`: so does --trust-remote-code."""

    data: Any
    name: str
    base: Path
    marks: Mapping[KeyPath, str] = field(default_factory=dict)
    given: tuple[KeyPath, ...] = ()
    cwd: Path = field(default_factory=Path.cwd)
    trusted: bool = False

    def where(self, path: KeyPath) -> str:
        """The most exact place known for a key path; an option that set part of it comes first."""
        for key in reversed(self.given):
            if path and key[: len(path)] == path:
                return self.marks[key]
        for end in range(len(path), -1, -1):
            if path[:end] in self.marks:
                return self.marks[path[:end]]
        return ":".join([self.name, *([_dotted(path)] if path else [])])

    def is_given(self, path: KeyPath) -> bool:
        return any(path[:end] in self.given for end in range(1, len(path) + 1))

    def modelled(self, model: str | None) -> _Origin:
        """With that model in place of the one that is named; None changes nothing."""
        if model is None or not isinstance(self.data, dict):  # what is no mapping is refused later
            return self
        return self.put(("model",), {places.model_key(model): model}, f"MODEL {model}")

    def put(self, path: KeyPath, value: Any, where: str) -> _Origin:
        """With `value` at `path`, as given by the option `where`. Missing sections are created."""
        data = copy.deepcopy(self.data)
        marks = {key: mark for key, mark in self.marks.items() if key[: len(path)] != path}
        section = data
        for depth, part in enumerate(path[:-1], start=1):
            if section.get(part) is None:
                section[part] = {}
                marks.setdefault(path[:depth], where)
            section = section[part]
            if not isinstance(section, dict):
                raise RecipeError(f"{_dotted(path[:depth])} holds no keys", where=where, hint=_HINT)
        section[path[-1]] = value
        marks[path] = where
        given = tuple(key for key in self.given if key[: len(path)] != path)
        return replace(self, data=data, marks=marks, given=(*given, path))


class Recipe(Part):
    """What to do with which model. Without `model`, one is given by `with_model` or in memory."""

    name: Name
    model: Model | None = None
    inputs: dict[str, Input] = Field(default_factory=dict)
    axes: dict[str, Annotated[Axis, BeforeValidator(fixed)]] = Field(default_factory=dict)
    calibration: Calibration | None = None
    quantization: Quantization = Quantization()
    eval: Eval | None = None
    gates: Gates = Gates()
    compiler: Compiler = Compiler()
    bench: Bench = Bench()

    _origin: _Origin = PrivateAttr()
    _places: dict[str, Place] = PrivateAttr()

    @classmethod
    def load(cls, path: str | Path, model: str | None = None) -> Self:
        """Read a YAML recipe, with `model` (see `with_model`) instead of the one it names, which
        then need not exist. Raises RecipeError with file, line and column."""
        path = Path(path)
        if not path.is_file():
            raise RecipeError("no such recipe", where=str(path), hint="`optkit init` writes one")
        with path.open("rb") as file:
            parsed = document.parse(file.read(document.MAX_BYTES + 1), str(path))
        base = path.resolve().parent
        return cls._build(_Origin(parsed.data, str(path), base, parsed.marks).modelled(model))

    @classmethod
    def from_dict(
        cls, data: Mapping[str, Any], base: Path | None = None, model: str | None = None
    ) -> Self:
        """A recipe from plain data; files are relative to `base` (default: the current folder).
        `model` as for `load`."""
        base = (base or Path.cwd()).resolve()
        return cls._build(_Origin(copy.deepcopy(dict(data)), "recipe", base).modelled(model))

    @classmethod
    def for_model(cls, model: str) -> Self:
        """A recipe that says nothing but the model, which gives its name."""
        return cls.from_dict({"name": places.model_name(model)}, model=model)

    def with_model(self, model: str) -> Self:
        """With `model` instead of the recipe's: "file.py:factory", "package.module:factory",
        "x.onnx", "x.pt2" or a Hugging Face folder, relative to the current folder, or "org/name" on
        the hub. Raises RecipeError."""
        return self._build(self._origin.modelled(model))

    def with_hugging_face(
        self, *, task: str | None = None, adapter: str | None = None, trusted: bool = False
    ) -> Self:
        """With what the command line says of a Hugging Face model: its task, an adapter to merge,
        and whether its own code may run. Raises RecipeError."""
        origin = replace(self._origin, trusted=trusted)
        for key, value in (("task", task), ("adapter", adapter)):
            if value is not None:
                origin = origin.put(("model", key), value, f"--{key} {value}")
        found = self._build(origin)
        if trusted and (found.model is None or not found.model.is_hugging_face):
            raise UsageError(
                "only a Hugging Face model brings code along",
                where="--trust-remote-code",
                hint="leave it out; a Python factory runs without it",
            )
        return found

    def with_inputs(self, specs: Iterable[InputSpec], axes: Mapping[str, AxisRange]) -> Self:
        """With the inputs and axis ranges of the model itself; what the recipe says of an axis
        stays."""
        inputs = {
            spec.info.name: Input.model_validate(
                {"dtype": spec.info.dtype, "shape": spec.info.shape, "range": spec.range}
            )
            for spec in specs
        }
        return self.model_copy(update={"inputs": inputs}).with_axes(axes)

    def with_axes(self, axes: Mapping[str, AxisRange]) -> Self:
        """With ranges for the axes of which the recipe says nothing."""
        own = {name: Axis(min=one.min, opt=one.opt, max=one.max) for name, one in axes.items()}
        return self.model_copy(update={"axes": {**own, **self.axes}})

    def with_calibration(self, named: str) -> Self:
        """With the samples that --calibration names: a file or folder of data relative to the
        current one, which says the reader (args that the recipe has for the same reader stay), or a
        source by name or as file.py:function. Raises RecipeError."""
        origin, where, reader = self._origin, f"--calibration {named}", reader_of(named)
        if not reader and not places.is_python_file(named) and _is_data(named):
            raise RecipeError(
                "unknown kind of data" if Path(named).exists() else "no such file or folder",
                where=where,
                hint=f"read are {'; '.join(READ.values())}; or name a source "
                f"({', '.join(shipped.source_names())}) or file.py:function",
            )
        if not reader or self.calibration is None or self.calibration.source != reader:
            origin = origin.put(("calibration", "source"), reader or named, where)
            origin = origin.put(("calibration", "args"), {}, where)
        if reader:
            origin = origin.put(("calibration", "args", "path"), named, where)
        return self._build(origin)

    def with_eval(self, named: str) -> Self:
        """With the task that --eval names, by name or as file.py relative to the current folder;
        args that the recipe has for the same task stay. Raises RecipeError."""
        origin, where = self._origin, f"--eval {named}"
        if self.eval is None or self.eval.task != named:
            origin = origin.put(("eval", "args"), {}, where)
        return self._build(origin.put(("eval", "task"), named, where))

    def with_eval_data(self, path: str) -> Self:
        """With the path that --eval-data gives to the task, relative to the current folder. Raises
        RecipeError when there is no task."""
        where = f"--eval-data {path}"
        if self.eval is None:
            hint = "e.g. --eval top1"
            raise RecipeError("there is no task to score it", where=where, hint=hint)
        return self._build(self._origin.put(("eval", "args", "path"), path, where))

    def argument_folders(self, section: str) -> dict[str, Path]:
        """Where a relative path starts, for each of the args of `section` (calibration or eval):
        the recipe's folder, or for what stands on the command line the current one."""
        origin = self._origin
        args = (origin.data.get(section) or {}).get("args") or {}
        return {
            name: origin.cwd if origin.is_given((section, "args", name)) else origin.base
            for name in args
        }

    def with_overrides(self, texts: Iterable[str]) -> Self:
        """With `key.path=value` settings on top, each value in YAML. Raises RecipeError whose
        `where` is the setting."""
        origin = self._origin
        for text in texts:
            where = f"--set {text}"
            name, equals, value = text.partition("=")
            if not equals or not name.strip(".") or ".." in name:
                raise RecipeError("not KEY=VALUE", where=where, hint="e.g. --set gates.max_drop=1%")
            origin = origin.put(_key_path(name.strip(), origin.data), _value(value, where), where)
        return self._build(origin)

    def with_shapes(
        self,
        *,
        min: str | None = None,
        opt: str | None = None,
        max: str | None = None,
        all: str | None = None,
        inputs: Mapping[str, tuple[int | str, ...]] | None = None,
    ) -> Self:
        """With axis ranges from shapes in trtexec's syntax ("image:1x3x224x224"). `all` is for all
        three; `inputs` are the model's own (name → shape) where the recipe declares none.

        Raises UsageError naming the option, or RecipeError when min ≤ opt ≤ max does not hold.
        """
        declared = inputs or {name: part.shape for name, part in self.inputs.items()}
        ranges: dict[str, dict[str, int]] = {}
        told: dict[str, list[str]] = {}
        for bound, text in (("", all), ("min", min), ("opt", opt), ("max", max)):
            if text is None:
                continue
            option = f"--{bound}-shapes" if bound else "--shapes"
            for axis, size in _axis_sizes(text, declared, option).items():
                now = ranges.setdefault(axis, self._range(axis))
                now.update({bound: size} if bound else {"min": size, "opt": size, "max": size})
                told.setdefault(axis, []).append(f"{option} {text}")
        origin = self._origin
        for axis, bounds in ranges.items():
            origin = origin.put(("axes", axis), bounds, " ".join(told[axis]))
        return self._build(origin)

    @property
    def source(self) -> Source | None:
        """The model's origin; None when the recipe names no model."""
        if self.model is None:
            return None
        weights = self._places.get("model.weights")
        if self.model.is_hugging_face:
            return Source(
                "hf", self._places.get("model.path"), hub=self.model.hub, task=self.model.task,
                part=self.model.part,
                adapter=self._places.get("model.adapter"), trusted=self._origin.trusted,
            )  # fmt: skip
        if self.model.path is not None:
            kind: Literal["onnx", "pt2"] = "pt2" if self.model.path.endswith(".pt2") else "onnx"
            return Source(kind, self._places["model.path"])
        place = self._places.get("model.factory")
        args = self.model.args
        if place is not None:
            return Source("python", place, None, place.attribute, weights, args)
        module, _, attribute = str(self.model.factory).partition(":")
        return Source("python", None, module, attribute, weights, args)

    @property
    def calibration_source(self) -> Place | None:
        """File and function of the calibration samples."""
        return self._places.get("calibration.source")

    @property
    def eval_task(self) -> Place | None:
        """File of the evaluation task."""
        return self._places.get("eval.task")

    def axis_ranges(self) -> dict[str, AxisRange]:
        """Range of every dynamic axis; `batch` has a default where nothing declares it."""
        axes = dict(self.axes)
        if "batch" not in axes and (not self.inputs or "batch" in self._used_axes()):
            axes["batch"] = DEFAULT_BATCH
        return {name: AxisRange(axis.min, axis.opt, axis.max) for name, axis in axes.items()}

    def optional_axes(self) -> list[str]:
        """The axes that may be empty."""
        return [name for name, axis in self.axes.items() if not axis.min]

    def describe(self, model: Iterable[TensorInfo] | None = None) -> tuple[InputSpec, ...]:
        """The inputs: the recipe's, or `model`'s own with the recipe's ranges. Raises RecipeError
        when the recipe's do not fit the model's."""
        declared = {
            name: InputSpec(TensorInfo(name, part.dtype, part.shape), part.range)
            for name, part in self.inputs.items()
        }
        if model is None:
            return tuple(declared.values())
        infos = {info.name: info for info in model}
        for name, spec in declared.items():
            if name not in infos:
                told = unknown_name("input", name, infos)
                raise self._refused(("inputs", name), "the model has no such input", told.hint)
            if spec.info.dtype != infos[name].dtype:
                problem = f"the model wants {infos[name].dtype}, not {spec.info.dtype}"
                raise self._refused(("inputs", name, "dtype"), problem, "correct the recipe")
        ranges = {name: spec.range for name, spec in declared.items()}
        return tuple(InputSpec(info, ranges.get(name)) for name, info in infos.items())

    def to_json(self) -> dict[str, Any]:
        """Canonical: the same on every machine, files told by what they are relative to."""
        data = self.model_dump(mode="json")
        data["axes"] = {
            name: {"min": axis.min, "opt": axis.opt, "max": axis.max}
            for name, axis in self.axis_ranges().items()
        }
        for key, place in self._places.items():
            section, _, name = key.partition(".")
            data[section][name] = str(place)
        if self._origin.trusted:
            data["model"]["trust_remote_code"] = True  # a record, which no recipe can ask for
        return data

    @classmethod
    def _build(cls, origin: _Origin) -> Self:
        if not isinstance(origin.data, dict):
            raise RecipeError("a recipe is a mapping of keys", where=origin.where(()), hint=_HINT)
        try:
            recipe = cls.model_validate(origin.data)
        except ValidationError as error:
            raise _told(error, origin) from None
        recipe._origin = origin
        recipe._check_axes()
        recipe._places = dict(recipe._find_places())
        return recipe

    def _used_axes(self) -> dict[str, KeyPath]:
        """Axis name → where an input's shape first names it."""
        used: dict[str, KeyPath] = {}
        for name, part in self.inputs.items():
            for i, size in enumerate(part.shape):
                for axis in axes_of([size]):
                    used.setdefault(axis, ("inputs", name, "shape", i))
        return used

    def _check_axes(self) -> None:
        used, of_model = self._used_axes(), self.model is not None and self.model.is_hugging_face
        for axis, path in used.items():
            if axis not in self.axes and axis != "batch" and not of_model:
                close = nearest(axis, self.axes)
                hint = f"did you mean {close[0]}? else add" if close else "add"
                raise RecipeError(
                    f"{_dotted(path)}: axis {axis!r} is not declared",
                    where=self._origin.where(path),
                    hint=f"{hint} axes: {{{axis}: {{min: 1, opt: 8, max: 32}}}}",
                )
        batch = batch_axis(TensorInfo(n, i.dtype, i.shape) for n, i in self.inputs.items())
        for name, span in self.axes.items():
            if name in ("batch", batch) and not span.min:
                hint = "give 1 or more; only an axis of tokens of the past may be empty"
                raise self._refused(("axes", name, "min"), "a batch is never empty", hint)
        for axis in self.axes:
            if self.inputs and axis not in used and not of_model:
                path = ("axes", axis)
                close = nearest(axis, used)
                hint = f"did you mean {close[0]}?" if close else "remove it, or name it in a shape"
                raise RecipeError(
                    f"{_dotted(path)}: no input has this axis",
                    where=self._origin.where(path),
                    hint=hint,
                )

    def _find_places(self) -> Iterable[tuple[str, Place]]:
        model, find = self.model, self._place
        if model is not None and model.is_hugging_face:
            yield from self._find_folders(model)
        elif model is not None and model.path is not None:
            yield find(("model", "path"), places.locate, model.path)
        if model is not None and model.factory is not None and not self._is_module(model.factory):
            key, place = find(("model", "factory"), places.locate, model.factory)
            if place.attribute is None:
                raise self._refused(("model", "factory"), "names no function", _MODEL_FORMS)
            yield key, place
        if model is not None and model.weights is not None:
            if not model.weights.endswith(".safetensors"):
                hint = "save them as safetensors, in Python:\n" + checkpoint.conversion(
                    model.weights
                )
                problem = f"{model.weights!r} is not .safetensors, and pickles are never loaded"
                raise self._refused(("model", "weights"), problem, hint)
            yield find(("model", "weights"), places.locate, model.weights)
        if self.calibration is not None and self.calibration.source != MEMORY:
            path = ("calibration", "source")
            yield find(path, places.find_source, self.calibration.source)
        if self.eval is not None:
            yield find(("eval", "task"), places.find_task, self.eval.task)

    def _find_folders(self, model: Model) -> Iterable[tuple[str, Place]]:
        folder = partial(places.locate, folder=True)
        if model.path is not None:
            key, place = self._place(("model", "path"), folder, model.path)
            if not (place.path / places.HF_CONFIG).is_file():
                problem = f"{model.path} holds neither {places.PROJECT_RECIPE} nor config.json"
                raise self._refused(("model", "path"), problem, _MODEL_FORMS)
            yield key, place
        if model.hub is not None and not places.is_hub_name(model.hub):
            raise self._refused(("model", "hub"), f"{model.hub!r} is not org/name", _MODEL_FORMS)
        if model.adapter is not None:
            yield self._place(("model", "adapter"), folder, model.adapter)

    def _is_module(self, factory: str) -> bool:
        """Whether it names an installed module, which only the command line may do."""
        path = ("model", "factory")
        if places.is_python_file(factory):
            return False
        if not _MODULE_FACTORY.fullmatch(factory):
            raise self._refused(path, *_no_factory(factory))
        if not self._origin.is_given(path):
            hint = "name a file.py:function, or give the module on the command line"
            raise self._refused(path, "a recipe may not name an installed module", hint)
        return True

    def _place(self, path: KeyPath, find: Any, text: str) -> tuple[str, Place]:
        given = self._origin.is_given(path)
        base = self._origin.cwd if given else self._origin.base
        try:
            return _dotted(path), find(text, base, anywhere=given)
        except UsageError as error:
            raise self._refused(path, error.message, error.hint) from None

    def _refused(self, path: KeyPath, problem: str, hint: str | None) -> RecipeError:
        return RecipeError(
            f"{_dotted(path)}: {problem}", where=self._origin.where(path), hint=hint or _HINT
        )

    def _range(self, axis: str) -> dict[str, int]:
        known = self.axes.get(axis) or (DEFAULT_BATCH if axis == "batch" else None)
        return {} if known is None else known.model_dump()


def _no_factory(named: str) -> tuple[str, str]:
    """What is wrong with a model that reads like no factory, and what to do."""
    suffix = Path(named).suffix.lower()
    with_code = "optkit build file.py:factory --set model.weights="
    if suffix in checkpoint.CHECKPOINTS:
        return (
            f"{named!r} is a checkpoint: weights, or a pickle, without the code of the model",
            f"name the code, and give the weights as safetensors: {with_code}"
            f"{Path(named).with_suffix('.safetensors').name}, made in Python by\n"
            + checkpoint.conversion(named),
        )
    if suffix == ".safetensors":
        return f"{named!r} holds weights without the code of the model", f"{with_code}{named}"
    if suffix in (".yaml", ".yml"):
        return f"{named!r} is a recipe, not a model", f"--recipe {named}"
    return f"{named!r} is not file.py:function", _MODEL_FORMS


def _is_data(named: str) -> bool:
    """Whether it reads like a path, or is one."""
    return "/" in named or bool(Path(named).suffix) or Path(named).exists()


_HINT = "`optkit init` writes a commented example"


def _dotted(path: KeyPath) -> str:
    return ".".join(str(part) for part in path)


def _key_path(name: str, data: Any) -> KeyPath:
    """Split at dots, except that an existing key with dots ("inputs.input.1") stays whole."""
    parts = name.split(".")
    path: list[str] = []
    while parts:
        whole = 1
        for count in range(len(parts), 1, -1):
            if isinstance(data, dict) and ".".join(parts[:count]) in data:
                whole = count
                break
        path.append(".".join(parts[:whole]))
        data = data.get(path[-1]) if isinstance(data, dict) else None
        parts = parts[whole:]
    return tuple(path)


def _value(text: str, where: str) -> Any:
    if not text.strip():
        return None
    try:
        return document.parse(text.encode(), where).data
    except RecipeError as error:
        raise RecipeError(error.message, where=where, hint=error.hint) from None


def _axis_sizes(
    text: str, declared: Mapping[str, tuple[int | str, ...]], option: str
) -> dict[str, int]:
    """Axis name → size, from shapes that must fit the declared ones."""
    sizes: dict[str, int] = {}
    for name, shape in parse_shapes(text, where=option).items():
        if not declared:
            hint = "declare them, e.g. inputs: {image: {dtype: float32, shape: [batch, 3, 8, 8]}}"
            raise UsageError("the recipe declares no inputs", where=option, hint=hint)
        if name not in declared:
            raise unknown_name("input", name, declared, where=option)
        axes = declared[name]
        told = "x".join(str(axis) for axis in axes)
        if len(shape) != len(axes):
            raise UsageError(
                f"{name} has {len(axes)} axes, not {len(shape)}",
                where=option,
                hint=f"{name} is {told}",
            )
        for i, (axis, size) in enumerate(zip(axes, shape, strict=True)):
            expected = axis if isinstance(axis, int) else sizes.setdefault(axis, size)
            if size != expected:
                problem = f"axis {i} of {name} is {expected}, not {size}"
                raise UsageError(problem, where=option, hint=f"{name} is {told}")
    return sizes


def _told(error: ValidationError, origin: _Origin) -> RecipeError:
    """The first problem; an unknown key before all others, for it is often why one is missing."""
    problems = error.errors()
    problem = min(problems, key=lambda p: p["type"] != "extra_forbidden")
    path = _existing(problem["loc"], origin.data)
    kind, value = problem["type"], problem["input"]
    hint = _HINT
    if kind == "extra_forbidden":
        known = _keys(path[:-1])
        close = nearest(str(path[-1]), known)
        hint = f"did you mean {' or '.join(close)}?" if close else f"keys here: {', '.join(known)}"
        text = "unknown key"
    elif kind == "missing":
        text = f"key {problem['loc'][-1]!r} is missing"
    elif kind == "literal_error":
        known = re.findall(r"'(.*?)'", problem["ctx"]["expected"])
        close = nearest(str(value), known)
        hint = f"did you mean {close[0]}? known: {', '.join(known)}" if close else hint
        text = f"{value!r} is not one of {problem['ctx']['expected']}"
    elif kind == "value_error":
        text = str(problem["ctx"]["error"])
        hint = "give min, opt and max, min ≤ opt ≤ max" if path[:1] == ("axes",) else hint
    else:
        text = f"{problem['msg'][0].lower()}{problem['msg'][1:]}, not {repr(value)[:60]}"
    text = f"{_dotted(path)}: {text}" if path else text
    if len(problems) > 1:
        text += f" (1 of {len(problems)} problems)"
    return RecipeError(text, where=origin.where(path), hint=hint)


def _existing(location: tuple[str | int, ...], data: Any) -> KeyPath:
    """The part of a pydantic location that is in the data (it also names union members)."""
    path: list[str | int] = []
    for part in location:
        inside = part in data if isinstance(data, dict) else False
        inside = inside or (isinstance(data, list | tuple) and isinstance(part, int))
        if not inside:
            break
        path.append(part)
        data = data[part]
    return tuple(path)


def _keys(path: KeyPath) -> list[str]:
    """The keys a section may have; names of inputs and axes on the way are passed over."""
    here: type[BaseModel] = Recipe
    for part in path:
        found = here.model_fields.get(str(part))
        here = (_model_in(found.annotation) if found else None) or here
    return sorted(here.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((m for a in get_args(annotation) if (m := _model_in(a)) is not None), None)
