from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from optkit.facts.errors import OptkitError, StorageError, WorkerFailed
from optkit.ground.execute import local
from optkit.ground.execute.task import Task, TaskLimits

FAULTY = Path(__file__).with_name("faulty_worker.py")
VERDICTS = {
    "segv": "crashed", "abort": "crashed", "kill": "crashed", "exit137": "crashed",
    "hang": "timeout", "flood": "output", "grandchild": "crashed", "hog": "oom",
    "garbage": "crashed",
}  # fmt: skip


def processes_of_mine() -> set[int]:
    found = set()
    for process in psutil.process_iter():
        try:
            if process.environ().get("OPTKIT_PARENT") == str(os.getpid()):
                found.add(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize("fault", sorted(VERDICTS))
def test_each_failure_has_its_verdict_and_leaves_no_process(fault: str, tmp_path: Path) -> None:
    task = Task("anything", {}, {}, str(tmp_path))
    limits = TaskLimits(memory_bytes=400 * 2**20, seconds=3, output_bytes=8 * 2**20)
    with pytest.raises(WorkerFailed) as caught:
        local.run(
            task,
            limits,
            command=(sys.executable, str(FAULTY), fault, "*"),
            scratch_root=tmp_path / "scratch",
        )
    assert caught.value.verdict == VERDICTS[fault]
    assert caught.value.exit_code == 6
    assert "anything" in str(caught.value)
    assert processes_of_mine() == set()
    assert list((tmp_path / "scratch").iterdir()) == []


def test_what_nobody_wants_any_more_ends_at_once(tmp_path: Path) -> None:
    task = Task("s", {}, {}, str(tmp_path))
    command, unwanted = (sys.executable, str(FAULTY), "hang", "*"), threading.Event()
    found: list[set[int]] = []

    def interrupt() -> None:
        while not processes_of_mine():
            time.sleep(0.02)
        found.append(processes_of_mine())
        unwanted.set()

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    for _ in range(2):  # the second begins no child
        with pytest.raises(KeyboardInterrupt):
            local.run(task, TaskLimits(2**30, seconds=60), command=command, unwanted=unwanted)
    thread.join()
    assert len(found) == 1 and processes_of_mine() == set()


def test_a_result_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    task = Task("nosuch", {}, {}, str(tmp_path))
    command = (sys.executable, str(FAULTY), "unwritable", "*")
    with pytest.raises(StorageError, match=r"step 'nosuch' could not be written: .*Is a directory"):
        local.run(task, TaskLimits(2**30), command=command)


def test_an_unknown_step_is_a_bug_with_its_name(tmp_path: Path) -> None:
    task = Task("nosuch", {}, {}, str(tmp_path))
    with pytest.raises(OptkitError) as caught:
        local.run(task, TaskLimits(2**30))
    assert caught.value.exit_code == 1 and "nosuch" in str(caught.value)


PARENT = """
import sys
from optkit.ground.execute.local import run
from optkit.ground.execute.task import Task, TaskLimits
run(Task("s", {}, {}, "."), TaskLimits(2**30),
    command=(sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"))
"""

# the worker asks to die with its parent; a command that does not is covered by the session kill
DYING = """
import sys
from optkit.ground.execute.local import run
from optkit.ground.execute.task import Task, TaskLimits
code = "from optkit.road.worker import _die_with_parent as d; d(); import time; time.sleep(600)"
run(Task("s", {}, {}, "."), TaskLimits(2**30),
    command=(sys.executable, "-c", code))
"""


def descendants(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


@pytest.mark.parametrize(
    ("code", "sent"), [(PARENT, signal.SIGINT), (DYING, signal.SIGKILL), (DYING, signal.SIGINT)]
)
def test_the_child_does_not_outlive_its_parent(code: str, sent: int, tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 20
    while not (children := descendants(parent.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert children
    time.sleep(0.7)
    parent.send_signal(sent)
    parent.wait(10)
    _gone, alive = psutil.wait_procs(children, timeout=5)
    assert not alive
