"""The precision of an artifact, from flags that each allow one."""

from __future__ import annotations

from itertools import filterfalse

from optkit.facts.errors import UsageError
from optkit.facts.precisions import PRECISIONS
from optkit.satellites.translation.draft import FlagAnswer, TranslationDraft

_OPTION = "--precision"


def choose(draft: TranslationDraft, default: str, missing: str) -> None:
    """Set --precision: the quantized one, else the float one, else the tool's `default`, which
    applies where `missing` (in words) is missing.

    Raises UsageError for two quantized or two float precisions, unless --precision is given.
    """
    entries = [e for e in draft.entries if e.row and e.row.precision and e.fate == "done"]
    if _OPTION in draft.given:
        for entry in entries:
            draft.set_option(entry, _OPTION, str(entry.becomes))
        return
    quantized = _single(draft, list(filter(_quantizes, entries)))
    chosen = quantized or _single(draft, list(filterfalse(_quantizes, entries)))
    if chosen is not None:
        _allow_beside(draft, entries, chosen)
    elif not any(e.row and e.row.answered_by == _OPTION for e in draft.entries):
        draft.default(missing, f"{_OPTION} {default}")
        draft.options[_OPTION] = default


def _quantizes(entry: FlagAnswer) -> bool:
    return PRECISIONS[str(entry.becomes)].quantized


def _allow_beside(draft: TranslationDraft, entries: list[FlagAnswer], chosen: FlagAnswer) -> None:
    """Set the chosen precision; refuse the flags of others that its layers do not have around
    them."""
    precision = str(chosen.becomes)
    for entry in entries:
        wanted = str(entry.becomes)
        if wanted not in (precision, "fp32", PRECISIONS[precision].carrier):
            entry.refuse(
                f"the layers around those in {precision} are {PRECISIONS[precision].carrier}",
                f"leave one of {chosen.text} and {entry.text} out",
            )
        else:
            draft.set_option(entry, _OPTION, precision)
            if wanted != precision:
                entry.reason = f"the layers around those in {precision} are FP16"


def _single(draft: TranslationDraft, entries: list[FlagAnswer]) -> FlagAnswer | None:
    names = dict.fromkeys(str(entry.becomes) for entry in entries)
    if len(names) > 1:
        raise UsageError(
            f"an artifact has one precision, and these flags name {len(names)}",
            where=f"--{draft.tool} {' '.join(entry.text for entry in entries)}",
            hint=f"leave all but one out, or build both with -p {','.join(names)}",
        )
    return entries[0] if entries else None
