"""A whole scheduler over a scripted model, driven step by step, with its books checked after each."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rtk.cache.key import DEFAULT_NAMESPACE, Namespace, pack
from rtk.plugin.eviction import EvictionPolicy
from rtk.plugin.host import installed
from rtk.plugin.info import CAPABILITIES, NEED_CACHE
from rtk.plugin.schedule import SchedulePolicy
from rtk.plugin.testing.scripted import Script, ScriptedExecutor
from rtk.schedule.arrivals import MatchStop
from rtk.schedule.budget import Limits, ceil_page
from rtk.schedule.build import Policies, build_scheduler
from rtk.schedule.compiling import Grammars
from rtk.schedule.messages import (
    Abort,
    Answer,
    Finish,
    Inbound,
    NewRequest,
    Outbound,
    Output,
    TokenLogprobs,
    Verdict,
)
from rtk.schedule.params import SamplingParams
from rtk.schedule.settings import Retraction, Settings


def count_up(history: list[int]) -> int:
    """The simplest scripted model: the next token is the last one plus 1."""
    return history[-1] + 1


def digest(history: list[int]) -> int:
    """A scripted model whose answer depends on every token of the history, and on their order."""
    value = 7
    for token in history:
        value = (value * 31 + token + 1) % 99991
    return value % 997


@dataclass
class Harness:
    """One scheduler, its scripted executor, and what it has said so far."""

    script: Script = count_up
    pool_tokens: int = 256
    page_size: int = 1
    context_length: int = 128
    max_running: int = 8
    max_prefill_tokens: int = 16384
    chunk_tokens: int | None = None
    mixed_tokens: int | None = None
    align_tokens: int = 1
    eviction: EvictionPolicy | str = "lru"
    schedule: SchedulePolicy | str = "fcfs"
    schedule_requires: frozenset[str] = frozenset(CAPABILITIES)
    """What a policy that is given as an object requires; of one that is named, its description says so."""
    cache_enabled: bool = True
    conservativeness: float = 1.0
    mixed_chunk: bool = False
    retraction: Retraction = "length"
    overlap: bool = False
    lazy: bool = False
    """Whether a step is computed as late as an executor may."""
    jump_forward: bool = True
    pin_budget: int | None = None
    max_queue: int | None = None
    max_wait_s: float | None = None
    end_tokens: frozenset[int] = frozenset()
    match_stop: MatchStop | None = None
    seed: int = 0
    grammars: Grammars | None = None

    verdicts: dict[str, Verdict] = field(default_factory=dict, init=False)
    tokens: dict[str, list[int]] = field(default_factory=dict, init=False)
    logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict, init=False)
    scores: dict[str, tuple[TokenLogprobs, ...]] = field(default_factory=dict, init=False)
    """Log-probabilities of prompts."""
    cached: dict[str, int] = field(default_factory=dict, init=False)
    finished: dict[str, Finish] = field(default_factory=dict, init=False)
    answers: dict[int, Answer] = field(default_factory=dict, init=False)
    now: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        limits = Limits(
            context_length=self.context_length,
            pool_tokens=self.pool_tokens,
            page_size=self.page_size,
            max_running=self.max_running,
            max_prefill_tokens=self.max_prefill_tokens,
            chunk_tokens=self.chunk_tokens,
            mixed_tokens=self.mixed_tokens,
            align_tokens=self.align_tokens,
        )
        self.executor = ScriptedExecutor(
            self.script,
            slots=self.pool_tokens,
            page_size=self.page_size,
            max_running=self.max_running,
            context_length=ceil_page(self.context_length, self.page_size),
            lazy=self.lazy,
        )
        self.scheduler = build_scheduler(
            self._policies(),
            self.executor,
            limits,
            cache_enabled=self.cache_enabled,
            settings=Settings(
                conservativeness=self.conservativeness,
                mixed_chunk=self.mixed_chunk,
                retraction=self.retraction,
                overlap=self.overlap,
                jump_forward=self.jump_forward,
                max_queue=self.max_queue,
                max_wait_s=self.max_wait_s,
            ),
            pin_budget=self.pin_budget,
            end_tokens=self.end_tokens,
            match_stop=self.match_stop or _no_stop_strings,
            clock=lambda: self.now,
            rng=random.Random(self.seed),
            grammars=self.grammars,
        )

    def _policies(self) -> Policies:
        eviction, schedule = self.eviction, self.schedule
        if isinstance(eviction, str):
            entry = installed().get("eviction", eviction)
            eviction = entry.build(entry.plugin.options())
        requires = self.schedule_requires - (frozenset() if self.cache_enabled else NEED_CACHE)
        if isinstance(schedule, str):
            entry = installed().get("schedule", schedule)
            requires = entry.plugin.requires
            schedule = entry.build(entry.plugin.options())
        return Policies(
            eviction=eviction,
            eviction_name=type(eviction).__name__,
            schedule=schedule,
            schedule_name=type(schedule).__name__,
            schedule_requires=requires,
        )

    # --- driving ------------------------------------------------------------------------------------------------

    def add(
        self,
        rid: str,
        prompt: Sequence[int],
        *,
        namespace: Namespace = DEFAULT_NAMESPACE,
        priority: int = 0,
        tenant: str = "",
        routing_key: str = "",
        deadline_s: float | None = None,
        leader: str | None = None,
        **params: Any,
    ) -> Verdict:
        """Send a request; greedy unless told otherwise. Returns its verdict."""
        new = NewRequest(
            rid=rid,
            tokens=pack(prompt),
            params=SamplingParams(**{"temperature": 0.0, **params}),
            namespace=namespace,
            priority=priority,
            tenant=tenant,
            routing_key=routing_key,
            deadline_s=deadline_s,
            leader=leader,
        )
        self.send(new)
        return self.verdicts[rid]

    def abort(self, rid: str) -> None:
        """Abort a request, known or not."""
        self.send(Abort(rid))

    def send(self, message: Inbound) -> None:
        """Hand one message in and note the answers."""
        self._note(self.scheduler.receive([message]))
        self.scheduler.check()

    def step(self, seconds: float = 1.0) -> None:
        """One step; the clock advances before it."""
        self.now += seconds
        self._note(self.scheduler.step())
        self.scheduler.check()
        assert not self.executor.violations, self.executor.violations[0]

    def run(self, limit: int = 10_000) -> int:
        """Step until idle; returns the number of steps. Raises `AssertionError` after `limit`."""
        steps = 0
        while self.scheduler.busy:
            self.step()
            steps += 1
            assert steps <= limit, f"still busy after {limit} steps"
        return steps

    def _note(self, messages: list[Outbound]) -> None:
        for message in messages:
            if isinstance(message, Verdict):
                self.verdicts[message.rid] = message
            elif isinstance(message, Output):
                assert message.rid not in self.finished, f"{message.rid} speaks after its end"
                first = message.rid not in self.tokens
                self.tokens.setdefault(message.rid, []).extend(message.tokens)
                if message.logprobs:
                    assert [entry.token for entry in message.logprobs] == list(message.tokens), (
                        "not those of its tokens"
                    )
                    self.logprobs.setdefault(message.rid, []).extend(message.logprobs)
                if message.prompt_logprobs:
                    assert first, f"{message.rid} tells of its prompt after its first output"
                    self.scores[message.rid] = message.prompt_logprobs
                self.cached[message.rid] = message.cached_tokens
                if message.finish is not None:
                    self.finished[message.rid] = message.finish
            else:
                assert message.id not in self.answers, f"question {message.id} is answered twice"
                self.answers[message.id] = message

    def forget(self, rid: str) -> None:
        """Drop what a finished request said, so that its id can be used again."""
        for said in (self.verdicts, self.tokens, self.logprobs, self.scores, self.cached, self.finished):
            said.pop(rid, None)

    def stat(self, name: str) -> int:
        """One counter or gauge of the scheduler."""
        return int(self.scheduler.stats()[name])


def _no_stop_strings(params: SamplingParams, prompt: bytes) -> Any:
    raise AssertionError("a request has stop strings; give the harness a match_stop")
