"""A key-value cache in blocks (Kwon et al. 2023, arXiv 2309.06180), with prefixes that requests
share."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

from optkit.craft.prediction.decoder_work import DecoderShape
from optkit.satellites.serving.traffic import Arrival


@dataclass(slots=True, eq=False)
class ServedRequest:
    """A request and what became of it. `target`: tokens that must be in the cache before it writes
    on: its prompt, and after a preemption also what it had written; `read`: those that are there
    already. `cached`: tokens in the cache while it writes; `left`: tokens that it has still to
    write. `hit`: tokens that the blocks of its prefix hold; `blocks`: its own, which are full at
    `room` tokens; `apart`: it was preempted, and uses no prefix any more.
    Moments in seconds; `started`: of its first pass."""

    arrival: Arrival
    target: int = 0
    read: int = 0
    cached: float = 0.0
    left: float = 0.0
    hit: int = 0
    blocks: int = 0
    room: float = 0.0
    apart: bool = False
    started: float | None = None
    first: float | None = None
    ended: float | None = None

    def __post_init__(self) -> None:
        self.target, self.left = self.arrival.prompt, self.arrival.new

    @property
    def moments(self) -> tuple[float, float, float]:
        """Of its first pass, its first token and its last one, once it is answered."""
        return self.started or 0.0, self.first or 0.0, self.ended or 0.0


@dataclass(slots=True)
class _Prefix:
    tokens: int = 0
    blocks: int = 0
    users: int = 0


@dataclass
class PagedCache:
    """`size` blocks of `block` tokens each. A request holds its own blocks, and uses those of its
    prefix; a prefix that nobody uses stays until its blocks are needed."""

    shape: DecoderShape
    size: int
    block: int
    free: int = field(init=False)
    _prefixes: dict[str, _Prefix] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free = self.size

    @property
    def used(self) -> int:
        """Blocks of requests, and of the prefixes that they use or used."""
        return self.size - self.free

    @property
    def of_prefixes(self) -> int:
        return sum(one.blocks for one in self._prefixes.values())

    def blocks_for(self, tokens: float) -> int:
        """Blocks that a sequence of so many tokens takes; less where layers have a window."""
        return ceil(self.shape.cached(tokens) / self.block - 1e-9)

    def admit(self, request: ServedRequest, tokens: float) -> bool:
        """Give a request blocks for so many tokens, less those of its prefix. False, and nothing is
        changed, where there are too few."""
        prefix = self._prefixes.get(request.arrival.prefix)
        shared = self._shared(request)
        hit = 0 if prefix is None else min(prefix.tokens, shared, request.target - 1)
        request.hit = hit // self.block * self.block
        if prefix is not None and request.hit:
            prefix.users += 1  # before blocks are freed for it
        if self.grow(request, tokens):
            return True
        if prefix is None or not request.hit:
            return False
        prefix.users -= 1  # without it, its blocks may be enough
        request.hit = 0
        return self.grow(request, tokens)

    def grow(self, request: ServedRequest, tokens: float) -> bool:
        """Let a request have blocks for so many tokens. False, and nothing is changed, where there
        are too few."""
        own = max(0, self.blocks_for(tokens) - self.blocks_for(request.hit)) - request.blocks
        if own > self.free:
            self._drop(own - self.free)
        if own > self.free:
            return False
        self.free -= max(0, own)
        request.blocks += max(0, own)
        whole = self.shape.window is None
        request.room = request.hit + request.blocks * self.block if whole else tokens
        return True

    def share(self, request: ServedRequest) -> None:
        """The blocks of the prefix that a request has read become those of the prefix."""
        shared = self._shared(request)
        if not shared:
            return
        prefix = self._prefixes.setdefault(request.arrival.prefix, _Prefix())
        if shared <= prefix.tokens or request.hit < prefix.tokens:
            return
        moved = self.blocks_for(shared) - self.blocks_for(request.hit)
        if not request.hit:
            prefix.users += 1
        prefix.tokens, request.hit = shared, shared
        prefix.blocks += moved
        request.blocks -= moved

    def _shared(self, request: ServedRequest) -> int:
        """Tokens of whole blocks that it has in common with others."""
        return 0 if request.apart else request.arrival.shared // self.block * self.block

    def release(self, request: ServedRequest) -> None:
        """Take the blocks of a request back."""
        self.free += request.blocks
        request.blocks, request.room = 0, 0.0
        if request.hit:
            name = request.arrival.prefix
            prefix = self._prefixes.pop(name)
            prefix.users -= 1
            self._prefixes[name] = prefix  # the last one to be dropped
            request.hit = 0

    def _drop(self, needed: int) -> None:
        """Free so many blocks of prefixes that nobody uses, the one unused for longest first."""
        for name in [name for name, one in self._prefixes.items() if not one.users]:
            if needed <= 0:
                return
            freed = self._prefixes.pop(name).blocks
            self.free += freed
            needed -= freed
