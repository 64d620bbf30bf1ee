"""A command of trtexec, of Ultralytics' export or of ModelOpt's quantization, in optkit's options.

    translate(ToolCommand(trtexec="--fp16 --minShapes=x:1x3 ..."), frozenset()).options

Every flag of these tools is in a table (`data/`), with one of three answers: done, meaningless, or
refused with the reason and a remedy. The account of a translation lists each flag of the command
with its answer.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from optkit.facts.documents.translation import Translation
from optkit.facts.errors import UsageError
from optkit.facts.request import Request
from optkit.satellites.translation import modelopt, trtexec, ultralytics
from optkit.satellites.translation.command_words import words
from optkit.satellites.translation.draft import SHAPES, Setting, TranslationDraft
from optkit.satellites.translation.tables import TOOLS, Tool, table

__all__ = ["TOOLS", "Setting", "ToolCommand", "TranslatedCommand", "given", "table", "translate"]

_SETTLE: Mapping[Tool, Callable[[TranslationDraft], None]] = {
    "trtexec": trtexec.settle,
    "ultralytics": ultralytics.settle,
    "modelopt": modelopt.settle,
}


@dataclass(frozen=True)
class ToolCommand:
    """The flags of another tool's command; at most one of the fields is given."""

    trtexec: str | None = None
    ultralytics: str | None = None
    modelopt: str | None = None


@dataclass(frozen=True)
class TranslatedCommand:
    """options: option of optkit → its value ("" for a switch; MODEL is the argument).
    settings: keys of the recipe. account: every flag with its answer."""

    account: Translation
    options: Mapping[str, str]
    settings: tuple[Setting, ...]

    @property
    def precision(self) -> str | None:
        return self.options.get("--precision")

    @property
    def verbose(self) -> bool:
        return "--verbose" in self.options

    def applied(self, request: Request) -> Request:
        """The request with these options; those that it has already come first."""
        shapes = {option: self.options.get(option) for option in SHAPES}
        return replace(
            request,
            model=request.model or self.options.get("MODEL"),
            overrides=(*(setting.text for setting in self.settings), *request.overrides),
            calibration=request.calibration or self.options.get("--calibration"),
            shapes=request.shapes or shapes["--shapes"],
            min_shapes=request.min_shapes or shapes["--min-shapes"],
            opt_shapes=request.opt_shapes or shapes["--opt-shapes"],
            max_shapes=request.max_shapes or shapes["--max-shapes"],
        )

    def refusal(self) -> UsageError | None:
        """The error that names the refused flags; None if there are none."""
        refused = [flag for flag in self.account.flags if flag.fate == "refused"]
        if not refused:
            return None
        first, tool = refused[0], self.account.tool
        if len(refused) == 1:
            return UsageError(str(first.reason), where=f"--{tool} {first.flag}", hint=first.remedy)
        return UsageError(
            f"{len(refused)} flags cannot be followed: {', '.join(f.flag for f in refused)}",
            where=f"--{tool}",
            hint="the lines above give each reason and what to do instead",
        )


def given(request: Request, precisions: tuple[str, ...] = ()) -> frozenset[str]:
    """The options that a request has beside a command: "MODEL", "--calibration", "--set KEY", …"""
    named = {
        "MODEL": request.model,
        "--calibration": request.calibration,
        "--shapes": request.shapes,
        "--min-shapes": request.min_shapes,
        "--opt-shapes": request.opt_shapes,
        "--max-shapes": request.max_shapes,
        "--precision": precisions,
    }
    keys = (text.partition("=")[0].strip() for text in request.overrides)
    return frozenset({option for option, value in named.items() if value}).union(
        f"--set {key}" for key in keys
    )


def translate(command: ToolCommand, given: frozenset[str]) -> TranslatedCommand | None:
    """The translation of a command; None if no command is given. `given`: see the function of this
    name; these options override those of the command.

    Raises UsageError for an unknown flag, a malformed value, flags that exclude each other, and
    commands of several tools.
    """
    texts = {tool: getattr(command, tool) for tool in TOOLS}
    named = [tool for tool, text in texts.items() if text is not None]
    if not named:
        return None
    if len(named) > 1:
        where = " ".join(f"--{tool}" for tool in named)
        raise UsageError("one command is translated at a time", where=where, hint="give one")
    tool, text = named[0], texts[named[0]]
    draft = TranslationDraft(tool, given)
    draft.read(words(tool, text))
    _SETTLE[tool](draft)
    settings = tuple(draft.keys.values())
    account = Translation(
        tool=tool,
        command=text,
        flags=tuple(entry.written() for entry in draft.entries),
        options=_written(draft.options, settings),
    )
    return TranslatedCommand(account, draft.options, settings)


def _written(options: Mapping[str, str], settings: Iterable[Setting]) -> str:
    """The options as a user would type them."""
    words = [options["MODEL"]] if "MODEL" in options else []
    for option, value in options.items():
        if option != "MODEL":
            words += [option, value] if value else [option]
    for setting in settings:
        words += ["--set", setting.text]
    return shlex.join(words)
