"""Factories, weights and nn.Modules: what is loaded, exported, named, and refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from optkit.craft.sources import model_factory, torch_module
from optkit.craft.sources.export_log import ExportLog
from optkit.facts.errors import ExportFailed, InputRefused, ToolchainMissing, UsageError
from optkit.facts.tensors import AxisRange, InputSpec, TensorInfo
from optkit.ground import graph, user_code
from optkit.ground.recipe import torch_checkpoint
from optkit.ground.runtimes import backend

AXES = {"batch": AxisRange(1, 8, 32)}
ROOT = Path(__file__).resolve().parents[2]


def spec(name: str, *shape: int | str, dtype: str = "float32") -> InputSpec:
    return InputSpec(TensorInfo(name, dtype, shape))


def export(module: nn.Module, out: Path, *specs: InputSpec, **options: object) -> ExportLog:
    return torch_module.export(
        module,
        specs,
        options.pop("axes", AXES),  # type: ignore[arg-type]
        out,
        session=lambda path: backend("onnxruntime").session(path),
        progress=lambda what, fraction: None,
        **options,  # type: ignore[arg-type]
    )


class Net(nn.Module):
    """Convolution with BatchNorm, attention, a Linear: one of each kind that is named."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 2, stride=2, bias=False), nn.BatchNorm2d(8))
        self.qkv = nn.Linear(8, 24)
        self.head = nn.Linear(8, 3)

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.stem(image).flatten(2).transpose(1, 2)
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        y = y.transpose(1, 2).flatten(2).mean(1)
        return {"logits": self.head(y), "features": y}


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    module = Net()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean, part.running_var = torch.randn(8), torch.rand(8) + 0.5
    return module


@pytest.fixture(scope="module")
def exported(net: Net, tmp_path_factory: pytest.TempPathFactory) -> tuple[ExportLog, Path]:
    net.train()
    net.head.eval()
    out = tmp_path_factory.mktemp("net") / "model.onnx"
    return export(net, out, spec("image", "batch", 1, 4, 4)), out


def test_log_says_what_the_graph_is(exported: tuple[ExportLog, Path]) -> None:
    log, _ = exported
    assert log.opset == 21
    assert log.inputs == (TensorInfo("image", "float32", ("batch", 1, 4, 4)),)
    assert log.outputs == (
        TensorInfo("logits", "float32", ("batch", 3)),
        TensorInfo("features", "float32", ("batch", 8)),
    )
    assert [check.sizes["batch"] for check in log.checks] == [1, 9, 3, 32]
    assert all(error < 1e-5 for check in log.checks for error in check.errors.values())


def test_graph_computes_what_the_module_does(net: Net, exported: tuple[ExportLog, Path]) -> None:
    image = np.random.default_rng(1).standard_normal((5, 1, 4, 4)).astype(np.float32)
    with backend("onnxruntime").session(exported[1]) as session:
        found = session.run({"image": image})
    net.eval()
    expected = net(torch.from_numpy(image))
    net.train()
    net.head.eval()
    np.testing.assert_allclose(found["logits"], expected["logits"].detach(), atol=1e-5)


def test_nodes_and_weights_bear_the_modules_names(exported: tuple[ExportLog, Path]) -> None:
    model = graph.load(exported[1])
    names = {node.op_type: str(node.name) for node in model.graph}
    assert names["Conv"] == "stem.0/Conv"
    assert names["BatchNormalization"] == "stem.1/BatchNormalization"  # left for fusion to fold
    assert names["Gemm"] == "head/Gemm"
    weights = {n.name: str(n.inputs[1].name) for n in model.graph if n.name == "qkv/MatMul"}
    assert weights == {"qkv/MatMul": "qkv.weight"}  # stored transposed


def test_exporters_own_artefacts_are_gone(exported: tuple[ExportLog, Path]) -> None:
    model = graph.load(exported[1])
    ops = {node.op_type for node in model.graph}
    assert not ops & {"SplitToSequence", "SequenceAt", "Expand", "Constant"}
    (conv,) = [node for node in model.graph if node.op_type == "Conv"]
    assert len([value for value in conv.inputs if value is not None]) == 2  # no bias of zeros


def test_module_is_left_in_its_modes(net: Net, exported: tuple[ExportLog, Path]) -> None:
    assert net.training and net.stem[1].training and not net.head.training


@pytest.mark.slow
def test_same_bytes_in_another_process(tmp_path: Path) -> None:
    """Names and order must not hang on hashes, counters or what was exported before."""
    script = tmp_path / "exporting.py"
    script.write_text(
        dedent(
            """
            from pathlib import Path
            import torch
            from optkit.tensors import InputSpec
            from optkit.runtimes import backend
            from optkit.craft.sources import torch_module
            from optkit.tensors import AxisRange, TensorInfo

            def write(out):
                torch.manual_seed(0)
                torch_module.export(
                    torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()),
                    [InputSpec(TensorInfo("x", "float32", ("batch", 4)))],
                    {"batch": AxisRange(1, 8, 32)},
                    Path(out),
                    session=lambda path: backend("onnxruntime").session(path),
                    progress=lambda what, fraction: None,
                )
            """
        )
    )
    user_code.load_factory(f"{script}:write")(tmp_path / "here.onnx")
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    command = [sys.executable, "-c", "import exporting; exporting.write('there.onnx')"]
    subprocess.run(command, env=env, cwd=tmp_path, check=True)
    assert (tmp_path / "here.onnx").read_bytes() == (tmp_path / "there.onnx").read_bytes()


def test_axis_of_one_size_becomes_static(tmp_path: Path) -> None:
    axes = {"batch": AxisRange(4, 4, 4), "length": AxisRange(1, 4, 9)}
    log = export(nn.Linear(3, 2), tmp_path / "m.onnx", spec("x", "batch", "length", 3), axes=axes)
    assert log.inputs[0].shape == (4, "length", 3)
    assert log.outputs == (TensorInfo("output", "float32", (4, "length", 2)),)


def test_inputs_go_to_the_parameters_of_their_names(tmp_path: Path) -> None:
    class Masked(nn.Module):
        def forward(
            self, x: torch.Tensor, bias: torch.Tensor | None = None, *, mask: torch.Tensor
        ) -> tuple[torch.Tensor, list[torch.Tensor]]:
            y = torch.where(mask, x, torch.zeros_like(x))
            return (y if bias is None else y + bias), [x]

    specs = (spec("mask", "batch", 3, dtype="bool"), spec("x", "batch", 3))
    log = export(Masked(), tmp_path / "m.onnx", *specs)
    assert {info.name for info in log.inputs} == {"mask", "x"}
    assert [info.name for info in log.outputs] == ["output_0", "output_1.0"]
    with backend("onnxruntime").session(tmp_path / "m.onnx") as session:
        x, mask = np.ones((2, 3), np.float32), np.eye(2, 3, dtype=bool)
        np.testing.assert_array_equal(session.run({"mask": mask, "x": x})["output_0"], mask)


def test_dataclass_outputs_and_an_output_named_like_an_input(tmp_path: Path) -> None:
    @dataclass
    class Result:
        x: torch.Tensor
        missing: torch.Tensor | None
        total: torch.Tensor

    class Echo(nn.Module):
        def forward(self, x: torch.Tensor) -> Result:
            return Result(2 * x, None, x.sum(1))

    log = export(Echo(), tmp_path / "m.onnx", spec("x", "batch", 3))
    assert [info.name for info in log.outputs] == ["x_out", "total"]
    log = export(Echo(), tmp_path / "m.onnx", spec("x", "batch", 3), outputs=["double", "total"])
    assert [info.name for info in log.outputs] == ["double", "total"]
    with pytest.raises(UsageError, match="1 output names for 2"):
        export(Echo(), tmp_path / "m.onnx", spec("x", "batch", 3), outputs=["double"])


def test_compiled_module_is_unwrapped(tmp_path: Path) -> None:
    log = export(torch.compile(nn.Linear(3, 2)), tmp_path / "m.onnx", spec("x", "batch", 3))
    assert log.outputs[0].shape == ("batch", 2)


class Inner(nn.Module):
    def __init__(self, body: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def decides(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x
    return -x


def decomposes(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.svd(x)[1]


def fixes_the_batch(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(8, 4) * 2


def limits_the_batch(x: torch.Tensor) -> torch.Tensor:
    return x + torch.ones(16, 4)[: x.shape[0]]


def does_not_fit(x: torch.Tensor) -> torch.Tensor:
    return x @ torch.ones(3, 3)


@pytest.mark.parametrize(
    ("body", "message", "line", "hint"),
    [
        (decides, r"layers\.1 \(Inner\) branches on the values", "if x.sum() > 0", "torch.where"),
        (decomposes, r"layers\.1 \(Inner\) .*_linalg_svd", "self.body(x)", "replace"),
        (fixes_the_batch, "an axis cannot vary .*batch", None, "batch = 8"),
        (limits_the_batch, "an axis cannot vary .*batch", None, "max=16"),
        (does_not_fit, r"layers\.1 \(Inner\) failed", "x @ torch.ones(3, 3)", "declared"),
    ],
)
def test_failures_name_module_line_and_remedy(
    body: object, message: str, line: str | None, hint: str, tmp_path: Path
) -> None:
    model = nn.Module()
    model.layers = nn.Sequential(nn.ReLU(), Inner(body))
    model.forward = lambda x: model.layers(x)  # type: ignore[method-assign]
    with pytest.raises(ExportFailed, match=message) as caught:
        export(model, tmp_path / "m.onnx", spec("x", "batch", 4))
    assert hint in str(caught.value.hint)
    assert line is None or str(caught.value.where).endswith(line)
    assert not (tmp_path / "m.onnx").exists()


def test_a_module_that_is_named_like_a_keyword(tmp_path: Path) -> None:
    model = nn.Sequential(nn.ModuleDict({"class": nn.Linear(4, 3)}))
    model.forward = lambda x: model[0]["class"](x)  # type: ignore[method-assign]
    with pytest.raises(ExportFailed, match="the name 'class', a keyword") as caught:
        export(model, tmp_path / "m.onnx", spec("x", "batch", 4))
    assert "rename" in str(caught.value.hint)


def test_the_axes_that_disagree_are_named(tmp_path: Path) -> None:
    class Recommender(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag, self.top = nn.EmbeddingBag(50, 8), nn.Linear(21, 1)

        def forward(
            self, dense: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor
        ) -> torch.Tensor:
            joined = torch.cat([dense, self.bag(indices, offsets)], 1)
            scores: torch.Tensor = self.top(joined)
            return scores

    specs = (
        spec("dense", "batch", 13),
        InputSpec(TensorInfo("indices", "int64", ("values",)), (0, 49)),
        InputSpec(TensorInfo("offsets", "int64", ("bags",)), (0, 0)),
    )
    axes = AXES | {"values": AxisRange(1, 24, 96), "bags": AxisRange(1, 6, 32)}
    with pytest.raises(ExportFailed, match="must match") as caught:
        export(Recommender(), tmp_path / "m.onnx", *specs, axes=axes)
    said = "axis 0 of 'dense' is 8 (batch); axis 0 of 'offsets' is 6 (bags): axes that agree need"
    assert said in str(caught.value.hint) and "indices" not in str(caught.value.hint)


def test_a_size_that_the_model_does_not_divide_is_named(tmp_path: Path) -> None:
    model = nn.Sequential(nn.PixelUnshuffle(2), nn.Conv2d(12, 4, 1))
    axes = AXES | {"h": AxisRange(16, 33, 64)}
    with pytest.raises(ExportFailed, match="divisible") as caught:
        export(model, tmp_path / "m.onnx", spec("x", "batch", 3, "h", 16), axes=axes)
    said = "only multiples of 2, and not all sizes that are declared: here axis 2 of 'x' is 33 (h)."
    assert said in str(caught.value.hint)


class UNet(nn.Module):
    """Two strides, and a sum of the maps before and behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(3, 3, 3, stride=2, padding=1) for _ in range(2))
        self.up = nn.Upsample(scale_factor=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        middle = torch.relu(self.down[0](x))
        low = torch.relu(self.down[1](middle))
        result: torch.Tensor = self.up(self.up(low) + middle) + x
        return result


def test_multiples_are_declared_where_the_model_takes_no_other_sizes(tmp_path: Path) -> None:
    axes = AXES | {"h": AxisRange(16, 32, 64), "w": AxisRange(16, 48, 96)}
    image = spec("x", "batch", 3, "h", "w")
    with pytest.raises(ExportFailed) as caught:
        export(UNet(), tmp_path / "refused.onnx", image, axes=axes)
    assert "multiples" in str(caught.value.hint)
    axes |= {name: replace(axes[name], multiple=4) for name in ("h", "w")}
    log = export(UNet(), tmp_path / "model.onnx", image, axes=axes)
    assert len({check.sizes["h"] for check in log.checks}) > 3
    assert all(size % 4 == 0 for one in log.checks for name, size in one.sizes.items()
               if name != "batch")  # fmt: skip


def test_exporter_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    export(nn.Linear(3, 2), tmp_path / "m.onnx", spec("x", "batch", 3))
    with pytest.raises(ExportFailed):
        export(Inner(decides), tmp_path / "n.onnx", spec("x", "batch", 3))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("absent", ["torch", "onnxscript"])
def test_missing_toolchain_names_the_extra(
    absent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(ToolchainMissing, match=absent) as caught:
        export(nn.Linear(3, 2), tmp_path / "m.onnx", spec("x", "batch", 3))
    assert "optkit[torch]" in str(caught.value.hint)


def test_weight_that_is_not_finite_is_named(tmp_path: Path) -> None:
    linear = nn.Linear(3, 2)
    with torch.no_grad():
        linear.bias[1] = float("nan")
    with pytest.raises(InputRefused, match="NaN or infinite") as caught:
        export(linear, tmp_path / "m.onnx", spec("x", "batch", 3))
    assert "'bias'" in str(caught.value.where)


def test_inputs_that_forward_does_not_take(tmp_path: Path) -> None:
    specs = (spec("x", "batch", 3), spec("y", "batch", 3))
    with pytest.raises(InputRefused, match="cannot be called with the inputs x, y"):
        export(nn.Linear(3, 2), tmp_path / "m.onnx", *specs)


def test_example_inputs_get_the_names_of_forwards_parameters() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor, *more: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
            return x

    x, y = torch.ones(2, 3), np.zeros(4, np.int64)
    assert list(torch_module.named(Two(), x)) == ["x"]
    assert list(torch_module.named(Two(), (x, y, x))) == ["x", "more_0", "more_1"]
    np.testing.assert_array_equal(torch_module.named(Two(), {"x": x})["x"], x)
    with pytest.raises(UsageError, match="does not take the example inputs"):
        torch_module.named(Two(), {"z": x})
    with pytest.raises(UsageError, match="example input 'scale' is float"):
        torch_module.named(Two(), {"x": x, "scale": 2.0})


def test_axis_without_a_range(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="axis 'length' of input 'x' has no range"):
        export(nn.Linear(3, 2), tmp_path / "m.onnx", spec("x", "batch", "length", 3))


MODEL = """
from torch import nn


def create(width=4):
    return nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width))


def creates():
    return "no module"


def broken():
    return undefined_name


def sized(width):
    return create(width)


def on_gpu():
    raise RuntimeError("Found no NVIDIA driver on your system: CUDA is not available")


def opens():
    open("gone.pt")
"""


@pytest.fixture
def factory(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path / "model.py"


def test_load_takes_args_and_half_precision_weights(factory: Path, tmp_path: Path) -> None:
    source = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    state = {k: v.half() if v.is_floating_point() else v for k, v in source.state_dict().items()}
    save_file(state, tmp_path / "w.safetensors")
    module = model_factory.load(f"{factory}:create", {"width": 5}, tmp_path / "w.safetensors")
    loaded = module.state_dict()
    assert loaded["0.weight"].dtype == torch.float32
    assert all(torch.equal(loaded[name], value.to(loaded[name])) for name, value in state.items())


@pytest.mark.parametrize(
    ("name", "args", "error", "message", "told"),
    [
        ("crate", {}, InputRefused, "unknown function 'crate'", "create"),
        ("create", {"widht": 4}, UsageError, "do not fit", "did you mean width?"),
        ("creates", {}, InputRefused, "returned str", "creates"),
        ("sized", {}, UsageError, "missing a required argument", "model: {args: {width: ...}}"),
        ("on_gpu", {}, InputRefused, "CUDA", "without .cuda()"),
        ("opens", {}, InputRefused, "FileNotFoundError", "create 'gone.pt', or correct its path"),
        ("broken", {}, InputRefused, "NameError", "return undefined_name"),
    ],
)
def test_factories_that_cannot_be_used(
    name: str, args: dict[str, int], error: type[Exception], message: str, told: str, factory: Path
) -> None:
    with pytest.raises(error, match=message) as caught:
        model_factory.load(f"{factory}:{name}", args, None)
    assert told in f"{caught.value.where} {caught.value.hint}"  # type: ignore[attr-defined]


def test_a_factory_reads_files_next_to_it_by_relative_paths(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\n\n\ndef create():\n    return torch.load('net.pt', weights_only=False)\n"
    )
    torch.save(nn.Linear(2, 3), tmp_path / "net.pt")
    before = Path.cwd()
    assert isinstance(model_factory.load(f"{tmp_path}/net.py:create", {}, None), nn.Linear)
    assert Path.cwd() == before


def test_factory_in_an_installed_module() -> None:
    assert isinstance(model_factory.load("torch.nn:Identity", {}, None), nn.Identity)
    with pytest.raises(InputRefused, match="nosuchpackage"):
        model_factory.load("nosuchpackage.models:create", {}, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"0.bias": None}, "the model needs 0.bias"),
        ({"extra": torch.zeros(1)}, "the model has no extra"),
        ({"0.weight": torch.zeros(9, 3)}, "0.weight is .9, 3. in the file and .4, 3. in the"),
    ],
)
def test_weights_that_do_not_fit_are_named(
    change: dict[str, torch.Tensor | None], message: str, factory: Path, tmp_path: Path
) -> None:
    state = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).state_dict()
    changed = {k: v for k, v in {**state, **change}.items() if v is not None}
    save_file(changed, tmp_path / "w.safetensors")
    with pytest.raises(InputRefused, match=message):
        model_factory.load(f"{factory}:create", {}, tmp_path / "w.safetensors")


UNTRAINED = """
import torch
from pathlib import Path
from torch import nn


def seeded():
    torch.manual_seed(0)
    return nn.Linear(3, 4)


def half():
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    net[0].load_state_dict(torch.load(Path(__file__).with_name("w.pt")))
    return net


def whole():
    net = nn.Linear(3, 4)
    net.load_state_dict(torch.load(Path(__file__).with_name("w.pt")))
    return net


def constant():
    net = nn.LayerNorm(4)
    return net
"""


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("seeded", ("2 of 2 parameter tensors random", "weight", "bias")),
        ("half", ("2 of 6 parameter tensors random", "2.weight", "2.bias")),
        ("whole", None),
        ("constant", None),
    ],
)
def test_random_parameters_that_nobody_gave_values_are_named(
    name: str, told: tuple[str, ...] | None, tmp_path: Path
) -> None:
    (tmp_path / "model.py").write_text(UNTRAINED)
    torch.save(nn.Linear(3, 4).state_dict(), tmp_path / "w.pt")
    seed, before = torch.manual_seed, torch.get_rng_state()
    module, found = model_factory.load_unweighted(f"{tmp_path / 'model.py'}:{name}", {})
    if told is None:
        assert found is None
    else:
        assert found is not None and found.problem.endswith(told[0]) and found.names == told[1:]
    if name == "seeded":  # what is built is what the factory makes, not what it was compared with
        seed(0)
        assert torch.equal(module.weight, nn.Linear(3, 4).weight)  # type: ignore[arg-type]
    torch.set_rng_state(before)
    assert torch.manual_seed is seed


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model."])
def test_a_wrappers_prefix_is_recognised_and_the_hint_takes_it_off(
    prefix: str, factory: Path, tmp_path: Path
) -> None:
    state = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).state_dict()
    file = tmp_path / "w.safetensors"
    save_file({f"{prefix}{name}": value for name, value in state.items()}, file)
    with pytest.raises(InputRefused, match="the weights do not fit") as caught:
        model_factory.load(f"{factory}:create", {}, file)
    told, _, lines = (caught.value.hint or "").partition("in Python:\n")
    assert f"begins with {prefix!r}" in told
    before = file.read_bytes()
    exec(lines, {})
    assert file.read_bytes() == before
    renamed = tmp_path / "w-renamed.safetensors"
    assert f"--set model.weights={renamed}" in told
    model_factory.load(f"{factory}:create", {}, renamed)


@pytest.mark.parametrize("nested", [None, "state_dict", "model"])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_the_lines_that_convert_a_checkpoint_do(
    nested: str | None, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {f"{prefix}{name}": value for name, value in nn.Linear(3, 4).state_dict().items()}
    torch.save({nested: state, "epoch": 3} if nested else state, tmp_path / "run.pt")
    monkeypatch.chdir(tmp_path)
    lines, new = torch_checkpoint.conversion("run.pt")
    assert new == "run.safetensors" and len(lines.splitlines()) == 2
    exec(lines, {})
    assert load_file(tmp_path / "run.safetensors").keys() == {"weight", "bias"}
    _, other = torch_checkpoint.conversion("run.pt")  # the hint does not overwrite a file
    assert other == "run-converted.safetensors"


def test_the_lines_that_write_tensors_as_arrays_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for saved, names in ((torch.ones(3, 2), {"x"}), ({"a": torch.ones(2)}, {"a"})):
        torch.save(saved, "t.pt")
        code, new = torch_checkpoint.arrays("t.pt", "x")
        exec(code, {})
        assert set(np.load(new)) == names


def test_weights_that_are_no_safetensors(factory: Path, tmp_path: Path) -> None:
    torch.save({"0.weight": torch.zeros(4, 3)}, tmp_path / "w.pt")
    with pytest.raises(InputRefused, match="not a safetensors file"):
        model_factory.load(f"{factory}:create", {}, tmp_path / "w.pt")


def test_inputs_must_be_declared(tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match="does not declare the inputs") as caught:
        export(nn.Linear(2, 2), tmp_path / "m.onnx")
    assert caught.value.where == "Linear.forward(input)" and "optkit init" in str(caught.value.hint)


class Spectrum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        window = torch.hann_window(16)
        spectrum = torch.stft(x, 16, 4, window=window, return_complex=True)
        return torch.istft(spectrum, 16, 4, window=window)


def test_an_inverse_spectrum_is_exported(tmp_path: Path) -> None:
    """torch's decomposition scatters with indices of int32, which ONNX refuses."""
    export(Spectrum(), tmp_path / "model.onnx", spec("x", 2, 64))
