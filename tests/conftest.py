"""What every test sees: a cache of its own, and slices of the slow tests."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slice", default=None, help="i/n: run the i-th of n parts of the tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one of n parts; a test's part depends on its name only, so that all parts cover all."""
    chosen = config.getoption("--slice")
    if not chosen:
        return
    index, count = (int(part) for part in chosen.split("/"))
    names = sorted({item.nodeid.split("[")[0] for item in items})
    kept = {
        name
        for position, name in enumerate(
            sorted(names, key=lambda n: hashlib.sha256(n.encode()).hexdigest())
        )
        if position % count == index
    }
    selected = [item for item in items if item.nodeid.split("[")[0] in kept]
    config.hook.pytest_deselected([item for item in items if item not in selected])
    items[:] = selected


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private cache folder, also for commands started by the test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("OPTKIT_CACHE", str(folder))
    return folder
