"""One text in the cache of a decoder: tokens are read into it, and taken back from its end.

read [a b c]        cache [a b c]          logits of what follows a, b and c
read [d x y]        cache [a b c d x y]
cut to 4            cache [a b c d]        x and y were not the text
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from optkit.facts.tensors import Feed
from optkit.ground.decoder import CACHE_AXIS, IDS, LOGITS, MASK, POSITIONS, Decoder
from optkit.ground.runtimes import Recurrent


class CachedText:
    """A text of at most `room` tokens. `length`: the number of tokens in the cache."""

    def __init__(self, session: Recurrent, decoder: Decoder, room: int) -> None:
        self.length = 0
        self._loop = session.loop(decoder.carried, decoder.empty(1), room)
        self._mask = np.ones((1, room), np.int64) if decoder.masked else None
        self._positions = np.arange(room)[None] if decoder.positions else None

    def read(self, tokens: Sequence[int]) -> np.ndarray:
        """Append one or more tokens in one run: logits [tokens, vocabulary], each row of the token
        that follows. Raises what the session raises."""
        end = self.length + len(tokens)
        feed: Feed = {IDS: np.array([tokens], np.int64)}
        if self._mask is not None:
            feed[MASK] = self._mask[:, :end]
        if self._positions is not None:
            feed[POSITIONS] = self._positions[:, self.length : end]
        logits: np.ndarray = self._loop.run(feed)[LOGITS][0]
        self.length = end
        return logits

    def cut(self, length: int) -> None:
        """Forget all tokens after the first `length` ones."""
        if length < self.length:
            self._loop.cut(length, CACHE_AXIS)
            self.length = length
