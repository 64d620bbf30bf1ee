"""Opens changed ONNX files with ONNX Runtime, many in one process, which may die of one:

    python -m tests.hostile.opened_bytes FIRST END PROGRESS

PROGRESS then holds the number that comes next, and how many were refused by the intake, refused by
the runtime, and opened.
"""

from __future__ import annotations

import random
import resource
import signal
import sys
from pathlib import Path

import onnxruntime

from optkit.facts.errors import UnsafeFile
from optkit.ground.intake import FileLimits
from optkit.ground.intake.scan import Scan
from tests.hostile import mutations, onnx_files

_MEMORY = 4 << 30
_SECONDS = 20


def seeds() -> list[bytes]:
    """Sound models."""
    changed = onnx_files.plain_model()
    onnx_files.loop(3)(changed)
    models = [onnx_files.plain_model(), mutations.sound(), changed]
    for model in models:
        model.ir_version = min(model.ir_version, 10)
    return [model.SerializeToString() for model in models]


def changed(data: bytes, number: int) -> bytes:
    """One to three bytes set, removed or repeated."""
    rng, made = random.Random(number), bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(made))
        kind = rng.randrange(4)
        if kind == 0:
            del made[at : at + rng.randint(1, 4)]
        elif kind == 1:
            made[at:at] = made[at : at + rng.randint(1, 40)]
        else:
            made[at] = rng.randrange(256)
    return bytes(made)


def main(first: int, end: int, progress: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    sound, counts = seeds(), [0, 0, 0]
    with progress.open("w") as file:
        for number in range(first, end):
            file.seek(0)
            file.write(f"{number + 1} {' '.join(map(str, counts))}\n")
            file.flush()
            signal.alarm(_SECONDS)
            data = changed(sound[number % len(sound)], number)
            try:
                Scan(memoryview(data), FileLimits())
            except UnsafeFile:
                counts[0] += 1
                continue
            try:
                onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
                counts[2] += 1
            except Exception:
                counts[1] += 1
        file.seek(0)
        file.write(f"{end} {' '.join(map(str, counts))}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
