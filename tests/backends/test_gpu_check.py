"""The acceptance test of a GPU host: its limits, its exit code, and that it reports no figures
without a card. The checks for a card run with a stand-in for the driver."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from optkit.craft.backends import cuda
from optkit.facts.errors import ToolchainMissing, WorkerFailed
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Difference, Interval
from optkit.facts.tensors import TensorInfo
from optkit.ground.devices import target
from optkit.ground.runtimes import backend
from tests.backends.standins import LOADED, Driver, rows

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "gpu"
MODULES = ("acceptance", "check", "engines", "kernels")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The modules of experiments/gpu, as one namespace."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    for name in MODULES:
        del sys.modules[name]


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> Any:
        raise ToolchainMissing("no NVIDIA driver")

    monkeypatch.setattr(cuda, "load", load)


# ── limits and exit code ───────────────────────────────────────────────────────────────────────


def ratio(value: float, low: float, high: float) -> Difference:
    return Difference(value, Interval(low, high), Evidence.MEASURED)


@pytest.mark.parametrize(
    ("rule", "found", "passes"),
    [
        ("same", ratio(1.001, 0.99, 1.01), True),
        ("same", ratio(1.05, 0.98, 1.12), True),  # its interval holds 1
        ("same", ratio(1.01, 1.005, 1.015), True),  # told apart, and too little to matter
        ("same", ratio(1.05, 1.04, 1.06), False),
        ("same", Difference(1.0, None, Evidence.MEASURED), False),
        ("slower", ratio(0.91, 0.90, 0.92), True),
        ("slower", ratio(0.91, 0.80, 1.01), False),  # not told from none
        ("slower", ratio(1.10, 1.09, 1.11), False),
        ("slower", ratio(0.70, 0.69, 0.71), False),
        ("slower", ratio(0.99, 0.985, 0.995), False),
        ("slower", Difference(0.91, None, Evidence.MEASURED), False),
    ],
)
def test_equal_sessions_are_equal_and_slower_ones_slower(
    script: Any, rule: str, found: Difference, passes: bool
) -> None:
    judge = getattr(script.acceptance, rule)
    if passes:
        assert judge(found)["value"] == found.value
    else:
        with pytest.raises(script.acceptance.Beyond) as caught:
            judge(found)
        assert caught.value.figures["value"] == found.value


@pytest.mark.parametrize(("off", "passes"), [(0.0, True), (0.05, True), (0.06, False),
                                             (float("nan"), False)])  # fmt: skip
def test_outputs_are_the_cpus(script: Any, off: float, passes: bool) -> None:
    if passes:
        assert script.acceptance.close({"y": off}, {"runs": 1})["runs"] == 1
    else:
        with pytest.raises(script.acceptance.Beyond, match="'y'"):
            script.acceptance.close({"y": off}, {})


def test_intervals_have_to_hold_most_kernels(script: Any) -> None:
    inside = {"ms": 1.0, "predicted_ms": 1.1, "low_ms": 0.8, "high_ms": 1.5}
    outside = {**inside, "ms": 2.2}
    found = script.acceptance.covered([inside] * 80 + [outside] * 20)
    assert (found["coverage"], found["inside"]) == (0.8, 80)
    assert found["median_error"] == pytest.approx(0.1)
    for few in ([inside] * 79 + [outside] * 21, []):
        with pytest.raises(script.acceptance.Beyond):
            script.acceptance.covered(few)


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (["passed", "skipped"], 0),
        (["passed"], 0),
        (["passed", "failed"], 3),
        (["failed", "skipped"], 3),
        (["skipped", "skipped"], 4),
        ([], 4),
    ],
)
def test_the_exit_code_is_of_what_ran(script: Any, statuses: list[str], code: int) -> None:
    outcomes = [script.acceptance.Outcome("a", status) for status in statuses]
    assert script.acceptance.exit_code(outcomes) == code


def test_a_check_passes_fails_or_says_what_it_lacks(script: Any) -> None:
    def outcome(work: Callable[[], Any], *needs: Callable[[], Any]) -> Any:
        return script.acceptance.run(script.acceptance.Check("a", "", 1, needs, work))

    def beyond() -> None:
        raise script.acceptance.Beyond("too much", {"ms": 3})

    def missing() -> None:
        raise ToolchainMissing("a node is on another provider")

    found = outcome(lambda: {"ms": 1}, lambda: None)
    assert (found.status, found.figures) == ("passed", {"ms": 1})
    found = outcome(beyond)
    assert (found.status, found.reason, found.figures) == ("failed", "too much", {"ms": 3})
    assert outcome(lambda: 1 / 0).status == outcome(missing).status == "failed"
    found = outcome(beyond, lambda: None, lambda: "no torch")
    assert (found.status, found.reason) == ("skipped", "no torch")


def test_a_process_of_its_own_may_crash_or_hang(script: Any, tmp_path: Path) -> None:
    apart, out = script.acceptance.run_apart, tmp_path / "out.json"

    def run(code: str, limit: float = 60.0) -> Any:
        return apart("a", limit, [sys.executable, "-c", code], out)

    assert run("import os; os.abort()").reason.startswith("ended with -6")
    assert "no text" in run("raise SystemExit('no text')").reason
    assert run("pass").status == "failed"  # it wrote nothing
    assert run("import time; time.sleep(600)", 0.2).reason == "not done within 0 s"
    told = json.dumps(script.acceptance.Outcome("a", "passed", 1.0, None, {"ms": 2}).to_json())
    found = run(f"open({str(out)!r}, 'w').write({told!r})")
    assert (found.status, found.figures) == ("passed", {"ms": 2})


# ── without a card ─────────────────────────────────────────────────────────────────────────────


def test_dry_says_what_would_run_and_runs_nothing(
    script: Any, absent: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script.check, "ran", None)
    assert script.check.main(["--dry"]) == 0
    told = capsys.readouterr().out
    for name in ("driver", "capture", "out of memory", "A/A", "10 % slower", "NVML", "predictor",
                 "onnxruntime-cuda", "onnxruntime-tensorrt", "onnxruntime-tensorrt-rtx", "tensorrt",
                 "tensorrt-rtx", "finish", "tensorrt, tiling", "tensorrt-rtx, time of layers",
                 "tensorrt, memory"):  # fmt: skip
        assert f"\n{name}: " in f"\n{told}"
    assert told.count("skipped here: no NVIDIA driver") == told.count("\n") - 1
    assert "skipped here: no ARTIFACT is given" in told


def test_without_a_card_nothing_ran_and_every_check_says_why(
    script: Any, absent: None, tmp_path: Path
) -> None:
    out = tmp_path / "found.json"
    assert script.check.main(["--out", str(out)]) == 4
    told = json.loads(out.read_text())
    assert (told["evidence"], told["gpu"], told["exit_code"]) == ("pending", None, 4)
    assert {row["status"] for row in told["checks"]} == {"skipped"}
    assert all(row["reason"] and not row["figures"] for row in told["checks"])
    with pytest.raises(SystemExit) as caught:
        script.check.main(["--only", "nothing"])
    assert caught.value.code == 2


def test_each_check_runs_apart_and_counts(
    script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The command of a check is that of this script for it alone."""
    asked: list[list[str]] = []

    def apart(name: str, limit: float, command: list[str], out: Path) -> Any:
        asked.append(command)
        return script.acceptance.Outcome(name, "failed", 1.23456, "as told")

    monkeypatch.setattr(script.acceptance, "run_apart", apart)
    check = script.acceptance.Check("a", "", 1, (), dict)
    monkeypatch.setattr(script.check, "checks", lambda artifact: [check])
    assert script.check.main([]) == 3
    (command,) = asked
    assert command[-4:-1] == ["--only", "a", "--apart"]
    assert script.check.main([*command[2:-1], str(tmp_path / "one.json")]) == 0
    assert json.loads((tmp_path / "one.json").read_text())["status"] == "passed"


def test_the_committed_results_are_no_figures() -> None:
    told = json.loads((FOLDER / "results.json").read_text())
    assert told["evidence"] == ("measured" if told["gpu"] else "pending")
    assert told["schema"] == "optkit.gpu-acceptance/v1"


# ── what a card would be asked, over a driver of a few lines ───────────────────────────────────


def test_the_drivers_calls_are_checked(
    script: Any, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.limit = 1 << 27
    found = script.check.driver_calls()
    assert (found["target"], found["compute_capability"]) == ("l4", "8.9")
    assert driver.blocks == {} and driver.events == {}
    monkeypatch.setattr(Driver, "cuMemcpyDtoHAsync_v2", lambda *arguments: 0)
    with pytest.raises(script.acceptance.Beyond, match="not what was sent"):
        script.check.driver_calls()


def test_more_than_there_is_gives_a_verdict(
    script: Any, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert script.check.out_of_memory()["verdict"] == "oom"
    assert driver.blocks == {}
    driver.failing.add("cuMemAlloc_v2")  # another error
    with pytest.raises((script.acceptance.Beyond, WorkerFailed)):
        script.check.out_of_memory()
    driver.failing.clear()
    monkeypatch.setattr(Driver, "cuMemAlloc_v2", lambda self, out, size: Driver.give(out, 1))
    monkeypatch.setattr(Driver, "cuMemFree_v2", lambda self, pointer: 0)
    with pytest.raises(script.acceptance.Beyond, match="was given"):
        script.check.out_of_memory()


def test_a_hundred_kernels_have_a_prediction(script: Any) -> None:
    for name, count in (("l4", 100), ("h200", 100), ("t4", 84)):
        device = target(name)
        kernels = list(script.kernels.kernels(device))
        assert len(kernels) == len({kernel.name for kernel in kernels}) == count
        for kernel in kernels:
            row = script.kernels.compared(kernel, device, 1.0)
            assert 0 < row["low_ms"] < row["predicted_ms"] < row["high_ms"]


def test_the_small_graph_runs_and_a_wrong_result_is_seen(script: Any, tmp_path: Path) -> None:
    script.engines.RUNS = 3
    ways = script.engines.Ways(None, tmp_path)
    session = backend("onnxruntime").session
    assert ways.timed(session(ways.model))["relative_difference"]["y"] < 0.01
    ways.expected = {"y": ways.expected["y"] + 1}
    with pytest.raises(script.acceptance.Beyond, match="off the CPU's"):
        ways.timed(session(ways.model))


def test_the_small_graph_compiles_without_a_card(script: Any, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", exc_type=ImportError)
    ways = script.engines.Ways(None, tmp_path)
    device = target("l4")
    file, engine = ways.compiled("tensorrt-rtx", ways.spec("tensorrt-rtx", device))
    assert file.exists()
    assert {node for one in engine.layers for node in one.products} == {"first", "second"}


def test_what_a_card_would_be_asked_of_layers_and_memory(
    script: Any, net: Any, opened: Callable[..., Any], tmp_path: Path
) -> None:
    """Over a library of a few lines, which takes what it takes."""
    ways: Any = object.__new__(script.engines.Ways)
    build = net(carrier="float32")
    y = build.node("MatMul", ["x", build.floats("w", (2, 2))], "fc")
    ways.model = build.write(tmp_path / "m.onnx", y, (2, 2), (2, 2))
    ways.feed = {"x": rows(1, 2), "state": rows(5)}
    ways.inputs = (TensorInfo("x", "float32", (2, 2)),)
    script.engines.SECONDS = 0.01
    assert ways.profiled(opened()) == {
        "layers": 3, "together_ms": 8.0, "products_ms": 5.0, "unlisted_ms": 1.0,
    }  # fmt: skip
    ways.spec = lambda name, device: None
    ways.compiled = lambda name, spec: (tmp_path, SimpleNamespace(stated_bytes=7))
    ways.opened = lambda name, file, device: opened()
    found = ways.memory("tensorrt", None)
    assert found["bytes"] > LOADED and (found["marks"], found["stated_bytes"]) == ([], 7)


def test_inputs_are_drawn_by_their_type(script: Any) -> None:
    assert script.engines.drawn(TensorInfo("i", "int64", (2,)), (2,)).tolist() == [0, 0]
    assert script.engines.drawn(TensorInfo("x", "float16", (2,)), (2,)).dtype == np.float16
