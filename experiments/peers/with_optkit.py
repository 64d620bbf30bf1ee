"""optkit through its own command line, on the exported graph.

options: target, precision, set (list of KEY=VALUE for `--set`), samples (calibration comparison),
method "forward" (only ONNX Runtime on the samples).
Each run gets a store of its own, so that nothing is ever found finished. `steps` and `peaks` tell
seconds and most resident bytes (command and workers together) of every step, by its label.
`seconds` are those of the steps that the peers, too, are timed in: from calibration on.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import feeds
import onnxruntime
from adapter import Job, main

from optkit.craft.backends.ort_session import DISABLED
from optkit.ground.execute.resident_memory import resident
from optkit.ground.recipe import Recipe

_STEP = re.compile(r"^ +([\d.]+) s  (.+)$")
_BEFORE = ("export", "fuse", "collect")  # steps that check and fuse the graph and read the data
RECIPES = Path(__file__).parent / "recipes"


def quantize(job: Job) -> dict[str, Any] | None:
    options = job.options
    if options.get("method") == "forward":
        return forward(job)
    arrays = feeds.path(job.root, job.workload)
    recipe = RECIPES / f"{job.workload}.yaml"
    parts = ("calibration", "eval") if Recipe.load(recipe).eval else ("calibration",)
    overrides = [f"{part}.args.path={arrays}" for part in parts]
    if "samples" in options:
        overrides.append(f"calibration.samples={options['samples']}")
    with tempfile.TemporaryDirectory(dir=job.out) as scratch:
        made = Path(scratch) / "made"
        answer = _command(
            "quantize",
            job.source,
            *("--recipe", recipe),
            *("--target", options.get("target", "cpu")),
            *("--precision", options.get("precision", "int8")),
            *("--out", made),
            *("--cache", Path(scratch) / "store"),
            *(part for one in (*overrides, *options.get("set", [])) for part in ("--set", one)),
        )
        for file in made.iterdir():
            shutil.copy(file, job.out)
    graphs = [name for name in answer["files"] if name.endswith(".onnx")]
    if graphs and graphs[0] != job.model.name:
        (job.out / graphs[0]).replace(job.model)
    told = {name: answer[name] for name in ("notes", "steps", "peaks")}
    own = sum(seconds for name, seconds in answer["steps"].items() if not name.startswith(_BEFORE))
    return {**told, "seconds": own, "session": {"disabled_optimizers": DISABLED}}


def forward(job: Job) -> None:
    """The float graph on the samples and nothing else: what a calibration takes at least."""
    session = onnxruntime.InferenceSession(job.source, providers=["CPUExecutionProvider"])
    for feed in job.calibration():
        session.run(None, feed)


def _command(*parts: Any) -> dict[str, Any]:
    """The JSON answer; and of every step, as progress on stderr tells of it, seconds ("steps") and
    most bytes ("peaks")."""
    start = "from optkit.cli import main; main()"  # what the `optkit` script does
    command = [sys.executable, "-c", start, *map(str, parts), "--json"]
    with tempfile.TemporaryFile("w+") as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True)
        watch = _Watch(child.pid)
        watch.start()
        assert child.stderr is not None
        steps: dict[str, float] = {}
        peaks: dict[str, int] = {}
        for line in child.stderr:
            sys.stderr.write(line)
            if found := _STEP.match(line):
                steps[found[2]] = float(found[1])
                peaks[found[2]] = watch.taken()
        code = child.wait()
        watch.ended.set()
        watch.join()
        out.seek(0)
        answer: dict[str, Any] = json.loads(out.read() or '{"status": "error"}')
    if code:
        error = answer.get("error") or {}
        raise SystemExit(f"Error: {error.get('message', 'no answer')}")
    return {**answer, "steps": steps, "peaks": peaks}


class _Watch(threading.Thread):
    """The most bytes that a process tree holds; steps run one after the other."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self.pid, self.ended, self._most = pid, threading.Event(), 0

    def run(self) -> None:
        while not self.ended.wait(0.02):
            self._most = max(self._most, resident(self.pid))

    def taken(self) -> int:
        """The most since the last call."""
        most, self._most = self._most, 0
        return most


if __name__ == "__main__":
    main(quantize)
