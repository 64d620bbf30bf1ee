"""Node by node: what was planned, where it runs and what it costs, joined from three lists."""

from __future__ import annotations

from html import unescape
from typing import Any

import pytest

from optkit.facts.codec import from_json
from optkit.facts.documents.result import LandingCounts
from optkit.facts.engines import FusedLayer
from optkit.ground import runtimes
from optkit.show.report import figures, layers
from optkit.show.report.build_page import to_html
from optkit.show.report.drawing import charts
from optkit.show.report.markdown import to_markdown
from optkit.show.report.output_table import outputs as table
from tests.report.conftest import read


def facts(rows: list[dict[str, Any]]) -> list[layers.LayerRow]:
    return layers.layers([from_json(FusedLayer, row) for row in rows])


def nodes_of(report: dict[str, Any]) -> list[layers.NodeRow]:
    known = read(report)
    ours, theirs = layers.layers(known.layers.engine), layers.layers(known.layers.baseline)
    return layers.nodes(known, ours, theirs)


def test_what_did_not_land_comes_first_beside_the_baselines_bytes(make: Any) -> None:
    found = layers.by_need(nodes_of(make(lost=2)))
    assert [one.landed for one in found] == [False] * 2 + [True] * 10 + [None]
    assert found[0].moved == found[0].baseline_moved == 8 * 17 * (64 + 192) * 2
    assert found[2].moved == 8 * 17 * (64 + 192)
    assert (found[-1].name, found[-1].why) == ("patch/Conv", "one input channel never lands")


def test_what_the_compiler_does_not_tell_is_unknown(make: Any) -> None:
    report = make()
    report["landing"][0] |= {"landed": None, "dtype": None, "layer": None}
    (found,) = (one for one in nodes_of(report) if one.name == report["landing"][0]["node"])
    assert (found.landed, found.runs) == (None, "unknown")
    counts = LandingCounts(planned=12, landed=11, by_dtype={}, unknown=1)
    assert figures.landed(counts) == "11 of 12, 1 unknown"
    assert figures.landed(LandingCounts(planned=12, landed=12, by_dtype={})) == "12 of 12"
    report["result"]["engine"]["landing"] |= {"landed": 11, "unknown": 1}
    text = to_markdown(read(report))
    assert "does not tell the type of 1." in text and "did not land" not in text


def test_outputs_are_a_table_the_worst_first(make: Any) -> None:
    report = make()
    outputs = report["result"]["fidelity"]["outputs"]
    assert "largest error" not in to_markdown(read(report))  # a single one is in the comparison
    outputs += [
        {"output": "y", "part": "channel 4", "sqnr_db": 2.4, "max_abs_error": 0.7,
         "constant": True},
        {"output": "class", "equal": 0.75, "max_abs_error": 0.0},
        {"output": "z", "max_abs_error": 0.0, "cosine": 1.0},
    ]  # fmt: skip
    text, page = to_markdown(read(report)), to_html(read(report))
    assert text.index("| y, channel 4 | 2.4 |") < text.index("| logits | 31.4 | 31.0 to 31.9 |")
    assert "27.5, 27.9, 31.2" in text and "75.00 % of the values are equal" in text
    assert "constant, though it varies in the reference" in text
    assert "SQNR" in page and "2.4 dB" in page and "output 'y', channel 4" in unescape(page)
    cells = [(row.name, row.sqnr.text) for row in table(read(report).result.fidelity)]
    assert cells == [("y, channel 4", "2.4"), ("logits", "31.4"), ("class", "–"), ("z", "equal")]


def test_what_costs_most_comes_before_what_costs_less(make: Any) -> None:
    worst, *_, last = layers.by_need(nodes_of(make()))
    assert (worst.gain.text, worst.gain.heat) == ("+2.6", 3)
    assert worst.alone.value == 18.0 and worst.alone.heat == 4
    assert worst.alone.beside == "cosine 0.984151, largest error 0.2"
    assert last.alone == layers.Cell()


@pytest.mark.parametrize(
    ("sqnr", "text", "heat"),
    [(None, "equal", 0), (50.0, "50.0", 0), (49.9, "49.9", 1), (20.0, "20.0", 3), (3.0, "3.0", 4)],
)
def test_the_noisier_the_hotter(sqnr: float | None, text: str, heat: int) -> None:
    assert layers.noise(sqnr) == layers.Cell(text, sqnr, heat)


def test_a_node_is_credited_to_the_layer_that_multiplies_it(make: Any) -> None:
    report = make()
    listed = report["layers"]["engine"]
    listed.append({**listed[-1], "nodes": listed[0]["nodes"]})  # a reformat names it too
    known = read({**report, "landing": report["landing"][:1]})
    found = layers.nodes(known, layers.layers(known.layers.engine), [])
    assert found[0].moved == 8 * 17 * (64 + 192)


def test_kinds_add_up_and_unknown_sizes_stay_unknown(make: Any) -> None:
    report = make()
    ours, theirs = (facts(report["layers"][side]) for side in ("engine", "baseline"))
    found = {kind.work: kind for kind in layers.kinds(ours, theirs)}
    assert found["gemm"].candidate == (12, 12 * 8 * 17 * 256)
    assert found["gemm"].baseline == (12, 12 * 8 * 17 * 512)
    dynamic = report["layers"]["engine"]
    dynamic[0]["inputs"][0]["shape"][0] = -1
    assert layers.kinds(facts(dynamic), [])[1].candidate == (12, None)
    silent = [{**layer, "inputs": [], "outputs": []} for layer in dynamic]
    assert facts(silent)[0].moved is facts(silent)[0].weights is None


@pytest.mark.parametrize(
    ("name", "nodes", "products", "work"),
    [
        ("__myl_Fc_myl0_3", ["dense/MatMul"], ["dense/MatMul"], "product"),
        (
            "__myl_FcAdd_myl0_3",
            ["dense/MatMul", "add"],
            ["dense/MatMul"],
            "product with fused operators",
        ),
        ("__myl_MulAdd_myl0_4", ["mul", "add"], [], "other operators, fused"),
        ("__myl_Mul_myl0_4", ["mul"], [], "other operator"),
        ("__myl_Tran_myl0_12", ["transpose"], [], "moves or converts values"),
        ("__myl_Sele_12", [], [], "added by the compiler"),
    ],
)
def test_the_work_of_a_layer_is_shown_in_words(
    name: str, nodes: list[str], products: list[str], work: str, make: Any
) -> None:
    row = {**make()["layers"]["engine"][0], "name": name, "kind": "runtime_fusion"}
    row |= {"nodes": nodes, "products": products}
    moves_data = runtimes.backend("tensorrt-rtx").traits.moves_data
    (layer,) = layers.layers([from_json(FusedLayer, row)], moves_data)
    assert (layer.work, layer.kind) == (work, "runtime_fusion")
    assert facts([row])[0].work == "runtime_fusion"  # without a compiler's names, the kind itself


def test_the_strip_has_a_bar_for_every_node_in_the_order_of_the_graph(make: Any) -> None:
    rows = nodes_of(make(lost=1))
    drawn = charts.strip(rows)
    assert drawn is not None
    assert [bar.css for bar in drawn.bars] == ["missed", *["engine"] * 11, ""]
    noisiest = max(range(13), key=lambda index: drawn.bars[index].height)
    assert rows[noisiest].alone.value == min(r.alone.value for r in rows if r.alone.value)
    assert drawn.told == (
        "11 of 12 planned nodes landed; the noisiest alone is blocks.2/fc2/MatMul at 18.0 dB"
    )
    assert charts.strip([]) is None
