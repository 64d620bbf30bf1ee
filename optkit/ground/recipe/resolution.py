"""The recipe that a Request describes: it is found, then each setting is applied."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from optkit.facts.errors import RecipeError, UsageError, unknown_name, with_nearest_file
from optkit.facts.request import Request
from optkit.ground import places, shipped
from optkit.ground.data import arrays
from optkit.ground.data.reading import READ, reader_of
from optkit.ground.recipe import factory_source, torch_checkpoint
from optkit.ground.recipe.recipe import Recipe
from optkit.ground.recipe.shape_syntax import parse_shapes

BEGINNINGS = """begin in one of three ways:
  a model:  optkit build MODEL --target l4 --precision fp16, where MODEL is model.onnx, model.pt2,
            file.py:function, package.module:function, a Hugging Face folder or org/name
  a recipe: `optkit init MODEL` writes optkit.yaml, and in its folder you leave MODEL out
  Python:   optkit.build(module, example_inputs, target="l4", precision="fp16")
`optkit build --recipe digits-vit --target l4 --precision int8` builds the example that optkit \
contains"""
"""What a command without a model says."""

Shapes = Mapping[str, tuple[int | str, ...]]
"""Shapes by the name of an input; a dynamic axis is given by its name."""


def resolve(request: Request, shapes_of: Callable[[Recipe], Shapes] | None = None) -> Recipe:
    """The recipe from all settings of a request.

    shapes_of: reads the shapes of the inputs from the model itself, if shapes are given and the
    recipe declares no inputs; empty if the model does not declare them.

    Raises UsageError if there is neither a model nor a recipe, RecipeError for settings that do not
    fit, or for a factory that its module does not have.
    """
    found = _found(request)
    found.check_factory()
    recipe = requested(found, request, shapes_of)
    recipe.check_factory()
    return recipe


def requested(
    recipe: Recipe, request: Request, shapes_of: Callable[[Recipe], Shapes] | None = None
) -> Recipe:
    """A recipe with the settings of a request applied, except its model and its recipe."""
    recipe = _with_hugging_face(recipe, request)
    if request.calibration is not None:  # before the overrides, which may change its args
        recipe = _with_calibration(recipe, request.calibration)
    if request.ranges is not None:
        recipe = _with_ranges(recipe, request.ranges)
    if request.eval_task is not None:
        recipe = _with_task(recipe, request.eval_task)
    recipe = _with_array_inputs(recipe.with_overrides(request.overrides))
    if request.eval_data is not None:  # after the overrides, which may name the task
        recipe = _with_eval_data(recipe, request.eval_data)
    if request.trust_remote_code:
        _check_trust(recipe)
    return _with_shapes(recipe, request, shapes_of)


def _found(request: Request) -> Recipe:
    model, named = request.model, request.recipe
    if isinstance(named, Mapping):
        return Recipe.from_dict(named, model=model)
    if named is not None:
        return Recipe.load(places.find_recipe(str(named)), model)
    if model is not None:
        beside = places.model_recipe(model)
        return Recipe.for_model(model) if beside is None else Recipe.load(beside)
    default = places.default_recipe(Path.cwd())
    if default is None:
        raise UsageError("no model and no recipe", where="command line", hint=BEGINNINGS)
    return Recipe.load(default)


def _with_hugging_face(recipe: Recipe, request: Request) -> Recipe:
    """The recipe with the settings of a Hugging Face model: its task, an adapter to merge, and
    whether its own code may run."""
    trusted = request.trust_remote_code
    if not (trusted or request.task or request.adapter):
        return recipe
    origin = replace(recipe.origin, trusted=trusted)
    for key, value in (("task", request.task), ("adapter", request.adapter)):
        if value is not None:
            origin = origin.put(("model", key), value, f"--{key} {value}")
    return recipe.rebuilt(origin)


def _check_trust(recipe: Recipe) -> None:
    """Raise UsageError if there is nothing to trust."""
    model = recipe.model
    if model is None or not (model.is_hugging_face or model.custom_ops):
        raise UsageError(
            "only a Hugging Face model, and a graph with model.custom_ops, can contain code",
            where="--trust-remote-code",
            hint="leave it out; a Python factory runs without it",
        )


def _with_calibration(recipe: Recipe, named: str) -> Recipe:
    """The recipe with samples from a file or folder of data, which determines the reader (args for
    the same reader stay), or from a source by name or as file.py:function."""
    origin, where, reader = recipe.origin, f"--calibration {named}", reader_of(named)
    if not reader and not places.is_python_file(named) and _is_data(named):
        raise _no_data(named, where, list(recipe.inputs))
    if not reader or recipe.calibration is None or recipe.calibration.source != reader:
        origin = origin.put(("calibration", "source"), reader or named, where)
        origin = origin.put(("calibration", "args"), {}, where)
    if reader:
        origin = origin.put(("calibration", "args", "path"), named, where)
    return recipe.rebuilt(origin)


def _with_ranges(recipe: Recipe, path: str) -> Recipe:
    """The recipe with a file of ranges. Raises RecipeError for a file or folder of samples, which
    --calibration takes; a text may be either."""
    where = f"--calib {path}"
    if reader_of(path) in ("arrays", "images", "audio"):
        raise RecipeError(
            "these are samples, and --calib takes ranges that another tool has chosen",
            where=where,
            hint=f"give samples as --calibration {path}",
        )
    return recipe.rebuilt(recipe.origin.put(("calibration", "ranges"), path, where))


def _with_array_inputs(recipe: Recipe) -> Recipe:
    """The recipe of a Python model that declares no inputs with those for which the calibration
    data has arrays. Raises InputRefused for a file of arrays that cannot be read, or
    whose arrays have different numbers of samples."""
    source, samples = recipe.source, recipe.samples("calibration")
    data = None if samples is None else samples.data
    if source is None or source.kind != "python" or recipe.inputs:
        return recipe
    if data is None or reader_of(data) != "arrays":
        return recipe
    arrays.check_counts(data)
    origin, where = recipe.origin, f"the arrays of {data}"
    required: Sequence[str] = ()
    if source.place is not None:
        required, _ = factory_source.forward(source.place.path, str(source.attribute))
    for info in arrays.declared(data, required):
        row = {"dtype": info.dtype, "shape": list(info.shape)}
        origin = origin.put(("inputs", info.name), row, where)
    return recipe.rebuilt(origin)


def _no_data(named: str, where: str, inputs: Sequence[str]) -> RecipeError:
    """The error for a file of calibration data that optkit does not read. `inputs`: the names that
    the recipe declares."""
    if Path(named).exists() and Path(named).suffix.lower() in torch_checkpoint.CHECKPOINTS:
        name = inputs[0] if len(inputs) == 1 else "INPUT"
        code, new = torch_checkpoint.arrays(named, name)
        hint = (
            f"give --calibration {new}, a new file with one array for each input of the model, "
            f"under the name of the input; write it in Python:\n{code}"
        )
        problem = "a file of torch.save is a pickle, and optkit never loads pickles"
        return RecipeError(problem, where=where, hint=hint)
    hint = (
        f"supported: {'; '.join(READ.values())}; or name a source "
        f"({', '.join(shipped.source_names())}) or file.py:function"
    )
    if Path(named).exists():
        return RecipeError("unknown kind of data", where=where, hint=hint)
    hint = with_nearest_file(Path(named), hint)
    return RecipeError("no such file or folder", where=where, hint=hint)


def _with_task(recipe: Recipe, named: str) -> Recipe:
    """The recipe with this evaluation task; args for the same task stay."""
    origin, where = recipe.origin, f"--eval {named}"
    if recipe.eval is None or recipe.eval.task != named:
        origin = origin.put(("eval", "args"), {}, where)
    return recipe.rebuilt(origin.put(("eval", "task"), named, where))


def _with_eval_data(recipe: Recipe, path: str) -> Recipe:
    """The recipe with the path that the task reads. Raises RecipeError if there is no task."""
    where = f"--eval-data {path}"
    if recipe.eval is None:
        hint = "e.g. --eval top1"
        raise RecipeError("there is no task for these samples", where=where, hint=hint)
    return recipe.rebuilt(recipe.origin.put(("eval", "args", "path"), path, where))


def _with_shapes(
    recipe: Recipe, request: Request, shapes_of: Callable[[Recipe], Shapes] | None
) -> Recipe:
    """The recipe with axis ranges from shapes in trtexec's syntax ("image:1x3x224x224").

    Raises UsageError with the name of the option, or RecipeError if min ≤ opt ≤ max does not hold.
    """
    given = {
        ("--shapes", ("min", "opt", "max")): request.shapes,
        ("--min-shapes", ("min",)): request.min_shapes,
        ("--opt-shapes", ("opt",)): request.opt_shapes,
        ("--max-shapes", ("max",)): request.max_shapes,
    }
    if not any(given.values()):
        return recipe
    recipe = _with_inputs_of_shapes(recipe, given)
    declared: Shapes = {name: part.shape for name, part in recipe.inputs.items()}
    if not declared and shapes_of is not None:
        declared = shapes_of(recipe)
    ranges: dict[str, dict[str, int]] = {}
    places: dict[str, list[str]] = {}
    for (option, bounds), text in given.items():
        if text is None:
            continue
        for axis, size in _axis_sizes(text, declared, option).items():
            ranges.setdefault(axis, recipe.range_of(axis)).update(dict.fromkeys(bounds, size))
            places.setdefault(axis, []).append(f"{option} {text}")
    origin = recipe.origin
    for axis, sizes in ranges.items():
        origin = origin.put(("axes", axis), sizes, " ".join(places[axis]))
    return recipe.rebuilt(origin)


def _with_inputs_of_shapes(
    recipe: Recipe, given: Mapping[tuple[str, tuple[str, ...]], str | None]
) -> Recipe:
    """The recipe of a Python model that declares no inputs with those that the shapes name, in
    float32. A first size that all inputs have is the axis `batch`, and so is one that varies; other
    sizes are fixed."""
    if recipe.source is None or recipe.source.kind != "python" or recipe.inputs:
        return recipe
    options = {option: text for (option, _), text in given.items() if text is not None}
    shapes = [parse_shapes(text, where=option) for option, text in options.items()]
    where = " ".join(f"{option} {text}" for option, text in options.items())
    batches = [{shape[0] for shape in one.values() if shape} for one in shapes]
    origin = recipe.origin
    for name, (first, *rest) in shapes[-1].items():
        axis = "batch" if all(len(sizes) == 1 for sizes in batches) else first
        row = {"dtype": "float32", "shape": [axis, *rest]}
        origin = origin.put(("inputs", name), row, where)
    return recipe.rebuilt(origin)


def _is_data(named: str) -> bool:
    """Whether it has the form of a path, or is an existing path."""
    return "/" in named or bool(Path(named).suffix) or Path(named).exists()


def _axis_sizes(text: str, declared: Shapes, option: str) -> dict[str, int]:
    """Axis name → size, from shapes that must fit the declared ones."""
    sizes: dict[str, int] = {}
    for name, shape in parse_shapes(text, where=option).items():
        if not declared:
            hint = "declare them, e.g. inputs: {image: {dtype: float32, shape: [batch, 3, 8, 8]}}"
            raise UsageError("the recipe declares no inputs", where=option, hint=hint)
        if name not in declared:
            raise unknown_name("input", name, declared, where=option)
        axes = declared[name]
        wanted = "x".join(str(axis) for axis in axes)
        if len(shape) != len(axes):
            raise UsageError(
                f"{name} has {len(axes)} axes, not {len(shape)}",
                where=option,
                hint=f"{name} is {wanted}",
            )
        for i, (axis, size) in enumerate(zip(axes, shape, strict=True)):
            expected = axis if isinstance(axis, int) else sizes.setdefault(axis, size)
            if size != expected:
                problem = f"axis {i} of {name} is {expected}, not {size}"
                raise UsageError(problem, where=option, hint=f"{name} is {wanted}")
    return sizes
