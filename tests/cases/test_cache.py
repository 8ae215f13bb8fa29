"""Cases A01 to A18 and X01, X02, X03, X30: the prefix cache, alone and under the scheduler."""

import numpy as np
import pytest

from rtk.cache import heap
from rtk.cache.key import AdapterRef, Key, Namespace, pack
from rtk.cache.node import NO_CHILDREN
from rtk.plugin.host import installed
from rtk.plugin.testing.harness import Harness, count_up, digest
from rtk.schedule.messages import Flush, Flushed, Refused

PAGES = pytest.mark.parametrize("page", [1, 4, 16])


def books(h):
    return {name: h.stat(name) for name in ("free", "evictable", "protected", "held")}


# --- A01, A16: nothing is lost and nothing is kept ----------------------------------------------------------------


@PAGES
def test_x01_leak_hunt(page):
    h = Harness(script=digest, pool_tokens=256, page_size=page, max_running=16)
    aborts = {}
    for tick in range(67 + 7):
        for k in range(3 * tick, min(3 * tick + 3, 200)):
            prompt = [*range(1000 * (k % 10), 1000 * (k % 10) + 7 * k % 25), *[50_000 + k] * (11 * k % 36 + 1)]
            assert h.add(f"r{k}", prompt, max_new_tokens=5 * k % 12 + 1).accepted
            if k % 5 == 0:
                aborts.setdefault(tick + k % 7, []).append(f"r{k}")
        for rid in aborts.pop(tick, []):
            h.abort(rid)
        h.step()  # the harness checks every book after each message and each step
        assert sum(books(h).values()) == 256
    h.run()
    assert not aborts and len(h.finished) == 200
    reasons = [finish.reason for finish in h.finished.values()]
    assert 0 < reasons.count("abort") <= 40 and reasons.count("length") == 200 - reasons.count("abort")
    assert books(h) == {"free": h.stat("free"), "evictable": 256 - h.stat("free"), "protected": 0, "held": 0}
    assert h.stat("evicted_tokens") > 0 and h.stat("cached_tokens") > 0
    h.send(Flush(id=1))
    assert (h.stat("free"), h.stat("free_rows"), h.stat("invariant_violations")) == (256, 16, 0)


def test_a16_bookkeeping_does_not_outlive_its_content(make_tree):
    tree = make_tree(pool=64)
    for i in range(2_000):
        tree.cache.evict(1 - tree.allocator.free)
        tree.insert([i])
    assert len(list(tree.cache.nodes())) == 64
    for _ in range(1_000):
        assert tree.match([1_999]) == 1
        assert len(tree.cache._heap) <= 2 * 64 + 64


def test_salts_leave_nothing_behind(make_tree):
    tree = make_tree(pool=16)
    tree.insert(range(8))

    def containers():
        cache, allocator = tree.cache, tree.allocator
        parts = (cache._roots, cache._leases, cache._heap, NO_CHILDREN, allocator._end, allocator._first)
        return [len(part) for part in parts]

    before = containers()
    key = pack(range(8))
    for i in range(1_000_000):
        asked = Key(Namespace(None, f"salt {i}"), key)
        match = tree.cache.peek(asked)
        if i % 10 == 0:
            tree.cache.acquire(asked, match).release()
    assert match.length == 0
    assert containers() == before and tree.cache.namespaces == 1
    tree.cache.flush()
    for i in range(5_000):
        tree.insert([1, 2, 3, 4], Namespace(None, f"salt {i}"))
        assert tree.cache.evict(4) == 4
    assert tree.cache.namespaces == 0 and len(tree.cache.log) == 4096
    assert containers()[:2] == [0, 0] and len(tree.cache._heap) == 0
    tree.cache.check()


# --- A02: the last token has no K/V -------------------------------------------------------------------------------


def test_a02_the_last_sampled_token_is_not_cached():
    h = Harness(pool_tokens=32, script=count_up)
    h.add("a", [11, 12, 13], max_new_tokens=5)
    h.run()
    assert h.tokens["a"] == [14, 15, 16, 17, 18]
    assert books(h) == {"free": 25, "evictable": 7, "protected": 0, "held": 0}
    assert [node.size for node in h.scheduler._pools.cache.nodes()] == [3, 4]


# --- A03 to A05 (X30): arithmetic ---------------------------------------------------------------------------------


def test_a03_keys_are_cut_to_whole_pages(make_tree):
    tree = make_tree(page_size=4)
    assert tree.insert([1, 2, 3]) == 0
    assert tree.insert(range(1, 10)) == 8
    assert tree.match([1, 2, 3, 4, 5, 6]) == 4
    assert tree.books() == (8, 0)


def test_a04_diverging_pages_are_their_own(make_tree):
    tree = make_tree(page_size=4)
    for tail in ([], [9, 10, 11, 12], [9, 10, 20, 21]):
        tree.insert([*range(1, 9), *tail])
    assert tree.books() == (16, 0)
    assert tree.allocator.free == 256 - 16


def test_a05_splitting_a_locked_node_locks_both_halves(make_tree):
    tree = make_tree()
    lease = tree.acquire([1, 2, 3, 4, 5])
    tree.fill(lease, [1, 2, 3, 4, 5])
    tree.insert([1, 2, 9])
    assert tree.books() == (1, 5)
    lease.release()
    assert tree.books() == (6, 0)
    assert tree.cache.evict(6) == 6
    assert tree.shape() == []


# --- A07, A08, A18: what is reused --------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "reused"), [(16, 0), (32, 16), (48, 32)])
def test_a08_at_least_one_token_is_recomputed(length, reused):
    h = Harness(script=digest, page_size=16)
    for rid in ("first", "second"):
        h.add(rid, range(length), max_new_tokens=4)
        h.run()
    assert (h.cached["first"], h.cached["second"]) == (0, reused)
    assert h.tokens["second"] == h.tokens["first"]
    assert h.stat("prefill_tokens") == 2 * length - reused


def test_generated_text_goes_before_its_prompt():
    h = Harness(script=digest)
    h.add("a", range(10), max_new_tokens=6)
    h.run()
    cache = h.scheduler._pools.cache
    assert [(node.start, node.size) for node in cache.nodes()] == [(0, 10), (10, 5)]
    assert cache.evict(1) == 5
    assert cache.peek(Key(Namespace(), pack(range(10)))).length == 10


# --- A09, A10 (X02): who goes -------------------------------------------------------------------------------------

X02 = {"lru": 0, "fifo": 0, "lfu": 1, "slru": 1, "priority": 1, "filo": 2, "mru": 2}
ENTRIES = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]


def survivors(tree):
    return [i for i, entry in enumerate(ENTRIES) if tree.peek(entry).length == 4]


@pytest.mark.parametrize("page", [4, 1])
@pytest.mark.parametrize("policy", X02)
def test_x02_which_entry_leaves(make_tree, policy, page):
    tree = make_tree(pool=12, page_size=page, policy=policy)
    tree.insert(ENTRIES[0], priority=5)
    for _ in range(3):
        assert tree.match(ENTRIES[0]) == 4
    tree.insert(ENTRIES[1])
    tree.insert(ENTRIES[2])
    assert tree.cache.evict(4) == 4
    assert survivors(tree) == [i for i in range(3) if i != X02[policy]]
    assert not tree.health.degraded


@pytest.mark.parametrize(("hits", "victim"), [(1, 0), (2, 1)])
def test_slru_protects_from_its_second_hit_on(make_tree, hits, victim):
    tree = make_tree(pool=12, page_size=4, policy="slru")
    tree.insert(ENTRIES[0])
    for _ in range(hits):
        tree.match(ENTRIES[0])
    for entry in ENTRIES[1:]:
        tree.insert(entry)
    assert tree.cache.evict(1) == 4
    assert survivors(tree) == [i for i in range(3) if i != victim]


def test_x02_covers_every_installed_policy_of_this_distribution():
    ours = {e.plugin.name for e in installed().of_kind("eviction") if e.plugin.target.startswith("rtk_eviction.")}
    assert ours == X02.keys()


@pytest.mark.parametrize(("policy", "victim"), [("mru", 0), ("lru", 1)])
def test_a10_a_key_that_becomes_more_urgent_on_a_touch(make_tree, policy, victim):
    tree = make_tree(pool=12, page_size=4, policy=policy)
    for entry in ENTRIES:
        tree.insert(entry)
    tree.match(ENTRIES[0])
    assert tree.cache.evict(1) == 4
    assert survivors(tree) == [i for i in range(3) if i != victim]


def test_a_priority_reaches_the_policy_from_the_request():
    h = Harness(pool_tokens=40, eviction="priority", context_length=40)
    for i, priority in enumerate([5, 0, 3]):
        h.add(f"r{i}", range(100 * i, 100 * i + 10), max_new_tokens=1, priority=priority)
        h.run()
    h.add("big", range(500, 515), max_new_tokens=1)
    h.run()
    left = [
        h.scheduler._pools.cache.peek(Key(Namespace(), pack(range(100 * i, 100 * i + 10)))).length for i in range(3)
    ]
    assert left == [10, 0, 10]


# --- A11, A12: twice, and too early -------------------------------------------------------------------------------


@pytest.mark.stepwise
@pytest.mark.parametrize("steps", range(5))
def test_a11_aborting_twice_in_the_tick_of_the_end(steps):
    h = Harness(pool_tokens=32)
    h.add("a", [1, 2, 3], max_new_tokens=4)
    for _ in range(steps):
        h.step()
    for _ in range(2):
        h.abort("a")
    h.step()
    assert h.finished["a"].reason == ("length" if steps == 4 else "abort")
    assert (h.stat("protected"), h.stat("held")) == (0, 0)
    h.add("b", [1, 2, 3], max_new_tokens=2)
    h.run()
    assert h.tokens["b"] == [4, 5]


def test_a12_a_flush_with_a_request_in_flight_is_refused_and_right_after_it_succeeds():
    h = Harness()
    for i in range(100):
        h.add(f"r{i}", [i, 2, 3], max_new_tokens=3)
        h.step()
        h.send(Flush(id=2 * i))
        assert isinstance(h.answers[2 * i], Refused) and "1 requests are running" in h.answers[2 * i].problem
        h.run()
        h.send(Flush(id=2 * i + 1))
        assert h.answers[2 * i + 1] == Flushed(id=2 * i + 1, tokens=5)
        assert h.tokens[f"r{i}"] == [4, 5, 6]


# --- A13: content goes with its slots -----------------------------------------------------------------------------


def test_a13_content_of_evicted_pages_is_forgotten(make_tree):
    tree = make_tree(pool=16)
    tree.insert([10] * 16)
    assert tree.cache.evict(16) == 16
    tree.insert([20] * 16)
    assert (tree.match([10] * 16), tree.match([20] * 16)) == (0, 16)


# --- A14, A15 (X03): namespaces -----------------------------------------------------------------------------------


def test_x03_namespaces(make_tree):
    prompt = list(range(501, 517))
    tree = make_tree()

    hits = []
    asked = [("alpha", None), (None, "alpha"), ("al", "pha"), ("alp", "ha"), ("alpha", None)]
    asked += [
        (None, "x" * 10_000),
        (None, "x" * 9_999),
        (None, "a\0b"),
        (None, "a"),
        ("alpha", ""),
        (None, "x" * 10_000),
    ]
    for adapter, salt in asked:
        space = Namespace(None if adapter is None else AdapterRef(adapter, 1), salt)
        lease = tree.acquire(prompt, space, limit=15)
        hits.append(lease.length)
        tree.fill(lease, prompt)
        lease.release()
    assert hits == [0, 0, 0, 0, 15, 0, 0, 0, 0, 0, 15]
    assert tree.cache.namespaces == 9


@pytest.mark.parametrize(
    ("one", "other"), [(("ab", "c"), ("a", "bc")), (("", "x"), ("x", "")), (("a\0", "b"), ("a", "\0b"))]
)
def test_a14_names_that_join_to_one_string(make_tree, one, other):
    tree = make_tree()
    tree.insert(range(16), Namespace(AdapterRef(one[0], 1), one[1]))
    assert tree.match(range(16), Namespace(AdapterRef(other[0], 1), other[1])) == 0


def test_a15_an_adapter_loaded_again_starts_cold(make_tree):
    tree = make_tree()
    first, second = (Namespace(AdapterRef("beta", generation)) for generation in (1, 2))
    tree.insert(range(16), first)
    assert (tree.match(range(16), first), tree.match(range(16), second)) == (16, 0)
    h = Harness(script=digest)
    for rid, space in (("v1", first), ("again", first), ("v2", second)):
        h.add(rid, range(16), namespace=space, max_new_tokens=1)
        h.run()
    assert [h.cached[rid] for rid in ("v1", "again", "v2")] == [0, 15, 0]


# --- A17: eviction at scale ---------------------------------------------------------------------------------------


def work_of_evictions(make_tree, leaves, monkeypatch, *, touch):
    """What 300 times (evict 1, insert 1, and touch 1) asks of the heap, with so many one-page leaves in a full pool."""
    tree = make_tree(pool=leaves)
    for i in range(leaves):
        tree.insert([i])
    counts = {"keys": 0, "pushes": 0}
    key, push, compact = tree.cache._policy.key, heap.heappush, heap.EvictionHeap._compact

    def counted_key(view):
        counts["keys"] += 1
        return key(view)

    def counted_push(*args):
        counts["pushes"] += 1
        push(*args)

    def counted_compact(self):
        counts["pushes"] += len(self._heap)
        compact(self)

    with monkeypatch.context() as patch:
        patch.setattr(tree.cache._policy, "key", counted_key)
        patch.setattr(heap, "heappush", counted_push)
        patch.setattr(heap.EvictionHeap, "_compact", counted_compact)
        for i in range(300):
            assert tree.cache.evict(1) == 1
            tree.insert([leaves + i])
            assert not touch or tree.match([leaves - 1]) == 1
    return counts


def test_a17_an_eviction_costs_as_much_in_a_large_tree(make_tree, monkeypatch):
    small, large = (work_of_evictions(make_tree, n, monkeypatch, touch=False) for n in (200, 20_000))
    assert small == large == {"keys": 300, "pushes": 300}
    small, large = (work_of_evictions(make_tree, n, monkeypatch, touch=True) for n in (200, 20_000))
    assert small["keys"] == large["keys"] == 600
    assert large["pushes"] == 600 <= small["pushes"] <= 2 * 600  # the small heap drops its void entries now and then


def test_a20_a_parent_never_leaves_before_its_children(make_tree):
    tree = make_tree(page_size=4)
    for n in (4, 8, 12):
        tree.insert(range(n))
    held = tree.acquire([100, 101, 102, 103])
    tree.fill(held, [100, 101, 102, 103])
    for left in (8, 4, 0):
        assert tree.cache.evict(1) == 4
        assert tree.match(range(12)) == left
    assert tree.cache.evict(1) == 0
    held.release()
    assert np.unique(held.slots()).size == 4
