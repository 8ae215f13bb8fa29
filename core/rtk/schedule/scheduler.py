"""The scheduler: receives requests, forms one batch a step, has it computed, and takes the results in.

Not thread-safe: it belongs to one thread, which feeds it messages and calls `step`.
"""

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from rtk.cache.pools import Pools
from rtk.errors import RequestError
from rtk.plugin.guard import Health
from rtk.schedule.arrivals import Arrivals, MatchStop
from rtk.schedule.batches import Batches
from rtk.schedule.budget import Limits
from rtk.schedule.cache_desk import CacheDesk
from rtk.schedule.compiling import Compiling, Grammars
from rtk.schedule.compose import compose, penalties
from rtk.schedule.constraints import Constraints
from rtk.schedule.counters import COUNTERS
from rtk.schedule.executor import Executor
from rtk.schedule.flight import Flight, launch
from rtk.schedule.followers import Followers
from rtk.schedule.ledger import Ledger, Prefill
from rtk.schedule.messages import (
    Abort,
    ExplainRequest,
    Finish,
    Flush,
    Inbound,
    NewRequest,
    Outbound,
    Output,
    Pin,
    Question,
    Refused,
    RequestExplained,
    Stats,
    TokenLogprobs,
    Verdict,
)
from rtk.schedule.meters import Meters
from rtk.schedule.questions import answer
from rtk.schedule.queue import WaitingQueue
from rtk.schedule.reports import Reports, request_report, step_report
from rtk.schedule.request import Request, Status
from rtk.schedule.results import Results
from rtk.schedule.running import Running
from rtk.schedule.settings import Settings
from rtk.schedule.sharing import Sharing
from rtk.schedule.time_limits import TimeLimits

log = logging.getLogger(__name__)


class Scheduler:
    """One scheduler over one executor."""

    def __init__(
        self,
        *,
        pools: Pools,
        desk: CacheDesk,
        queue: WaitingQueue,
        executor: Executor,
        limits: Limits,
        settings: Settings,
        end_tokens: frozenset[int],
        match_stop: MatchStop,
        health: Health,
        clock: Callable[[], float],
        rng: random.Random,
        reports: Reports | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        """`grammars`: who compiles; None: no request may have a grammar. It ends with the scheduler."""
        self._pools = pools
        self._desk = desk
        self._queue = queue
        self._executor = executor
        self._limits = limits
        self._settings = settings
        self._arrivals = Arrivals(limits, end_tokens, match_stop, clock)
        self.health = health
        """What became of the plugins."""
        self._clock = clock
        self._rng = rng
        self._reports = reports
        self._requests: dict[str, Request] = {}
        self._time = TimeLimits(self._requests, settings.max_wait_s)
        self._compiling = Compiling(grammars)
        self._followers = Followers()
        self._running = Running(pools)
        self._ledger = Ledger()
        self.meters = Meters(clock)
        self.counters: Counter[str] = Counter()
        self._constraints = Constraints(limits.max_running, health, self.counters, jump_forward=settings.jump_forward)
        self._batches = Batches(
            pools=pools,
            queue=queue,
            running=self._running,
            limits=limits,
            settings=settings,
            ledger=self._ledger,
            constraints=self._constraints,
            counters=self.counters,
            clock=clock,
            rng=random.Random(rng.getrandbits(64)),  # its own: what a policy draws moves no request's seed
        )
        self._results = Results(
            running=self._running,
            queue=queue,
            ledger=self._ledger,
            meters=self.meters,
            constraints=self._constraints,
            counters=self.counters,
            clock=clock,
        )
        self._sharing = Sharing()
        self._outbox: list[Outbound] = []
        self._left_waiting = 0  # by the last step
        self._refused: tuple[str, RequestError] | None = None  # the last one, whose further answers may be on their way
        self._steps = 0
        self.stalled = False
        """Whether the last step computed nothing although requests wait: the schedule policy holds them."""

    # --- messages in --------------------------------------------------------------------------------------------

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds; what arrivals and time limits are measured by."""
        return self._clock

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self._running.busy or len(self._queue))

    @property
    def created_nodes(self) -> int:
        """Nodes that the prefix tree has made since the start."""
        return self._pools.cache.created_nodes

    @property
    def rest_s(self) -> float:
        """Seconds until a time limit is due; infinite where none is."""
        return self._time.next_s - self._clock()

    @property
    def accepted(self) -> int:
        """Requests that run or wait, for their grammars too, those that compute pins among them."""
        return len(self._requests)

    def receive(self, messages: Iterable[Inbound]) -> list[Outbound]:
        """Take messages in, in order; returns the answers that need no step."""
        before = self.meters.enter("messages")
        self._catch_up()
        for message in messages:
            match message:
                case NewRequest():
                    self._outbox.append(self._accept(message))
                case Abort(rid):
                    self._abort(rid)
                case Question():
                    if isinstance(message, Flush) and not self._requests:
                        self.settle()  # the last step of those who are gone
                    if (said := answer(message, self, self._desk)) is not None:
                        self._outbox.append(said)
        self.meters.enter(before)
        return self._drain()

    def _accept(self, new: NewRequest) -> Verdict:
        try:
            self.enqueue(new)
        except RequestError as error:
            self.counters["requests_refused"] += 1
            self.meters.refused(error.code)
            self._refused = new.leader or new.rid, error.with_traceback(None)  # which would hold the prompt
            return Verdict(
                rid=new.rid,
                accepted=False,
                code=error.code,
                problem=str(error),
                field=error.field,
                status=error.status,
            )
        self.counters["requests_accepted"] += 1
        return Verdict(rid=new.rid, accepted=True)

    def enqueue(self, new: NewRequest, pin: Pin | None = None) -> None:
        """Queue a request, with `pin` the one that computes its prefix; raises `RequestError` for one it refuses."""
        if new.rid in self._requests:
            raise RequestError(f"request id {new.rid!r} is in use", field="rid", code="duplicate_rid", status=409)
        if self._refused is not None and new.leader == self._refused[0]:
            raise self._refused[1]
        prefilled, pinned = self.counters["prefill_tokens"], self._desk.spoken_for
        request = self._arrivals.request(new, pin, self._rng, prefilled=prefilled, pinned=pinned)
        if pin is None:
            self._check_queue(new)
            if new.grammar is not None:
                self._compiling.submit(request, new.grammar)
            self._time.watch(request, new.deadline_s)
        else:  # an administrator's, who waits as long as it takes
            self._desk.order(pin, self._requests.values())
        self._requests[request.rid] = request
        if request.status is Status.WAITING:
            self._line_up(request)
        self._ledger.arrived(request, new.name, request.arrival_s)

    def _line_up(self, request: Request) -> None:
        """Into the queue, unless it has a leader whose prompt it would find in the cache later."""
        leader = None if request.leader is None else self._requests.get(request.leader)
        if leader is None or leader.prompt_is_computed or not self._pools.cache.enabled:
            self._queue.add(request)
        else:
            self._followers.add(request)

    def _check_queue(self, new: NewRequest) -> None:
        """Refuse a request where as many wait as may; of several answers to a prompt, the first asks for all."""
        if self._settings.max_queue is None or (new.leader is not None and new.leader in self._requests):
            return
        answers, most = new.params.n, self._settings.max_queue + self._limits.max_running
        if answers > most:
            raise RequestError(
                f"n = {answers}: at most {most} answers can run and wait (schedule.max_running + schedule.max_queue)",
                field="n",
            )
        if not self._queue_has_room(answers):
            self.counters["queue_full"] += 1
            full = "the queue is full" if answers == 1 else f"the queue has no room for {answers} answers"
            raise RequestError(
                f"{full}: {self._waiting} wait (schedule.max_queue = {self._settings.max_queue}); try again later",
                code="queue_full",
                status=503,
            )

    def _queue_has_room(self, answers: int) -> bool:
        """Whether so many more may wait. Where the last step left nobody, free rows are no wait."""
        if self._settings.max_queue is None:
            return True
        self._left_waiting = min(self._left_waiting, len(self._queue))
        room = 0 if self._left_waiting else self._pools.table.free_rows
        return self._waiting - room + answers <= self._settings.max_queue

    @property
    def _waiting(self) -> int:
        """Requests that do not run yet, whatever they wait for."""
        return len(self._queue) + len(self._compiling) + len(self._followers)

    def _abort(self, rid: str) -> None:
        request = self._requests.get(rid)
        if request is not None:
            self.end(request, Finish(reason="abort"))

    def _catch_up(self) -> None:
        """Take in what has happened outside: grammars that were compiled, and time. O(1) where nothing has."""
        for request, error in self._compiling.done():
            if error is None:
                self._line_up(request)
                self._ledger.moved_on(request, self._clock())
            else:
                problem, field = str(error), error.field
                finish = Finish(reason="error", problem=problem, field=field, code=error.code, status=error.status)
                self.end(request, finish)
        self._expire()

    def _expire(self) -> None:
        """End what has had its time: pins, and requests."""
        self._desk.expire()
        for request, finish in self._time.exceeded(self._clock()):
            self.counters["deadlines_exceeded" if finish.code == "deadline_exceeded" else "queue_timeouts"] += 1
            self.end(request, finish)

    def abandon(self, why: str) -> list[Outbound]:
        """End every request with an error, because the engine goes away."""
        self.settle()
        for request in list(self._requests.values()):
            self.fail(request, why)
        self._compiling.close()
        self._executor.close()
        return self._drain()

    def _drain(self) -> list[Outbound]:
        out, self._outbox = self._outbox, []
        return out

    # --- one step -----------------------------------------------------------------------------------------------

    def step(self) -> list[Outbound]:
        """Launch the next batch, then take in the results of the one before; without overlap, of the same.

        Returns what became known.
        """
        self.meters.enter("schedule")
        self._catch_up()
        batch = self._batches.next(self._steps + 1, self)
        self.meters.enter("launch")
        before, self._running.flight = self._running.flight, self._launch(batch) if batch else None
        self._left_waiting = len(self._queue)
        self.stalled = not batch and before is None and self._left_waiting > 0
        if before:
            self._take_in(before)
        if self._running.flight:
            self._sample(self._running.flight)  # if that had to wait for the step before
        if not self._settings.overlap:
            self.settle()
        self._check_idle()
        self.meters.enter("between")
        return self._drain()

    def _launch(self, batch: list[Request]) -> Flight:
        self._steps += 1
        writes, self._running.writes = self._running.writes, []
        plan = compose(self._steps, batch, self._pools.table, writes, self._sharing.runs(batch))
        prefills = [
            Prefill(request, row.start, row.start + row.q_len)
            for request, row in zip(batch, plan.rows, strict=True)
            if row.start < request.fill_len
        ]
        self._ledger.launched(self._steps, prefills, len(batch) - len(prefills), self._clock())
        self.meters.launched(self._steps, (prefill.request for prefill in prefills))
        flight = launch(self._executor, plan, batch)
        if not flight.waits:
            self._sample(flight)
        return flight

    def _sample(self, flight: Flight) -> None:
        """Start the sampling of a step, if it was not."""
        if flight.inputs is None:
            return
        mask = None
        if flight.constrained:
            before = self.meters.enter("mask")
            for request, finish in self._constraints.renew(flight.sampling()):
                self.end(request, finish)
            mask = self._constraints.mask(flight)
            self.meters.enter(before)
        plan = flight.plan
        flight.sample(mask, penalties(flight.batch, plan.rows, plan.tokens) if flight.penalised else None)

    def settle(self) -> None:
        """Take in the step in flight, if there is one: what follows needs its results, or its slots."""
        flight, self._running.flight = self._running.flight, None
        if flight:
            self._take_in(flight)

    def _take_in(self, flight: Flight) -> None:
        before = self.meters.enter("wait")
        computed = self._results.take_in(flight, self)
        if self._reports is not None:
            crowd = {"running": len(self._running.requests), "waiting": len(self._queue)}
            self._reports.on_step(step_report(flight, not computed, self._clock(), self._pools, **crowd))
        self.meters.enter(before)

    # --- what becomes of requests -------------------------------------------------------------------------------

    def say(self, output: Output) -> None:
        """New tokens of a request that goes on."""
        self._outbox.append(output)

    def computed(self, request: Request) -> None:
        """The prompt of a request is computed, or it is gone: who follows it waits in the queue from here on."""
        for follower in self._followers.release(request.rid):
            self._queue.add(follower)
            self._ledger.moved_on(follower, self._clock())

    def fail(self, request: Request, problem: str, code: str = "generation_failed") -> None:
        """End a request with an error."""
        self.end(request, Finish(reason="error", problem=problem, code=code))

    def end(
        self,
        request: Request,
        finish: Finish,
        tokens: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprobs, ...] = (),
    ) -> None:
        """The one exit of a request: give back what it holds and say how it ended. A second call changes nothing.

        O(running), plus what caching its tokens costs.
        """
        if request.status is Status.FINISHED:
            return
        before, request.status = request.status, Status.FINISHED
        request.finish = finish
        del self._requests[request.rid]
        if request.pin is None:
            self.meters.ended(request, finish, ran=before is Status.RUNNING)
        lease = None
        if before is Status.COMPILING:
            self._compiling.remove(request)
        elif before is Status.FOLLOWING:
            self._followers.remove(request)
        elif before is Status.WAITING:
            self._queue.remove(request)
            self._batches.left()
        else:
            lease = self._running.leave(request, keep_lease=request.pin is not None and finish.reason == "length")
        self.computed(request)
        now = self._clock()
        self._ledger.ended(request, finish, now)
        if request.pin is not None:
            self._outbox.append(self._desk.settle(request.pin, lease, finish.problem))
            return
        self.say(
            Output(
                rid=request.rid,
                tokens=tokens,
                cached_tokens=request.cached_len,
                logprobs=logprobs,
                prompt_logprobs=request.take_scores(),
                finish=finish,
            )
        )
        self.counters[f"finished_{finish.reason}"] += 1
        if self._reports is not None:
            self._reports.on_request(request_report(request, self._ledger.name(request.rid), finish, now))

    # --- books --------------------------------------------------------------------------------------------------

    def explain_request(self, question: ExplainRequest) -> RequestExplained | Refused:
        """What became of a request."""
        return self._ledger.explain(question, self._clock())

    def held(self) -> int:
        """Slots that running requests hold outside the tree, counted request by request."""
        return self._running.held()

    def stats(self) -> dict[str, int | float]:
        """Counters since the start, and gauges of now: slots by state, requests, rows."""
        pools, running = self._pools, self._running
        gauges = {
            "free": pools.allocator.free,
            "evictable": pools.cache.evictable,
            "protected": pools.cache.protected,
            "held": running.held(),
            "pool": pools.allocator.capacity,
            "running": len(running.requests),
            "waiting": len(self._queue),
            "following": len(self._followers),
            "queue_is_full": int(not self._queue_has_room(1)),
            "free_rows": pools.table.free_rows,
            "pinned": self._desk.pinned,
            "new_token_ratio": self._batches.ratio.value,
            "retractions_are_frequent": int(self._batches.retractions_are_frequent),
            "evicted_tokens": pools.cache.evicted,
            "schedule_fallbacks": self._queue.fallbacks,
            "plugin_faults": sum(self.health.faults.values()),
        }
        violations = self.counters["invariant_violations"] + running.wrong_books
        counters = {**dict.fromkeys(COUNTERS, 0), **self.counters, "invariant_violations": violations}
        return {**counters, **gauges, **self._compiling.stats(), **self._executor.stats()}

    def measured(self, id: int) -> Stats:
        """All that is counted and measured, as the answer to the question with this id."""
        pools, meters = self._pools, self.meters
        counts: dict[str, Mapping[str, int | float]] = {
            **meters.counts(),
            "evicted_tokens": dict(pools.cache.evicted_by),
            "plugin_faults": {**dict.fromkeys(self.health.plugins, 0), **self.health.faults},
        }
        histograms = {**meters.histograms(), **self._compiling.histograms()}
        return Stats(id=id, values=self.stats(), counts=counts, histograms=histograms)

    def _check_idle(self) -> None:
        """With nothing running, slots are free, evictable or pinned, and rows are free. Wrong books are counted."""
        pools = self._pools
        if self._running.busy:
            return
        self._batches.ratio.reset()
        idle = pools.allocator.free + pools.cache.evictable + self._desk.pinned
        if idle != pools.allocator.capacity or pools.table.free_rows != self._limits.max_running:
            log.error("idle, but %d of %d slots are accounted for", idle, pools.allocator.capacity)
            self.counters["invariant_violations"] += 1

    def check(self) -> None:
        """Raise `AssertionError` unless all books agree: every slot is free, evictable, protected or held. O(pool)."""
        pools, running = self._pools, self._running
        pools.allocator.check()
        pools.cache.check()
        states = (pools.allocator.free, pools.cache.evictable, pools.cache.protected, running.held())
        assert sum(states) == pools.allocator.capacity, f"free, evictable, protected, held = {states}"
        listed = len(running.requests) + len(self._queue) + len(self._compiling) + len(self._followers)
        assert len(self._requests) == listed, "a request is in no list, or in two"
        running.check(self._limits.max_running)
