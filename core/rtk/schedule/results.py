"""Takes the results of steps in: what each row computed, what it sampled, and which requests end by that."""

import logging
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from msgspec.structs import replace

from rtk.observe.logs import about
from rtk.schedule.batch import Row, StepResult
from rtk.schedule.constraints import Constraints
from rtk.schedule.flight import Flight
from rtk.schedule.ledger import Ledger
from rtk.schedule.messages import Finish, Output, TokenLogprobs
from rtk.schedule.meters import Meters
from rtk.schedule.queue import WaitingQueue
from rtk.schedule.request import Request, Status
from rtk.schedule.running import Running

log = logging.getLogger(__name__)


class Host(Protocol):
    """Whom it tells what it found."""

    def say(self, output: Output) -> None:
        """New tokens of a request that goes on."""

    def computed(self, request: Request) -> None:
        """The prompt of a request is computed, and cached where it can be. May be said again."""

    def end(
        self,
        request: Request,
        finish: Finish,
        tokens: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprobs, ...] = (),
    ) -> None:
        """A request ends, with these as its last tokens. One that has ended stays as it is."""

    def fail(self, request: Request, problem: str, code: str = ...) -> None:
        """End a request with an error."""


class Results:
    """See the module."""

    def __init__(
        self,
        *,
        running: Running,
        queue: WaitingQueue,
        ledger: Ledger,
        meters: Meters,
        constraints: Constraints,
        counters: Counter[str],
        clock: Callable[[], float],
    ) -> None:
        self._running = running
        self._queue = queue
        self._ledger = ledger
        self._meters = meters
        self._constraints = constraints
        self._counters = counters
        self._clock = clock

    def take_in(self, flight: Flight, host: Host) -> bool:
        """Account for the step's rows, one by one: an error in one ends that request and no other.

        Waits for the step; answers whether it was computed.
        """
        result = flight.result()
        self._meters.enter("take_in")
        self._meters.retired(flight.plan.step)
        self._ledger.retired(flight.plan.step, self._clock())
        self._counters["steps"] += 1
        self._counters["steps_failed"] += result is None
        self._counters["jump_forward_steps"] += flight.guesses
        scores = {s.row: found for s, found in zip(flight.plan.scored, result.scores, strict=True)} if result else {}
        sampled, done = 0, []
        for number, (request, row) in enumerate(zip(flight.batch, flight.plan.rows, strict=True)):
            request.in_flight -= 1
            if result is not None and (row.start < request.fill_len or request.status is Status.RUNNING):
                prefill = row.q_len if row.start < request.fill_len else 0
                done.append((request, prefill, row.q_len - prefill))
            try:
                if number in scores and request.scores is not None:
                    request.scores.add(scores[number])
                self._land(request, row, result, sampled, host)
            except Exception:
                log.exception("request %s ends on a bug", request.rid, extra=about(request.rid))
                host.fail(request, "the engine failed on this request")
            sampled += bool(row.samples)
        if flight.constrained:
            self._meters.enter("mask")
            for request, finish in self._constraints.renew(flight.batch):
                host.end(request, finish)
            self._meters.enter("take_in")
        self._running.free(flight.garbage)
        self._queue.progressed(done)
        return result is not None

    def _land(self, request: Request, row: Row, result: StepResult | None, sampled: int, host: Host) -> None:
        """One row of a step that was computed, or failed."""
        prefill = row.start < request.fill_len
        if result is not None:
            self._counters["prefill_tokens" if prefill else "decode_tokens"] += row.q_len
        if request.status is Status.FINISHED:  # while it was in flight
            self._counters["wasted_rows"] += 1
            failed = result is None or (request.finish is not None and request.finish.reason == "error")
            self._running.landed(request, 0 if failed else row.start + row.q_len)
        elif result is None:
            host.fail(request, "the engine failed to compute this step")
        elif row.samples and sampled in result.errors:
            self._counters["sampling_errors"] += 1
            host.fail(request, result.errors[sampled])
        else:
            guesses = max(0, row.samples - 1)
            request.computed_len += row.q_len - guesses
            if prefill:
                self._running.cache_computed(request)
                if request.prompt_is_computed:
                    host.computed(request)
            tokens = result.tokens[sampled] if row.samples else ()
            if guesses:
                tokens = self._constraints.borne_out(request, tokens)
            if row.samples:
                self._advance(request, tokens, result.logprobs.get(sampled, ()), host)
            elif request.computed_len >= request.fill_len:  # and nothing is to be generated
                host.end(request, Finish(reason="length"))
            else:
                self._counters["middle_chunks"] += 1
            if guesses:
                request.forget_guesses()

    def _advance(
        self, request: Request, tokens: tuple[int, ...], logprobs: tuple[TokenLogprobs, ...], host: Host
    ) -> None:
        """Take in what a row sampled."""
        for place, token in enumerate(tokens):
            if place:  # the token before it was guessed, and computed along
                request.computed_len += 1
                self._counters["jump_forward_tokens"] += 1
            if request.constraint is not None and (fault := self._constraints.accept(request.constraint, token)):
                host.end(request, fault)
                return
            self._meters.took(request)
            request.append(token)
            self._counters["generated_tokens"] += 1
            own = logprobs[place : place + 1]
            if (finish := self._finish(request, token)) is not None:
                host.end(request, finish, (token,), own)
                return
            said = Output(rid=request.rid, tokens=(token,), cached_tokens=request.cached_len)
            if own or request.scores is not None:
                said = replace(said, logprobs=own, prompt_logprobs=request.take_scores())
            host.say(said)

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
