"""Large models with random weights from export to generated text: seconds, memory and disk.

    python experiments/large/run.py SCRATCH                 decoder of 1.24 B and encoder of 0.79 B
    python experiments/large/run.py SCRATCH --only decoder --precisions int8
    python experiments/large/run.py SCRATCH --small         tiny models, to try the script

SCRATCH needs 30 GB. Writes the models of folders.py there, and runs `optkit export`, `fuse` and
`quantize` for each precision, and for the decoder in INT4 `build`, `package` and `generate`, one
after the other on one store, so that each does only what those before did not. Prints a line of
JSON per command, and with --out adds it to a file: seconds, the most that parent and workers
together held (resident, every 20 ms; pages mapped from files count), and what the command added to
SCRATCH. Commands that the file has are left out, so a run that was stopped continues. Stops if less
than --keep of the disk is free. `quantize.py` quantizes a decoder of 7B.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from command import measure

_SCRIPTS = Path(__file__).parent
_GIB = 1 << 30


class Command(NamedTuple):
    """A command of optkit with its options, except where it writes. `keeps`: the name under which
    its result stays in SCRATCH."""

    name: str
    words: Sequence[str]
    keeps: str | None = None
    writes: bool = True  # takes --out


def commands(kind: str, scratch: Path, given: argparse.Namespace) -> Iterator[Command]:
    """What is run for one model, in order."""
    model = str(scratch / kind)
    # the comparison with torch holds the module and the graph, a measurement the FP32 graph twice
    most, little = ("--memory", given.most), ("--memory", given.memory)
    yield Command("export", ("export", model, *most))
    yield Command("fuse", ("fuse", model, *little))
    data = [
        *("--calibration", str(scratch / "texts.jsonl")),
        *("--set", f"calibration.samples={given.samples}"),
        *("--set", f"calibration.args.length={given.length}"),
        *("--set", f"axes.sequence={{min: 1, opt: 16, max: {given.length}}}"),
    ]
    for precision in given.precisions.split(","):
        finished = kind == "decoder" and precision == "int4"
        wanted = [model, "--target", "cpu", "--precision", precision, *data]
        method = ("--set", f"quantization.weights={given.weights}")
        wanted += (*most, *method) if finished else little
        yield Command(f"quantize to {precision}", ("quantize", *wanted))
        if finished:
            artifact = str(scratch / "artifact")
            bench = ("--set", "bench.batches=[1]")
            yield Command("build", ("build", *wanted, *bench), "artifact")
            yield Command("package", ("package", artifact, "--format", "huggingface"))
            words = ("generate", artifact, "--prompt", "def main(", "--max-new-tokens", "32")
            yield Command("generate 32 tokens", words, writes=False)


def used(folder: Path) -> int:
    """Bytes on disk; a file with several names counts once."""
    files = [path.lstat() for path in folder.rglob("*") if not path.is_dir()]
    return sum({info.st_ino: info.st_blocks * 512 for info in files}.values())


def told(kind: str, command: Command, scratch: Path) -> dict[str, Any]:
    """Run a command; its figures."""
    before, started = used(scratch), time.strftime("%H:%M:%S")
    seconds, peak = measure(command.words, scratch, writes=command.writes)
    added = used(scratch) - before
    out = scratch / "out"
    if command.keeps is not None:
        (made,) = (path for path in (out, *out.iterdir()) if (path / "manifest.json").exists())
        made.rename(scratch / command.keeps)
    return {
        "model": kind,
        "command": command.name,
        "started": started,
        "seconds": round(seconds, 1),
        "peak_mib": round(peak / 2**20),
        "added_mib": round(added / 2**20),
        "load": round(os.getloadavg()[0], 1),
    }


def machine() -> dict[str, object]:
    return {
        "date": str(date.today()),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scratch", type=Path, help="a folder with room")
    parser.add_argument("--only", choices=("decoder", "encoder"))
    parser.add_argument("--precisions", default="int8,int4")
    parser.add_argument("--memory", default="8GiB", help="--memory of fuse and quantize")
    parser.add_argument("--most", default="11GiB", help="--memory of export and of all INT4")
    parser.add_argument(
        "--weights", default="auto", help="how INT4 rounds: auto (GPTQ), awq, mse, …"
    )
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--length", type=int, default=128, help="tokens of a sample")
    parser.add_argument("--keep", type=float, default=15, help="GiB of the disk that stay free")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=Path, help="a file for the figures")
    parser.add_argument("--note", default="", help="for the file: what else the machine did")
    given = parser.parse_args()
    given.scratch.mkdir(parents=True, exist_ok=True)
    rows = json.loads(given.out.read_text())["rows"] if given.out and given.out.exists() else []
    for kind in ("decoder", "encoder") if given.only is None else (given.only,):
        if not (given.scratch / kind).exists():
            script = [sys.executable, str(_SCRIPTS / "folders.py"), kind, str(given.scratch / kind)]
            subprocess.run([*script, *["--small"] * given.small], check=True)
        known = {row["command"] for row in rows if row["model"] == kind}
        for command in commands(kind, given.scratch, given):
            if command.name in known:
                continue
            if shutil.disk_usage(given.scratch).free < given.keep * _GIB:
                sys.exit(f"less than {given.keep:g} GiB of the disk are free")
            rows.append(told(kind, command, given.scratch))
            print(json.dumps(rows[-1]), flush=True)
            if given.out is not None:
                figures = {
                    **machine(),
                    "memory": given.memory,
                    "most": given.most,
                    "weights": given.weights,
                }
                figures |= {"samples": given.samples, "length": given.length, "note": given.note}
                given.out.write_text(json.dumps({**figures, "rows": rows}, indent=2) + "\n")
        for name in ("cache", "out", "artifact"):
            shutil.rmtree(given.scratch / name, ignore_errors=True)


if __name__ == "__main__":
    main()
