"""Arguments that are of another kind are refused by their names, before any work."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from optkit.facts.errors import UsageError
from optkit.ground.workspace import Workspace
from optkit.satellites import qat
from optkit.satellites.qat.checks import check_above_zero, check_count, check_rate, new_folder
from tests.qat.conftest import RECIPE, Net

OTHER_KINDS = ["8", True, False, [8], None, math.nan, math.inf, -math.inf, 0, -1, -0.5]


@pytest.mark.parametrize("number", OTHER_KINDS, ids=repr)
def test_no_number_above_zero(number: object) -> None:
    with pytest.raises(UsageError, match="is no number above 0") as refused:
        check_above_zero("seconds=", number)
    assert refused.value.where == "seconds=" and refused.value.hint


def test_a_rate_is_a_number_from_zero_on() -> None:
    check_rate("learning_rate=", 0)
    check_rate("learning_rate=", np.float32(0.5))
    for number in (each for each in OTHER_KINDS if each != 0 or each is False):
        with pytest.raises(UsageError, match="is no number from 0 on") as refused:
            check_rate("learning_rate=", number)
        assert refused.value.where == "learning_rate=" and refused.value.hint


@pytest.mark.parametrize("number", [*OTHER_KINDS, 2.5, 2.0, np.float32(2)], ids=repr)
def test_no_count(number: object) -> None:
    with pytest.raises(UsageError, match="is no whole number from 1 on"):
        check_count("steps=", number)


@given(st.integers(1), st.floats(0, exclude_min=True, allow_infinity=False))
def test_numbers_above_zero_are_taken(count: int, number: float) -> None:
    check_count("steps=", count)
    check_above_zero("seconds=", number)
    check_above_zero("seconds=", np.float64(number))


def test_numpy_counts_are_taken() -> None:
    check_count("rank=", np.int64(8))


@pytest.mark.parametrize("rank", [2.5, "8", True, math.nan, 0, -1])
def test_a_rank_is_refused_before_the_build(rank: Any, net: Net, images: Tensor) -> None:
    with pytest.raises(UsageError, match=r"is no whole number from 1 on") as refused:
        qat.prepare_adapters(net, images, target="cpu", rank=rank)
    assert refused.value.where == "rank=" and "None" in str(refused.value.hint)


@pytest.mark.parametrize("prepare", [qat.prepare, qat.prepare_adapters])
def test_what_is_prepared(prepare: Callable[..., nn.Module], net: Net, images: Tensor) -> None:
    wanted: dict[str, Any] = {"target": "cpu", "precision": "int4"}
    for model in (None, "net.pt", net.state_dict()):
        with pytest.raises(UsageError, match=r"must be an nn\.Module, not"):
            prepare(model, images, **wanted)
    for example in (None, 3, "image", (), {}):
        with pytest.raises(UsageError, match="is no batch"):
            prepare(net, example, **wanted)
    for calibration in (3, True, math.nan, "digits"):
        with pytest.raises(UsageError, match="has no batches"):
            prepare(net, images, calibration=calibration, **wanted)


def test_what_is_trained(net: Net, images: Tensor, workspace: Workspace) -> None:
    batches: Any = list(images.split(8))
    student = qat.prepare(net, images[:4], target="cpu", recipe=RECIPE, calibration=batches,
                          workspace=workspace)  # fmt: skip
    refused: list[tuple[str, dict[str, Any]]] = [
        ("steps=", {"steps": math.nan}), ("steps=", {"steps": 2.5}),
        ("steps=", {"steps": math.inf}), ("seconds=", {"seconds": "4"}),
        ("learning_rate=", {"learning_rate": None}), ("loss=", {"loss": "kl"}),
        ("held_out=", {"held_out": 3}),
    ]  # fmt: skip
    for where, given_arguments in refused:
        with pytest.raises(UsageError) as caught:
            qat.distill(student, batches, **given_arguments)
        assert caught.value.where == where
    with pytest.raises(UsageError, match="has no batches"):
        qat.distill(student, 3)  # type: ignore[arg-type]
    for rate in (-1e-3, "1e-3", math.nan):
        with pytest.raises(UsageError, match="no number from 0 on"):
            qat.parameter_groups(student, rate)  # type: ignore[arg-type]
    for features in ("stem", 3):
        with pytest.raises(UsageError, match="no list of names"):
            qat.Distillation(student, features=features)  # type: ignore[arg-type]
    for out in (None, 3, True):
        with pytest.raises(UsageError, match="is no path"):
            qat.export(student, images[:4], out=out, workspace=workspace)  # type: ignore[arg-type]
    for call in (qat.parameter_groups, lambda model: qat.save_adapters(model, "adapters")):
        with pytest.raises(UsageError, match=r"must be an nn\.Module, not dict"):
            call({})  # type: ignore[operator]


def test_a_new_folder(tmp_path: Path) -> None:
    assert new_folder(str(tmp_path / "new")) == tmp_path / "new"
    with pytest.raises(UsageError, match="exists already"):
        new_folder(tmp_path)


def test_a_dataset_without_an_iterator_has_batches(
    net: Net, images: Tensor, workspace: Workspace
) -> None:
    """As a Dataset of torch, which Python reads by its indices."""

    class Batches(torch.utils.data.Dataset[Tensor]):
        def __getitem__(self, index: int) -> Tensor:
            return images.split(8)[index]

    found = qat.prepare(net, images[:4], target="cpu", recipe=RECIPE, calibration=Batches(),  # type: ignore[arg-type]
                        workspace=workspace)  # fmt: skip
    assert qat.finalize(found).trained_scales is not None
