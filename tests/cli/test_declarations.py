"""Declared commands and the functions that do their work."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pkgutil import resolve_name
from typing import Any

import click
import pytest

from optkit.facts.errors import UsageError
from optkit.verbs.cli import _FAILED, options, optkit


def commands(group: click.Group) -> Iterator[click.Command]:
    for command in group.commands.values():
        yield from commands(command) if isinstance(command, click.Group) else [command]


@pytest.mark.parametrize("command", list(commands(optkit)), ids=lambda command: str(command.name))
def test_a_command_gives_its_function_what_that_takes(
    command: click.Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bound(place: str) -> Callable[..., Any]:
        named = resolve_name(place)
        return named if isinstance(named, type) else inspect.signature(named).bind

    monkeypatch.setattr(options, "resolve_name", bound)
    assert command.callback is not None
    assert command.callback(**{parameter.name: None for parameter in command.params})


@pytest.mark.parametrize("command", _FAILED)
def test_a_result_of_a_failure_can_be_written(command: str) -> None:
    assert resolve_name(_FAILED[command])(UsageError("no")).to_json()["error"]["message"] == "no"
