"""`optkit doctor MODEL`: from a file to its page, with a real compiler."""

from __future__ import annotations

from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from optkit.facts import documents
from optkit.facts.errors import InputRefused, UsageError
from optkit.ground.workspace import Workspace
from optkit.verbs import api
from optkit.verbs.cli.examined import text

GRAPHS = Path(__file__).parent / "graphs"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ort_qdq", "ort_qoperator", "pt2e", "aimet"])
def test_what_tensorrt_refuses_lands_after_the_repairs(name: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    workspace = Workspace(cache=tmp_path / "cache")
    file = tmp_path / "repaired.onnx"
    found = api.examine(GRAPHS / f"{name}.onnx", target="l4", out=file, workspace=workspace)
    assert found.before.landed is None and found.before.refusal
    assert found.after.landed == found.after.planned == 5 and found.after.refusal is None
    assert found.repairs and found.left == ()
    page = text(found)
    assert "refused by tensorrt-rtx" in page and "5 of 5 products land" in page
    Draft202012Validator(documents.schema("quantized-graph")).validate(found.to_json())
    assert found.fidelity.inputs == "random" and "random inputs (simulated)" in page
    again = api.examine(file, target="l4", workspace=workspace)
    assert again.repairs == () and again.before.landed == 5
    assert again.fidelity.repaired_to_given is None


def test_a_file_that_exists_stays(tmp_path: Path) -> None:
    file = tmp_path / "repaired.onnx"
    file.write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        api.examine(GRAPHS / "nncf.onnx", out=file)
    assert file.read_text() == "mine"


@pytest.mark.slow
def test_a_float_graph_is_refused(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    text = "agraph (float[2] x) => (float[2] y) { y = Relu(x) }"
    onnx.save(
        onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 21]> {text}'),
        tmp_path / "float.onnx",
    )
    with pytest.raises(InputRefused, match="nothing was quantized"):
        api.examine(tmp_path / "float.onnx", workspace=Workspace(cache=tmp_path / "cache"))
