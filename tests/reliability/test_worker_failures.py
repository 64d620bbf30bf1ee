"""Workers that crash, hang, or ask for too much, at every step of the demo build.

The verdict is right, no process is left over, finished steps and an older artifact stay, and the
next run of the same command succeeds.
"""

from __future__ import annotations

import functools
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import optkit
from optkit.facts.errors import WorkerFailed
from optkit.ground.execute import local
from optkit.road.steps.step_table import STEPS as ALL
from tests.figures import Figures

if TYPE_CHECKING:
    import subprocess

    from tests.reliability.conftest import Demo, Finished, Reference

    Workers = Callable[[int], list[int]]
    Finish = Callable[[subprocess.Popen[str]], Finished]

FAULTY = Path(__file__).parents[1] / "execute" / "faulty_worker.py"
VERDICTS = {
    "segv": "crashed", "abort": "crashed", "kill": "crashed", "exit137": "crashed",
    "hang": "timeout", "flood": "output", "grandchild": "crashed", "hog": "oom",
    "garbage": "crashed",
}  # fmt: skip
_OTHERS = ("adopt", "random", "quantize_layers", "ort", "bench", "summary", "survey",
           "sensitivity", "deviate", "divide", "outline", "peak", "attribute",
           "dequantize", "repair", "import_quantized", "show_worst",
           "given_ranges", "shorten", "kv_cache", "cache_reach", "noisy_nodes",
           "quantize_in_order", "resize", "cover_sizes", "compare_sizes",
           "check_finite", "lower", "outputs", "measure_card")  # fmt: skip
STEPS = tuple(name for name in ALL if name not in _OTHERS)
MIB = 2**20


def assert_fails(demo: Demo, step: str, fault: str, workers: Workers) -> None:
    """The build in `demo`, where `step` is still to be done, fails there in this way."""
    before, idle = demo.entries(), set(workers(os.getpid()))  # idle: of builds before this one
    # the faulty step alone has a worker: limits that suit its fault hit nothing else
    workspace = optkit.Workspace(
        demo.cache, memory=300 * MIB, timeout=1 if VERDICTS[fault] == "timeout" else 60,
        executor=functools.partial(local.run, command=(sys.executable, str(FAULTY), fault, step)),
    )  # fmt: skip
    with pytest.raises(WorkerFailed) as caught:
        optkit.build(
            recipe="digits-vit", target="l4", precision="int8", out=demo.out, workspace=workspace
        )
    assert caught.value.verdict == VERDICTS[fault]
    assert caught.value.exit_code == 6
    assert repr(step) in str(caught.value)
    assert set(workers(os.getpid())) <= idle
    assert demo.entries() == before
    assert list(demo.cache.glob("tmp/*")) == []
    assert not list(demo.out.glob(".*.part"))


def test_the_demo_runs_these_steps(reference: Reference) -> None:
    assert set(reference.demo.entries().values()) == set(STEPS)


@pytest.mark.parametrize(("step", "fault"), list(zip(STEPS, itertools.cycle(VERDICTS))))
def test_each_step_and_each_failure_once(
    step: str, fault: str, reference: Reference, tmp_path: Path, workers: Workers
) -> None:
    demo = reference.fork(tmp_path, without=(step,))
    assert_fails(demo, step, fault, workers)
    demo.assert_sound()


@pytest.mark.slow
def test_every_failure_at_every_step(
    reference: Reference, tmp_path: Path, workers: Workers, figures: Figures
) -> None:
    """Nine failures, one after the other in the same store, then a run that succeeds."""
    steps = STEPS[: figures.times(2, len(STEPS))]
    for step in steps:
        demo = reference.fork(tmp_path / step, without=(step,))
        reference.keep_artifact(demo)
        older = demo.artifact.manifest
        for fault in VERDICTS:
            assert_fails(demo, step, fault, workers)
            assert demo.artifact.manifest == older
        assert demo.rebuilt() == reference.digest
        demo.assert_sound()
    figures.tell(
        "a worker fails in native code", len(steps) * len(VERDICTS),
        "SIGSEGV, abort, SIGKILL, exit 137, a hang, 1 GiB of output, a process left behind, all "
        f"memory, a garbled result, each at {len(steps)} steps: the right verdict, and no process "
        "is left",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        (("--timeout", "1"), "step 'export' ran longer than 1 s and was stopped"),
        (("--memory", "60M"), "step 'export' needed more than 60 MiB of memory"),
    ],
)
def test_a_real_worker_over_its_limit(
    limit: tuple[str, str], told: str, reference: Reference, tmp_path: Path
) -> None:
    demo = reference.fork(tmp_path, without=("export",))
    done = demo.run("build", "--recipe", "digits-vit", "--target", "l4", *limit, "--json",
                    "--out", str(demo.out))  # fmt: skip
    assert done.code == 6
    assert done.result["status"] == "error"
    assert done.result["error"]["code"] == "worker_failed"
    assert done.result["error"]["message"] == told
    assert limit[0] in done.result["error"]["hint"]
    demo.assert_sound()


@pytest.mark.slow
def test_a_real_worker_is_killed(
    reference: Reference, tmp_path: Path, workers: Workers, finish: Finish
) -> None:
    """As the kernel's out-of-memory killer does it: in the middle of the work."""
    demo = reference.fork(tmp_path, without=("compile",))
    process = demo.start()
    while not (found := workers(process.pid)) and process.poll() is None:
        time.sleep(0.01)
    time.sleep(0.3)
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    done = finish(process)
    assert done.code == 6
    assert done.result["error"]["message"].startswith("step 'compile' was killed by SIGKILL")
    assert demo.rebuilt() == reference.digest
    demo.assert_sound()
