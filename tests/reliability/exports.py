"""Exports models in this process, whatever its hash seed is, and prints the digests of the files:

    python -m tests.reliability.exports SCRATCH NAME...

NAME: one of EXAMPLES, which are read from the current folder, or of FAMILIES. A build exports in a
worker, which has a hash seed of 0.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.matrix.executor import Shared

_BATCH = {"batch": {"min": 1, "opt": 8, "max": 32}}
EXAMPLES: Mapping[str, str | dict[str, Any]] = {
    "00_digits_vit": "recipes/digits-vit.yaml",
    "01_digits_cnn": "recipes/digits-cnn.yaml",
    "02_tiny_llama": "examples/02_tiny_llama/optkit.yaml",
    "03_hf_encoder": "examples/03_hf_encoder/optkit.yaml",
    "04_house_numbers": "recipes/house-numbers.yaml",
    "05_digit_detector": "recipes/digit-detector.yaml",
    # these two are built in memory by their scripts
    "06_vit_int4": {
        "name": "vit",
        "model": {"factory": "examples/00_digits_vit/model.py:create",
                  "args": {"dim": 32, "depth": 3, "heads": 2},
                  "weights": "examples/06_vit_int4/weights.safetensors"},
        "inputs": {"image": {"dtype": "float32", "shape": ["batch", 1, 8, 8]}}, "axes": _BATCH,
    },
    "07_healed_decoder": {
        "name": "decoder",
        "model": {"factory": "examples/07_healed_decoder/decoder.py:Decoder",
                  "weights": "examples/07_healed_decoder/weights.safetensors"},
        "inputs": {"ids": {"dtype": "int64", "shape": ["batch", 128]}}, "axes": _BATCH,
    },
}  # fmt: skip
FAMILIES = ("bert", "deberta-v2", "llama", "mixtral", "resnet", "convnext", "swin",
            "whisper/encoder", "wav2vec2", "patchtst")  # fmt: skip


def main() -> None:
    from tests.matrix.executor import Shared  # as below: the test reads the names without torch

    scratch, *names = sys.argv[1:]
    shared = Shared(Path(scratch))
    try:
        found = {name: digests(name, Path(scratch) / name, shared) for name in names}
    finally:
        shared.close()
    print(json.dumps(found))


def digests(name: str, scratch: Path, shared: Shared) -> dict[str, str]:
    """File → SHA-256."""
    from optkit.ground.workspace import Workspace
    from optkit.verbs import api
    from tests.matrix.row import Row

    if name in FAMILIES:
        out = Row(name, scratch, shared).exported.path.parent
    else:
        workspace = Workspace(scratch / "cache", executor=shared, listener=None)
        out = api.export(recipe=EXAMPLES[name], out=scratch / "out", workspace=workspace)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(out.glob("model.onnx*"))}  # fmt: skip


if __name__ == "__main__":
    main()
