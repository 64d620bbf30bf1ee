"""Records what user code depends on while it runs, to decide whether a later run would do the same.

    with record(roots=[project]) as reads:
        ...                                  # imports, factories, sample sources
    reads.answers["content"], ["names"], …   # path → sha256: see `optkit.execute.reads`
    reads.relative()                         # the record, with paths relative to the roots

What is recorded, and how:

    opened files, listed folders, modules, programs, sqlite     Python's audit events
    existence of files and folders, variables, imports          functions of `os` and importlib,
                                                                wrapped while the code runs
    files that native libraries open     wrappers of well-known functions (`native`); files that are
                                         open or mapped at the end; opens that the kernel reports
                                         in the folders that the code uses (`opens`)
    forked processes                     they write into a journal

While the code runs, folders are listed in sorted order, so no result depends on the order of a
disk. A file that the code wrote before it read it belongs to the code. A file that changed during
the run, and programs, whose reads are unknown, make the record incomplete (`unseen`).
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from optkit.data.reads import hooks, native
from optkit.data.reads.opens import Opens
from optkit.data.reads.watch import Watch, absolute, watching
from optkit.execute import reads as records
from optkit.execute.reads import Record

_BYTECODE = (".pyc", ".pyo")


@dataclass
class Reads:
    """Filled when `record` ends. `answers`: question → subject → answer, with absolute paths."""

    roots: tuple[str, ...] = ()
    answers: dict[str, dict[str, str | None]] = field(default_factory=dict)
    search: list[list[str]] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)

    def relative(self) -> Record:
        """The record, its paths relative to the roots."""
        answers = {
            question: {
                records.relative(subject, self.roots): answer
                for subject, answer in sorted(self.answers.get(question, {}).items())
            }
            for question in records.QUESTIONS
        }
        for name, origin in answers["import"].items():
            answers["import"][name] = records.relative(str(origin), self.roots)
        search = [[records.relative(path, self.roots) for path in paths] for paths in self.search]
        return Record(answers, search, self.unseen)


def note(path: str | os.PathLike[str]) -> None:
    """Record that a native library is about to open a file."""
    for watch in watching:
        watch.touch(absolute(os.fspath(path)))


def note_names(folder: str | os.PathLike[str]) -> None:
    """Record that a folder is listed, because the names in it decide what is read."""
    for watch in watching:
        watch.listing(absolute(os.fspath(folder)))


@contextmanager
def record(
    code: Sequence[str | os.PathLike[str]] = (),
    *,
    roots: Sequence[str] = (),
    ignored: Sequence[str | os.PathLike[str]] = (),
) -> Iterator[Reads]:
    """Record what the body reads. code: folders from which its modules may be imported, the first
    one first. ignored: files and folders that are recorded otherwise, or that the step itself
    writes.

    Modules that were imported before are recorded too, because the body may depend on them. If the
    body raises, the record stays empty.
    """
    # at the end, so that a file next to them does not hide an installed package
    sys.path += [folder for folder in map(str, code) if folder not in sys.path]
    reads = Reads(tuple(roots))
    with tempfile.TemporaryDirectory() as scratch:
        watch = Watch(
            tuple(roots),
            tuple(absolute(os.fspath(path)) for path in (*ignored, *_scratch(), scratch)),
            Path(scratch) / "journal",
        )
        held = native.held()
        with Opens(watch) as opens, hooks.installed(watch), native.wrapped():
            yield reads
            opens.drain()
        for path in native.held() - held:
            watch.touch(path)
        watch.adopt_journal()
    _fill(reads, watch)


def _fill(reads: Reads, watch: Watch) -> None:
    modules = _modules()
    mine = {path for path in modules.values() if not path.startswith(records.installed_folders())}
    for path in mine:
        if not path.endswith(_BYTECODE):
            watch.touch(path)
    reads.answers = watch.answers()
    reads.search = watch.search
    reads.unseen = list(watch.unseen)
    versions = _versions(name for name, path in modules.items() if path not in mine)
    reads.answers["package"] = {**versions, **reads.answers["package"]}


def _modules() -> dict[str, str]:
    """Name → file of every module imported so far that has one."""
    files = {}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str):
            files[name] = absolute(path)
    return files


def _scratch() -> list[str]:
    """The private folder of this process for temporary files."""
    given = os.environ.get("TMPDIR")
    return [given] if given else []


def _versions(modules: Iterator[str]) -> dict[str, str | None]:
    """Distribution → version of the imported packages, and of Python."""
    tops = {name.partition(".")[0] for name in modules}
    names = {owner for owner, provided in _distributions() if not tops.isdisjoint(provided)}
    return {name: records.installed(name) for name in sorted({*names, records.PYTHON})}


def _distributions() -> Iterator[tuple[str, set[str]]]:
    """Each installed distribution, and its top-level modules.
    `importlib.metadata.packages_distributions` returns the same, but its parsing takes 0.2 s."""
    for folder in dict.fromkeys(sys.path):
        for info in (*Path(folder).glob("*.dist-info"), *Path(folder).glob("*.egg-info")):
            name = info.stem.partition("-")[0]
            try:
                yield name, set((info / "top_level.txt").read_text().split())
                continue
            except OSError:
                lines = (info / "RECORD").read_text() if (info / "RECORD").is_file() else ""
            paths = (line.partition(",")[0] for line in lines.splitlines())
            tops = {path.partition("/")[0] for path in paths}
            yield name, {top.partition(".")[0] for top in tops if not top.endswith(".dist-info")}
