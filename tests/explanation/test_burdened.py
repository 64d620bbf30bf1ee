"""Twenty-four things that cost time or accuracy: each is what `optkit explain` names first, or a
fusion rule removes it.

    python -m tests.explanation.test_burdened FOLDER     prints a table: burden, first finding, rank
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import optkit
from optkit.ground.recipe import Recipe
from tests.explanation import burdened, faults, models, planting
from tests.explanation.faults import Fault

pytestmark = pytest.mark.slow

_CONV = "blocks.0.conv2/Conv"


@dataclass(frozen=True)
class Burden:
    """A network, perhaps with a fault in its graph; the rule that finds it, with a word of its
    sentence; or the fusion rule that removes it."""

    network: Callable[[Path], Recipe]
    rule: str
    word: str
    target: str = "cpu"
    fault: Fault | None = None
    fused: bool = False


OF_THE_FACTS = {
    "calibration on other preprocessing": Burden(
        burdened.other_normalization, "other_calibration_data", "another distribution"
    ),
    "casts": Burden(models.stack, "cast", "cast", fault=faults.casts("layers.1.relu", 8)),
    "transposes": Burden(burdened.transposes, "layout", "blocks."),
    "TopK over 60,000 values": Burden(burdened.top_k, "slow_operator", "TopK"),
    "GELU written with exp": Burden(burdened.gelu, "activation", "", fused=True),
    "the same branch twice": Burden(burdened.twice, "merge_repeated", "", fused=True),
    "492 of 512 tokens are padding": Burden(burdened.padding, "padding", "492 of 512"),
    "launches decide": Burden(burdened.small_batch, "launches", "batch 1", target="l4"),
    "a Q/DQ pair behind a pair": Burden(
        models.stack, "duplicated", "twice", "l4", faults.duplicated("layers.1.relu", 12.3)
    ),
    "a range that is too small": Burden(
        models.residual, "clipped", "clipped", fault=faults.rescaled("blocks.0.relu", 0.1)
    ),
    "a product left in floats": Burden(
        models.residual, "left_in_float", _CONV, fault=faults.left_in_float(_CONV)
    ),
}
NEW = {
    "a convolution kept in FP32 between INT8": Burden(burdened.island, "left_in_float", "body.1"),
    "linear Resize of a large map": Burden(burdened.resize, "slow_operator", "Upsample|Resize"),
    "NonZero and GatherND": Burden(burdened.non_zero, "slow_operator", "sparse/"),
    "a GRU": Burden(burdened.gru, "slow_operator", "GRU"),
    "a Loop of 200 steps": Burden(burdened.loop, "slow_operator", "Loop"),
    "Softmax over a vocabulary": Burden(burdened.vocabulary, "slow_operator", "Softmax"),
    "positions computed at run time": Burden(burdened.positions, "slow_operator", "positions/"),
    "CumSum over a strided axis": Burden(burdened.strided, "slow_operator", "CumSum"),
    "a norm with ε outside of the root": Burden(burdened.own_norm, "written_out", "Sqrt"),
    "Concat of all maps so far": Burden(burdened.dense_concat, "layout", "Concat"),
    "channels shuffled": Burden(burdened.shuffled_channels, "layout", "Transpose"),
    "hashes of 64 bits": Burden(burdened.whole_numbers, "slow_operator", "int64"),
    "padding without a mask, of a fixed size": Burden(
        lambda folder: burdened.padding(folder, masked=False, free=False), "padding", "of 512",
    ),
}  # fmt: skip
ALL = {**OF_THE_FACTS, **NEW}


def explained(burden: Burden, folder: Path, cache: Path) -> tuple[Path, dict[str, Any]]:
    recipe = burden.network(folder / "net")
    path = planting.build(recipe, burden.target, folder / "out", cache, burden.fault)
    return path, optkit.explain(path, workspace=optkit.Workspace(cache))


def rank(burden: Burden, findings: list[dict[str, Any]]) -> int | None:
    """The place of the right finding, counted from 1."""
    right = (n for n, one in enumerate(findings, 1)
             if one["rule"] == burden.rule
             and any(word in one["what"] for word in burden.word.split("|")))  # fmt: skip
    return next(right, None)


def is_fused(burden: Burden, artifact: Path) -> bool:
    report = json.loads((artifact / "report.json").read_text())
    told = json.dumps(report["fusion"])
    model = (artifact / "model.onnx").read_bytes()
    return f'"{burden.rule}"' in told or b"QuickGelu" in model


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("burdened") / "cache"


@pytest.mark.parametrize("name", ALL)
def test_it_is_named_first(name: str, tmp_path: Path, cache: Path) -> None:
    burden = ALL[name]
    path, found = explained(burden, tmp_path, cache)
    if burden.fused:
        assert is_fused(burden, path)
    else:
        assert rank(burden, found["findings"]) == 1, [one["what"] for one in found["findings"]]


def test_the_preprocessing_of_the_evaluation_mends_the_ranges(tmp_path: Path, cache: Path) -> None:
    burden = OF_THE_FACTS["calibration on other preprocessing"]
    _, before = explained(burden, tmp_path / "before", cache)
    assert before["findings"][0]["change"]["recipe"] == []
    same = replace(burden, network=lambda folder: burdened.other_normalization(folder, same=True))
    _, after = explained(same, tmp_path / "after", cache)
    gained = after["layers_compared"]["sqnr_db"] - before["layers_compared"]["sqnr_db"]
    assert gained == pytest.approx(before["findings"][0]["cost"]["db"], rel=0.5)
    assert rank(burden, after["findings"]) is None


def test_fewer_tokens_mend_the_padding(tmp_path: Path, cache: Path) -> None:
    burden = OF_THE_FACTS["492 of 512 tokens are padding"]
    path, _ = explained(burden, tmp_path, cache)
    new = tmp_path / "net" / "changed.yaml"
    optkit.explain(path, apply=new, workspace=optkit.Workspace(cache))
    recipe = Recipe.load(new)
    assert recipe.axes["sequence"].opt == 24
    again = planting.build(recipe, "cpu", tmp_path / "again", cache)
    found = optkit.explain(again, workspace=optkit.Workspace(cache))["findings"]
    assert rank(burden, found) is None


def test_a_larger_batch_mends_the_launches(tmp_path: Path, cache: Path) -> None:
    burden = OF_THE_FACTS["launches decide"]
    _, before = explained(burden, tmp_path / "before", cache)
    larger = replace(burden, network=lambda folder: burdened.small_batch(folder, batch=8))
    _, after = explained(larger, tmp_path / "after", cache)
    one, eight = (found["latency"]["p50_ms"] for found in (before, after))
    assert one - eight / 8 == pytest.approx(before["findings"][0]["cost"]["ms"], rel=0.2)


def main(folder: Path) -> None:
    for name, burden in ALL.items():
        path, found = explained(burden, folder / name.replace(" ", "_"), folder / "cache")
        findings = found["findings"]
        place = "fused" if burden.fused and is_fused(burden, path) else rank(burden, findings)
        first = f"{findings[0]['rule']}: {findings[0]['what']}" if findings else "nothing found"
        print(f"| {name} | {first} | {place} |", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
