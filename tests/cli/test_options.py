"""Values of options, and how help shows them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from optkit.facts.errors import UsageError
from optkit.verbs.cli import optkit, param_types


def commands(group: click.Group, path: str = "optkit") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        place = f"{path} {name}"
        if isinstance(command, click.Group):
            yield from commands(command, place)
        else:
            yield place, command


EVERY = dict(commands(optkit))


def given(line: str) -> dict[str, object]:
    """The parameters that a command line gives to its command."""
    _, name, *argv = shlex.split(line)
    return optkit.commands[name].make_context(name, argv).params


@pytest.mark.parametrize("command", ["build", "plan"])
def test_a_list_equals_the_option_several_times(command: str) -> None:
    short = given(f"optkit {command} m.onnx -t 'l4, h100,l4' -p fp16,int8")
    long = given(f"optkit {command} m.onnx --target l4 --target h100 --precision fp16 "
                 "--precision int8")  # fmt: skip
    assert short == long
    assert (short["targets"], short["precisions"]) == (("l4", "h100"), ("fp16", "int8"))


def test_lists_of_other_values() -> None:
    assert given("optkit tune -t l4 -p int8,int4")["precisions"] == ("int8", "int4")
    assert given("optkit tune -t l4")["precisions"] == ("int8",)
    assert given("optkit plan -t l4 --batch 1,8 --batch 32")["batches"] == (1, 8, 32)
    assert given("optkit plan -t l4 --train full,qlora")["methods"] == ("full", "qlora")
    for wrong in ("-t l4 --batch 1,x", "-t l4 --batch 0", "-t l4,,t4", "-t l4 --train full,half"):
        with pytest.raises((click.BadParameter, UsageError)):
            given(f"optkit plan {wrong}")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (param_types.Size(), "1073741824", 2**30),
        (param_types.Size(), "512M", 2**29),
        (param_types.Size(), "2GiB", 2**31),
        (param_types.Size(), "1.5 kb", 1536),
        (param_types.Size(least=0), "0", 0),
        (param_types.Seconds(), "90", 90),
        (param_types.Seconds(), "10m", 600),
        (param_types.Seconds(), "1.5h", 5400),
        (param_types.Seconds(), "500ms", 0.5),
        (param_types.Milliseconds(), "1.5", 1.5),
        (param_types.Milliseconds(), "1.5ms", 1.5),
        (param_types.Milliseconds(), "0.5s", 500),
        (param_types.Milliseconds(), "250us", 0.25),
        (param_types.Milliseconds(), "0.0000001ms", 1e-7),
        (param_types.COUNT, "70b", 70e9),
    ],
)
def test_a_number_with_its_unit(kind: param_types.Quantity, text: str, value: float) -> None:
    assert kind.convert(text, None, None) == value


@pytest.mark.parametrize(
    "kind", [param_types.Size(), param_types.Seconds(), param_types.Milliseconds()]
)
@pytest.mark.parametrize("text", ["", "0", "-1", "x", "5 parsecs", "1e999", "1,5m", "nan"])
def test_what_is_no_number_with_a_unit(kind: param_types.Quantity, text: str) -> None:
    with pytest.raises(UsageError, match=f"is not a {kind.name}"):
        kind.convert(text, None, None)


@pytest.mark.parametrize("line", EVERY)
def test_options_have_their_short_forms(line: str) -> None:
    for parameter in EVERY[line].params:
        for short, long in (("-t", "--target"), ("-p", "--precision"), ("-o", "--out")):
            assert (long in parameter.opts) == (short in parameter.opts)


@pytest.mark.parametrize("line", EVERY)
def test_long_help_has_headings_and_every_option_and_examples_that_parse(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = EVERY[line]
    text = command.get_help(click.Context(command, info_name=line))
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.opts[-1] in text
    if len(command.params) > 10:
        assert "Output:" in text and "Options:" not in text and "Example" in text
        runs_steps = any("--remote" in parameter.opts for parameter in command.params)
        assert "Where it runs:" in text or not runs_steps
    for kind in (click.Path, param_types.Existing, param_types.NewFile):
        monkeypatch.setattr(kind, "convert", lambda self, value, *others: value)
    for example in (command.epilog or "").splitlines():
        parsed = shlex.split(re.split("    | > ", example)[0])
        assert " ".join(parsed[: len(line.split())]) == line
        command.make_context(line, parsed[len(line.split()) :])


@pytest.mark.parametrize("name", ["cache", "devices", "mcp"])
def test_help_has_an_example_that_names_the_command(name: str) -> None:
    command = optkit.commands[name]
    text = command.get_help(click.Context(command, info_name=f"optkit {name}"))
    assert f"\n  optkit {name}" in text[text.index("Example") :]
