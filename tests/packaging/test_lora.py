"""Adapters that are switched at run time: beside float products, codes, and several products in
one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file, save_file

import optkit
from optkit.craft.quantization.qdq import weight_reader
from optkit.craft.quantization.qdq.codes import Codes
from optkit.facts.errors import InputRefused, OptkitError, UnknownName, UsageError
from optkit.facts.tensors import TensorInfo
from optkit.ground import graph
from optkit.ground.artifact import Artifact, EngineFile
from optkit.ground.runtimes import Level
from optkit.road.packaging.lora import peft_folder
from optkit.verbs import api
from tests.conftest import Optkit
from tests.packaging import nets

K, N = 32, 16
FIRST, SECOND, HEAD = "net.first", "net.second", "head"
INFOS = (TensorInfo("x", "float32", ("batch", "tokens", K)),), (
    TensorInfo("y", "float32", ("batch", "tokens", 5)),
)  # fmt: skip
X = np.random.default_rng(1).normal(size=(2, 3, K)).astype(np.float32)
LEVELS: tuple[Level, ...] = ("all", "extended", "basic", "none")


def model() -> bytes:
    """y = head(relu(first(x)) + second(x)). One node with codes of 4 bits computes `first` and
    `second`; `head` is a float product, whose result is the output."""
    rng = np.random.default_rng(0)
    constants = [
        numpy_helper.from_array(rng.integers(0, 256, (2 * N, 2, 8)).astype(np.uint8), "codes"),
        numpy_helper.from_array(rng.uniform(0.01, 0.05, 2 * N * 2).astype(np.float32), "scales"),
        numpy_helper.from_array(np.array([N, N]), "sizes"),
        numpy_helper.from_array(rng.normal(size=(N, 5)).astype(np.float32), "head.weight"),
    ]
    nodes = [
        helper.make_node(
            "MatMulNBits", ["x", "codes", "scales"], ["both"], f"{FIRST}/MatMul + {SECOND}/MatMul",
            domain="com.microsoft", K=K, N=2 * N, bits=4, block_size=16,
        ),
        helper.make_node("Split", ["both", "sizes"], ["a", "b"], "split", axis=-1),
        helper.make_node("Relu", ["a"], ["positive"], "relu"),
        helper.make_node("Add", ["positive", "b"], ["sum"], "add"),
        helper.make_node("MatMul", ["sum", "head.weight"], ["y"], f"{HEAD}/MatMul"),
    ]  # fmt: skip
    shapes = {"both": 2 * N, "a": N, "b": N, "positive": N, "sum": N}
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "tokens", size])
        for name, size in shapes.items()
    ]
    (x, y) = (helper.make_tensor_value_info(i.name, 1, i.shape) for (i,) in INFOS)
    body = helper.make_graph(nodes, "g", [x], [y], constants, value_info=infos)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(body, opset_imports=opsets, ir_version=10).SerializeToString())


def base(out: Path, **more: Any) -> Artifact:
    given: dict[str, Any] = {
        "content": {"model.onnx": model()}, "engine": EngineFile("onnxruntime", "model.onnx"),
        "inputs": INFOS[0], "outputs": INFOS[1], **more,
    }  # fmt: skip
    return nets.artifact(out, "cpu", "int4", **given)


def adapter(
    folder: Path, layers: Mapping[str, tuple[int, int, int]], seed: int = 0, **config: Any
) -> dict[str, np.ndarray]:
    """Write an adapter as PEFT does. layers: module → (K, N, rank). Returns up · down, unscaled."""
    rng = np.random.default_rng(seed)
    held, products = {}, {}
    for module, (k, n, rank) in layers.items():
        down, up = (rng.normal(size=size).astype(np.float32) / 4 for size in ((rank, k), (n, rank)))
        held |= {f"base_model.model.{module}.lora_{side}.weight": matrix
                 for side, matrix in (("A", down), ("B", up))}  # fmt: skip
        products[module] = up @ down
    folder.mkdir(parents=True)
    save_file(held, folder / "adapter_model.safetensors")
    given = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", **config}
    (folder / "adapter_config.json").write_text(json.dumps(given))
    return products


def packaged(artifact: Artifact, out: Path, **folders: Path) -> Artifact:
    document = api.package(artifact.path, format="lora", out=out, adapters=folders)
    return api.load(Path(document["folder"]) / artifact.name, trusted=True)


def expected(artifact: Artifact, products: Mapping[str, np.ndarray]) -> np.ndarray:
    """The output with these matrices added to the weights, in float64."""
    held = {}
    for node in graph.load(artifact.model_path).graph:
        if node.op_type in ("MatMulNBits", "MatMul"):
            matrix = weight_reader.matrix(node)
            held[node.name] = matrix.numbers() if isinstance(matrix, Codes) else matrix
    both, head = held[f"{FIRST}/MatMul + {SECOND}/MatMul"], held[f"{HEAD}/MatMul"]
    parts = {FIRST: both[:N], SECOND: both[N:], HEAD: head}
    first, second, head = (
        (parts[name] + products.get(name, 0)).astype(np.float64) for name in (FIRST, SECOND, HEAD)
    )
    total: np.ndarray = (np.maximum(X @ first.T, 0) + X @ second.T) @ head.T
    return total


def outputs(artifact: Artifact, **options: Any) -> np.ndarray:
    with artifact.session(threads=1, **options) as session:
        return session.run({"x": X})["y"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lora")


@pytest.fixture(scope="module")
def products(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    return {
        "one": adapter(folder / "one", {FIRST: (K, N, 4), HEAD: (N, 5, 4)}),
        "two": adapter(folder / "two", {SECOND: (K, N, 2), HEAD: (N, 5, 4)}, seed=1),
    }


@pytest.fixture(scope="module")
def switched(folder: Path, products: Mapping[str, object]) -> Artifact:
    given = {name: folder / name for name in products}
    return packaged(base(folder / "artifacts"), folder / "packages", **given)


@pytest.mark.parametrize("level", LEVELS)
def test_each_adapter_computes_what_its_sum_with_the_weights_does(
    level: Level, switched: Artifact, folder: Path, products: Mapping[str, dict[str, np.ndarray]]
) -> None:
    whole = Artifact.load(folder / "artifacts" / "net-cpu-int4")
    scales = {"one": {FIRST: 2, HEAD: 2}, "two": {SECOND: 4, HEAD: 2}}  # alpha 8 / rank
    assert switched.adapters == ("one", "two")
    for name, layers in products.items():
        scaled = {module: scales[name][module] * matrix for module, matrix in layers.items()}
        found = outputs(switched, adapter=name, level=level)
        np.testing.assert_allclose(found, expected(whole, scaled), rtol=1e-4, atol=1e-4)
        assert np.abs(found - outputs(switched, level=level)).max() > 1


@pytest.mark.parametrize("level", LEVELS)
def test_without_an_adapter_it_computes_what_was_built(
    level: Level, switched: Artifact, folder: Path
) -> None:
    whole = Artifact.load(folder / "artifacts" / "net-cpu-int4")
    np.testing.assert_array_equal(outputs(switched, level=level), outputs(whole, level=level))


def test_the_inputs_stay_those_of_the_artifact(switched: Artifact) -> None:
    model = graph.load(switched.model_path)
    assert graph.inputs(model) == INFOS[0] and graph.outputs(model) == INFOS[1]
    assert {value.name for value in model.graph.inputs} - {"x"} == {
        f"{module}.lora_{side}" for module in (FIRST, SECOND, HEAD) for side in "AB"
    }


def test_a_loop_uses_the_adapter(switched: Artifact) -> None:
    with switched.session(threads=1, adapter="two") as session:
        np.testing.assert_array_equal(
            session.loop({}, {}).run({"x": X})["y"], session.run({"x": X})["y"]
        )


def test_a_package_of_another_user_runs_its_adapter(switched: Artifact) -> None:
    """The graph and the adapter are tried in a child first."""
    foreign = Artifact.load(switched.path)
    np.testing.assert_array_equal(outputs(foreign, adapter="one"), outputs(switched, adapter="one"))


def test_a_damaged_adapter_is_found(switched: Artifact, folder: Path, tmp_path: Path) -> None:
    again = packaged(base(tmp_path), tmp_path / "packages", one=folder / "one")
    file = again.path / "adapters" / "one.onnx_adapter"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(OptkitError, match=r"adapters/one\.onnx_adapter was changed"):
        outputs(again, adapter="one")


def test_a_package_takes_further_adapters(switched: Artifact, folder: Path, tmp_path: Path) -> None:
    one = packaged(base(tmp_path), tmp_path / "packages", one=folder / "one")
    before = {name: outputs(one, adapter=name) for name in one.adapters}
    both = packaged(one, tmp_path / "packages", two=folder / "two")
    assert both.adapters == ("one", "two") and both.digest == switched.digest
    np.testing.assert_array_equal(outputs(both, adapter="one"), before["one"])
    np.testing.assert_allclose(
        outputs(both, adapter="two"), outputs(switched, adapter="two"), rtol=1e-5, atol=1e-5
    )


def test_an_unknown_adapter_is_named(switched: Artifact, folder: Path) -> None:
    with pytest.raises(UnknownName, match="unknown adapter 'won'") as told:
        switched.session(adapter="won")
    assert "one" in str(told.value.hint)
    with pytest.raises(UsageError, match="it has no adapters") as none:
        Artifact.load(folder / "artifacts" / "net-cpu-int4").session(adapter="one")
    assert "--format lora" in str(none.value.hint)


def test_the_snippet_of_the_page_opens_a_session_with_an_adapter(
    folder: Path,
    products: dict[str, dict[str, np.ndarray]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = Path(__file__).parents[2] / "docs/how_to/package_lora.md"
    (snippet,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    switched = packaged(base(tmp_path), tmp_path, sql=folder / "one", chat=folder / "two")
    named = "packages/my-llama-lora/my-llama-cpu-int4"
    assert named in snippet
    found: dict[str, Any] = {"optkit": optkit}
    exec(compile(snippet.replace(named, str(switched.path)), page.name, "exec"), found)
    assert "sql" in capsys.readouterr().out
    np.testing.assert_array_equal(
        found["session"].run({"x": X})["y"], outputs(switched, adapter="sql")
    )


def test_two_adapters_of_one_name_are_refused(
    optkit_here: Optkit, folder: Path, tmp_path: Path
) -> None:
    given = [f"--adapter=x={folder / name}" for name in ("one", "two")]
    told = optkit_here("package", base(tmp_path).path, "--format", "lora", *given)
    assert told.code == 2
    told.told("two have the same name, x")


def test_a_format_without_adapters_says_that_they_are_left_out(
    switched: Artifact, tmp_path: Path
) -> None:
    told = {
        form: str(api.package(switched.path, format=form, out=tmp_path)["notes"])
        for form in ("triton", "slim", "oci")
    }
    assert "adapters are not in the package" in told["triton"] and "one, two" in told["triton"]
    assert "not in the package" not in told["slim"] + told["oci"]


def test_what_is_no_folder_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match="no such folder"):
        peft_folder.read(tmp_path / "nope", tmp_path / "scratch")
    with pytest.raises(InputRefused, match="it is no folder"):
        peft_folder.read(folder / "one" / "adapter_config.json", tmp_path / "scratch")


def test_the_adapter_of_another_graph_is_refused(switched: Artifact, tmp_path: Path) -> None:
    from optkit.craft.backends import ort_adapter
    from optkit.ground.runtimes import SessionOptions, simulator

    file = tmp_path / "other.onnx_adapter"
    for parameters in ({"other": X[0]}, {f"{HEAD}.lora_A": np.ones((N + 1, 2), np.float32)}):
        ort_adapter.write(file, parameters)
        with pytest.raises(InputRefused, match=f"no place for {next(iter(parameters))}"):
            simulator().session(switched.model_path, SessionOptions(1, adapter=file))
    file.write_bytes(b"no adapter")
    with pytest.raises(InputRefused, match="not an adapter"):
        simulator().session(switched.model_path, SessionOptions(1, adapter=file))


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({}, 2.0),
        ({"lora_alpha": 6}, 1.5),
        ({"use_rslora": True}, 4.0),
        ({"alpha_pattern": {"second": 1}}, 2.0),
        ({"alpha_pattern": {"fir.t": 1}}, 0.25),
        ({"alpha_pattern": {"irst": 1}}, 2.0),
        ({"alpha_pattern": {r"net\.first": 3, "first": 1}}, 0.75),
    ],
)
def test_alpha_and_rank_scale_an_adapter(
    config: dict[str, object], scale: float, tmp_path: Path
) -> None:
    (product,) = adapter(tmp_path / "one", {FIRST: (K, N, 4)}, **config).values()
    down, up = peft_folder.read(tmp_path / "one", tmp_path / "scratch").layers[FIRST]
    np.testing.assert_allclose(up @ down, scale * product, rtol=1e-5, atol=1e-6)


def test_an_adapter_may_be_in_bfloat16(tmp_path: Path) -> None:
    adapter(tmp_path / "one", {FIRST: (K, N, 4)})
    file = tmp_path / "one" / "adapter_model.safetensors"
    held = {name: np.round(4 * array) / 4 for name, array in load_file(file).items()}
    save_file({name: array.astype("bfloat16") for name, array in held.items()}, file)
    down, up = peft_folder.read(tmp_path / "one", tmp_path / "scratch").layers[FIRST]
    np.testing.assert_array_equal(down, held[f"base_model.model.{FIRST}.lora_A.weight"])
    np.testing.assert_array_equal(up, 2 * held[f"base_model.model.{FIRST}.lora_B.weight"])


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"peft_type": "IA3"}, "kind IA3; only LoRA"),
        ({"use_dora": True}, "use_dora is set"),
        ({"bias": "all"}, "bias is set"),
        ({"modules_to_save": ["head"]}, "modules_to_save is set"),
        ({"init_lora_weights": "pissa"}, "began with 'pissa'"),
        ({"lora_alpha": None}, "lora_alpha of net.first is None"),
    ],
)
def test_other_adapters_are_refused(config: dict[str, object], told: str, tmp_path: Path) -> None:
    adapter(tmp_path / "one", {FIRST: (K, N, 4)}, **config)
    with pytest.raises(InputRefused, match=told):
        peft_folder.read(tmp_path / "one", tmp_path / "scratch")


@pytest.mark.parametrize(
    ("config", "merged"), [({"use_dora": True}, True), ({"alora_invocation_tokens": [1, 2]}, False)]
)
def test_only_what_weights_can_hold_is_to_be_merged(
    config: dict[str, object], merged: bool, tmp_path: Path
) -> None:
    adapter(tmp_path / "one", {FIRST: (K, N, 4)}, **config)
    with pytest.raises(InputRefused) as told:
        peft_folder.read(tmp_path / "one", tmp_path / "scratch")
    assert ("merge it" in str(told.value.hint)) == merged


@pytest.mark.parametrize(
    ("key", "shape", "told"),
    [
        ("base_model.model.embed.lora_embedding_A", (4, K), "no matrix of LoRA"),
        (f"base_model.model.{FIRST}.lora_A.weight", (4, K), "one of the two matrices alone"),
        (f"base_model.model.{FIRST}.lora_A.weight", (4, K, 1), "no matrix of finite numbers"),
    ],
)
def test_other_weights_are_refused(
    key: str, shape: tuple[int, ...], told: str, tmp_path: Path
) -> None:
    adapter(tmp_path / "one", {FIRST: (K, N, 4)})
    save_file({key: np.ones(shape, np.float32)}, tmp_path / "one" / "adapter_model.safetensors")
    with pytest.raises(InputRefused, match=told):
        peft_folder.read(tmp_path / "one", tmp_path / "scratch")


@pytest.mark.parametrize(
    ("layers", "told"),
    [
        ({"net.third": (K, N, 4)}, r"adapter 'one'.*no product of net\.third"),
        ({FIRST: (K, N + 1, 4)}, r"net\.first maps 32 numbers to 17 .* 32 to 16 in the graph"),
    ],
)
def test_an_adapter_of_another_model_is_refused(
    layers: dict[str, tuple[int, int, int]], told: str, tmp_path: Path
) -> None:
    adapter(tmp_path / "one", layers)
    with pytest.raises(InputRefused, match=told):
        packaged(base(tmp_path / "a"), tmp_path / "packages", one=tmp_path / "one")
    assert not (tmp_path / "packages").exists()


def test_what_takes_no_adapters_says_what_to_do(folder: Path, tmp_path: Path) -> None:
    artifact = base(tmp_path)
    with pytest.raises(UsageError, match="none is given"):
        packaged(artifact, tmp_path / "packages")
    with pytest.raises(UsageError, match="the format slim takes no adapters"):
        api.package(artifact.path, format="slim", adapters={"one": folder / "one"})
    with pytest.raises(UsageError, match="cannot be the name of an adapter"):
        packaged(artifact, tmp_path / "packages", **{"../one": folder / "one"})
    engine = nets.with_engine(tmp_path, "tensorrt", "10.13")
    with pytest.raises(UsageError, match="an engine for l4 takes no adapters"):
        packaged(engine, tmp_path / "packages", one=folder / "one")
    report = json.loads(nets.report((), None))
    report["preparation"] = [{"value": "x", "outcome": "folded", "nodes": [f"{FIRST}/MatMul"]}]
    content = {"model.onnx": model(), "report.json": json.dumps(report).encode()}
    with pytest.raises(UsageError, match="rescaled the value 'x'") as told:
        packaged(base(tmp_path, content=content), tmp_path / "packages", one=folder / "one")
    assert "smooth: off" in str(told.value.hint)
