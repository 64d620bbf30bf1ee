"""The command of another tool beside the options of `optkit build` and `optkit init`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from optkit.facts.documents.translation import TranslatedFlag, Translation
from optkit.facts.errors import UsageError
from optkit.facts.printable import printable
from optkit.facts.request import Request
from optkit.ground.progress.terminal import stderr
from optkit.satellites import translation
from optkit.verbs.cli import command_output
from optkit.verbs.cli.command_output import Output


@dataclass(frozen=True)
class CommandRequest:
    """What the options and the command ask for together. refusal: the error for flags that cannot
    be followed; account: each flag with its answer; both None without a command. settings: keys of
    the recipe that the command sets."""

    request: Request
    precisions: tuple[str, ...]
    output: Output
    account: Translation | None = None
    settings: tuple[translation.Setting, ...] = ()
    refusal: UsageError | None = None


def read(
    command: translation.ToolCommand, request: Request, precisions: tuple[str, ...], output: Output
) -> CommandRequest:
    """The options together with the translated command, whose account is printed on stderr. Raises
    UsageError for a command that cannot be read."""
    made = translation.translate(command, translation.given(request, precisions))
    if made is None:
        return CommandRequest(request, precisions, output)
    _show(made.account)
    chosen = precisions or (() if made.precision is None else (made.precision,))
    output = replace(output, verbose=output.verbose or made.verbose)
    return CommandRequest(
        made.applied(request), chosen, output, made.account, made.settings, made.refusal()
    )


def _show(account: Translation) -> None:
    """One line for each flag, then the same command in optkit's options."""
    console, fates = stderr(), Counter(flag.fate for flag in account.flags)
    counts = ", ".join(f"{count} {fate}" for fate, count in sorted(fates.items()))
    rows = [[f"  {flag.fate}", flag.flag, _answer(flag)] for flag in account.flags]
    table = command_output.table([account.tool, counts, ""], rows)
    lines = table.splitlines()
    if "refused" not in fates and account.options:
        lines.append(f"in optkit's options: {account.options}")
    for line in lines:
        console.print(printable(line), markup=False)


def _answer(flag: TranslatedFlag) -> str:
    """ "--precision int8 (FP16 around it); overridden by --precision" """
    if flag.fate == "done":
        note = f" ({flag.reason})" if flag.reason else ""
        told = f"{flag.becomes}{note}"
    else:
        told = "; ".join(filter(None, (flag.reason, flag.remedy)))
    if flag.overridden_by is None:
        return told
    if flag.overridden_by == flag.becomes:
        return f"{flag.becomes} beside it"
    return f"{told}; overridden by {flag.overridden_by}"
