"""Rules over series of samples. Those of GPUs are written after what the rules say of them: they
prove the arithmetic, not that a card behaves so."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.satellites.monitor import GpuSample, ProcessSample, diagnose, figures
from optkit.satellites.monitor.diagnosis import RULES, WARNINGS
from optkit.satellites.monitor.gpu_samples import Cards
from optkit.satellites.monitor.sample_figures import UNITS

HOST = ProcessSample(
    seconds=1.0, running=0.0, disk_wait=0.0, asleep=1.0, cores=0.0, read_bytes=0.0,
    written_bytes=0.0, memory_bytes=2**30, memory_limit_bytes=2**34, processes=1,
)  # fmt: skip
BUSY = replace(HOST, running=1.0, asleep=0.0, cores=1.0)
LOADING = replace(HOST, running=0.9, asleep=0.1, cores=3.0)
READING = replace(HOST, running=0.2, disk_wait=0.6, asleep=0.2)
CARD = GpuSample(
    index=0, name="NVIDIA L4", util=1.0, memory_traffic=0.2, memory_bytes=2**32,
    memory_total=24 * 2**30, pcie_bytes=0.0, pcie_limit=31.5e9, power_watts=68.0,
    power_limit_watts=72.0, clock_mhz=1900, clock_limit_mhz=2040,
)  # fmt: skip


def series(host: ProcessSample, *cards: GpuSample | None) -> list[ProcessSample]:
    return [replace(host, gpus=() if card is None else (card,)) for card in cards]


def bursts(card: GpuSample) -> list[GpuSample]:
    return [card if i % 3 else replace(card, util=0.0) for i in range(9)]


FULL = replace(CARD, memory_bytes=23 * 2**30)
SLOW = replace(CARD, power_watts=20.0, util=0.6)
SERIES = {
    "cpu-bound": series(BUSY, None, None),
    "disk-bound": series(READING, None, None),
    "idle": series(HOST, None, None),
    "undetermined": series(replace(HOST, seconds=0.1), None),
    "disk-bound, gpu": series(READING, *[SLOW] * 4),
    "input-bound, copies": series(LOADING, *[replace(SLOW, pcie_bytes=20e9)] * 4),
    "input-bound, gaps": series(LOADING, *bursts(SLOW)),
    "input-bound, steady": series(LOADING, *[SLOW] * 4),
    "launch-bound, steady": series(BUSY, *[SLOW] * 4),
    "launch-bound, always some kernel": series(BUSY, *[replace(SLOW, util=1.0)] * 4),
    "memory-bound": series(BUSY, *[replace(CARD, memory_traffic=0.8)] * 4),
    "compute-bound": series(BUSY, *[CARD] * 4),
    "idle, gpu": series(HOST, *[SLOW] * 4),
    "cpu-bound, gpu unused": series(BUSY, *[replace(CARD, util=0.0)] * 4),
    "undetermined, full gpu": series(HOST, *[replace(CARD, power_watts=30.0)] * 4),
}


@pytest.mark.parametrize("name", SERIES)
def test_a_series_has_its_verdict_and_tells_what_led_to_it(name: str) -> None:
    found = diagnose(figures(SERIES[name], cores=4))
    assert found.bound.rule.verdict == name.partition(",")[0]
    assert found.warnings == ()
    for condition in found.bound.rule.when:
        value = found.bound.figures[condition.figure]
        assert value is None or (value >= condition.threshold) == (condition.sign == ">=")


@pytest.mark.parametrize(
    ("warning", "sample"),
    [
        ("out of memory near", replace(BUSY, memory_bytes=2**34 - 2**20)),
        ("out of GPU memory near", replace(BUSY, gpus=(FULL,))),
        ("throttled", replace(BUSY, gpus=(replace(CARD, throttled=("software thermal",)),))),
    ],
)
def test_what_is_near_its_end_is_warned_of(warning: str, sample: ProcessSample) -> None:
    found = diagnose(figures([BUSY, sample, sample], cores=4))
    assert [one.rule.verdict for one in found.warnings] == [warning]


def test_the_busiest_of_two_gpus_is_judged() -> None:
    idle = replace(CARD, index=1, util=0.0, power_watts=10.0)
    samples = [replace(BUSY, gpus=(idle, CARD))] * 3
    assert diagnose(figures(samples, cores=4)).bound.rule.verdict == "compute-bound"


SLICE = GpuSample(index=1, name="NVIDIA A100 MIG 1g.5gb", memory_bytes=2**30, memory_total=2**32)


def test_an_unknown_utilisation_is_no_idle_gpu() -> None:
    """A MIG slice or a vGPU does not tell it: whatever rests on it is declined, with the reason."""
    found = diagnose(figures([replace(BUSY, gpus=(SLICE,))] * 3, cores=1))
    assert found.bound.rule.verdict == "undetermined"
    assert set(found.declined) == {
        "launch-bound", "memory-bound", "compute-bound", "input-bound", "cpu-bound"
    }  # fmt: skip
    assert found.untold[0] == "gpu_util" and "gpu_memory" not in found.untold
    assert figures([replace(BUSY, gpus=(SLICE,))], cores=1)["gpu_throttled"] is None
    assert "disk-bound" in diagnose(figures([replace(READING, gpus=(SLICE,))], cores=1)).declined
    # beside a card without work it may still be the one at work, beside a busy one that counts
    idle, busy = replace(CARD, util=0.0), CARD
    assert figures([replace(BUSY, gpus=(idle, SLICE))], cores=1)["gpu_util"] is None
    assert figures([replace(BUSY, gpus=(busy, SLICE))], cores=1)["gpu_util"] == 1.0


def test_a_verdict_behind_a_rule_that_lacks_a_figure_says_so() -> None:
    silent = replace(SLOW, power_watts=None)
    found = diagnose(figures(series(BUSY, *[silent] * 4), cores=4))
    assert found.bound.rule.verdict == "input-bound"
    assert (found.declined, found.untold) == (("launch-bound",), ("gpu_power",))


def test_gpus_that_nvml_cannot_be_asked_about_are_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as where it is not installed
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.setattr("optkit.satellites.monitor.gpu_samples._DEVICES", tmp_path)
    seen = Cards()
    assert [card.name for card in seen.look()] == ["nvidia0", "nvidia1"]
    assert seen.reason is not None
    assert diagnose(figures([replace(BUSY, gpus=seen.look())], cores=1)).untold[0] == "gpu_util"


class NVMLError(Exception):
    pass


def refuse(*arguments: object) -> None:
    raise NVMLError("Not Supported")


def test_what_a_card_tells_has_its_unit_and_what_it_does_not_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = {
        "nvmlInit": None, "nvmlDeviceGetCount": 1, "nvmlDeviceGetHandleByIndex": "handle",
        "nvmlDeviceGetName": b"NVIDIA L4",
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=60, memory=20),
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=2**32, total=24 * 2**30),
        "nvmlDeviceGetPcieThroughput": 1000, "nvmlDeviceGetMaxPcieLinkGeneration": 4,
        "nvmlDeviceGetMaxPcieLinkWidth": 16, "nvmlDeviceGetPowerUsage": 20_000,
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0x5,
    }  # fmt: skip
    nvml = ModuleType("pynvml")
    for name, answer in told.items():
        setattr(nvml, name, lambda *arguments, answer=answer: answer)
    nvml.nvmlDeviceGetEnforcedPowerLimit = refuse
    nvml.NVMLError = NVMLError
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    (found,) = Cards().look()
    assert found == replace(
        SLOW, pcie_bytes=1_024_000.0, pcie_limit=16 * 1.969e9, power_limit_watts=None,
        clock_mhz=None, clock_limit_mhz=None, throttled=("power cap",),
    )  # fmt: skip


def test_means_are_over_time_and_peaks_are_peaks() -> None:
    found = figures([replace(BUSY, seconds=3.0), replace(HOST, memory_bytes=2**31)], cores=2)
    assert found["running"] == 0.75 and found["cores_share"] == 0.375
    assert found["memory_bytes"] == 2**31 and found["seconds"] == 4.0


shares = st.floats(0, 1)
cards = st.builds(
    GpuSample, index=st.integers(0, 1), name=st.just("card"),
    util=st.none() | shares, memory_traffic=st.none() | shares,
    memory_bytes=st.none() | st.integers(0, 100), memory_total=st.none() | st.just(100),
    pcie_bytes=st.none() | st.floats(0, 1e9), pcie_limit=st.none() | st.just(1e9),
    power_watts=st.none() | st.floats(0, 80), power_limit_watts=st.none() | st.just(72.0),
)  # fmt: skip
samples = st.builds(
    ProcessSample, seconds=st.floats(0.01, 10), running=shares, disk_wait=shares, asleep=shares,
    cores=st.floats(0, 8), read_bytes=st.none() | st.floats(0, 1e9),
    written_bytes=st.none() | st.floats(0, 1e9), memory_bytes=st.integers(0, 2**34),
    memory_limit_bytes=st.just(2**34), processes=st.integers(1, 9),
    gpus=st.lists(cards, max_size=2, unique_by=lambda card: card.index).map(tuple),
)  # fmt: skip


@given(st.lists(samples, max_size=5))
def test_any_series_has_every_figure_and_one_verdict(many: list[ProcessSample]) -> None:
    found = figures(many, cores=4)
    assert found.keys() == UNITS.keys()
    bound = diagnose(found).bound
    assert all(condition.holds(found) for condition in bound.rule.when)


def test_rules_name_known_figures_only() -> None:
    for rule in (*RULES, *WARNINGS):
        assert {condition.figure for condition in rule.when} <= UNITS.keys()
