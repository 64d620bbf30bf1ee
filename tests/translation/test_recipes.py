"""Any flags that are done give a valid recipe: the same as the options in their account, and the
same as the recipe that `optkit init` writes."""

from __future__ import annotations

import shlex
from contextlib import chdir
from functools import cache
from pathlib import Path

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optkit.facts.request import Request
from optkit.ground.recipe import Recipe, requested
from optkit.ground.recipe.template import Preset, template
from optkit.satellites.translation import TOOLS, Tool, ToolCommand, table, translate
from optkit.verbs.cli import optkit

AXIS = {"min": 1, "opt": 8, "max": 32}
RECIPE = {
    "name": "net",
    "inputs": {
        "x": {"dtype": "float32", "shape": ["batch", 16]},
        "images": {"dtype": "float32", "shape": ["batch", 3, "height", "width"]},
    },
    "axes": {"batch": AXIS, "height": AXIS, "width": AXIS},
    "calibration": {"source": "arrays", "args": {"path": "samples.npz"}},
}
NUMBER = st.integers(1, 5).map(str)
SHAPES = {"--minShapes": "x:1x16", "--optShapes": "x:4x16", "--maxShapes": "x:8x16"}
VALUES = {
    "integer": NUMBER, "text": st.just("some"), "file": st.just("a file.npz"),
    "boolean": st.sampled_from(["True", "False"]), "names": st.just("Conv Gemm MatMul"),
    "picture": st.sampled_from(["640", "320,480", "[64]"]),
    "pools": NUMBER.map("workspace:{}G".format), "mebibytes": NUMBER, "gibibytes": NUMBER,
    "seconds": NUMBER, "milliseconds": NUMBER,
    "layers": st.sampled_from(["a.b:int8", "*head*:fp16,c[0]:int8"]),
    "patterns": st.sampled_from(["/head.*", "a b"]),
}  # fmt: skip


@cache
def done(tool: Tool) -> list[str]:
    """The flags that some value makes done."""
    rows = table(tool)
    return [flag for flag, row in rows.items() if row.meaningless is None and (
        row.refused is None or row.refused_values is not None)]  # fmt: skip


@st.composite
def commands(draw: st.DrawFn, tool: Tool) -> str:
    flags = draw(st.lists(st.sampled_from(done(tool)), unique_by=lambda f: table(tool)[f].flags))
    words = []
    for flag in flags:
        row = table(tool)[flag]
        value = SHAPES.get(flag, "x:2x16") if row.value == "shapes" else ""
        if row.value in VALUES:
            value = draw(VALUES[row.value])
        if row.values:
            value = draw(st.sampled_from(sorted(row.values)))
        join = " " if tool == "modelopt" else "="
        several = row.value in ("names", "patterns")
        words.append(flag + (f"{join}{value if several else shlex.quote(value)}" if value else ""))
    return " ".join(words)


def typed(options: str) -> Request:
    """The request of `optkit build` with these options."""
    build = optkit.commands["build"]
    assert isinstance(build, click.Command)
    parsed = build.make_context("build", ["-t", "l4", *shlex.split(options)]).params
    shapes = ("shapes", "min_shapes", "opt_shapes", "max_shapes")
    return Request(
        **{name: parsed[name] for name in ("model", "overrides", "calibration", *shapes)}
    )


def sections(recipe: Recipe) -> list[object]:
    """The sections that a command sets."""
    return [getattr(recipe, name) for name in ("quantization", "compiler", "bench")]


@pytest.mark.parametrize("tool", TOOLS)
@settings(max_examples=40)
@given(data=st.data())
def test_flags_that_are_done_give_a_valid_recipe(
    tool: Tool, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    command = data.draw(commands(tool))
    folder = tmp_path_factory.getbasetemp() / "init"
    folder.mkdir(exist_ok=True)
    (folder / "a file.npz").touch()  # a key that names a file needs the file
    with chdir(folder):
        _gives_a_valid_recipe(tool, command, folder)


def _gives_a_valid_recipe(tool: Tool, command: str, folder: Path) -> None:
    made = translate(ToolCommand(**{tool: command}), frozenset({"--precision"}))
    assert made is not None
    given = Recipe.from_dict(RECIPE)
    recipe = requested(given, made.applied(Request()))
    assert requested(given, typed(made.account.options)) == recipe
    assert sections(Recipe.of_record(recipe.to_json())) == sections(recipe)
    (folder / "net.onnx").touch()
    path = folder / "optkit.yaml"
    preset = Preset(recipe.axes, {one.key: (one.yaml, one.flag) for one in made.settings})
    samples = str(folder / "samples.npz")
    started = template(str(folder / "net.onnx"), path, calibration=samples, preset=preset)
    path.write_text(started.text)
    written = Recipe.load(path)
    assert dict(written.axes) == dict(recipe.axes)
    assert sections(written) == sections(recipe)


def test_most_flags_of_each_tool_are_tried() -> None:
    assert [len(done(tool)) for tool in TOOLS] == [43, 9, 18]
