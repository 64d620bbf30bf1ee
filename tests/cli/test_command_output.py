"""The output on a terminal: tables of 80 columns, pace, no active control characters; and a job's
summary."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optkit.facts.documents.measured import GateVerdict
from optkit.facts.documents.result import (
    RESULT,
    EngineFacts,
    EngineSize,
    LandingCounts,
    PrecisionFigures,
    Result,
)
from optkit.facts.errors import OptkitError
from optkit.facts.evidence import Evidence
from optkit.facts.measurement import Difference, Interval, Latency, Score
from optkit.show.report.evidence_look import LOOKS
from optkit.verbs.cli import command_output, github, summary

Optkit = Callable[..., Any]

words = st.text(st.sampled_from("abc 1"), max_size=30)
tables = st.integers(1, 8).flatmap(
    lambda n: st.lists(st.lists(words, min_size=n, max_size=n), min_size=2, max_size=5)
)


@given(tables)
def test_a_folded_table_fits_80_columns_and_loses_nothing(rows: list[list[str]]) -> None:
    told = command_output.folded(rows[0], rows[1:])
    assert all(len(line) <= command_output.WIDTH for line in told.splitlines())
    for row in rows:
        assert all(" ".join(cell.split()) in re.sub(" +", " ", told) for cell in row)


SIMULATED, PREDICTED = Evidence.SIMULATED, Evidence.PREDICTED
SCORE = Score(
    metric="top1", value=0.9833, evidence=SIMULATED, ci95=Interval(0.97, 0.99), samples=899,
    proportion=True, lower_is_better=False,
)  # fmt: skip


def made(**changes: Any) -> Result:
    found = Result(
        schema=RESULT, target="a100-pcie-80gb", precision="int8-weight-only", status="ok",
        artifact="artifacts/a", gate=GateVerdict(verdict="inconclusive", reasons=()),
        latency=Latency(PREDICTED, 0.000426, 8, 18e6),
        speedup=Difference(1.3, None, PREDICTED), accuracy=SCORE,
        drop=Difference(value=-0.0011, ci95=Interval(-0.0063, 0.0032), evidence=SIMULATED),
        size=EngineSize(bytes=3 << 20, baseline_bytes=2 << 20, evidence=Evidence.COMPILED),
        engine=EngineFacts(
            backend="tensorrt", evidence=Evidence.COMPILED,
            landing=LandingCounts(planned=18, landed=17, by_dtype={}),
        ),
        baseline=PrecisionFigures(precision="fp16"),
        pending=(), references=(), seconds={}, cache_hits=0,
    )  # fmt: skip
    return found.model_copy(update=changes)


def test_the_final_table_fits_80_columns_with_the_longest_names() -> None:
    first, *rest = summary.table([made()]).splitlines()
    assert first.split() == ["build", "gate", "latency", "b8", "speedup", "top1"]
    assert "  engine compiled, latency predicted, accuracy simulated" in rest
    assert "artifacts/a: 3.00 MiB (150% of fp16), 17/18 landed" in rest
    assert all(len(line) <= 80 for line in [first, *rest])


def test_what_differs_stands_in_the_rows() -> None:
    other = replace(SCORE, metric="f1\x1b[2J")
    told = summary.table([made(), made(latency=None), made(accuracy=other)])
    assert "top1 0.9833" in told and "f1\ufffd[2J 0.9833" in told and "latency b8" in told


def test_errors_and_results_show_no_name_that_acts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command_output.show_error(OptkitError("node \x1b[31m\u202ex", where="conv\x07"))
    assert capsys.readouterr().err == "error: conv\ufffd: node \ufffd[31m\ufffdx\n"
    command_output.put("as it \x1b is")  # in a pipe
    assert capsys.readouterr().out == "as it \x1b is\n"
    monkeypatch.setattr(command_output, "_stdout", lambda: _Tty())
    command_output.put("family \U0001f468\u200d\U0001f469 \x1b[2J")
    assert _Tty.said == "family \U0001f468\u200d\U0001f469 \ufffd[2J\n"


def test_a_terminal_colours_evidence_where_it_says_how_a_figure_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = (
        "Likely, not measured: INT8 is 1.61× as fast (1.07 to 2.41, predicted for TensorRT).\n"
        "  engine compiled by TensorRT-RTX, accuracy simulated\n"
        "latency  batch 8  1 ms  measured\n  pending: tensorrt\nmeasured.onnx, a predicted class"
    )
    monkeypatch.setattr(command_output, "_stdout", lambda: _Tty())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def said(put: Callable[[str], None]) -> str:
        _Tty.said = ""
        put(text)
        return _Tty.said.removesuffix("\n")

    coloured = said(command_output.put_figures)
    shown = re.findall(r"\x1b\[(\d+)m(\w+)\x1b\[0m", coloured)
    assert [word for _, word in shown] == [
        "predicted", "compiled", "simulated", "measured", "pending",
    ]  # fmt: skip
    assert all(int(code) == LOOKS[Evidence(word)].ansi for code, word in shown)
    assert re.sub(r"\x1b\[\d+m", "", coloured) == text  # colour only repeats what the words say
    assert said(command_output.put) == text
    for name, value in {"NO_COLOR": "1", "TERM": "dumb"}.items():
        with monkeypatch.context() as plain:
            plain.setenv(name, value)
            assert said(command_output.put_figures) == text


def test_in_a_pipe_no_figure_has_a_colour(capsys: pytest.CaptureFixture[str]) -> None:
    command_output.put_figures("1.61× (predicted)")
    assert capsys.readouterr().out == "1.61× (predicted)\n"


class _Tty(io.StringIO):
    said = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        _Tty.said += text
        return len(text)


@pytest.mark.slow
def test_a_jobs_summary_gets_the_report(
    optkit_apart: Optkit, small: Path, store: Path, tmp_path: Path
) -> None:
    shown = tmp_path / "summary.md"
    shown.write_text("before\n")
    done = optkit_apart("build", "--target", "cpu", "--out", tmp_path / "out", "--quiet", cwd=small,
                        cache=store, env={"GITHUB_STEP_SUMMARY": str(shown)})  # fmt: skip
    assert done.code == 0, done.err
    report = (tmp_path / "out/small-cpu-int8/report.md").read_text()
    assert shown.read_text() == f"before\n{report}\n" and report.startswith("## small · cpu")


def test_a_summary_that_cannot_be_written_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", os.fspath(tmp_path))
    (tmp_path / "report.md").write_text("## x\n")
    github.summarize(github.reports([made(artifact=str(tmp_path))]))
    assert "GITHUB_STEP_SUMMARY: Is a directory" in capsys.readouterr().err
