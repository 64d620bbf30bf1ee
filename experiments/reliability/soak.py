"""Rebuilds a small model again and again in one process, and writes what the process holds:

    python experiments/reliability/soak.py SCRATCH [--rebuilds 200] [--out soak.json]

Before each rebuild the recipe, the weights, the samples, the user's code or the precision changes.
Every second rebuild goes through the command line's `main`, the others through `optkit.build`.
Every tenth is followed by `optkit cache gc`, with all that the store holds made old.

The curves have one number per rebuild: open files, threads, child processes, resident memory, files
in the folder of temporary files, files beside the store and the artifacts; bytes, entries and locks
of the store. tests/reliability/test_soak.py checks that none of them grows.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import os
import random
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper, numpy_helper

import optkit
from optkit.facts.request import Request
from optkit.ground.execute.local import trim
from optkit.ground.store import eviction
from optkit.verbs import cli

KEPT = 2**20
"""Bytes to which `cache gc` reduces the store."""
GC_EVERY = 10
TARGET = "orin"  # needs full TensorRT: every build is a few small steps, and none measures time
RECIPE = """
name: small
model: {path: small.onnx}
calibration: {source: source.py, samples: %d}
gates: {max_drop: %d%%}
"""
SOURCE = """
import numpy as np

def samples():
    x = np.load("%s")
    yield {"x": x * np.float32(%r)}
"""


class Project:
    """The user's files, each of which can change."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder, self._rng = folder, rng
        self.precision, self._samples, self._drop = "int8", 16, 1
        self._factor = 1.0
        folder.mkdir()
        for change in (self.weights, self.data, self.code, self.recipe):
            change()

    def change(self) -> str:
        """Returns the name of the change."""
        changes: list[Callable[[], None]] = [
            self.weights, self.data, self.code, self.recipe, self.another_precision
        ]  # fmt: skip
        change = self._rng.choice(changes)
        change()
        return change.__name__

    def weights(self) -> None:
        numbers = np.random.default_rng(self._rng.randrange(2**32))
        weights, nodes, value = [], [], "x"
        for i, (width, channels) in enumerate([(4, 16), (16, 16)]):
            w = numbers.standard_normal((channels, width, 3, 3)) * (9 * width) ** -0.5
            weights.append(numpy_helper.from_array(w.astype(np.float32), f"w{i}"))
            nodes.append(helper.make_node("Conv", [value, f"w{i}"], [f"c{i}"], pads=[1, 1, 1, 1]))
            nodes.append(helper.make_node("Relu", [f"c{i}"], [value := f"r{i}"]))
        nodes.append(helper.make_node("GlobalAveragePool", [value], ["y"]))
        infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape])
                 for name, shape in (("x", (4, 8, 8)), ("y", (16, 1, 1)))]  # fmt: skip
        graph = helper.make_graph(nodes, "small", infos[:1], infos[1:], weights)
        opset = [helper.make_opsetid("", 21)]
        onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10),
                  self.folder / "small.onnx")  # fmt: skip

    def data(self) -> None:
        numbers = np.random.default_rng(self._rng.randrange(2**32))
        np.save(self.folder / "x.npy", numbers.standard_normal((32, 4, 8, 8), np.float32))

    def code(self) -> None:
        text = SOURCE % (self.folder / "x.npy", self._rng.uniform(0.5, 2))
        (self.folder / "source.py").write_text(text)

    def recipe(self) -> None:
        text = RECIPE % (self._rng.randrange(8, 32), self._rng.randrange(1, 9))
        (self.folder / "optkit.yaml").write_text(text)

    def another_precision(self) -> None:
        others = [name for name in ("fp16", "int8", "int4") if name != self.precision]
        self.precision = self._rng.choice(others)


def build(project: Project, scratch: Path, *, by_command: bool) -> None:
    cache, out = scratch / "store", scratch / "artifacts"
    if by_command:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = _command("build", str(project.folder), "--target", TARGET, "--precision",
                            project.precision, "--out", str(out), "--json")  # fmt: skip
        assert code == 0, code
    else:
        optkit.build(
            Request(str(project.folder)), target=TARGET, precision=project.precision, out=out,
            workspace=optkit.Workspace(cache, listener=None),
        )  # fmt: skip


def _command(*argv: str) -> int:
    try:
        cli.main([*argv])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def make_old(store: Path) -> None:
    """`gc` spares what was used within the last hour."""
    for path in store.rglob("*"):
        if path.is_file():
            os.utime(path, (1e9, 1e9))


def held(scratch: Path) -> dict[str, int]:
    """What this process holds, when its own garbage is gone."""
    gc.collect()
    trim()
    store = scratch / "store"
    beside = [path for path in scratch.rglob("*") if not path.is_relative_to(store)
              and not path.is_relative_to(scratch / "artifacts")
              and not path.is_relative_to(scratch / "tmp")]  # fmt: skip
    return {
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "threads": threading.active_count(),
        "native_threads": psutil.Process().num_threads(),
        "children": len(psutil.Process().children(recursive=True)),
        "resident": psutil.Process().memory_info().rss,
        "temporary": len(list((scratch / "tmp").rglob("*"))) + len(list(store.glob("tmp/*"))),
        "beside": len(beside),
        "store_bytes": eviction.disk_bytes(store),
        "entries": len(list(store.glob("steps/*/*"))),
        "lock_files": len(list(store.glob("locks/*"))),
    }


def soak(scratch: Path, rebuilds: int, out: Path, seed: int = 0) -> None:
    """`out` gets the curves after each rebuild: name → a number for each."""
    os.environ["OPTKIT_CACHE"] = str(scratch / "store")
    (scratch / "tmp").mkdir(parents=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(scratch / "tmp")
    rng = random.Random(seed)
    project = Project(scratch / "project", rng)
    curves: dict[str, list[int]] = {}
    for turn in range(rebuilds):
        changed = project.change()
        build(project, scratch, by_command=turn % 2 == 1)
        if turn % GC_EVERY == GC_EVERY - 1:
            make_old(scratch / "store")
            with contextlib.redirect_stdout(io.StringIO()):
                assert _command("cache", "gc", "--max-size", str(KEPT)) == 0
        for name, number in held(scratch).items():
            curves.setdefault(name, []).append(number)
        print(turn, changed, {name: curve[-1] for name, curve in curves.items()}, flush=True)
        lines = ",\n".join(f' "{name}": {json.dumps(curve)}' for name, curve in curves.items())
        out.write_text(f"{{\n{lines}\n}}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="What many rebuilds in one process leave.")
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--rebuilds", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    given = parser.parse_args()
    soak(given.scratch.resolve(), given.rebuilds, given.out)


if __name__ == "__main__":
    main()
