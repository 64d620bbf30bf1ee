"""The zoo: the page is that of the results, and no build is recommended that decides otherwise than
the model as shipped."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from ruamel.yaml import YAML

from tests.scripts import ROOT, script

FOLDER = ROOT / "experiments" / "zoo"
ROWS: list[dict[str, Any]] = YAML(typ="safe", pure=True).load(FOLDER / "models.yaml")
RESULTS: dict[str, Any] = json.loads((FOLDER / "results.json").read_text(encoding="utf-8"))


def test_the_page_is_that_of_the_results_and_has_every_model() -> None:
    page, models = script("experiments/zoo/page.py"), [SimpleNamespace(**row) for row in ROWS]
    assert [*RESULTS["models"]] == [model.name for model in models]
    forms = [[cell["form"] for cell in cells] for cells in RESULTS["models"].values()]
    assert all(found == [*page.FORMS] for found in forms)
    assert (FOLDER / "results.md").read_text(encoding="utf-8") == page.page(RESULTS, models)


def test_nothing_below_99_percent_agreement_is_recommended() -> None:
    cells = [cell for cells in RESULTS["models"].values() for cell in cells if cell["measured"]]
    below = [cell["said"]["recommendation"]["ship"] for cell in cells
             if cell["said"] and cell["measured"]["agreement"] < 0.99]  # fmt: skip
    assert below and "candidate" not in below
