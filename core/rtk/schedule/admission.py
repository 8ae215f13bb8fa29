"""Which waiting requests join the next prefill: planned on a ledger of its own, then committed.

`plan_admission` is pure: it locks nothing and allocates nothing, so a refused request leaves no trace. `commit` is the
only place that takes leases, slots and rows; if it fails half-way it gives back everything it took.

A prompt that does not fit into the step is cut at a page border; its request, the *chunked* one, goes on in the next
steps before anybody else is looked at. There is one at a time.

The account is in slots: R = free + evictable - what the running requests may still need. A candidate's hit path moves
from evictable to protected first; it is admitted iff its whole answer fits into what is left. Decoding therefore never
lacks a slot.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from rtk.cache.lease import Lease
from rtk.cache.node import LockLedger, Match
from rtk.cache.pools import Pools
from rtk.cache.tree import PrefixCache
from rtk.errors import one_line
from rtk.schedule.batch import TableWrite
from rtk.schedule.budget import Limits, ceil_page
from rtk.schedule.request import Request, Status

Stop = Literal["", "NO_TOKEN", "OTHER"]
"""Why planning stopped before the end of the queue: memory, or anything else."""


@dataclass(frozen=True, slots=True)
class Admission:
    """One admitted request, the cache hit that its numbers rest on, and where its first step ends."""

    request: Request
    match: Match
    stop: int
    """Position up to which the prompt is computed in this step."""

    @property
    def extend_len(self) -> int:
        """Prompt tokens to compute in this step."""
        return self.stop - self.match.length


@dataclass(frozen=True, slots=True)
class Continuation:
    """The next piece of the chunked request."""

    request: Request
    stop: int
    """Position up to which the prompt is computed in this step."""

    @property
    def extend_len(self) -> int:
        """Prompt tokens to compute in this step."""
        return self.stop - self.request.computed_len


@dataclass(frozen=True, slots=True)
class AdmissionPlan:
    """Who goes on, who joins, in order, and why nobody else does."""

    continuation: Continuation | None = None
    admitted: tuple[Admission, ...] = ()
    stopped_by: Stop = ""

    @property
    def batch(self) -> list[Request]:
        """The requests of the step."""
        first = [self.continuation.request] if self.continuation else []
        return [*first, *(admission.request for admission in self.admitted)]


@dataclass(slots=True)
class _Accounts:
    """The balances of one planning round."""

    slots: int
    rows: int
    prefill_tokens: int
    chunk_tokens: int | None
    """None: prompts are not cut."""
    page_size: int
    chunked: bool = False
    """Whether some request is cut already."""
    untouched: bool = True
    """Whether nobody is in the batch yet."""
    ledger: LockLedger = field(default_factory=LockLedger)

    def piece(self, tokens: int) -> int:
        """How many of `tokens` prompt tokens this step computes: all, whole pages of them, or none."""
        charge = ceil_page(tokens, self.page_size)
        if self.chunk_tokens is None:
            return tokens if charge <= self.prefill_tokens or self.untouched else 0
        room = min(self.prefill_tokens, self.chunk_tokens)
        if charge <= room:
            return tokens
        return 0 if self.chunked else room - room % self.page_size

    def spend(self, piece: int, tokens: int) -> None:
        """`piece` of `tokens` prompt tokens are computed in this step."""
        charge = ceil_page(piece, self.page_size)
        self.prefill_tokens -= charge
        if self.chunk_tokens is not None:
            self.chunk_tokens -= charge
        self.chunked |= piece < tokens
        self.untouched = False


def outstanding(running: Iterable[Request], page_size: int) -> int:
    """Slots that the running requests may still ask for. O(running)."""
    return sum(ceil_page(r.last_position, page_size) - r.capacity for r in running)


def plan_admission(
    candidates: Iterable[Request],
    running: Iterable[Request],
    pools: Pools,
    limits: Limits,
    chunked: Request | None = None,
) -> AdmissionPlan:
    """Go on with the chunked request, then take candidates in the given order until one does not fit.

    Pure. O(prompt tokens looked at).
    """
    page, cache = limits.page_size, pools.cache
    accounts = _Accounts(
        slots=pools.allocator.free + cache.evictable - outstanding(running, page),
        rows=pools.table.free_rows,
        prefill_tokens=limits.max_prefill_tokens,
        chunk_tokens=limits.chunk_tokens,
        page_size=page,
    )
    continuation = _continue(chunked, accounts) if chunked else None
    admitted: list[Admission] = []
    for request in candidates:
        match = cache.peek(request.key, limit=request.fill_len - 1)
        admission = _charge(request, match, accounts, cache)
        if isinstance(admission, str):
            return AdmissionPlan(continuation, tuple(admitted), admission)
        admitted.append(admission)
    return AdmissionPlan(continuation, tuple(admitted))


def _continue(request: Request, accounts: _Accounts) -> Continuation:
    """The chunked request's next piece. Its row is taken and its slots are reserved: only the step limits it."""
    left = request.fill_len - request.computed_len
    piece = accounts.piece(left)
    accounts.spend(piece, left)
    return Continuation(request, request.computed_len + piece)


def _charge(request: Request, match: Match, accounts: _Accounts, cache: PrefixCache) -> Admission | Stop:
    """Deduct one candidate from the accounts, or leave them as they are and say which one refused it."""
    uncached = request.fill_len - match.length
    piece = accounts.piece(uncached)
    if not accounts.rows or not piece:
        return "OTHER"
    locked = cache.lock_cost(match, accounts.ledger)
    need = ceil_page(request.last_position, accounts.page_size) - match.length
    if locked + need > accounts.slots:
        return "NO_TOKEN"
    accounts.ledger.move(match)
    accounts.slots -= locked + need
    accounts.rows -= 1
    accounts.spend(piece, uncached)
    return Admission(request, match, match.length + piece)


class CommitError(RuntimeError):
    """Committing one admission failed; everything the round had taken is given back. `request` is the one at fault."""

    def __init__(self, request: Request, cause: Exception) -> None:
        super().__init__(f"request {request.rid!r} could not be admitted: {one_line(cause)}")
        self.request = request


def commit(plan: AdmissionPlan, pools: Pools) -> list[TableWrite]:
    """Take all leases, evict what the round lacks, then give each request its row and slots.

    Returns the table entries of the cached prefixes, for the executor's copy. Raises `CommitError`, with the books as
    they were before the call except that cached content may have been evicted or split.
    """
    goes_on = plan.continuation
    pieces: list[Admission | Continuation] = [*([goes_on] if goes_on else []), *plan.admitted]
    if not pieces:
        return []
    cache, page = pools.cache, pools.cache.page_size
    writes: list[TableWrite] = []
    at_fault, held = pieces[0].request, pieces[0].request.capacity
    try:
        for admission in plan.admitted:
            at_fault = admission.request
            at_fault.lease = _lease(admission, cache)
        cache.evict(sum(ceil_page(piece.extend_len, page) for piece in pieces) - pools.allocator.free)
        if goes_on:
            at_fault = goes_on.request
            _extend(at_fault, goes_on.stop, pools)
        for admission in plan.admitted:
            at_fault = admission.request
            writes += _place(at_fault, admission.stop, pools)
    except Exception as error:
        if goes_on:
            _shrink(goes_on.request, held, pools)
        for admission in plan.admitted:
            give_back(admission.request, pools)
        raise CommitError(at_fault, error) from error
    for piece in pieces:
        piece.request.status, piece.request.planned_len = Status.RUNNING, piece.stop
    return writes


def _lease(admission: Admission, cache: PrefixCache) -> Lease:
    lease = cache.acquire(admission.request.key, admission.match, admission.request.priority)
    if lease.length != admission.match.length:
        lease.release()
        raise RuntimeError(f"planned with {admission.match.length} cached tokens, found {lease.length}")
    return lease


def _place(request: Request, stop: int, pools: Pools) -> list[TableWrite]:
    """A row for the request, its cached slots in it, and slots for its prompt up to `stop`."""
    lease, table = request.lease, pools.table
    assert lease is not None, "placed before its lease was taken"
    cached = lease.slots()
    request.row = table.alloc()
    table.write(request.row, 0, cached)
    request.cached_len = request.computed_len = request.capacity = lease.length
    _extend(request, stop, pools)
    return [TableWrite(request.row, 0, cached)] if lease.length else []


def _extend(request: Request, stop: int, pools: Pools) -> None:
    """Slots for the request's positions up to `stop`."""
    page = pools.allocator.page_size
    fresh = pools.allocator.alloc((ceil_page(stop, page) - request.capacity) // page)
    pools.table.write(request.row, request.capacity, fresh)
    request.capacity += len(fresh)


def _shrink(request: Request, capacity: int, pools: Pools) -> None:
    """Give back the slots of the positions from `capacity` on."""
    if request.capacity > capacity:
        pools.allocator.release(pools.table.slots(request.row, capacity, request.capacity))
        request.capacity = capacity


def give_back(request: Request, pools: Pools) -> None:
    """Release all that a request holds, in whole or in part: slots that are not in the tree, the row, the lease."""
    lease = request.lease
    try:
        detach(request, pools)
    finally:
        if lease:
            lease.release()


def detach(request: Request, pools: Pools) -> Lease | None:
    """Release all that a request holds but its lease, which is answered."""
    lease, row = request.lease, request.row
    request.lease, request.row = None, 0
    if row:
        begin = lease.length if lease else 0
        slots = pools.table.slots(row, begin, request.capacity)
        pools.table.release(row)
        request.capacity = request.computed_len = 0
        pools.allocator.release(slots)
    return lease
