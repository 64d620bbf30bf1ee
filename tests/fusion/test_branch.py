"""An If whose condition is a constant."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from optkit.craft.fusion import fuse
from optkit.ground import graph

TEXT = """<ir_version: 10, opset_import: ["" : 21]>
g (float[b, 4] x, float[b, 4] y) => (float[b, 4] z, float[b, 4] s)
<bool yes = {1}, bool no = {0}, float[4] c = {1, 2, 3, 4}> {
    t = Mul (x, c)
    z, s = If (CONDITION) <
        then_branch = a () => (float[b, 4] p, float[b, 4] q) {
            t2 = Add (t, c)
            p = If (no) <then_branch = aa () => (float[b, 4] u) { u = Neg (t2) },
                         else_branch = ab () => (float[b, 4] v) { v = Exp (t2) }>
            q = Relu (y) },
        else_branch = n () => (float[b, 4] p2, float[b, 4] q2) {
            t2 = Sub (t, y)
            p2 = Abs (t2)
            q2 = Sigmoid (x) }>
}"""


@pytest.mark.parametrize(("condition", "nodes"), [
    ("yes", {"Mul", "Add", "Exp", "Relu"}), ("no", {"Mul", "Sub", "Abs", "Sigmoid"}),
])  # fmt: skip
def test_the_branch_that_is_taken_replaces_the_if(fused, condition: str, nodes: set[str]) -> None:
    """Also an If within it."""
    after, log = fused(TEXT.replace("CONDITION", condition), b=3)
    assert {node.op_type for node in after.graph} == nodes
    assert log.counts["take_branch"] == (2 if condition == "yes" else 1)
    assert {len(value.uses()) for value in after.graph.inputs} == (
        {1} if condition == "yes" else {2, 1}
    )


def test_names_in_the_body_of_another_if_stay_apart(fused) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[b, 4] x, bool which) => (float[b, 4] y) <bool yes = {1}> {
        r = If (yes) <then_branch = a () => (float[b, 4] u) { t = Exp (x) u = Abs (t) },
                      else_branch = n () => (float[b, 4] u) { u = Abs (x) }>
        s = If (which) <then_branch = c () => (float[b, 4] u) { t = Neg (x) u = Exp (t) },
                        else_branch = d () => (float[b, 4] u) { u = Neg (x) }>
        y = Add (r, s)
    }"""
    after, log = fused(text, b=2)
    assert log.counts["take_branch"] == 1
    assert [node.op_type for node in after.graph] == ["Exp", "Abs", "If", "Add"]


def test_an_if_that_an_input_decides_stays() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[4] x, bool which) => (float[4] y) {
        y = If (which) <then_branch = a () => (float[4] u) { u = Exp (x) },
                        else_branch = n () => (float[4] v) { v = Abs (x) }>
    }"""
    model = graph.upgrade(ir.from_onnx_text(text))
    log = fuse(model)
    assert [node.op_type for node in model.graph] == ["If"] and not log.counts
    assert log.nodes_before == log.nodes_after == 3
