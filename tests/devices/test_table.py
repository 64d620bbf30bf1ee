"""The table of targets against its own rules, and against physics where figures are independent."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from optkit.facts.device_facts import Fact
from optkit.facts.errors import UnknownName, UsageError
from optkit.ground.devices import names, sources, spelling, target, targets
from optkit.ground.devices.table import FOLDER, aliases, data_names, reported_names, titles
from optkit.verbs import api
from tests.conftest import valid

DATA = data_names()
GPUS = [
    name for name in DATA
    if target(name).compute_capability is not None and target(name).backends
]  # fmt: skip
PLANNED_ONLY = ["groq-lpu", "jetson-agx-thor", "mi300x", "mi325x"]

# FP16 tensor operations per clock and SM, FP32 accumulate: NVIDIA's architecture papers.
PER_CLOCK = {"7.5": 1024, "8.0": 2048, "8.6": 1024, "8.9": 1024, "9.0": 4096}
GEFORCE = {"rtx3090", "rtx4090", "rtx5090"}  # half rate with FP32 accumulate
# Not evidence: a clock or peak derived from the other, or an SM count or clock recalled.
CIRCULAR = {"b200", "gb200", "rtx6000-ada", "jetson-agx-orin", "a10g"}


def parsed(name: str) -> dict[str, Any]:
    return YAML(typ="safe", pure=True).load((FOLDER / f"{name}.yaml").read_text())


def test_there_are_29_and_this_machine() -> None:
    assert len(DATA) == 29
    assert names() == ("cpu", *DATA)
    assert [t.name for t in targets()] == list(names())


@pytest.mark.parametrize(
    ("alias", "name"),
    [("h100", "h100-sxm"), ("4090", "rtx4090"), ("L4", "l4"), ("orin", "jetson-agx-orin")],
)
def test_aliases_lead_to_targets(alias: str, name: str) -> None:
    assert target(alias).name == name


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("RTX 4090", "rtx4090"), ("rtx-4090", "rtx4090"), ("GeForce RTX 4090", "rtx4090"),
        ("NVIDIA L4", "l4"), ("Tesla T4", "t4"), ("nvidia_l40s", "l40s"), ("H100 SXM", "h100-sxm"),
        ("H100_SXM5", "h100-sxm"), ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("A100 80GB PCIe", "a100-pcie-80gb"), ("a100 pcie 40gb", "a100-pcie-40gb"),
        ("M2 Max", "apple-m2-max"), ("Jetson AGX Orin", "jetson-agx-orin"), ("HGX B200", "b200"),
        ("CPU AVX2", "cpu-avx2"),
    ],
)  # fmt: skip
def test_usual_spellings_lead_to_targets(spelled: str, name: str) -> None:
    assert target(spelled).name == name


@pytest.mark.parametrize(
    ("spelled", "candidates"),
    [
        ("A100-80GB", ["a100-pcie-80gb", "a100-sxm-80gb"]),
        ("A100 PCIe", ["a100-pcie-40gb", "a100-pcie-80gb"]),
        ("NVIDIA A100", ["a100-pcie-40gb", "a100-sxm-80gb"]),
    ],
)
def test_a_spelling_of_several_devices_names_them(spelled: str, candidates: list[str]) -> None:
    with pytest.raises(UnknownName, match=f"{spelled}.*any of") as error:
        target(spelled)
    assert all(name in str(error.value.hint) for name in candidates)


@pytest.mark.parametrize("spelled", ["M2", "Quadro RTX 6000", "L40", "NVIDIA", "RTX 4090 Laptop"])
def test_a_name_that_only_resembles_a_device_is_unknown(spelled: str) -> None:
    with pytest.raises(UnknownName):
        target(spelled)


def test_no_spelling_names_two_targets() -> None:
    owners: dict[str, set[str]] = {}
    for spelled, name in spelling._spellings():
        owners.setdefault("".join(spelled), set()).add(name)
    assert {key: names for key, names in owners.items() if len(names) > 1} == {}


def test_line_scan_agrees_with_the_parsed_files() -> None:
    files = {name: parsed(name) for name in DATA}
    assert aliases() == {a: name for name, data in files.items() for a in data["aliases"]}
    assert titles() == {data["title"].partition(" (")[0]: name for name, data in files.items()}
    assert reported_names() == {
        r.lower(): name for name, data in files.items() for r in data["reports_as"]
    }


def test_no_alias_is_given_twice_or_hides_a_name() -> None:
    every = [alias for name in DATA for alias in parsed(name)["aliases"]]
    assert len(every) == len(set(every))
    assert not set(every) & set(names())


def test_unknown_name_tells_the_nearest() -> None:
    with pytest.raises(UnknownName) as caught:
        target("rtx4080")
    assert caught.value.exit_code == 2
    assert "rtx4090" in (caught.value.hint or "")
    with pytest.raises(UnknownName) as caught:
        target("A100")
    assert (caught.value.hint or "").count("a100-") == 4


@given(st.text(max_size=30))
def test_any_name_gives_a_target_or_unknown_name(name: str) -> None:
    try:
        assert target(name).name in names()
    except UsageError as error:
        assert error.hint


@pytest.mark.parametrize("name", DATA)
def test_every_figure_has_a_known_source(name: str) -> None:
    device = target(name)
    groups = (
        device.facts, device.peaks, device.sustained, device.ops_per_cycle, device.kernels
    )  # fmt: skip
    facts: list[Fact] = [fact for group in groups for fact in group.values()]
    assert facts
    for fact in facts:
        assert fact.source in sources()
        assert not (fact.verified and fact.source == "RECALL")
    for price in device.prices:
        assert price.source in sources()
        assert price.as_of


@pytest.mark.parametrize("name", names())
def test_json_stands_alone(name: str) -> None:
    data = valid(json.loads(json.dumps(api.describe_targets(name).to_json())))
    groups = ("facts", "peaks", "ops_per_cycle", "kernels")
    used = {f["source"] for group in groups for f in data[group].values()}
    assert used <= set(data["sources"])
    json.dumps(target(name).fingerprint())


@pytest.mark.parametrize("name", sorted(set(GPUS) - CIRCULAR))
def test_peak_agrees_with_sm_count_and_clock(name: str) -> None:
    """peak_fp16 = SMs × clock × operations per clock and SM. On Hopper it must not hold with boost:
    the datasheets' peaks assume a lower tensor clock, so no peak may be computed from boost."""
    device = target(name)
    peak = device.peak("fp16")
    assert device.compute_capability is not None and device.sm_count is not None and peak
    rate = peak / (device.sm_count * float(device.facts["boost_mhz"].value or 0) * 1e6)
    expected = 512 if name in GEFORCE else PER_CLOCK[device.compute_capability]
    if device.compute_capability == "9.0":
        assert rate < 0.95 * expected
    else:
        assert rate == pytest.approx(expected, rel=0.015)


def test_peaks_are_dense_and_in_operations_per_second() -> None:
    l4 = target("l4")
    assert l4.peak("fp16") == 121e12
    assert l4.peak("int8") == 242.5e12  # 485 is the figure with sparsity
    assert l4.peak("fp4") is None
    assert (l4.memory_bytes, l4.bandwidth) == (23034 * 2**20, 300e9)
    assert (l4.l2_bytes, l4.sm_count, l4.tdp_w) == (48 * 2**20, 58, 72)
    with pytest.raises(UnknownName):
        l4.peak("int9")


@pytest.mark.parametrize("name", GPUS)
def test_memory_as_reported_is_a_little_more_than_as_marketed(name: str) -> None:
    """Boards hold powers of two, of which drivers keep up to a tenth (ECC, firmware)."""
    device = target(name)
    assert device.memory_bytes is not None and device.marketed_memory_bytes is not None
    assert 1 <= device.memory_bytes / device.marketed_memory_bytes <= 2**30 / 1e9
    assert "memory_mib" not in json.dumps(device.fingerprint())


def test_memory_is_what_nvidia_smi_shows() -> None:
    assert target("h100-sxm").memory_bytes == 81559 * 2**20 == 85_520_809_984
    assert target("h200").memory_bytes == 143771 * 2**20
    assert target("h200").marketed_memory_bytes == 141 * 10**9
    assert target("gb200").memory_bytes == 186 * 10**9  # no output known


@pytest.mark.parametrize("name", GPUS)
def test_matrix_follows_the_generations(name: str) -> None:
    """BF16 from 8.0, FP8 from 8.9, FP4 from 10.0 on; a peak exists where the matrix says yes."""
    device = target(name)
    assert device.compute_capability is not None
    capability = tuple(int(part) for part in device.compute_capability.split("."))
    assert device.supports("fp16") and device.supports("int8")
    assert device.supports("bf16") == (capability >= (8, 0))
    assert device.supports("fp8") == (capability >= (8, 9))
    assert device.supports("fp4") == (capability >= (10, 0))
    for dtype in ("fp16", "bf16", "fp8", "int8", "fp4"):
        assert (device.peak(dtype) is not None) == device.supports(dtype)
        assert (device.why_not(dtype) is None) == device.supports(dtype)


def test_refusals_say_why() -> None:
    assert target("t4").why_not("fp8") == (
        "fp8 needs compute capability 8.9 or newer; NVIDIA T4 has 7.5"
    )
    assert target("t4").why_not("int4", of="int8-weight-only") == (
        "int8-weight-only needs compute capability 8.0 or newer; NVIDIA T4 has 7.5"
    )
    assert "no backend" in (target("groq-lpu").why_not("int8") or "")
    assert target("l4").support("fp8_conv").answer == "limited"
    with pytest.raises(UnknownName):
        target("l4").supports("int7")


@pytest.mark.parametrize("name", PLANNED_ONLY)
def test_nothing_is_built_for_what_is_there_for_plans_alone(name: str) -> None:
    assert target(name).default_backends == ()
    assert "compiled by no backend of optkit" in (target(name).why_not("fp16") or "")


def test_peaks_of_other_vendors_are_dense() -> None:
    """304 compute units, 2048 operations per clock each, at 2.1 GHz; Thor's FP8 with sparsity is
    1,035 TFLOP/s."""
    amd = target("mi300x")
    assert amd.peak("fp16") == pytest.approx(304 * 2048 * 2.1e9, rel=0.001)
    assert amd.peak("fp8") == pytest.approx(2 * (amd.peak("fp16") or 0), rel=0.001)
    thor = target("thor")
    assert [thor.peak(d) for d in ("fp16", "fp8", "fp4")] == [258.5e12, 517e12, 1035e12]


def test_backends_by_board() -> None:
    def defaults(name: str) -> list[str]:
        return [option.name for option in target(name).default_backends]

    assert defaults("l4") == [
        "tensorrt-rtx",
        "tensorrt",
    ]  # the first one is unverified on this board
    assert "unverified" in (target("l4").backends[0].note or "")
    assert defaults("rtx4090") == ["tensorrt-rtx"]
    assert defaults("h100") == ["tensorrt"]  # TensorRT-RTX refuses 9.0
    assert defaults("cpu") == defaults("cpu-amx") == ["onnxruntime"]
    assert defaults("apple-m2-max") == ["onnxruntime-coreml"] and defaults("groq-lpu") == []
    assert "untested" in (target("apple-m2-max").backends[0].note or "")
    assert "CoreML provider" in (target("apple-m3-max").why_not("int8") or "")
    assert "onnxruntime-cuda" in [option.name for option in target("h100").backends]


def test_fingerprint_ignores_sources_and_prices() -> None:
    text = json.dumps(target("l4").fingerprint())
    assert "300" in text
    assert "TRTLLM" not in text and "0.8048" not in text
    assert target("l4").fingerprint() != target("rtx4090").fingerprint()


def test_import_is_light() -> None:
    code = (
        "import sys, optkit.ground.devices as t; t.names();"
        "heavy = ('numpy', 'pydantic', 'torch', 'ruamel.yaml', 'psutil');"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
