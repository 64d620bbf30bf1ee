"""Finds the files that a recipe names.

They must exist in the recipe's project or be shipped with optkit. Files from the command line may
be anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from optkit.facts.errors import RecipeError, UsageError, nearest
from optkit.ground import places
from optkit.ground.artifact.manifest import MANIFEST
from optkit.ground.places import Place
from optkit.ground.recipe import factory_source, torch_checkpoint
from optkit.ground.recipe.model_sections import Model
from optkit.ground.recipe.origin import KeyPath, Origin, dotted
from optkit.ground.recipe.sections import MEMORY, Calibration, Eval

_MODULE_FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_TF = "tf2onnx"
_FOREIGN = {
    ".keras": ("Keras", _TF),
    ".h5": ("Keras", _TF),
    ".pb": ("TensorFlow", _TF),
    ".tflite": ("TensorFlow Lite", _TF),
    ".mlmodel": ("Core ML", "onnxmltools"),
    ".engine": ("TensorRT", None),
    ".plan": ("TensorRT", None),
    ".gguf": ("llama.cpp", None),
}
"""Suffix of a model of another program → the program, and what writes the model as ONNX."""
_OF_FILES = (*torch_checkpoint.CHECKPOINTS, ".safetensors", ".yaml", ".yml")
_ULTRALYTICS = re.compile(r"(yolo|rtdetr)[\w.-]*\.(pt|ya?ml)", re.IGNORECASE)
_MODEL_FORMS = (
    "a model is file.py:factory, package.module:factory, x.onnx, x.pt2, a Hugging Face folder or "
    "org/name on the hub"
)


def find_named(
    origin: Origin, model: Model | None, calibration: Calibration | None, evaluation: Eval | None
) -> dict[str, Place]:
    """Dotted key → the file that it names. Raises RecipeError for a file that is missing or not
    allowed."""
    finder = _Finder(origin)
    files = dict(finder.of_model(model)) if model is not None else {}
    if calibration is not None and calibration.ranges is not None:
        files |= [finder.place(("calibration", "ranges"), places.locate, calibration.ranges)]
    if calibration is not None and calibration.source not in (None, MEMORY):
        path = ("calibration", "source")
        files |= [finder.place(path, places.find_source, calibration.source)]
    if evaluation is not None:
        files |= [finder.place(("eval", "task"), places.find_task, evaluation.task)]
    return files


def check_factory(origin: Origin, factory: str, place: Place | None) -> None:
    """Raise RecipeError for a name that the factory's module does not have, if the text of its file
    shows that. `place`: None for an installed module. No code runs."""
    module, _, name = factory.rpartition(":")
    file = factory_source.module_file(module, origin.cwd) if place is None else place.path
    known = None if file is None else factory_source.names(file)
    if file is None or known is None or name in known:
        return
    close = nearest(name, (one for one in known if not one.startswith("_")))
    there = " or ".join(f"{module}:{one}" for one in close)
    hint = f"did you mean {there}?" if close else _forms(module, file)
    problem = f"{module} has no function or class {name!r}"
    raise origin.refused(("model", "factory"), problem, hint)


@dataclass(frozen=True)
class _Finder:
    origin: Origin

    def of_model(self, model: Model) -> Iterator[tuple[str, Place]]:
        if model.is_hugging_face:
            yield from self._folders(model)
        elif model.path is not None:
            yield self.place(("model", "path"), places.locate, model.path)
        if model.custom_ops is not None:
            yield self.place(("model", "custom_ops"), places.locate, model.custom_ops)
        if model.plugins is not None:
            yield self.place(("model", "plugins"), places.locate, model.plugins)
        if model.factory is not None and not self._is_module(model.factory):
            key, place = self.place(("model", "factory"), places.locate, model.factory)
            if place.attribute is None:
                raise self._refused(("model", "factory"), *_no_function(model.factory, place.path))
            yield key, place
        if model.weights is not None:
            if not model.weights.endswith(".safetensors"):
                code, new = torch_checkpoint.conversion(model.weights)
                hint = f"give --set model.weights={new}, a new file; write it in Python:\n{code}"
                if (load := torch_checkpoint.loader(model.weights)) is not None:
                    hint = (
                        "it holds a whole module: if you trust it, leave out model.weights, and "
                        f"load the module in the factory:\n{load[0]}"
                    )
                problem = f"{model.weights!r} is not .safetensors, and pickles are never loaded"
                raise self._refused(("model", "weights"), problem, hint)
            yield self.place(("model", "weights"), places.locate, model.weights)

    def place(self, path: KeyPath, find: Callable[..., Place], text: str) -> tuple[str, Place]:
        given = self.origin.is_given(path)
        base = self.origin.cwd if given else self.origin.base
        try:
            return dotted(path), find(text, base, anywhere=given)
        except UsageError as error:
            raise self._refused(path, error.message, error.hint) from None

    def _folders(self, model: Model) -> Iterator[tuple[str, Place]]:
        folder = partial(places.locate, folder=True)
        if model.path is not None:
            key, place = self.place(("model", "path"), folder, model.path)
            if (place.path / MANIFEST).is_file():
                hint = "name the model or the recipe that it was built from"
                problem = f"{model.path} is an artifact, which is built already"
                raise self._refused(("model", "path"), problem, hint)
            if not (place.path / places.HF_CONFIG).is_file():
                problem = f"{model.path} holds neither {places.PROJECT_RECIPE} nor config.json"
                hint = (
                    "a Hugging Face folder has config.json: write it with "
                    f"model.save_pretrained({model.path!r}); otherwise {_MODEL_FORMS}"
                )
                raise self._refused(("model", "path"), problem, hint)
            yield key, place
        if model.hub is not None and not places.is_hub_name(model.hub):
            raise self._refused(("model", "hub"), f"{model.hub!r} is not org/name", _MODEL_FORMS)
        if model.adapter is not None:
            yield self.place(("model", "adapter"), folder, model.adapter)

    def _is_module(self, factory: str) -> bool:
        """Whether it names an installed module, which is allowed only on the command line."""
        path = ("model", "factory")
        if places.is_python_file(factory):
            return False
        if not _MODULE_FACTORY.fullmatch(factory):
            base = self.origin.cwd if self.origin.is_given(path) else self.origin.base
            raise self._refused(path, *_no_factory(factory, base))
        if not self.origin.is_given(path):
            hint = "name a file.py:function, or give the module on the command line"
            raise self._refused(path, "a recipe may not name an installed module", hint)
        return True

    def _refused(self, path: KeyPath, problem: str, hint: str | None) -> RecipeError:
        return self.origin.refused(path, problem, hint)


def _no_factory(named: str, base: Path) -> tuple[str, str]:
    """The error for a model that does not have the form of a factory, with a hint."""
    suffix = Path(named).suffix.lower()
    if suffix in (*_OF_FILES, *_FOREIGN) and not (base / named).exists():
        return f"there is no file {named!r} here", _absent(named)
    with_code = (
        "write a recipe that names the code (optkit init file.py:factory --out recipe.yaml), check "
        "its inputs, and build it: optkit build --recipe recipe.yaml --set model.weights="
    )
    if suffix in torch_checkpoint.CHECKPOINTS:
        if (load := torch_checkpoint.loader(named)) is not None:
            return f"{named!r} holds a whole module, and pickles are never loaded", (
                f"if you trust it, write {load[1]}, whose factory runs the file's code, then "
                f"a recipe (optkit init {load[1]}:create --out recipe.yaml), check its inputs, "
                f"and give --recipe recipe.yaml instead of {named}; the lines of {load[1]}:\n"
                f"{load[0]}"
            )
        code, new = torch_checkpoint.conversion(named)
        hint = f"{with_code}{new}; make this file of weights in Python:\n{code}"
        return f"{named!r} is a checkpoint: it holds weights without the code of the model", hint
    if suffix == ".safetensors":
        return f"{named!r} holds weights without the code of the model", f"{with_code}{named}"
    if suffix in _FOREIGN:
        program, converter = _FOREIGN[suffix]
        hint = f"write it as ONNX with {converter}, and build the .onnx file"
        return (
            f"{named!r} is a model of {program}, which optkit does not read",
            hint if converter else "name the model that it was made of",
        )
    if suffix in (".yaml", ".yml"):
        return f"{named!r} is a recipe, not a model", f"give it as an option: --recipe {named}"
    if re.fullmatch(r"[\w.-]+", named):
        hint = f"a model of the Hugging Face hub needs its owner: OWNER/{named}; {_MODEL_FORMS}"
        return f"{named!r} is not a file, a folder or file.py:function here", hint
    return f"{named!r} is not file.py:function", _MODEL_FORMS


def _absent(named: str) -> str:
    """What to do about a file that is not there. The names of some are those of models that
    Ultralytics downloads or builds."""
    if not _ULTRALYTICS.fullmatch(Path(named).name):
        return "correct the path"
    lines = torch_checkpoint.ultralytics(named)
    return (
        "correct the path; if Ultralytics knows this name, write a file model.py and build "
        f"model.py:create; the lines of model.py:\n{lines}"
    )


def _no_function(named: str, file: Path) -> tuple[str, str]:
    """The error for a Python file without a function's name, with the functions that it has."""
    return "names no function", _forms(named, file)


def _forms(named: str, file: Path) -> str:
    """The hint that names what a Python file defines."""
    known = factory_source.defined(file)
    forms = " or ".join(f"{named}:{name}" for name in known[:3])
    return f"name what returns the model, e.g. {forms}" if known else _MODEL_FORMS
