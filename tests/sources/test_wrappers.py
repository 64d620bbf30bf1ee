"""The plain module inside what a training wraps around it."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn

from optkit.craft.sources.wrappers import evaluating, exportable, unwrapped
from optkit.facts.errors import InputRefused


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1,
        timeout=datetime.timedelta(seconds=60),
    )  # fmt: skip
    yield
    distributed.destroy_process_group()


def test_wrappers_come_off_in_any_order(group: None) -> None:
    net = nn.Linear(4, 2)
    parallel, averaged = nn.parallel.DistributedDataParallel, torch.optim.swa_utils.AveragedModel
    for wrapped in (
        net, nn.DataParallel(net), parallel(net), torch.compile(net), torch.compile(parallel(net)),
        parallel(torch.compile(net)),
    ):  # fmt: skip
        assert unwrapped(wrapped) is net
    average = averaged(net)
    assert unwrapped(average) is average.module


def test_bfloat16_is_exported_from_a_copy_in_float32() -> None:
    notes: list[str] = []
    net = nn.Linear(4, 2).bfloat16()
    copied = exportable(net, notes.append)
    assert copied is not net and net.weight.dtype == torch.bfloat16 and len(notes) == 1
    assert copied.weight.dtype == torch.float32
    assert torch.equal(copied.weight.bfloat16(), net.weight)
    plain = nn.Linear(4, 2).half()
    assert exportable(plain, notes.append) is plain and len(notes) == 1
    net.grid = net.weight * 2  # a tensor that torch does not copy
    with pytest.raises(InputRefused, match="cannot be copied") as caught:
        exportable(net, notes.append)
    assert caught.value.hint == "give the module in float32: module.float()"


def test_sharded_weights_and_weights_without_values_are_refused(group: None) -> None:
    from torch.distributed.fsdp import fully_shard

    net = nn.Linear(4, 2)
    fully_shard(net, mesh=distributed.init_device_mesh("cpu", (1,)))
    for module, told in ((net, "sharded"), (nn.Linear(4, 2, device="meta"), "has no values")):
        with pytest.raises(InputRefused, match=told) as caught:
            exportable(module, print)
        assert "get_model_state_dict" in str(caught.value.hint)


def test_evaluation_puts_every_part_back_as_it_was() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 2)).train()
    net[2].eval()

    def compiled(*inputs: Any) -> Any:
        raise AssertionError("the compiled call runs")

    net._compiled_call_impl = compiled  # as module.compile() does
    with pytest.raises(KeyError), evaluating(net):
        assert not any(part.training for part in net.modules())
        net(torch.zeros(1, 4))
        raise KeyError
    assert [part.training for part in net.modules()] == [True, True, True, False]
    assert net._compiled_call_impl is compiled
    assert "_compiled_call_impl" not in vars(net[0])


def test_mixed_precision_of_a_training_is_no_part_of_the_model() -> None:
    """As Accelerate leaves a module, and inside the caller's autocast."""
    net, x = nn.Linear(4, 2), torch.zeros(1, 4)
    net._original_forward = net.forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return net._original_forward(x)

    net.forward = forward
    with torch.autocast("cpu", torch.bfloat16):
        assert net(x).dtype == torch.bfloat16
        with evaluating(net):
            assert net(x).dtype == torch.float32
        assert net(x).dtype == torch.bfloat16
    assert net.forward is forward
    plain = nn.Linear(4, 2)
    with evaluating(plain):
        pass
    assert "forward" not in vars(plain)


class Experts(nn.Module):
    """The part of a mixture of experts of transformers that chooses its implementation."""

    implementation = "grouped_mm"

    def get_experts_implementation(self) -> dict[str, str]:
        return {"": self.implementation}

    def set_experts_implementation(self, wanted: str | dict[str, str]) -> None:
        self.implementation = wanted[""] if isinstance(wanted, dict) else wanted


def test_experts_are_batched_while_they_are_exported() -> None:
    net = nn.Sequential(nn.Linear(4, 2), Experts())
    experts = net[1]
    with pytest.raises(KeyError), evaluating(net):
        assert experts.implementation == "batched_mm"
        raise KeyError
    assert experts.implementation == "grouped_mm"
