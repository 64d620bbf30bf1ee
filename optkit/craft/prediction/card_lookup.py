"""The measurement of a card in the user's configuration, for predictions of its target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from optkit.craft.prediction.card_correction import correction
from optkit.facts.card_facts import CardCorrection, CardFactors, KernelTime
from optkit.ground import card_files
from optkit.ground.card_files import CardFile
from optkit.ground.devices import Target
from optkit.ground.devices import target as find_target


def measured(target: Target) -> Target:
    """The target with what the kernels say that the user measured on this card, if there are some.
    Raises InputRefused for a file that cannot be used."""
    found = card_files.read(target.name)
    if found is None:
        return target
    factors = _factors(found.card.kernels, target.name)
    return replace(target, card=CardCorrection(found.digest, _told(found), factors))


@lru_cache(maxsize=32)
def _factors(times: tuple[KernelTime, ...], target: str) -> Mapping[str, CardFactors]:
    return correction(times, find_target(target))


def _told(found: CardFile) -> str:
    card = found.card
    driver = f", driver {card.driver}" if card.driver else ""
    library = f"{card.library} {card.versions.get(card.library, '')}".strip()
    told = (
        f"predicted from kernels measured on this card on {card.date} "
        f"({card.device}{driver}, {library})"
    )
    different = card_files.difference(card)
    return f"{told}; {different}" if different else told
