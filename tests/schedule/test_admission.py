"""Planning is pure, and a commit that fails anywhere gives everything back."""

import copy

import pytest

from rtk.cache.key import Namespace, pack
from rtk.cache.slots import OutOfSlotsError
from rtk.plugin.testing.harness import Harness, digest
from rtk.schedule.commit import CommitError, commit
from rtk.schedule.messages import Abort, NewRequest
from rtk.schedule.params import SamplingParams


def filled(page=4, **settings):
    """A harness with cached content, two running requests, and five waiting ones that share prefixes."""
    h = Harness(script=digest, pool_tokens=160, page_size=page, **settings)
    for i in range(4):
        h.add(f"old{i}", [i, *range(20)], max_new_tokens=3)
    h.run()
    for i in range(2):
        h.add(f"run{i}", [i, *range(10), 77], max_new_tokens=8)
    h.step()
    for i in range(5):
        h.scheduler.receive(
            [NewRequest(rid=f"w{i}", tokens=pack([i % 3, *range(18), 88]), params=SamplingParams(max_new_tokens=6))]
        )
    return h


def state(h):
    """Everything that planning could have touched."""
    pools = h.scheduler._pools
    nodes = [(n.id, n.start, n.tokens, n.slots.tolist(), n.locks, n.hits, n.last_use) for n in pools.cache.nodes()]
    requests = [(r.rid, r.row, r.capacity, r.computed_len, r.lease, r.status) for r in h.scheduler._requests.values()]
    free = sorted(pools.allocator._end.items()), bytes(pools.allocator._taken)
    return copy.deepcopy((sorted(nodes), free, pools.table._free, pools.cache._tick)), requests


def plan_of(h):
    return h.scheduler._batches._plan(h.scheduler._batches._context())


@pytest.mark.parametrize("page", [1, 4, 16])
def test_planning_changes_nothing(page):
    h = filled(page)
    before = state(h)
    plan = plan_of(h)
    assert plan.admitted
    assert state(h) == before
    assert plan_of(h) == plan


def test_an_evictable_path_that_is_promised_once_is_not_promised_twice():
    h = Harness(pool_tokens=42, context_length=40)
    h.add("old", list(range(30)), max_new_tokens=1)
    h.run()
    for rid in ("a", "b"):  # both hit 29 tokens and are charged 6; R is 13 without these
        h.scheduler.receive(
            [NewRequest(rid=rid, tokens=pack([*range(29), ord(rid)]), params=SamplingParams(max_new_tokens=4))]
        )
    assert [a.request.rid for a in plan_of(h).admitted] == ["a", "b"]
    h.scheduler.receive([NewRequest(rid="c", tokens=pack([500, 501]), params=SamplingParams(max_new_tokens=4))])
    assert (len(plan_of(h).admitted), plan_of(h).verdict) == (2, "NO_TOKEN")  # the cached path is not free any more


def test_a_charge_must_stay_below_the_balance():
    h = Harness(pool_tokens=45)
    for rid in ("a", "b", "c"):  # charged 22 each: 22 < 45, 22 < 23
        h.scheduler.receive(
            [NewRequest(rid=rid, tokens=pack([ord(rid)] * 15), params=SamplingParams(max_new_tokens=6))]
        )
    plan = plan_of(h)
    assert ([a.request.rid for a in plan.admitted], plan.verdict) == (["a", "b"], "NO_TOKEN")


def test_a_request_that_samples_nothing_needs_its_whole_prompt():
    h = Harness(pool_tokens=10)
    for rid in ("a", "b"):
        h.scheduler.receive([NewRequest(rid=rid, tokens=pack([ord(rid)] * 6), params=SamplingParams(max_new_tokens=0))])
    plan = plan_of(h)
    assert ([a.request.rid for a in plan.admitted], plan.verdict) == (["a"], "NO_TOKEN")
    h.scheduler.receive(
        [Abort("b"), NewRequest(rid="c", tokens=pack([7] * 5), params=SamplingParams(max_new_tokens=0))]
    )
    assert [a.request.rid for a in plan_of(h).admitted] == ["a"]  # 6 + 5 positions in 10 slots


def test_why_planning_stops_is_told():
    h = Harness(pool_tokens=64, max_running=1, context_length=64)
    h.add("a", list(range(20)), max_new_tokens=8)
    h.add("b", [1], max_new_tokens=8)
    assert plan_of(h).verdict == "OTHER"  # no request row
    h = Harness(pool_tokens=64, max_prefill_tokens=10, context_length=64)
    h.add("a", list(range(20)), max_new_tokens=8)
    h.add("b", [1], max_new_tokens=8)
    assert plan_of(h).verdict == "OTHER"  # prefill budget
    h = Harness(pool_tokens=64, context_length=64)
    h.add("a", list(range(20)), max_new_tokens=20)
    h.add("b", list(range(50, 70)), max_new_tokens=20)
    assert plan_of(h).verdict == "NO_TOKEN"


@pytest.mark.parametrize(
    ("prefill", "chunk", "reason"),
    [(8, 16, "input"), (16, 8, "chunk"), (8, 8, "input"), (10, 16, "alignment"), (8, None, "input")],
)
def test_the_account_that_is_used_up_is_named(prefill, chunk, reason):
    h = Harness(pool_tokens=64, page_size=4, max_prefill_tokens=prefill, chunk_tokens=chunk)
    for rid in "ab":
        h.scheduler.receive([NewRequest(rid=rid, tokens=pack([ord(rid)] * 8), params=SamplingParams(max_new_tokens=1))])
    a, b = plan_of(h).attempts
    assert (a.reason, b.reason, b.verdict) == ("", reason, "OTHER")


def test_who_would_run_alone_waits_for_those_who_leave_with_the_step_in_flight():
    h = Harness(pool_tokens=40, context_length=40, overlap=True, lazy=True)
    h.add("a", range(30), max_new_tokens=5)
    h.step()
    h.abort("a")
    h.scheduler.receive([NewRequest(rid="b", tokens=pack([7] * 8), params=SamplingParams(max_new_tokens=4))])
    assert not plan_of(h).admitted  # 10 slots are free, and it may need 11
    h.step()
    assert [request.rid for request in h.scheduler._running.requests] == ["b"]


class Fails:
    """Fails one call of a method, the one after `k` others."""

    def __init__(self, owner, method, k):
        self.calls, self.k, self.original = 0, k, getattr(owner, method)
        self.owner, self.method = owner, method

    def __call__(self, *args, **kwargs):
        self.calls += 1
        if self.calls == self.k + 1:
            raise OutOfSlotsError("injected")
        return self.original(*args, **kwargs)

    def __enter__(self):
        setattr(self.owner, self.method, self)
        return self

    def __exit__(self, *_):
        delattr(self.owner, self.method)


def target(h, what):
    pools = h.scheduler._pools
    return {"slots": (pools.allocator, "alloc"), "rows": (pools.table, "alloc"), "leases": (pools.cache, "acquire")}[
        what
    ]


@pytest.mark.parametrize("k", range(3))
@pytest.mark.parametrize("what", ["slots", "rows", "leases"])
def test_a_commit_that_fails_at_its_kth_step_gives_everything_back(what, k):
    h = filled()
    plan = plan_of(h)
    assert len(plan.admitted) > k
    books = ("free_rows", "running", "held", "protected", "waiting")
    before = [h.stat(name) for name in books]
    with Fails(*target(h, what), k), pytest.raises(CommitError, match="injected") as failed:
        commit(plan, h.scheduler._pools)
    assert failed.value.request is plan.admitted[k].request
    assert [h.stat(name) for name in books] == before
    assert {(r.row, r.lease, r.capacity, r.computed_len) for r in h.scheduler._queue} == {(0, None, 0, 0)}
    h.scheduler.check()


@pytest.mark.parametrize("k", range(3))
def test_serving_goes_on_after_a_failed_commit(k, caplog):
    h = filled()
    with Fails(*target(h, "slots"), k):
        h.step()
    assert h.finished[f"w{k}"].reason == "error"
    assert "injected" in caplog.text and "injected" not in h.finished[f"w{k}"].problem
    h.run()
    assert sorted(rid for rid, f in h.finished.items() if f.reason == "length" and rid[0] == "w") == [
        f"w{i}" for i in range(5) if i != k
    ]
    assert h.stat("commit_failures") == 1
    assert h.stat("free") + h.stat("evictable") == h.stat("pool")


@pytest.mark.parametrize("page", [1, 4])
def test_a_reserved_slot_that_is_missing_ends_one_request(page, caplog):
    h = Harness(script=digest, page_size=page)
    for rid in ("a", "b"):
        h.add(rid, [1, 2, ord(rid)], max_new_tokens=9)
    h.step()
    with Fails(*target(h, "slots"), 0):
        for _ in range(page):
            h.step()
    h.run()
    assert [h.finished[rid].reason for rid in ("a", "b")] == ["error", "length"]
    assert "counted on" in caplog.text
    assert h.stat("free") + h.stat("evictable") == h.stat("pool")


@pytest.mark.stepwise
def test_a_double_release_ends_one_request_and_not_the_loop(caplog):
    h = filled()
    victim = next(r for r in h.scheduler._running.requests if r.rid == "run0")
    victim.lease.release()  # somebody's mistake: the request will release it again
    h.scheduler.receive([Abort("run0")])
    assert "released already" in caplog.text
    assert h.stat("invariant_violations") == 1
    while h.scheduler.busy:  # the books are known to be wrong: no checks from here on
        h._note(h.scheduler.step())
    assert h.finished["run1"].reason == "length"


def together(h, **prompts):
    """What each step computes for requests that arrive at once and generate one token."""
    for rid, prompt in prompts.items():
        new = NewRequest(rid=rid, tokens=pack(prompt), params=SamplingParams(temperature=0.0, max_new_tokens=1))
        h.scheduler.receive([new])
    h.run()
    return [[(row.start, row.start + row.q_len) for row in plan.rows] for plan in h.executor.plans]


STEM = list(range(100))


@pytest.mark.parametrize(
    ("page", "shared", "steps"),
    [
        (1, 100, [[(0, 101)], [(100, 101), (100, 101)]]),
        (1, 64, [[(0, 101)], [(64, 101), (64, 101)]]),
        (1, 63, [[(0, 101), (0, 101), (0, 101)]]),
        (16, 79, [[(0, 101)], [(64, 101), (64, 101)]]),
        (16, 63, [[(0, 101), (0, 101), (0, 101)]]),
    ],
)
def test_what_the_step_computes_is_not_computed_twice(page, shared, steps):
    """Three prompts of 101 tokens begin with the same `shared` ones."""
    h = Harness(pool_tokens=1024, page_size=page)
    prompts = {name: [*STEM[:shared], *[1000 * (i + 1)] * (101 - shared)] for i, name in enumerate("abc")}
    assert together(h, **prompts) == steps
    assert h.stat("prefill_tokens") == sum(stop - start for step in steps for start, stop in step)


def test_who_waits_for_what_the_step_computes_says_so():
    h = Harness(pool_tokens=1024)
    for rid in "ab":
        new = NewRequest(rid=rid, tokens=pack([*STEM, ord(rid)]), params=SamplingParams(max_new_tokens=1))
        h.scheduler.receive([new])
    plan = plan_of(h)
    told = [(a.rid, a.selected, a.verdict, a.reason) for a in plan.attempts]
    assert told == [("a", 101, "CONTINUE", ""), ("b", 0, "OTHER", "prefix")]
    assert (plan.refused.rid, plan.lack) == ("b", None)
    assert plan.attempts[1].before == plan.attempts[1].after
    h.run()
    waits = {wait.cause for wait in h.scheduler._ledger.timeline("b", h.now).waits}
    assert waits == {"prefix"}


def test_others_are_not_waited_for():
    """Other namespaces share nothing, a prompt that is scored may not hit, and there may be no cache."""
    h = Harness(pool_tokens=1024)
    h.add("a", [*STEM, 1], max_new_tokens=1)
    h.add("b", [*STEM, 2], max_new_tokens=1, namespace=Namespace(salt="other"))
    h.add("c", [*STEM, 3], max_new_tokens=1, prompt_logprobs=0)
    assert [a.selected for a in plan_of(h).attempts] == [101, 101, 101]
    h = Harness(pool_tokens=1024, cache_enabled=False)
    h.add("a", [*STEM, 1], max_new_tokens=1)
    h.add("b", [*STEM, 2], max_new_tokens=1)
    assert [a.selected for a in plan_of(h).attempts] == [101, 101]


def test_what_is_left_to_share_of_a_long_prompt_may_be_too_little_to_wait_for():
    h = Harness(pool_tokens=4096, context_length=1024, chunk_tokens=80)
    h.add("long", [*STEM, *[5] * 50], max_new_tokens=1)
    h.add("short", [*STEM, *[6] * 10], max_new_tokens=1)
    seen = []
    for _ in range(3):
        h.scheduler.settle()
        seen.append([(a.rid, a.prefix, a.selected, a.reason) for a in plan_of(h).attempts])
        h.step()
    assert seen == [
        [("long", 0, 80, ""), ("short", 0, 0, "cut")],
        [("long", 80, 70, ""), ("short", 80, 10, "")],
        [("short", 90, 20, "")],
    ]
