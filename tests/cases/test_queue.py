"""Cases B02, B05, B06 and B13 to B16: what can never run, priorities, who waits for whom and for how long, full queues,
and ids of who waited."""

import asyncio
import itertools
import threading

import pytest
from http_harness import error_of, events
from real_server import Real, run

from rtk.plugin.host import installed
from rtk.plugin.testing.harness import Harness
from rtk.schedule.messages import Abort

CHAT = [{"role": "user", "content": "x"}]
SHORT = {f"s{i}": [100 + i, 7] for i in range(3)}


@pytest.mark.stepwise
@pytest.mark.parametrize("page", [1, 4])
def test_b02_what_can_never_fit_is_refused_with_the_numbers_and_delays_nobody(page):
    h = Harness(pool_tokens=64, page_size=page)
    verdict = h.add("huge", range(60), max_new_tokens=24)
    assert (verdict.accepted, verdict.code, verdict.status) == (False, "never_fits", 400)
    assert f"its charge of {84 + page} tokens reaches the pool of 64" in verdict.problem
    for rid, prompt in SHORT.items():
        h.add(rid, prompt, max_new_tokens=4)
    assert h.run() == 4
    assert [h.tokens[rid] for rid in SHORT] == [[8, 9, 10, 11]] * 3


def policy(name, **options):
    entry = installed().get("schedule", name)
    return entry.build(entry.plugin.options(**options))


@pytest.mark.parametrize("name", ["fcfs", "priority"])
def test_b05_who_made_room_runs_before_a_newcomer_of_equal_priority(name):
    h = Harness(pool_tokens=48, context_length=48, conservativeness=0.05, schedule=name)
    for rid in ("R0", "R1"):
        h.add(rid, [ord(rid[1])] * 8, max_new_tokens=24, priority=3)
        h.step()
    r1 = h.scheduler._requests["R1"]
    while not r1.retractions:
        h.step()
    h.add("R2", [9] * 8, max_new_tokens=24, priority=3)
    h.run()
    assert [len(h.tokens[rid]) for rid in h.finished] == [24] * 3
    assert list(h.finished) == ["R0", "R1", "R2"]


class Crowd:
    """Case B06: R1 holds 96 of 128 slots and R2 needs 64, while one request of 16 tokens arrives in each tick.

    The small ones are what policies like: they share a prefix with who runs, want much output, and carry a key.
    """

    def __init__(self, name, **options):
        self.h = h = Harness(pool_tokens=128, max_running=16, schedule=policy(name, **options))
        h.add("R1", range(1000, 1056), max_new_tokens=40, routing_key="hot")
        h.step()
        h.add("R2", range(2000, 2062), max_new_tokens=2, tenant="other")
        self.total = [h.stat("prefill_tokens")]
        """Tokens that were prefilled for others than R2, tick by tick, until it starts."""
        self.passed = 0
        """The number of the last small one that started before R2."""
        self.r1_ends = self.r2_starts = 0
        for tick in range(1, 201):
            h.add(f"{tick}", [1000, 1001, 1002, 2100 + tick], max_new_tokens=12, routing_key="hot")
            h.step()
            if not self.r1_ends and "R1" in h.finished:
                self.r1_ends = tick
            if not self.r2_starts:
                if "R2" in h.tokens:
                    self.r2_starts = tick
                else:
                    self.total.append(h.stat("prefill_tokens"))
                    self.passed = max([int(rid) for rid in h.tokens if rid.isdigit()], default=0)
        h.run()
        assert len(h.finished) == 202
        assert not h.stat("plugin_faults")

    @property
    def others(self):
        """Tokens that were prefilled for others before R2."""
        return self.total[-1] - self.total[0]

    @property
    def step(self):
        """The most of it in one tick."""
        return max(after - before for before, after in itertools.pairwise(self.total))


@pytest.mark.stepwise
@pytest.mark.parametrize("name", ["fcfs", "hrrn", "priority", "vtc"])
def test_b06_who_comes_first_by_arrival_ratio_priority_or_share_lets_nobody_pass(name):
    crowd = Crowd(name)
    assert (crowd.r1_ends, crowd.r2_starts, crowd.passed) == (39, 40, 0)


@pytest.mark.stepwise
@pytest.mark.parametrize("name", ["lpm", "dfs-weight", "lof", "routing-key"])
def test_b06_small_ones_pass_until_it_is_the_turn_of_the_large_one(name):
    crowd = Crowd(name, patience=100)
    assert 0 < crowd.r1_ends < crowd.r2_starts
    assert 0 < crowd.others <= 100 + crowd.step
    if name != "routing-key":  # there it starts once nobody runs with the key
        assert crowd.others >= 100
        assert Crowd(name, patience=None).r2_starts == 0


@pytest.mark.stepwise
@pytest.mark.parametrize("age", [1, 2])
def test_b06_short_ones_pass_that_came_before_the_large_one_had_aged(age):
    crowd = Crowd("shortest-prefill-first", age=age)
    assert 0 < crowd.r1_ends < crowd.r2_starts
    aged = next(tick for tick, total in enumerate(crowd.total) if total - crowd.total[0] >= age * 62)
    assert 0 < crowd.passed <= aged


def test_b06_a_random_order_has_no_bound_and_passes_nobody_over_for_ever():
    assert Crowd("random").r2_starts > 0


@pytest.mark.stepwise
def test_b15_a_cold_request_among_hot_ones_starts_within_the_bound_and_sooner_by_its_ratio():
    def waited(name, **options):
        """Tokens that are prefilled for others while a cold request waits for the one row."""
        h = Harness(max_running=1, pool_tokens=512, schedule=policy(name, **options))
        h.add("stem", range(100, 140), max_new_tokens=1)
        h.step()
        h.add("cold", [7] * 20, max_new_tokens=1)
        for tick in range(400):
            before = h.stat("prefill_tokens")
            h.add(f"hot{tick}", [*range(100, 140), tick], max_new_tokens=1)
            h.step()
            if "cold" in h.tokens:
                return before - 40
        return None

    assert waited("lpm", patience=None) is None
    assert waited("lpm", patience=100) == 100
    assert waited("hrrn") <= 1


def test_b13_priorities_sort_where_they_are_read_and_change_nothing_elsewhere():
    order = {}
    for policy in ("fcfs", "priority"):
        h = Harness(schedule=policy, max_running=1)
        for rid, priority in (("a", 0), ("b", -(2**31 - 1)), ("c", 2**31 - 1), ("d", 7)):
            h.add(rid, [1], priority=priority, max_new_tokens=1)
        h.run()
        order[policy] = "".join(h.finished)
        assert h.stat("plugin_faults") == 0
    assert order == {"fcfs": "abcd", "priority": "cdab"}


def test_b14_the_third_is_refused_at_once_and_the_waiters_after_50_ms():
    h = Harness(max_running=1, max_queue=2, max_wait_s=0.05)
    h.add("long", [1], max_new_tokens=100)
    h.step(seconds=0)
    first, second, third = (h.add(rid, [2]) for rid in ("r1", "r2", "r3"))
    assert (first.accepted, second.accepted) == (True, True)
    assert (third.accepted, third.code, third.status) == (False, "queue_full", 503)
    assert third.problem == "the queue is full: 2 wait (schedule.max_queue = 2); try again later"
    h.now += 0.049
    h.send(Abort("nobody"))
    assert not h.finished
    h.now += 0.002
    h.send(Abort("nobody"))
    assert {rid: (f.reason, f.code, f.status) for rid, f in h.finished.items()} == dict.fromkeys(
        ("r1", "r2"), ("error", "queue_timeout", 503)
    )
    assert (h.stat("waiting"), h.stat("running"), h.stat("protected") + h.stat("held")) == (0, 1, 1)
    assert (h.stat("queue_full"), h.stat("queue_timeouts")) == (1, 2)
    h.forget("r1")
    assert h.add("r1", [2]).accepted  # the queue has room, and the id is free
    h.abort("r1")
    h.run()
    assert h.tokens["long"] == list(range(2, 102))
    assert h.stat("free") + h.stat("evictable") == h.pool_tokens


class Stepwise(Real):
    """Computes only as many steps as it was permitted."""

    def __init__(self, *pieces, **harness):
        super().__init__(*pieces, **harness)
        self.permits = threading.Semaphore(0)

    def permit(self, steps=1):
        self.permits.release(steps)

    def _next(self, history):
        assert self.permits.acquire(timeout=10)
        return super()._next(history)

    def __exit__(self, *exc):
        self.permit(1000)
        super().__exit__(*exc)


def long_one(server, **body):
    return asyncio.create_task(server.post("/generate", sampling_params={"max_new_tokens": 100}, **body))


async def received(server, count):
    """So many requests have been handed to the scheduler."""
    while sum(entry.sent for entry in server.manager._entries.values()) < count:
        await asyncio.sleep(0)


def left(server, stats):
    assert server.manager.in_flight == 0
    assert (stats["running"], stats["waiting"], stats["held"], stats["protected"]) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("path", "stream"),
    [("/generate", False), ("/generate", True), ("/v1/completions", False), ("/v1/chat/completions", True)],
)
def test_b14_over_http(path, stream):
    async def test(server):
        long = long_one(server)
        await received(server, 1)
        waiting = []
        for count in (2, 3, 4):
            waiting.append(asyncio.create_task(server.post(path, messages=CHAT, stream=stream)))
            await received(server, count)
        server.permit()
        third = await waiting[2]
        assert error_of(third, 503)["code"] == "queue_full"
        assert third.headers["retry-after"] == "1"
        assert not waiting[0].done() and not waiting[1].done()
        while not server.harness.scheduler.counters["uncached_tokens"]:
            await asyncio.sleep(0)  # the first has arrived, and not begun yet
        server.harness.now = 0.05
        server.permit()
        for task in waiting[:2]:
            answer = await task
            assert error_of(answer, 503)["code"] == "queue_timeout"
            assert answer.headers["retry-after"] == "1"
        server.permit(1000)
        assert (await long).json()["meta_info"]["completion_tokens"] == 100
        left(server, await server.stats())

    run(Stepwise("a", end=False, max_running=1, max_queue=2, max_wait_s=0.05), test)


@pytest.mark.stepwise
@pytest.mark.parametrize("stream", [False, True])
def test_b14_a_deadline_is_a_status_before_the_first_event_and_an_event_after_it(stream):
    async def test(server):
        long = long_one(server, deadline_ms=50, stream=stream)
        await received(server, 1)
        server.permit(2)
        while server.harness.scheduler.counters["decode_tokens"] < 1:
            await asyncio.sleep(0)
        server.harness.now = 0.05
        server.permit()
        answer = await long
        problem = {
            "message": "the request did not end within its deadline of 50 ms",
            "type": "server_error", "param": None, "code": "deadline_exceeded",
        }  # fmt: skip
        if stream:
            *before, last = events(answer)
            assert answer.status_code == 200
            assert [event["text"] for event in before][:2] == ["a", "aa"]
            assert last == {"error": problem}
        else:
            assert error_of(answer, 503) == problem
            assert answer.headers["retry-after"] == "1"
        left(server, await server.stats())

    run(Stepwise("a", end=False), test)


def test_b16_an_id_is_free_again_after_an_abort_in_the_queue():
    h = Harness(max_running=1)
    h.add("long", [1], max_new_tokens=8)
    h.step()
    h.add("r-1", [5], max_new_tokens=2)
    h.abort("r-1")
    assert h.finished["r-1"].reason == "abort"
    h.forget("r-1")
    assert h.add("r-1", [5], max_new_tokens=2).accepted
    h.run()
    assert h.tokens["r-1"] == [6, 7]
    assert not h.scheduler._requests


def test_b16_over_http():
    async def test(server):
        long = long_one(server)
        await received(server, 1)
        waits = asyncio.create_task(server.post("/generate", rid="r-1"))
        await received(server, 2)
        assert (await server.request("POST", "/abort", {"rid": "r-1"})).json()["aborted"]
        server.permit()
        assert (await waits).json()["meta_info"]["finish_reason"]["type"] == "abort"
        again = asyncio.create_task(server.post("/generate", rid="r-1", sampling_params={"max_new_tokens": 2}))
        await received(server, 2)
        server.permit(1000)
        assert (await again).json()["text"] == "aa"
        await long
        left(server, await server.stats())
        assert not server.manager._names

    run(Stepwise("a", end=False, max_running=1), test)
