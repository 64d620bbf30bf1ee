"""`optkit finish`: completes the pending parts of an artifact on a host with the device."""

from __future__ import annotations

from pathlib import Path

from optkit.ground.workspace import Workspace
from optkit.show.report.contract import result_of
from optkit.verbs import api
from optkit.verbs.cli import api_calls, command_output, github, summary
from optkit.verbs.cli.build import exit_code
from optkit.verbs.cli.command_output import Output


def finish(
    artifact: Path,
    task: str | None,
    data: Path | None,
    overrides: tuple[str, ...],
    strict: bool,
    junit: Path | None,
    workspace: Workspace,
    output: Output,
) -> int:
    with output.terminal() as ears:
        own = api_calls.reporting(workspace, ears)
        finished = api.finish(
            artifact, task=task, data=data, overrides=overrides, strict=strict, workspace=own
        )
        result = result_of(finished)
    if junit is not None:
        from optkit.verbs.cli import junit_file  # loads the XML library

        junit_file.write_results(junit, [result], strict=strict)
    if output.json:
        command_output.put_json(result)
    else:
        command_output.put_figures(summary.table([result]))
    github.summarize(github.reports([result]))
    for remark in summary.remarks(result):
        ears.note(f"{result.target} {result.precision}: {remark}")
    return exit_code(result, strict)
