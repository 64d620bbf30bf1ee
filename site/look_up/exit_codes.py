"""docs/reference/exit_codes.md: every exit code and the errors that end with it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from look_up import markdown
from optkit.facts import errors
from optkit.facts.errors import OptkitError

TROUBLESHOOTING = Path(__file__).resolve().parents[2] / "docs/reference/troubleshooting.md"


def page() -> str:
    classes = _errors()
    codes = sorted({error.exit_code for error in classes})
    rows = [(_linked("0"), "", "", "Done: built, or pending.")]
    for code in codes:
        rows += [_row(code, error) for error in classes if error.exit_code == code]
    rows.append((_linked("130, 143"), "", "", "Interrupted (SIGINT), terminated (SIGTERM)."))
    return markdown.page(
        "# Exit codes",
        "What a command returns, and the class of the error in Python (`optkit.errors`). With "
        "`--json`, `error.code` has the name in the third column; `error.message`, `error.where` "
        "and `error.hint` say what is wrong, where, and what to do. The links lead to what to do. "
        + markdown.made_from("the classes of errors"),
        markdown.table(["exit code", "class", "`error.code`", "when"], rows),
        "`optkit monitor` returns the exit code of the program that it ran. "
        "`optkit diff --exit-code` returns 1 if the two differ.",
    )


def _errors() -> list[type[OptkitError]]:
    """The classes, in the order of the code."""
    found = (one for one in vars(errors).values() if isinstance(one, type))
    return [one for one in found if issubclass(one, OptkitError)]


def _row(code: int, error: type[OptkitError]) -> tuple[str, str, str, str]:
    told = " ".join(inspect.getdoc(error).split())
    if error is OptkitError:
        told = "A bug in optkit. The base of all errors that optkit raises on purpose."
    base = "" if error.__base__ in (OptkitError, Exception) else f" ({error.__base__.__name__})"
    return _linked(str(code)), markdown.code(error.__name__) + base, markdown.code(error.code), told


def _linked(code: str) -> str:
    """An exit code as a link to its section in the page on troubleshooting."""
    headings = re.findall(rf"^## ({code}: .*)$", TROUBLESHOOTING.read_text("utf-8"), re.M)
    place = f"#{markdown.anchor(headings[0])}" if headings else ""
    return f"[{code}](troubleshooting.md{place})"
