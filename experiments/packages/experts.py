"""Checkpoints of the format compressed-tensors of a trained mixture of experts.

    python experiments/packages/experts.py WORK --out experiments/packages/experts.json

WORK has model/ and data/training.jsonl and data/held-out.jsonl, as experiments/experts/train.py of
the history writes them. Each build is packaged; the package is read with compressed-tensors (are
the codes those of the graph?) and with transformers on this CPU: logits (root mean square of the
difference, relative), perplexity of both on held-out text, and the divergence of the next token.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from tokenizers import Tokenizer

import optkit
from optkit.verbs import api
from tests.packaging import checkpoints, programs, variants

_PLAIN = ("quantization.smooth=off", "quantization.bias_correction=false")
_AXES = ("axes.batch={min: 1, opt: 1, max: 2}", "axes.sequence={min: 1, opt: 64, max: 128}",
         "axes.past_sequence={min: 0, opt: 0, max: 128}")  # fmt: skip
_BUILDS = {  # name → precision, settings
    "int4": ("int4", ()),
    "int4, one scheme": ("int4", ('quantization.nodes={"*lm_head*": int4}',)),
    "int8-weight-only": ("int8-weight-only", ()),
    "int8": ("int8", _PLAIN),
}
_WINDOWS, _LENGTH = 64, 64


def held_out(work: Path) -> np.ndarray:
    """Ids [windows, tokens]."""
    tokenizer = Tokenizer.from_file(str(work / "model" / "tokenizer.json"))
    lines = (work / "data" / "held-out.jsonl").read_text().splitlines()
    stream = [one for line in lines for one in tokenizer.encode(json.loads(line)["text"]).ids]
    return np.array(stream[: _WINDOWS * _LENGTH]).reshape(_WINDOWS, _LENGTH)


def short_texts(work: Path) -> Path:
    """The texts of the training, cut to pieces of 400 characters."""
    lines = (work / "data" / "training.jsonl").read_text().splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    pieces = [text[at : at + 400] for text in texts for at in range(0, 1600, 400)]
    file = work / "pieces.jsonl"
    file.write_text("\n".join(json.dumps({"text": piece}) for piece in pieces if piece))
    return file


def expert_codes(artifact: optkit.Artifact) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Module of each expert's linear layer, codes [N, K] around zero, scales, by the description of
    QMoE: the rows of gate and up alternate."""
    model = onnx.load(artifact.model_path).graph
    arrays = {one.name: numpy_helper.to_array(one) for one in model.initializer}
    for node in model.node:
        if node.op_type != "QMoE":
            continue
        bits = next(one.i for one in node.attribute if one.name == "expert_weight_bits")
        up, up_scales, down, down_scales = (arrays[node.input[at]] for at in (2, 3, 5, 6))
        for expert in range(len(up)):
            place = f"{node.name.split('/')[0]}.{expert}"
            for name, packed, scales in (
                ("gate_proj", up[expert, 0::2], up_scales[expert, 0::2]),
                ("up_proj", up[expert, 1::2], up_scales[expert, 1::2]),
                ("down_proj", down[expert], down_scales[expert]),
            ):
                parts = [packed >> at & (1 << bits) - 1 for at in range(0, 8, bits)]
                codes = np.stack(parts, -1).reshape(len(packed), -1).astype(np.float32)
                yield f"{place}.{name}", codes - (1 << bits - 1), scales


def equal(artifact: optkit.Artifact, folder: Path) -> tuple[int, int]:
    """Experts' linear layers whose codes and scales are those of the graph, and all of them."""
    stored, same, count = checkpoints.tensors(folder), 0, 0
    for module, codes, scales in expert_codes(artifact):
        held = {key.rpartition(".")[2]: each for key, each in stored.items()
                if key.rpartition(".")[0] == module}  # fmt: skip
        found = checkpoints.unpacked(held, codes.shape), held["weight_scale"].numpy()
        same += np.array_equal(found[0], codes) and np.array_equal(found[1], scales)
        count += 1
    return same, count


def row(name: str, work: Path, ids: np.ndarray) -> dict[str, Any]:
    precision, settings = _BUILDS[name]
    artifact = optkit.build(
        optkit.Request(str(work / "model"), overrides=(*_AXES, *settings),
                       calibration=str(short_texts(work))),
        target="cpu", precision=precision, out=work / "artifacts" / name,
        workspace=optkit.Workspace(work / "cache"),
    )  # fmt: skip
    out = work / "packages" / name
    folder = Path(api.package(artifact.path, format="compressed-tensors", out=out)["folder"])
    exact = variants.with_float_products(artifact, artifact.path.parent)
    session, floats = (checkpoints.of_session(each, ids) for each in (artifact, exact))
    read = checkpoints.of_transformers(folder, ids)
    same, count = equal(artifact, folder)
    return {
        "artifact": name, "equal": same, "experts": count,
        "apart": checkpoints.apart(read, session),
        "apart_in_floats": checkpoints.apart(read, floats),
        "perplexity": programs.perplexity(session, ids),
        "transformers": programs.perplexity(read, ids),
        "divergence": programs.divergence(session, read),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    ids, rows = held_out(options.work), []
    for name in _BUILDS:
        rows.append(row(name, options.work, ids))
        print(json.dumps(rows[-1]), flush=True)
    figures = {"date": str(date.today()), "processor": platform.machine(),
               "cores": os.cpu_count(), "tokens": ids.size, "rows": rows}  # fmt: skip
    options.out.write_text(f"{json.dumps(figures, indent=1)}\n")


if __name__ == "__main__":
    main()
