"""What observers are told of steps and requests."""

from typing import Protocol

from rtk.cache.pools import Pools
from rtk.plugin.observer import RequestReport, StepReport
from rtk.schedule.flight import Flight
from rtk.schedule.messages import Finish
from rtk.schedule.request import Request


class Reports(Protocol):
    """Who is told of steps and requests. It must not wait for anything."""

    def on_step(self, report: StepReport) -> None:
        """A step was taken in."""

    def on_request(self, report: RequestReport) -> None:
        """A request ended."""


def step_report(flight: Flight, failed: bool, now: float, pools: Pools, running: int, waiting: int) -> StepReport:
    """A step that was taken in, and how many run and wait after it. O(rows)."""
    rows = flight.plan.rows
    free, evictable, protected = pools.allocator.free, pools.cache.evictable, pools.cache.protected
    prefill = sum(row.q_len for request, row in zip(flight.batch, rows, strict=True) if row.start < request.fill_len)
    return StepReport(
        step=flight.plan.step,
        ended_s=now,
        failed=failed,
        rows=len(rows),
        prefill_tokens=prefill,
        decode_tokens=sum(row.q_len for row in rows) - prefill,
        running=running,
        waiting=waiting,
        free=free,
        evictable=evictable,
        protected=protected,
        held=pools.allocator.capacity - free - evictable - protected,
    )


def request_report(request: Request, name: str, finish: Finish, now: float) -> RequestReport:
    """A request that ended, which its client calls `name`. O(1)."""
    return RequestReport(
        rid=name,
        arrival_s=request.arrival_s,
        first_token_s=request.first_token_s,
        ended_s=now,
        prompt_tokens=request.prompt_len,
        cached_tokens=request.cached_len,
        output_tokens=len(request.output),
        retractions=request.retractions,
        priority=request.priority,
        reason=finish.reason,
        code=finish.code if finish.reason == "error" else "",
    )
