"""Graphs as work, prices, advice and the plot, on small figures."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx_ir as ir
import pytest

import optkit
from optkit import DecoderSizes
from optkit.craft.prediction import advice, cost, graph_work, memory, plans
from optkit.craft.prediction.decoder_work import DecoderShape
from optkit.craft.prediction.planned_model import Decoding, OneCallModel
from optkit.craft.prediction.work import total
from optkit.facts.documents.plan import Plan, PlannedLatency, PlanRow
from optkit.facts.errors import Impossible, InputRefused, UnknownName, UsageError
from optkit.facts.node_cost import NodeCost, Recurrence
from optkit.facts.precisions import precision
from optkit.ground.devices import target
from optkit.ground.graph import costs, peak_live_bytes
from optkit.show.report.drawing.front import front
from optkit.show.report.drawing.front import name as call_name
from optkit.show.report.plan_page import merged, to_html, to_svg


def test_a_graph_becomes_the_kernels_that_compilers_make() -> None:
    """A convolution with its ReLU, attention without its scores, a product, a norm."""
    found = {
        "conv": NodeCost("Conv", 1000, 400, 4000, 8000, columns=8, bits=32),
        "relu": NodeCost("Relu", 0, 0, 8000, 8000, bits=32),
        "norm": NodeCost("LayerNormalization", 0, 16, 8000, 8000, bits=32),
        "qk": NodeCost("MatMul", 500, 0, 1000, 90000, columns=100, bits=32),
        "softmax": NodeCost("Softmax", 0, 0, 90000, 90000, bits=32),
        "pv": NodeCost("MatMul", 500, 0, 90500, 1000, columns=10, bits=32),
        "fc": NodeCost("Gemm", 2000, 4000, 1000, 4000, columns=10, bits=32),
        "sum": NodeCost("Add", 0, 0, 8000, 4000, bits=32),
        "bias": NodeCost("Add", 0, 40, 4000, 4000, bits=32),
        "unknown": NodeCost("MatMul", None, 400, None, None, columns=None, bits=32),
    }
    works = graph_work.of_graph(found, precision("int8"), target("l4"))
    kinds = [(work.kind, work.dtype, work.moved) for work in works]
    assert kinds == [
        ("conv", "int8", 1000 + 2000),  # INT8 to INT8
        ("elementwise", "fp16", 8000),
        ("attention", "fp16", 500), ("attention", "fp16", 500),
        ("gemm", "int8", 250 + 2000),  # INT8 to FP16
        ("elementwise", "fp16", 2000),  # what the sum reads beside
    ]  # fmt: skip
    assert total(works).operations == 2 * 4000 and total(works).kernels == 4
    assert total(works).weight_bytes == 100 + 1000
    assert graph_work.uncounted(found) == ["MatMul"]
    kept = graph_work.of_graph(found, precision("int4"), target("l4"))
    assert [work.dtype for work in kept] == ["fp16"] * 6
    assert kept[4].unpacked == 1000 and kept[0].unpacked == 0  # convolutions stay as they are


def test_a_graph_of_small_operators_alone_is_one_kernel() -> None:
    found = {
        "sum": NodeCost("Add", 0, 16, 16, 16, bits=32),
        "no_size": NodeCost("Relu", 0, 0, None, None, bits=32),
    }
    works = graph_work.of_graph(found, precision("fp32"), target("l4"))
    assert (total(works).kernels, total(works).moved) == (1, 32)
    assert total(graph_work.of_graph({}, precision("fp32"), target("l4"))).kernels == 1


def test_a_recurrent_cell_runs_step_by_step_in_the_carrier() -> None:
    cell = NodeCost("LSTM", 0, 4000, 800, 1600, bits=32, recurrence=Recurrence(10, 5000))
    works = graph_work.of_graph({"cell": cell}, precision("int8"), target("l4"))
    sums = total(works)
    assert [work.dtype for work in works] == ["fp16"] and sums.kernels == 2 * 10
    assert sums.operations == pytest.approx(2 * 5000)
    assert (sums.weight_bytes, sums.moved) == pytest.approx((2000, 1200))
    assert graph_work.uncounted({"cell": cell}) == ["LSTM"]  # no measurement has confirmed it


def test_live_bytes_are_a_peak_and_not_a_sum() -> None:
    """x → a → b → y of 4 floats each: input and output live on, of a and b both, then b alone."""
    text = """
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[batch, 4] x) => (float[batch, 4] y) {
            a = Relu(x) b = Neg(a) c = Abs(b) y = Exp(c)
        }
    """
    import onnx.parser

    model = ir.from_proto(onnx.parser.parse_model(text))
    for node in model.graph:
        node.name = node.outputs[0].name
    assert peak_live_bytes(model, {"batch": 2}) == 4 * 2 * 4 * 4
    assert sum(c.out_bytes or 0 for c in costs(model, {"batch": 2}).values()) == 4 * 32


@pytest.mark.parametrize(("reader", "scores"), [("", 0), ("z = Neg(p)", 2 * 64)])
def test_scores_of_attention_are_never_written(reader: str, scores: int) -> None:
    """Of 8 queries and keys of 2 numbers: all three inputs and the output are 16 numbers each, and
    8 × 8 scores are written twice unless the one kernel keeps them; here a second node reads."""
    text = f"""
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[8, 2] q, float[2, 8] k, float[8, 2] v) => (float[8, 2] y) {{
            s = MatMul(q, k) t = Add(s, s) p = Softmax(t) {reader} y = MatMul(p, v)
        }}
    """
    import onnx.parser

    found = peak_live_bytes(ir.from_proto(onnx.parser.parse_model(text)), {})
    assert found >= 4 * 4 * 16 + 4 * scores if scores else found == 4 * 4 * 16


def test_a_product_knows_its_columns() -> None:
    x = ir.val("x", ir.DataType.FLOAT, ["batch", 16])
    weight = ir.val("w", ir.DataType.FLOAT, [16, 5])
    weight.const_value = ir.tensor(np.zeros((16, 5), np.float32), name="w")
    node = ir.node("MatMul", [x, weight], name="m")
    node.outputs[0].name = "y"
    graph = ir.Graph([x], [node.outputs[0]], nodes=[node], initializers=[weight],
                     opset_imports={"": 21}, name="g")  # fmt: skip
    found = costs(ir.Model(graph, ir_version=10), {"batch": 3})["m"]
    assert (found.macs, found.columns, found.bits) == (3 * 16 * 5, 5, 32)


def test_cost_by_hand() -> None:
    """L4 at 0.8048 an hour and 12,881.7 images a second: 0.0174 dollars a million (facts)."""
    l4 = target("l4")
    price = cost.price_of(l4, {})
    assert price is not None and (price.usd_per_hour, price.as_of) == (0.8048, "2026-08-17")
    assert cost.per_million(price.usd_per_hour, 12881.7) == pytest.approx(0.01735, rel=1e-3)
    assert cost.energy_per_million(l4, 72) == pytest.approx(1e6 / 3.6e6)  # a joule each
    assert cost.price_of(target("gb200"), {}) is None


def test_a_price_file_overrides(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(
        "l4: [{usd_per_hour: 0.9, provider: a, as_of: 2026-11-01},"
        " {usd_per_hour: 0.5, provider: b, as_of: 2026-11-02}]\n"
    )
    found = cost.price_of(target("l4"), cost.read_prices(file).rents)
    assert found is not None
    assert (found.usd_per_hour, found.provider, found.as_of) == (0.5, "b", "2026-11-02")


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("l44: {usd_per_hour: 1, provider: a, as_of: 2026-11-01}", UnknownName, "l44"),
        ("l4: {usd_per_hour: 1, provider: a}", UsageError, "lacks as_of"),
        (
            "l4: {usd_per_hour: one, provider: a, as_of: 2026-11-01}",
            UsageError,
            "usd_per_hour: 'one' is no number",
        ),
        ("l4: {usd_per_hour: -1, provider: a, as_of: 2026-11-01}", UsageError, "not a price"),
        ("l4: {usd_per_hour: 1, provider: a, as_of: soon}", UsageError, "soon"),
        ("l4: {provider: a, as_of: 2026-11-01}", UsageError, "it has no price"),
        ("l4: {purchase_usd: 1, watts: 0, provider: a, as_of: 2026-11-01}", UsageError, "watts"),
        ("l4: {usd: 1, provider: a, as_of: 2026-11-01}", UsageError, "unknown key 'usd'"),
        ("l4: []", UsageError, "no price"),
        ("", UsageError, "no target"),
        ("{", InputRefused, "no price file"),
    ],
)
def test_a_malformed_price_file_is_reported(
    tmp_path: Path, text: str, error: type[Exception], said: str
) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(text)
    with pytest.raises(error, match=re.escape(said)) as caught:
        cost.read_prices(file)
    assert "prices.yaml" in str(caught.value)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return optkit.plan(
        target=("l4", "h100"), precision=("fp16", "int4"), batches=(1, 8), latency_ms=50.0,
        decoder=DecoderSizes(8e9, 32, 8, 128, hidden=4096, vocabulary=128256),
    )  # fmt: skip


def test_figures_of_a_plan_agree_with_each_other(plan: Plan) -> None:
    for row in plan["results"]:
        for one in row["latency"]:
            assert one["evidence"] == "predicted"
            low, high = one["band"]
            assert low < one["p50_ms"] < high
            assert one["throughput_band"][0] < one["throughput"] < one["throughput_band"][1]
            hourly = row["price"]["usd_per_hour"] * row["devices"]
            assert one["usd_per_million"] == pytest.approx(hourly / 3600 / one["throughput"] * 1e6)
            assert sum(one["parts_ms"].values()) >= one["p50_ms"] * (1 - 1e-9)
        batches = [one["p50_ms"] for one in row["latency"]]
        assert batches == sorted(batches)
        items = [size for name, size in row["memory"].items() if name != "total"]
        assert row["memory"]["total"] == pytest.approx(sum(items), abs=5)
    best = plan["cheapest"]
    dollars = [
        one["usd_per_million"] for row in plan["results"] for one in row["latency"]
        if one["p50_ms"] <= 50
    ]  # fmt: skip
    assert best["usd_per_million"] == min(dollars) and best["p50_ms"] <= 50


def test_a_bridge_joins_two_boards_and_what_is_recalled_is_marked() -> None:
    """70 GB in FP8 fit on 1 H100, 140 GB in FP16 on 2, 280 GB in FP32 on 4."""
    found = optkit.plan(
        target=("h100-pcie", "h100-sxm", "l4"), precision=("fp8", "fp16", "fp32"), batches=(1,),
        decoder=DecoderSizes(70e9, 80, 8, 128),
    )["results"]  # fmt: skip
    rows = {(row["target"], row["devices"]): row for row in found}
    recalled = {"nvlink_gbs", "nvlink_gpus"}
    for (name, devices), row in rows.items():
        assert set(row["unverified"]) & recalled == (
            set() if devices == 1 or name == "h100-sxm" else recalled - {
                "nvlink_gpus" if name == "l4" else ""  # it has none, which is recalled
            }
        )  # fmt: skip
    wide = "wide interval of the time: few measured "
    told = {
        key: [note for note in row["notes"] if not note.startswith(wide)]
        for key, row in rows.items()
    }
    assert told[("h100-pcie", 1)] == []
    assert [note.removeprefix(wide) for note in rows[("h100-pcie", 1)]["notes"]] == [
        "prefill (2 of a publication and a GPU)",
        "serving (3 of a publication and a GPU)",
    ]
    assert told[("h100-pcie", 2)] == told[("h100-sxm", 4)] == ["tensor parallel over NVLink"]
    assert "over PCIe (NVLink joins 2 of these" in told[("h100-pcie", 4)][0]
    assert "over PCIe, which" in told[("l4", 8)][0]


def test_devices_that_nothing_is_built_for_are_planned_by_their_peaks() -> None:
    """Decoding 8.03e9 weights in FP16 reads at least 15.0 GB (without the embedding): 2.8 ms at
    5.3 TB/s, 37.5 ms at 400 GB/s; an M3 Max with 40 cores reached 22.4 tokens/s (llama.cpp)."""
    sizes = DecoderSizes(8.03e9, 32, 8, 128, hidden=4096, vocabulary=128256)
    found = optkit.plan(
        target=("mi300x", "thor", "apple-m3-max"), precision=("fp16", "int8"), batches=(1,),
        decoder=sizes, prompt=16, new_tokens=16, partial=True,
    )  # fmt: skip
    rows = {(row["target"], row["precision"]): row for row in found["results"]}
    read = 2 * (8.03e9 - 4096 * 128256)
    for name in ("mi300x", "jetson-agx-thor", "apple-m3-max"):
        one = rows[(name, "fp16")]["latency"][0]
        least = read / (target(name).bandwidth or 0) * 1e3
        assert least < one["p50_ms"] < 1.6 * least
        assert one["band"][1] / one["p50_ms"] == pytest.approx(1.78, abs=0.2)
        assert rows[(name, "fp16")]["measured_generation"] is False
    assert rows[("apple-m3-max", "fp16")]["latency"][0]["throughput"] == pytest.approx(
        22.4, rel=0.1
    )
    assert "fitted to NVIDIA GPUs only" in rows[("mi300x", "fp16")]["notes"][0]
    assert rows[("jetson-agx-thor", "fp16")]["notes"] == []
    assert rows[("mi300x", "int8")]["status"] == "ok"
    assert "CoreML provider" in rows[("apple-m3-max", "int8")]["reason"]


@pytest.mark.parametrize(
    ("name", "number", "reason"),
    [
        ("groq-lpu", "fp16", "for GPUs only; Groq LPU"),
        ("mi300x", "nvfp4", "nvfp4 multiplies in fp4, of which AMD Instinct MI300X has no known"),
    ],
)
def test_what_is_not_planned_says_why(name: str, number: str, reason: str) -> None:
    with pytest.raises(Impossible, match=re.escape(reason)):
        optkit.plan(target=name, precision=number, decoder=DecoderSizes(8e9, 32, 8, 128))


def test_the_accelerators_of_a_machine_of_amd_share_a_fabric() -> None:
    (row,) = optkit.plan(
        target="mi300x", precision="fp16", batches=(1,), decoder=DecoderSizes(300e9, 120, 16, 128),
    )["results"]  # fmt: skip
    assert row["devices"] == 4 and row["notes"][0] == "tensor parallel over Infinity Fabric"


def test_an_encoder_runs_once_in_front_of_a_decoder() -> None:
    """One product of 4 GFLOP and 8 MB of weights in FP16 beside a small decoder."""
    product = {"p": NodeCost("MatMul", 2 * 10**9, 16 * 10**6, 4000, 4000, columns=10, bits=32)}
    encoder = OneCallModel(4 * 10**6, lambda batch: product, lambda batch: 0, 0.0)
    shape, l4, fp16 = DecoderShape(2, 512, 8, 8, 64, 2048, 5000), target("l4"), precision("fp16")
    alone = Decoding(shape, shape.parameters, 4, 100, positions=448)
    both = replace(alone, encoder=encoder, parameters=shape.parameters + encoder.parameters)
    decoder, whole = (plans.row(model, l4, fp16, (1,), None, ("qlora",)) for model in (alone, both))
    call = plans.row(encoder, l4, fp16, (1,), None).latency[0].p50_ms
    one, other = decoder.latency[0], whole.latency[0]
    assert one.p50_ms == other.p50_ms
    assert other.first_token_ms == pytest.approx((one.first_token_ms or 0) + call)
    assert 100 / other.throughput == pytest.approx(100 / one.throughput + call / 1e3)
    assert list(other.bounds) == ["encode", "prefill", "decode"]
    assert decoder.memory is not None and whole.memory is not None
    more = whole.memory.weights - decoder.memory.weights
    assert 8e6 <= more < 8.1e6
    assert whole.largest_context == decoder.largest_context == 448
    assert whole.training[0].recompute_full.activations is None


def test_every_device_holds_its_own_runtime() -> None:
    """18 bytes for each parameter and little for one token, on 23034 MiB of which each L4 keeps 0.5
    GB for itself: 6 of them would hold 144.9 GB, and 141.9 beside the runtime."""
    for parameters, needed in ((7.87e9, 6), (7.89e9, 7)):
        sizes = DecoderSizes(parameters, 32, 32, 128, hidden=4096)
        (row,) = optkit.plan(
            target="l4", precision="fp16", batches=(1,), decoder=sizes, prompt=1, training=["full"]
        )["results"]
        made = row["training"][0]["recompute_full"]
        assert made["total"] == pytest.approx(18 * parameters, rel=1e-4)
        assert made["devices"] == needed


def test_activations_are_not_shared_among_devices() -> None:
    """18 · 7e9 bytes shared by devices that have 80 less 0.5 less 10 GB for them; none where a
    sample's activations alone are too many."""
    made = memory.training(7e9, "full", adapters=0, activations=10e9)
    assert memory.devices_to_train(made, 80e9) == 2  # 126 / 69.5
    assert memory.devices_to_train(made, 24e9) == 10  # 126 / 13.5
    assert memory.devices_to_train(made, 10e9) is None


def test_throughput_is_met_by_as_many_devices_as_it_takes() -> None:
    found = optkit.plan(
        target="l4", precision="fp16", throughput=5000.0, decoder=DecoderSizes(8e9, 32, 8, 128)
    )["cheapest"]
    assert found["throughput"] >= 5000 and found["devices"] > 1
    assert found["usd_per_hour"] == pytest.approx(found["devices"] * 0.8048)


def test_advice_names_the_figures(plan: Plan) -> None:
    told = "\n".join(plan["advice"])
    row = next(r for r in plan["results"] if (r["target"], r["precision"]) == ("h100-sxm", "int4"))
    assert f"stops paying against fp16 at batch {row['decode']['stops_paying_at_batch']}" in told
    assert "under 50 ms per token keep at most" in told
    assert "decode is bound by memory" in told


def test_queueing_leaves_room_for_the_batch_before() -> None:
    """Within 20 ms: two runs of 8 ms and 4 ms of waiting; batch 16 would take 2 × 12 ms."""
    call = PlannedLatency.model_construct(bounds={"call": "pcie"})
    latency = tuple(
        call.model_copy(update={"batch": n, "p50_ms": ms, "throughput": n / ms})
        for n, ms in ((8, 8.0), (16, 12.0))
    )
    rows = [PlanRow.model_construct(target="l4", precision="int8", latency=latency, devices=1)]
    told = advice.advise(rows, limit_ms=20)
    assert any("up to 8 and a queue delay of at most 4 ms" in line for line in told)
    assert "bound by pcie" in told[0]
    assert "no batch is possible within 1 ms" in advice.advise(rows, limit_ms=1)[-1]


def test_the_page_draws_the_front_and_its_names_do_not_meet(plan: Plan) -> None:
    page = to_html(plan)
    assert plan["recommendation"]["sentence"].replace("'", "&#39;") in page
    assert page.count('class="whisker"') == 2 * len(plan["front"])
    assert "limit 50 ms" in page and "$ per million" in page
    drawing = front(plan)
    assert drawing is not None
    boxes = []
    for dot in drawing.dots:
        if dot.wide is not None:
            length = 7.3 * len(dot.wide.text)
            left = dot.at * 12.4 + dot.wide.right
            left -= {"start": 0.0, "middle": length / 2, "end": length}[dot.wide.anchor]
            bottom = (100 - dot.height) * 2.6 + dot.wide.down
            boxes.append((left, left + length, bottom - 12, bottom))
    assert len(boxes) > 1
    for one, other in combinations(boxes, 2):
        apart = one[1] <= other[0] or other[1] <= one[0] or one[3] <= other[2] or other[3] <= one[2]
        assert apart


def test_the_plot_is_one_file_that_loads_nothing(plan: Plan) -> None:
    drawn = ElementTree.fromstring(to_svg(plan))
    points = [one for one in drawn.iter() if one.get("class", "").startswith("call ")]
    assert len(points) == sum(len(row["latency"]) for row in plan["results"])
    for point in points:
        assert 0 < float(point.attrib["cx"].removesuffix("%")) < 100
        assert 36 < float(point.attrib["cy"]) < 496  # the panel
    names = [one.text for one in drawn.iter() if one.get("class") == "title name"]
    assert len(names) > 1 and set(names) <= {call_name(one) for one in plan.front or ()}
    assert not any("var(" in text for text in drawn.itertext())  # not every viewer knows it
    assert plan.model is not None
    named = plan.model.model_copy(update={"name": "<script>"})
    page = to_html(plan.model_copy(update={"model": named}))
    assert "&lt;script&gt;" in page and page.count("<script") == 1  # ours
    assert not re.findall(r"(?:src|href)=", page)


def test_a_sentence_that_holds_for_several_targets_is_said_once() -> None:
    lines = [
        "l4 fp16: a call is bound by launch: use a larger batch.",
        "l4: fastest is int8.",
        "t4 fp16: a call is bound by launch: use a larger batch.",
        "t4 int8: a call is bound by launch: use a larger batch.",
        "a10: fastest is int8.",
        "h100-sxm fp16, int8: nothing was measured.",
    ]
    assert merged(lines) == [
        "fp16 on l4, t4: a call is bound by launch: use a larger batch.",
        "l4, a10: fastest is int8.",
        "t4 int8: a call is bound by launch: use a larger batch.",
        "h100-sxm fp16, int8: nothing was measured.",
    ]
