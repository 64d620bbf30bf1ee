"""How many tokens to draft, so that a text gets the most tokens per second.

A run of the target that verifies k tokens gives 1 + a + a² + … + aᵏ of them, if each is accepted
with probability a (Leviathan et al. 2023, arXiv:2211.17192, equation 1), and takes c(k) times as
long as a plain run, which verifies none. Both are measured while the text is written, because they
depend on the model, the machine and the text. The number with the most tokens per second is chosen,
if that is more than WORTH times those of plain runs: the largest of several noisy numbers looks
better than it is. Otherwise it is 0, which is plain decoding.

    a      the share of accepted tokens, with weights that fall by FORGET from draft to draft, for
           each kind of evidence; a draft that was not verified counts too, as far as it is known
    c(k)   the least of the last WINDOW runs, because interruptions only add time; each relative to
           the plain runs before it, so that a busier machine changes nothing. After STALE runs
           without it, a number that was tried once is as new, so that one interrupted run does not
           decide; it takes twice as many for each further try. A number between two that were
           tried is taken to cost no more than the smaller one, since kernels take several rows at
           once, so that it is tried too; one beyond all of them is on their line
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from math import inf

from optkit.satellites.generation.acceptance import agreement

MOST = 8  # tokens of a draft
PLAIN = 2  # runs without a draft at the beginning, which show what a draft has to gain
WORTH = 1.05
FORGET, WINDOW, STALE = 0.9, 5, 50
_ACCEPTED, _TRIED = 1.4, 2.0  # before anything is known
_SLOPE = 0.3  # of c(k), before anything is known
_RETURN = 0.01  # towards what is thought at first, for each run without a draft that costs


class DraftLength:
    """The number of tokens to draft next. `fixed`: always this number."""

    def __init__(self, fixed: int | None = None) -> None:
        self._fixed = fixed
        self._plain: deque[float] = deque(maxlen=WINDOW)  # seconds
        self._relative: dict[int, deque[float]] = {}
        self._costs = _costs({})
        self._stale: dict[int, int] = {}  # the run from which on a number is as new
        self._next = inf  # the run in which the next number is as new
        self._runs = 0
        self._counts: dict[int, tuple[float, float]] = {}  # evidence → accepted, tried

    def choose(self, evidence: int, room: int, *, free: bool) -> int:
        """At most `room`. `free`: the draft is made in any case, so that its acceptance is known
        even if nothing is verified."""
        if not evidence or room < 1:
            return 0
        if self._fixed is not None:
            return min(self._fixed, room)
        if len(self._plain) < PLAIN:
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
        self._time(verified, seconds)
        if not offered:
            return
        accepted, tried = self._counts.get(evidence, (_ACCEPTED, _TRIED))
        same = agreement(offered, new)
        judged = min(same + 1, len(offered), len(new))
        self._counts[evidence] = (FORGET * accepted + same, FORGET * tried + judged)

    def _time(self, verified: int, seconds: float) -> None:
        if not verified:
            self._plain.append(seconds)
        elif self._plain:
            recent = self._relative.setdefault(verified, deque(maxlen=WINDOW))
            recent.append(seconds / min(self._plain))
            self._stale[verified] = self._runs + STALE * 2 ** (len(recent) - 1)
        if verified or self._runs >= self._next:
            known = {k: run for k, run in self._stale.items() if run > self._runs}
            self._next = min(known.values(), default=inf)
            self._costs = _costs({k: min(self._relative[k]) for k in known})

    def _fastest(self, share: float, most: int) -> int:
        best, fastest, expected, power = 0, WORTH, 1.0, 1.0
        for count in range(1, most + 1):
            power *= share
            expected += power
            pace = expected / self._costs[count]
            if pace > fastest:
                best, fastest = count, pace
        return best


def _costs(tried: Mapping[int, float]) -> list[float]:
    """c(k) of 0 to MOST, from those that were tried."""
    costs = [1.0]
    largest = max(tried, default=0)
    slope = (tried[largest] - 1) / largest if tried else _SLOPE
    for count in range(1, MOST + 1):
        costs.append(tried.get(count, costs[-1] + (slope if count > largest else 0)))
    return costs
