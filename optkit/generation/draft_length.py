"""How many tokens to draft, so that a text gets the most tokens per second.

A run of the target that verifies k tokens gives 1 + a + a² + … + aᵏ of them, if each is accepted
with probability a (Leviathan et al. 2023, arXiv:2211.17192, equation 1), and takes the time t(k).
Both are measured while the text is written, because they depend on the model, the machine and the
text. The number with the most tokens per second is chosen; it may be 0, which is plain decoding.

    a      the share of accepted tokens, with weights that fall by FORGET from draft to draft, for
           each kind of evidence; a draft that was not verified counts too, as far as it is known
    t(k)   the median of the last WINDOW runs, forgotten after STALE runs; between the numbers that
           were tried, and beyond them, on straight lines
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

from optkit.generation.acceptance import agreement

MOST = 8  # tokens of a draft
PLAIN = 2  # runs without a draft at the beginning, which show what a draft has to gain
FORGET, WINDOW, STALE = 0.9, 5, 200
_ACCEPTED, _TRIED = 1.4, 2.0  # before anything is known
_SLOPE = 0.25  # of t(0), for each token
_RETURN = 0.02  # towards what is thought at first, for each run without a draft that costs


class DraftLength:
    """The number of tokens to draft next. `fixed`: always this number."""

    def __init__(self, fixed: int | None = None) -> None:
        self._fixed = fixed
        self._seconds: dict[int, deque[float]] = {}
        self._times: dict[int, float] = {}  # t(k)
        self._last: dict[int, int] = {}  # the run in which a number was last tried
        self._runs = 0
        self._counts: dict[int, tuple[float, float]] = {}  # evidence → accepted, tried

    def choose(self, evidence: int, room: int, *, free: bool) -> int:
        """At most `room`. `free`: the draft is made in any case, so that its acceptance is known
        even if nothing is verified."""
        if not evidence or room < 1:
            return 0
        if self._fixed is not None:
            return min(self._fixed, room)
        if len(self._seconds.get(0, ())) < PLAIN:
            return 0
        accepted, tried = self._counts.get(evidence, (_ACCEPTED, _TRIED))
        best = self._fastest(accepted / tried, min(MOST, room))
        if not best and not free:
            self._counts[evidence] = (
                accepted + _RETURN * (_ACCEPTED - accepted),
                tried + _RETURN * (_TRIED - tried),
            )
        return best

    def learn(
        self,
        evidence: int,
        offered: Sequence[int],
        new: Sequence[int],
        verified: int,
        seconds: float,
    ) -> None:
        """After a run: the draft, of which it verified the first tokens, the tokens that it gave,
        and its time, with that of the draft if this is not free."""
        self._runs += 1
        recent = self._seconds.setdefault(verified, deque(maxlen=WINDOW))
        recent.append(seconds)
        self._times[verified], self._last[verified] = median(recent), self._runs
        for stale in [k for k, run in self._last.items() if k and self._runs - run > STALE]:
            del self._seconds[stale], self._times[stale], self._last[stale]
        if not offered:
            return
        accepted, tried = self._counts.get(evidence, (_ACCEPTED, _TRIED))
        same = agreement(offered, new)
        judged = min(same + 1, len(offered), len(new))
        self._counts[evidence] = (FORGET * accepted + same, FORGET * tried + judged)

    def _fastest(self, share: float, most: int) -> int:
        best, fastest, expected, power = 0, 1 / self._times[0], 1.0, 1.0
        for count in range(1, most + 1):
            power *= share
            expected += power
            pace = expected / self._time(count)
            if pace > fastest:
                best, fastest = count, pace
        return best

    def _time(self, count: int) -> float:
        times = self._times
        if count in times:
            return times[count]
        below = max(k for k in times if k < count)
        above = min((k for k in times if k > count), default=None)
        if above is not None:
            slope = (times[above] - times[below]) / (above - below)
        else:
            slope = (times[below] - times[0]) / below if below else _SLOPE * times[0]
        return times[below] + slope * (count - below)
