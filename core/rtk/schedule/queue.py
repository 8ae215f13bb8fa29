"""The waiting requests, in order of arrival, and the columns that policies rank."""

from collections.abc import Iterator

import numpy as np

from rtk.cache.tree import PrefixCache
from rtk.plugin.guard import GuardedSchedule
from rtk.plugin.schedule import Columns, ScheduleContext
from rtk.schedule.request import Request


class WaitingQueue:
    """Requests that wait. Ranked once a step by the policy; admission takes them out."""

    def __init__(self, policy: GuardedSchedule, cache: PrefixCache, *, match_prefixes: bool) -> None:
        """`match_prefixes`: look every waiting request up in the cache each step, for a policy that asks for it."""
        self._policy = policy
        self._cache = cache
        self._match_prefixes = match_prefixes
        self._waiting: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._waiting.values())

    def add(self, request: Request) -> None:
        """Append an arrival. O(1)."""
        self._waiting[request.rid] = request

    def remove(self, request: Request) -> None:
        """Take a request out. O(1)."""
        del self._waiting[request.rid]

    def put_back(self, request: Request) -> None:
        """A request that was retracted waits again, before all others. O(n)."""
        self._waiting = {request.rid: request, **self._waiting}

    @property
    def preempting(self) -> bool:
        """Whether the policy lets waiting requests take the place of running ones."""
        return False

    def preempts(self, waiting: Request, running: Request) -> bool:
        """Whether `waiting` may take the place of `running`."""
        return False

    def retract_key(self, request: Request) -> tuple[int, ...]:
        """The policy's key of a running request: smaller is retracted first."""
        return ()

    def chunk_reserve(self, ctx: ScheduleContext) -> int:
        """Tokens of a step that the chunked request leaves to others."""
        return 0

    def prefers_decode(self, ctx: ScheduleContext) -> bool:
        """Whether the policy wants this step for those who run."""
        return self._policy.prefer_decode(ctx)

    def ranked(self, ctx: ScheduleContext, prefilled_total: int) -> list[Request]:
        """The waiting requests, first to run first, without those on hold. O(n log n), plus the matches."""
        waiting = list(self._waiting.values())
        if not waiting:
            return []
        order = self._policy.order(self._columns(waiting, prefilled_total), ctx)
        return [waiting[i] for i in order.tolist()]

    def _columns(self, waiting: list[Request], prefilled_total: int) -> Columns:
        matched = [self._matched(request) for request in waiting]
        return Columns(
            id=np.array([r.id for r in waiting], dtype=np.int64),
            arrival_s=np.array([r.arrival_s for r in waiting], dtype=np.float64),
            prompt_len=np.array([r.prompt_len for r in waiting], dtype=np.int64),
            max_new_tokens=np.array([r.max_new_tokens for r in waiting], dtype=np.int64),
            matched_len=np.array(matched, dtype=np.int64),
            prefilled_since_arrival=np.array([prefilled_total - r.prefilled_at_arrival for r in waiting], np.int64),
            priority=np.array([r.priority for r in waiting], dtype=np.int64),
        )

    def _matched(self, request: Request) -> int:
        if not self._match_prefixes:
            return 0
        return self._cache.peek(request.key, limit=request.fill_len - 1).length
