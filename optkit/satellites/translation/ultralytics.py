"""What arguments of `yolo export` mean together."""

from __future__ import annotations

from optkit.satellites.translation import flag_values, precision
from optkit.satellites.translation.draft import TranslationDraft

_INPUT = "images"  # the name that the export gives to the input
_SMALLEST = 32  # height and width, of an engine with dynamic=True
_PICTURE = ("imgsz", "batch", "dynamic")


def settle(draft: TranslationDraft) -> None:
    """Complete a translation with what follows from several arguments."""
    precision.choose(draft, "fp32", "no half, int8 or quantize")
    entries = draft.of(*_PICTURE)
    if not entries:
        return
    if not draft.of("imgsz"):
        for entry in entries:
            entry.refuse("the size of the pictures is not known", "add imgsz=640")
        return
    for option, shape in _shapes(draft).items():
        for entry in entries:
            draft.set_option(entry, option, flag_values.written({_INPUT: shape}))
    for entry in entries:
        if entry.overridden_by is None:
            entry.becomes = " ".join(f"{o} {v}" for o, v in draft.options.items() if "shapes" in o)


def _shapes(draft: TranslationDraft) -> dict[str, tuple[int, ...]]:
    """Option → shape of the input. A dynamic engine of Ultralytics takes 1 to `batch` pictures, of
    32×32 up to max(2, workspace) times imgsz in each direction."""
    (size,) = draft.of("imgsz")
    height, width = flag_values.picture(size.value or "")
    batch = next((int(entry.value or 1) for entry in draft.of("batch")), 1)
    tuned = (batch, 3, height, width)
    if not draft.of("dynamic"):
        return {"--shapes": tuned}
    workspace = next((float(entry.value or 0) for entry in draft.of("workspace")), 0.0)
    times = max(2.0, workspace)
    return {
        "--min-shapes": (1, 3, _SMALLEST, _SMALLEST),
        "--opt-shapes": tuned,
        "--max-shapes": (batch, 3, int(times * height), int(times * width)),
    }
