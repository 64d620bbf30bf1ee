"""The names that `import optkit` offers, and the objects behind them."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import pickle  # noqa: TID251  (errors travel between processes)
import pkgutil
import re
import traceback
from pathlib import Path

import pytest

import optkit
from optkit.verbs import api

PUBLIC = {
    "Artifact", "Budget", "DecoderSizes", "Recipe", "Request", "Sampling", "SearchOptions",
    "Speculation", "Target", "Workspace", "attest", "bench", "build", "build_fleet", "compile",
    "diff", "errors", "evaluate", "explain", "export", "finish", "fuse", "generate", "inspect",
    "load", "package", "plan", "quantize", "sign", "targets", "tune", "verify",
}  # fmt: skip


def test_the_public_names_are_these() -> None:
    assert set(optkit.__all__) == PUBLIC
    assert len(optkit.__all__) == len(PUBLIC)
    assert dir(optkit) == sorted(PUBLIC)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_name_resolves_and_is_documented(name: str) -> None:
    found = getattr(optkit, name)
    assert inspect.getdoc(found)
    if inspect.isfunction(found):
        signature = inspect.signature(found)
        assert found.__annotations__.keys() == {*signature.parameters, "return"}
        assert re.search(r"\b(Any|dict)\b", str(signature.return_annotation)) is None


@pytest.mark.parametrize("name", sorted(api.__all__))
def test_every_parameter_of_a_public_function_has_a_type(name: str) -> None:
    """None is `Any`, and none is `**options`: a type checker sees a misspelt keyword."""
    for parameter in inspect.signature(getattr(api, name)).parameters.values():
        assert parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        assert re.search(r"\bAny\b", parameter.annotation) is None, parameter


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nosuch"):
        _ = optkit.nosuch
    assert not hasattr(optkit, "tune_everything")


def test_star_import_gives_the_public_names() -> None:
    found: dict[str, object] = {}
    exec("from optkit import *", found)
    assert found.keys() >= PUBLIC


def test_no_module_bears_a_public_functions_name() -> None:
    """Else `optkit.export` would turn into a module once that module is imported."""
    modules = {module.name for module in pkgutil.iter_modules(optkit.__path__)}
    functions = {name for name in PUBLIC if inspect.isfunction(getattr(optkit, name))}
    assert not modules & functions
    for name in sorted(modules - {"worker"}):
        importlib.import_module(f"optkit.{name}")
    assert all(inspect.isfunction(getattr(optkit, name)) for name in functions)


def test_every_error_has_its_documented_exit_code() -> None:
    codes = {
        "OptkitError": 1, "UsageError": 2, "RecipeError": 2, "UnknownName": 2, "GateFailed": 3,
        "ToolchainMissing": 4, "InputRefused": 5, "UnsafeFile": 5, "ExportFailed": 5,
        "Impossible": 5, "WorkerFailed": 6, "IntegrityError": 7, "StorageError": 8,
    }  # fmt: skip
    classes = {
        name: found
        for name, found in vars(optkit.errors).items()
        if inspect.isclass(found) and issubclass(found, optkit.errors.OptkitError)
    }
    assert {name: found.exit_code for name, found in classes.items()} == codes
    for name, found in classes.items():
        told = optkit.errors.from_json(found("what", where="where", hint="do").to_json())
        assert type(told) is found and str(told) == "where: what\nhint: do", name
        assert (told.where, told.hint) == ("where", "do")


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(optkit.__file__).parent / "py.typed").exists()


def test_the_version_is_the_distributions() -> None:
    assert optkit.__version__ == importlib.metadata.version("optkit")


# what a script reads of the documents that the public functions return
USER = """
built = optkit.build("model.onnx", target="l4")
planned = optkit.plan(target="l4", decoder=optkit.DecoderSizes(8e9, 32, 8, 128))
milliseconds: float = planned.results[0].latency[0].p50_ms
why: tuple[str, ...] = tuple(one.what for one in optkit.explain(built.path).findings)
same: bool = optkit.diff("a.onnx", "b.onnx").same
files: list[str] = [one.name for one in optkit.package(built.path, format="triton").files]
signed: str = optkit.sign(built.path, key="private.pem").digest
notes: tuple[str, ...] = optkit.verify(built.path).notes
written: int = optkit.attest(built.path).files[0].bytes
knee: int | None = optkit.bench("model.onnx", target="cpu").sweep.knee
verdict: str = optkit.evaluate("model.onnx", target="cpu").gate.verdict
graph = optkit.inspect("model.onnx").graph
macs: int = 0 if graph is None else graph.macs
"""


@pytest.mark.slow
def test_public_names_and_what_they_return_are_known_to_a_type_checker(tmp_path: Path) -> None:
    from mypy import api as mypy

    file = tmp_path / "user.py"
    names = "".join(f"optkit.{name}\n" for name in (*optkit.__all__, "__version__"))
    file.write_text(f"import optkit\noptkit.biuld\n{names}{USER}")
    options = ["--strict", "--config-file=", "--follow-imports=silent", f"--cache-dir={tmp_path}"]
    found, _, _ = mypy.run([*options, str(file)])
    errors = [line for line in found.splitlines() if ": error:" in line]
    assert len(errors) == 1 and ':2: error: Module has no attribute "biuld"' in errors[0], found


def test_an_errors_text_has_its_hint_and_crosses_processes() -> None:
    error = optkit.errors.InputRefused("too few", where="sample 3", hint="give more")
    assert str(error) == "sample 3: too few\nhint: give more"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert error.line == "sample 3: too few"
    assert "hint: give more" in "".join(traceback.format_exception(error))
    assert str(optkit.errors.UsageError("alone")) == "alone"
