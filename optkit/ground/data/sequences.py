"""Inputs of language models that follow from others, by the names that all exporters use.

attention_mask    1 for a token, 0 for padding; [batch, tokens, those of the cache first]
position_ids      the index of a token among the real ones: cumsum(mask) − 1, at least 0
an empty cache    every input with an axis that may be empty; states of fixed shape are zero
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from optkit.facts.tensors import Feed, TensorInfo, axes_of, size_of
from optkit.ground.decoder import is_state

IDS = "input_ids"
MASK = "attention_mask"
ENCODER_MASK = "encoder_attention_mask"
POSITIONS = "position_ids"


def completed(
    given: Mapping[str, object], inputs: Mapping[str, TensorInfo], optional: Collection[str]
) -> dict[str, object]:
    """`given` with the inputs that it lacks: the mask (all tokens are visible), the positions and
    the empty cache.

    `optional`: axes that may be empty; such an axis has size 0 if no given input has it. Inputs
    that do not follow from `given` stay missing.
    """
    missing = [name for name in inputs if name not in given]
    if not missing:
        return dict(given)
    sizes = dict.fromkeys(optional, 0)
    for name in given.keys() & inputs.keys():
        for dim, size in zip(inputs[name].shape, _shape(given[name]), strict=False):
            sizes[str(dim)] = size
    whole = dict(given)
    known = (inputs[name] for name in missing if sizes.keys() >= set(axes_of(inputs[name].shape)))
    for info in known:
        name, shape = info.name, tuple(size_of(dim, sizes) for dim in info.shape)
        if name == MASK:
            whole[name] = np.ones(shape, info.dtype)
        elif _is_past(name, shape):
            whole[name] = np.zeros(shape, info.dtype)
    if POSITIONS in missing and MASK in whole:
        tokens = sizes.get(str(inputs[POSITIONS].shape[-1]))
        if tokens is not None:
            whole[POSITIONS] = positions(np.asarray(whole[MASK]), tokens, inputs[POSITIONS].dtype)
    return whole


def plausible(feed: Feed) -> Feed:
    """A random feed with plausible masks of padding: on the left if positions follow from the mask,
    as in decoders, else on the right. So each row of an attention has a visible token (without one,
    runtimes differ), and a token that is selected by its id (the end of CLIP's texts) has a defined
    state."""
    masks = {
        name: _padding(*mask.shape, left=name == MASK and POSITIONS in feed).astype(mask.dtype)
        for name, mask in feed.items()
        if name in (MASK, ENCODER_MASK) and mask.ndim == 2 and mask.dtype.kind in "iub"
    }
    whole = {**feed, **masks}
    if POSITIONS in feed and MASK in masks:
        given = feed[POSITIONS]
        whole[POSITIONS] = positions(masks[MASK], given.shape[-1], given.dtype.name)
    return whole


def _padding(rows: int, tokens: int, *, left: bool) -> np.ndarray:
    """[rows, tokens], true for a token. Each row has another amount of padding: the first row has
    some, and none has more than half."""
    padding = np.arange(1, rows + 1) % (tokens // 2 + 1)
    real = np.arange(tokens) >= padding[:, None]
    return real if left else real[:, ::-1]


def positions(mask: np.ndarray, tokens: int, dtype: str) -> np.ndarray:
    """The positions of tokens, [batch, tokens], of the last `tokens` columns of a mask."""
    places = np.cumsum(mask, axis=-1, dtype=np.int64) - 1
    return np.maximum(places, 0)[:, places.shape[-1] - tokens :].astype(dtype)


def _is_past(name: str, shape: tuple[int, ...]) -> bool:
    """Whether an input without tokens is a cache or a state before the first one."""
    return is_state(name) or (0 in shape and name != POSITIONS)


def _shape(value: object) -> tuple[int, ...]:
    try:
        return np.shape(value)  # type: ignore[call-overload, no-any-return]
    # a foreign class may raise any exception; it is reported when the value itself is checked
    except Exception:
        return ()
