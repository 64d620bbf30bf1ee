"""The page says what the results say: failures, refusals, and ratios to the best peer."""

from __future__ import annotations

from typing import Any

import configurations
import page


def row(sqnr: float, seconds: float, size: int) -> dict[str, Any]:
    return {
        "seconds": seconds, "process_seconds": seconds + 1, "peak_bytes": 200_000_000,
        "bytes": size, "session": {}, "score": {"accuracy": 99.0, "agreement": 100.0,
                                                "sqnr_db": sqnr},
        "landing": {"planned": 4, "landed": 3, "layers": 9, "bytes_moved": 2_500_000,
                    "engine_bytes": 700_000},
    }  # fmt: skip


def times(ratio: float) -> dict[str, float]:
    return {"ratio": ratio, "median_ratio": ratio - 0.1, "min_ms": 2.0}


def results() -> dict[str, Any]:
    rows = {
        "onnxruntime-static": row(38.0, 1.0, 3_000_000),
        "modelopt-int8": row(45.0, 2.0, 11_000_000),
        "optkit-int8": {**row(47.5, 3.0, 2_700_000), "session": {"level": "X"}},
        "olive-static": {"failure": "ValueError: no | such pass"},
        "optkit-int8-l4": row(1.0, 1.0, 1),
        "nncf-default": row(50.0, 0.1, 1_000_000),
    }
    rows["nncf-default"]["score"]["accuracy"] = 60.0  # good in decibels, fast, and useless
    rows["onnxruntime-static"]["landing"] = {"refused": "input has type UInt8"}
    latency = {"fp32": times(1.0), "onnxruntime-static": times(3.0), "modelopt-int8": times(0.5),
               "nncf-default": times(9.0), "optkit-int8": times(3.3)}  # fmt: skip
    return {
        "date": "2000-01-01",
        "machine": {"cpu": "a CPU", "cores": 2, "of": 4, "features": ["avx2"], "system": "Linux",
                    "python": "3"},
        "versions": {"olive": {"olive-ai": "1"}},
        "failures": {"nncf": "no wheel"},
        "workloads": {"w1": {
            "fp32": {"bytes": 10_000_000, "score": {"accuracy": 99.1}, "landing": {"layers": 24}},
            "rows": rows, "latency": {"1": latency, "32": latency}}},
        "calibration": [
            {"peer": "onnxruntime", "name": "min-max", "samples": 100, "seconds": 4.0,
             "peak_bytes": 400_000_000},
            {"peer": "optkit", "name": "any observer", "samples": 200, "seconds": 6.0,
             "peak_bytes": 300_000_000},
        ],
    }  # fmt: skip


def line(text: str, start: str) -> str:
    return next(one for one in text.splitlines() if one.startswith(f"| {start}"))


def test_rows_failures_and_refusals() -> None:
    text = page.write(results())
    assert "| 38.0 | 3.00 (2.90) | 3.00 (2.90) |" in line(text, "onnxruntime static")
    assert "0.30×" in line(text, "onnxruntime static")
    assert "failed: ValueError: no / such pass" in line(text, "olive static")
    assert "optkit int8¹" in line(text, "optkit int8")
    assert "refused: input has type UInt8" in line(text, "onnxruntime-static")
    assert "| 4 | 3 | 9 | 2.5 | 0.70 |" in line(text, "optkit-int8-l4")
    assert "- nncf: no wheel" in text


def test_optkit_is_compared_with_the_best_usable_peer_on_each_axis() -> None:
    found = line(page.write(results()), "int8 |")
    assert "+2.5 (modelopt-int8)" in found
    assert "1.10× (onnxruntime-static)" in found
    assert "3.00× (onnxruntime-static)" in found  # its seconds
    assert "0.90× (onnxruntime-static)" in found  # its size


def test_calibration_ratios_are_per_sample() -> None:
    found = line(page.write(results()), "optkit any observer")
    assert "| 30.0 | 300 | 0.75× | 0.75× |" in found


def test_the_longest_steps_of_optkit_are_reported() -> None:
    found = results()
    own = found["workloads"]["w1"]["rows"]["optkit-int8"]
    own["steps"] = {"export a": 1.0, "fuse": 2.0, "cast": 0.2, "calibrate": 4.0, "quantize b": 3.0,
                    "ort": 0.1}  # fmt: skip
    told = "int8 export 1.0 + fuse 2.0 + calibrate 4.0 + quantize 3.0 + others 0.3."
    assert f"Seconds of optkit: {told}" in page.write(found)


def test_every_table_is_rectangular() -> None:
    text = page.write(results())
    width = None
    for one in text.splitlines():
        if not one.startswith("|"):
            width = None
            continue
        width = width or one.count("|")
        assert one.count("|") == width, one


def test_the_groups_are_those_of_the_configurations() -> None:
    assert {one.group for one in configurations.CONFIGURATIONS} <= set(page._GROUPS)
