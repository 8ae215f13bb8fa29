"""Which waiting requests join the next prefill: planned on a ledger of its own, and then for `commit` to take.

`plan_admission` is pure: it locks nothing and allocates nothing, so a refused request leaves no trace.

A prompt that does not fit into the step is cut at a page border; its request, the *chunked* one, goes on in the next
steps before anybody else is looked at. There is one at a time. A candidate whose prompt begins as one of the step does
is not computed along: the next step finds that part in the cache.

Two accounts are in slots. The *total* balance is

    R = free + evictable - ratio * sum(min(what each running request may still generate, 4096))

and a candidate is admitted iff its charge, `budget.charge` of all it has to compute and to generate, is less than R,
with its hit path moved from evictable to protected first. A middle piece is then charged without an answer. The
*current* balance has no reserves: it must hold what is computed in this step. Two more accounts are in tokens of the
step, those of prompts and those of pieces; where running requests decode along, they are charged for one token each.

The charge of a request that was retracted can exceed the pool by a page, as the output that it kept is rounded up to
pages too. So where nothing else runs, a request is also admitted if the slots that it needs at most are there.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import lcm
from typing import Literal, NamedTuple

from rtk.cache.key import TOKEN_BYTES, Key
from rtk.cache.node import LockLedger, Match
from rtk.cache.pools import Pools
from rtk.cache.tree import PrefixCache
from rtk.schedule.budget import CLIP_NEW_TOKENS, Limits, ceil_page, charge
from rtk.schedule.request import Request

Verdict = Literal["CONTINUE", "NO_TOKEN", "OTHER"]
"""What a candidate is told, and whoever asks next: go on; no slots for it; any other reason, gone in the next step."""

Reason = Literal["", "kv", "input", "chunk", "alignment", "cut", "rows", "prefix"]
"""Which account refused a candidate: slots, a step's prompt tokens, those of a piece, less than a page of them left,
nothing left but another request is cut already, request rows; or that the step computes what its prompt begins with."""

SHARED_LEAST = 64
"""Tokens that a prompt must share with one of the step, beyond what it hits, for it to wait for the next step: to read
the weights once more must cost less than to compute these twice."""


class Balances(NamedTuple):
    """The accounts of a round, before or after a candidate."""

    current: int
    """Slots for what is computed in this step."""
    total: float
    """R: slots beyond what the running and the admitted requests are expected to need."""
    input_tokens: int
    chunk_tokens: int | None
    """None: prompts are not cut."""
    rows: int


class Lack(NamedTuple):
    """Slots that a candidate lacks: it would fit with none of the current and less than none of the total balance."""

    current: int
    total: float
    locked: Mapping[int, int]
    """Tokens from the start of nodes (by id) that its hit and those of this round lock, whoever lets go of them."""


class Attempt(NamedTuple):
    """What became of one candidate in one round. Lengths are in tokens."""

    rid: str
    prefix: int
    """Found in the cache, or computed by the pieces before."""
    candidate: int
    """To compute beyond it."""
    selected: int
    """Of these, computed in this step."""
    charge: int
    locked: int
    """Cached slots that it takes from the balances by locking them."""
    before: Balances
    after: Balances
    verdict: Verdict
    reason: Reason = ""

    @property
    def is_chunked(self) -> bool:
        """Whether it is computed in part."""
        return 0 < self.selected < self.candidate


@dataclass(frozen=True, slots=True)
class Admission:
    """One admitted request, the cache hit that its numbers rest on, and where its first step ends."""

    request: Request
    match: Match
    stop: int
    """Position up to which it is computed in this step."""

    @property
    def extend_len(self) -> int:
        """Tokens to compute in this step."""
        return self.stop - self.match.length


@dataclass(frozen=True, slots=True)
class Continuation:
    """The next piece of the chunked request."""

    request: Request
    stop: int
    """Position up to which it is computed in this step."""

    @property
    def extend_len(self) -> int:
        """Tokens to compute in this step."""
        return self.stop - self.request.launched_len


@dataclass(frozen=True, slots=True)
class AdmissionPlan:
    """Who goes on, who joins, in order, and why nobody else does."""

    continuation: Continuation | None
    admitted: tuple[Admission, ...]
    attempts: tuple[Attempt, ...]
    """One for everybody who was looked at, in order."""
    refused: Request | None
    """The candidate at which the round stopped."""
    total: float
    """R after the round."""
    lack: Lack | None = None
    """What it lacks of slots, where these or a row, and nothing of the step, were the reason."""

    @property
    def batch(self) -> list[Request]:
        """The requests of the step."""
        first = [self.continuation.request] if self.continuation else []
        return [*first, *(admission.request for admission in self.admitted)]

    @property
    def verdict(self) -> Verdict:
        """What the last one who was looked at was told."""
        return self.attempts[-1].verdict if self.attempts else "CONTINUE"


def reserve(request: Request) -> int:
    """Tokens that a running request may still generate, as far as accounts look ahead."""
    return min(max(request.left, 0), CLIP_NEW_TOKENS)


def next_slots(decoding: Iterable[Request], page_size: int) -> int:
    """Slots that these take for their next tokens: a page each where theirs are full. O(requests)."""
    return sum(r.launched_len == r.capacity for r in decoding) * page_size


def balance(pools: Pools, running: Iterable[Request], ratio: float) -> float:
    """R. Those of which part is not launched yet have no reserve. O(running)."""
    reserved = sum(reserve(r) for r in running if r.launched_len >= r.fill_len)
    return pools.allocator.free + pools.cache.evictable - ratio * reserved


@dataclass(slots=True)
class _Accounts:
    """The balances of one planning round."""

    current: int
    total: float
    input_tokens: int
    chunk_tokens: int | None
    rows: int
    page: int
    border: int
    """Prompts are cut at multiples of this."""
    alone: bool
    """Whether nobody runs and nobody is in the batch yet."""
    cut: bool = False
    """Whether some request is in the middle of its prompt."""
    untouched: bool = True
    """Whether nobody is in the batch yet."""
    begun: list[tuple[Key, int]] = field(default_factory=list)
    """The prompts of the batch, and up to where this step computes them."""
    lack: Lack | None = None
    ledger: LockLedger = field(default_factory=LockLedger)
    attempts: list[Attempt] = field(default_factory=list)

    def balances(self) -> Balances:
        return Balances(self.current, self.total, self.input_tokens, self.chunk_tokens, self.rows)

    def piece(self, start: int, tokens: int, room: int | None = None) -> tuple[int, Reason]:
        """How many of `tokens` from position `start` this step computes: all, up to a border, or none, and why.

        `room`: at most so many.
        """
        pages = ceil_page(tokens, self.page)
        if self.chunk_tokens is None:
            return (tokens, "") if pages <= self.input_tokens or self.untouched else (0, "input")
        room = min(self.input_tokens, self.chunk_tokens) if room is None else room
        if pages <= room:
            return tokens, ""
        if self.cut:
            return 0, "cut"
        whole = (start + room) // self.border * self.border - start
        if whole > 0:
            return whole, ""
        return 0, "alignment" if room > 0 else "input" if self.input_tokens <= 0 else "chunk"

    def computes(self, request: Request, cached: int) -> bool:
        """Whether the step computes `SHARED_LEAST` tokens behind the `cached` ones for another prompt. O(batch)."""
        stop = ceil_page(cached + SHARED_LEAST, self.page)
        if stop > request.hit_limit:
            return False
        (namespace, tokens), begin, end = request.key, cached * TOKEN_BYTES, stop * TOKEN_BYTES
        return any(
            reached >= stop
            and key.tokens[begin:end] == tokens[begin:end]
            and key.namespace == namespace
            and key.tokens.startswith(tokens[:begin])
            for key, reached in self.begun
        )

    def spend(self, request: Request, start: int, piece: int, answer: int, *, cut: bool) -> None:
        """`piece` tokens of a request are computed in this step, and `answer` tokens may follow."""
        self.begun.append((request.key, start + piece))
        pages = ceil_page(piece, self.page)
        self.current -= pages
        self.total -= charge(piece, answer, self.page)
        self.input_tokens -= pages
        if self.chunk_tokens is not None:
            self.chunk_tokens -= pages
        self.cut |= cut
        self.untouched = self.alone = False


def plan_admission(
    candidates: Iterable[Request],
    running: Sequence[Request],
    pools: Pools,
    limits: Limits,
    *,
    ratio: float,
    chunked: Request | None = None,
    chunk_reserve: int = 0,
    decoding: Sequence[Request] = (),
    waiting: int = 0,
) -> AdmissionPlan:
    """Go on with the chunked request, then take candidates in the given order until one does not fit.

    `ratio`: the new-token ratio. `chunk_reserve`: tokens that the chunked request leaves to others, as long as it gets
    a piece up to the next border. `decoding`: running requests that decode in the same step; they leave as much.
    `waiting`: requests whose prompts are not computed, which weigh against those.
    Pure. O(prompt tokens looked at + running).
    """
    page, chunk, border = limits.page_size, limits.chunk_tokens, lcm(limits.page_size, limits.align_tokens)
    accounts = _Accounts(
        current=pools.allocator.free + pools.cache.evictable - next_slots(decoding, page),
        total=balance(pools, running, ratio),
        input_tokens=max(border, limits.max_prefill_tokens - len(decoding)),
        chunk_tokens=None if chunk is None else max(border, _room_beside(chunk, limits, len(decoding), waiting)),
        rows=pools.table.free_rows,
        page=page,
        border=border,
        alone=not running,
    )
    continuation = _continue(chunked, accounts, chunk_reserve) if chunked else None
    admitted: list[Admission] = []
    refused = None
    for request in candidates:
        admission = _admit(request, accounts, pools.cache)
        if admission is None:
            refused = request
            break
        admitted.append(admission)
    return AdmissionPlan(
        continuation, tuple(admitted), tuple(accounts.attempts), refused, accounts.total, accounts.lack
    )


def _room_beside(chunk: int, limits: Limits, decoding: int, waiting: int) -> int:
    """Prompt tokens of a step in which so many decode along.

    Each of these takes one. As long as no more wait than decode it is the pace of these that counts; then a step gets
    longer in proportion.
    """
    room = chunk - decoding
    if not decoding or limits.mixed_tokens is None:
        return room
    return min(room, limits.mixed_tokens * max(waiting, decoding) // decoding)


def _continue(request: Request, accounts: _Accounts, chunk_reserve: int) -> Continuation | None:
    """The chunked request's next piece. Its row is taken; only the step, and slots for the piece, limit it."""
    start, page, before = request.launched_len, accounts.page, accounts.balances()
    left = request.fill_len - start
    step = accounts.input_tokens if before.chunk_tokens is None else min(accounts.input_tokens, before.chunk_tokens)
    room = min(max(step - chunk_reserve, accounts.border), step)
    piece, reason = accounts.piece(start, left, min(room, accounts.current))
    answer = reserve(request) if piece == left else 0
    if piece:
        accounts.spend(request, start, piece, answer, cut=piece < left)
    _note(accounts, request, start, piece, charge(piece, answer, page), 0, before, reason if piece else "kv")
    if not piece:  # slots are lacking, and what there is of them is not for those behind it
        accounts.current -= min(ceil_page(left, page), room)
        accounts.cut = True
    return Continuation(request, start + piece) if piece else None


def _admit(request: Request, accounts: _Accounts, cache: PrefixCache) -> Admission | None:
    """Deduct one candidate from the accounts, or leave them as they are and note which one refused it."""
    match, before = cache.peek(request.key, limit=request.hit_limit), accounts.balances()
    uncached, answer = request.fill_len - match.length, reserve(request)
    cost, locked = charge(uncached, answer, accounts.page), cache.lock_cost(match, accounts.ledger)
    piece, reason = accounts.piece(match.length, uncached)
    if piece and cache.enabled and accounts.computes(request, match.length):
        piece, reason = 0, "prefix"
    moved = accounts.ledger.moved
    lack = Lack(ceil_page(piece, accounts.page) - accounts.current + locked, cost - accounts.total + locked, moved)
    if not accounts.rows:
        piece, reason, accounts.lack = 0, "rows", lack if piece else None
    elif piece and not _fits(request, match, accounts, locked, lack):
        piece, reason, accounts.lack = 0, "kv", lack
    if piece or accounts.lack:
        accounts.ledger.move(match)
    if piece:
        accounts.current -= locked
        accounts.total -= locked
        accounts.rows -= 1
        accounts.spend(request, match.length, piece, answer if piece == uncached else 0, cut=piece < uncached)
    _note(accounts, request, match.length, piece, cost, locked, before, reason)
    return Admission(request, match, match.length + piece) if piece else None


def _fits(request: Request, match: Match, accounts: _Accounts, locked: int, lack: Lack) -> bool:
    """Whether the slots are there, for this step and for what is expected to follow."""
    if accounts.alone:
        longest = ceil_page(max(request.last_position, request.fill_len), accounts.page)
        return longest - match.length <= accounts.current - locked
    return lack.current <= 0 and lack.total < 0


def _note(
    accounts: _Accounts,
    request: Request,
    prefix: int,
    piece: int,
    cost: int,
    locked: int,
    before: Balances,
    reason: Reason,
) -> None:
    verdict: Verdict = "CONTINUE" if piece else "NO_TOKEN" if reason == "kv" else "OTHER"
    lengths = (prefix, request.fill_len - prefix, piece, cost, locked)
    accounts.attempts.append(Attempt(request.rid, *lengths, before, accounts.balances(), verdict, reason))
