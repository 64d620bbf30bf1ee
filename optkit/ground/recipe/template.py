"""A commented recipe for a new project, which `optkit init` writes.

It contains what is known without running code: the inputs of an .onnx file, or the arguments of
`forward`, from the source text, and weights in the same folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from optkit.facts.errors import UsageError
from optkit.facts.tensors import TensorInfo
from optkit.ground import places
from optkit.ground.data import arrays
from optkit.ground.data.reading import reader_of
from optkit.ground.recipe import factory_source, recipe_inputs, yaml_document
from optkit.ground.recipe.recipe import Recipe
from optkit.ground.recipe.recipe_inputs import InputLines
from optkit.ground.recipe.sections import Axis
from optkit.ground.recipe.torch_checkpoint import CHECKPOINTS, conversion, loader

_IDS = re.compile(r"ids|tokens?|mask|positions?")
_TOKENS = "int64, shape: [batch, sequence]"
_AXES = "axes:\n"
_BATCH = "  batch: {min: 1, opt: 8, max: 32}"


@dataclass(frozen=True)
class RecipeTemplate:
    """The text of a recipe, and the next steps, in words."""

    text: str
    then: str


@dataclass(frozen=True)
class _Weights:
    """The weights of a Python model: the file to load, and remarks; None if there is no such
    file."""

    file: str | None
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class Preset:
    """What the recipe of a new project has instead of optkit's suggestions. `axes`: ranges;
    `settings`: key → its value in one line of YAML, and a remark; `precision`: for the command that
    builds it."""

    axes: Mapping[str, Axis] = field(default_factory=dict)
    settings: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    precision: str | None = None

    def section(self, name: str, suggested: str, begin: str = "") -> str:
        """The lines of a section: `begin`, then its settings; without settings as suggested."""
        keys = {
            key.removeprefix(f"{name}."): self.settings[key]
            for key in self.settings
            if key.startswith(f"{name}.")
        }
        if not keys:
            return suggested
        lines = [f"  {key}: {value}  # {remark}" for key, (value, remark) in keys.items()]
        return "\n".join([begin or f"{name}:", *lines])


def template(
    model: str,
    out: Path,
    *,
    weights: str | None = None,
    calibration: str | None = None,
    evaluation: str | None = None,
    read: Sequence[TensorInfo] = (),
    preset: Preset = Preset(),
) -> RecipeTemplate:
    """The recipe `out` for MODEL ("file.py:factory", "x.onnx", "x.pt2", a Hugging Face folder or
    "org/name"). Paths are given relative to the current folder, and written relative to `out`.

    `weights`: a safetensors file; without it, the only one in the folder of the model's code.
    `calibration`: data, or a source by name or file; `evaluation`: a task; `read`: the inputs as
    the model itself declares them, if they were read from it; `preset`: settings. Raises
    UsageError, RecipeError for values that no recipe may have, and InputRefused for a file of
    arrays that cannot be read.
    """
    folder, python = out.resolve().parent, places.is_python_file(model)
    if weights is not None and not python:
        raise UsageError(
            "--weights needs a Python factory",
            where=f"--weights {weights}",
            hint="MODEL already contains its weights",
        )
    chosen = _weights(model, folder, weights) if python else _Weights(None, ())
    inputs = _inputs(model, calibration, read)
    precision = preset.precision or ("int8" if calibration else "fp16")
    samples = _calibration(folder, calibration)
    text = _TEMPLATE.format(
        name=places.model_name(model),
        model=_model(model, folder, chosen),
        inputs=inputs.lines,
        axes=_axes(preset.axes) if preset.axes else inputs.axes,
        calibration=preset.section("calibration", samples, samples),
        quantization=preset.section("quantization", _QUANTIZATION),
        evaluation=_evaluation(folder, evaluation),
        compiler=_compiler(preset),
        bench=preset.section("bench", _BENCH),
        precision=precision,
    )
    data = yaml_document.parse(text.encode(), str(out)).data
    assert isinstance(data, dict)
    Recipe.from_dict(data, folder).check_factory()
    free = inputs.free if calibration is None and evaluation is None else ()
    free = tuple(axis for axis in free if axis not in preset.axes)
    untrained = python and not chosen.file
    check = "check its inputs" if python else None
    if inputs.guessed is not None:
        check = f"check its inputs, whose {inputs.guessed} are guessed"
    return RecipeTemplate(text, _then(out, untrained, check, precision, free))


def _model(model: str, folder: Path, weights: _Weights) -> str:
    """The lines of the section `model`."""
    kind, python = places.model_key(model), places.is_python_file(model)
    named = _from(folder, model) if python or kind == "path" else model
    lines = [f"  {kind}: {_quoted(named)}"]
    if weights.file:
        lines.append(f"  weights: {_quoted(weights.file)}")
    lines += [f"  # {remark}" for remark in weights.remarks]
    if python and not weights.file:
        lines.append("  # weights: weights.safetensors")
    if python:
        lines += ["  # args: {}", f"  # {_DEPENDS}"]
    return "\n".join([*lines, "  # opset: 20            # for a runtime that knows no newer one"])


def _axes(given: Mapping[str, Axis]) -> str:
    rows = [
        f"  {_quoted(name)}: {{min: {axis.min}, opt: {axis.opt}, max: {axis.max}}}"
        for name, axis in given.items()
    ]
    return "\n".join(["axes:", *rows])


def _compiler(preset: Preset) -> str:
    """The section of the compiler, which is in a recipe only if something is set."""
    lines = preset.section("compiler", "")
    return f"# Options that override the rules of the target.\n{lines}\n\n" if lines else ""


def _then(
    out: Path, untrained: bool, check: str | None, precision: str, free: Sequence[str]
) -> str:
    named = "" if out == Path(places.PROJECT_RECIPE) else f"--recipe {out} "
    build = f"optkit build {named}--target l4 --precision {precision}"
    todo = [check] if check else []
    if untrained:
        todo.insert(0, "give model.weights (or load them in the factory: else they are random)")
    if free:
        todo.append(f"give a range to {', '.join(free)} under axes (or give --calibration)")
    return f"{' and '.join(todo)}, then: {build}" if todo else build


def _weights(model: str, folder: Path, given: str | None) -> _Weights:
    """The given weights, or those in the folder of the code."""
    if given is not None:
        return _Weights(_from(folder, given), ())
    code = Path(model.partition(":")[0]).resolve().parent
    beside = sorted(code.glob("*.safetensors"))
    if len(beside) == 1:
        return _Weights(_from(folder, beside[0]), ("the only weights beside the code",))
    if beside:
        names = ", ".join(_from(folder, file) for file in beside[:5])
        return _Weights(None, (f"choose one of {names}",))
    remarks = ["without weights a model is random, unless its factory loads them"]
    saved = sorted(file for file in code.glob("*") if file.suffix in CHECKPOINTS)
    if saved and loader(str(saved[0])) is None:
        lines, _ = conversion(_from(Path.cwd(), saved[0]))
        remarks += [f"{saved[0].name} becomes safetensors in Python by", *lines.splitlines()]
    return _Weights(None, tuple(remarks))


def _of_code(model: str | None) -> InputLines:
    """The required arguments of forward, by the text of the model's code; None: no code."""
    if model is None:
        return InputLines(f"# inputs:\n# {_input('input')}", _AXES + _BATCH)
    file, _, function = model.partition(":")
    required, optional = factory_source.forward(Path(file), function)
    side = factory_source.side(Path(file))
    guessed = "dtype and shape" if required else "name, dtype and shape"
    lines = ["inputs:", f"  # a guess: {guessed}"]
    lines += [_input(name, side) for name in required or ["input"]]
    if optional:
        lines.append(f"  # forward also takes {', '.join(optional)}")
    tokens = "\n  sequence: {min: 1, opt: 128, max: 512}" if _TOKENS in "".join(lines) else ""
    return InputLines("\n".join(lines), _AXES + _BATCH + tokens, guessed=guessed)


def _inputs(model: str, calibration: str | None, read: Sequence[TensorInfo]) -> InputLines:
    """The inputs as the model declares them, as the arrays of the data have them, or as the text of
    the code shows them."""
    if read:
        return recipe_inputs.of_model(read)
    python = places.is_python_file(model)
    if python and calibration is not None and reader_of(calibration) == "arrays":
        return _of_arrays(model, Path(calibration))
    return _of_code(model if python else None)


def _of_arrays(model: str, data: Path) -> InputLines:
    """The inputs of a Python model from its data. If the text of its code shows the arguments of
    forward, other arrays are left out."""
    file, _, function = model.partition(":")
    required, optional = factory_source.forward(Path(file), function)
    infos = arrays.declared(data, required)
    if required and set(required) <= {info.name for info in infos}:
        infos = [info for info in infos if info.name in (*required, *optional)]
    return recipe_inputs.of_model(infos)


def _input(name: str, side: int = factory_source.SIDE) -> str:
    images = f"float32, shape: [batch, 3, {side}, {side}]"
    return f"  {name}: {{dtype: {_TOKENS if _IDS.search(name) else images}}}"


def _calibration(folder: Path, given: str | None) -> str:
    if given is None:
        return _CALIBRATION
    reader = reader_of(given)
    lines = [f"  source: {reader or _source(folder, given)}", "  samples: 256"]
    if reader:
        lines.append(f"  args: {{path: {_quoted(_from(folder, given))}}}")
    elif places.is_python_file(given):
        lines.append(f"  # {_DEPENDS}")
    return "\n".join(["calibration:", *lines])


def _evaluation(folder: Path, given: str | None) -> str:
    if given is None:
        return _EVALUATION
    lines = [f"  task: {_source(folder, given)}", "  # args: {path: held-out}"]
    if places.is_python_file(given):
        lines.append(f"  # {_DEPENDS}")
    return "\n".join(["eval:", *lines])


def _source(folder: Path, named: str) -> str:
    """A source or task by name, or as a file."""
    return _quoted(_from(folder, named) if places.is_python_file(named) else named)


def _from(folder: Path, named: str | Path) -> str:
    """A path (possibly "file.py:function") in the current folder, relative to another folder."""
    path, colon, attribute = str(named).partition(":")
    seen = Path(os.path.relpath(Path(path).resolve(), folder.resolve())).as_posix()
    return f"{seen}{colon}{attribute}"


def _quoted(text: str) -> str:
    """A YAML string, without quotes if that is safe."""
    if re.fullmatch(r"[A-Za-z0-9_./][A-Za-z0-9_./-]*(:[A-Za-z_]\w*)?", text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


_DEPENDS = "depends: [data, $NAME]  # all that slow code reads: it then runs only if that changes"

_CALIBRATION = f"""\
# Needed for int8. A file with `samples(...)` that yields {{input name: array}} in batches, or a
# reader (text, images, arrays) with args: {{path: ...}}.
# calibration:
#   source: calibration.py
#   {_DEPENDS}
#   samples: 256
#   method: auto          # or minmax, percentile, entropy, mse
#   batch: 8"""

_EVALUATION = f"""\
# Needed to judge accuracy. A file with `samples()`, which yields (feed, labels) in batches,
# `score(outputs, labels)`, which returns one score per sample, and METRIC, the metric's name; or a
# task that comes along (top1, f1, perplexity, ...) with args: {{path: ...}}.
# eval:
#   task: evaluation.py
#   {_DEPENDS}"""

_QUANTIZATION = """\
# quantization:
#   weights: auto         # or rtn, mse, gptq, gptaq, awq, hqq
#   nodes: {"*head*": fp16}"""

_BENCH = """\
bench:
  batches: [1, 8]
  seconds: 3"""

_TEMPLATE = """\
# What to build and how to judge it. Then: optkit build --target l4 --precision {precision}

name: {name}

model:
{model}

# The model's inputs: correct dtype and shape. A word in a shape is a dynamic axis; `range` bounds
# integer inputs.
{inputs}

# Sizes the engine must take, and the one it is tuned for.
{axes}

{calibration}

# How weights are rounded, and which nodes are exceptions.
{quantization}

{evaluation}

# What must hold. Others: min_sqnr, max_latency_ms, min_speedup, min_throughput, max_bytes.
gates:
  max_drop: 1%

{compiler}{bench}
"""
