"""The waiting requests: their order, and what policies know of them."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rtk.cache.tree import PrefixCache
from rtk.plugin.guard import GuardedSchedule
from rtk.plugin.schedule import Columns, Progress, RequestView, ScheduleContext
from rtk.schedule.request import Request
from rtk.schedule.shared_prefixes import SharedPrefixes
from rtk.schedule.waiting_columns import WaitingColumns
from rtk.schedule.waiting_matches import WaitingMatches

FRONT = 1 << 48
"""Retracted requests stand before all arrivals, in order of arrival among themselves."""

KEPT = {
    "id": int,
    "arrival_s": float,
    "prompt_len": int,
    "max_new_tokens": int,
    "matched_len": int,
    "priority": int,
    "output_len": int,
    "stored_len": int,
    "shares_prefix": bool,
    "tenant": int,
    "retractions": int,
    "deadline_s": float,
    "prefilled_at_arrival": int,
    "spot": int,
    "key": int,
}
"""The columns that live from step to step: those of `Columns`, and what the others are made of."""


class Numbers:
    """Small numbers for names, in order of appearance."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self.names: tuple[str, ...] = ()

    def of(self, name: str) -> int:
        """The number of a name, the same for ever. O(1)."""
        number = self._numbers.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names += (name,)
        return number


class Keys:
    """Small numbers for the routing keys of waiting requests: clients may think of any number of them."""

    def __init__(self) -> None:
        self._numbers: dict[str, list[int]] = {}  # key -> number, requests
        self._free: list[int] = []
        self._made = 1

    def add(self, key: str) -> int:
        """The number of a key, as long as a request with it waits; 0 for no key. O(1)."""
        if not key:
            return 0
        if key not in self._numbers:
            if not self._free:
                self._free.append(self._made)
                self._made += 1
            self._numbers[key] = [self._free.pop(), 0]
        number = self._numbers[key]
        number[1] += 1
        return number[0]

    def remove(self, key: str) -> None:
        """One request with the key waits no more. O(1)."""
        if key:
            number = self._numbers[key]
            number[1] -= 1
            if not number[1]:
                self._free.append(self._numbers.pop(key)[0])

    def counted(self, keys: Iterable[str]) -> NDArray[np.int64]:
        """How often each number's key is among `keys`."""
        table = np.zeros(self._made, dtype=np.int64)
        for key, count in Counter(keys).items():
            if key in self._numbers:
                table[self._numbers[key][0]] = count
        return table


class WaitingQueue:
    """Requests that wait. Ranked once a step by the policy; admission takes them out.

    What policies see of them is kept from step to step; a step costs O(n) at memory speed.
    """

    def __init__(self, policy: GuardedSchedule, cache: PrefixCache, *, requires: frozenset[str]) -> None:
        """`requires`: what the policy asks for, see `rtk.plugin.info.CAPABILITIES`."""
        self._policy = policy
        self._page_size = cache.page_size
        self._columns = WaitingColumns(KEPT)
        self._waiting: dict[int, Request] = {}  # by place
        self._matches = WaitingMatches(cache) if requires & {"prefix_match", "tree"} else None
        self._shows_tree = "tree" in requires
        self._shared = SharedPrefixes(policy.in_batch_len) if "in_batch_check" in requires else None
        self._keys = Keys() if "routing_key" in requires else None
        self._tenants = Numbers() if "tenant" in requires else None
        self._prefilled_total = 0
        self.fallbacks = 0
        """Rankings in which the policy ordered by another rule than its own."""
        self.note = ""
        """What the policy said of that in the last ranking; empty: it followed its own rule."""
        self.held: list[Request] = []
        """Whom the policy kept out of the last ranking."""
        self.listens = policy.listens
        """Whether the policy wants to be told of progress."""
        self.has_retract_key = policy.has_retract_key
        """Whether the policy has an order of retraction."""
        self.may_preempt = policy.may_preempt
        """Whether the policy may want running requests to make room for waiting ones."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        """In order of arrival, the retracted first. O(n log n)."""
        return (self._waiting[place] for place in sorted(self._waiting))

    def __contains__(self, request: Request) -> bool:
        return self._waiting.get(_place(request)) is request

    # --- coming and going ---------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """An arrival, or one that was retracted and counts that already: it goes before all that were not.

        O(1) amortised for an arrival, O(n) at memory speed for a retracted one, and a look-up in the cache if the
        policy asks for matches.
        """
        place = _place(request)
        self._waiting[place] = request
        self._columns.add(
            place,
            id=request.id,
            arrival_s=request.arrival_s,
            prompt_len=request.prompt_len,
            max_new_tokens=request.max_new_tokens,
            priority=request.priority,
            output_len=request.fill_len - request.prompt_len,
            retractions=request.retractions,
            deadline_s=request.deadline_s,
            prefilled_at_arrival=request.prefilled_at_arrival,
            tenant=self._tenants.of(request.tenant) if self._tenants else 0,
            key=self._keys.add(request.routing_key) if self._keys else 0,
        )
        if self._matches:
            self._matches.add(place, request.key, request.hit_limit)
        if self._shared:
            self._shared.add(place, request.key)

    def put_back(self, request: Request) -> None:
        """A request that was retracted: `add`, under the name of what it does."""
        assert request.retractions, "a request is put back that was never retracted"
        self.add(request)

    def remove(self, request: Request) -> None:
        """Take a request out. O(1) amortised; O(log n) where the policy checks for shared prefixes."""
        place = _place(request)
        del self._waiting[place]
        self._columns.remove(place)
        if self._matches:
            self._matches.remove(place)
        if self._shared:
            self._shared.remove(place)
        if self._keys:
            self._keys.remove(request.routing_key)

    # --- asking the policy --------------------------------------------------------------------------------------

    def prefers_decode(self, ctx: ScheduleContext) -> bool:
        """Whether the policy wants this step for those who run."""
        return self._policy.prefer_decode(ctx)

    def ranked(self, ctx: ScheduleContext, running: Iterable[Request] = ()) -> Iterator[Request]:
        """The waiting requests, first to run first, without those on hold; the queue must not change meanwhile.

        O(n) at memory speed for the first, O(n log n) for all. `running` counts for policies that read routing keys.
        """
        self.note, self.held = "", []
        if not self._waiting:
            return iter(())
        columns, ctx = self._shown(ctx, running)
        order = self._policy.order(columns, ctx)
        if said := self._policy.fallbacks(ctx):
            self.fallbacks += 1
            self.note = "; ".join(said)
        places = self._columns.column("place")
        self.held = [self._waiting[place] for place in places[order.left_out].tolist()]
        return (self._waiting[int(places[position])] for position in order)

    def chunk_reserve(self, ctx: ScheduleContext, chunked: Request) -> int:
        """Tokens of the step that the next piece of `chunked` leaves to waiting requests. O(n) at memory speed."""
        if not self._policy.reserves or not self._waiting:
            return 0
        columns, ctx = self._shown(ctx)
        return self._policy.chunk_reserve(columns, dataclasses.replace(ctx, chunked=self.view(chunked)))

    def progressed(self, done: Iterable[tuple[Request, int, int]]) -> None:
        """Tell the policy what a step computed: for each request tokens of its prefill, and tokens it decoded."""
        if self.listens:
            self._policy.on_progress([Progress(r.id, self._tenant(r), prefill, decode) for r, prefill, decode in done])

    def retract_key(self, running: Request) -> tuple[Any, ...]:
        """The policy's place for a running request in the order of retraction; () where it has none."""
        return self._policy.retract_key(self.view(running)) if self.has_retract_key else ()

    def preempts(self, waiting: Request, running: Request) -> bool:
        """Whether the policy wants `running` to make room for `waiting`."""
        return self.may_preempt and self._policy.preempts(self.view(waiting), self.view(running))

    def view(self, request: Request) -> RequestView:
        """One request as policies see it, that waits or runs. O(log n)."""
        matched = stored = shares = 0
        if request not in self:
            matched = min(request.computed_len, request.fill_len)
        else:
            self._settle()
            at = self._columns.positions([_place(request)])[0]
            matched, stored, shares = (
                self._columns.column(name)[at].item() for name in ("matched_len", "stored_len", "shares_prefix")
            )
        return RequestView(
            id=request.id,
            arrival_s=request.arrival_s,
            prompt_len=request.prompt_len,
            max_new_tokens=request.max_new_tokens,
            matched_len=matched,
            prefilled_since_arrival=self._prefilled_total - request.prefilled_at_arrival,
            priority=request.priority,
            output_len=len(request.output),
            stored_len=stored,
            shares_prefix=bool(shares),
            tenant=self._tenant(request),
            retractions=request.retractions,
            deadline_s=request.deadline_s,
        )

    def _tenant(self, request: Request) -> int:
        return self._tenants.of(request.tenant) if self._tenants else 0

    # --- what it sees -------------------------------------------------------------------------------------------

    def _shown(self, ctx: ScheduleContext, running: Iterable[Request] = ()) -> tuple[Columns, ScheduleContext]:
        """Copies of the columns, and the context with what the queue knows."""
        self._settle()
        self._prefilled_total = ctx.prefilled_total
        kept: dict[str, NDArray[Any]] = {name: self._columns.column(name).copy() for name in KEPT}
        since, spots, keys = ctx.prefilled_total - kept.pop("prefilled_at_arrival"), kept.pop("spot"), kept.pop("key")
        counts = self._keys.counted(r.routing_key for r in running) if self._keys else np.zeros(1, np.int64)
        return Columns(**kept, prefilled_since_arrival=since, running_with_key=counts[keys]), dataclasses.replace(
            ctx,
            page_size=self._page_size,
            tenants=self._tenants.names if self._tenants else (),
            tree=self._matches.tree(spots) if self._matches and self._shows_tree else None,
            fallbacks=[],
        )

    def _settle(self) -> None:
        """Bring the columns up to date. O(what has changed), and O(n) at memory speed where requests have left."""
        self._columns.settle()
        if self._matches:
            places, *facts = self._matches.changes()
            at = self._columns.positions(places)
            for name, values in zip(("matched_len", "stored_len", "spot"), facts, strict=True):
                self._columns.write(name, at, values)
        if self._shared and self._shared.changed:
            changed, self._shared.changed = self._shared.changed, {}
            self._columns.write("shares_prefix", self._columns.positions(list(changed)), changed.values())


def _place(request: Request) -> int:
    """Where a request stands, by its number of arrival."""
    return request.id - FRONT if request.retractions else request.id
