"""`optkit devices --measure`: the kernels of a card, in groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from optkit.ground.workspace import Workspace
from optkit.verbs import api
from optkit.verbs.cli import command_output
from optkit.verbs.cli.command_output import Output

if TYPE_CHECKING:
    from optkit.facts.documents.measured_card import MeasuredCard


def measure(share: Path | None, as_json: bool) -> None:
    with Output(json=as_json).terminal() as listener:
        card = api.measure_card(share, workspace=Workspace(listener=listener))
    if as_json:
        command_output.put_json(card)
        return
    driver = f", driver {card.driver}" if card.driver else ""
    library = f"{card.library} {card.versions[card.library]}"
    command_output.put(
        f"{card.device}: {len(card.kernels)} kernels in {card.seconds:.0f} s ({library}{driver})"
    )
    head = ["kernels", "count", "measured / fitted", "within"]
    command_output.put(command_output.table(head, list(_groups(card))))
    for line in _failures(card):
        command_output.put(line)
    for mark in card.marks:
        command_output.put(f"not reliable: {mark}")
    command_output.put(
        f"kept: {card.path}\n`optkit plan`, `build` and `tune` predict {card.target} from it"
    )
    if share is not None:
        command_output.put(f"to share: {share}")


def _groups(card: MeasuredCard) -> Iterator[list[str]]:
    """Kind and precision, how many kernels, the median of measured over fitted time, and the factor
    that holds nine of ten kernels around the corrected time."""
    from optkit.craft.prediction.card_correction import correction
    from optkit.craft.prediction.card_kernels import group, work_of
    from optkit.craft.prediction.fitted import fitted
    from optkit.craft.prediction.work_time import of_each
    from optkit.ground.devices import target

    device = replace(target(card.target), card=None)
    factors = correction(card.kernels, device)
    ratios: defaultdict[str, list[float]] = defaultdict(list)
    for one in card.kernels:
        work = work_of(one.kernel)
        (of_fit,) = of_each([work], device, fitted().efficiencies)
        ratios[group(work) or ""].append(one.ms / 1e3 / of_fit.total)
    for name, found in ratios.items():
        width = f"{factors[name].width:.2f}x" if name in factors else "too few: not used"
        yield [name, str(len(found)), f"{median(found):.2f}", width]


def _failures(card: MeasuredCard) -> Iterator[str]:
    """A line for each kind and precision with kernels that have no time, with the first reason."""
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    for one in card.failed:
        reasons[f"{one.kernel.kind} {one.kernel.precision}"].append(one.reason)
    for name, told in reasons.items():
        yield f"not measured: {len(told)} of {name}: {told[0]}"
