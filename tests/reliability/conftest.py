"""The demo build as a command, an undisturbed one to compare with, and what no build may leave."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from optkit.ground import graph
from optkit.ground.artifact import Artifact
from optkit.ground.store import Store, eviction
from tests.conftest import MainJob
from tests.networks import CHAIN, feed, network
from tests.reliability.faulty_disk.process import Disk

ROOT = Path(__file__).resolve().parents[2]
BUILD = ("build", "--recipe", "digits-vit", "--target", "l4", "--precision", "int8", "--json")
# no engine for this target can be compiled here: a second of work, cold
SMALL_BUILD = ("build", "small.onnx", "--target", "orin", "--precision", "int8",
               "--calibration", "samples.npz", "--json")  # fmt: skip
_OPTKIT = (sys.executable, "-c", "from optkit.cli import main; main()")
_INHERITED = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


@dataclass(frozen=True)
class Finished:
    """A command that has ended: exit code, the object on stdout, the text on stderr."""

    code: int
    result: dict[str, Any]
    stderr: str


@dataclass(frozen=True)
class Demo:
    """A store, a folder for artifacts and a TMPDIR of its own, in which the demo is built.
    `project`: where the command runs; `build`: its arguments; `name`: that of its artifact."""

    project: Path
    cache: Path
    out: Path
    temporary: Path
    build: tuple[str, ...] = BUILD
    name: str = MainJob.NAME

    @classmethod
    def within(cls, folder: Path, project: Path, **other: Any) -> Demo:
        demo = cls(project, folder / "cache", folder / "artifacts", folder / "tmp", **other)
        demo.temporary.mkdir(parents=True)
        return demo

    @classmethod
    def small(cls, folder: Path, project: Path) -> Demo:
        """Of `small_project`."""
        return cls.within(folder, project, build=SMALL_BUILD, name="small-jetson-agx-orin-int8")

    @property
    def store(self) -> Store:
        return Store(self.cache)

    @property
    def artifact(self) -> Artifact:
        """Every byte of it is compared."""
        found = Artifact.load(self.out / self.name)
        found.verify()
        return found

    def start(
        self,
        *command: str,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        before: Callable[[], None] | None = None,
    ) -> subprocess.Popen[str]:
        """`optkit` with these arguments; by default the build. `before` runs in the new process."""
        arguments = command or (*self.build, "--out", str(self.out))
        environment = {k: os.environ[k] for k in _INHERITED if k in os.environ}
        environment |= {
            "PYTHONPATH": str(ROOT),
            "OPTKIT_CACHE": str(self.cache),
            "TMPDIR": str(self.temporary),
            **(env or {}),
        }
        return subprocess.Popen(
            [*_OPTKIT, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            cwd=cwd or self.project,
            env=environment,
            preexec_fn=before,
        )

    def run(self, *command: str, **how: Any) -> Finished:
        return ended(self.start(*command, **how))

    def rebuilt(self) -> str:
        """`manifest.digest` of a build that nothing disturbs."""
        done = self.run()
        assert done.code == 0, done.stderr
        return self.artifact.digest

    def entries(self) -> dict[str, str]:
        """Key → step of everything in the store."""
        return {key: step for key, step, *_ in self.store.entries()}

    def assert_sound(self) -> None:
        """No entry is torn, and what killed builds left behind is gone after a gc."""
        _, corrupt = self.store.verify()
        assert corrupt == []
        eviction.gc(self.store, 2**40)
        left = [*self.cache.glob("tmp/*"), *self.cache.glob("quarantine/*")]
        left += [path for path in self.cache.glob("reads/*") if path.suffix != ".json"]
        assert left == []
        assert list(self.temporary.iterdir()) == []
        assert {path.name for path in self.out.glob("*")} <= {".gitignore", self.name}


@dataclass(frozen=True)
class Reference:
    """An undisturbed cold build. Nobody writes into it."""

    demo: Demo
    digest: str
    result: dict[str, Any]

    @property
    def seconds(self) -> dict[str, float]:
        """Step → seconds of all its runs, and "total"."""
        return self.result["seconds"]

    def fork(self, folder: Path, *, without: Collection[str] = ()) -> Demo:
        """A copy of the finished store in `folder`, where these steps are still to be done."""
        demo = Demo.within(folder, self.demo.project)
        shutil.copytree(self.demo.cache, demo.cache)
        for key, step in demo.entries().items():
            if step in without:
                shutil.rmtree(demo.cache / "steps" / key[:2] / key)
        return demo

    def keep_artifact(self, demo: Demo) -> None:
        """The finished artifact stands in `demo` as an older one of the same name."""
        shutil.copytree(self.demo.out, demo.out)


def ended(process: subprocess.Popen[str]) -> Finished:
    """Wait for a command of `Demo.start`."""
    stdout, stderr = process.communicate(timeout=600)
    return Finished(process.returncode, json.loads(stdout or "{}"), stderr)


def workers_of(pid: int) -> list[int]:
    """Processes that a build with this process id started, and theirs."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("OPTKIT_PARENT") == str(pid):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.fixture(scope="session")
def reference(main_job: MainJob, quiet_project: Path) -> Reference:
    """The main job that other tests start from, too."""
    demo = Demo(quiet_project, main_job.cache, main_job.out, main_job.temporary)
    return Reference(demo, demo.artifact.digest, main_job.result)


@pytest.fixture
def demo(tmp_path: Path, quiet_project: Path) -> Demo:
    """An empty store."""
    return Demo.within(tmp_path / "demo", quiet_project)


@pytest.fixture(scope="session")
def small_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph and samples, whose build is short."""
    folder, model = tmp_path_factory.mktemp("small"), network(CHAIN)
    graph.save(model, folder / "small.onnx")
    np.savez(folder / "samples.npz", **feed(model, 16, 0))
    return folder


@pytest.fixture
def finish() -> Callable[[subprocess.Popen[str]], Finished]:
    """Wait for a command that was started."""
    return ended


@pytest.fixture
def workers() -> Callable[[int], list[int]]:
    """The processes that came from a build, by the build's process id."""
    return workers_of


@pytest.fixture
def kill() -> Callable[[subprocess.Popen[str]], None]:
    """kill -9 of the command alone; its workers have to go by themselves."""

    def kill(process: subprocess.Popen[str]) -> None:
        process.kill()
        process.communicate()
        # three looks: a worker that was being started may show up now, only to end at once
        deadline, quiet = time.monotonic() + 60, 0
        while quiet < 3:
            assert time.monotonic() < deadline, workers_of(process.pid)
            time.sleep(0.1)
            quiet = 0 if workers_of(process.pid) else quiet + 1

    return kill


@pytest.fixture(scope="session")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    """A disk that fails or loses power at a chosen call."""
    if shutil.which("cc") is None:
        pytest.skip("the library that lets calls fail needs a C compiler")
    found = Disk(tmp_path_factory.mktemp("disk"))
    yield found
    found.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """A disk of its own that can be made larger: disk(bytes) -> its folder."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(options: str) -> bool:
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        return subprocess.run(command, capture_output=True).returncode == 0

    if not mount("size=64k"):
        pytest.skip("mounting needs root; the file size limit is tested instead")

    def sized(size: int) -> Path:
        assert mount(f"remount,size={size}")
        return folder

    yield sized
    subprocess.run(["umount", str(folder)], check=True)
