"""`optkit devices --measure`, with a stand-in for torch on a host with an L4, and what `plan` makes
of it. What no host has is said."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from optkit.craft.prediction.card_kernels import products, work_of
from optkit.craft.prediction.fitted import fitted
from optkit.craft.prediction.work_time import of_each
from optkit.facts.card_facts import KernelTime
from optkit.facts.documents.measured_card import CARD, MeasuredCard
from optkit.facts.errors import ToolchainMissing
from optkit.ground import card_files, graph
from optkit.ground.devices import Gpu, Gpus, target
from optkit.verbs.api import _measure_card
from tests.conftest import ROOT, Ran
from tests.networks import RESIDUAL, network

Optkit = Callable[..., Ran]
STANDIN = ROOT / "tests/devices/torch_standin.py"
H200, EFFICIENCIES = target("h200"), fitted().efficiencies
PLAN = ("plan", "--params", "7b", "--layers", 32, "--kv-heads", 8, "--head-dim", 128, "-t", "l4",
        "--precision", "fp16", "--json")  # fmt: skip


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPTKIT_CONFIG", str(tmp_path / "config"))
    return tmp_path / "config/cards/l4.json"


def row(done: Ran) -> dict[str, Any]:
    (found,) = done.told().json["results"]
    assert isinstance(found, dict)
    return found


def test_a_card_is_measured_kept_shared_and_predicted_from(
    optkit_here: Optkit, optkit_apart: Optkit, config: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    folder = tmp_path / "libraries" / "torch"
    folder.mkdir(parents=True)
    shutil.copy(STANDIN, folder / "__init__.py")
    (folder / "version.py").write_text("cuda = '13.0'")
    before, shared = row(optkit_here(*PLAN)), tmp_path / "shared.json"
    env = {"PYTHONPATH": os.pathsep.join([str(folder.parent), str(ROOT)])}
    done = optkit_apart("devices", "--measure", "--share", shared, "--json",
                        cache=tmp_path / "cache", env=env)  # fmt: skip
    assert done.code == 0, done.err
    found = done.json
    assert (found["target"], found["device"], found["library"]) == ("l4", "NVIDIA L4", "torch")
    assert found["path"] == str(config) and found["versions"]["torch"] == "2.99.0+cu130"
    measured = {(one["kernel"]["kind"], one["kernel"]["precision"]) for one in found["kernels"]}
    assert measured == {("gemm", "fp16"), ("gemm", "int8"), ("attention", "fp16"),
                        ("conv", "fp16"), ("copy", "fp16")}  # fmt: skip
    for file in (config, shared):  # nothing of the machine is in them
        assert json.loads(file.read_text()) == {**found, "path": None}
        assert str(tmp_path) not in file.read_text()
    assert [path.name for path in config.parent.iterdir()] == ["l4.json"]

    after = row(optkit_here(*PLAN))
    told = f"predicted from kernels measured on this card on {found['date']} (NVIDIA L4, torch 2.9"
    assert any(note.startswith(told) for note in after["notes"])
    assert not any("measured on this card" in note for note in before["notes"])
    # the stand-in moves 200 GB/s, and the fit of an L4 272 GB/s
    faster = [one["p50_ms"] for one in before["latency"]]
    slower = [one["p50_ms"] for one in after["latency"]]
    assert all(1.1 * one < other for one, other in zip(faster, slower, strict=True))

    card = MeasuredCard.from_json({**found, "marks": ["other processes on the GPU: 1"]})
    monkeypatch.setattr(_measure_card, "measure_card", lambda share, workspace: card)
    done = optkit_here("devices", "--measure", "--share", "l4.json")
    assert done.code == 0
    for part in ("NVIDIA L4: 93 kernels", "gemm int8", "measured / fitted", f"kept: {config}",
                 "not measured: 16 of gemm fp8: RuntimeError: torch._scaled_mm is not of this",
                 "not reliable: other processes on the GPU: 1", "to share: l4.json"):  # fmt: skip
        assert part in done.out


def test_a_bad_file_is_named_with_the_remedy(optkit_here: Optkit, config: Path) -> None:
    config.parent.mkdir(parents=True)
    config.write_text("{")
    done = optkit_here(*PLAN)
    assert done.code == 5
    done.told(str(config), "optkit devices --measure", "remove the file")


def test_without_a_gpu_it_says_what_is_missing(
    optkit_here: Optkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = Gpus((), None, "no GPU: NVML: nvidia-ml-py is not installed")
    monkeypatch.setattr(_measure_card, "gpus", lambda: none)
    monkeypatch.setattr(_measure_card, "has_driver", lambda: False)
    done = optkit_here("devices", "--measure", "--json")
    assert done.code == 4 and "no card to measure: no GPU: NVML" in done.json["error"]["message"]
    done.told("run this on the machine with the GPU")
    monkeypatch.setattr(_measure_card, "has_driver", lambda: True)
    optkit_here("devices", "--measure").told("pip install nvidia-ml-py")


@pytest.mark.parametrize(
    ("build", "has"),
    [(None, "torch is not installed"), ("hip = '6.2'", "torch is a ROCm 6.2 build")],
)
def test_without_a_library_it_says_what_to_install(
    optkit_here: Optkit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    build: str | None, has: str,
) -> None:  # fmt: skip
    card = Gpu(0, "NVIDIA L4", 23 * 10**9, "8.9", "580.95.05")
    monkeypatch.setattr(_measure_card, "gpus", lambda: Gpus((card,), "nvml", None))
    (tmp_path / "version.py").write_text(build or "")
    spec = None if build is None else SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(_measure_card.importlib.util, "find_spec", lambda name: spec)

    def check() -> None:
        raise ToolchainMissing("the installed ONNX Runtime 1.31 has no CUDAExecutionProvider")

    monkeypatch.setattr(_measure_card, "backend", lambda name: SimpleNamespace(check=check))
    done = optkit_here("devices", "--measure")
    assert done.code == 4
    done.told(has, "1.31 has no CUDAExecutionProvider", "optkit[torch]", "optkit[gpu]")


def test_there_is_nothing_to_share_without_a_measurement(optkit_here: Optkit) -> None:
    done = optkit_here("devices", "--share", "l4.json")
    assert done.code == 2
    done.told("--share", "optkit devices --measure --share FILE")


def test_a_build_on_another_machine_never_gets_an_older_prediction(
    optkit_here: Optkit, config: Path, cache: Path, tmp_path: Path
) -> None:
    """The file of the target is in the key: without it, with it, with another, without it again."""
    model = tmp_path / "small.onnx"
    graph.save(network(RESIDUAL), model)

    def latency(name: str) -> dict[str, Any]:
        done = optkit_here("build", model, "--target", "h200", "--precision", "fp16", "--json",
                           "--out", tmp_path / name)  # fmt: skip
        assert done.code == 0, done.err
        found = done.result["latency"]
        assert isinstance(found, dict)
        return found

    def keep(factor: float, date: str) -> None:
        kernels = tuple(
            KernelTime(one, 1e3 * factor * of_each([work_of(one)], H200, EFFICIENCIES)[0].total)
            for one in products(H200)
        )
        card_files.keep(MeasuredCard(
            schema=CARD, target="h200-sxm", device="NVIDIA H200", compute_capability="9.0",
            library="torch", versions={"torch": "2.11.0"}, date=date, seconds=8, marks=(),
            kernels=kernels, failed=(),
        ))  # fmt: skip

    fit = latency("fit")
    keep(2.0, "2026-11-27")
    slow = latency("slow")
    keep(2.0, "2026-11-28")
    later = latency("later")
    config.with_name("h200-sxm.json").unlink()
    assert latency("again") == fit
    assert slow["p50_ms"] == later["p50_ms"] > 1.5 * fit["p50_ms"]
    assert "measured on this card on 2026-11-27 (NVIDIA H200, torch 2.11.0)" in slow["note"]
    assert "measured on this card on 2026-11-28" in later["note"]
    assert "measured on this card" not in fit["note"]
