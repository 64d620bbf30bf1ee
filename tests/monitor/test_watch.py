"""Real programs get the right verdict, and behave under `optkit monitor` as they do alone."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from optkit.satellites.monitor import diagnose, figures, watch_command, watch_process
from tests.conftest import valid

OPTKIT = (sys.executable, "-c", "from optkit.cli import main; main()", "monitor")
COMPUTES = "import time\nend = time.time() + 1\nwhile time.time() < end: pass"
FORKS = f"""
import subprocess, sys
for _ in range(2):
    subprocess.run([sys.executable, "-c", {COMPUTES!r}])
"""
SLEEPS = "import time; time.sleep(1)"
# past the page cache, so that it really waits for the device
WRITES = """
import mmap, os, sys, time
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
page = mmap.mmap(-1, 1 << 20)
end, i = time.time() + 1, 0
while time.time() < end:
    os.pwrite(file, page, (i % 16) << 20)
    i += 1
"""


def verdict(*program: str) -> tuple[str, dict[str, Any]]:
    ended = watch_command((sys.executable, "-c", *program), interval=0.3, heard=lambda sample: None)
    assert ended.exit_code == 0
    found = figures(ended.samples, ended.cores)
    return diagnose(found).bound.rule.verdict, found


def tried(wanted: str, *program: str, times: int = 3) -> Iterator[dict[str, Any]]:
    """The figures of each try that was named as wanted: beside other work a program waits for other
    things than alone, so it may try again."""
    for _ in range(times):
        name, found = verdict(*program)
        if name == wanted:
            yield found


def test_a_computing_program_is_cpu_bound() -> None:
    assert any(found["disk_wait"] < 0.1 for found in tried("cpu-bound", COMPUTES))


def test_a_program_that_gets_no_core_is_reported_so() -> None:
    """Four spin on one core: each is ready all the time, and runs a quarter of it."""
    one = {min(os.sched_getaffinity(0))}
    pinned = f"import os; os.sched_setaffinity(0, {one})\n"
    others = [
        subprocess.Popen([sys.executable, "-c", f"{pinned}while True: pass"]) for _ in range(3)
    ]
    try:
        found = next(tried("cpu-bound", pinned + COMPUTES))
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert found["cores"] < 0.5 and "gets no core" in diagnose(found).bound.rule.advice


def test_the_work_of_children_counts() -> None:
    assert any(found["processes"] == 2 for found in tried("cpu-bound", FORKS))


def test_a_sleeping_program_is_idle() -> None:
    assert any(found["cores"] < 0.5 for found in tried("idle", SLEEPS))


@pytest.mark.slow
def test_a_program_that_waits_for_its_disk_is_disk_bound(tmp_path: Path) -> None:
    if not on_disk(tmp_path):
        pytest.skip("the folder for tests lies on no disk")
    writes = tried("disk-bound", WRITES, str(tmp_path / "file"), times=5)
    assert any(found["written_bytes"] > 1e6 for found in writes)


def on_disk(folder: Path) -> bool:
    mounts = [p for p in psutil.disk_partitions() if folder.is_relative_to(p.mountpoint)]
    return any(p.device.startswith("/dev/") for p in mounts)


def test_a_running_process_can_be_watched_for_a_while() -> None:
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        ended = watch_process(child.pid, interval=0.2, heard=lambda sample: None, seconds=0.8)
    finally:
        child.kill()
        child.wait()
    assert ended.exit_code is None
    assert diagnose(figures(ended.samples, ended.cores)).bound.rule.verdict == "cpu-bound"


@pytest.mark.parametrize("version", [1, 2])
def test_the_limits_are_those_of_the_watched_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: int
) -> None:
    """Its own control group's: 1.5 CPUs and 0.2 GB, and not those of the watcher."""
    child = subprocess.Popen(["sleep", "60"])
    files = {
        1: {"cpu,cpuacct/job/cpu.cfs_quota_us": "150000",
            "cpu,cpuacct/job/cpu.cfs_period_us": "100000",
            "memory/job/memory.limit_in_bytes": "200000000"},
        2: {"job/cpu.max": "150000 100000", "job/memory.max": "200000000"},
    }[version]  # fmt: skip
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text)
    lines = {1: "4:cpu,cpuacct:/job\n7:memory:/job\n", 2: "0::/job\n"}[version]
    for pid, member in ((str(child.pid), lines), ("self", "0::/\n"), (str(os.getpid()), "0::/\n")):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cgroup").write_text(member)
    monkeypatch.setattr("optkit.satellites.monitor.watch._PROC", tmp_path)
    monkeypatch.setattr("optkit.satellites.monitor.watch._CGROUPS", tmp_path / "groups")
    try:
        ended = watch_process(child.pid, interval=0.2, heard=lambda sample: None, seconds=0.3)
    finally:
        child.kill()
        child.wait()
    assert ended.cores == min(2, len(os.sched_getaffinity(0)))
    assert {sample.memory_limit_bytes for sample in ended.samples} == {200_000_000}


def test_the_exit_code_is_passed_on_and_json_has_stdout_to_itself() -> None:
    done = subprocess.run(
        [*OPTKIT, "--json", "--", "sh", "-c", "echo out; exit 7"], capture_output=True, text=True
    )
    told = valid(json.loads(done.stdout))
    assert done.returncode == 7 == told["exit_code"] and "out" in done.stderr
    assert told["schema"] == "optkit.monitor/v1" and told["command"][0] == "sh"
    assert told["diagnosis"]["verdict"] == "undetermined"


def test_the_commands_stdout_is_its_own_and_a_signal_reaches_it() -> None:
    script = "trap 'echo trapped; exit 9' TERM; echo ready; while :; do sleep 0.1; done"
    watching = subprocess.Popen([*OPTKIT, "--", "sh", "-c", script], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    assert watching.stdout is not None and watching.stdout.readline() == "ready\n"
    watching.send_signal(signal.SIGTERM)
    out, err = watching.communicate(timeout=30)
    assert out == "trapped\n" and watching.returncode == 9 and "because" in err


def test_ctrl_c_reaches_the_command_once() -> None:
    """A terminal sends it to both; the command must not get it twice."""
    script = (
        "n=0; trap 'n=$((n+1))' INT; echo ready; i=0; "
        "while [ $i -lt 8 ]; do sleep 0.1; i=$((i+1)); done; echo got $n"
    )
    pid, terminal = os.forkpty()
    if pid == 0:
        os.execv(sys.executable, [*OPTKIT, "--", "sh", "-c", script])
    said = b""
    deadline = time.monotonic() + 30
    while b"got" not in said and time.monotonic() < deadline:
        if b"ready" in said and b"^C" not in said:
            os.write(terminal, b"\x03")
        said += os.read(terminal, 4096)
    os.close(terminal)
    os.waitpid(pid, 0)
    assert b"got 1" in said


@pytest.mark.parametrize(
    "arguments",
    ["", "--pid 1 -- true", "--seconds 1 -- true", "--pid 4194305", "-- /no/such", "-- ''"],
)
def test_a_request_that_means_nothing_is_refused(arguments: str) -> None:
    done = subprocess.run([*OPTKIT, *shlex.split(arguments)], capture_output=True, text=True)
    assert done.returncode == 2 and "error:" in done.stderr and "Traceback" not in done.stderr
