"""After any change between two builds, the second build gives the result of a fresh store."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optkit import user_code
from optkit.data import reads
from optkit.data.reads.watch import unrecorded
from optkit.execute import reads as records
from optkit.execute.runner import Runner
from optkit.execute.step import ReadsCode, Result, Step
from optkit.execute.task import Limits, Task
from optkit.store import Store
from tests.stale.kinds import KINDS, Kind


@dataclass(frozen=True, kw_only=True)
class Run(ReadsCode, Step[Result]):
    name = "run"
    version = 1


NAMES = [kind.name for kind in KINDS]


class World:
    """A project whose code depends on what some kinds change, and a machine that runs it here."""

    def __init__(self, folder: Path, kinds: list[Kind]) -> None:
        self.project, self.stores = folder / "project", folder / "stores"
        self.kinds, self.calls = kinds, 0
        self._pending = [kind for kind in kinds if kind.during]
        self.project.mkdir(parents=True)
        (self.project / "pyproject.toml").touch()
        for number, kind in enumerate(kinds):
            self.part(number).mkdir()
            kind.prepare(self.part(number))
        (self.project / "model.py").write_text(
            "from pathlib import Path\nimport sys\n"
            + "".join(
                f"def part_{n}(meanwhile):\n    HERE = Path(__file__).parent / 'part{n}'\n"
                "    sys.path.append(str(HERE))\n" + textwrap.indent(kind.code, "    ") + "\n"
                for n, kind in enumerate(kinds)
            )
            + "def create(told):\n    found = []\n"
            + "".join(f"    found.append(part_{n}(lambda: told({n})))\n" for n in range(len(kinds)))
            + "    return found\n"
        )

    def part(self, number: int) -> Path:
        return self.project / f"part{number}"

    def change(self, number: int) -> None:
        if not self.kinds[number].during:
            self.kinds[number].change(self.part(number))

    def build(self, store: str) -> Any:
        run = Runner(Store(self.stores / store), Limits(2**30), _Silent(), self._carry)
        found = run.do(Run(roots=(str(self.project),)), "run")
        return json.loads(found.file("out").read_text())

    def _carry(self, task: Task, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As a new process would: nothing of the project is imported yet."""
        self.calls += 1
        before, path = {*sys.modules}, [*sys.path]
        importlib.invalidate_caches()
        try:
            with reads.record(roots=task.params["roots"], ignored=[self.stores]) as record:
                create = user_code.load_factory(f"{self.project / 'model.py'}:create")
                found = create(self._told)
            (Path(task.out) / "out").write_text(json.dumps(found))
            return {"reads": record.relative().to_json()}
        finally:
            sys.path[:] = path
            for name in {*sys.modules} - before:
                if str(self.project.parent) in str(getattr(sys.modules[name], "__file__", "")):
                    del sys.modules[name]

    def _told(self, number: int) -> None:
        """Somebody else changes something while the code runs, once."""
        kind = self.kinds[number]
        if kind in self._pending:
            self._pending.remove(kind)
            with unrecorded():
                kind.change(self.part(number))


class _Silent:
    def start(self, step: str, label: str) -> None: ...

    def progress(self, what: str, fraction: float) -> None: ...

    def done(self, step: str, label: str, hit: bool, seconds: float) -> None: ...

    def failed(self, step: str, label: str) -> None: ...

    def note(self, text: str) -> None: ...


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Variables reach the code as they are here; `sys.dont_write_bytecode` as in a folder that
    cannot be written to, since a test edits modules faster than their times tell."""
    monkeypatch.setattr("optkit.execute.runner.environment", lambda: dict(os.environ))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delenv("STALE", raising=False)
    yield
    os.environ.pop("STALE", None)


def test_there_are_at_least_forty_kinds() -> None:
    assert len(NAMES) == len(set(NAMES)) >= 40


@pytest.mark.parametrize(
    "kind",
    [
        # each costs half a second: of two neighbours in the list, one is a fast test
        pytest.param(kind, id=name, marks=pytest.mark.slow if place % 2 else [])
        for place, (kind, name) in enumerate(zip(KINDS, NAMES, strict=True))
    ],
)
def test_a_change_is_seen_and_nothing_else(kind: Kind, tmp_path: Path) -> None:
    world = World(tmp_path, [kind])
    with _installable(world):
        first = world.build("one")
        world.change(0)
        calls = world.calls
        if kind.effect == "hit":
            assert world.build("one") == first and world.calls == calls
            return
        second = world.build("one")
        assert second != first, "the change has no effect, so the test says nothing"
        assert second == world.build("fresh")
        calls = world.calls
        assert world.build("one") == second
        assert world.calls == calls + (not kind.kept and not kind.during)


@contextmanager
def _installable(world: World) -> Iterator[None]:
    """What a kind installs beside its part is on the search path, as installed."""
    folder = world.project / "site-packages"
    folder.mkdir(exist_ok=True)
    sys.path.append(str(folder))
    records.installed_folders.cache_clear()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        records.installed_folders.cache_clear()


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_after_any_changes_a_rebuild_gives_what_a_fresh_store_gives(
    data: st.DataObject, tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.mktemp("world")
    kinds = data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4, unique=True))
    world = World(folder, kinds)
    with _installable(world):
        world.build("one")
        order = data.draw(st.permutations(range(len(kinds))))
        for number in order:
            world.change(number)
            if data.draw(st.booleans()):
                assert world.build("one") == world.build(f"fresh {number}")
        assert world.build("one") == world.build("fresh")
    shutil.rmtree(folder)
