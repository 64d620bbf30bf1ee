"""optkit through its own command line, on the exported graph.

options: target, precision, set (list of KEY=VALUE for `--set`), samples (calibration comparison).
Each run gets a store of its own, so that nothing is ever found finished. Figures are optkit's own
step times: `seconds` is the whole command less the interpreter's start and the imports.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import feeds
from adapter import Job, main

_STEP = re.compile(r"^ +([\d.]+) s  (.+)$", re.MULTILINE)
RECIPES = Path(__file__).parent / "recipes"


def quantize(job: Job) -> dict[str, Any]:
    options = job.options
    arrays = feeds.path(job.root, job.workload)
    overrides = [f"calibration.args.path={arrays}", f"eval.args.path={arrays}"]
    if "samples" in options:
        overrides.append(f"calibration.samples={options['samples']}")
    with tempfile.TemporaryDirectory(dir=job.out) as scratch:
        made = Path(scratch) / "made"
        answer = _command(
            "quantize",
            job.source,
            *("--recipe", RECIPES / f"{job.workload}.yaml"),
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
    session = {"disabled_optimizers": ["MatMulAddFusion"]}  # what optkit's own sessions set
    return {"notes": answer["notes"], "session": session, "steps": answer["steps"]}


def _command(*parts: Any) -> dict[str, Any]:
    """The JSON answer, and from the progress on stderr the seconds of every step ("steps")."""
    start = "from optkit.cli import main; main()"  # what the `optkit` script does
    command = [sys.executable, "-c", start, *map(str, parts), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    sys.stderr.write(done.stderr)
    answer: dict[str, Any] = json.loads(done.stdout or '{"status": "error"}')
    if done.returncode:
        error = answer.get("error") or {}
        raise SystemExit(f"Error: {error.get('message', 'no answer')}")
    steps = _STEP.findall(done.stderr)
    return {**answer, "steps": {name: float(seconds) for seconds, name in steps}}


if __name__ == "__main__":
    main(quantize)
