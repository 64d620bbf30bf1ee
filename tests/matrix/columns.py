"""What is asked of every family: the columns of the matrix.

What a typed error or a limit here turns down is a failed cell; any other exception is a bug, and
not caught.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from optkit.facts.codec import to_json
from optkit.facts.errors import OptkitError
from optkit.ground import graph
from tests.matrix import families, generation, padding
from tests.matrix.row import Cell, Missed, Row, Sizes, apart, session

GPU = "rtx4090"  # SM89


def exports(row: Row) -> str:
    return f"{row.exported.nodes} nodes"


def equals_torch(row: Row) -> str:
    return f"{_against_torch(row, [row.exported.tuned]):.0e}"


def axes_hold(row: Row) -> str:
    return f"{_against_torch(row, row.exported.places):.0e}"


def fused_forms(row: Row) -> str:
    """Nodes as exported, in the `standard` form and in that for ONNX Runtime, which agree."""
    exported = row.exported
    nodes = [exported.nodes]
    for stage in ("fuse", "quantize"):  # to FP32: only written in ONNX Runtime's operators
        path = row.files(stage, target="cpu", precision="fp32")[0] / "model.onnx"
        nodes.append(len(graph.load(path).graph))
        with session(exported.path, "none") as plain, session(path) as fused:
            for sizes in exported.places:
                feed = exported.feed(sizes)
                apart(plain.run(feed), fused.run(feed), sizes)
    return " → ".join(map(str, nodes))


def fp16(row: Row) -> float:
    return row.sqnr(target=GPU, precision="fp16")


def int8(row: Row) -> float:
    return row.sqnr(target="cpu", precision="int8")


def tensorrt(row: Row) -> str:
    _, details = row.files("compile", target=GPU, precision="int8")
    found = details["engine"]["landing"]
    if not found["planned"]:
        raise Missed("no product is planned in INT8")
    if found["landed"] < found["planned"]:
        missing = [f"{one['node']} ({one['dtype']})" for one in found["rows"] if not one["landed"]]
        raise Missed(
            f"{found['landed']} of {found['planned']} products landed, not {', '.join(missing)}"
        )
    return f"{found['landed']}/{found['planned']}"


COLUMNS: dict[str, Callable[[Row], str | float | None]] = {
    "exports": exports,
    "equals torch": equals_torch,
    "axes hold": axes_hold,
    "padded batch": padding.padded_batch,
    "generation": generation.greedy_text,
    "fused forms agree": fused_forms,
    "FP16": fp16,
    "INT8": int8,
    "TensorRT-RTX": tensorrt,
}
REQUIRED = ("exports", "equals torch", "axes hold", "padded batch", "generation")
ROWS = tuple(
    f"{name}/{part}" if part else name
    for name in families.FAMILIES
    for part in families.parts(name)
)


def answer(row: Row, columns: Iterable[str] = COLUMNS) -> dict[str, Any]:
    """The row of table.json: its cells, or its refusal."""
    refusal = row.refusal()
    if refusal is not None:
        return {"refused": to_json(refusal)}
    return {column: cell(row, column).to_json() for column in columns}


def cell(row: Row, column: str) -> Cell:
    try:
        return Cell(True, COLUMNS[column](row))
    except OptkitError as error:
        return Cell(False, reason=row.told(f"{error.code}: {error.line}"))
    except Missed as missed:
        return Cell(False, reason=str(missed))


def _against_torch(row: Row, places: Iterable[Sizes]) -> float:
    """The largest share by which the graph's outputs differ. Raises Missed."""
    worst = 0.0
    with session(row.exported.path) as runs:
        for sizes in places:
            feed = row.exported.feed(sizes)
            worst = max(worst, apart(row.torch_outputs(feed), runs.run(feed), sizes))
    return worst
