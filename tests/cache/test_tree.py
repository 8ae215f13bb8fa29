import json
from pathlib import Path

import pytest

from rtk.cache.key import DEFAULT_NAMESPACE, AdapterRef, Key, Namespace, pack
from rtk.cache.lease import LeaseError
from rtk.cache.node import LockLedger
from rtk.plugin import EvictionPolicy

NUMBERS = json.loads((Path(__file__).parents[1] / "data/worked_examples.json").read_text())


class Mru(EvictionPolicy):
    """A key that becomes more urgent on a touch."""

    facts = frozenset({"last_use"})

    def key(self, node):
        return (-node.last_use,)


class Fifo(EvictionPolicy):
    facts = frozenset({"created"})

    def key(self, node):
        return (node.created,)


def books(tree):
    return tree.cache.evictable, tree.cache.protected


def test_the_seven_steps(make_tree):
    steps = {step["n"]: step for step in NUMBERS["seven_steps"]["steps"]}
    tree = make_tree(pool=4000)
    system, a_user, b_user = range(1200), range(2000, 2300), range(3000, 3180)
    a_prompt, b_prompt = [*system, *a_user], [*system, *b_user]

    a = tree.acquire(a_prompt)
    assert (a.length, *books(tree)) == (steps[1]["hit"], steps[1]["evictable"], steps[1]["protected"])
    tree.fill(a, a_prompt)
    assert [size for _, size in tree.shape()] == steps[2]["nodes"]
    assert books(tree) == (steps[2]["evictable"], steps[2]["protected"])

    a_all = [*a_prompt, *range(4000, 4200)]
    tree.fill(a, a_all)
    a_slots = a.slots().tolist()
    a.release()
    assert [size for _, size in tree.shape()] == steps[3]["nodes"]
    assert books(tree) == (steps[3]["evictable"], steps[3]["protected"])

    b = tree.acquire(b_prompt)
    assert b.length == steps[4]["hit"]
    assert [size for start, size in tree.shape() if start in (0, 1200)] == steps[4]["split"]
    assert books(tree) == (steps[4]["evictable"], steps[4]["protected"])
    hit = tree.acquire(a_all)
    assert hit.slots().tolist() == a_slots  # the split moved no slot
    hit.release()

    tree.fill(b, b_prompt)
    assert (1200, steps[5]["new_leaf"]) in tree.shape()
    assert books(tree) == (steps[5]["evictable"], steps[5]["protected"])

    without_step_6 = tree.cache.peek(Key(DEFAULT_NAMESPACE, pack([*a_all, *range(5000, 5150)])))
    assert without_step_6.length == steps[7]["without_step_6"]["hit"]
    assert tree.cache.evict(250) == steps[6]["freed"]
    assert books(tree) == (steps[6]["evictable"], steps[6]["protected"])
    after = tree.cache.peek(Key(DEFAULT_NAMESPACE, pack([*a_all, *range(5000, 5150)])))
    assert (after.length, 1850 - after.length) == (steps[7]["hit"], steps[7]["prefill"])
    b.release()


@pytest.mark.parametrize("page", [1, 16, 64])
def test_granularity(make_tree, page):
    tree = make_tree(pool=4096, page_size=page)
    shared = list(range(NUMBERS["granularity"]["shared"]))
    tree.insert([*shared, *[7777] * 64])
    assert tree.match([*shared, *[8888] * 64]) == NUMBERS["granularity"][f"page_{page}"]


def test_arithmetic_with_pages(make_tree):
    tree = make_tree(page_size=4)
    assert tree.insert([1, 2, 3]) == 0
    assert tree.insert(range(1, 10)) == 8
    assert tree.match([1, 2, 3, 4, 5, 6]) == 4
    assert tree.cache.evictable == 8


def test_diverging_pages_are_their_own(make_tree):
    tree = make_tree(page_size=4)
    for tail in ([], [9, 10, 11, 12], [9, 10, 20, 21]):
        tree.insert([*range(1, 9), *tail])
    assert tree.cache.evictable == 16


def test_splitting_a_locked_node_locks_both_halves(make_tree):
    tree = make_tree()
    lease = tree.acquire([1, 2, 3, 4, 5])
    tree.fill(lease, [1, 2, 3, 4, 5])
    tree.insert([1, 2, 9])
    assert books(tree) == (1, 5)
    lease.release()
    assert books(tree) == (6, 0)
    assert tree.cache.evict(6) == 6
    assert tree.shape() == []


def test_peek_changes_nothing(make_tree):
    tree = make_tree()
    tree.insert(range(10))
    before = [(n.id, n.last_use, n.hits, len(n.slots)) for n in tree.cache.nodes()]
    tick = tree.cache._tick
    assert tree.cache.peek(Key(DEFAULT_NAMESPACE, pack(range(5)))).length == 5
    assert [(n.id, n.last_use, n.hits, len(n.slots)) for n in tree.cache.nodes()] == before
    assert tree.cache._tick == tick


def test_peek_respects_its_limit_in_whole_pages(make_tree):
    tree = make_tree(page_size=4)
    tree.insert(range(16))
    key = Key(DEFAULT_NAMESPACE, pack(range(16)))
    assert [tree.cache.peek(key, limit=n).length for n in (0, 3, 4, 15, 16, 99)] == [0, 0, 4, 12, 16, 16]


def test_a_released_lease_cannot_be_used(make_tree):
    tree = make_tree()
    lease = tree.acquire(range(4))
    lease.release()
    with pytest.raises(LeaseError):
        lease.release()
    with pytest.raises(LeaseError):
        lease.grow(b"", as_empty())


def as_empty():
    import numpy as np

    return np.empty(0, dtype=np.int32)


def test_a_later_insert_of_the_same_prefix_gives_its_duplicates_back(make_tree):
    tree = make_tree(pool=64)
    first, second = tree.acquire(range(20)), tree.acquire(range(20))
    tree.fill(first, list(range(20)))
    free = tree.allocator.free
    grown = tree.fill(second, list(range(20)))
    assert grown.start == 0
    assert grown.canonical.tolist() == first.slots().tolist() == second.slots().tolist()
    assert not set(grown.duplicates.tolist()) & set(grown.canonical.tolist())
    assert tree.allocator.free == free  # taken and given back
    first.release()
    second.release()


def test_a_stale_match_is_looked_up_again(make_tree):
    tree = make_tree()
    tree.insert(range(10))
    key = Key(DEFAULT_NAMESPACE, pack(range(10)))
    match = tree.cache.peek(key)
    tree.match([0, 1, 2, 99])  # splits the node
    lease = tree.cache.acquire(key, match)
    assert lease.length == 10
    lease.release()


def test_lock_cost_counts_a_shared_path_once(make_tree):
    tree = make_tree()
    tree.insert([*range(10), 50, 51])
    tree.insert([*range(10), 60, 61])
    ledger = LockLedger()
    one = tree.cache.peek(Key(DEFAULT_NAMESPACE, pack([*range(10), 50, 51])))
    two = tree.cache.peek(Key(DEFAULT_NAMESPACE, pack([*range(10), 60])))
    assert (tree.cache.lock_cost(one, ledger), tree.cache.lock_cost(two, ledger)) == (12, 11)
    ledger.move(one)
    assert tree.cache.lock_cost(two, ledger) == 1
    held = tree.acquire([*range(10), 60])
    assert tree.cache.lock_cost(tree.cache.peek(Key(DEFAULT_NAMESPACE, pack([*range(10), 60]))), LockLedger()) == 0
    held.release()


def test_eviction_takes_leaves_first_and_parents_after(make_tree):
    tree = make_tree()
    tree.insert([1, 2, 3, 4])
    tree.insert([1, 2, 3, 4, 5, 6])
    tree.insert([1, 2, 3, 4, 5, 6, 7, 8])
    assert [tree.cache.evict(1) for _ in range(4)] == [2, 2, 4, 0]


def test_content_of_evicted_pages_is_forgotten(make_tree):
    tree = make_tree(pool=16)
    tree.insert([10] * 16)
    assert tree.cache.evict(16) == 16
    tree.insert([20] * 16)
    assert (tree.match([10] * 16), tree.match([20] * 16)) == (0, 16)


@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize(
    ("policy", "victim"), [("lru", 0), ("slru", 1), (Fifo(), 0), (Mru(), 2)], ids=["lru", "slru", "fifo", "mru"]
)
def test_which_entry_leaves(make_tree, policy, victim, page):
    tree = make_tree(pool=12, page_size=page, policy=policy)
    entries = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]
    tree.insert(entries[0])
    for _ in range(3):
        tree.match(entries[0])
    tree.insert(entries[1])
    tree.insert(entries[2])
    assert tree.cache.evict(4) == 4
    assert [tree.match(entry) for entry in entries] == [4 * (i != victim) for i in range(3)]


@pytest.mark.parametrize(("policy", "victim"), [(Mru(), 0), ("lru", 1)], ids=["mru", "lru"])
def test_a_key_that_becomes_more_urgent_on_a_touch(make_tree, policy, victim):
    tree = make_tree(pool=12, page_size=4, policy=policy)
    entries = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]
    for entry in entries:
        tree.insert(entry)
    tree.match(entries[0])
    tree.cache.evict(4)
    assert [tree.match(entry) for entry in entries] == [4 * (i != victim) for i in range(3)]


def test_namespaces_never_share(make_tree):
    prompt = list(range(501, 517))
    tree = make_tree(pool=256)
    lora = lambda name: AdapterRef(name, 1)  # noqa: E731
    spaces = [
        Namespace(lora("alpha")),
        Namespace(None, "alpha"),
        Namespace(lora("al"), "pha"),
        Namespace(lora("alp"), "ha"),
        Namespace(lora("alpha")),
        Namespace(None, "x" * 10_000),
        Namespace(None, "a\0b"),
        Namespace(lora("alpha"), ""),
    ]
    hits = []
    for space in spaces:
        lease = tree.acquire(prompt, space, limit=15)
        hits.append(lease.length)
        tree.fill(lease, prompt)
        lease.release()
    assert hits == [0, 0, 0, 0, 15, 0, 0, 0]


def test_empty_namespaces_leave_nothing_behind(make_tree):
    tree = make_tree(pool=16)
    for i in range(100):
        tree.insert([1, 2, 3, 4], Namespace(None, str(i)))
        tree.cache.evict(4)
    assert len(tree.cache._roots) == 0


def test_a_disabled_cache_holds_nothing(make_tree):
    tree = make_tree(enabled=False)
    lease = tree.acquire(range(8))
    slots = tree.allocator.alloc(8)
    grown = lease.grow(pack(range(8)), slots)
    assert (lease.length, len(grown.duplicates), books(tree)) == (0, 0, (0, 0))
    lease.release()
    tree.allocator.release(slots)


def test_bookkeeping_does_not_outlive_its_content(make_tree):
    tree = make_tree(pool=64)
    for i in range(2_000):
        if not tree.allocator.free:
            tree.cache.evict(1)
        tree.insert([i])
    assert len(list(tree.cache.nodes())) <= 64
    assert len(tree.cache._heap) <= 2 * 64 + 64
