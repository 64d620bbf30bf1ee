"""`optkit targets`, `devices`, `doctor`: the known targets, the devices of this machine, and what
is missing; and `completion`, the script for a shell."""

from __future__ import annotations

from pathlib import Path

from click.shell_completion import get_completion_class

from optkit.facts.errors import UsageError
from optkit.facts.request import Request
from optkit.ground import devices as target
from optkit.ground.devices import Target, runs_here, sources
from optkit.ground.workspace import Workspace
from optkit.verbs import api
from optkit.verbs.cli import card_output, command_output, examined
from optkit.verbs.cli.command_output import Output

_SHOWN = ("fp16", "bf16", "int8", "fp8", "int4", "fp4")


def targets(name: str | None, as_json: bool) -> None:
    if as_json:
        command_output.put_json(api.describe_targets(name))
        return
    if name is not None:
        _one_target(target.target(name))
        return
    rows = [
        [
            t.name,
            t.compute_capability or "-",
            "-" if t.marketed_memory_bytes is None else f"{t.marketed_memory_bytes / 1e9:.0f}",
            "-" if t.bandwidth is None else f"{t.bandwidth / 1e9:.0f}",
            ",".join(p for p in _SHOWN if t.supports(p)) or "-",
            ",".join(option.name for option in t.default_backends) or "-",
        ]
        for t in target.targets()
    ]
    command_output.put(
        command_output.table(["target", "cc", "GB", "GB/s", "precisions", "backends"], rows)
    )


def _cut(source: str) -> str:
    """At most 60 characters; the JSON has all."""
    return source if len(source) <= 60 else f"{source[:59]}…"


def _one_target(target: Target) -> None:
    command_output.put(f"{target.name}: {target.title} ({target.vendor}, {target.arch})")
    if target.is_cpu:
        here = ", measured on this machine" if runs_here(target) else ""
        command_output.put(f"  {target.machine}: {' '.join(target.features)}{here}")
    peaks = {f"peak {dtype} TFLOP/s": fact for dtype, fact in target.peaks.items()}
    kernels = {f"kernel {name}": fact for name, fact in target.kernels.items()}
    facts = [
        [
            key,
            str(fact.value),
            "read" if fact.verified else "unverified",
            _cut(sources().get(fact.source, fact.source)),
        ]
        for key, fact in {**target.facts, **peaks, **kernels}.items()
    ]
    command_output.put(command_output.table(["figure", "value", "how known", "source"], facts))
    if not target.backends:
        command_output.put("  optkit compiles nothing for it; `optkit plan` compares its figures")
        return
    for column, support in target.precisions.items():
        note = f": {support.reason}" if support.reason else ""
        command_output.put(f"  {column:9} {support.answer}{note}")
    for option in target.backends:
        note = f": {option.note}" if option.note else ""
        command_output.put(f"  backend {option.name}{note}")


def devices(measure: bool, share: Path | None, as_json: bool) -> None:
    if measure:
        card_output.measure(share, as_json)
        return
    if share is not None:
        raise UsageError(
            "there is nothing to share without a measurement",
            where="--share",
            hint="optkit devices --measure --share FILE",
        )
    if as_json:
        command_output.put_json(api.describe_devices())
        return
    found, cpu = target.gpus(), target.cpu()
    if found.devices:
        rows = [
            [
                gpu.name,
                "shared" if gpu.memory_bytes is None else f"{gpu.memory_bytes / 2**30:.1f} GiB",
                gpu.compute_capability,
                "yes" if gpu.bf16 else "no",
                "yes" if gpu.fp8 else "no",
                gpu.target or "-",
            ]
            for gpu in found.devices
        ]
        command_output.put(
            command_output.table(["gpu", "memory", "cc", "bf16", "fp8", "target"], rows)
        )
    else:
        command_output.put(found.reason or "no GPU")
    command_output.put(
        f"cpu: {cpu.name}, {cpu.threads} of {cpu.physical_cores} cores, "
        f"{cpu.memory_bytes / 2**30:.1f} GiB, target cpu (kind {cpu.kind})\n"
        f"  {' '.join(cpu.features)}"
    )


def doctor(
    target: str,
    float_model: Path | None,
    out: Path | None,
    request: Request,
    workspace: Workspace,
    output: Output,
) -> int:
    """The checks of this machine; with a model, the state of its quantization."""
    if request.model is not None:
        examined.examine(target, float_model, out, request, workspace, output)
        return 0
    return _diagnose(output.json)


def _diagnose(as_json: bool) -> int:
    from optkit.facts.documents.installation import DOCTOR, Installation  # loads pydantic

    checks = []
    for check in api.diagnose():
        checks.append(check)
        if not as_json:
            mark = {"ok": "ok", "missing": "--", "broken": "!!"}[check.state]
            command_output.put(f"{mark}  {check.what:16}  {check.version or '':14}  {check.note}")
    if as_json:
        command_output.put_json(Installation(schema=DOCTOR, checks=tuple(checks)))
    broken = any(check.state == "broken" for check in checks)
    needed = any(check.state != "ok" and check.needed for check in checks)
    return 4 if broken or needed else 0


def completion(shell: str) -> None:
    from optkit.verbs.cli import optkit

    kind = get_completion_class(shell)
    if kind is None:
        raise UsageError(f"click has no completion for {shell}", where="SHELL")
    command_output.put(kind(optkit, {}, "optkit", "_OPTKIT_COMPLETE").source())
