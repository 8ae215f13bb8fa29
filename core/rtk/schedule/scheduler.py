"""The scheduler: receives requests, forms one batch a step, has it computed, and takes the results in.

Not thread-safe: it belongs to one thread, which feeds it messages and calls `step`.
"""

import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from rtk.cache.key import Key
from rtk.cache.pools import Pools
from rtk.errors import RequestError
from rtk.observe.logs import about
from rtk.plugin.guard import Health
from rtk.schedule.batch import Row, StepResult
from rtk.schedule.batches import Batches
from rtk.schedule.budget import Limits, resolve_max_new_tokens
from rtk.schedule.cache_desk import CacheDesk
from rtk.schedule.compiling import Compiling, Grammars
from rtk.schedule.compose import compose
from rtk.schedule.constraints import Constraints
from rtk.schedule.executor import Executor
from rtk.schedule.flight import Flight, launch
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
    Verdict,
)
from rtk.schedule.meters import Meters
from rtk.schedule.params import SamplingParams
from rtk.schedule.questions import answer
from rtk.schedule.queue import WaitingQueue
from rtk.schedule.reports import Reports, request_report, step_report
from rtk.schedule.request import Request, Status
from rtk.schedule.running import Running
from rtk.schedule.settings import Settings
from rtk.schedule.time_limits import TimeLimits

log = logging.getLogger(__name__)

MatchStop = Callable[[SamplingParams, bytes], Callable[[int], str | None]]
"""From a request's parameters and packed prompt, the checker that is fed its output tokens."""

COUNTERS = (
    "requests_accepted",
    "requests_refused",
    "queue_full",
    "queue_timeouts",
    "deadlines_exceeded",
    "finished_stop",
    "finished_length",
    "finished_abort",
    "finished_error",
    "steps",
    "steps_failed",
    "mixed_steps",
    "middle_chunks",
    "wasted_rows",
    "retractions",
    "prefill_tokens",
    "decode_tokens",
    "cached_tokens",
    "uncached_tokens",
    "generated_tokens",
    "sampling_errors",
    "grammar_dead_ends",
    "grammar_faults",
    "grammar_slow",
    "jump_forward_steps",
    "jump_forward_tokens",
    "commit_failures",
    "invariant_violations",
)
"""Every counter of `Scheduler.stats`, there from the start with 0."""


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
        self._end_tokens = end_tokens
        self._match_stop = match_stop
        self.health = health
        """What became of the plugins."""
        self._clock = clock
        self._rng = rng
        self._reports = reports
        self._requests: dict[str, Request] = {}
        self._time = TimeLimits(self._requests, settings.max_wait_s)
        self._compiling = Compiling(grammars)
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
        self._outbox: list[Outbound] = []
        self._arrivals = 0
        self._left_waiting = 0  # by the last step
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
        request = self._request(new, pin)
        if pin is None:
            self._check_queue()
            if new.grammar is not None:
                self._compiling.submit(request, new.grammar)
            self._time.watch(request, new.deadline_s)
        else:  # an administrator's, who waits as long as it takes
            self._desk.order(pin, self._requests.values())
        self._requests[request.rid] = request
        if request.status is Status.WAITING:
            self._queue.add(request)
        self._ledger.arrived(request, new.name, request.arrival_s)

    def _check_queue(self) -> None:
        """Refuse a request where as many wait as may."""
        if self._queue_is_full():
            waiting = len(self._queue) + len(self._compiling)
            self.counters["queue_full"] += 1
            raise RequestError(
                f"the queue is full: {waiting} wait (schedule.max_queue = {self._settings.max_queue}); try again later",
                code="queue_full",
                status=503,
            )

    def _queue_is_full(self) -> bool:
        """Whether as many wait as may. Where the last step left nobody, free rows are no wait."""
        if self._settings.max_queue is None:
            return False
        self._left_waiting = min(self._left_waiting, len(self._queue))
        room = 0 if self._left_waiting else self._pools.table.free_rows
        return len(self._queue) + len(self._compiling) - room >= self._settings.max_queue

    def _request(self, new: NewRequest, pin: Pin | None) -> Request:
        if new.rid in self._requests:
            raise RequestError(f"request id {new.rid!r} is in use", field="rid", code="duplicate_rid", status=409)
        params, prompt_len = new.params, len(new.tokens) // 4
        if not prompt_len:
            raise RequestError("the prompt is empty", field="prompt", code="empty_prompt")
        self._arrivals += 1
        arrival_s = self._clock() if new.arrival_s is None else new.arrival_s
        return Request(
            rid=new.rid,
            id=self._arrivals,
            prompt_len=prompt_len,
            tokens=bytearray(new.tokens),
            params=params,
            key=Key(new.namespace, new.tokens),
            priority=new.priority,
            max_new_tokens=resolve_max_new_tokens(
                prompt_len, params.max_new_tokens, self._limits, self._desk.spoken_for
            ),
            seed=self._rng.getrandbits(63) if params.seed is None else params.seed,
            arrival_s=arrival_s,
            prefilled_at_arrival=self.counters["prefill_tokens"],
            stop_token_ids=frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._end_tokens),
            match_stop=self._match_stop(params, new.tokens) if params.stop else None,
            pin=pin,
            tenant=new.tenant,
            routing_key=new.routing_key,
            deadline_s=math.inf if new.deadline_s is None else arrival_s + new.deadline_s,
        )

    def _abort(self, rid: str) -> None:
        request = self._requests.get(rid)
        if request is not None:
            self._end(request, Finish(reason="abort"))

    def _catch_up(self) -> None:
        """Take in what has happened outside: grammars that were compiled, and time. O(1) where nothing has."""
        for request, error in self._compiling.done():
            if error is None:
                self._queue.add(request)
                self._ledger.compiled(request, self._clock())
            else:
                problem, field = str(error), error.field
                finish = Finish(reason="error", problem=problem, field=field, code=error.code, status=error.status)
                self._end(request, finish)
        self._expire()

    def _expire(self) -> None:
        """End what has had its time: pins, and requests."""
        self._desk.expire()
        for request, finish in self._time.exceeded(self._clock()):
            self.counters["deadlines_exceeded" if finish.code == "deadline_exceeded" else "queue_timeouts"] += 1
            self._end(request, finish)

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
        plan = compose(self._steps, batch, self._pools.table, writes)
        prefills = [
            Prefill(request, row.start, row.start + row.q_len)
            for request, row in zip(batch, plan.rows, strict=True)
            if row.start < request.fill_len
        ]
        self._ledger.launched(self._steps, prefills, len(batch) - len(prefills), self._clock())
        self.meters.launched(self._steps, (prefill.request for prefill in prefills))
        flight = launch(self._executor, plan, batch)
        if not flight.constrained or not self._constraints.wait(flight):
            self._sample(flight)
        return flight

    def _sample(self, flight: Flight) -> None:
        """Start the sampling of a step, if it was not."""
        if flight.inputs is None:
            return
        if not flight.constrained:
            flight.sample(None)
            return
        before = self.meters.enter("mask")
        for request, finish in self._constraints.renew(flight.sampling()):
            self._end(request, finish)
        mask = self._constraints.mask(flight)
        self.meters.enter(before)
        flight.sample(mask)

    def settle(self) -> None:
        """Take in the step in flight, if there is one: what follows needs its results, or its slots."""
        flight, self._running.flight = self._running.flight, None
        if flight:
            self._take_in(flight)

    # --- results ------------------------------------------------------------------------------------------------

    def _take_in(self, flight: Flight) -> None:
        """Account for the step's rows, one by one: an error in one ends that request and no other."""
        before = self.meters.enter("wait")
        result = flight.result()
        self.meters.enter("take_in")
        self.meters.retired(flight.plan.step)
        self._ledger.retired(flight.plan.step, self._clock())
        self.counters["steps"] += 1
        self.counters["steps_failed"] += result is None
        self.counters["jump_forward_steps"] += flight.guesses
        sampled, done = 0, []
        for request, row in zip(flight.batch, flight.plan.rows, strict=True):
            request.in_flight -= 1
            if result is not None and (row.start < request.fill_len or request.status is Status.RUNNING):
                prefill = row.q_len if row.start < request.fill_len else 0
                done.append((request, prefill, row.q_len - prefill))
            try:
                self._land(request, row, result, sampled)
            except Exception:
                log.exception("request %s ends on a bug", request.rid, extra=about(request.rid))
                self.fail(request, "the engine failed on this request")
            sampled += bool(row.samples)
        if flight.constrained:
            self.meters.enter("mask")
            for request, finish in self._constraints.renew(flight.batch):
                self._end(request, finish)
            self.meters.enter("take_in")
        self._running.free(flight.garbage)
        self._queue.progressed(done)
        if self._reports is not None:
            crowd = {"running": len(self._running.requests), "waiting": len(self._queue)}
            self._reports.on_step(step_report(flight, result is None, self._clock(), self._pools, **crowd))
        self.meters.enter(before)

    def _land(self, request: Request, row: Row, result: StepResult | None, sampled: int) -> None:
        """One row of a step that was computed, or failed."""
        prefill = row.start < request.fill_len
        if result is not None:
            self.counters["prefill_tokens" if prefill else "decode_tokens"] += row.q_len
        if request.status is Status.FINISHED:  # while it was in flight
            self.counters["wasted_rows"] += 1
            failed = result is None or (request.finish is not None and request.finish.reason == "error")
            self._running.landed(request, 0 if failed else row.start + row.q_len)
        elif result is None:
            self.fail(request, "the engine failed to compute this step")
        elif row.samples and sampled in result.errors:
            self.counters["sampling_errors"] += 1
            self.fail(request, result.errors[sampled])
        else:
            guesses = max(0, row.samples - 1)
            request.computed_len += row.q_len - guesses
            if prefill:
                self._running.cache_computed(request)
            tokens = result.tokens[sampled] if row.samples else ()
            if guesses:
                tokens = self._constraints.borne_out(request, tokens)
            self._advance(request, tokens)
            if guesses:
                request.forget_guesses()

    def _advance(self, request: Request, tokens: tuple[int, ...]) -> None:
        """Take in what a row sampled: nothing in the middle of a prompt, or where nothing is to be generated."""
        if not tokens:
            if request.computed_len >= request.fill_len:
                self._end(request, Finish(reason="length"))
            else:
                self.counters["middle_chunks"] += 1
        for place, token in enumerate(tokens):
            if place:  # the token before it was guessed, and computed along
                request.computed_len += 1
                self.counters["jump_forward_tokens"] += 1
            if request.constraint is not None and (fault := self._constraints.accept(request.constraint, token)):
                self._end(request, fault)
                return
            self.meters.took(request)
            request.append(token)
            self.counters["generated_tokens"] += 1
            if (finish := self._finish(request, token)) is not None:
                self._end(request, finish, tokens=(token,))
                return
            self._outbox.append(Output(rid=request.rid, tokens=(token,), cached_tokens=request.cached_len))

    def _finish(self, request: Request, token: int) -> Finish | None:
        """The stop rules, after `token`: stop tokens, stop strings, length."""
        enough = len(request.output) >= request.params.min_new_tokens
        stop_string = request.match_stop(token) if request.match_stop else None
        if enough and token in request.stop_token_ids:
            return Finish(reason="stop", matched=token)
        if stop_string is not None:
            return Finish(reason="stop", matched=stop_string)
        if len(request.output) >= request.max_new_tokens:
            return Finish(reason="stop" if self._constraints.complete(request) else "length")
        return None

    def fail(self, request: Request, problem: str, code: str = "generation_failed") -> None:
        """End a request with an error."""
        self._end(request, Finish(reason="error", problem=problem, code=code))

    def _end(self, request: Request, finish: Finish, tokens: tuple[int, ...] = ()) -> None:
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
        elif before is Status.WAITING:
            self._queue.remove(request)
            self._batches.left()
        else:
            lease = self._running.leave(request, keep_lease=request.pin is not None and finish.reason == "length")
        now = self._clock()
        self._ledger.ended(request, finish, now)
        if request.pin is not None:
            self._outbox.append(self._desk.settle(request.pin, lease, finish.problem))
            return
        self._outbox.append(Output(rid=request.rid, tokens=tokens, cached_tokens=request.cached_len, finish=finish))
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
            "queue_is_full": int(self._queue_is_full()),
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
        listed = len(running.requests) + len(self._queue) + len(self._compiling)
        assert len(self._requests) == listed, "a request is in no list, or in two"
        running.check(self._limits.max_running)
