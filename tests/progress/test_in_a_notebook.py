"""A notebook, run from its first cell to its last by the tools of Jupyter."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
CELLS = (
    """import torch, optkit
net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
batches = [(torch.randn(8, 16), torch.randint(0, 4, (8,))) for _ in range(4)]
quick = {"name": "net", "bench": {"seconds": 0.05, "warmup_seconds": 0.05, "batches": [1]}}
artifact = optkit.build(net, batches[0][0], calibration=batches, target="cpu", recipe=quick)
artifact""",
    """silent = optkit.Workspace(listener=None)
again = optkit.build(net, batches[0][0], calibration=batches, target="cpu", recipe=quick,
                     workspace=silent)""",
    """optkit.build(net, batches[0][0], target="cpu", recipe=quick)  # no calibration data""",
)  # fmt: skip


@pytest.mark.slow
def test_a_notebook_shows_progress_and_the_head_of_the_report(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    client = NotebookClient(
        notebook, timeout=900, allow_errors=True, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    built, silent, failed = (cell.outputs for cell in notebook.cells)

    steps, head = built
    assert steps.output_type == "display_data" and head.output_type == "execute_result"
    html = steps.data["text/html"]
    assert "  export net<br>" in html and "measure latency of int8" in html
    assert "<progress" not in html  # nothing runs any more
    assert 'class="optkit-head"' in head.data["text/html"]
    assert "Gate: <b>inconclusive</b>" in head.data["text/html"]
    assert "Artifact(" in head.data["text/plain"]

    assert silent == []
    assert failed[-1].output_type == "error" and failed[-1].ename == "InputRefused"
    assert all("<progress" not in one.data["text/html"] for one in failed[:-1])
