"""The whole form on what the exporter writes, and the opset it is written in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.defs
import onnx_ir as ir
import onnxruntime
import pytest

from optkit.craft.fusion import fuse
from optkit.craft.fusion.ort import OPSET, RULES, to_ort
from optkit.ground import graph

torch = pytest.importorskip("torch")
RNG = np.random.default_rng(31)


def test_rules_have_names_of_their_own() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)


def test_later_opsets_only_allow_more() -> None:
    """What raising the opset in place relies on: same inputs, same attributes, same defaults."""
    names = {s.name for s in onnx.defs.get_all_schemas_with_history() if s.domain == ""}
    compared = 0
    for name in sorted(names):
        try:
            old = onnx.defs.get_schema(name, 21, "")
        except onnx.defs.SchemaError:
            continue  # not yet defined
        new = onnx.defs.get_schema(name, OPSET, "")
        assert not new.deprecated or old.deprecated
        assert [(i.name, i.option) for i in old.inputs] == [(i.name, i.option) for i in new.inputs]
        for key, attribute in old.attributes.items():
            assert new.attributes[key].required == attribute.required
            assert new.attributes[key].default_value == attribute.default_value
        assert not any(new.attributes[k].required for k in new.attributes.keys() - old.attributes)
        compared += 1
    assert compared > 150


class Block(torch.nn.Module):
    """Masked attention between norms; `rms` as in Llama, else as in BERT."""

    def __init__(self, rms: bool) -> None:
        super().__init__()
        self.rms = rms
        self.first, self.second = torch.nn.LayerNorm(16), torch.nn.LayerNorm(16)
        self.gain = torch.nn.Parameter(torch.rand(16) + 0.5)
        self.query, self.key, self.value, self.out = (torch.nn.Linear(16, 16) for _ in range(4))

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        return self.gain * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.norm(x) if self.rms else self.first(x)
        q, k, v = (
            f(x).unflatten(-1, (4, 4)).transpose(1, 2) for f in (self.query, self.key, self.value)
        )
        keep = mask[:, None, None, :].bool().expand(-1, -1, x.shape[1], -1)
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        return self.second(x + self.out(o.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize(
    ("rms", "dynamic"),
    [(True, True), pytest.param(True, False, marks=pytest.mark.slow), (False, False),
     pytest.param(False, True, marks=pytest.mark.slow)],
)  # fmt: skip
def test_an_exported_block(as_ort, tmp_path: Path, rms: bool, dynamic: bool) -> None:
    torch.manual_seed(0)
    batch, rows = torch.export.Dim("batch", max=64), torch.export.Dim("rows", min=2, max=64)
    axes = {0: batch, 1: rows} if dynamic else {0: batch}
    sample = (torch.randn(2, 6, 16), torch.ones(2, 6, dtype=torch.int64))
    torch.onnx.export(
        Block(rms).eval(), sample, str(tmp_path / "block.onnx"), dynamo=True, opset_version=20,
        input_names=["x", "mask"], output_names=["y"], dynamic_shapes=(axes, axes), verbose=False,
    )  # fmt: skip
    model = graph.upgrade(graph.load(tmp_path / "block.onnx"))
    fuse(model)
    mask = (RNG.random((3, 6)) < 0.7).astype(np.int64)
    mask[1] = 0  # a sample of nothing but padding
    feed = {"x": RNG.standard_normal((3, 6, 16)).astype(np.float32), "mask": mask}
    after, log = as_ort(model, feed, rtol=1e-4, atol=1e-5)
    ops = {node.op_type for node in after.graph}
    assert {"Attention", "Sum"} <= ops and {"IsNaN", "Softmax"}.isdisjoint(ops)
    assert ("RMSNormalization" in ops) == rms
    assert log.counts["attention"] == 1
    assert after.opset_imports[""] == OPSET


class Decoder(torch.nn.Module):
    """A Llama-shaped layer: 4 heads on 2 of keys and values, rotated, behind a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = torch.nn.Parameter(torch.rand(32) + 0.5)
        sizes = {"query": 32, "key": 16, "value": 16, "out": 32, "gate": 64, "up": 64}
        self.linear = torch.nn.ModuleDict(
            {name: torch.nn.Linear(32, size, bias=False) for name, size in sizes.items()}
        )
        self.down = torch.nn.Linear(64, 32, bias=False)
        self.register_buffer("frequencies", 10.0 ** -torch.linspace(0, 1, 4))

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        return self.gain * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    def forward(
        self,
        x: torch.Tensor,
        mask: torch.Tensor,
        positions: torch.Tensor,
        past_key: torch.Tensor,
        past_value: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        angles = positions[..., None].float() * self.frequencies
        angles = torch.cat([angles, angles], -1)[:, None]

        def rotated(heads: torch.Tensor) -> torch.Tensor:
            low, high = heads[..., :4], heads[..., 4:]
            return heads * angles.cos() + torch.cat([-high, low], -1) * angles.sin()

        h = self.norm(x)
        q, k, v = (
            self.linear[name](h).unflatten(-1, (-1, 8)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        key = torch.cat([past_key, rotated(k)], -2)
        value = torch.cat([past_value, v], -2)
        rows = torch.arange(x.shape[1])[:, None] + past_key.shape[2]
        keep = (torch.arange(key.shape[2]) <= rows) & mask.bool()[:, None, None, :]
        o = torch.nn.functional.scaled_dot_product_attention(
            rotated(q), key.repeat_interleave(2, 1), value.repeat_interleave(2, 1), attn_mask=keep
        )
        x = x + self.linear["out"](o.transpose(1, 2).flatten(2))
        h = self.norm(x)
        swish = torch.nn.functional.silu(self.linear["gate"](h))
        return x + self.down(swish * self.linear["up"](h)), key, value


SHAPES = {  # batch, new rows, rows in the cache, padding on the left of the second sample
    "several rows behind a cache": (2, 3, 5, 2),
    "one row": (1, 1, 9, 0),
    "one row, padded": (3, 1, 6, 4),
    "an empty cache": (3, 7, 0, 3),
    "the first row": (1, 1, 0, 0),
}


def decoder_feed(batch: int, rows: int, past: int, padding: int) -> dict[str, np.ndarray]:
    mask = np.ones((batch, past + rows), np.int64)
    mask[1:2, :padding] = 0
    positions = np.maximum(mask.cumsum(1) - 1, 0)[:, past:]
    cache = {
        name: RNG.standard_normal((batch, 2, past, 8)).astype(np.float32)
        for name in ("past_key", "past_value")
    }
    x = RNG.standard_normal((batch, rows, 32)).astype(np.float32)
    return {"x": x, "mask": mask, "positions": positions, **cache}


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("decoder") / "decoder.onnx"
    sample = tuple(map(torch.from_numpy, decoder_feed(2, 3, 5, 2).values()))
    cache = {0: "batch", 2: "past"}
    rows = {0: "batch", 1: "rows"}
    torch.onnx.export(
        Decoder().eval(), sample, str(path), dynamo=True, opset_version=18, verbose=False,
        external_data=False,
        input_names=["x", "mask", "positions", "past_key", "past_value"],
        output_names=["y", "key", "value"],
        dynamic_shapes=(rows, {0: "batch", 1: "total"}, rows, cache, cache),
    )  # fmt: skip
    return path


@pytest.mark.parametrize("case", SHAPES)
def test_an_exported_decoder(as_ort, decoder: Path, case: str) -> None:
    model = graph.upgrade(graph.load(decoder))
    fuse(model)
    before = len(model.graph)
    after, log = as_ort(model, decoder_feed(*SHAPES[case]), rtol=1e-4, atol=1e-5)
    attention = next(node for node in after.graph if node.op_type == "Attention")
    assert [value.name for value in attention.outputs[1:]] == ["key", "value"]
    assert attention.attributes.get_int("kv_num_heads") == 2
    ops = [node.op_type for node in after.graph]
    assert ops.count("RotaryEmbedding") == 2 and ops.count("QuickGelu") == 1
    assert {"Softmax", "Concat", "Transpose", "Expand", "GatherND", "Slice"}.isdisjoint(ops)
    assert log.nodes_after == len(ops) < before / 2


@pytest.mark.parametrize(
    ("node", "operator"),
    [
        ("p = RoiAlign<output_height = 2, output_width = 2> (x, rois, picks)", "RoiAlign"),
        ("p = GlobalLpPool (x)", "GlobalLpPool"),
        ("p = MaxRoiPool<pooled_shape = [2, 2]> (x, numbered)", "MaxRoiPool"),
    ],
)
def test_operators_whose_kernels_end_keep_the_opset(as_ort, build, node: str, operator) -> None:
    """An RMS norm beside them stays as it is, since its operator came with opset 23."""
    text = f"""{node}
        s = Mul (x, x) m = ReduceMean<keepdims = 1> (s, last) e = Add (m, eps) r = Sqrt (e)
        n = Div (x, r) y = Mul (n, g)"""
    model = build(
        "float[1, 2, 4, 4] x", "float[?, ?, ?, ?] p, float[1, 2, 4, 4] y", text,
        rois=np.array([[0, 0, 3, 3]], np.float32), picks=np.array([0]),
        numbered=np.array([[0, 0, 0, 3, 3]], np.float32), last=np.array([-1]),
        eps=np.array(1e-5, np.float32), g=np.ones(4, np.float32),
    )  # fmt: skip
    after, log = as_ort(model, {"x": RNG.standard_normal((1, 2, 4, 4)).astype(np.float32)})
    assert after.opset_imports[""] == 21
    assert operator in [one.op_type for one in after.graph]
    (declined,) = [entry for entry in log.entries if entry.rule == "rms_norm"]
    assert "no kernel beyond opset 21" in declined.reason


def test_an_opset_that_is_newer_than_the_rules_stays(build) -> None:
    text = "y = TensorScatter <axis = 1> (x, update, at)"
    given = build("float[1,4,2] x, float[1,1,2] update", "float[1,4,2] y", text, {"": 24},
                  at=np.array([2]))  # fmt: skip
    to_ort(given)
    assert given.opset_imports[""] == 24
    session = onnxruntime.InferenceSession(ir.to_proto(given).SerializeToString())
    feed = {"x": np.zeros((1, 4, 2), np.float32), "update": np.ones((1, 1, 2), np.float32)}
    assert session.run(None, feed)[0][0, :, 0].tolist() == [0, 0, 1, 0]


def test_random_numbers_keep_the_opset(build) -> None:
    model = build("float[4] x", "float[4] y", "r = RandomUniformLike (x) y = Add (x, r)")
    to_ort(model)
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    assert session.run(None, {"x": np.zeros(4, np.float32)})[0].max() < 1
