"""Builds of every outcome, and the sentence with which each of them ends.

    python experiments/outcomes/run.py SCRATCH [NAME ...]

Every build is a real one: for an L4 with TensorRT-RTX, which compiles without a GPU, and for this
CPU, which times every candidate beside its baseline. SCRATCH gets the store and the artifacts.
Writes results.md beside itself. For each build it has only what a reader sees: the last lines of
the terminal, the head of the report page with its colour, and the fields `gate` and
`recommendation` of the JSON.

With names, only these are built again; the others are taken from the artifacts in SCRATCH.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from html import unescape
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COLOURS = {
    "pass": "green",
    "likely": "blue",
    "fail": "red",
    "inconclusive": "amber",
    "pending": "grey",
}
BUSY = "import time\nend = time.time() + 60\nwhile time.time() < end: pass"
PROGRESS = re.compile(r"\s+(\.\.\.|\d+(\.\d+)? (s|ms|min)\b)")


@dataclass(frozen=True)
class Case:
    """One build. `busy`: two other processes use the CPU while latency is measured."""

    name: str
    what: str
    line: str
    busy: bool = False


DATA = "experiments/outcomes/data.py"
CASES = (
    Case(
        "faster", "INT8 for an L4, predicted to be faster; accuracy is kept",
        "--recipe house-numbers -t l4 -p int8",
    ),
    Case(
        "faster-measured", "INT8 for this CPU, measured to be faster; accuracy is kept",
        "--recipe house-numbers -t cpu -p int8",
    ),
    Case(
        "worse", "INT8 for an L4 with ranges that clip a third of all values: accuracy falls",
        "--recipe house-numbers -t l4 -p int8 --set calibration.method=percentile "
        "--set calibration.percentile=70",
    ),
    Case(
        "too-slow", "INT8 for an L4 with a limit on latency that neither INT8 nor FP16 keeps",
        "--recipe house-numbers -t l4 -p int8 --set gates.max_latency_ms=0.2 "
        "--set gates.accept=[predicted]",
    ),
    Case(
        "slower", "INT8 for this CPU of a network of narrow products: slower than FP32",
        "--recipe experiments/outcomes/network.yaml -t cpu -p int8",
    ),
    Case(
        "no-gain", "INT8 for an L4 of a model so small that launches take its time",
        "--recipe digits-vit -t l4 -p int8",
    ),
    Case(
        "pending", "FP8 for an H100, for which nothing compiles on this machine",
        "--recipe digits-cnn -t h100 -p fp8",
    ),
    Case(
        "few-samples", "INT8 for this CPU, evaluated on 64 samples",
        f"--recipe digits-cnn -t cpu -p int8 --eval {DATA} --set eval.args.size=32",
    ),
    Case(
        "suspect-data", "INT8 for an L4, calibrated with data that is 255 times too large",
        f"--recipe digits-cnn -t l4 -p int8 --calibration {DATA}:times_255 "
        "--set calibration.args.size=32",
    ),
    Case(
        "busy", "INT8 for this CPU, while two other processes used the CPU",
        "--recipe digits-cnn -t cpu -p int8", busy=True,
    ),
    Case(
        "impossible", "FP8 for a T4, which has no FP8",
        "--recipe digits-vit -t t4 -p fp8",
    ),
    Case(
        "random-weights", "INT8 for an L4 of a factory without trained weights",
        "--recipe digits-cnn -t l4 -p int8 --set model.weights=null",
    ),
    Case(
        "memory", "INT8 for an L4 with less memory than a step needs",
        "--recipe digits-cnn -t l4 -p int8 --memory 8M",
    ),
)  # fmt: skip


def built(one: Case, scratch: Path) -> None:
    """Run one build in the checkout, and keep in SCRATCH what the terminal shows."""
    out = scratch / one.name
    out.mkdir(parents=True, exist_ok=True)
    line = [str(Path(sys.executable).with_name("optkit")), "build", *one.line.split(),
            "-o", str(out)]  # fmt: skip
    environment = os.environ | {"NO_COLOR": "1", "OPTKIT_CACHE": str(scratch / "cache")}
    if one.busy:  # nothing is taken from a quiet run
        environment["OPTKIT_CACHE"] = str(scratch / "cache-busy")
    said: list[str] = []
    with ExitStack() as others:
        run = subprocess.Popen(
            line, cwd=ROOT, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert run.stdout is not None
        for text in run.stdout:
            said.append(text)
            if one.busy and "compile fp32" in text:  # then latency is measured
                one = replace(one, busy=False)
                for other in [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(2)]:
                    others.callback(other.wait)
                    others.callback(other.kill)
        run.wait()
    (out / "terminal.txt").write_text("".join(said))


def last_lines(out: Path) -> str:
    """What stays on the terminal below the steps."""
    lines = (out / "terminal.txt").read_text().replace(f"{out}/", "").splitlines()
    steps = [number for number, line in enumerate(lines) if PROGRESS.match(line)]
    return "\n".join(lines[steps[-1] + 1 if steps else 0 :]).replace(f"{ROOT}/", "")


def head(page: str) -> list[str]:
    """The title, the line of facts and the box of a report page, as text."""
    found = re.search(r"<h1>(.*?)</h1>\s*<p class=\"note\">(.*?)</p>\s*"
                      r"<div class=\"verdict (\w+)\">(.*?)</div>", page, re.DOTALL)  # fmt: skip
    assert found is not None
    title, facts, word, box = found.groups()
    parts = re.sub(r"</?(strong|p)[^>]*>", "\n", box).split("\n")
    colour = f"colour: {COLOURS[word]} (class `{word}`)"
    return [text(title), text(facts), colour, *filter(None, map(text, parts))]


def text(markup: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", "", markup)).split())


def section(one: Case, scratch: Path) -> str:
    """The part of results.md about one build."""
    out = scratch / one.name
    parts = [f"## {one.name}\n\n{one.what}: `optkit build {one.line}`",
             "The terminal's last lines:", f"```text\n{last_lines(out)}\n```"]  # fmt: skip
    reports = sorted(out.glob("*/report.json"))
    if not reports:
        return "\n\n".join([*parts, "There is no artifact, so there is no page."])
    page = head(reports[0].with_suffix(".html").read_text())
    result = json.loads(reports[0].read_text())["result"]
    fields = {name: result[name] for name in ("gate", "recommendation")}
    shown = json.dumps(fields, indent=2, ensure_ascii=False).replace(f"{out}/", "")
    page = [line.replace(f"{out}/", "") for line in page]
    parts += ["The head of the page:", "```text\n" + "\n".join(page) + "\n```",
              "In the JSON:", f"```json\n{shown}\n```"]  # fmt: skip
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("names", nargs="*", help="builds; without any, all")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - {one.name for one in CASES}:
        parser.error(f"no builds: {', '.join(sorted(unknown))}")
    scratch = options.scratch.absolute()
    for one in CASES:
        if not options.names or one.name in options.names:
            built(one, scratch)
            print(one.name, flush=True)
    known = [one for one in CASES if (scratch / one.name / "terminal.txt").exists()]
    parts = ["# Builds of every outcome", *(section(one, scratch) for one in known)]
    (HERE / "results.md").write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
