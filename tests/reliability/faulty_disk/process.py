"""The process that does works on a faulty disk, as tests ask it (`driver`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
KINDS = ("open", "write", "fsync", "rename", "mkdir", "link", "unlink")
"""The kinds of calls, as `preload.c` numbers them."""


class Disk:
    """`folder`: for the library that is compiled. Raises OSError without a C compiler."""

    def __init__(self, folder: Path) -> None:
        library, source = folder / "preload.so", Path(__file__).with_name("preload.c")
        flags = ["-O1", "-Wall", "-Werror", "-Wno-format-truncation", "-shared", "-fPIC"]
        subprocess.run(["cc", *flags, "-o", library, source, "-ldl"], check=True)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.reliability.faulty_disk.driver"],
            cwd=ROOT, env={**os.environ, "LD_PRELOAD": str(library), "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=(folder / "log").open("w"),
            text=True,
        )  # fmt: skip

    def do(self, work: str, root: Path, **request: Any) -> dict[str, Any]:
        """The end of a work in `root`: "code" 0 and its result, or the exit code and the error of
        optkit. `options`: of the work; `fail`: (kind, k, errno), in one `part` of the work
        (`driver.one_part`) or in all of it; `record`: the file for the record."""
        assert self._process.stdin is not None and self._process.stdout is not None
        line = json.dumps({"work": work, "root": str(root), **request}, default=str)
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        self._process.communicate()
