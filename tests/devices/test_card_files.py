"""The file of kernels that were timed on a card: kept, read, refused with the remedy."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from optkit.craft.prediction.card_lookup import measured
from optkit.facts.card_facts import CardKernel, KernelTime
from optkit.facts.documents.measured_card import CARD, MeasuredCard
from optkit.facts.errors import InputRefused, StorageError
from optkit.ground import card_files
from optkit.ground.devices import Gpu, Gpus, target

DRIVER = "580.95.05"


def card(**changes: object) -> MeasuredCard:
    kernels = tuple(
        KernelTime(CardKernel("gemm", "fp16", (rows, 768, 768)), 0.01) for rows in (1, 2, 4, 8)
    )
    made = MeasuredCard(
        schema=CARD, target="l4", device="NVIDIA L4", compute_capability="8.9",
        memory_bytes=23 * 10**9, driver=DRIVER, library="torch", versions={"torch": "2.11.0"},
        date="2026-11-29", seconds=40, marks=(), kernels=kernels, failed=(),
    )  # fmt: skip
    return made.model_copy(update=changes)


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPTKIT_CONFIG", str(tmp_path / "config"))
    monkeypatch.setattr(card_files, "has_driver", lambda: False)
    return tmp_path / "config/cards/l4.json"


def test_what_is_kept_is_read_and_replaced(config: Path) -> None:
    assert card_files.read("l4") is None and measured(target("l4")) is target("l4")
    kept = card_files.keep(card())
    assert kept.path == str(config)
    found = card_files.read("l4")
    assert found is not None and found.card == card()
    card_files.keep(card(date="2026-12-24"))
    again = card_files.read("l4")
    assert again is not None and again.card.date == "2026-12-24" and again.digest != found.digest
    assert [path.name for path in config.parent.iterdir()] == ["l4.json"]


def test_a_target_gets_the_kernels_of_its_file_and_no_other(config: Path) -> None:
    card_files.keep(card())
    found = measured(target("l4"))
    assert found.card is not None and "gemm fp16" in found.card.groups
    assert found.card.told == (
        "predicted from kernels measured on this card on 2026-11-29 "
        "(NVIDIA L4, driver 580.95.05, torch 2.11.0)"
    )
    assert found.fingerprint() == target("l4").fingerprint()
    assert measured(target("h100")).card is None


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda text: "{", "it is no optkit.card/v1"),
        (lambda text: "[1]", "it is no optkit.card/v1"),
        (lambda text: text.replace("card/v1", "card/v0"), "outdated, or of a newer optkit"),
        (lambda text: text.replace('"l4"', '"h100-sxm"'), "kernels of h100-sxm, not of l4"),
        (lambda text: text.replace("0.01", "-1.0"), "kernels.0.ms"),
        (lambda text: text.replace("0.01", "NaN"), "it is no optkit.card/v1"),
        (lambda text: text.replace('"gemm"', '"other"'), "kernels.0.kernel.kind"),
        (lambda text: text + " " * card_files._LARGEST, "it is larger than"),
    ],
)
def test_a_bad_file_is_refused_with_its_path_and_the_remedy(
    config: Path, change: Callable[[str], str], problem: str
) -> None:
    card_files.keep(card())
    config.write_text(change(config.read_text()))
    with pytest.raises(InputRefused, match=problem) as caught:
        measured(target("l4"))
    assert caught.value.where == str(config)
    assert "optkit devices --measure" in (caught.value.hint or "")


def test_kernels_whose_sizes_do_not_fit_their_kind_are_refused(config: Path) -> None:
    card_files.keep(card())
    config.write_text(config.read_text().replace("768,\n", ""))
    with pytest.raises(InputRefused, match="sizes"):
        measured(target("l4"))


def test_a_pipe_is_refused_and_a_folder_of_others_is_no_file(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.parent.mkdir(parents=True)
    os.mkfifo(config)
    with pytest.raises(InputRefused, match="not a regular file"):
        card_files.read("l4")
    (tmp_path / "file").touch()
    monkeypatch.setenv("OPTKIT_CONFIG", str(tmp_path / "file"))
    assert card_files.read("l4") is None
    with pytest.raises(StorageError, match="is a file, not a folder") as caught:
        card_files.keep(card())
    assert "OPTKIT_CONFIG" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("name", "found", "driver", "told"),
    [
        ("NVIDIA L4", "l4", DRIVER, None),
        ("NVIDIA L4", "l4", None, None),
        ("NVIDIA H100 PCIe", "h100-pcie", "1.0", None),  # planned on another machine
        ("NVIDIA L4", "l4", "590.1", "this machine has driver 590.1"),
        ("NVIDIA L4 24Q", "l4", DRIVER, "this machine has an NVIDIA L4 24Q, and a NVIDIA L4 was"),
    ],
)
def test_another_driver_or_device_than_measured_is_told(
    monkeypatch: pytest.MonkeyPatch, name: str, found: str, driver: str | None, told: str | None
) -> None:
    class Here(Gpu):
        target = found

    here = Gpus((Here(0, name, None, "8.9", driver),), "nvml", None)
    monkeypatch.setattr(card_files, "has_driver", lambda: True)
    monkeypatch.setattr(card_files, "gpus", lambda: here)
    monkeypatch.setattr(card_files, "driver_version", lambda: driver)
    difference = card_files.difference(card())
    assert difference is None if told is None else told in (difference or "")
    card_files.keep(card())
    marked = measured(target("l4")).card
    assert marked is not None and marked.told.endswith(f"; {difference}" if difference else "0)")


def test_what_is_shared_is_the_document_without_its_path(config: Path, tmp_path: Path) -> None:
    kept = card_files.keep(card())
    card_files.write(kept, tmp_path / "shared.json", "--share")
    assert json.loads((tmp_path / "shared.json").read_text())["path"] is None
    with pytest.raises(StorageError, match="is a file, not a folder") as caught:
        card_files.write(kept, tmp_path / "shared.json" / "l4.json", "--share")
    assert "--share" in (caught.value.hint or "")
