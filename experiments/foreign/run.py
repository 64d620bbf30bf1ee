"""What the quantizers of nine tools write, what TensorRT-RTX does with it before and after optkit's
repairs, and what `optkit build` makes of it.

    python experiments/foreign/run.py --graphs DIR

DIR holds cnn.onnx and block.onnx (`networks.export`), and NETWORK.PRODUCER.onnx for each producer
(`produce.py`, in the environment of its tool). A file .encodings beside such a graph has the ranges
of AIMET for it. Writes results.json and results.md beside this file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import networks
import numpy as np
import onnx

from optkit import api
from optkit.documents.quantized_graph import QuantizedGraph
from optkit.errors import OptkitError
from optkit.request import Request
from optkit.runtimes import Session, SessionOptions, simulator

T = TypeVar("T")

_HERE = Path(__file__).parent
_HEADINGS = ("producer", "network", "recognized as", "as given", "repaired", "repairs",
             "given, dB", "repaired, dB", "build", "build, dB", "gate")  # fmt: skip
_LEAST_DB = 30.0  # the gates of every build: this SQNR,
_MOST_DROP = "5%"  # and this drop of the agreement with the float model
_GATES = (f"gates.min_sqnr={_LEAST_DB:g}", f"gates.max_drop={_MOST_DROP}")
_SAMPLES, _SEED = 512, 9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=Path, required=True)
    folder: Path = parser.parse_args().graphs
    rows: list[list[str]] = []
    found: dict[str, object] = {}
    for file in sorted(folder.glob("*.*.onnx")):
        network, producer, _ = file.name.split(".")
        page, refusal = tried(examined, file, folder / f"{network}.onnx")
        build, failure = tried(built, file, folder / f"{network}.onnx")
        found[file.name] = {
            "doctor": page and {**page.to_json(), "model": file.name},
            "build": build,
            "errors": [one for one in (refusal, failure) if one is not None],
        }
        cells = [*_cells(page, refusal), *_build_cells(build, failure)]
        rows.append([producer, network, *cells])
        print(" | ".join(rows[-1]), flush=True)
        write(found, rows)


def write(found: Mapping[str, object], rows: list[list[str]]) -> None:
    """Both files, after each graph: a run that is stopped leaves what it has."""
    (_HERE / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    lines = ["| " + " | ".join(line) + " |" for line in (
        _HEADINGS, ["---"] * len(_HEADINGS), *rows)]  # fmt: skip
    head = (
        "# Graphs that other tools have quantized\n\n"
        "Written by `python experiments/foreign/run.py`. As given, repaired, build: products that "
        "land in the precision that was asked, of all that were asked, compiled by TensorRT-RTX "
        "for `l4`, not run. dB: SQNR, simulated by ONNX Runtime on 8 random batches; of the given "
        "and the repaired graph to the float model, of the build to its own float graph (the given "
        f"one without Q/DQ). Gate: that of the build, at least {_LEAST_DB:.0f} dB, and at most "
        f"{_MOST_DROP} fewer of {_SAMPLES} random inputs with the largest output of the float "
        "model than its float graph has in FP16 (simulated). "
        "`aimet_encodings`: a float graph, built with `--calib`.\n\n"
    )
    (_HERE / "results.md").write_text(head + "\n".join(lines) + "\n")


def tried(work: Callable[[Path, Path], T], file: Path, other: Path) -> tuple[T | None, str | None]:
    """The result, or the message of the error."""
    try:
        return work(file, other), None
    except OptkitError as error:
        return None, error.message


def examined(file: Path, reference: Path) -> QuantizedGraph:
    """The page of one graph, against the float model."""
    return api.examine(file, target="l4", float_model=reference)


def agreement(file: Path, reference: Path) -> Callable[[Session], np.ndarray]:
    """A task without labels: 1 where a model has the same largest output as the float model."""
    network = reference.stem
    fixed = onnx.load(file).graph.input[0].type.tensor_type.shape.dim[0].dim_value
    step = fixed or 32
    rows = networks.samples(network, _SAMPLES, _SEED)
    with simulator().session(reference, SessionOptions(1)) as session:
        expected = session.run({"x": rows})["y"].argmax(-1).reshape(_SAMPLES, -1)[:, 0]

    def evaluate(session: Session) -> np.ndarray:
        outputs = [session.run({"x": rows[i : i + step]})["y"] for i in range(0, _SAMPLES, step)]
        found = np.concatenate(outputs).argmax(-1).reshape(_SAMPLES, -1)[:, 0]
        same: np.ndarray = (found == expected).astype(float)
        return same

    return evaluate


def built(file: Path, reference: Path) -> Mapping[str, object]:
    """Figures of the result of a build without calibration data."""
    ranges = file.with_suffix(".encodings")
    request = Request(
        str(file), recipe={"name": file.stem.replace(".", "-")}, overrides=_GATES,
        ranges=str(ranges) if ranges.exists() else None,
    )  # fmt: skip
    with TemporaryDirectory() as folder:
        task = agreement(file, reference)
        result = api.build(request, target="l4", out=folder, evaluate=task).result
    landing, fidelity = result["engine"]["landing"] or {}, result["fidelity"]
    return {
        "precision": result["precision"],
        "engine_evidence": result["engine"]["evidence"],
        "landed": landing.get("landed"),
        "planned": landing.get("planned"),
        "fidelity": fidelity,
        "accuracy": result["accuracy"],
        "baseline_accuracy": result["baseline"]["accuracy"],
        "drop": result["drop"],
        "gate": result["gate"],
    }


def _cells(page: QuantizedGraph | None, refusal: str | None) -> list[str]:
    if page is None:
        return [f"not examined: {refusal}", *[""] * 5]
    return [
        page.producer.name,
        _landed(page.before.landed, page.before.planned),
        _landed(page.after.landed, page.after.planned),
        "; ".join(line.text for line in page.repairs) or "none",
        _db(page.fidelity.given_to_float),
        _db(page.fidelity.repaired_to_float),
    ]


def _build_cells(build: Mapping[str, object] | None, failure: str | None) -> list[str]:
    if build is None:
        return [f"not built: {failure}", "", ""]
    fidelity, gate = build["fidelity"], build["gate"]
    assert isinstance(fidelity, dict) and isinstance(gate, dict)
    landed = f"{build['precision']}, {build['landed']} of {build['planned']}"
    return [landed, _db(fidelity["sqnr_db"]), str(gate["verdict"])]


def _landed(landed: int | None, planned: int | None) -> str:
    return "refused" if landed is None else f"{landed} of {planned}"


def _db(sqnr: float | None) -> str:
    return "equal" if sqnr is None else f"{sqnr:.1f}"


if __name__ == "__main__":
    main()
