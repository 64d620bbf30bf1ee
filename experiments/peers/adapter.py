"""What every adapter shares: its command line, its clock and its one line of JSON.

    python with_PEER.py --root DIR --workload w1 --out FOLDER --options JSON

An adapter quantizes one workload into FOLDER/model.onnx. Only the tool's own work is timed (loading
the graph, calibrating, quantizing, saving), not its imports; run.py times the whole process.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import feeds


@dataclass
class Job:
    """One workload in one configuration. `options` are the configuration's own, as data."""

    root: Path
    workload: str
    out: Path
    options: dict[str, Any]

    @property
    def source(self) -> Path:
        """A copy of the exported graph, for tools that write into the file they are given."""
        return self.out / "source.onnx"

    @property
    def model(self) -> Path:
        """Where the quantized graph goes."""
        return self.out / "model.onnx"

    @property
    def samples(self) -> int:
        return int(self.options["samples"])

    def calibration(self, batch: int = 1) -> list[feeds.Feed]:
        return list(feeds.feeds(self.root, self.workload, "calibration", self.samples, batch))


def main(quantize: Callable[[Job], dict[str, Any] | None]) -> None:
    """Run `quantize` on the job of the command line and print {"seconds": ..., **its own}."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--workload", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--options", type=json.loads, default={})
    job = Job(**vars(parser.parse_args()))
    job.out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(feeds.model(job.root, job.workload), job.source)
    begun = time.perf_counter()
    found = quantize(job) or {}
    seconds = time.perf_counter() - begun
    job.source.unlink()
    print("\n" + json.dumps({"seconds": seconds, **found}), flush=True)  # tools leave lines open
