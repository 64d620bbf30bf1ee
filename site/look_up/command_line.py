"""docs/reference/command_line.md: every command with its arguments and options, from click."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

from look_up import markdown
from optkit.verbs.cli import options, param_types
from optkit.verbs.cli import optkit as program


def page() -> str:
    return markdown.page(
        "# Command line",
        "Every command, argument and option. [Commands](commands.md) has one line for each command "
        "and [exit codes](exit_codes.md) what a command returns. "
        + markdown.made_from("the declarations of the commands"),
        *(part for path, command in commands(program, "optkit") for part in section(path, command)),
    )


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """A command and those below it, each with the words that call it."""
    yield path, command
    if isinstance(command, click.Group):
        for name, child in sorted(command.commands.items()):
            yield from commands(child, f"{path} {name}")


def section(path: str, command: click.Command) -> Iterator[str]:
    yield f"## {path}"
    if not isinstance(command, click.Group):
        yield f"```text\n{usage(path, command)}\n```"
        for argument in command.params:
            if isinstance(argument.type, click.Choice) and isinstance(argument, click.Argument):
                yield f"{called(argument)}: {markdown.either(argument.type.choices)}."
    yield from paragraphs(command.help or "")
    yield from tables(command)
    if command.epilog:
        yield f"```console\n{command.epilog}\n```"


def usage(path: str, command: click.Command) -> str:
    needed = [
        f"{parameter.opts[-1]} {value_name(parameter)}"
        for parameter in command.params
        if isinstance(parameter, click.Option) and parameter.required
    ]
    arguments = [
        called(parameter) for parameter in command.params if isinstance(parameter, click.Argument)
    ]
    others = any(isinstance(one, click.Option) and not one.required for one in command.params)
    return " ".join([path, *arguments, *needed, *(["[OPTIONS]"] if others else [])])


def called(argument: click.Argument) -> str:
    """An argument as the usage shows it."""
    name = (argument.metavar or str(argument.name)).strip("[].").upper()
    name = f"{name}..." if argument.nargs == -1 else name
    return name if argument.required else f"[{name}]"


def paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a help text; lines that must stay as they are (after \\b) as a block."""
    for part in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        kept = part.removeprefix("\b\n")
        yield f"```text\n{inspect.cleandoc(kept)}\n```" if kept != part else plain(part)


def plain(text: str) -> str:
    """A paragraph of a help text, in which options become code."""
    parts = " ".join(text.split()).split("`")
    parts[::2] = [re.sub(r"(?<![\w-])(--[a-z][\w-]*)", r"`\1`", part) for part in parts[::2]]
    return "`".join(parts)


def tables(command: click.Command) -> Iterator[str]:
    """A table of options below each heading of the help."""
    shown = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    groups = {
        name: [one for one in shown if options.heading(one) == name] for name in options.HEADINGS
    }
    groups = {name: group for name, group in groups.items() if group}
    for name, group in groups.items():
        if len(groups) > 1:
            yield f"**{name}**"
        yield markdown.table(["option", "value", "default", "what it does"], map(row, group))


def row(option: click.Option) -> tuple[str, str, str, str]:
    return (
        markdown.words([*option.opts, *option.secondary_opts]),
        value(option),
        default(option),
        plain(option.help or ""),
    )


def value(option: click.Option) -> str:
    """What an option takes; nothing for a flag."""
    if option.is_flag:
        return ""
    item = option.type.item if isinstance(option.type, param_types.Several) else option.type
    if isinstance(item, click.Choice):
        several = ", …" if item is not option.type else ""
        return f"{markdown.either(item.choices)}{several}"
    taken = markdown.either(value_name(option).split("|"))
    return f"{taken}, repeatable" if option.multiple else taken


def value_name(option: click.Parameter) -> str:
    return option.metavar or option.type.name.upper()


def default(option: click.Option) -> str:
    """The default of an option; none for a flag, or if the help says it."""
    if option.required:
        return "required"
    found = option.default
    if option.is_flag or found is None or "UNSET" in repr(found) or found == ():
        return ""
    if isinstance(found, (list, tuple)):
        return markdown.code(",".join(map(str, found)))
    return markdown.code(found.as_posix() if isinstance(found, Path) else str(found))
