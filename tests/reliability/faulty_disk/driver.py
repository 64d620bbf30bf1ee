"""Does works on a faulty disk: `preload.c` is loaded into this process, and each work runs in a
fork of it, which has all that optkit imports.

Reads requests from stdin, one JSON object per line, and answers each on stdout.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from optkit.facts.errors import OptkitError
from optkit.ground.store import Store
from tests.reliability.faulty_disk import works

faults = ctypes.CDLL(None)


def mark(promise: dict[str, Any]) -> None:
    faults.faults_mark(json.dumps(promise).encode())


def promising() -> None:
    """Whatever the store returns is marked."""
    add, remember = Store.add, Store.remember

    def added(self: Store, *args: Any) -> Any:
        entry = add(self, *args)
        mark({"entry": entry.key, "files": dict(entry.files)})
        return entry

    def remembered(self: Store, key: str, record: Any) -> None:
        remember(self, key, record)
        mark({"record": key, "value": dict(record)})

    Store.add, Store.remember = added, remembered  # type: ignore[method-assign]


class Stop(BaseException):
    """The part of a work that may fail has ended."""


def one_part(part: str, fail: list[int]) -> None:
    """Only one part may fail, and the work ends behind it: "before" the first step that is not in
    the store yet, or this "step"."""
    make, add, inside = Store.make, Store.add, False

    def within(missing: bool, work: Callable[[], Any]) -> Any:
        nonlocal inside
        if inside or not missing:
            return work()
        if part == "before":
            raise Stop
        inside = True
        faults.faults_fail(*fail)
        work()
        raise Stop

    def made(self: Store, key: str, *rest: Any) -> Any:
        return within(not self.place(key).exists(), lambda: make(self, key, *rest))

    def added(self: Store, step: str, *rest: Any) -> Any:
        """User's code runs every time."""
        known = {name for _, name, *_ in self.entries()}
        return within(step not in known, lambda: add(self, step, *rest))

    Store.make, Store.add = made, added  # type: ignore[method-assign]


def perform(request: dict[str, Any]) -> dict[str, Any]:
    """The end of the work: its result, or its error."""
    root = Path(request["root"])
    os.environ["OPTKIT_CACHE"] = str(root / "cache")
    tempfile.tempdir = str(root / "tmp")
    work, options = getattr(works, request["work"]), request.get("options", {})
    faults.faults_watch(f"{root}:".encode())
    if "record" in request:
        promising()
        faults.faults_record(os.open(request["record"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
    if "part" in request:
        one_part(request["part"], request["fail"])
    if "fail" in request and request.get("part") != "step":
        faults.faults_fail(*request["fail"])
    try:
        result = {"code": 0, **work(root, mark, **options)}
    except Stop:
        result = {"code": 0, "stopped": True}
    except OptkitError as error:
        result = {"code": error.exit_code, "error": error.to_json()}
    except BaseException:
        result = {"code": 1, "error": traceback.format_exc()}
    faults.faults_watch(b"")
    counts = [faults.faults_count(kind) for kind in range(7)]
    return {**result, "counts": counts, "failed": faults.faults_failed().decode()}


def answer(request: dict[str, Any]) -> str:
    """The line of a fork of this process."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(write, json.dumps(perform(request)).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        line = pipe.read().decode()
    os.waitpid(child, 0)
    return line


if __name__ == "__main__":
    faults.faults_failed.restype = ctypes.c_char_p
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print
    with tempfile.TemporaryDirectory() as folder:  # its imports serve every fork
        works.network(Path(folder))
        works.build(Path(folder), mark)
    for request in sys.stdin:
        print(answer(json.loads(request)), file=out, flush=True)
