"""Every command under every condition in which scripts and services run it: what it promises of
stdout, of its exit code and of the processes that it started."""

from __future__ import annotations

import json
import os
import pty
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from optkit.verbs.cli import optkit
from tests.cli.test_declarations import commands
from tests.cli.test_streams import alive
from tests.conftest import COMMAND, environment
from tests.figures import Figures
from tests.hostile import onnx_files
from tests.packaging import tiny

LINES = {
    "build": "build MODEL -t cpu -p fp32 --defer --out OUT",
    "finish": "finish ARTIFACT",
    "tune": "tune MODEL -t cpu --dry-run",
    "plan": "plan MODEL -t l4",
    "export": "export MODEL -o OUT",
    "fuse": "fuse MODEL -o OUT",
    "quantize": "quantize MODEL -t cpu -p int8 -o OUT",
    "compile": "compile MODEL -t cpu -p fp32 -o OUT",
    "bench": "bench MODEL -t cpu -p fp32 --set bench.seconds=0.1",
    "eval": "eval MODEL -t cpu -p fp32",
    "generate": "generate ARTIFACT --prompt x",
    "monitor": "monitor -- sleep 0.2",
    "inspect": "inspect MODEL",
    "explain": "explain ARTIFACT",
    "diff": "diff MODEL MODEL",
    "package": "package ARTIFACT --format triton -o OUT",
    "sign": "sign ARTIFACT --key MISSING",
    "verify": "verify ARTIFACT",
    "attest": "attest ARTIFACT",
    "targets": "targets l4",
    "devices": "devices",
    "doctor": "doctor",
    "schema": "schema result",
    "init": "init MODEL",
    "completion": "completion bash",
    "mcp": "mcp",
    "ls": "cache ls",
    "gc": "cache gc",
    "clear": "cache clear",
    "cache verify": "cache verify",
}  # fmt: skip
DOCUMENTED = frozenset({0, 2, 3, 4, 5, 6, 7, 8})
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Project:
    """A folder with a model and an artifact, and what a command leaves there."""

    home: Path

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True)
        onnx_files.save(onnx_files.plain_model(), self.home)
        made = tiny.artifact(self.home.parent / "artifacts").path  # refuses to write it here
        self.artifact = self.home / made.name
        shutil.copytree(made, self.artifact)
        self.cache = self.home / "cache"

    def line(self, name: str, *more: str) -> list[str]:
        shutil.rmtree(self.home / "out", ignore_errors=True)
        (self.home / "optkit.yaml").unlink(missing_ok=True)
        places = {"MODEL": "model.onnx", "ARTIFACT": str(self.artifact), "OUT": "out",
                  "MISSING": "missing.pem"}  # fmt: skip
        words = [places.get(word, word) for word in LINES[name].split()]
        at = words.index("--") if "--" in words else len(words)
        return [*COMMAND, *words[:at], *more, *words[at:]]

    def start(self, name: str, *more: str, **options: object) -> subprocess.Popen[str]:
        env = {**environment(self.cache), **dict(options.pop("env", {}))}  # type: ignore[call-overload]
        env = {key: value for key, value in env.items() if value is not None}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.Popen(
            self.line(name, *more), cwd=self.home, env=env, stdin=subprocess.DEVNULL, text=True,
            errors="surrogateescape", start_new_session=True, **streams,
        )  # type: ignore[call-overload,no-any-return]  # fmt: skip


def ended(child: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = child.communicate(timeout=500)
    assert "Traceback" not in (err or ""), err
    return out or "", err or ""


def takes_json(name: str) -> bool:
    found = next(one for one in commands(optkit) if one.name == name.split()[-1])
    return any("--json" in parameter.opts for parameter in found.params)


def prints_json(project: Project, name: str) -> None:
    child = project.start(name, *(["--json"] if takes_json(name) else []))
    out, err = ended(child)
    assert child.returncode in DOCUMENTED, err
    assert "\x1b" not in out + err
    if takes_json(name):
        assert isinstance(json.loads(out), dict), out


def has_no_colour(project: Project, name: str) -> None:
    master, terminal = pty.openpty()
    env = {"TERM": "xterm-256color", "NO_COLOR": "1"}
    child = project.start(name, stderr=terminal, env=env)
    os.close(terminal)
    told = b""
    try:
        while part := os.read(master, 1 << 16):
            told += part
    except OSError:  # the terminal is closed
        pass
    ended(child)
    os.close(master)
    assert child.returncode in DOCUMENTED
    assert not re.search(rb"\x1b\[[0-9;]*[34][0-9]m", told), told


def says_that_stdout_is(closed: Callable[[], dict[str, object]]) -> Callable[..., None]:
    def check(project: Project, name: str) -> None:
        child = project.start(name, **closed())
        ended(child)
        plain = project.start(name)
        out, _ = ended(plain)
        unread = not out  # as of mcp, whose client says nothing
        wanted = {plain.returncode} if plain.returncode or unread else {8}
        assert child.returncode in wanted | {8}, (child.returncode, plain.returncode)

    return check


def ends_quietly(project: Project, name: str) -> None:
    """With the reader of its pipe gone, as behind `| head`."""
    read, write = os.pipe()
    os.close(read)
    child = project.start(name, stdout=write)
    _, err = ended(child)
    os.close(write)
    assert child.returncode in DOCUMENTED and "could not be written" not in err, err


def ends_by(numbers: tuple[int, ...], code: int) -> Callable[..., None]:
    def check(project: Project, name: str) -> None:
        child = project.start(name)
        status = Path(f"/proc/{child.pid}/status")
        while child.poll() is None:
            caught = re.search(r"SigCgt:\s*([0-9a-f]+)", status.read_text())
            if caught and int(caught[1], 16) >> (signal.SIGTERM - 1) & 1:
                break
            time.sleep(0.005)
        time.sleep(random.Random(name).uniform(0, 0.5))
        for number in numbers:
            if child.poll() is None:
                child.send_signal(number)
                time.sleep(0.02)
        _, err = child.communicate(timeout=500)
        assert "this is a bug" not in err, err
        # a signal that comes when Python has ended all else ends it as the shell would tell it
        assert child.returncode in DOCUMENTED | {code, 128 - code}, child.returncode

    return check


def runs_with(**env: str | None) -> Callable[..., None]:
    def check(project: Project, name: str) -> None:
        child = project.start(name, env={"OPTKIT_CACHE": None, **env})
        _, err = ended(child)
        assert child.returncode in DOCUMENTED, err

    return check


CONDITIONS: dict[str, tuple[str, Callable[..., None]]] = {
    "json": ("plain", prints_json),
    "no colour": ("plain", has_no_colour),
    "closed stdout": ("plain", says_that_stdout_is(
        lambda: {"stdout": None, "preexec_fn": lambda: os.close(1)})),
    "broken pipe": ("plain", ends_quietly),
    "interrupt": ("plain", ends_by((signal.SIGINT,), 130)),
    "terminated twice": ("plain", ends_by((signal.SIGTERM, signal.SIGTERM), 143)),
    "no home": ("plain", runs_with(HOME=None)),
    "home that is a file": ("plain", runs_with(HOME="/dev/null")),
    "home that nobody may write": ("plain", runs_with(HOME="/proc")),
    "spaces and a newline": ("a b\n c", prints_json),
    "not UTF-8": ("m\udcff", prints_json),
}  # fmt: skip


def test_every_command_is_here() -> None:
    def names(group: click.Group, before: str = "") -> set[str]:
        return {
            inner
            for name, one in group.commands.items()
            for inner in (names(one) if isinstance(one, click.Group) else {name})
        }

    assert names(optkit) == {name.split()[-1] for name in LINES}


@pytest.mark.slow
def test_every_command_keeps_its_word(tmp_path: Path, figures: Figures) -> None:
    projects = {
        name: Project(tmp_path / name) for name in {place for place, _ in CONDITIONS.values()}
    }
    pairs = [(name, condition) for condition in CONDITIONS for name in LINES]
    chosen = pairs[:: figures.times(23, 1)]
    for name, condition in chosen:
        place, check = CONDITIONS[condition]
        try:
            check(projects[place], name)
        except Exception as error:
            raise AssertionError(f"optkit {name}, {condition}: {error}") from error
        assert alive(projects[place].cache) == [], (name, condition)
    figures.tell(
        "commands under odd conditions", len(chosen),
        f"{len(LINES)} commands under {len(CONDITIONS)} conditions ({', '.join(CONDITIONS)}): one "
        "JSON object on stdout, a documented exit code, no traceback, no process left",
    )  # fmt: skip
