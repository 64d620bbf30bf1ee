"""What optkit says to mistakes: runs each of mistakes.yaml and keeps the whole message.

    python experiments/messages/run.py [--only TEXT] [--workers 2]

Works in a temporary folder, on a copy of project/ for each mistake. It writes results.json, and
results.md for a reader who judges whether each message says what is wrong, where, and what to do.
Exits 1 if an exit code is not the right one, or if a message is a traceback.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ruamel.yaml import YAML

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
_SECONDS = 300
_TAIL = 10  # lines of stdout
_RESULTS = "results.json"

_OPTKIT = f"""#!/bin/sh
exec {sys.executable} -c 'from optkit.cli import main; main()' "$@"
"""
# An error ends a Python program with a traceback. Its last lines are the error, and are kept.
_PYTHON = """
import runpy, sys
from optkit.errors import OptkitError
sys.path.insert(0, ".")
try:
    runpy.run_path("script.py", run_name="__main__")
except OptkitError as error:
    kind = type(error)
    sys.stderr.write(f"{kind.__module__}.{kind.__qualname__}: {error}\\n")
    sys.exit(error.exit_code)
"""
# Makes Python believe that some distributions were never installed.
_WITHOUT = """
import importlib.metadata
from importlib.machinery import PathFinder
GONE = {gone!r}
find_spec, found = PathFinder.find_spec, importlib.metadata.Distribution.from_name.__func__

@classmethod
def from_name(cls, name):
    if name in GONE:
        raise importlib.metadata.PackageNotFoundError(name)
    return found(cls, name)

importlib.metadata.Distribution.from_name = from_name
PathFinder.find_spec = lambda name, path=None, target=None: (
    None if name.partition(".")[0] in GONE else find_spec(name, path, target)
)
"""


@dataclass(frozen=True)
class Mistake:
    """`did`: what the user did; either `command` or `python` is run; `code`: the right exit code;
    `files`: name → text; `without`: distributions that are not installed; `new`: of a command that
    is new."""

    id: str
    did: str
    code: int
    command: str | None = None
    python: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    without: Sequence[str] = ()
    new: bool = False


@dataclass(frozen=True)
class Outcome:
    """What was run and what it printed; `right`: the exit code that it should have. Paths are
    relative to the user's folder. `stdout`: its last lines."""

    id: str
    did: str
    new: bool
    run: str
    right: int
    code: int
    stderr: str
    stdout: str

    @property
    def fault(self) -> str | None:
        """Why this is no message for a user; None if it may be one."""
        if self.code != self.right:
            return f"exit code {self.code}, not {self.right}"
        if self.code == 1 or "Traceback" in self.stderr:
            return "a traceback"
        return None if self.stderr.strip() else "no message"

    @property
    def message(self) -> str:
        """What was printed on stderr, without the progress of the steps before the error."""
        start = max(self.stderr.find(word) for word in ("error: ", "optkit.errors."))
        return self.stderr[max(start, 0) :].rstrip()


def mistakes() -> list[Mistake]:
    """Those of mistakes.yaml."""
    listed = YAML(typ="safe", pure=True).load((HERE / "mistakes.yaml").read_text())
    return [Mistake(**entry) for entry in listed]


@dataclass(frozen=True)
class Workshop:
    """A folder with the user's project, its artifacts and a store that all mistakes share."""

    folder: Path

    @property
    def project(self) -> Path:
        return self.folder / "project"

    def environment(self, **changes: str) -> dict[str, str]:
        kept = {key: os.environ[key] for key in ("HOME", "LANG") if key in os.environ}
        path = f"{self.folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        return kept | {"PATH": path, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1",
                       "OPTKIT_CACHE": str(self.folder / "cache"), "HF_HUB_OFFLINE": "1",
                       **changes}  # fmt: skip

    def outcome(self, mistake: Mistake) -> Outcome:
        """Make the mistake in a copy of the project."""
        place = self.folder / mistake.id
        shutil.copytree(self.project, place, copy_function=shutil.copy)
        for name, text in mistake.files.items():
            file = place / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        changes = {}
        if mistake.without:
            site = self.folder / f"{mistake.id}-site"
            site.mkdir()
            (site / "sitecustomize.py").write_text(_WITHOUT.format(gone=set(mistake.without)))
            changes["PYTHONPATH"] = f"{site}:{ROOT}"
        if mistake.python is not None:
            (place / "script.py").write_text(mistake.python)
            argv = [sys.executable, "-c", _PYTHON]
        else:
            argv = ["sh", "-c", str(mistake.command)]
        done = subprocess.run(argv, cwd=place, env=self.environment(**changes), text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS,
                              check=False)  # fmt: skip
        tail = "\n".join(done.stdout.splitlines()[-_TAIL:])
        shutil.rmtree(place)
        return Outcome(
            mistake.id, mistake.did, mistake.new, (mistake.command or mistake.python or "").strip(),
            mistake.code, done.returncode, self._relative(done.stderr, place),
            self._relative(tail, place),
        )  # fmt: skip

    def _relative(self, text: str, place: Path) -> str:
        """The text with places as a user in the folder of the project would name them."""
        for folder, name in ((place, "."), (self.folder / "cache", "$OPTKIT_CACHE"),
                             (ROOT, "<optkit>")):  # fmt: skip
            short = "" if name == "." else f"{name}/"
            text = text.replace(f"{folder}/", short).replace(str(folder), name)
        return text


@contextmanager
def workshop() -> Iterator[Workshop]:
    """A workshop with the artifacts of the project in two precisions, and one for an L4."""
    with tempfile.TemporaryDirectory(prefix="messages-") as name:
        made = Workshop(Path(name))
        command = made.folder / "bin" / "optkit"
        command.parent.mkdir()
        command.write_text(_OPTKIT)
        command.chmod(0o755)
        shutil.copytree(HERE / "project", made.project)
        for line in ("python make.py", "optkit build -q -t cpu -p int8,fp32",
                     "optkit build -q -t l4 -p fp16 --defer"):  # fmt: skip
            subprocess.run(line.split(), cwd=made.project, env=made.environment(), check=True,
                           capture_output=True)  # fmt: skip
        yield made


def results(folder: Path = HERE) -> list[Outcome]:
    """Those that were kept in a folder."""
    return [Outcome(**row) for row in json.loads((folder / _RESULTS).read_text())]


def page(outcomes: Sequence[Outcome]) -> str:
    """One numbered entry for each mistake, for a reader who judges the messages."""
    parts = []
    for number, one in enumerate(outcomes, 1):
        parts.append(
            f"## {number}. {one.id}\n\n{_sentence(one.did)}\n\n```text\n{one.run}\n```\n\n"
            f"Exit code {one.code}:\n\n```text\n{one.message}\n```\n"
        )
    return "\n".join(parts)


def _sentence(did: str) -> str:
    """What the user did, or what is wrong with something of the user's."""
    return f"{did[0].upper()}{did[1:]}." if did.startswith("the ") else f"The user {did}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", default="", help="mistakes whose id has this text; the results of the others stay"
    )
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE, help="the folder of the results")
    asked = parser.parse_args()
    chosen = [one for one in mistakes() if asked.only in one.id]
    kept = {one.id: one for one in results(asked.out)} if asked.only else {}
    with workshop() as place, ThreadPoolExecutor(asked.workers) as pool:
        for one in pool.map(place.outcome, chosen):
            kept[one.id] = one
            print(f"{one.fault or 'ok'}: {one.id}\n{one.message}\n", flush=True)
    outcomes = [kept[one.id] for one in mistakes() if one.id in kept]
    rows = json.dumps([asdict(one) for one in outcomes], indent=1, ensure_ascii=False)
    (asked.out / _RESULTS).write_text(f"{rows}\n")
    (asked.out / "results.md").write_text(page(outcomes))
    faults = sum(one.fault is not None for one in outcomes)
    print(f"{len(outcomes)} mistakes, {faults} without a message as it should be")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
