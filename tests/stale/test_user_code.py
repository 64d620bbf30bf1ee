"""The user's code runs in every command, so nothing that it reads can be outdated. If the user
declares what it depends on, it runs when this changes."""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from optkit.facts.errors import RecipeError
from optkit.facts.evidence import Evidence
from optkit.facts.tensors import InputSpec, TensorInfo
from optkit.ground.data import spool_writer
from optkit.ground.data.spool import Spool
from optkit.ground.execute.rehearsal import Rehearsal
from optkit.ground.execute.runner import Runner
from optkit.ground.execute.step import Foreign
from optkit.ground.execute.task import TaskLimits
from optkit.ground.recipe import Recipe
from optkit.ground.store import Store
from optkit.road.pipeline.collected import collected
from optkit.road.steps.bodies import outputs
from optkit.road.steps.collect import Collect, CollectedSamples
from optkit.road.steps.outputs import KeepOutputs
from optkit.road.steps.pick import Pick
from tests.stale.kinds import KINDS, write

_ALONE = """\
import contextlib, importlib, os, sys
from pathlib import Path
import numpy as np

@contextlib.contextmanager
def alone(folder):
    before, path = set(sys.modules), list(sys.path)
    sys.path += [str(folder), str(folder / "site-packages")]
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - before:
            if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]

"""


class Notes:
    """A listener that keeps the notes."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def start(self, step: str, label: str) -> None: ...

    def progress(self, what: str, fraction: float) -> None: ...

    def done(self, step: str, label: str, hit: bool, seconds: float) -> None: ...

    def failed(self, step: str, label: str) -> None: ...

    def note(self, text: str) -> None:
        self.texts.append(text)


def runner(folder: Path, *, fresh: bool = False) -> Runner:
    return Runner(Store(folder), TaskLimits(2**32), Notes(), fresh=fresh)


def _read_by_all(project: Path, store: Path) -> list[str]:
    """What the code of each kind returns, as a digest."""
    step = Collect(
        limit=None, function="samples", what="samples.py", args={}, labelled=False, optional=(),
        specs=(InputSpec(TensorInfo("x", "uint8", ("batch", len(KINDS), 32))),),
        path=project / "samples.py", where="samples.py", memory=2**30, folders={},
        variables=("STALE_A", "STALE_B", "STALE_C", "TZ"),
    )  # fmt: skip
    samples = runner(store).do(step, "collect")
    (feed,) = Spool(samples.path).spread(1)
    return [row.tobytes().hex() for row in feed["x"][0]]


def test_every_change_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STALE_A", "STALE_B", "STALE_C", "TZ"):
        monkeypatch.setenv(name, "")  # so that it is restored at the end
        monkeypatch.delenv(name)
    project = tmp_path / "project"
    text = [_ALONE]
    for number, kind in enumerate(KINDS):
        (folder := project / f"part{number}").mkdir(parents=True)
        kind.prepare(folder)
        text.append(f"def part_{number}(HERE):\n{textwrap.indent(kind.code, '    ')}\n\n")
    text.append(
        "def samples():\n    import hashlib, json\n    found = []\n"
        f"    for n in range({len(KINDS)}):\n"
        "        here = Path(__file__).parent / f'part{n}'\n"
        "        with alone(here):\n"
        "            value = json.dumps(globals()[f'part_{n}'](here))\n"
        "        found.append(np.frombuffer(hashlib.sha256(value.encode()).digest(), np.uint8))\n"
        "    yield {'x': np.stack(found)[None]}\n"
    )
    (project / "samples.py").write_text("".join(text))
    before = _read_by_all(project, tmp_path / "store")
    for number, kind in enumerate(KINDS):
        kind.change(project / f"part{number}")
    after = _read_by_all(project, tmp_path / "store")
    for kind, old, new in zip(KINDS, before, after, strict=True):
        assert old != new, kind.name
    assert after == _read_by_all(project, tmp_path / "fresh")


_SOURCE = """\
import os
from pathlib import Path
import numpy as np
import helper

HERE = Path(__file__).parent

def samples(data: Path = None):
    with (HERE.parent / "runs.log").open("a") as log:
        log.write("run\\n")
    names = sorted(str(p.relative_to(HERE)) for p in HERE.rglob("*.txt"))
    read = [*names, *((HERE / n).read_text() for n in names), os.environ.get("STALE", ""),
            str(helper.VALUE), "" if data is None else data.read_text()]
    value = sum(map(ord, "|".join(read)))
    yield {"x": np.full((4, 2), value, np.float32)}
"""


def _project(folder: Path) -> Path:
    project = folder / "project"
    for name, text in {"optkit.yaml": "", "source.py": _SOURCE, "helper.py": "VALUE = 1",
                       "one.txt": "1", "set/two.txt": "2", "set/more/three.txt": "3",
                       "arg.dat": "arg"}.items():  # fmt: skip
        write(name, text)(project)
    return project


def _recipe(project: Path, depends: list[str] | None, **args: str) -> Recipe:
    settings: dict[str, Any] = {"source": "source.py", "args": args}
    if depends is not None:
        settings["depends"] = depends
    data = {"name": "x", "inputs": {"x": {"dtype": "float32", "shape": ["batch", 2]}}}
    return Recipe.from_dict({**data, "calibration": settings}, project)


def _collect(recipe: Recipe, run: Any) -> CollectedSamples:
    source = recipe.samples("calibration")
    assert source is not None
    return collected(recipe, source, "calibration", recipe.describe(), run)


def _runs(folder: Path) -> int:
    return (folder / "runs.log").read_text().count("run")


def _value(samples: CollectedSamples) -> float:
    (feed,) = Spool(samples.path).spread(1)
    return float(feed["x"][0, 0])


def test_the_code_runs_once_in_a_command_and_again_in_the_next(tmp_path: Path) -> None:
    recipe = _recipe(_project(tmp_path), None)
    for runs in (1, 2):
        run = runner(tmp_path / "store")
        first, second = (_collect(recipe, run) for _ in range(2))
        assert first.folder == second.folder and _runs(tmp_path) == runs
        pick = Pick(samples=first, most=2, optional=(), memory=2**30)
        run.do(pick, "pick")
        assert run.records[-1].hit == (runs == 2)  # what optkit computes is found by content


DECLARED: dict[str, tuple[list[str], Callable[[Path], None]]] = {
    "a file": (["one.txt"], write("one.txt", "4")),
    "a folder": (["set"], write("set/more/three.txt", "4")),
    "a new name in a folder": (["set"], write("set/more/four.txt", "")),
    "a pattern": (["**/*.txt"], write("new.txt", "4")),
    "a variable": (["$STALE"], lambda _: None),
    # of another size: within a second, Python itself does not see an edit of the same size
    "a Python file of the project": ([], write("helper.py", "VALUE = 22")),
    "what an arg names": ([], write("arg.dat", "other")),
}


@pytest.mark.parametrize("what", DECLARED)
def test_declared_code_runs_when_that_changes(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    depends, change = DECLARED[what]
    monkeypatch.setenv("STALE", "1")
    project, store = _project(tmp_path), tmp_path / "store"
    args = {"data": "arg.dat"} if "arg" in what else {}
    first = _value(_collect(_recipe(project, depends, **args), runner(store)))
    again = runner(store)
    assert _value(_collect(_recipe(project, depends, **args), again)) == first
    assert _runs(tmp_path) == 1 and again.records[-1].hit
    assert isinstance(again.listener, Notes)
    assert again.listener.texts == [
        "collect calibration samples: not run, because its `depends` are unchanged"
    ]
    change(project)
    monkeypatch.setenv("STALE", "2")
    second = _value(_collect(_recipe(project, depends, **args), runner(store)))
    assert _runs(tmp_path) == (1 if what != "a variable" and second == first else 2)
    assert second != first
    fresh = runner(store, fresh=True)
    assert _value(_collect(_recipe(project, depends, **args), fresh)) == second
    assert _runs(tmp_path) == 3


def test_what_is_not_declared_is_the_user_s_promise(tmp_path: Path) -> None:
    project, store = _project(tmp_path), tmp_path / "store"
    first = _value(_collect(_recipe(project, ["one.txt"]), runner(store)))
    write("set/two.txt", "7")(project)
    assert _value(_collect(_recipe(project, ["one.txt"]), runner(store))) == first
    fresh = _value(_collect(_recipe(project, ["one.txt"]), runner(store, fresh=True)))
    assert fresh != first
    # and from now on the new result is the one that is remembered
    assert _value(_collect(_recipe(project, ["one.txt"]), runner(store))) == fresh


def test_two_checkouts_share_what_declared_code_yields(tmp_path: Path) -> None:
    for name in ("a", "b"):
        project = _project(tmp_path / name)
        _collect(_recipe(project, ["**/*.txt"]), runner(tmp_path / "store"))
    assert _runs(tmp_path / "a") == 1
    assert not (tmp_path / "b" / "runs.log").exists()


@pytest.mark.parametrize(
    ("depends", "told"),
    [
        (["no.txt"], "calibration.depends.0: no such file or folder: 'no.txt'"),
        (["one.txt", "*.no"], "calibration.depends.1: no such file or folder: '*.no'"),
        (["$NO_SUCH"], "calibration.depends.0: the variable NO_SUCH is not set"),
    ],
)
def test_a_wrong_entry_is_refused(depends: list[str], told: str, tmp_path: Path) -> None:
    recipe = _recipe(_project(tmp_path), depends)
    with pytest.raises(RecipeError) as caught:
        _collect(recipe, runner(tmp_path / "store"))
    assert caught.value.message == told and caught.value.hint


def test_a_rehearsal_says_that_the_code_runs_and_what_follows_if_it_yields_the_same(
    tmp_path: Path,
) -> None:
    recipe, store = _recipe(_project(tmp_path), None), tmp_path / "store"
    samples = _collect(recipe, run := runner(store))
    pick = Pick(samples=samples, most=2, optional=(), memory=2**30)
    run.do(pick, "pick")
    rehearsal = Rehearsal(run.store, run.limits, store / "objects")
    rehearsal.do(replace(pick, samples=_collect(recipe, rehearsal)), "pick")
    assert [(line.step, line.hit) for line in rehearsal.lines] == [
        ("collect", False), ("pick", True),
    ]  # fmt: skip
    declared = _recipe(_project(tmp_path), ["set"])
    _collect(declared, runner(store))
    rehearsal = Rehearsal(run.store, run.limits, store / "objects")
    _collect(declared, rehearsal)
    assert [line.hit for line in rehearsal.lines] == [True]


def test_samples_of_optkit_s_own_readers_are_found_by_the_content_of_their_files(
    tmp_path: Path,
) -> None:
    for value in (1, 2):
        np.savez(tmp_path / f"{value}.npz", x=np.full((4, 2), value, np.float32))
    data = {"name": "x", "inputs": {"x": {"dtype": "float32", "shape": ["batch", 2]}},
            "calibration": {"source": "arrays", "args": {"path": "now.npz"}}}  # fmt: skip
    found = []
    for value in (1, 1, 2):
        (tmp_path / "now.npz").write_bytes((tmp_path / f"{value}.npz").read_bytes())
        run = runner(tmp_path / "store")
        found.append((_value(_collect(Recipe.from_dict(data, tmp_path), run)), run.records[-1].hit))
    assert found == [(1, False), (1, True), (2, False)]


def test_a_digest_of_a_folder_covers_names_and_contents(tmp_path: Path) -> None:
    from optkit.ground.store import digest_tree

    def of(act: Callable[[Path], None]) -> str:
        folder = tmp_path / hashlib.sha256(str(len(seen)).encode()).hexdigest()
        write("a/b.txt", "1")(folder)
        act(folder)
        return digest_tree(folder)

    seen: list[str] = []
    for act in (lambda f: None, write("a/b.txt", "2"), write("a/c.txt", ""), write(".h", ""),
                lambda f: (f / "e").mkdir(), lambda f: (f / "l").symlink_to("nowhere"),
                lambda f: (f / "a" / "b.txt").rename(f / "b.txt")):  # fmt: skip
        seen.append(of(act))
    assert len(set(seen)) == len(seen)
    assert of(lambda f: (f / "__pycache__").mkdir()) == seen[0]
    loop = tmp_path / "loop"
    write("x", "1")(loop)
    (loop / "up").symlink_to(loop)
    assert digest_tree(loop)


_TASK = """\
from pathlib import Path
import numpy as np

METRIC = "value"
HERE = Path(__file__).parent

def samples(scale=None):
    for start in range(0, 24, 8):
        x = np.arange(start, start + 8, dtype=np.float32)[:, None].repeat(16, 1)
        yield {"x": x}, np.arange(start, start + 8)

def score(outputs, labels, scale=None):
    (HERE / "scored.log").open("a").write("run\\n")
    factor = 1.0 if scale is None else float(Path(HERE / scale).read_text())
    assert len(labels) == len(outputs["y"])
    right = np.abs(outputs["y"][:, 0] - 16 * labels) < 1e-3
    return right * factor
"""
_TASK_RECIPE = """\
name: sums
model: {path: sums.onnx}
eval: {task: task.py, args: ARGS, DEPENDS}
gates: {max_drop: 100%}
"""


def _sums(folder: Path, depends: str = "", args: str = "{}") -> Path:
    """A project whose graph adds its 16 numbers: the score is 1 if outputs meet their labels."""
    folder.mkdir(exist_ok=True)
    helper = onnx.helper
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "sums",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 16])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 1])],
        [onnx.numpy_helper.from_array(np.ones((16, 1), np.float32), "w")],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / "sums.onnx")
    (folder / "task.py").write_text(_TASK)
    text = _TASK_RECIPE.replace("ARGS", args).replace(", DEPENDS", depends)
    (folder / "optkit.yaml").write_text(text)
    return folder


def _evaluated(project: Path, cache: Path, optkit_here: Any, *more: str) -> Any:
    ran = optkit_here(
        "eval", "--target", "cpu", "--precision", "fp32", "--json", "-v", *more,
        cwd=project, cache=cache,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    return ran


def test_a_changed_score_runs_on_the_outputs_that_are_kept(
    tmp_path: Path, optkit_here: Any
) -> None:
    project = _sums(tmp_path / "project")
    first = _evaluated(project, tmp_path / "store", optkit_here)
    assert first.json["accuracy"]["value"] == 1.0
    text = (project / "task.py").read_text()
    (project / "task.py").write_text(text.replace("right * factor", "right * factor / 2"))
    second = _evaluated(project, tmp_path / "store", optkit_here)
    assert second.json["accuracy"]["value"] == 0.5
    assert "hit  run fp32" in second.err and "hit  evaluate" not in second.err


def test_a_score_follows_a_file_that_its_args_name_although_it_declares_nothing(
    tmp_path: Path, optkit_here: Any
) -> None:
    project = _sums(tmp_path / "project", ", depends: []", "{scale: scale.txt}")
    for factor in (1.0, 1.0, 0.5):
        (project / "scale.txt").write_text(str(factor))
        ran = _evaluated(project, tmp_path / "store", optkit_here)
        assert ran.json["accuracy"]["value"] == factor
    assert (project / "scored.log").read_text().count("run") == 2 * 3  # batches of two runs


def test_outputs_of_parts_are_those_of_one_run(tmp_path: Path) -> None:
    """And a run that was killed goes on; outputs that are too large are not kept."""
    project = _sums(tmp_path / "project")
    feeds = [{"x": np.full((4, 16), row, np.float32)} for row in range(6)]
    (samples := tmp_path / "samples").mkdir()
    info = TensorInfo("x", "float32", ("batch", 16))
    spool_writer.write(
        feeds, samples, [info], limit_samples=None, memory_bytes=1 << 20,
        progress=lambda what, share: None,
    )  # fmt: skip
    step = KeepOutputs(
        graph=Foreign(project), samples=Foreign(samples), file="sums.onnx", batch=None,
        evidence=Evidence.SIMULATED, most=1 << 20,
    )  # fmt: skip

    def run(step: KeepOutputs, name: str) -> Path | None:
        (out := tmp_path / name).mkdir()
        return out if outputs.run(step, out, lambda what, share: None).kept else None

    def read(folder: Path | None) -> list[float]:
        assert folder is not None
        session = outputs.KeptOutputs(folder, (info,))
        return [float(session.run(feed)["y"][0, 0]) for feed in feeds]

    assert read(run(step, "whole")) == [16 * row for row in range(6)]
    parts = {str(i): run(replace(step, shard=(i, 3)), f"part-{i}") for i in range(3)}
    joined = replace(step, parts={i: Foreign(path) for i, path in parts.items() if path})
    assert read(run(joined, "joined")) == read(tmp_path / "whole")
    # a file of the first two batches, as a killed run leaves it
    (killed := tmp_path / "killed").mkdir()
    short = [session_feed["x"][:, :1] * 16 for session_feed in feeds[:2]]
    outputs._save(killed, 0, 8, [{"y": array} for array in short])
    assert read(run(replace(step, checkpoint=killed), "resumed")) == read(tmp_path / "whole")
    assert run(replace(step, most=40), "large") is None
    large = {str(i): run(replace(step, most=40, shard=(i, 3)), f"l{i}") for i in range(3)}
    assert set(large.values()) == {None}
    empty = {i: Foreign(tmp_path / f"l{i}") for i in large}
    assert run(replace(step, parts=empty), "none") is None
