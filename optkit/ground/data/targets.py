"""The input of the decoder of an encoder-decoder: the target text, shifted right.

    target     t₁ t₂ … </s> <pad>
    read       s  t₁ t₂ …   </s>       s: the token that every output starts with

Source: `shift_tokens_right` of transformers' BART, `_shift_right` of its T5.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from optkit.facts.errors import InputRefused
from optkit.ground.data import packing
from optkit.ground.data.parts import DECODER_IDS
from optkit.ground.data.reading import Inputs
from optkit.ground.data.tokens import Tokenizer
from optkit.ground.decoder import CONFIG, read_json


def column(target: str | None, inputs: Inputs | None) -> list[str]:
    """The column of the targets, or none. Raises InputRefused if the model takes targets and there
    is no column, or if there is a column and the model takes no targets."""
    if inputs is None or (DECODER_IDS in inputs) == (target is not None):
        return [] if target is None else [target]
    if target is not None:
        reason = f"the model takes no {DECODER_IDS}, so there is nothing to do with {target!r}"
        raise InputRefused(reason, hint="leave out args.target")
    raise InputRefused(
        f"the model takes {DECODER_IDS}, but args.target names no column for them",
        hint="args.target: the column of the text that the model has to write, e.g. summary",
    )


def shifted(
    texts: Sequence[Sequence[int]],
    spoken: Tokenizer,
    model: str | None,
    inputs: Inputs | None,
    *,
    started: bool = False,
) -> np.ndarray:
    """Ids of targets as input of the decoder, [batch, the fixed length of the model or the longest
    length], padded on the right, which the attention of a decoder does not see. `started`: whether
    the template itself begins with the start token of the decoder, as in Whisper; then it is not
    added again.

    Raises InputRefused if the start token is unknown.
    """
    info = (inputs or {}).get(DECODER_IDS)
    width = info.shape[1] if info is not None else None
    length = width if isinstance(width, int) else None
    start = _start(spoken, model)
    fill = start if spoken.pad is None else spoken.pad
    cut = [ids[started and ids[:1] == [start] :][:length] for ids in texts]
    ids = packing.pad(cut, value=fill, side="right", length=length).ids
    ids = np.insert(ids[:, :-1], 0, start, axis=1)
    return ids if info is None else ids.astype(info.dtype)


def _start(spoken: Tokenizer, model: str | None) -> int:
    file = Path(model or "") / CONFIG
    said = read_json(file.read_bytes(), str(file)) if model and file.is_file() else {}
    known = (said.get("decoder_start_token_id"), said.get("pad_token_id"), spoken.pad)
    for token in known:
        if isinstance(token, int):
            return token
    raise InputRefused(
        "the decoder's start token is not known",
        where=spoken.where,
        hint=f"set decoder_start_token_id in the model's {CONFIG}",
    )
