"""What a quantization says about weights, short enough for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

_SHOWN = 3


def shortened(warnings: Sequence[str]) -> tuple[str, ...]:
    """Other warnings, then the first ones about weights and the number of those that are left out.
    A constant weight only wastes codes, so these come last."""
    weights = [text for text in warnings if text.startswith("weight ")]
    weights.sort(key=lambda text: " is constant " in text)
    others = [text for text in warnings if text not in weights]
    left = len(weights) - _SHOWN
    more = [f"and {left} more about weights: details.json of `optkit quantize` lists all"]
    return (*others, *weights[:_SHOWN], *(more if left > 0 else ()))
