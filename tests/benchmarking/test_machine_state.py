from __future__ import annotations

import json
import subprocess
import sys
import time

from optkit.benchmarking import machine
from optkit.benchmarking.machine import watched


def spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_conditions_are_plain_json() -> None:
    with watched() as conditions:
        spin(0.02)
    assert json.loads(json.dumps(conditions, allow_nan=False)) == conditions
    assert set(conditions) == {
        "cores", "load_average", "frequency_mhz", "governor", "other_cpu_share",
    }  # fmt: skip
    assert conditions["cores"] >= 1
    assert 0 <= conditions["other_cpu_share"] <= 1


def test_time_of_this_process_is_not_counted_as_others(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    readings = iter([(10.0, 4.0, 100.0), (16.0, 8.0, 120.0)])  # busy, own, total
    monkeypatch.setattr(machine, "_cpu_seconds", lambda: next(readings))
    with watched() as conditions:
        pass
    assert conditions["other_cpu_share"] == 0.1  # (6 - 4) of 20 seconds


def test_another_process_shows_up_in_the_readings() -> None:
    busy = [sys.executable, "-c", "while True: pass"]
    with subprocess.Popen(busy) as other:
        try:
            before = machine._cpu_seconds()
            time.sleep(0.6)
            after = machine._cpu_seconds()
        finally:
            other.kill()
    others = (after[0] - before[0]) - (after[1] - before[1])
    assert others > 0.1
    assert after[2] - before[2] >= others - 0.05  # clocks tick in hundredths of a second


def test_conditions_are_complete_when_the_block_fails() -> None:
    try:
        with watched() as conditions:
            raise RuntimeError
    except RuntimeError:
        assert conditions["other_cpu_share"] is not None
