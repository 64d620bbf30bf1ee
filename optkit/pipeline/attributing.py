"""The time of each layer of a finished artifact, and what the rules are asked about it."""

from __future__ import annotations

from typing import Any

from optkit.artifact import MODEL, Artifact
from optkit.execute.runner import Steps
from optkit.explaining import Subject, Times
from optkit.pipeline.finishing import read_report, staged_graph
from optkit.runtime import Evidence
from optkit.steps import STEPS
from optkit.target import target

_SECONDS = 2.0  # of profiled runs, each side
_BOUND = "a roofline bound of each compiled layer; the engine's own times need its device"


def subject(artifact: Artifact, runner: Steps) -> Subject:
    """What is known of an artifact of one graph, whose files were verified: its report, and the
    time of its layers. On `cpu` ONNX Runtime is profiled on this machine; engines for other devices
    have the roofline of each layer."""
    report = read_report(artifact)
    layers = report["layers"]
    if not layers["engine"] or not layers["baseline"]:
        return Subject(report, None)
    device = target(artifact.manifest.target)
    spec = report["provenance"]["build_spec"]["engine"]
    params: dict[str, Any] = {
        "axes": {name: span["opt"] for name, span in artifact.manifest.recipe["axes"].items()}
    }
    here = spec["backend"] == "onnxruntime"
    if here:
        shapes = {name: ends[1] for name, ends in spec["profile"].items()}
        params |= {"shapes": shapes, "seconds": _SECONDS, "host": device.fingerprint()}
    else:
        sides = {"candidate": layers["engine"], "baseline": layers["baseline"]}
        params |= {"layers": sides, "name": device.name, "target": device.fingerprint()}
    entry = runner.step(
        STEPS["attribute"].kind,
        "time the layers",
        {"candidate": staged_graph(artifact.path / MODEL, runner),
         "baseline": staged_graph(artifact.path / "baseline" / MODEL, runner)},
        params,
    )  # fmt: skip
    evidence = Evidence.MEASURED if here else Evidence.PREDICTED
    note = "profiled on this machine" if here else _BOUND
    return Subject(
        report, Times.from_json({**entry.meta["times"], "evidence": evidence, "note": note})
    )
