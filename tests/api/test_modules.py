"""Modules as a training leaves them become a graph, and are handed back unchanged."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import optkit
from optkit.road import jobs

pytestmark = pytest.mark.slow


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(16, 32), nn.BatchNorm1d(32)
        self.drop, self.last = nn.Dropout(0.5), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(torch.relu(self.norm(self.first(x)))))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(50, 16), nn.Linear(16, 50, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(ids))


def hooked() -> nn.Module:
    net = Net().train()
    net.first.register_forward_hook(lambda module, inputs, output: output * 2)
    net.register_forward_pre_hook(lambda module, inputs: None)
    net.last.register_full_backward_hook(lambda *gradients: None)
    return net


def trained() -> nn.Module:
    net = Net().train()
    net(torch.randn(4, 16)).sum().backward()
    net.norm.requires_grad_(False)
    return net


def compiled_in_place() -> nn.Module:
    net = Net()
    net.compile(backend="eager")
    net(torch.randn(4, 16))
    return net


X = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
CASES: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "hooks": (hooked, X),
    "tied": (Tied, torch.randint(0, 50, (2, 7))),
    "trained": (trained, X),
    "an example that needs gradients": (Net, X.clone().requires_grad_()),
    "float16": (lambda: Net().half(), X.half()),
    "bfloat16": (lambda: Net().bfloat16(), X.bfloat16()),
    "float64": (lambda: Net().double(), X.double()),
    "compiled": (lambda: torch.compile(Net(), backend="eager"), X),
    "compiled in place": (compiled_in_place, X),
    "data parallel": (lambda: nn.DataParallel(Net()), X),
    "averaged": (lambda: torch.optim.swa_utils.AveragedModel(Net()), X),
    "weight norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(16, 4))), X
    ),
}  # fmt: skip


def state(module: nn.Module) -> object:
    """All that a caller can see of a module."""
    values = hashlib.sha256()
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        facts = name, value.dtype, value.requires_grad, value.data_ptr(), value.grad is None
        values.update(repr(facts).encode() + value.detach().double().numpy().tobytes())
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return (
        values.hexdigest(),
        [(name, part.training) for name, part in module.named_modules()],
        [[dict(getattr(part, kind)) for kind in hooks] for part in module.modules()],
        sorted(vars(module)),
        torch.is_grad_enabled(),
        torch.random.get_rng_state().tolist(),
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.mark.parametrize("case", CASES)
def test_a_module_is_exported_and_unchanged(case: str, store: Path) -> None:
    make, example = CASES[case]
    module = make()
    before = state(module)
    job = jobs.job_of(
        module, example, jobs.pair("cpu", "fp32"), recipe=None, calibration=None, name="net",
        runner=optkit.Workspace(store, listener=None).runner(),
    )  # fmt: skip
    assert state(module) == before
    names = {"tied": "ids", "weight norm": "input"}
    assert list(job.recipe.inputs) == [names.get(case, "x")]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_module_of_another_dtype_becomes_an_artifact(
    dtype: torch.dtype, store: Path, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    net = Net().to(dtype).eval()
    batches = [torch.randn(8, 16, dtype=dtype) for _ in range(4)]
    quick = {"bench": {"seconds": 0.05, "warmup_seconds": 0.05, "batches": [1]}}
    with optkit.build(
        net,
        batches[0],
        calibration=batches,
        target="cpu",
        recipe=quick,
        out=tmp_path,
        workspace=optkit.Workspace(store, listener=None),
    ) as artifact:
        info = artifact.manifest.inputs[0]
        (y,) = artifact.run({"x": batches[0].float().numpy().astype(info.dtype)}).values()
    with torch.no_grad():
        wanted = net(batches[0]).double().numpy()
    assert np.abs(y - wanted).max() < 0.1 * np.abs(wanted).max()


def _train(rank: int, folder: str) -> None:
    """One of two processes of a training: DDP over gloo, then every rank calls deploy."""
    from optkit.verbs.integrations import deploy

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2
    )
    torch.manual_seed(0)
    net = nn.parallel.DistributedDataParallel(Net())
    batches = [(torch.randn(8, 16), torch.zeros(8)) for _ in range(2)]
    for x, _ in batches:
        net(x).sum().backward()
    before = state(net)
    quick = {"name": "net", "bench": {"seconds": 0.05, "warmup_seconds": 0.05, "batches": [1]}}
    built = deploy(
        net, batches, targets=["cpu"], recipe=quick, out=Path(folder) / "out",
        workspace=optkit.Workspace(Path(folder) / "store", listener=None),
    )  # fmt: skip
    assert state(net) == before
    assert [one.path.name for one in built] == (["net-cpu-int8"] if rank == 0 else [])
    (Path(folder) / f"rank{rank}").write_text("ok")
    torch.distributed.destroy_process_group()  # no barrier: a rank that does not build may end


def test_two_processes_train_and_the_first_one_builds(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_train, (str(tmp_path),), nprocs=2)
    made = {path.name for path in (tmp_path / "out").iterdir()}
    assert made == {".gitignore", "net-cpu-int8"}
    assert (tmp_path / "rank0").exists() and (tmp_path / "rank1").exists()
