"""What eight tools write, what TensorRT-RTX does with it before and after optkit's repairs, and how
far each graph is from the float model.

    python experiments/foreign/run.py --graphs DIR

DIR holds cnn.onnx and block.onnx (`networks.export`), and NETWORK.PRODUCER.onnx for each producer
(`produce.py`, in the environment of its tool; `run.sh` calls them all). Writes results.json and
results.md beside this file.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from optkit import api
from optkit.documents.quantized_graph import QuantizedGraph
from optkit.errors import OptkitError

_HERE = Path(__file__).parent
_HEADINGS = ("producer", "network", "recognized as", "as given", "repaired", "repairs",
             "given, dB", "repaired, dB", "gate")  # fmt: skip
_LEAST_DB = 30.0  # of the repaired graph to the float model: the gate of this table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=Path, required=True)
    folder: Path = parser.parse_args().graphs
    rows, found = [], {}
    for file in sorted(folder.glob("*.*.onnx")):
        network, producer, _ = file.name.split(".")
        reference = folder / f"{network}.onnx"
        try:
            one = examined(file, reference)
        except OptkitError as error:
            found[file.name] = {"error": error.message}
            rows.append([producer, network, f"not examined: {error.message}", *[""] * 6])
            continue
        found[file.name] = {**one.to_json(), "model": file.name}
        rows.append([producer, network, *_cells(one)])
    (_HERE / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    lines = ["| " + " | ".join(line) + " |" for line in (_HEADINGS, ["---"] * 9, *rows)]
    head = (
        "# Graphs that other tools have quantized\n\n"
        "Written by `python experiments/foreign/run.py`. "
        "Landed: products in INT8 of those that were asked, compiled by TensorRT-RTX for `l4`, not "
        "run. dB: SQNR to the float model, simulated by ONNX Runtime on 8 random batches. Gate: "
        f"the repaired graph has at least {_LEAST_DB:.0f} dB.\n\n"
    )
    (_HERE / "results.md").write_text(head + "\n".join(lines) + "\n")


def examined(file: Path, reference: Path) -> QuantizedGraph:
    """The page of one graph; against the float model if that has the same sizes of inputs."""
    return api.examine(file, target="l4", float_model=reference)


def _cells(one: QuantizedGraph) -> list[str]:
    fidelity = one.fidelity
    after = fidelity.repaired_to_float
    passes = after is None or after >= _LEAST_DB
    return [
        one.producer.name,
        _landed(one.before.landed, one.before.planned),
        _landed(one.after.landed, one.after.planned),
        "; ".join(line.text for line in one.repairs) or "none",
        _db(fidelity.given_to_float),
        _db(after),
        "pass" if passes else "fail",
    ]


def _landed(landed: int | None, planned: int | None) -> str:
    return "refused" if landed is None else f"{landed} of {planned}"


def _db(sqnr: float | None) -> str:
    return "equal" if sqnr is None else f"{np.round(sqnr, 1)}"


if __name__ == "__main__":
    main()
