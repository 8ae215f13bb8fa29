"""The real scheduler under random arrivals, aborts and tiny pools, against every request run alone."""

import functools
import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rtk.cache.key import pack
from rtk.plugin.host import installed
from rtk.plugin.testing.harness import Harness, digest
from rtk.schedule.messages import Flush, Flushed, Pin, Pinned, Refused, TokenLogprobs, Unpin

END = 13
PENALTIES = (
    {},
    {"repetition_penalty": 1.6},
    {"presence_penalty": 0.5, "frequency_penalty": -0.25},
    {"repetition_penalty": 0.8, "frequency_penalty": 1.0, "logit_bias": ((END, -2.0), (5, 1.5))},
)


class Asked(NamedTuple):
    """What a request wants."""

    prompt: tuple[int, ...]
    new: int
    lively: bool
    """Of a model that likes several tokens, so that penalties matter."""
    penalties: int = 0
    scored: int | None = None
    """The first token of the prompt that is scored."""


def script(history):
    """Depends on every token; one history in 20 or so ends."""
    token = digest(history)
    return END if token % 20 == 0 else 1000 + token


@functools.cache
def lively(history):
    """Likes depend on every token of the history."""
    return np.random.default_rng(digest(history)).standard_normal(20).astype(np.float32) * 2


@functools.cache
def alone(asked):
    """What the model says to this, by definition."""
    history, out = list(asked.prompt), []
    while len(out) < asked.new and END not in out:
        out.append(penalised(history, out, PENALTIES[asked.penalties]) if asked.lively else script(history))
        history.append(out[-1])
    return out


def penalised(history, out, given):
    logits = lively(tuple(history)).astype(np.float64)
    for token in set(history) & set(range(20)):
        penalty = given.get("repetition_penalty", 1.0)
        logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
        logits[token] -= given.get("frequency_penalty", 0.0) * out.count(token)
        logits[token] -= given.get("presence_penalty", 0.0) * (token in out)
    for token, bias in given.get("logit_bias", ()):
        logits[token] += bias
    return int(logits.argmax())


@functools.cache
def scores(asked):
    """What it makes of the prompt; the last one that is named, and its own, to a few digits."""
    if asked.scored is None:
        return []
    entries = []
    for i, token in enumerate(asked.prompt):
        if i == 0:
            entries.append((token, None, None))
        elif asked.lively:
            own = lively(asked.prompt[:i]).astype(np.float64)
            of_token = own[token] - np.log(np.exp(own).sum())
            entries.append((token, round(of_token, 3), int(own.argmax())))
        else:
            sure = script(list(asked.prompt[:i]))
            entries.append((token, 0.0 if sure == token else -math.inf, sure))
    return entries[asked.scored :]


def told(entry: TokenLogprobs):
    logprob = entry.logprob if entry.logprob is None or math.isinf(entry.logprob) else round(entry.logprob, 3)
    return entry.token, logprob, entry.top[0][0] if entry.top else None


def preemptive():
    entry = installed().get("schedule", "priority")
    return entry.build(entry.plugin.options(preempt=True))


@pytest.fixture(autouse=True)
def _short_prefixes_count(monkeypatch):
    """What these prompts share is worth waiting for."""
    monkeypatch.setattr("rtk.schedule.admission.SHARED_LEAST", 8)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        page=st.sampled_from([1, 4, 16]),
        pages=st.integers(4, 20),
        rows=st.integers(1, 5),
        eviction=st.sampled_from(installed().names("eviction")),
        schedule=st.sampled_from([*installed().names("schedule"), "preemption"]),
        cache=st.booleans(),
        prefill=st.sampled_from([8, 64, 4096]),
        chunk=st.sampled_from([None, 1, 8, 30]),
        beside=st.sampled_from([None, 1, 6, 20]),
        align=st.sampled_from([1, 1, 6]),
        overlap=st.booleans(),
        lazy=st.booleans(),
        mixed=st.booleans(),
        conservativeness=st.sampled_from([0.02, 0.1, 1.0]),
        retraction=st.sampled_from(["length", "priority"]),
        likes=st.booleans(),
    )
    def build(
        self,
        page,
        pages,
        rows,
        eviction,
        schedule,
        cache,
        prefill,
        chunk,
        beside,
        align,
        overlap,
        lazy,
        mixed,
        conservativeness,
        retraction,
        likes,
    ):
        self.lively = likes
        self.h = Harness(
            script=(lambda history: lively(tuple(history))) if likes else script,
            page_size=page,
            pool_tokens=max(page * pages, 32),
            max_running=rows,
            eviction=eviction,
            schedule=preemptive() if schedule == "preemption" else schedule if cache else "fcfs",
            cache_enabled=cache,
            max_prefill_tokens=max(prefill, page),
            chunk_tokens=chunk and max(chunk, page),
            mixed_tokens=beside,
            align_tokens=align,
            overlap=overlap,
            lazy=lazy,
            mixed_chunk=mixed,
            conservativeness=conservativeness,
            retraction=retraction,
            context_length=100,
            pin_budget=max(page * pages, 32) // 2,
            end_tokens=frozenset({END}),
        )
        self.prompts: dict[str, Asked] = {}
        self.aborted: set[str] = set()
        self.questions = 0

    @rule(
        stem=st.integers(0, 2),
        shared=st.integers(0, 24),
        own=st.lists(st.integers(0, 3), min_size=1, max_size=4),
        new=st.integers(0, 40),
        priority=st.integers(0, 2),
        penalties=st.sampled_from([0, *range(len(PENALTIES))]),
        scored=st.none() | st.integers(0, 30),
    )
    def arrive(self, stem, shared, own, new, priority, penalties, scored):
        self.send(stem, shared, own, new, priority, penalties, scored)

    def send(self, stem, shared, own, new, priority, penalties=0, scored=None, leader=None):
        size = 7 if self.lively else 100  # a lively model knows few tokens
        rid, prompt = f"r{len(self.prompts)}", (*range(size * stem, size * stem + shared), *own)
        prompt = tuple(token % 20 for token in prompt) if self.lively else prompt
        asked = Asked(prompt, new, self.lively, penalties, None if scored is None else min(scored, len(prompt)))
        more = {} if scored is None else {"prompt_logprobs": 1, "prompt_logprobs_start": asked.scored}
        more |= {"priority": priority, "leader": leader, "logprobs": 1, **PENALTIES[penalties]}
        accepted = self.h.add(rid, prompt, max_new_tokens=new, **more).accepted
        if accepted:
            self.prompts[rid] = asked
        return rid if accepted else None

    @rule(
        stem=st.integers(0, 2),
        shared=st.integers(0, 24),
        new=st.integers(0, 20),
        answers=st.integers(2, 4),
        scored=st.none() | st.integers(0, 30),
        priority=st.integers(0, 2),
    )
    def several(self, stem, shared, new, answers, scored, priority):
        """Several answers to one prompt."""
        leader = self.send(stem, shared, [1], new, priority, 0, scored)
        for i in range(1, answers):
            self.send(stem, shared, [1], new, priority, i % len(PENALTIES), None, leader)

    @rule(count=st.integers(3, 6), new=st.integers(12, 30))
    def crowd(self, count, new):
        """Short prompts with long answers: what makes a small pool run out of slots while they decode."""
        for i in range(count):
            self.send(0, 0, [i], new, i % 3)

    @rule(count=st.integers(2, 4), stem=st.integers(0, 2), shared=st.integers(12, 24), new=st.integers(0, 8))
    def family(self, count, stem, shared, new):
        """Prompts that begin alike and come together: the first computes what they share."""
        for i in range(count):
            self.send(stem, shared, [i % 4, 3 - i % 4], new, 0)

    @rule(which=st.integers(0, 30), twice=st.booleans())
    def abort(self, which, twice):
        rid = f"r{which}"
        if rid in self.prompts and rid not in self.h.finished:
            self.aborted.add(rid)
        for _ in range(1 + twice):
            self.h.abort(rid)

    @rule(stem=st.integers(0, 2), length=st.integers(1, 24), ttl_s=st.none() | st.integers(1, 9))
    def pin(self, stem, length, ttl_s):
        self.ask(Pin, name=f"{stem}", tokens=pack(range(100 * stem, 100 * stem + length)), ttl_s=ttl_s)

    @rule(stem=st.integers(0, 2))
    def unpin(self, stem):
        assert isinstance(self.ask(Unpin, name=f"{stem}"), Pinned | Refused)

    def ask(self, kind, **what):
        """The answer, if there is one at once."""
        self.questions += 1
        self.h.send(kind(id=self.questions, **what))
        return self.h.answers.get(self.questions)

    @rule(steps=st.integers(1, 4))
    def step(self, steps):
        for _ in range(steps):
            self.h.step()

    @invariant()
    def said_so_far_is_right(self):
        """Every text is a beginning of the request's own answer; nothing is said twice or for nobody."""
        if not hasattr(self, "h"):
            return
        for rid, asked in self.prompts.items():
            said, full = self.h.tokens.get(rid, []), alone(asked)
            assert said == full[: len(said)]
            assert [entry.token for entry in self.h.logprobs.get(rid, [])] == said
            of_prompt = list(map(told, self.h.scores.get(rid, ())))
            assert of_prompt == (scores(asked) if said or of_prompt else [])
            finish = self.h.finished.get(rid)
            if finish is not None:
                assert (finish.reason == "abort") == (rid in self.aborted)
                assert rid in self.aborted or (said == full and of_prompt == scores(asked))
        assert self.h.tokens.keys() <= self.prompts.keys()

    def teardown(self):
        if not hasattr(self, "h"):
            return
        work = sum(2 * len(asked.prompt) + asked.new + 2 for asked in self.prompts.values())
        self.h.run(limit=work + 25 * self.questions + 1)
        self.said_so_far_is_right()
        assert self.h.finished.keys() == self.prompts.keys()
        assert self.h.answers.keys() == set(range(1, self.questions + 1))
        assert self.h.stat("pinned") <= self.h.pin_budget
        assert self.h.stat("free") + self.h.stat("evictable") + self.h.stat("pinned") == self.h.stat("pool")
        assert self.h.stat("following") == 0
        for stem in range(3):
            self.unpin(stem)
        assert isinstance(self.ask(Flush), Flushed)
        assert self.h.stat("free") == self.h.stat("pool")
        assert self.h.stat("invariant_violations") == self.h.stat("plugin_faults") == 0
        assert self.h.stat("attention_query_rows") == self.h.stat("prefill_tokens") + self.h.stat("decode_tokens")
        computed = np.unique(self.h.executor._table)
        assert computed[0] == 0 and self.h.executor.pool[0] == -1, "padding was written"


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
