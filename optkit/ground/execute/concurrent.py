"""Concurrent calls; the first call that fails ends the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import TypeVar

R = TypeVar("R")
_TICK_SECONDS = 0.2


def together(
    function: Callable[..., R],
    *items: Iterable[object],
    parallel: int,
    end: Callable[[], None],
    meanwhile: Callable[[], None] = lambda: None,
) -> list[R]:
    """`map` in threads, with `parallel` calls at a time. If a call raises, `end` tells the running
    calls to stop, no other call begins, and the error is raised when all have ended. `meanwhile` is
    called from time to time."""
    with ThreadPoolExecutor(parallel) as pool:
        calls = [pool.submit(function, *each) for each in zip(*items, strict=False)]
        left = set(calls)
        try:
            while left:
                done, left = wait(left, _TICK_SECONDS, FIRST_COMPLETED)
                for call in done:
                    call.result()
                meanwhile()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            end()
            raise
    return [call.result() for call in calls]
