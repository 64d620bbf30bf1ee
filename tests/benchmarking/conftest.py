"""A session whose `run` is a function, for tests that only need something to run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import pytest

from optkit.facts.tensors import Feed, TensorInfo


class FunctionSession:
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()

    def __init__(self, function: Callable[[Feed], Feed]) -> None:
        self.function = function
        self.closed = False

    def run(self, feed: Feed) -> Feed:
        assert not self.closed
        return self.function(feed)

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@pytest.fixture(scope="session")
def session() -> type[FunctionSession]:
    return FunctionSession
