"""The samples of a user's source: how its args are passed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from optkit.facts.tensors import InputSpec, TensorInfo
from optkit.ground.data.spool import Spool
from optkit.road.steps.bodies import collect
from optkit.road.steps.collect import Collect

SOURCE = """\
import numpy as np
from pathlib import Path

def samples({parameter}):
    assert isinstance(data, {kind})
    yield {{"x": np.load({data})}}
"""


@pytest.mark.parametrize(
    ("parameter", "kind"), [("data: Path", "Path"), ("data", "str"), ("data=None", "str")]
)
def test_a_relative_path_in_args_is_relative_to_the_folder_of_the_recipe(
    parameter: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, scratch = tmp_path / "recipe", tmp_path / "scratch"
    for folder in (recipe / "data", scratch):
        folder.mkdir(parents=True)
    numbers = np.arange(8, dtype=np.float32).reshape(4, 2)
    np.save(recipe / "data/x.npy", numbers)
    source = recipe / "source.py"
    source.write_text(SOURCE.format(parameter=parameter, kind=kind, data="data"))
    monkeypatch.chdir(scratch)
    step = Collect(
        limit=None, function="samples", assets={}, whole=(), what="source.py",
        args={"data": "data/x.npy"}, specs=(InputSpec(TensorInfo("x", "float32", ("batch", 2))),),
        labelled=False, optional=(), path=source, where=str(source), memory=1 << 20,
        folders={"data": recipe}, model=None,
    )  # fmt: skip
    out = tmp_path / "out"
    out.mkdir()
    found = collect.run(step, out, lambda what, share: None)
    assert found.paths == ("data",)
    ((feed, _),) = Spool(out).batches(None)
    np.testing.assert_array_equal(feed["x"], numbers)


def test_a_text_that_names_no_file_stays_a_text(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text(
        "import numpy as np\ndef samples(split):\n    assert split == 'a/b'\n"
        "    yield {'x': np.zeros((4, 2), np.float32)}\n"
    )
    step = Collect(
        limit=None, function="samples", assets={}, whole=(), what="source.py",
        args={"split": "a/b"}, specs=(InputSpec(TensorInfo("x", "float32", ("batch", 2))),),
        labelled=False, optional=(), path=source, where=str(source), memory=1 << 20,
        folders={"split": tmp_path}, model=None,
    )  # fmt: skip
    out = tmp_path / "out"
    out.mkdir()
    assert collect.run(step, out, lambda what, share: None).paths == ()
