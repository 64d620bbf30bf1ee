"""Real programs are named rightly, and behave under the watch as they would alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from optkit.monitor import diagnose, figures, watch_command, watch_process

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


def test_a_computing_program_is_cpu_bound() -> None:
    name, found = verdict(COMPUTES)
    assert name == "cpu-bound" and found["disk_wait"] < 0.1


def test_the_work_of_children_counts() -> None:
    name, found = verdict(FORKS)
    assert name == "cpu-bound" and found["processes"] == 2


def test_a_sleeping_program_is_idle() -> None:
    name, found = verdict(SLEEPS)
    assert name == "idle" and found["cores"] < 0.5


@pytest.mark.slow
def test_a_program_that_waits_for_its_disk_is_disk_bound(tmp_path: Path) -> None:
    """Beside other work it waits for a core instead, so it may try again."""
    if not on_disk(tmp_path):
        pytest.skip("the folder for tests lies on no disk")
    tries = (verdict(WRITES, str(tmp_path / "file")) for _ in range(5))
    assert any(name == "disk-bound" and found["written_bytes"] > 1e6 for name, found in tries)


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


def test_the_exit_code_is_passed_on_and_json_has_stdout_to_itself() -> None:
    done = subprocess.run(
        [*OPTKIT, "--json", "--", "sh", "-c", "echo out; exit 7"], capture_output=True, text=True
    )
    told = json.loads(done.stdout)
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
    "arguments", ["", "--pid 1 -- true", "--seconds 1 -- true", "--pid 4194305", "-- /no/such"]
)
def test_a_request_that_means_nothing_is_refused(arguments: str) -> None:
    done = subprocess.run([*OPTKIT, *arguments.split()], capture_output=True, text=True)
    assert done.returncode == 2 and "error:" in done.stderr and "Traceback" not in done.stderr
