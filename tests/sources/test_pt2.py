"""`.pt2` archives: what loads becomes a graph, and what could run code is refused unread."""

from __future__ import annotations

import gc
import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from optkit.craft.sources import archive, export_check, program
from optkit.craft.sources.export_log import ExportLog
from optkit.facts.errors import InputRefused, UnsafeFile
from optkit.facts.tensors import AxisRange, InputSpec, TensorInfo
from optkit.ground.runtimes import backend

PROGRAM = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"
SAMPLES = "data/sample_inputs/model.pt"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"in-1": nn.Linear(4, 3)})
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.layers["in-1"](x) + self.shift
        return {"y": torch.where(mask, y, -y), "flat": x.reshape(-1)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Net, Path]:
    torch.manual_seed(0)
    net = Net().eval()
    path = tmp_path_factory.mktemp("pt2") / "net.pt2"
    batch = torch.export.Dim("batch", min=1, max=64)
    example = (torch.randn(4, 4), torch.ones(4, 3, dtype=torch.bool))
    program = torch.export.export(net, example, dynamic_shapes=({0: batch}, {0: batch}))
    torch.export.save(program, path)
    return net, path


def export(path: Path, out: Path, *specs: InputSpec, **axes: AxisRange) -> ExportLog:
    return program.export(
        path,
        specs,
        axes,
        out,
        session=lambda file: backend("onnxruntime").session(file),
        progress=lambda what, fraction: None,
    )


def spec(name: str, *shape: int | str, dtype: str = "float32") -> InputSpec:
    return InputSpec(TensorInfo(name, dtype, shape))


def test_program_becomes_a_graph_with_the_recipes_names(
    saved: tuple[Net, Path], tmp_path: Path
) -> None:
    net, path = saved
    specs = spec("image", "n", 4), spec("valid", "n", 3, dtype="bool")
    log = export(path, tmp_path / "m.onnx", *specs, n=AxisRange(1, 8, 32))
    assert log.inputs == (specs[0].info, specs[1].info)
    assert [info.name for info in log.outputs] == ["y", "flat"]
    assert [info.shape for info in log.outputs] == [("n", 3), ("4*n",)]
    assert {check.sizes["n"] for check in log.checks} == {1, 3, 9, 32}
    rng = np.random.default_rng(0)
    x, mask = rng.standard_normal((5, 4)).astype(np.float32), rng.random((5, 3)) < 0.5
    with backend("onnxruntime").session(tmp_path / "m.onnx") as session:
        found = session.run({"image": x, "valid": mask})
    expected = net(torch.from_numpy(x), torch.from_numpy(mask))["y"].detach()
    np.testing.assert_allclose(found["y"], expected, atol=1e-6)


@pytest.mark.slow
def test_weights_too_large_to_keep_are_held_once_when_the_runtime_starts(
    saved: tuple[Net, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch keeps what it traced, so the program's own tensors have to be empty by then."""
    monkeypatch.setattr(export_check, "KEPT", 0)
    mine = saved[0].layers["in-1"].weight
    held: list[torch.Tensor] = []

    def session(file: Path) -> Any:
        alive = (one for one in gc.get_objects() if type(one) in (torch.Tensor, nn.Parameter))
        held.extend(one for one in alive if one is not mine and one.numel() and same(one))
        return backend("onnxruntime").session(file)

    def same(one: torch.Tensor) -> bool:
        return one.shape == mine.shape and bool((one == mine).all())

    log = program.export(
        saved[1], (), {"batch": AxisRange(2, 4, 8)}, tmp_path / "m.onnx",
        session=session, progress=lambda what, fraction: None,
    )  # fmt: skip
    assert log.checks and not held


def test_without_declared_inputs_the_first_axis_is_the_batch(
    saved: tuple[Net, Path], tmp_path: Path
) -> None:
    log = export(saved[1], tmp_path / "m.onnx", batch=AxisRange(2, 4, 8))
    assert log.inputs == (
        TensorInfo("x", "float32", ("batch", 4)),
        TensorInfo("mask", "bool", ("batch", 3)),
    )


@pytest.mark.parametrize(
    ("specs", "most", "message"),
    [
        ((), 65, "is declared as 1 to 65, but the program allows 1 to 64"),
        ((spec("x", "batch", 4),), 8, "the program has 2: x, mask"),
        ((spec("x", "batch", 5), spec("mask", "batch", 3, dtype="bool")), 8, "the recipe declares"),
        ((spec("x", "batch", 4), spec("mask", "batch", 3)), 8, "the model has bool"),
        ((spec("x", 4, 4), spec("mask", 4, 3, dtype="bool")), 8, None),
    ],
)
def test_declared_inputs_are_compared_with_the_program(
    specs: tuple[InputSpec, ...],
    most: int,
    message: str | None,
    saved: tuple[Net, Path],
    tmp_path: Path,
) -> None:
    ranges = {"batch": AxisRange(1, 4, most)}
    if message is None:  # a fixed size where the program is dynamic
        assert export(saved[1], tmp_path / "m.onnx", *specs, **ranges).inputs[0].shape == (4, 4)
        return
    with pytest.raises(InputRefused, match=message):
        export(saved[1], tmp_path / "m.onnx", *specs, **ranges)


def rewrite(source: Path, out: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """The archive with its members changed, stored as torch stores them."""
    with zipfile.ZipFile(source) as found:
        members = {i.filename.partition("/")[2]: found.read(i) for i in found.infolist()}
    change(members)
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as written:
        for name, content in members.items():
            written.writestr(f"net/{name}", content)
    return out


class Canary:
    """Unpickling this creates the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def pickled(value: object) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def edit(member: str, change: Callable[[Any], None]) -> Callable[[dict[str, bytes], Path], None]:
    def apply(members: dict[str, bytes], canary: Path) -> None:
        data = json.loads(members[member])
        change(data)
        members[member] = json.dumps(data).replace("CANARY", str(canary)).encode()

    return apply


def put(name: str, content: bytes = b"x") -> Callable[[dict[str, bytes], Path], None]:
    return lambda members, canary: members.update({name: content})


def graph_of(program: Any) -> Any:
    return program["graph_module"]["graph"]


def set_shape(program: Any, text: str) -> None:
    graph_of(program)["tensor_values"]["x"]["sizes"][0]["as_expr"]["expr_str"] = text


def set_tree(program: Any, **tree: Any) -> None:
    spec = {"type": None, "context": None, "children_spec": [], **tree}
    signature = program["graph_module"]["module_call_graph"][0]["signature"]
    signature["out_spec"] = json.dumps([1, spec])


SYSTEM = "__import__('os').mkdir('CANARY')"
DEFAULTDICT = json.dumps({"default_factory_module": "antigravity", "default_factory_name": "fly"})
ENUM = json.dumps([{"__enum__": True, "fqn": "antigravity:x", "name": "y"}])

HOSTILE: dict[str, Callable[[dict[str, bytes], Path], None]] = {
    "samples pickle": lambda members, canary: members.update(
        {SAMPLES: pickled(((Canary(canary),), {}))}
    ),
    "weights pickle": lambda members, canary: members.update(
        {"data/weights/model.pt": pickled({"w": Canary(canary)})}
    ),
    "pickled weight": edit(
        WEIGHTS, lambda table: table["config"]["shift"].update({"use_pickle": True})
    ),
    "weight outside": edit(
        WEIGHTS, lambda table: table["config"]["shift"].update({"path_name": "../../weight_0"})
    ),
    "custom object": put("data/constants/custom_obj_0"),
    "opaque object": put("data/constants/opaque_obj_0"),
    "native code": put("data/aotinductor/model/model.so"),
    "second program": put("models/other.json", b"{}"),
    "unknown member": put("data/more"),
    "older format": put("serialized_state_dict.pt"),
    "shape expression": edit(PROGRAM, lambda p: set_shape(p, SYSTEM)),
    "nested in a string": edit(PROGRAM, lambda p: set_shape(p, f'Max("{SYSTEM}", 1)')),
    "attribute of a shape": edit(PROGRAM, lambda p: set_shape(p, "Symbol('s0').func.__init__")),
    "built from numbers": edit(PROGRAM, lambda p: set_shape(p, "exec(chr(112))")),
    "guard": edit(PROGRAM, lambda p: p.update(guards_code=[SYSTEM])),
    "guard method": edit(PROGRAM, lambda p: p.update(guards_code=["L['x'].tofile('CANARY')"])),
    "operator": edit(PROGRAM, lambda p: graph_of(p)["nodes"][0].update(target="torch.os.system")),
    "operator module": edit(
        PROGRAM, lambda p: graph_of(p)["nodes"][0].update(target="_operator.methodcaller")
    ),
    "library": edit(
        PROGRAM, lambda p: graph_of(p)["nodes"][0].update(target="torch.ops.load_library")
    ),
    "path": edit(
        PROGRAM,
        lambda p: graph_of(p)["nodes"][0]["inputs"].append(
            {"name": "file", "arg": {"as_string": "/CANARY"}, "kind": 2}
        ),
    ),
    "name in source": edit(
        PROGRAM, lambda p: graph_of(p)["inputs"][0]["as_tensor"].update(name=f"x={SYSTEM}")
    ),
    "argument name": edit(
        PROGRAM,
        lambda p: p["graph_module"]["module_call_graph"][0]["signature"].update(
            forward_arg_names=[f"x={SYSTEM}"]
        ),
    ),
    "parameter name": edit(
        PROGRAM,
        lambda p: p["graph_module"]["signature"]["input_specs"][0]["parameter"].update(
            parameter_name='a"); os.mkdir("CANARY'
        ),
    ),
    "tree imports": edit(
        PROGRAM, lambda p: set_tree(p, type="collections.defaultdict", context=DEFAULTDICT)
    ),
    "tree enum": edit(PROGRAM, lambda p: set_tree(p, type="builtins.dict", context=ENUM)),
    "not JSON": put(PROGRAM, b"{"),
    "no program": lambda members, canary: members.pop(PROGRAM) and None,
    "deep": put(PROGRAM, b"[" * 100_000),
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_hostile_archives_are_refused(attack: str, saved: tuple[Net, Path], tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    path = rewrite(saved[1], tmp_path / "net.pt2", lambda m: HOSTILE[attack](m, canary))
    with pytest.raises(UnsafeFile) as caught:
        export(path, tmp_path / "m.onnx", batch=AxisRange(1, 4, 8))
    assert str(path) in str(caught.value.where)
    assert not canary.exists()


def test_a_rewritten_archive_without_a_change_loads(
    saved: tuple[Net, Path], tmp_path: Path
) -> None:
    """Else the attacks above could be refused for another reason than the attack."""
    archive.check(rewrite(saved[1], tmp_path / "net.pt2", lambda members: None))


@pytest.mark.parametrize("damage", ["compressed", "twice", "beside", "cut", "empty", "pickle"])
def test_damaged_containers_are_refused(
    damage: str, saved: tuple[Net, Path], tmp_path: Path
) -> None:
    path = tmp_path / "net.pt2"
    if damage in ("cut", "empty", "pickle"):
        whole = saved[1].read_bytes()
        path.write_bytes({"cut": whole[:-200], "empty": b"", "pickle": pickled({"a": 1})}[damage])
    else:
        rewrite(saved[1], path, lambda members: None)
        method = zipfile.ZIP_DEFLATED if damage == "compressed" else zipfile.ZIP_STORED
        name = {"compressed": "net/extra/a", "twice": f"net/{PROGRAM}", "beside": "version"}[damage]
        with zipfile.ZipFile(path, "a", method) as written:
            written.writestr(name, b"8.14" * 100)
    with pytest.raises(UnsafeFile):
        archive.check(path)


@given(st.sampled_from(["add", "mul", "linear"]), st.text(max_size=30))
def test_operator_names_hold_no_path_out_of_aten(op: str, tail: str) -> None:
    """Whatever follows, an accepted operator is namespace.operator.overload of torch.ops.aten."""
    target = f"torch.ops.aten.{op}{tail}"
    if archive._harmless(target, "target"):
        _, _, _, name, overload = target.split(".")
        assert name.isidentifier() and overload.isidentifier() and overload[0] != "_"


@given(st.recursive(
    st.sampled_from(["1", "2.5", "s77", "Symbol('s77', positive=True, integer=True)"]),
    lambda inner: st.builds("Add({}, Mul(Integer(2), {}))".format, inner, inner)
    | st.builds("({} // {})".format, inner, inner)
    | st.builds("Max({}, {})".format, inner, inner),
    max_leaves=8,
))  # fmt: skip
def test_shape_arithmetic_is_accepted(expression: str) -> None:
    assert archive._harmless(expression, "expr_str")
    assert not archive._harmless(f"{expression}.__class__", "expr_str")
    assert not archive._harmless(f"eval({expression})", "expr_str")
    assert not archive._harmless(f"[{expression} for x in y]", "expr_str")
    assert not archive._harmless(f"(lambda: {expression})()", "expr_str")
