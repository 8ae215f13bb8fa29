"""The requests that run, and what they hold: rows, leases, slots, and the steps that still use them."""

import logging
from collections.abc import Iterable

from rtk.cache.lease import Lease
from rtk.cache.pools import Pools
from rtk.cache.slots import Slots
from rtk.observe.logs import about
from rtk.schedule.admission import next_slots
from rtk.schedule.batch import TableWrite
from rtk.schedule.budget import ceil_page
from rtk.schedule.commit import detach, extend, give_back
from rtk.schedule.flight import Flight
from rtk.schedule.request import Request

log = logging.getLogger(__name__)


class Running:
    """Who runs. A request that ends while a step computes it is *leaving*: the step that is taken in frees it."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._page = pools.cache.page_size
        self._leaving: list[Request] = []
        self.requests: list[Request] = []
        self.chunked: Request | None = None
        """One of the requests: part of its prompt is not launched yet."""
        self.flight: Flight | None = None
        """The step that is launched and not taken in."""
        self.writes: list[TableWrite] = []
        """Table entries that the executor does not know yet."""
        self.wrong_books = 0
        """Requests whose release failed."""

    def decoding(self) -> list[Request]:
        """Those who decode next: their prompts are launched, and they are not known to end with what is. O(running)."""
        return [r for r in self.requests if r.launched_len >= r.fill_len and r.left > 0]

    def has_room(self, rows: Iterable[Request]) -> bool:
        """Whether each of these can have a slot for its next token, after evictions. O(rows)."""
        return next_slots(rows, self._page) <= self._pools.allocator.free + self._pools.cache.evictable

    def grow(self, rows: list[Request]) -> list[Request]:
        """Give each of these a slot for its next token; answers those for whom it failed, which is a bug."""
        pools, failed = self._pools, []
        pools.cache.evict(next_slots(rows, self._page) - pools.allocator.free)
        for request in [r for r in rows if r.launched_len == r.capacity]:
            try:
                pools.table.write(request.row, request.capacity, pools.allocator.alloc(1))
                request.capacity += self._page
            except Exception:
                log.exception(
                    "request %s ends: a slot that was counted on is not there", request.rid, extra=about(request.rid)
                )
                failed.append(request)
        for request in rows:
            request.planned_len = request.launched_len + 1
        return failed

    def room_to_guess(self, request: Request, rows: list[Request]) -> int:
        """Positions behind its next one that a request can have, with what `rows` take for the step after put aside."""
        slots = self._pools.allocator.free + self._pools.cache.evictable - len(rows) * self._page
        return request.capacity - request.planned_len + max(0, slots // self._page * self._page)

    def reach(self, request: Request, stop: int) -> None:
        """Give a request slots up to position `stop`, for which there is room, and plan to compute up to there."""
        lacking = ceil_page(stop, self._page) - request.capacity
        self._pools.cache.evict(max(0, lacking) - self._pools.allocator.free)
        if lacking > 0:
            extend(request, stop, self._pools)
        request.planned_len = stop

    def cache_computed(self, request: Request) -> None:
        """Hand the computed tokens to the tree; where it has them already, use its slots and free the request's."""
        lease, table = request.lease, self._pools.table
        assert lease is not None, "a running request has a lease"
        grown = lease.grow(request.computed_tokens(), table.slots(request.row, 0, request.computed_len))
        if len(grown.duplicates):
            table.write(request.row, grown.start, grown.canonical)
            self.writes.append(TableWrite(request.row, grown.start, grown.canonical))
            if request.in_flight and self.flight:
                self.flight.garbage.append(grown.duplicates)
            else:
                self._pools.allocator.release(grown.duplicates)

    def leave(self, request: Request, *, keep_lease: bool = False) -> Lease | None:
        """The request runs no more: free what it holds, as soon as no step uses it. Answers the lease if it is kept.

        O(running), and what caching its tokens costs.
        """
        self.requests.remove(request)
        self.chunked = None if request is self.chunked else self.chunked
        if request.in_flight:
            self._leaving.append(request)
            return None
        return self._release(request, keep_lease=keep_lease)

    def landed(self, request: Request, computed_len: int) -> None:
        """A step of a request that is leaving was taken in, with its positions up to `computed_len` computed."""
        known = max(request.prompt_len, request.length - 1)  # the last token of an answer is not computed
        request.computed_len = max(request.computed_len, min(computed_len, known))
        if not request.in_flight:
            self._leaving.remove(request)
            self._release(request)

    def _release(self, request: Request, *, keep_lease: bool = False) -> Lease | None:
        """Give the pools back what a request held; what it computed stays cached."""
        try:
            try:
                self.cache_computed(request)
                if keep_lease:
                    return detach(request, self._pools)
            finally:
                give_back(request, self._pools)
        except Exception:
            log.exception("the books of request %s are wrong", request.rid, extra=about(request.rid))
            self.wrong_books += 1
        return None

    def free(self, garbage: list[Slots]) -> None:
        """Slots that a step used to the end."""
        for slots in garbage:
            self._pools.allocator.release(slots)

    # --- books --------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether anybody runs, or leaves with the step in flight."""
        return bool(self.requests or self._leaving or self.flight)

    def held(self) -> int:
        """Slots outside the tree that are not free, counted request by request."""
        holders = (*self.requests, *self._leaving)
        garbage = sum(map(len, self.flight.garbage)) if self.flight else 0
        return garbage + sum(r.capacity - (r.lease.length if r.lease else 0) for r in holders)

    def check(self, max_running: int) -> None:
        """Raise `AssertionError` unless rows and leases are those of the running requests. O(tokens)."""
        table, holders = self._pools.table, (*self.requests, *self._leaving)
        assert table.free_rows == max_running - len(holders), "a request row is lost"
        assert all(r.in_flight for r in self._leaving), "a request that has left still holds something"
        for request in holders:
            assert request.lease is not None, "a running request has a lease"
            held = table.slots(request.row, 0, request.lease.length)
            assert (held == request.lease.slots()).all(), "a request's row points at slots that are not its lease's"
            assert request.computed_len <= request.launched_len <= request.capacity, "lengths out of order"
