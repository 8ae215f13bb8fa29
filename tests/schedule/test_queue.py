"""The waiting queue: who stands where, and what policies are told."""

import random

import numpy as np
import pytest

from rtk.cache.key import DEFAULT_NAMESPACE, Key, pack
from rtk.cache.slots import SlotAllocator
from rtk.cache.tree import PrefixCache
from rtk.plugin import Progress, ScheduleContext, SchedulePolicy
from rtk.plugin.guard import GuardedEviction, GuardedSchedule, Health
from rtk.plugin.host import installed
from rtk.plugin.info import CAPABILITIES
from rtk.schedule.params import SamplingParams
from rtk.schedule.queue import WaitingQueue
from rtk.schedule.request import Request
from rtk.schedule.waiting_columns import FEW, WaitingColumns


class Watches(SchedulePolicy):
    """Orders by arrival, answers every question, and keeps what it was told."""

    def __init__(self):
        self.told = []

    def rank(self, columns, ctx):
        self.columns, self.ctx = columns, ctx
        return ()

    def chunk_reserve(self, columns, ctx):
        self.columns, self.ctx = columns, ctx
        return 7

    def on_progress(self, deltas):
        self.told += deltas

    def retract_key(self, view):
        return (-view.output_len,)

    def preempts(self, waiting, running):
        return waiting.priority > running.priority


class Line:
    """A queue over an empty cache."""

    def __init__(self, requires=frozenset(CAPABILITIES), policy=None):
        entry = installed().get("eviction", "lru")
        eviction = GuardedEviction(entry.build(entry.plugin.options()), "lru", Health())
        self.allocator, self.health, self.policy = SlotAllocator(256, 4), Health(), policy or Watches()
        self.cache = PrefixCache(self.allocator, eviction)
        self.queue = WaitingQueue(GuardedSchedule(self.policy, "watches", self.health), self.cache, requires=requires)
        self.made = 0

    def request(self, prompt=(1, 2, 3), **facts):
        self.made += 1
        about = {"tenant": "", "routing_key": "", "priority": 0, "prefilled_at_arrival": 0} | facts
        return Request(
            rid=f"r{self.made}",
            id=self.made,
            prompt_len=len(prompt),
            tokens=bytearray(pack(prompt)),
            params=SamplingParams(),
            key=Key(DEFAULT_NAMESPACE, pack(prompt)),
            max_new_tokens=9,
            seed=0,
            arrival_s=float(self.made),
            stop_token_ids=frozenset(),
            **about,
        )

    def add(self, *args, **facts):
        request = self.request(*args, **facts)
        self.queue.add(request)
        return request

    def ranked(self, running=(), total=0):
        ctx = ScheduleContext(now=9.0, rng=random.Random(0), running=1, prefilled_total=total)
        return list(self.queue.ranked(ctx, running))

    def cached(self, tokens):
        lease = self.cache.acquire(Key(DEFAULT_NAMESPACE, b""), self.cache.peek(Key(DEFAULT_NAMESPACE, b"")))
        lease.grow(pack(tokens), self.allocator.alloc(len(tokens) // 4))
        lease.release()


def retracted(line, request, *output):
    line.queue.remove(request)
    for token in output:
        request.append(token)
    request.retractions += 1
    request.fill_len = request.length
    request.key = Key(request.key.namespace, bytes(request.tokens))
    line.queue.put_back(request)


def test_the_retracted_stand_before_all_others_in_order_of_arrival():
    line = Line()
    a, b, c, d = (line.add() for _ in range(4))
    retracted(line, c, 5)
    retracted(line, b)
    assert line.ranked() == list(line.queue) == [b, c, a, d]
    retracted(line, c, 6)
    e = line.add()
    assert line.ranked() == [b, c, a, d, e]
    assert line.policy.columns.retractions.tolist() == [1, 2, 0, 0, 0]
    assert line.policy.columns.output_len.tolist() == [0, 2, 0, 0, 0]
    line.queue.remove(c)
    assert line.ranked() == [b, a, d, e]
    assert c not in line.queue and b in line.queue


def test_who_was_never_retracted_is_not_put_back():
    line = Line()
    with pytest.raises(AssertionError, match="never retracted"):
        line.queue.put_back(line.request())


def test_nobody_waits():
    line = Line()
    assert (line.ranked(), len(line.queue), list(line.queue)) == ([], 0, [])
    assert line.queue.chunk_reserve(ScheduleContext(0.0, random.Random(0), 1), line.request()) == 0


def test_columns_say_what_is_matched_now():
    line = Line()
    line.add([1] * 12)
    line.add([1] * 8 + [2] * 8)
    line.ranked()
    assert line.policy.columns.matched_len.tolist() == [0, 0]
    line.cached([1] * 12)
    line.ranked()
    assert line.policy.columns.matched_len.tolist() == [8, 8]  # of twelve tokens, the last is computed in any case
    assert line.policy.columns.uncached_len.tolist() == [4, 8]
    line.cache.flush()
    line.ranked()
    assert line.policy.columns.matched_len.tolist() == [0, 0]


def test_groups_are_filed_anew_only_where_many_left_out_of_turn(monkeypatch):
    line = Line()
    monkeypatch.setattr(line.queue._shared, "_refile", pytest.fail)
    waiting = [line.add([i] * 40) for i in range(200)]
    for i in range(1000):
        line.queue.remove(waiting.pop(0))
        waiting.append(line.add([200 + i] * 40))


def test_what_changed_for_one_who_left_is_told_of_nobody():
    line = Line()
    _, leads, leaves, _ = [line.add([first] * 40) for first in (1, 2, 2, 1)]
    line.ranked()
    assert line.policy.columns.shares_prefix.tolist() == [False, False, True, True]
    line.cached([2] * 8)
    line.queue.remove(leads)  # so the next one leads
    line.queue.remove(leaves)
    line.ranked()
    assert line.policy.columns.matched_len.tolist() == [0, 0]
    assert line.policy.columns.shares_prefix.tolist() == [False, True]


def test_what_a_policy_does_not_require_costs_nothing_and_shows_nothing():
    line = Line(requires=frozenset())
    line.cached([1] * 12)
    for _ in range(2):
        line.add([1] * 40, tenant="a", routing_key="k")
    line.ranked(running=[line.request(routing_key="k")])
    columns, ctx = line.policy.columns, line.policy.ctx
    for name in ("matched_len", "tenant", "running_with_key", "shares_prefix"):
        assert not getattr(columns, name).any()
    assert (ctx.tree, ctx.tenants) == (None, ())
    assert line.cache._watcher is None


def test_what_it_requires_is_shown():
    line = Line()
    for tenant, key in (("a", "k"), ("b", ""), ("a", "l"), ("c", "k")):
        line.add([1] * 40, tenant=tenant, routing_key=key, prefilled_at_arrival=5)
    running = [line.request(routing_key=key) for key in ("k", "k", "", "m")]
    line.ranked(running, total=30)
    columns, ctx = line.policy.columns, line.policy.ctx
    assert columns.tenant.tolist() == [0, 1, 0, 2]
    assert ctx.tenants == ("a", "b", "c")
    assert columns.running_with_key.tolist() == [2, 0, 0, 2]
    assert columns.shares_prefix.tolist() == [False, True, True, True]
    assert columns.prefilled_since_arrival.tolist() == [25] * 4
    assert (ctx.page_size, ctx.prefilled_total) == (4, 30)
    assert (ctx.tree.parent.tolist(), ctx.tree.node.tolist()) == ([-1], [0] * 4)


def test_what_a_policy_keeps_of_a_ranking_does_not_change():
    line = Line()
    for _ in range(3):
        line.add()
    line.ranked()
    kept = line.policy.columns.id
    line.queue.remove(next(iter(line.queue)))
    line.add()
    line.ranked()
    assert kept.tolist() == [1, 2, 3]


def test_the_view_of_one_who_waits_and_of_one_who_runs():
    line = Line()
    line.cached([1] * 8)
    waits = line.add([1] * 12, tenant="a", priority=4, prefilled_at_arrival=2)
    line.add([1] * 40)
    shares = line.add([1] * 40)
    line.ranked(total=10)
    view = line.queue.view(waits)
    assert (view.id, view.matched_len, view.uncached_len, view.priority) == (1, 8, 4, 4)
    assert (view.arrival_s, view.max_new_tokens, view.prefilled_since_arrival, view.tenant) == (1.0, 9, 8, 0)
    assert line.queue.view(shares).shares_prefix and not view.shares_prefix
    line.queue.remove(waits)
    waits.computed_len = 10
    assert line.queue.view(waits).uncached_len == 2
    waits.computed_len = 13
    waits.append(5)
    waits.append(6)
    assert line.queue.view(waits)[:5] == (1, 1.0, 12, 9, 12)
    assert line.queue.view(waits).output_len == 2


def test_questions_reach_the_policy():
    line = Line()
    runs, waits = line.request(tenant="a", priority=1), line.add(tenant="b", priority=2)
    runs.append(4)
    assert (line.queue.listens, line.queue.has_retract_key, line.queue.may_preempt) == (True, True, True)
    assert line.queue.retract_key(runs) == (-1,)
    assert line.queue.preempts(waits, runs) and not line.queue.preempts(runs, waits)
    line.queue.progressed([(runs, 3, 1), (waits, 0, 0)])
    assert line.policy.told == [Progress(1, 1, 3, 1), Progress(2, 0, 0, 0)]
    assert line.queue.chunk_reserve(ScheduleContext(0.0, random.Random(0), 1), runs) == 7
    assert line.policy.ctx.chunked == line.queue.view(runs)
    assert len(line.policy.columns) == 1
    assert not line.health.degraded


def test_a_policy_without_these_is_not_asked():
    class Plain(SchedulePolicy):
        def rank(self, columns, ctx):
            return ()

    line = Line(policy=Plain())
    one = line.add()
    assert (line.queue.listens, line.queue.has_retract_key, line.queue.may_preempt) == (False, False, False)
    assert (line.queue.retract_key(one), line.queue.preempts(one, one)) == ((), False)
    assert line.queue.chunk_reserve(ScheduleContext(0.0, random.Random(0), 1), one) == 0
    line.queue.progressed([(one, 1, 1)])
    assert not line.health.degraded


def test_what_a_policy_says_of_falling_back_is_counted_once_a_ranking():
    class Says(Watches):
        def rank(self, columns, ctx):
            ctx.fallbacks.extend(["not today", "nor\nthis"][: len(columns)])
            return ()

    line = Line(policy=Says())
    for expected in ((1, "not today"), (2, "not today; nor\\nthis")):
        line.add()
        line.ranked()
        assert (line.queue.fallbacks, line.queue.note) == expected
    for request in list(line.queue):
        line.queue.remove(request)
    line.ranked()
    assert (line.queue.fallbacks, line.queue.note) == (2, "")


def test_what_a_policy_says_is_of_one_ranking_where_a_step_has_several():
    class Says(Watches):
        def rank(self, columns, ctx):
            ctx.fallbacks.append(f"{len(columns)}")
            return ()

    line, ctx = Line(policy=Says()), ScheduleContext(now=9.0, rng=random.Random(0), running=1)
    for said in ("1", "2"):
        line.add()
        list(line.queue.ranked(ctx))
        assert line.queue.note == said


def test_who_is_held_is_named():
    class Holds(Watches):
        def hold(self, columns, ctx):
            return columns.priority < 0

    line = Line(policy=Holds())
    a, b, c = (line.add(priority=priority) for priority in (-1, 0, -2))
    assert (line.ranked(), line.queue.held) == ([b], [a, c])
    line.queue.remove(a)
    line.queue.remove(c)
    assert (line.ranked(), line.queue.held) == ([b], [])


def test_routing_keys_of_the_past_are_forgotten():
    line = Line()
    for i in range(50):
        line.queue.remove(line.add(routing_key=f"k{i}"))
    first, second = line.add(routing_key="x"), line.add(routing_key="x")
    line.queue.remove(first)
    line.ranked([second] * 4)
    assert line.policy.columns.running_with_key.tolist() == [4]
    assert line.queue._keys._made == 2


def test_who_comes_and_goes_while_nobody_looks_leaves_nothing():
    line = Line()
    waits = line.add([1] * 40)
    for _ in range(2000):
        line.queue.remove(line.add([1] * 40))
    assert len(line.queue._columns._arrays["place"]) < 4 * FEW
    assert [len(places) <= 2 * FEW for places in line.queue._shared._groups.values()] == [True]
    a, b = line.add([1] * 40), line.add([1] * 40)
    assert line.ranked() == [waits, a, b]
    assert line.policy.columns.shares_prefix.tolist() == [False, True, True]
    line.queue.remove(waits)
    assert line.ranked() == [a, b]
    assert line.policy.columns.shares_prefix.tolist() == [False, True]


@pytest.mark.parametrize("many", [1, FEW + 1])
def test_columns_keep_their_order_whatever_leaves(many):
    rng, columns, model, last = random.Random(many), WaitingColumns({"value": float, "flag": bool}), {}, 0
    for _ in range(400):
        for _ in range(rng.randint(0, 2 * many)):
            last += 1
            place = last if rng.random() < 0.9 else -last
            model[place] = (rng.random(), rng.random() < 0.5)
            columns.add(place, value=model[place][0], flag=model[place][1])
        for place in rng.sample(sorted(model), min(len(model), rng.randint(0, 2 * many))):
            del model[place]
            columns.remove(place)
        assert len(columns) == len(model)
        if rng.random() < 0.5:
            columns.settle()
            places = sorted(model)
            assert columns.column("place").tolist() == places
            assert list(zip(*(columns.column(n).tolist() for n in ("value", "flag")), strict=True)) == [
                model[place] for place in places
            ]
            assert columns.positions(places).tolist() == list(range(len(places)))
            if places:
                columns.write("value", np.array([0]), [0.5])
                model[places[0]] = 0.5, model[places[0]][1]
