"""What every test sees: a cache of its own, `optkit` as a command, and slices of the slow tests."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import settings
from jsonschema import Draft202012Validator

from optkit.facts import documents
from optkit.verbs import cli
from tests import touched
from tests.figures import Figures

# no test asserts a time
settings.register_profile("timeless", deadline=None)
settings.load_profile("timeless")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell's background job ignores it, as would every process that tests start and interrupt
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parents[1]
COMMAND = [sys.executable, "-c", "from optkit.cli import main; main()"]
# An environment as a service has it: no terminal, nothing of the test run.
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "VIRTUAL_ENV")

os.environ["OPTKIT_CONFIG"] = "/nonexistent"  # no card that the user has measured

# Tests that start processes take longest: they come first, so that both workers of `make test` end
# together. The first file builds the main job, which other files wait for; the second does not.
FIRST = (
    "tests/reliability/test_cache.py", "tests/api/test_build_from_memory.py",
    "tests/tuning/test_tune.py", "tests/cli/", "tests/reliability/", "tests/api/", "tests/devices/",
    "tests/examples/", "tests/ray/",
    "tests/test_docs.py", "tests/hostile/", "tests/execute/", "tests/generation/",
    "tests/sources/", "tests/quantization/",
)  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slice", default=None, help="i/n: run the i-th of n parts of the tests")
    parser.addoption("--touched", default=None, type=int, metavar="N",
                     help="run at most N of the tests that the last commits touch; with --slice, "
                     "these too")  # fmt: skip
    parser.addoption(
        "--figures",
        default=None,
        type=Path,
        metavar="FILE",
        help="inject every fault at its full figure, and write that into FILE",
    )


def rank(item: pytest.Item) -> int:
    """The place of the item's file in FIRST."""
    places = (place for place, start in enumerate(FIRST) if item.nodeid.startswith(start))
    return next(places, len(FIRST))


@pytest.hookimpl(trylast=True)  # after -m has chosen
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the files. With --slice, keep one of n parts, dealt in the order of a hash of the
    names: all parts cover all. With --touched, keep those nearest to the last commits."""
    items.sort(key=rank)
    chosen, most = config.getoption("--slice"), config.getoption("--touched")
    if not chosen and most is None:
        return
    dealt = sorted(items, key=lambda item: hashlib.sha256(item.nodeid.encode()).hexdigest())
    index, count = (int(part) for part in chosen.split("/")) if chosen else (0, len(dealt) + 1)
    kept = {item.nodeid for item in (dealt[index::count] if chosen else ())}
    if most is not None:
        near = {file: place for place, file in enumerate(
            touched.nearest((item.path for item in items), touched.changes()))}  # fmt: skip
        some = sorted((item for item in dealt if item.path in near), key=lambda i: near[i.path])
        kept |= {item.nodeid for item in some[:most]}
    selected = [item for item in items if item.nodeid in kept]
    config.hook.pytest_deselected(items=[item for item in items if item not in selected])
    items[:] = selected


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Figures:
    """How often to inject a fault."""
    file = request.config.getoption("--figures")
    return Figures(file and file.resolve(), request.node.nodeid)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private cache folder, also for commands started by the test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("OPTKIT_CACHE", str(folder))
    return folder


@functools.cache
def validator(name: str) -> Draft202012Validator:
    """Checks objects by the published schema of a document."""
    return Draft202012Validator(documents.schema(name))


def valid(found: Any) -> dict[str, Any]:
    """The object that a command printed, which its published schema allows."""
    assert isinstance(found, dict)
    validator(found["schema"].removeprefix("optkit.").removesuffix("/v1")).validate(found)
    return found


@dataclass(frozen=True)
class Ran:
    """What one command came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one object on stdout: a JSON schema, or a document that its own schema allows."""
        found = json.loads(self.out)
        return found if "$schema" in found else valid(found)

    @property
    def result(self) -> dict[str, Any]:
        """The object of a build (or several) or of a search."""
        return self.json

    def told(self, *parts: str) -> Ran:
        """Every part is on stderr, and no traceback."""
        for part in parts:
            assert part in self.err, self.err
        assert "Traceback" not in self.err, self.err
        return self


Optkit = Callable[..., Ran]


def environment(cache: Path | None, **changes: str | None) -> dict[str, str]:
    found = {key: os.environ[key] for key in INHERITED if key in os.environ}
    found |= {"PYTHONPATH": str(ROOT), "OPTKIT_CONFIG": os.environ["OPTKIT_CONFIG"]}
    found |= {} if cache is None else {"OPTKIT_CACHE": str(cache)}
    found |= {key: value for key, value in changes.items() if value is not None}
    return {key: value for key, value in found.items() if changes.get(key, value) is not None}


@pytest.fixture
def optkit_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Optkit:
    """`optkit …` in this process."""

    def run(*argv: object, cwd: Path | None = None, cache: Path | None = None) -> Ran:
        with monkeypatch.context() as patch:
            patch.setattr("signal.signal", lambda number, handler: None)
            patch.setattr(sys, "stderr", sys.stderr)  # the command wraps it
            patch.chdir(cwd or ROOT)
            if cache is not None:
                patch.setenv("OPTKIT_CACHE", str(cache))
            capsys.readouterr()
            with pytest.raises(SystemExit) as ended:
                cli.main([str(part) for part in argv])
        found = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return Ran(code, found.out, found.err)

    return run


@pytest.fixture(scope="session")
def optkit_apart() -> Optkit:
    """`optkit …` as a process of its own. `env`: changes, None removes; others go to subprocess."""

    def run(
        *argv: object,
        cwd: Path | None = None,
        cache: Path | None = None,
        env: Mapping[str, str | None] | None = None,
        command: list[str] = COMMAND,
        **options: Any,
    ) -> Ran:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        done = subprocess.run(
            [*command, *map(str, argv)], cwd=cwd or ROOT, env=environment(cache, **(env or {})),
            stdin=subprocess.DEVNULL, text=True, timeout=550, check=False, **streams,
        )  # fmt: skip
        return Ran(done.returncode, done.stdout or "", done.stderr or "")

    return run


@dataclass(frozen=True)
class MainJob:
    """The main job of README, built once in a store of its own. Nobody writes into these folders;
    `result`: the object that the command printed."""

    cache: Path
    out: Path
    temporary: Path
    result: dict[str, Any]

    NAME = "digits-vit-l4-int8"


def shared_folder(factory: pytest.TempPathFactory, name: str) -> Path:
    """A folder that all workers of one test run share. It may not exist yet."""
    base = factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name


@pytest.fixture(scope="session")
def quiet_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the main job needs, in which nothing else happens. A step with user code
    records each file of its project that any process opens meanwhile, so its key in the checkout
    depends on the tests that run beside it."""
    folder = shared_folder(tmp_path_factory, "quiet-project")
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            for name in ("recipes", "examples/00_digits_vit", "calibration", "eval"):
                shutil.copytree(ROOT / name, folder / name)
            shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@pytest.fixture(scope="session")
def main_job(
    tmp_path_factory: pytest.TempPathFactory, optkit_apart: Optkit, quiet_project: Path
) -> MainJob:
    """A cold build that nothing disturbs: the slowest thing that many tests start from."""
    folder = shared_folder(tmp_path_factory, "main-job")
    file = folder / "result.json"
    cache, out, temporary = folder / "cache", folder / "artifacts", folder / "tmp"
    with FileLock(f"{folder}.lock"):
        if not file.exists():
            shutil.rmtree(folder, ignore_errors=True)
            temporary.mkdir(parents=True)
            done = optkit_apart(
                "build", "--recipe", "digits-vit", "--target", "l4", "--precision", "int8",
                "--json", "--out", out,
                cwd=quiet_project, cache=cache, env={"TMPDIR": str(temporary)},
            )  # fmt: skip
            assert done.code == 0, done.err
            file.write_text(done.out)
    return MainJob(cache, out, temporary, json.loads(file.read_text()))


@pytest.fixture(scope="session")
def optkit_started() -> Callable[..., subprocess.Popen[str]]:
    """`optkit …` as a process of its own that is still running."""

    def start(*argv: object, cwd: Path, cache: Path, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, *map(str, argv)], cwd=cwd, env=environment(cache), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
        )  # fmt: skip

    return start
