"""Takes what a plan says, leases, slots and rows, and gives back what a request holds.

`commit` is the only place that takes them; if it fails half-way it gives back everything it took.
"""

from rtk.cache.lease import Lease
from rtk.cache.pools import Pools
from rtk.cache.tree import PrefixCache
from rtk.errors import one_line
from rtk.schedule.admission import Admission, AdmissionPlan, Continuation
from rtk.schedule.batch import TableWrite
from rtk.schedule.budget import ceil_page
from rtk.schedule.request import Request, Status


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
            extend(at_fault, goes_on.stop, pools)
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
    request.launched_len = request.computed_len = request.capacity = lease.length
    if not request.retractions:
        request.cached_len = lease.length
    extend(request, stop, pools)
    return [TableWrite(request.row, 0, cached)] if lease.length else []


def extend(request: Request, stop: int, pools: Pools) -> None:
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
        request.capacity = request.computed_len = request.launched_len = 0
        pools.allocator.release(slots)
    return lease
