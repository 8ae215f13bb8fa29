"""The scheduler: receives requests, forms one batch a step, has it computed, and takes the results in.

Not thread-safe: it belongs to one thread, which feeds it messages and calls `step`.
"""

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable

from rtk.cache.key import Key
from rtk.cache.lease import Lease
from rtk.cache.pools import Pools
from rtk.errors import RequestError
from rtk.plugin.guard import Health
from rtk.plugin.schedule import ScheduleContext
from rtk.schedule.admission import CommitError, commit, detach, give_back, plan_admission
from rtk.schedule.batch import Row, StepPlan, StepResult, TableWrite
from rtk.schedule.budget import Limits, resolve_max_new_tokens
from rtk.schedule.cache_desk import CacheDesk
from rtk.schedule.compose import compose, sample_inputs
from rtk.schedule.executor import Executor
from rtk.schedule.messages import (
    Abort,
    Explain,
    Finish,
    FinishReason,
    Flush,
    Flushed,
    GetCache,
    GetStats,
    Inbound,
    NewRequest,
    Outbound,
    Output,
    Pin,
    Question,
    Refused,
    Stats,
    Unpin,
    Verdict,
)
from rtk.schedule.params import SamplingParams
from rtk.schedule.queue import WaitingQueue
from rtk.schedule.request import Request, Status

log = logging.getLogger(__name__)

MatchStop = Callable[[SamplingParams, bytes], Callable[[int], str | None]]
"""From a request's parameters and packed prompt, the checker that is fed its output tokens."""

COUNTERS = (
    "requests_accepted",
    "requests_refused",
    "finished_stop",
    "finished_length",
    "finished_abort",
    "finished_error",
    "steps",
    "steps_failed",
    "middle_chunks",
    "prefill_tokens",
    "decode_tokens",
    "cached_tokens",
    "generated_tokens",
    "sampling_errors",
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
        end_tokens: frozenset[int],
        match_stop: MatchStop,
        health: Health,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self._pools = pools
        self._desk = desk
        self._queue = queue
        self._executor = executor
        self._limits = limits
        self._end_tokens = end_tokens
        self._match_stop = match_stop
        self._health = health
        self._clock = clock
        self._rng = rng
        self._policy_rng = random.Random(rng.getrandbits(64))  # its own: what a policy draws moves no request's seed
        self._requests: dict[str, Request] = {}
        self._running: list[Request] = []
        self._chunked: Request | None = None  # one of the running: part of its prompt is computed
        self._outbox: list[Outbound] = []
        self._writes: list[TableWrite] = []
        self._arrivals = 0
        self._step = 0
        self.counters: Counter[str] = Counter()
        self.stalled = False
        """Whether the last step computed nothing although requests wait: the schedule policy holds them."""

    # --- messages in --------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self._running or len(self._queue))

    @property
    def created_nodes(self) -> int:
        """Nodes that the prefix tree has made since the start."""
        return self._pools.cache.created_nodes

    def receive(self, messages: Iterable[Inbound]) -> list[Outbound]:
        """Take messages in, in order; returns the answers that need no step."""
        self._desk.expire()
        for message in messages:
            match message:
                case NewRequest():
                    self._outbox.append(self._accept(message))
                case Abort(rid):
                    self._abort(rid)
                case Pin():
                    self._pin(message)
                case Question():
                    self._outbox.append(self._answer(message))
        return self._drain()

    def _accept(self, new: NewRequest) -> Verdict:
        try:
            request = self._request(new)
        except RequestError as error:
            self.counters["requests_refused"] += 1
            return Verdict(
                rid=new.rid,
                accepted=False,
                code=error.code,
                problem=str(error),
                field=error.field,
                status=error.status,
            )
        self._requests[request.rid] = request
        self._queue.add(request)
        self.counters["requests_accepted"] += 1
        return Verdict(rid=new.rid, accepted=True)

    def _request(self, new: NewRequest, pin: Pin | None = None) -> Request:
        if new.rid in self._requests:
            raise RequestError(f"request id {new.rid!r} is in use", field="rid", code="duplicate_rid", status=409)
        params, prompt_len = new.params, len(new.tokens) // 4
        if not prompt_len:
            raise RequestError("the prompt is empty", field="prompt", code="empty_prompt")
        self._arrivals += 1
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
            arrival_s=self._clock(),
            prefilled_at_arrival=self.counters["prefill_tokens"],
            stop_token_ids=frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._end_tokens),
            match_stop=self._match_stop(params, new.tokens) if params.stop else None,
            pin=pin,
            tenant=new.tenant,
            routing_key=new.routing_key,
        )

    def _abort(self, rid: str) -> None:
        request = self._requests.get(rid)
        if request is not None:
            self._end(request, "abort")

    def _pin(self, pin: Pin) -> None:
        """Compute the prefix as a request that generates nothing; its end answers."""
        prefill = SamplingParams(max_new_tokens=0, seed=0)  # a seed of its own would move those of later requests
        new = NewRequest(rid=f"pin:{pin.id}", tokens=pin.tokens, params=prefill, namespace=pin.namespace)
        try:
            request = self._request(new, pin)
            self._desk.order(pin, self._requests.values())
        except RequestError as error:
            self._outbox.append(
                Refused(id=pin.id, problem=str(error), code=error.code, field=error.field, status=error.status)
            )
            return
        self._requests[request.rid] = request
        self._queue.add(request)

    def _answer(self, question: Question) -> Outbound:
        match question:
            case Flush():
                return self._flush(question.id)
            case GetStats():
                return Stats(id=question.id, values=self.stats())
            case GetCache():
                return self._desk.report(question.id, self.held())
            case Explain():
                return self._desk.explain(question)
            case Unpin():
                return self._desk.unpin(question.id, question.name)
        raise TypeError(f"nobody answers a {type(question).__name__}")

    def _flush(self, id: int) -> Flushed | Refused:
        if self._requests:
            busy = (
                f"the cache stays as it is: {len(self._requests)} requests are running or waiting; try again when idle"
            )
            return Refused(id=id, problem=busy, code="cache_busy")
        return Flushed(id=id, tokens=self._pools.cache.flush())

    def abandon(self, why: str) -> list[Outbound]:
        """End every request with an error, because the engine goes away."""
        for request in list(self._requests.values()):
            self._end(request, "error", problem=why)
        self._executor.close()
        return self._drain()

    def _drain(self) -> list[Outbound]:
        out, self._outbox = self._outbox, []
        return out

    # --- one step -----------------------------------------------------------------------------------------------

    def step(self) -> list[Outbound]:
        """Prefill whoever fits, else decode everybody who runs; returns what became known."""
        self._desk.expire()
        batch = self._admit() or self._grow_running()
        self.stalled = not batch and len(self._queue) > 0
        if batch:
            plan = self._compose(batch)
            result = self._compute(batch, plan)
            self._take_in(batch, plan, result)
            self._check_idle()
        return self._drain()

    def _admit(self) -> list[Request]:
        """Move waiting requests to running, as many as the policy's order and the accounts allow."""
        ctx = self._context()
        if not (len(self._queue) or self._chunked) or self._queue.prefers_decode(ctx):
            return []
        order = self._queue.ranked(ctx, self.counters["prefill_tokens"])
        plan = plan_admission(order, self._running, self._pools, self._limits, self._chunked)
        try:
            self._writes += commit(plan, self._pools)
        except CommitError as error:
            log.exception("admission failed; the request is given up and the others stay queued")
            self.counters["commit_failures"] += 1
            self._end(error.request, "error", problem="the engine could not admit the request")
            return []
        for admission in plan.admitted:
            self._queue.remove(admission.request)
            self._running.append(admission.request)
            self.counters["cached_tokens"] += admission.request.cached_len
        batch = plan.batch
        self._chunked = next((r for r in batch if r.planned_len < r.fill_len), None)
        return batch

    def _context(self) -> ScheduleContext:
        decoding = len(self._running) - (self._chunked is not None)
        return ScheduleContext(now=self._clock(), rng=self._policy_rng, running=decoding)

    def _grow_running(self) -> list[Request]:
        """Everybody who runs, each with a slot for its next token. Admission reserved them, so they are there."""
        allocator, page = self._pools.allocator, self._limits.page_size
        decoding = [r for r in self._running if r is not self._chunked]
        full = [r for r in decoding if r.computed_len == r.capacity]
        for request in full:
            try:
                self._pools.cache.evict(page - allocator.free)
                self._pools.table.write(request.row, request.capacity, allocator.alloc(1))
                request.capacity += page
            except Exception:
                log.exception("request %s ends: a slot that was reserved for it is not there", request.rid)
                self.counters["invariant_violations"] += 1
                self._end(request, "error", problem="the engine failed on this request")
        for request in decoding:
            request.planned_len = request.length
        return [r for r in decoding if r.status is Status.RUNNING]

    def _compose(self, batch: list[Request]) -> StepPlan:
        self._step += 1
        writes, self._writes = self._writes, []
        return compose(self._step, batch, self._pools.table, writes)

    def _compute(self, batch: list[Request], plan: StepPlan) -> StepResult | None:
        """Run the step; None when the computation raised: the K/V of this step is then undefined."""
        try:
            flight = self._executor.launch(plan)
            sampling = [r for r, row in zip(batch, plan.rows, strict=True) if row.samples]
            if sampling:
                flight.sample(sample_inputs(sampling))
            return flight.result()
        except Exception:
            log.exception("step %d failed; its %d requests end with an error", plan.step, len(batch))
            self.counters["steps_failed"] += 1
            return None

    # --- results ------------------------------------------------------------------------------------------------

    def _take_in(self, batch: list[Request], plan: StepPlan, result: StepResult | None) -> None:
        """Account for the step's rows, one by one: an error in one ends that request and no other."""
        self.counters["steps"] += 1
        sampled = 0
        for request, row in zip(batch, plan.rows, strict=True):
            try:
                if result is None:
                    self._end(request, "error", problem="the engine failed to compute this step")
                else:
                    self._advance(request, row, result, sampled)
            except Exception:
                log.exception("request %s ends on a bug", request.rid)
                self._end(request, "error", problem="the engine failed on this request")
            sampled += bool(row.samples)

    def _advance(self, request: Request, row: Row, result: StepResult, sampled: int) -> None:
        """One row's positions are computed; take its sampled tokens in."""
        prefill = not request.prefilled
        self.counters["prefill_tokens" if prefill else "decode_tokens"] += row.q_len
        if row.samples and sampled in result.errors:
            self.counters["sampling_errors"] += 1
            self._end(request, "error", problem=result.errors[sampled])
            return
        request.computed_len += row.q_len
        if prefill:
            self._cache_computed(request)
        if row.samples:
            self._accept_tokens(request, result.tokens[sampled])
        elif request.prefilled:
            self._end(request, "length")
        else:
            self.counters["middle_chunks"] += 1

    def _accept_tokens(self, request: Request, tokens: tuple[int, ...]) -> None:
        for token in tokens:
            request.append(token)
            self.counters["generated_tokens"] += 1
            if (finish := self._finish(request, token)) is not None:
                self._end(request, finish.reason, tokens=(token,), matched=finish.matched)
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
            return Finish(reason="length")
        return None

    def _cache_computed(self, request: Request) -> None:
        """Hand the computed tokens to the tree; where it has them already, use its slots and free the request's."""
        lease, table = request.lease, self._pools.table
        assert lease is not None, "a running request has a lease"
        grown = lease.grow(request.computed_tokens(), table.slots(request.row, 0, request.computed_len))
        if len(grown.duplicates):
            table.write(request.row, grown.start, grown.canonical)
            self._writes.append(TableWrite(request.row, grown.start, grown.canonical))
            self._pools.allocator.release(grown.duplicates)

    def _end(
        self,
        request: Request,
        reason: FinishReason,
        *,
        tokens: tuple[int, ...] = (),
        matched: str | int | None = None,
        problem: str = "",
    ) -> None:
        """The one exit of a request: give back what it holds and say how it ended. A second call changes nothing.

        O(running), plus what caching its tokens costs.
        """
        if request.status is Status.FINISHED:
            return
        waiting = request.status is Status.WAITING
        request.status = Status.FINISHED
        del self._requests[request.rid]
        if waiting:
            self._queue.remove(request)
            lease = None
        else:
            self._running.remove(request)
            self._chunked = None if request is self._chunked else self._chunked
            lease = self._release(request, keep_lease=request.pin is not None and reason == "length")
        if request.pin is not None:
            self._outbox.append(self._desk.settle(request.pin, lease, problem))
            return
        finish = Finish(reason=reason, matched=matched, problem=problem)
        self._outbox.append(Output(rid=request.rid, tokens=tokens, cached_tokens=request.cached_len, finish=finish))
        self.counters[f"finished_{reason}"] += 1

    def _release(self, request: Request, *, keep_lease: bool) -> Lease | None:
        """Give the pools back what a request held; what it computed stays cached. A failed step computed nothing.

        Answers the lease if it is kept.
        """
        try:
            try:
                self._cache_computed(request)
                if keep_lease:
                    return detach(request, self._pools)
            finally:
                give_back(request, self._pools)
        except Exception:
            log.exception("the books of request %s are wrong", request.rid)
            self.counters["invariant_violations"] += 1
        return None

    # --- books --------------------------------------------------------------------------------------------------

    def held(self) -> int:
        """Slots that running requests hold outside the tree, counted request by request."""
        return sum(r.capacity - (r.lease.length if r.lease else 0) for r in self._running)

    def stats(self) -> dict[str, int | float]:
        """Counters since the start, and gauges of now: slots by state, requests, rows."""
        pools = self._pools
        gauges = {
            "free": pools.allocator.free,
            "evictable": pools.cache.evictable,
            "protected": pools.cache.protected,
            "held": self.held(),
            "pool": pools.allocator.capacity,
            "running": len(self._running),
            "waiting": len(self._queue),
            "free_rows": pools.table.free_rows,
            "pinned": self._desk.pinned,
            "evicted_tokens": pools.cache.evicted,
            "plugin_faults": sum(self._health.faults.values()),
        }
        return {**dict.fromkeys(COUNTERS, 0), **self.counters, **gauges, **self._executor.stats()}

    def _check_idle(self) -> None:
        """With nothing running, slots are free, evictable or pinned, and rows are free. Wrong books are counted."""
        pools = self._pools
        if self._running:
            return
        idle = pools.allocator.free + pools.cache.evictable + self._desk.pinned
        if idle != pools.allocator.capacity or pools.table.free_rows != self._limits.max_running:
            log.error("idle, but %d of %d slots are accounted for", idle, pools.allocator.capacity)
            self.counters["invariant_violations"] += 1

    def check(self) -> None:
        """Raise `AssertionError` unless all books agree: every slot is free, evictable, protected or held. O(pool)."""
        pools = self._pools
        pools.allocator.check()
        pools.cache.check()
        states = (pools.allocator.free, pools.cache.evictable, pools.cache.protected, self.held())
        assert sum(states) == pools.allocator.capacity, f"free, evictable, protected, held = {states}"
        assert pools.table.free_rows == self._limits.max_running - len(self._running), "a request row is lost"
        assert len(self._requests) == len(self._running) + len(self._queue), "a request is in no list, or in two"
        for request in self._running:
            assert request.lease is not None, "a running request has a lease"
            held = pools.table.slots(request.row, 0, request.lease.length)
            assert (held == request.lease.slots()).all(), "a request's row points at slots that are not its lease's"
