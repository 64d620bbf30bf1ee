"""Results of user code are used again only while everything on which the code depended is the
same."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from optkit.execute import reads
from optkit.execute.reads import Record
from optkit.execute.rehearsal import Rehearsal
from optkit.execute.runner import Runner
from optkit.execute.step import ReadsCode, Result, Step
from optkit.execute.task import Limits, Task
from optkit.store import Remote, Store, digest_file


@dataclass(frozen=True, kw_only=True)
class Double(ReadsCode, Step[Result]):
    name = "double"
    version = 1
    tools = ("numpy",)


EMPTY: dict[str, Any] = {
    "schema": reads.SCHEMA, "search": [], "unseen": [], **{name: {} for name in reads.QUESTIONS}
}  # fmt: skip


class Ears:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def start(self, step: str, label: str) -> None: ...

    def progress(self, what: str, fraction: float) -> None: ...

    def done(self, step: str, label: str, hit: bool, seconds: float) -> None: ...

    def failed(self, step: str, label: str) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)


class Project:
    """A folder with user code whose result is what `model.py` holds, and what it is told beside."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder, self.store = folder, store
        self.code = folder / "model.py"
        self.seen: dict[str, Any] = {}
        self.beside, self.calls = "", 0
        folder.mkdir(exist_ok=True)

    def run(self, listener: Ears | None = None) -> str:
        return self.runner(listener)()

    def runner(self, listener: Ears | None = None) -> Any:
        run = Runner(self.store, Limits(2**30), listener or Ears(), self._carry)

        def go() -> str:
            found = run.do(Double(roots=(str(self.folder),)), "export")
            return found.file("out").read_text()

        return go

    def is_planned(self) -> bool:
        rehearsal = Rehearsal(self.store, Limits(2**30), self.folder)
        return rehearsal.do(Double(roots=(str(self.folder),)), "export").planned

    def _carry(self, task: Task, *args: Any, **kwargs: Any) -> dict[str, Any]:
        self.calls += 1
        (Path(task.out) / "out").write_text(self.code.read_text() + self.beside)
        content = {"@0/model.py": digest_file(self.code)}
        return {"reads": {**EMPTY, "content": content, **self.seen}}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project", Store(tmp_path / "store"))


def test_code_that_was_read_is_in_the_key(project: Project) -> None:
    project.code.write_text("one")
    assert project.is_planned()
    assert [project.run(), project.run()] == ["one", "one"] and project.calls == 1
    assert not project.is_planned()
    project.code.write_text("two")
    assert project.is_planned()
    assert [project.run(), project.run()] == ["two", "two"] and project.calls == 2
    project.code.write_text("one")
    assert project.run() == "one" and project.calls == 2  # what it was before is known, too


def test_a_fresh_result_is_served_and_not_an_older_one_of_the_same_reads(project: Project) -> None:
    """The code depends on what no record tells, and on a file that made it run again."""
    project.code.write_text("one")
    project.beside, project.seen = " and x", {"package": {"numpy": "0.0.1"}}
    assert project.run() == "one and x"
    project.beside = " and y"  # the record is stale, so it runs again
    assert project.run() == "one and y"


def test_a_result_with_an_incomplete_record_serves_one_run_and_is_reported(
    project: Project,
) -> None:
    project.code.write_text("one")
    project.seen, ears = {"unseen": ["it starts a program (ls)"]}, Ears()
    go = project.runner(ears)
    assert [go(), go()] == ["one", "one"] and project.calls == 1
    told = "the result of 'export' serves this run and is not kept: it starts a program (ls)"
    assert ears.notes == [told]
    assert project.run() == "one" and project.calls == 2 and project.is_planned()


def test_two_checkouts_share_a_hit_and_a_project_of_the_same_names_does_not(
    project: Project, tmp_path: Path
) -> None:
    project.code.write_text("one")
    twin = Project(tmp_path / "twin", project.store)
    other = Project(tmp_path / "other", project.store)
    twin.code.write_text("one")
    other.code.write_text("another")
    assert project.run() == twin.run() == "one" and (project.calls, twin.calls) == (1, 0)
    assert other.run() == "another"
    assert project.run() == "one" and project.calls == 1  # neither forgets the other's


def test_another_machine_runs_the_code_only_if_it_changed(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    both = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        store = Store(tmp_path / name / "store", Remote(f"file://{tmp_path}/remote"))
        both.append(Project(tmp_path / name / "project", store))
        both[-1].code.write_text("one")
    assert [one.run() for one in both] == ["one", "one"] and [p.calls for p in both] == [1, 0]
    both[0].seen = {"unseen": ["it starts a program (ls)"]}
    for one in both:
        one.code.write_text("two")
    assert [one.run() for one in both] == ["two", "two"] and [p.calls for p in both] == [2, 1]
    both[1].code.write_text("one")
    assert both[1].run() == "one" and both[1].calls == 1


def test_records_of_older_stores_and_damaged_ones_are_not_believed(project: Project) -> None:
    project.code.write_text("one")
    project.run()
    (file,) = project.store.root.glob("reads/*.json")
    record = project.store.recall(file.stem)
    assert record is not None
    key = record["records"][0]["key"]
    old = {"files": {str(project.code): digest_file(project.code)}, "packages": {}}
    for damaged in (
        old, {"schema": reads.SCHEMA}, {"schema": reads.SCHEMA, "records": "x"},
        {"schema": reads.SCHEMA, "records": [1, {"key": key}, {"key": key, "reads": old},
                                             {"key": 1, "reads": EMPTY}]},
        {"schema": reads.SCHEMA, "records": [{"key": "no such", "reads": EMPTY}]},
    ):  # fmt: skip
        calls = project.calls
        project.store.remember(file.stem, damaged)
        assert project.run() == "one" and project.calls == calls + 1


@pytest.mark.parametrize(
    "change",
    [
        {"content": {"gone": "0"}},
        {"content": {"a\0b": "0"}},
        {"content": {"@7/model.py": "0"}},
        {"content": ["model.py"]},
        {"package": {"numpy": "0.0.1"}},
        {"package": {"python": "2.7.18"}},
        {"variable": {"HOME": None}},
        {"variable": {"NO_SUCH": "0"}},
        {"kind": {"@0": "nothing"}},
        {"kind": {"@0/no": "file"}},
        {"link": {"@0": "elsewhere"}},
        {"import": {"0 numpy": "nothing"}, "search": [["installed"]]},
        {"import": {"0 no_such_module": "installed"}, "search": [["installed"]]},
        {"import": {"3 numpy": "installed"}, "search": [["installed"]]},
        {"unseen": ["it starts a program"]},
        {"schema": "optkit.reads/v1"},
    ],
)
def test_an_answer_that_is_another_today_is_seen(change: Any, tmp_path: Path) -> None:
    now = reads.Now([str(tmp_path)], {"HOME": "/home"})
    assert now.agrees(Record.from_json(EMPTY))
    changed = {"schema": reads.SCHEMA, "records": [{"key": "k", "reads": {**EMPTY, **change}}]}
    assert not any(now.agrees(known.reads) for known in reads.remembered(changed))


def test_what_the_key_of_a_result_holds() -> None:
    """Each kind of answer, and what came of it."""
    empty = Record.from_json(EMPTY)
    told = [EMPTY] + [{**EMPTY, name: {"a": "b"}} for name in reads.QUESTIONS]
    records = [Record.from_json(each) for each in (*told, {**EMPTY, "content": {"@0/b": "b"}})]
    keys = {reads.late_key("base", record, "files") for record in records}
    keys |= {reads.late_key("other", empty, "files"), reads.late_key("base", empty, "others")}
    assert len(keys) == len(records) + 2


def merged(*records: dict[str, Any]) -> Any:
    return reads.merged(map(Record.from_json, records)).to_json()


def test_records_of_parts_are_one_record() -> None:
    first = {**EMPTY, "search": [["installed"]], "import": {"0 a": "nothing"},
             "content": {"@0/x": "1", "@0/y": "2"}}  # fmt: skip
    second = {**EMPTY, "search": [["@0"], ["installed"]], "import": {"0 b": "@0/b.py"},
              "content": {"@0/y": "2"}, "unseen": ["it starts a program"]}  # fmt: skip
    both = merged(first, second)
    assert both["import"] == {"0 a": "nothing", "1 b": "@0/b.py"}
    assert both["search"] == [["installed"], ["@0"]]
    assert both["content"] == first["content"] and both["unseen"] == second["unseen"]
    assert list(both["content"]) == ["@0/x", "@0/y"]  # as one run would have told
    assert list(merged(second, first)["content"]) == ["@0/x", "@0/y"]
    changed = {**EMPTY, "content": {"@0/x": "other"}}
    assert merged(first, changed)["unseen"] == ["@0/x changed while it was read"]


def test_the_values_of_variables_stand_nowhere() -> None:
    told = reads.variable("secret")
    assert told is not None and "secret" not in told and reads.variable(None) is None
    assert reads.variable("secret") == reads.variable(b"secret") != reads.variable("other")


def test_a_module_is_found_where_import_would_find_it(tmp_path: Path) -> None:
    for place in ("first/pack/__init__.py", "second/plain.py", "second/space/inner.py"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).touch()
    folders = [str(tmp_path / "first"), reads.INSTALLED, str(tmp_path / "second")]
    finder = reads.Finder(folders)
    assert finder.origin("pack") == str(tmp_path / "first/pack/__init__.py")
    assert finder.origin("plain") == str(tmp_path / "second/plain.py")
    assert finder.origin("space") == str(tmp_path / "second/space")
    assert finder.origin("numpy") == finder.origin("sys") == reads.INSTALLED
    assert finder.origin("no_such_module") == reads.NOTHING
    (tmp_path / "first" / "plain.py").touch()
    assert reads.Finder(folders).origin("plain") == str(tmp_path / "first/plain.py")


def test_what_a_worker_has_of_the_environment_decides(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others of this process never reach the code."""
    project.code.write_text("one")
    monkeypatch.setenv("TZ", "UTC")
    project.seen = {"variable": {"TZ": reads.variable("UTC"), "MINE": None}}
    assert [project.run(), project.run()] == ["one", "one"] and project.calls == 1
    monkeypatch.setenv("MINE", "1")
    assert project.run() == "one" and project.calls == 1
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert project.run() == "one" and project.calls == 2
    assert os.environ["MINE"]
