"""Who is in the next step: gates, admission, slots for those who decode, and who makes room when these are too few."""

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

from rtk.cache.pools import Pools
from rtk.observe.logs import about
from rtk.plugin.schedule import ScheduleContext
from rtk.schedule.admission import AdmissionPlan, Attempt, balance, plan_admission
from rtk.schedule.budget import Limits
from rtk.schedule.commit import CommitError, commit
from rtk.schedule.constraints import Constraints
from rtk.schedule.ledger import Ledger
from rtk.schedule.queue import WaitingQueue
from rtk.schedule.ratio import NewTokenRatio
from rtk.schedule.request import Request, Status
from rtk.schedule.retraction import OFTEN, WINDOW, RetractionWatch, retraction_order, sufficient
from rtk.schedule.running import Running
from rtk.schedule.settings import Settings
from rtk.schedule.timeline import Cause, RetractedFor

log = logging.getLogger(__name__)


class Host(Protocol):
    """What forming a batch may need done first, or find out."""

    def settle(self) -> None:
        """Take in the step in flight, if there is one: what follows needs its results, or its slots."""

    def fail(self, request: Request, problem: str, code: str = ...) -> None:
        """End a request with an error."""


class Batches:
    """Forms the batch of each step, and keeps what outlives it: the new-token ratio, and who was retracted."""

    def __init__(
        self,
        *,
        pools: Pools,
        queue: WaitingQueue,
        running: Running,
        limits: Limits,
        settings: Settings,
        ledger: Ledger,
        constraints: Constraints,
        counters: Counter[str],
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        """`rng` is the policy's; the rest is the scheduler's own."""
        self._pools = pools
        self._queue = queue
        self._running = running
        self._limits = limits
        self._settings = settings
        self._ledger = ledger
        self._constraints = constraints
        self._counters = counters
        self._clock = clock
        self._rng = rng
        self._step = 0
        self._full_at: float | None = None  # R when slots were lacking; until there is more, the batch is full
        self._watch = RetractionWatch()
        self._retracted_last = 0  # the arrival number of who was
        self.ratio = NewTokenRatio(settings.conservativeness)

    @property
    def retractions_are_frequent(self) -> bool:
        """Whether many requests had to make room lately."""
        return self._watch.frequent(self._step)

    def left(self) -> None:
        """Somebody waits no more: it may be the one that had no slots, so the batch is not full for its sake."""
        self._full_at = None

    def next(self, step: int, host: Host) -> list[Request]:
        """Prompts first, with everybody who decodes beside them where steps are mixed; else everybody who decodes.

        What each of them computes has its slots, up to `planned_len`. O(waiting + running), see `WaitingQueue.ranked`.
        """
        self._step = step
        if self._running.flight and self._running.flight.guesses:
            host.settle()
        prompts = self._prompts(host)
        if not prompts:
            return self._decodes(host)
        return [*prompts, *(self._decodes_beside(host) if self._settings.mixed_chunk else [])]

    # --- prompts ------------------------------------------------------------------------------------------------

    def _prompts(self, host: Host) -> list[Request]:
        """The chunked request's next piece, and waiting requests, as many as the policy's order and accounts allow."""
        running = self._running
        if not self._may_prefill(ctx := self._context()):
            return []
        if running.flight and running.flight.prefills and len(self._queue):
            host.settle()  # what it computed can then be hit
            if not self._may_prefill(ctx := self._context()):
                return []
        plan = self._plan(ctx)
        while victims := self._preempted(plan):
            if running.flight:
                host.settle()  # who makes room must not be in flight
            else:
                self._retract(victims, "preempted", [plan.attempts[-1].rid])
            plan = self._plan(ctx)
        return self._commit(plan, host)

    def _may_prefill(self, ctx: ScheduleContext) -> bool:
        """The gates before anybody is looked at: somebody waits, decoding is not preferred, the batch is not full."""
        running, queue = self._running, self._queue
        if not (len(queue) or running.chunked):
            return False
        if queue.prefers_decode(ctx):
            self._planned(gate="decode")
            return False
        if self._full_at is not None and balance(self._pools, running.requests, self.ratio.value) > self._full_at:
            self._full_at = None
        full: Cause | None = "kv" if self._full_at is not None else None if self._pools.table.free_rows else "rows"
        if running.chunked or not full or queue.may_preempt:
            return True
        self._planned(gate=full)
        return False

    def _planned(
        self, attempts: tuple[Attempt, ...] = (), gate: Cause | None = None, held: Iterable[Request] = ()
    ) -> None:
        step, rho, now = self._step, self.ratio.value, self._clock()
        self._ledger.planned(step, attempts, rho, now, gate=gate, note=self._queue.note, held=held)

    def _plan(self, ctx: ScheduleContext) -> AdmissionPlan:
        running, queue = self._running, self._queue
        plan = plan_admission(
            queue.ranked(ctx, running.requests),
            running.requests,
            self._pools,
            self._limits,
            ratio=self.ratio.value,
            chunked=running.chunked,
            chunk_reserve=queue.chunk_reserve(ctx, running.chunked) if running.chunked else 0,
            decoding=running.decoding() if self._settings.mixed_chunk else (),
            waiting=len(queue) + (running.chunked is not None),
        )
        self._planned(plan.attempts, held=self._queue.held)
        return plan

    def _commit(self, plan: AdmissionPlan, host: Host) -> list[Request]:
        """Let the plan become true; nobody, where that fails."""
        running = self._running
        try:
            running.writes += commit(plan, self._pools)
        except CommitError as error:
            log.exception("admission failed; the request is given up and the others stay queued")
            self._counters["commit_failures"] += 1
            host.fail(error.request, "the engine could not admit the request")
            return []
        self._full_at = plan.total if plan.verdict == "NO_TOKEN" else None
        for admission in plan.admitted:
            self._queue.remove(admission.request)
            running.requests.append(admission.request)
            if not (request := admission.request).retractions:
                self._counters["cached_tokens"] += request.cached_len
                self._counters["uncached_tokens"] += request.prompt_len - request.cached_len
        batch = plan.batch
        running.chunked = next((r for r in batch if r.planned_len < r.fill_len), None) if batch else running.chunked
        return batch

    def _context(self) -> ScheduleContext:
        return ScheduleContext(
            now=self._clock(),
            rng=self._rng,
            running=len(self._running.decoding()),
            prefilled_total=self._counters["prefill_tokens"],
        )

    # --- those who decode ---------------------------------------------------------------------------------------

    def _decodes(self, host: Host) -> list[Request]:
        """Everybody who decodes, each with a slot for its next token; where there are too few, some are retracted."""
        running = self._running
        flight = running.flight
        if (
            flight
            and flight.constrained
            and any(r.in_flight and self._constraints.foresees(r) for r in running.requests)
        ):
            host.settle()  # behind the token in flight more can be guessed
        if not running.has_room(running.decoding()):
            host.settle()  # its slots may suffice; and who makes room must not be in flight
        rows = running.decoding()
        if rows and not self._make_room(rows):
            self.ratio.decay()
        return self._guessed(self._grown(running.decoding(), host), host)

    def _decodes_beside(self, host: Host) -> list[Request]:
        """Everybody who decodes, in a step with prompts. Planning has kept their slots back; nobody is retracted."""
        rows = self._running.decoding()
        if not rows:
            return []
        self.ratio.decay()
        self._counters["mixed_steps"] += 1
        return self._grown(rows, host)

    def _grown(self, rows: list[Request], host: Host) -> list[Request]:
        for request in self._running.grow(rows):
            self._counters["invariant_violations"] += 1
            host.fail(request, "the engine failed on this request")
        return [r for r in rows if r.status is Status.RUNNING]

    def _guessed(self, rows: list[Request], host: Host) -> list[Request]:
        """These, with tokens computed along that their grammars leave no choice of, where there are slots."""
        foreseen = [r for r in rows if r.constraint is not None and r.constraint.drafts and not r.in_flight]
        if not foreseen:
            return rows
        for request in foreseen:
            most = min(request.left - 1, self._running.room_to_guess(request, rows))
            count, fault = self._constraints.draft(request, most)
            if fault is not None:
                host.fail(request, fault.problem, fault.code)
            else:
                self._running.reach(request, request.planned_len + count)
        return [r for r in rows if r.status is Status.RUNNING]

    # --- making room --------------------------------------------------------------------------------------------

    def _make_room(self, rows: list[Request]) -> bool:
        """Retract until everybody else has a slot for its next token; says whether anybody was. The last one stays."""
        running = self._running
        if running.has_room(rows):
            return False
        victims: list[Request] = []
        order = self._retraction_order(rows)[:-1] + [r for r in (running.chunked,) if r]
        for victim in order:
            if running.has_room(r for r in rows if r.status is Status.RUNNING):
                break
            self._retract([victim], "memory", [r.rid for r in rows if r is not victim and r.status is Status.RUNNING])
            victims.append(victim)
        if victims:
            self.ratio.estimate((r.sampled, r.max_new_tokens) for r in running.decoding())
            self._advise()
        return bool(victims)

    def _preempted(self, plan: AdmissionPlan) -> list[Request]:
        """Those who make way for the candidate that was refused: nobody unless the policy says so and it suffices."""
        candidate, lack = plan.refused, plan.lack
        if candidate is None or lack is None or not self._queue.may_preempt:
            return []
        lower = [r for r in self._running.decoding() if self._queue.preempts(candidate, r)]
        return sufficient(self._retraction_order(lower), lack, self.ratio.value)

    def _retraction_order(self, requests: Iterable[Request]) -> list[Request]:
        policy_key = self._queue.retract_key if self._queue.has_retract_key else None
        return retraction_order(requests, self._settings.retraction, policy_key, self._retracted_last)

    def _retract(self, victims: Iterable[Request], why: RetractedFor, for_rids: list[str]) -> None:
        """Back to the front of the queue. What they computed stays cached; nothing of them is in flight."""
        for request in victims:
            log.info(
                "request %s is retracted (%s) for %s", request.rid, why, ", ".join(for_rids), extra=about(request.rid)
            )
            self._ledger.retracted(request, why, for_rids, self._step, self._clock())
            self._running.leave(request)
            request.step_back()
            self._queue.put_back(request)
            self._full_at = None  # it stands before the one that had no slots, and may need less
            self._retracted_last = request.id
            self._counters["retractions"] += 1

    def _advise(self) -> None:
        if self._watch.happened(self._step):
            log.warning(
                "%d retractions within the last %d steps: raise schedule.conservativeness (%g), or cache.pool_tokens, "
                "or lower schedule.max_running",
                OFTEN,
                WINDOW,
                self._settings.conservativeness,
            )
