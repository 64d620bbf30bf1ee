"""Requests: lengths and times as they were asked for, files line by line, policies that hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.facts.errors import InputRefused, UsageError
from optkit.satellites.serving import Drafting, ServingPolicy, TokenLengths, read_trace
from optkit.satellites.serving.traffic import Arrival, every, poisson


@pytest.mark.parametrize(
    ("text", "mean", "p95"),
    [("512", 512, 512), ("100..300", 200, 290), ("300~1200", 426.714, 1200), ("1,024", 1024, 1024)],
)
def test_lengths_are_drawn_as_they_are_written(text: str, mean: float, p95: float) -> None:
    lengths = TokenLengths.parse(text, "--prompt")
    drawn = lengths.draw(np.random.default_rng(0), 200_000)
    assert drawn.mean() == pytest.approx(mean, rel=0.01)
    assert lengths.mean == pytest.approx(mean, rel=0.001)
    assert np.percentile(drawn, 95) == pytest.approx(p95, rel=0.02)
    assert lengths.percentile(0.95) == pytest.approx(p95, rel=0.001)
    assert drawn.min() >= 1
    assert drawn.max() <= lengths.longest


def test_more_requests_are_no_longer() -> None:
    """Another load draws another number of requests, which fit into the same cache."""
    lengths = TokenLengths.parse("10~1000", "--prompt")
    drawn = [lengths.draw(np.random.default_rng(seed), 50_000).max() for seed in range(5)]
    assert set(map(int, drawn)) == {lengths.longest}


@pytest.mark.parametrize("text", ["", "x", "0", "5..2", "9~3", "-4", "1..2..3", "1e3", "99999999"])
def test_other_texts_are_no_lengths(text: str) -> None:
    with pytest.raises(UsageError, match="no number of tokens"):
        TokenLengths.parse(text, "--prompt")


def test_arrivals_are_poisson() -> None:
    found = poisson(
        4, TokenLengths.parse("10", ""), TokenLengths.parse("5", ""), 40_000, seed=1, shared=0.5
    )
    gaps = np.diff([one.at for one in found])
    assert gaps.mean() == pytest.approx(0.25, rel=0.02)
    assert gaps.std() == pytest.approx(0.25, rel=0.03)
    assert found[0].shared == 5


@given(st.integers(1, 200), st.floats(1, 20))
def test_a_part_of_a_trace_has_its_share_of_the_requests(count: int, step: float) -> None:
    found = every([Arrival(float(n), 1, 1) for n in range(count)], step)
    assert len(found) == max(1, int(count / step))
    assert [one.at for one in found] == sorted({one.at for one in found})


CSV = "arrival,prompt,output,prefix\n10.5,100,20,a\n10.0,50,5,\n"
LINES = (
    '{"arrival": 10.5, "prompt": 100, "output": 20, "prefix": "a"}\n\n'
    '{"arrival": 10, "prompt": 50, "output": 5}\n'
)


@pytest.mark.parametrize("text", [CSV, LINES])
def test_a_file_has_requests_in_the_order_of_their_arrival(tmp_path: Path, text: str) -> None:
    file = tmp_path / "trace"
    file.write_text(text)
    assert read_trace(file, 0.5) == [Arrival(0.0, 50, 5, "", 25), Arrival(0.5, 100, 20, "a", 50)]


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("arrival,prompt\n1,2\n", 1, "no column 'output'"),
        ("arrival,prompt,output\n1,2,3\n2,x,3\n", 3, "prompt is 'x', not a number of tokens"),
        ("arrival,prompt,output\n1,2\n", 2, "output is 'None'"),
        ("arrival,prompt,output\n-1,2,3\n", 2, "arrival is '-1', not seconds"),
        ("arrival,prompt,output\nnan,2,3\n", 2, "arrival is 'nan'"),
        ("arrival,prompt,output\n1,0,3\n", 2, "prompt is '0'"),
        ('{"arrival": 1, "prompt": 2, "output": 3}\n{"arrival": 1,\n', 2, "no JSON object"),
        ('{"arrival": 1, "prompt": 2, "output": 3}\n[1]\n', 2, "no JSON object"),
        ('{"arrival": 1, "prompt": [2], "output": 3}\n', 1, "prompt is '[2]'"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, text: str, line: int, told: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(InputRefused) as caught:
        read_trace(file)
    assert told in caught.value.message
    assert caught.value.where == f"{file}, line {line}"


@pytest.mark.parametrize("content", [b"", b"arrival,prompt,output\n", b"\xff\xfe"])
def test_a_file_without_requests_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "trace.csv"
    file.write_bytes(content)
    with pytest.raises(InputRefused):
        read_trace(file)
    with pytest.raises(InputRefused, match="cannot be read"):
        read_trace(tmp_path / "none.csv")


def test_a_policy_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(UsageError, match="continuous batching"):
        ServingPolicy("static", None, split=True)
    with pytest.raises(UsageError, match="fewer than 256 sequences write"):
        ServingPolicy(chunk=128)


@pytest.mark.parametrize("text", ["4", "4,2", "0,0.5", "x,0.5", "4,0.5,0.1,1", "4,0.5,3", "4,,"])
def test_other_texts_draft_nothing(text: str) -> None:
    with pytest.raises(UsageError, match="acceptance rate"):
        Drafting.parse(text, "--speculate")
    assert Drafting.parse("4,0.7,0.1", "--speculate") == Drafting(4, 0.7, 0.1)
