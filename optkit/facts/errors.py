"""Every error optkit raises on purpose.

    OptkitError                 1  a bug, unless a subclass says otherwise
    ├── UsageError              2  the request itself is wrong
    │   ├── RecipeError            ... in a recipe: names file, line and nearest key
    │   └── UnknownName            ... an unknown target, recipe or precision
    ├── GateFailed              3  the artifact is written and marked
    ├── ToolchainMissing        4  a wheel, device or driver is absent: names the extra
    ├── InputRefused            5  the model, the data or the pair target × precision cannot be used
    │   ├── UnsafeFile             ... a foreign file that `intake` refused
    │   ├── ExportFailed           ... the model could not become an ONNX graph
    │   └── Impossible             ... the target's own matrix rules the precision out
    ├── WorkerFailed            6  native code crashed, hung or ran out of memory
    ├── IntegrityError          7  bytes are not what their digest says
    └── StorageError            8  disk full, no permission, any other IO

An error says *what* is wrong, *where* (file, line, node, tensor, sample) and *what to do* (hint).
It crosses the worker's border as JSON: `to_json` / `from_json`.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

_PUBLIC = "optkit.errors"  # where users import them from, and so their name in a traceback


class OptkitError(Exception):
    """Base of all deliberate errors; `exit_code` is what the process returns."""

    exit_code = 1
    code = "internal"
    __module__ = _PUBLIC

    def __init_subclass__(cls) -> None:
        cls.__module__ = _PUBLIC

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    @property
    def line(self) -> str:
        """What and where, in one line, for a text that continues after it."""
        return f"{self.where}: {self.message}" if self.where else self.message

    def __str__(self) -> str:
        """The whole error, with the hint on a separate line, as the end of a traceback shows it."""
        return f"{self.line}\nhint: {self.hint}" if self.hint else self.line

    def __reduce__(self) -> tuple[object, ...]:
        return (from_json, (self.to_json(),))

    def to_json(self) -> dict[str, str | None]:
        return {"code": self.code, "message": self.message, "where": self.where, "hint": self.hint}


class UsageError(OptkitError):
    """An option or its value is wrong, or two options exclude each other."""

    exit_code = 2
    code = "usage"


class RecipeError(UsageError):
    """A recipe has an unknown key, a wrong type, or names something it may not."""

    code = "recipe"


class UnknownName(UsageError):
    """optkit does not know the name; the hint has the nearest names."""

    code = "unknown_name"


class GateFailed(OptkitError):
    """A gate did not hold; the artifact exists and is marked."""

    exit_code = 3
    code = "gate_failed"


class ToolchainMissing(OptkitError):
    """A library, driver or device is absent; the hint names the extra to install."""

    exit_code = 4
    code = "toolchain_missing"


class InputRefused(OptkitError):
    """The model or the data cannot be used as given."""

    exit_code = 5
    code = "input_refused"


class UnsafeFile(InputRefused):
    """A foreign file was refused before any library opened it."""

    code = "unsafe_file"


class ExportFailed(InputRefused):
    """torch could not export the model, or the exported graph disagrees with it."""

    code = "export_failed"


class Impossible(InputRefused):
    """The target cannot run the precision that was asked for."""

    code = "impossible"


class WorkerFailed(OptkitError):
    """A worker ended before its result. `verdict` is crashed, timeout, oom or output; `log` holds
    its last lines."""

    exit_code = 6
    code = "worker_failed"

    def __init__(
        self,
        message: str,
        *,
        verdict: str = "crashed",
        log: str = "",
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.verdict = verdict
        self.log = log

    def to_json(self) -> dict[str, str | None]:
        return {**super().to_json(), "verdict": self.verdict, "log": self.log}


class IntegrityError(OptkitError):
    """Bytes do not match their recorded digest."""

    exit_code = 7
    code = "integrity"


class StorageError(OptkitError):
    """The disk is full, a folder is not writable, or IO failed."""

    exit_code = 8
    code = "storage"


_BY_CODE: dict[str, type[OptkitError]] = {
    cls.code: cls
    for cls in (
        OptkitError,
        UsageError,
        RecipeError,
        UnknownName,
        GateFailed,
        ToolchainMissing,
        InputRefused,
        UnsafeFile,
        ExportFailed,
        Impossible,
        WorkerFailed,
        IntegrityError,
        StorageError,
    )
}


def from_json(data: Mapping[str, object]) -> OptkitError:
    """Rebuild an error that `to_json` wrote (in a worker, or in a result file)."""
    known = {key: str(value) for key, value in data.items() if value is not None}
    cls = _BY_CODE.get(known.get("code", ""), OptkitError)
    message, where, hint = known.get("message", ""), known.get("where"), known.get("hint")
    if issubclass(cls, WorkerFailed):
        verdict, log = known.get("verdict") or "crashed", known.get("log", "")
        return cls(message, verdict=verdict, log=log, where=where, hint=hint)
    return cls(message, where=where, hint=hint)


@contextlib.contextmanager
def located(place: str, copy: str | None = None) -> Iterator[None]:
    """Errors from inside also get this place: "task.py, evaluation sample 3". `copy`: the file that
    is read instead of `place`; error messages do not name it."""
    try:
        yield
    except OptkitError as error:
        if copy:
            error.where = error.where and error.where.replace(copy, place)
            error.hint = error.hint and error.hint.replace(copy, place)
        if place not in (error.where or ""):
            error.where = f"{place}, {error.where}" if error.where else place
        raise


def check_single(option: str, text: str, known: Collection[str]) -> None:
    """Raise UsageError for a list of names where only one is allowed."""
    parts = [part.strip() for part in re.split(r"[,;+\s]+", text) if part.strip()]
    if len(parts) > 1 and ("," in text or all(part.lower() in known for part in parts)):
        raise UsageError(
            f"{text!r} contains {len(parts)} names, and only one is allowed here",
            where=option,
            hint=f"choose one: {' or '.join(parts)}; `optkit build` and `optkit plan` take several",
        )


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The known names closest to `name` in any case, best first: up to four that begin with it,
    else three."""
    wanted = name.lower()
    written: dict[str, list[str]] = {}
    for one in sorted(known):
        written.setdefault(one.lower(), []).append(one)
    longer = [one for one in written if wanted and one.startswith(wanted)]
    close = longer[:4] or difflib.get_close_matches(wanted, written, n=3, cutoff=0.4)
    return [one for lower in close for one in written[lower]]


def unknown_name(
    kind: str, name: str, known: Iterable[str], *, where: str | None = None
) -> UnknownName:
    """An `UnknownName` that lists the nearest names, or all names if none is near."""
    known = sorted(known)
    close = nearest(name, known)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"
    return UnknownName(f"unknown {kind} {name!r}", where=where, hint=hint)


def with_nearest_file(path: Path, hint: str) -> str:
    """The hint for a path that does not exist, after the nearest name in its folder, if one is
    near."""
    try:
        known = [one.name for one in path.parent.iterdir()]
    except (OSError, ValueError):
        return hint
    close = difflib.get_close_matches(path.name, known, n=1, cutoff=0.75)
    return f"did you mean {close[0]!r}? {hint}" if close else hint
