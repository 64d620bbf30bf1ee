"""`optkit plan --serve`: what it answers, and how it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optkit.facts.documents.serving_plan import ServingPlan

Optkit = Callable[..., Any]
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_hidden_layers": 32, "intermediate_size": 14336,
    "vocab_size": 128256, "max_position_embeddings": 8192,
}  # fmt: skip
SHORT = ("--prompt", "200..400", "--new", "20~60")


@pytest.fixture()
def llama(tmp_path: Path) -> Path:
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return folder


def test_the_fewest_devices_of_each_kind(optkit_here: Optkit, llama: Path, tmp_path: Path) -> None:
    page, drawing = tmp_path / "plan.html", tmp_path / "plan.svg"
    asked = ("plan", llama, "-t", "l4,h100,t4", "-p", "fp8", "--serve", 6, *SHORT, "--ttft",
             "400ms", "--tpot", "60ms")  # fmt: skip
    done = optkit_here(*asked, "--plot", page)
    assert done.code == 0, done.err
    assert max(map(len, done.out.splitlines())) <= 80
    for time in ("ttft", "tpot", "e2e"):  # also in a table of further columns
        assert all(f"{name} fp8 {time}" in done.out for name in ("l4", "h100-sxm"))
    assert "simulate servers of l4 fp8" in done.err
    assert "t4 fp8:" in done.out and "NUMA" in done.out
    assert done.out.splitlines()[-1].startswith(("  ", "Cheapest"))
    found = optkit_here(*asked, "--json", "--plot", drawing).result
    plan = ServingPlan.from_json(found)
    rows = {row.target: row for row in plan.results}
    assert rows["t4"].status == "impossible"
    for name in ("l4", "h100-sxm"):
        row = rows[name]
        assert row.devices == row.copies * row.tensor * row.pipeline  # type: ignore[operator]
        assert row.ttft_ms and row.tpot_ms and row.devices_band
        assert row.ttft_ms.p95 <= 400 and row.tpot_ms.p95 <= 60
        assert row.devices_band[0] <= row.devices <= (row.devices_band[1] or 10**9)  # type: ignore[operator]
        assert row.usd_per_hour == pytest.approx(row.price.usd_per_hour * row.devices)  # type: ignore[union-attr,operator]
        per_second = row.usd_per_hour / 3600 / row.tokens_per_s * 1e6  # type: ignore[operator]
        assert row.usd_per_million == pytest.approx(per_second)
    assert rows["l4"].devices >= rows["h100-sxm"].devices  # type: ignore[operator]
    assert plan.recommendation.likely is None or plan.recommendation.ship == "unknown"  # type: ignore[union-attr]
    assert [one.requests_per_s for one in plan.loads] == [1.5, 3, 4.5, 6, 7.5]
    assert "optkit.serving/v1" in page.read_text() and drawing.read_text().startswith("<svg")
    assert optkit_here(*asked, "--json").result == found


def test_a_trace_has_its_own_requests(optkit_here: Optkit, llama: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = [f"{n / 4},{300 + n % 7},{20 + n % 5}," for n in range(200)]
    trace.write_text("\n".join(["arrival,prompt,output,prefix", *rows]))
    asked = ("plan", llama, "-t", "h100", "-p", "fp16", "--trace", trace, "--json")
    found = optkit_here(*asked).result
    assert found["traffic"]["requests_per_s"] == pytest.approx(4)
    assert found["traffic"]["prompt_mean"] == pytest.approx(303, abs=1)
    faster = optkit_here(*asked, "--serve", 8).result
    assert faster["results"][0]["tokens_per_s"] == pytest.approx(
        2 * found["results"][0]["tokens_per_s"]
    )
    trace.write_text("arrival,prompt,output\n1,2,3\n1,two,3\n")
    done = optkit_here(*asked)
    assert done.code == 5 and f"{trace}, line 3" in done.err


def test_a_policy_that_no_run_covers_is_unverified(optkit_here: Optkit, llama: Path) -> None:
    asked = ("plan", llama, "-t", "h100", "-p", "fp16", "--serve", 3, *SHORT)
    plain = optkit_here(*asked, "--json").result
    assert not any("unverified: no published run" in note for note in plain["notes"])
    drafted = optkit_here(*asked, "--speculate", "3,0.6", "--split", "--shared", "50%", "--json")
    (note,) = [one for one in drafted.result["notes"] if one.startswith("unverified")]
    for name in ("prefix sharing", "separate devices", "speculative decoding"):
        assert name in note
    assert drafted.result["setup"]["tokens_per_pass"] == pytest.approx(1 + 0.6 + 0.36 + 0.216)
    assert drafted.result["results"][0]["readers"] == 1
    limited = optkit_here(*asked, "--batching", "static", "--ttft", "100s", "--json")
    for told in ("static batching", "leave room"):
        assert any(told in note for note in limited.result["notes"])
    assert not any("leave room" in note for note in plain["notes"])


@pytest.mark.parametrize(
    ("more", "code", "told"),
    [
        (("--serve", 5, "--batching", "magic"), 2, "unknown value 'magic'"),
        (("--serve", 5, "--latency", "5ms"), 2, "--latency"),
        (("--serve", 5, "--prompt", "9..2"), 2, "no number of tokens"),
        (("--serve", 5, "--prompt", "9000"), 2, "8,192 positions"),
        (("--serve", 5, "--split", "--batching", "static"), 2, "continuous batching"),
        (("--serve", 5, "--speculate", "4"), 2, "acceptance rate"),
        (("--ttft", "5ms"), 2, "--serve"),
        (("--prompt", "1..5"), 2, "several lengths need --serve"),
        (("--serve", 5, "--tpot", "0.1ms"), 5, "more devices do not help"),
        (("--serve", 5, "--trace", "none.csv"), 2, "no such file"),
    ],
)
def test_what_cannot_be_answered_is_refused(
    optkit_here: Optkit, llama: Path, more: tuple[object, ...], code: int, told: str
) -> None:
    done = optkit_here("plan", llama, "-t", "h100", "-p", "fp16", *more)
    assert done.code == code and told in done.err


def test_a_model_that_fits_nowhere(optkit_here: Optkit) -> None:
    sizes = ("--params", "400b", "--layers", 126, "--kv-heads", 8, "--head-dim", 128)
    done = optkit_here("plan", *sizes, "-t", "t4", "-p", "fp16", "--serve", 1)
    assert done.code == 5 and "do not fit on 8 devices" in done.err


@pytest.mark.parametrize(
    ("change", "told"),
    [({"num_experts": 8}, "experts"), ({"hidden_size": None}, "it has no hidden_size")],
)
def test_a_configuration_of_another_model(
    optkit_here: Optkit, llama: Path, change: dict[str, object], told: str
) -> None:
    (llama / "config.json").write_text(json.dumps({**LLAMA, **change}))
    done = optkit_here("plan", llama, "-t", "h100", "--serve", 1)
    assert done.code == 5 and told in done.err


def test_without_simpy_the_extra_is_named(
    optkit_here: Optkit, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optkit.verbs.cli.plan_serving.find_spec", lambda name: None)
    done = optkit_here("plan", llama, "-t", "h100", "--serve", 1)
    assert done.code == 4 and "pip install 'optkit[serve]'" in done.err
