"""Streams, terminals and signals: closed pipes, redirected output, interrupts."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

Optkit = Callable[..., Any]


@pytest.fixture
def again(optkit_apart: Optkit, small: Path, store: Path, tmp_path: Path) -> Optkit:
    """`optkit build` of a small project as a process of its own; every step is a hit. It times
    nothing: what was timed on a busy machine is timed again."""

    def run(*argv: object, **options: Any) -> Any:
        line = ["build", "--target", "cpu", "--defer", "--out", tmp_path / "out", *argv]
        return optkit_apart(*line, cwd=small, cache=store, **options)

    return run


@pytest.mark.parametrize("how", ["closed", "full"])
@pytest.mark.parametrize("options", [["--json"], []])
def test_a_result_that_nobody_can_read_is_exit_8_and_the_work_is_kept(
    how: str, options: list[str], again: Optkit, tmp_path: Path
) -> None:
    with Path("/dev/full").open("w") as full:
        streams = {"closed": {"stdout": None, "preexec_fn": lambda: os.close(1)},
                   "full": {"stdout": full}}[how]  # fmt: skip
        done = again(*options, **streams)
    reason = {"closed": "it is closed", "full": "No space left on device"}[how]
    done.told("error: stdout: the result could not be written", reason, "hint: finished work")
    assert done.code == 8
    assert (tmp_path / "out/small-cpu-int8/manifest.json").exists()


@pytest.mark.parametrize(("options", "code"), [([], 0), (["--precision", "int99"], 2)])
def test_a_reader_that_has_enough_changes_neither_the_words_nor_the_exit_code(
    options: list[str], code: int, again: Optkit
) -> None:
    read, write = os.pipe()
    os.close(read)
    done = again("--dry-run", *options, stdout=write)
    os.close(write)
    assert done.code == code and "stdout" not in done.err
    assert ("error:" in done.err) is bool(code)


@pytest.mark.parametrize("how", ["closed", "full", "broken"])
def test_work_goes_on_when_nobody_reads_stderr(how: str, again: Optkit) -> None:
    with Path("/dev/full").open("w") as full:
        read, write = os.pipe()
        os.close(read)
        streams = {"closed": {"stderr": None, "preexec_fn": lambda: os.close(2)},
                   "full": {"stderr": full}, "broken": {"stderr": write}}[how]  # fmt: skip
        done = again("--verbose", "--json", **streams)
        os.close(write)
    assert done.code == 0
    assert done.result["status"] == "pending"


def test_stdout_is_left_to_results_also_by_native_code_and_other_processes() -> None:
    code = """if True:
        import os, subprocess
        from optkit.verbs.cli import command_output
        command_output.keep_stdout()
        os.write(1, b"native ")
        subprocess.run(["echo", "other"], check=True)
        print("library")
        command_output.put("result")
        os.write(1, b"daemon")
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "result\n"
    assert done.stderr.split() == ["native", "other", "library", "daemon"]


def test_help_and_version_reach_stdout_or_say_why_not(optkit_apart: Optkit) -> None:
    told = optkit_apart("build", "--help")
    assert told.code == 0 and "--precision" in told.out and told.err == ""
    with Path("/dev/full").open("w") as full:
        done = optkit_apart("--help", stdout=full).told("No space left on device", "hint:")
    assert done.code == 8


def test_the_bare_command_shows_how_it_is_used(optkit_here: Optkit) -> None:
    done = optkit_here()
    assert done.code == 2 and done.out == ""
    assert done.err.startswith("Usage: optkit") and "build" in done.err


@pytest.mark.slow
def test_progress_is_on_stderr_and_quiet_takes_it_away(again: Optkit) -> None:
    loud, plain, quiet = again("--verbose"), again(), again("--quiet")
    assert loud.err.count("hit ") >= 12
    assert "hit" not in plain.err
    assert all(line.strip().startswith("note: ") for line in quiet.err.splitlines())
    assert len({one.out for one in (loud, plain, quiet)}) == 1  # results are not progress
    assert "small-cpu-int8" in plain.out and "simulated" in plain.out
    assert "\x1b" not in loud.out + loud.err  # no colour where there is no terminal


@pytest.mark.parametrize("colour", [True, False])
def test_a_terminal_gets_colour_unless_no_color_is_set(
    colour: bool, optkit_apart: Optkit, tmp_path: Path
) -> None:
    master, terminal = pty.openpty()
    env = {"TERM": "xterm-256color", "NO_COLOR": None if colour else "1"}
    done = optkit_apart("build", "--target", "nosuch", stderr=terminal, env=env)
    os.close(terminal)
    told = os.read(master, 1 << 16).decode()
    os.close(master)
    assert done.code == 2 and "unknown target 'nosuch'" in told
    assert ("\x1b[1;31m" in told) == colour


SLOW = """\
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent

def samples():
    (HERE / "started").touch()
    while not (HERE / "go").exists():
        time.sleep(0.05)
    for _ in range(3):
        yield {"x": np.ones((32, 16), np.float32) * np.arange(32)[:, None].astype(np.float32) / 16}
"""


def alive(cache: Path) -> list[str]:
    """The command lines of all living processes that work for that cache."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("OPTKIT_CACHE") == str(cache):
                found.append(" ".join(process.cmdline()))
    return found


def wait_for(path: Path, child: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < deadline, "the step never began"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("number", "group", "code"),
    [
        pytest.param(signal.SIGINT, False, 130, marks=pytest.mark.slow),
        (signal.SIGINT, True, 130),  # Ctrl-C in a terminal reaches the whole group
        pytest.param(signal.SIGTERM, False, 143, marks=pytest.mark.slow),
    ],
)
def test_a_signal_in_mid_build_leaves_no_process_and_the_same_command_goes_on(
    number: int, group: bool, code: int, project: Path, tmp_path: Path,
    optkit_started: Optkit, optkit_apart: Optkit,
) -> None:  # fmt: skip
    (project / "source.py").write_text(SLOW)
    cache = tmp_path / "cache"
    line = ["build", "--target", "cpu", "--precision", "fp32", "--json"]
    child = optkit_started(*line, cwd=project, cache=cache, start_new_session=True)
    try:
        wait_for(project / "started", child)
        # the command, the worker that samples, and the one that sleeps until then
        assert len(alive(cache)) == 3
        (os.killpg if group else os.kill)(child.pid, number)
        out, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert (child.returncode, out) == (code, "")
    assert "Traceback" not in err
    assert ("run the same command" in err) == (code == 130)
    assert alive(cache) == []
    assert not any((cache / "tmp").iterdir())
    assert not (project / "artifacts").exists()
    if group:
        return  # what follows is the same, and takes its time
    (project / "go").touch()
    done = optkit_apart(*line, cwd=project, cache=cache)
    assert done.code == 0, done.err
    assert done.result["cache_hits"] >= 2  # export and fuse were finished
