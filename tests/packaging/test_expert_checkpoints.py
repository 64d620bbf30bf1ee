"""Mixtures of experts in checkpoints of the format compressed-tensors: names are those of
transformers' own files, codes those of the artifact, and transformers computes the same with them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from safetensors.numpy import load_file

import optkit
from optkit import Request
from optkit.craft.fusion import fuse
from optkit.craft.fusion.ort import to_ort
from optkit.craft.quantization.placement.expert_formats import ExpertFormat
from optkit.craft.quantization.qdq.coded_experts import quantize_experts
from optkit.craft.quantization.qdq.codes import Codes
from optkit.craft.quantization.rounding.expert_rounding import ExpertRounding
from optkit.craft.sources.hugging_face.network_layout import NetworkLayout, network_layout
from optkit.errors import UsageError
from optkit.facts.precisions import NumberFormat
from optkit.ground import graph
from optkit.ground.artifact import Artifact
from optkit.ground.recipe import Quantization
from optkit.road.packaging.decoders import parameters
from optkit.road.packaging.decoders.stored_experts import StoredExperts, stored_experts
from optkit.verbs import api
from tests import mixtures
from tests.generation import families
from tests.packaging import mixtures_of_experts, variants
from tests.packaging.checkpoints import (
    apart,
    of_floats,
    of_session,
    of_transformers,
    tensors,
    unpacked,
)


def layout_of(name: str, folder: Path) -> tuple[NetworkLayout, dict[str, np.ndarray]]:
    """The layout, and the parameters of the network under the names of its file."""
    mixtures_of_experts.network(name).save_pretrained(folder)
    return network_layout(folder, None), load_file(folder / "model.safetensors")


@pytest.mark.parametrize("name", ["qwen3", "qwen2", "mixtral", "olmoe", "deepseek", "minimax"])
def test_names_are_those_of_the_files_of_transformers(name: str, tmp_path: Path) -> None:
    layout, stored = layout_of(name, tmp_path)
    mixtures = layout.mixtures
    routers = {mixtures.renamed[each]: size for each, size in mixtures.routers.items()}
    added = {mixtures.renamed[each]: size for each, size in mixtures.corrections.items()}
    vectors = {key: (size,) for key, size in {**layout.norms, **layout.biases, **added}.items()}
    expected = {each: array.shape for each, array in stored.items()}
    assert {**layout.linear, **layout.embedded, **routers, **vectors} == expected
    network = dict(mixtures_of_experts.network(name).named_parameters())
    assert len(mixtures.stacks) == (2 if name == "deepseek" else 4)
    for stack in mixtures.stacks:
        (whole,) = (
            each.detach().numpy()
            for key, each in network.items()
            if key.rpartition(".")[0] == stack.module and tuple(each.shape) == stack.shape
        )
        for key, (expert, rows) in stack.matrices.items():
            np.testing.assert_array_equal(stored[key], whole[expert, rows])
    held = {key.rsplit(".", 2)[0] for key in mixtures.places()}
    assert held == set(mixtures.places().values())


def test_linear_layers_beside_experts_are_routers(tmp_path: Path) -> None:
    """The gate of Qwen2-MoE's shared expert has no codes in vLLM."""
    layout, _ = layout_of("qwen2", tmp_path)
    gates = {f"model.layers.{layer}.mlp.shared_expert_gate.weight" for layer in (0, 1)}
    assert gates < layout.mixtures.routers.keys() and not gates & layout.linear.keys()
    assert "model.layers.0.mlp.shared_expert.gate_proj.weight" in layout.linear


def test_experts_that_files_have_in_one_tensor_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="parameter of GptOss") as refused:
        layout_of("gpt-oss", tmp_path)
    assert "huggingface, oci and slim" in str(refused.value.hint)


def test_what_files_have_is_not_taken_for_computed(tmp_path: Path) -> None:
    """DeepSeek's correction of scores is no parameter, but a part of its files."""
    layout, stored = layout_of("deepseek", tmp_path)
    (name,) = layout.mixtures.corrections
    assert name == "model.layers.1.mlp.gate.e_score_correction_bias" and name in stored
    assert not layout.computes("model.layers.1.mlp.gate", np.zeros(8, np.float32))


FOUR = NumberFormat("int4", "block", symmetric=True, block_size=32, signed_scale=True)
EIGHT = NumberFormat("int8", "block", symmetric=True, block_size=64)


def numbers(stored: StoredExperts, expert: int, rows: slice) -> np.ndarray:
    found = stored.read(expert, rows)
    return found.numbers() if isinstance(found, Codes) else found


@settings(max_examples=20, deadline=None)
@given(
    experts=st.integers(2, 5), hidden=st.sampled_from([32, 64]), inner=st.sampled_from([32, 64]),
    bits=st.sampled_from([None, 4, 8]), fused=st.booleans(), turned=st.booleans(),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_matrices_are_the_same_in_each_form_of_a_mixture(
    tmp_path_factory: pytest.TempPathFactory, experts: int, hidden: int, inner: int,
    bits: int | None, fused: bool, turned: bool, seed: int,
) -> None:  # fmt: skip
    """Floats and codes, as an operator of ONNX Runtime and as lookups; the reference are the codes
    that GatherBlockQuantized reads, or the numbers that were given."""
    w = mixtures.weights(experts, hidden, inner, seed=seed)
    model, place = mixtures.mixture(w, mixtures.Form(turned=turned)), tmp_path_factory.mktemp("m")
    fuse(model)
    if bits is not None:
        fmt = FOUR if bits == 4 else EIGHT
        names = [str(node.name) for node in model.graph if graph.stack_of(node) is not None]
        formats = dict.fromkeys(names, ExpertFormat(fmt, 0))
        quantize_experts(model, formats, ExpertRounding(Quantization()))
    graph.save(model, place / "m.onnx")
    model = graph.load(place / "m.onnx")
    expected = [w.up, w.down] if bits is None else looked_up(place / "m.onnx")
    if fused:
        assert to_ort(model).counts["experts"] == 1
        graph.save(model, place / "fused.onnx")
        model = graph.load(place / "fused.onnx")
    found = [each for node in model.graph for each in stored_experts(node)]
    assert [each.shape for each in found] == [w.up.shape, w.down.shape]
    assert all(each.bits == bits for each in found)
    for stored, whole in zip(found, expected, strict=True):
        rows = slice(0, whole.shape[1] // 2), slice(whole.shape[1] // 2, whole.shape[1])
        for expert, part in ((0, rows[0]), (experts - 1, rows[1])):
            np.testing.assert_array_equal(numbers(stored, expert, part), whole[expert, part])


def looked_up(file: Path) -> list[np.ndarray]:
    """The numbers of both stacks, as ContribOperators.md describes GatherBlockQuantized."""
    model = onnx.load(file).graph
    arrays = {one.name: numpy_helper.to_array(one) for one in model.initializer}
    found = []
    for node in model.node:
        if node.op_type == "GatherBlockQuantized":
            said = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
            codes, scales = arrays[node.input[0]], arrays[node.input[2]]
            if said["bits"] == 4:
                codes = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:2], -1)
            centred = codes.astype(np.float32) - (1 << said["bits"] - 1)
            found.append(centred * np.repeat(scales, said["block_size"], 2))
    return found


def test_experts_of_other_sizes_are_refused(tmp_path: Path) -> None:
    layout, _ = layout_of("mixtral", tmp_path)
    w = mixtures.weights(4, 64, 64)
    model = mixtures.mixture(w)
    for node in model.graph:
        node.name = f"model.layers.0.mlp.experts/{node.name}"
    with pytest.raises(UsageError, match=r"experts of \[4, 128, 64\] are in the graph"):
        parameters(model, layout)


@dataclass(frozen=True)
class Case:
    """near: the largest difference of the logits from those of the session whose products in 4 bits
    do not round activations."""

    model: str
    target: str
    precision: str
    near: float
    settings: tuple[str, ...] = ()

    @property
    def block(self) -> str:
        return "block_sparse_moe" if self.model == "mixtral" else "mlp"

    @property
    def layers(self) -> tuple[int, ...]:
        """Those with experts."""
        return (1,) if self.model == "deepseek" else (0, 1)

    @property
    def names(self) -> tuple[str, ...]:
        """Of gate, up and down in files."""
        said = {"mixtral": ("w1", "w3", "w2")}
        return said.get(self.model, ("gate_proj", "up_proj", "down_proj"))

    def __str__(self) -> str:
        return f"{self.model} {self.target} {self.precision}"


PLAIN = ("quantization.smooth=off", "quantization.bias_correction=false")
CASES = [
    Case("qwen3", "cpu", "int4", 1e-5),
    Case("mixtral", "cpu", "int8-weight-only", 0.2),
    Case("qwen2", "cpu", "int8", 0.2, PLAIN),
    Case("deepseek", "cpu", "int4", 1e-5),
    Case("olmoe", "l4", "int4", 1e-2),
]


@dataclass(frozen=True)
class Built:
    case: Case
    artifact: Artifact
    folder: Path


def build(case: Case, folder: Path, *more: str) -> Artifact:
    mixtures_of_experts.write(case.model, folder / case.model)
    lines = [json.dumps({"text": text}) for text in families.PROMPTS * 8]
    (folder / "texts.jsonl").write_text("\n".join(lines))
    return optkit.build(
        Request(str(folder / case.model), overrides=(*case.settings, *more),
                calibration=str(folder / "texts.jsonl")),
        target=case.target, precision=case.precision, out=folder / "artifacts",
        workspace=optkit.Workspace(folder / "cache"),
    )  # fmt: skip


def package(artifact: Artifact) -> Path:
    out = artifact.path.parent / "packages"
    return Path(api.package(artifact.path, format="compressed-tensors", out=out)["folder"])


@pytest.fixture(scope="module", params=CASES, ids=str)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    artifact = build(request.param, tmp_path_factory.mktemp(request.param.model))
    return Built(request.param, artifact, package(artifact))


@pytest.mark.slow
def test_codes_of_experts_are_those_of_the_operator(built: Built) -> None:
    """Read from the ONNX file by the description of QMoE: rows of gate and up alternate."""
    stored, model, compared = tensors(built.folder), onnx.load(built.artifact.model_path).graph, 0
    arrays = {one.name: numpy_helper.to_array(one) for one in model.initializer}
    for node in model.node:
        if node.op_type != "QMoE":
            continue
        bits = next(one.i for one in node.attribute if one.name == "expert_weight_bits")
        up, up_scales, down, down_scales = (arrays[node.input[at]] for at in (2, 3, 5, 6))
        for expert in range(len(up)):
            parts = (
                (up[expert, 0::2], up_scales[expert, 0::2]),
                (up[expert, 1::2], up_scales[expert, 1::2]),
                (down[expert], down_scales[expert]),
            )
            for name, (packed, scales) in zip(built.case.names, parts, strict=True):
                nibbles = np.stack([packed & 15, packed >> 4], -1).reshape(len(packed), -1)
                codes = (nibbles if bits == 4 else packed).astype(np.float32) - (1 << bits - 1)
                layer = node.name.split(".")[2]
                place = f"model.layers.{layer}.{built.case.block}.experts.{expert}.{name}."
                held = {
                    key.removeprefix(place): each
                    for key, each in stored.items()
                    if key.startswith(place)
                }
                np.testing.assert_array_equal(unpacked(held, codes.shape), codes, err_msg=place)
                np.testing.assert_array_equal(held["weight_scale"].numpy(), scales)
                compared += 1
    experts = len([key for key in stored if ".experts." in key and key.endswith(".weight_packed")])
    wanted = len(built.case.layers) * 3 * (4 if built.case.model == "mixtral" else 8)
    assert compared == experts == (wanted if on_cpu(built) else 0)


@pytest.mark.slow
def test_transformers_computes_what_the_artifact_does(built: Built, tmp_path: Path) -> None:
    """transformers 5.23 does not load float experts beside integers, but decompressed ones."""
    ids = np.random.default_rng(0).integers(3, 320, (2, 40))
    theirs = of_floats(built.folder, tmp_path, ids)
    if on_cpu(built):
        loaded = of_transformers(built.folder, ids)
        rounds_inputs = built.case.precision == "int8"
        assert apart(loaded, theirs) < (0.1 if rounds_inputs else 1e-5)
        theirs = loaded
    near = apart(theirs, of_session(built.artifact, ids))
    exact = variants.with_float_products(built.artifact, built.artifact.path.parent)
    nearest = apart(theirs, of_session(exact, ids))
    print(f"{built.case}: logits {near:.1e} apart, {nearest:.1e} with products in floats")
    assert nearest < built.case.near and near < 0.5  # a router may choose another expert
    assert np.isfinite(theirs).all() and theirs.std() > 0.1


@pytest.mark.slow
def test_the_configuration_names_experts_together_and_leaves_routers_out(built: Built) -> None:
    config = json.loads((built.folder / "config.json").read_text())["quantization_config"]
    stored = tensors(built.folder)
    block = built.case.block
    for layer in built.case.layers:
        place = f"model.layers.{layer}.{block}"
        assert f"{place}.gate" in config["ignore"] and f"{place}.gate.weight" in stored
    targets = [each for group in config["config_groups"].values() for each in group["targets"]]
    patterns = {each for each in (*targets, *config["ignore"]) if each.startswith("re:")}
    layers = built.case.layers
    expected = {f"re:model\\.layers\\.{layer}\\.{block}\\.experts[.].*" for layer in layers}
    one_scheme = len(config["config_groups"]) == 1 and on_cpu(built)
    assert patterns == (set() if one_scheme else expected)


def on_cpu(built: Built) -> bool:
    return built.case.target == "cpu"


@pytest.mark.slow
def test_experts_with_one_product_in_floats_are_refused(tmp_path: Path) -> None:
    nodes = 'quantization.nodes={"*experts/MatMul_1": fp32}'
    artifact = build(Case("qwen3", "cpu", "int4", 0), tmp_path, nodes)
    with pytest.raises(UsageError, match="readers take one for all of them") as refused:
        package(artifact)
    assert '"*experts*": int4' in str(refused.value.hint)
    assert not list((tmp_path / "artifacts").glob("packages/*"))
