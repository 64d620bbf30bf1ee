from __future__ import annotations

import os
import subprocess
import sys

import psutil

from optkit.ground.execute import resident_memory
from optkit.ground.execute.resident_memory import resident

# a thread starts a grandchild, which holds 64 MiB
_TREE = """
import subprocess, sys, threading
def start():
    code = "held = bytes(range(256)) * (1 << 18); print(len(held), flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    input()
    child.communicate(b"\\n")
thread = threading.Thread(target=start)
thread.start()
thread.join()
"""


def test_descendants_of_every_thread_are_counted() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", _TREE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None and child.stdout.readline()
        root = psutil.Process(child.pid)
        sizes = [one.memory_info().rss for one in (root, *root.children(recursive=True))]
        assert len(sizes) == 2 and max(sizes) > 64 << 20
        for found in (resident(child.pid), resident_memory._resident_by_search(child.pid)):
            assert 0.9 * sum(sizes) < found < 1.1 * sum(sizes)
    finally:
        child.communicate(b"\n")
    assert resident(child.pid) == 0


def test_the_own_process_is_counted() -> None:
    assert resident(os.getpid()) >= 0.5 * psutil.Process().memory_info().rss
