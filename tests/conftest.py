"""What every test sees: a cache of its own, and slices of the slow tests."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slice", default=None, help="i/n: run the i-th of n parts of the tests")


@pytest.hookimpl(trylast=True)  # after -m has chosen
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one of n parts, dealt in the order of a hash of the names: all parts cover all."""
    chosen = config.getoption("--slice")
    if not chosen:
        return
    index, count = (int(part) for part in chosen.split("/"))
    dealt = sorted(items, key=lambda item: hashlib.sha256(item.nodeid.encode()).hexdigest())
    kept = {item.nodeid for item in dealt[index::count]}
    selected = [item for item in items if item.nodeid in kept]
    config.hook.pytest_deselected(items=[item for item in items if item not in selected])
    items[:] = selected


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private cache folder, also for commands started by the test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("OPTKIT_CACHE", str(folder))
    return folder
