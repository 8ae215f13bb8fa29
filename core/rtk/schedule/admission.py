"""Which waiting requests join the next prefill: planned on a ledger of its own, then committed.

`plan_admission` is pure: it locks nothing and allocates nothing, so a refused request leaves no trace. `commit` is the
only place that takes leases, slots and rows; if it fails half-way it gives back everything it took.

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
    """One admitted request and the cache hit that its numbers rest on."""

    request: Request
    match: Match

    @property
    def extend_len(self) -> int:
        """Prompt tokens to compute."""
        return self.request.prompt_len - self.match.length


@dataclass(frozen=True, slots=True)
class AdmissionPlan:
    """Who joins, in order, and why nobody else does."""

    admitted: tuple[Admission, ...] = ()
    stopped_by: Stop = ""


@dataclass(slots=True)
class _Accounts:
    """The balances of one planning round."""

    slots: int
    rows: int
    prefill_tokens: int
    ledger: LockLedger = field(default_factory=LockLedger)


def outstanding(running: Iterable[Request], page_size: int) -> int:
    """Slots that the running requests may still ask for. O(running)."""
    return sum(ceil_page(r.last_position, page_size) - r.capacity for r in running)


def plan_admission(
    candidates: Iterable[Request],
    running: Iterable[Request],
    pools: Pools,
    limits: Limits,
) -> AdmissionPlan:
    """Take candidates in the given order until one does not fit. Pure. O(prompt tokens looked at)."""
    page, cache = limits.page_size, pools.cache
    unreserved = pools.allocator.free + cache.evictable - outstanding(running, page)
    accounts = _Accounts(unreserved, pools.table.free_rows, limits.max_prefill_tokens)
    admitted: list[Admission] = []
    for request in candidates:
        match = cache.peek(request.key, limit=request.prompt_len - 1)
        admission = Admission(request, match)
        verdict = _charge(admission, accounts, cache, page, first=not admitted)
        if verdict:
            return AdmissionPlan(tuple(admitted), verdict)
        admitted.append(admission)
    return AdmissionPlan(tuple(admitted))


def _charge(admission: Admission, accounts: _Accounts, cache: PrefixCache, page: int, *, first: bool) -> Stop:
    """Deduct one candidate from the accounts, or leave them as they are and say which one refused it."""
    extend = ceil_page(admission.extend_len, page)
    if not accounts.rows or (extend > accounts.prefill_tokens and not first):
        return "OTHER"
    locked = cache.lock_cost(admission.match, accounts.ledger)
    need = ceil_page(admission.request.last_position, page) - admission.match.length
    if locked + need > accounts.slots:
        return "NO_TOKEN"
    accounts.ledger.move(admission.match)
    accounts.slots -= locked + need
    accounts.rows -= 1
    accounts.prefill_tokens -= extend
    return ""


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
    if not plan.admitted:
        return []
    cache, requests = pools.cache, [a.request for a in plan.admitted]
    writes: list[TableWrite] = []
    at_fault = requests[0]
    try:
        for admission in plan.admitted:
            at_fault = admission.request
            at_fault.lease = _lease(admission, cache)
        cache.evict(sum(ceil_page(a.extend_len, cache.page_size) for a in plan.admitted) - pools.allocator.free)
        for at_fault in requests:
            writes += _place(at_fault, pools)
    except Exception as error:
        for request in requests:
            give_back(request, pools)
        raise CommitError(at_fault, error) from error
    for request in requests:
        request.status = Status.RUNNING
    return writes


def _lease(admission: Admission, cache: PrefixCache) -> Lease:
    lease = cache.acquire(admission.request.key, admission.match, admission.request.priority)
    if lease.length != admission.match.length:
        lease.release()
        raise RuntimeError(f"planned with {admission.match.length} cached tokens, found {lease.length}")
    return lease


def _place(request: Request, pools: Pools) -> list[TableWrite]:
    """A row for the request, its cached slots in it, and slots for the rest of its prompt."""
    lease, allocator, table = request.lease, pools.allocator, pools.table
    assert lease is not None, "placed before its lease was taken"
    cached = lease.slots()
    request.row = table.alloc()
    fresh = allocator.alloc(ceil_page(request.prompt_len - lease.length, allocator.page_size) // allocator.page_size)
    table.write(request.row, 0, cached)
    table.write(request.row, lease.length, fresh)
    request.cached_len = request.computed_len = lease.length
    request.capacity = lease.length + len(fresh)
    return [TableWrite(request.row, 0, cached)] if lease.length else []


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
