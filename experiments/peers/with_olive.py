"""Olive's passes. options: pass (OnnxStaticQuantization, ...), config of that pass, samples."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import torch
from adapter import Job, main
from olive.data.config import DataConfig
from olive.data.registry import Registry
from olive.hardware.accelerator import DEFAULT_CPU_ACCELERATOR
from olive.model import ONNXModelHandler
from olive.package_config import OlivePackageConfig
from olive.passes.olive_pass import create_pass_from_dict


class Samples(torch.utils.data.Dataset):
    def __init__(self, job: Job) -> None:
        self.rows = job.calibration()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[dict[str, torch.Tensor], int]:
        return {name: torch.tensor(a[0]) for name, a in self.rows[index].items()}, 0


def quantize(job: Job) -> None:
    name, config = job.options["pass"], dict(job.options.get("config", {}))
    if "samples" in job.options:
        Registry.register_dataset("peers")(lambda **_: Samples(job))
        config["data_config"] = DataConfig(
            name="peers",
            type="DataContainer",
            load_dataset_config={"type": "peers"},
            pre_process_data_config={"type": "skip_pre_process"},
            post_process_data_config={"type": "skip_post_process"},
            dataloader_config={"batch_size": 1},
        )
    chosen = OlivePackageConfig.load_default_config().import_pass_module(name)
    runner = create_pass_from_dict(
        chosen, config, disable_search=True, accelerator_spec=DEFAULT_CPU_ACCELERATOR
    )
    with tempfile.TemporaryDirectory() as folder:
        made = Path(runner.run(ONNXModelHandler(str(job.source)), folder).model_path)
        shutil.copyfile(made, job.model)
        for data in made.parent.glob("*.data"):
            shutil.copy(data, job.out)


if __name__ == "__main__":
    main(quantize)
