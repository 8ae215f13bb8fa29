"""The real scheduler under random arrivals, aborts and tiny pools, against every request run alone."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rtk.cache.key import pack
from rtk.plugin.host import installed
from rtk.plugin.testing.harness import Harness, digest
from rtk.schedule.messages import Flush, Flushed, Pin, Pinned, Refused, Unpin

END = 13


def script(history):
    """Depends on every token; one history in 20 or so ends."""
    token = digest(history)
    return END if token % 20 == 0 else 1000 + token


def alone(prompt, max_new_tokens):
    """What the model says to this prompt, by definition."""
    history, out = list(prompt), []
    while len(out) < max_new_tokens:
        out.append(script(history))
        history.append(out[-1])
        if out[-1] == END:
            break
    return out


def preemptive():
    entry = installed().get("schedule", "priority")
    return entry.build(entry.plugin.options(preempt=True))


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
        align=st.sampled_from([1, 1, 6]),
        overlap=st.booleans(),
        lazy=st.booleans(),
        mixed=st.booleans(),
        conservativeness=st.sampled_from([0.02, 0.1, 1.0]),
        retraction=st.sampled_from(["length", "priority"]),
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
        align,
        overlap,
        lazy,
        mixed,
        conservativeness,
        retraction,
    ):
        self.h = Harness(
            script=script,
            page_size=page,
            pool_tokens=max(page * pages, 32),
            max_running=rows,
            eviction=eviction,
            schedule=preemptive() if schedule == "preemption" else schedule if cache else "fcfs",
            cache_enabled=cache,
            max_prefill_tokens=max(prefill, page),
            chunk_tokens=chunk and max(chunk, page),
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
        self.prompts: dict[str, tuple[list[int], int]] = {}
        self.aborted: set[str] = set()
        self.questions = 0

    @rule(
        stem=st.integers(0, 2),
        shared=st.integers(0, 24),
        own=st.lists(st.integers(0, 3), min_size=1, max_size=4),
        new=st.integers(0, 40),
        priority=st.integers(0, 2),
    )
    def arrive(self, stem, shared, own, new, priority):
        rid, prompt = f"r{len(self.prompts)}", [*range(100 * stem, 100 * stem + shared), *own]
        if self.h.add(rid, prompt, max_new_tokens=new, priority=priority).accepted:
            self.prompts[rid] = (prompt, new)

    @rule(count=st.integers(3, 6), new=st.integers(12, 30))
    def crowd(self, count, new):
        """Short prompts with long answers: what makes a small pool run out of slots while they decode."""
        for i in range(count):
            self.arrive(0, 0, [i], new, i % 3)

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
        for rid, (prompt, new) in self.prompts.items():
            said, full = self.h.tokens.get(rid, []), alone(prompt, new)
            assert said == full[: len(said)]
            finish = self.h.finished.get(rid)
            if finish is not None:
                assert (finish.reason == "abort") == (rid in self.aborted)
                assert rid in self.aborted or said == full
        assert self.h.tokens.keys() <= self.prompts.keys()

    def teardown(self):
        if not hasattr(self, "h"):
            return
        self.h.run(limit=sum(2 * len(p) + n + 2 for p, n in self.prompts.values()) + 25 * self.questions + 1)
        self.said_so_far_is_right()
        assert self.h.finished.keys() == self.prompts.keys()
        assert self.h.answers.keys() == set(range(1, self.questions + 1))
        assert self.h.stat("pinned") <= self.h.pin_budget
        assert self.h.stat("free") + self.h.stat("evictable") + self.h.stat("pinned") == self.h.stat("pool")
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
