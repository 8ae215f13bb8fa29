"""The tree's operations one by one; `test_tree_machine` mixes them."""

import pytest

from rtk.cache.key import DEFAULT_NAMESPACE, Key, pack
from rtk.cache.lease import LeaseError
from rtk.cache.node import NO_CHILDREN, LockLedger
from rtk.cache.slots import EMPTY
from rtk.plugin import EvictionPolicy


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
        lease.grow(b"", EMPTY)
    with pytest.raises(LeaseError):
        lease.attach("recurrent", 1)


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


@pytest.mark.parametrize(("evicted", "left"), [(1, 4), (9, 0)])
def test_a_match_of_what_is_gone_holds_what_is_left(make_tree, evicted, left):
    tree = make_tree()
    tree.insert(range(4))
    tree.insert(range(9))
    key = Key(DEFAULT_NAMESPACE, pack(range(9)))
    match = tree.cache.peek(key)
    tree.cache.evict(evicted)
    lease = tree.cache.acquire(key, match)
    assert (match.length, lease.length, tree.books()) == (9, left, (0, left))
    lease.release()


def test_a_match_inside_a_node_that_was_split_since_is_as_long(make_tree):
    tree = make_tree()
    tree.insert(range(10))
    key = Key(DEFAULT_NAMESPACE, pack(range(10)))
    match = tree.cache.peek(key, limit=5)
    tree.match([0, 1, 2, 99])
    lease = tree.cache.acquire(key, match)
    assert (lease.length, len(lease.slots()), tree.books()) == (5, 5, (5, 5))
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
    assert tree.cache.lock_cost(tree.peek(range(5)), ledger) == 0
    ledger.move(tree.peek(range(5)))
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


def test_a_disabled_cache_holds_nothing(make_tree):
    tree = make_tree(enabled=False)
    lease = tree.acquire(range(8))
    slots = tree.allocator.alloc(8)
    grown = lease.grow(pack(range(8)), slots)
    assert (lease.length, len(grown.duplicates), tree.books()) == (0, 0, (0, 0))
    lease.release()
    tree.allocator.release(slots)


# --- what is counted ----------------------------------------------------------------------------------------------


def facts(tree):
    """(size, start, created, last use, hits, priority) of every node, by start."""
    return sorted((tuple(node.view()[1:]) for node in tree.cache.nodes()), key=lambda view: view[1])


def test_what_counts_as_a_hit_an_access_and_a_raise(make_tree):
    tree = make_tree()
    tree.insert([1, 2, 3, 4], priority=2)  # tick 1: acquired, a miss; tick 2: grown
    assert facts(tree) == [(4, 0, 2, 2, 0, 2)]
    assert tree.match([1, 2, 3, 4], priority=1) == 4  # tick 3: a hit; a lower priority changes nothing
    assert facts(tree) == [(4, 0, 2, 3, 1, 2)]
    lease = tree.acquire([1, 2, 3, 4], priority=7)  # tick 4
    tree.fill(lease, [1, 2, 3, 4, 5, 6])  # tick 5: runs through what is held, which is no access
    assert facts(tree) == [(4, 0, 2, 4, 2, 7), (2, 4, 5, 5, 0, 7)]
    lease.release()
    late = tree.acquire([9])  # tick 6: a miss
    tree.fill(late, [1, 2, 3, 4, 5, 6])  # tick 7: an access to both, and no hit: it computed them itself
    late.release()
    assert facts(tree) == [(4, 0, 2, 7, 2, 7), (2, 4, 5, 7, 0, 7)]


def test_what_the_halves_of_a_split_keep(make_tree):
    tree = make_tree()
    tree.insert(range(10), priority=3)
    [whole] = tree.cache.nodes()
    assert tree.match(range(10)) == 10
    assert tree.match([0, 1, 2, 3, 99], priority=5) == 4  # tick 4
    upper, lower = sorted(tree.cache.nodes(), key=lambda node: node.start)
    assert lower is whole and upper.id > lower.id
    assert upper.view()[1:] == (4, 0, 2, 4, 2, 5)
    assert lower.view()[1:] == (6, 4, 2, 3, 1, 3)


class Told(EvictionPolicy):
    """Notes what it is told."""

    facts = frozenset({"last_use"})

    def __init__(self):
        self.heard = []

    def on_insert(self, node):
        self.heard.append(("insert", node.id, node.size, node.priority))

    def on_hit(self, node):
        self.heard.append(("hit", node.id, node.size, node.hits))

    def on_evict(self, node, key):
        self.heard.append(("evict", node.id, node.size, key))

    def key(self, node):
        return (node.last_use,)


def test_what_a_policy_is_told(make_tree):
    policy = Told()
    tree = make_tree(policy=policy)
    tree.insert(range(10), priority=3)
    [node] = tree.cache.nodes()
    tree.match([0, 1, 2, 3, 99])
    upper = node.parent
    tree.cache.flush()
    assert policy.heard == [
        ("insert", node.id, 10, 3),
        ("hit", upper.id, 4, 1),
        ("evict", node.id, 6, (2,)),
        ("evict", upper.id, 4, (3,)),
    ]


def test_generated_text_goes_before_the_prompt_that_produced_it(make_tree):
    tree = make_tree(page_size=4)
    lease = tree.acquire(range(8))
    tree.fill(lease, range(8))
    tree.fill(lease, range(13))
    lease.release()
    assert tree.shape() == [(0, 8), (8, 4)]
    assert (tree.cache.evict(1), tree.match(range(13))) == (4, 8)


# --- what only shows later ----------------------------------------------------------------------------------------


def test_a_match_ends_with_a_page_and_in_the_node_of_that_page(make_tree):
    tree = make_tree(page_size=4)
    for length in (4, 12):
        tree.insert(range(length))
    found = {limit: tree.peek(range(12), limit=limit) for limit in (3, 6, 8, 11, 12)}
    ends = {limit: (match.length, match.node and match.node.start, match.offset) for limit, match in found.items()}
    assert ends == {3: (0, None, 0), 6: (4, 0, 4), 8: (8, 4, 4), 11: (8, 4, 4), 12: (12, 4, 8)}


class SameKey(EvictionPolicy):
    """One tuple for all nodes, or one for each: the same object whenever it is asked."""

    facts = frozenset({"created"})

    def __init__(self, *, shared):
        self.shared, self.keys = shared, {}

    def key(self, node):
        return self.keys.setdefault(0 if self.shared else node.id, (0 if self.shared else -node.created,))


@pytest.mark.parametrize(("shared", "order"), [(True, [0, 1, 2, 3]), (False, [3, 2, 1, 0])])
def test_the_heap_stays_small_though_keys_are_the_same_objects(make_tree, shared, order):
    tree = make_tree(policy=SameKey(shared=shared))
    for i in range(4):
        tree.insert([i])
    for i in range(1000):
        assert tree.match([i % 2]) == 1
        assert len(tree.cache._heap) <= 2 * 4 + 64
    gone = []
    while tree.cache.evict(1):
        gone += [i for i in range(4) if not tree.peek([i]).length and i not in gone]
    assert gone == order
    assert len(tree.cache._heap) == 0


class Position(EvictionPolicy):
    """What starts late goes first: a split makes a leaf start later."""

    facts = frozenset({"start"})

    def key(self, node):
        return (-node.start,)


def test_a_leaf_that_a_split_moves_is_ranked_anew(make_tree):
    tree = make_tree(policy=Position())
    tree.insert([1, 2, 3, 4])
    tree.insert([6, 7, 8, 9])
    tree.match([1, 2])  # the leaf starts at 2 now
    tree.match([6, 7, 8])  # and the later one at 3
    assert tree.cache.evict(1) == 1
    assert (tree.peek([1, 2, 3, 4]).length, tree.peek([6, 7, 8, 9]).length) == (4, 3)


def test_what_a_look_finds_changes_with_the_version_only(make_tree):
    tree = make_tree()
    seen = [tree.cache._version]

    def changed():
        seen.append(tree.cache._version)
        return seen[-1] != seen[-2]

    tree.insert(range(10))
    assert changed()
    assert tree.match(range(10)) == 10 and not changed()
    assert tree.match(range(4)) == 4 and changed()  # a split
    assert tree.match(range(4)) == 4 and not changed()
    assert tree.insert(range(10)) == 10 and not changed()
    assert tree.cache.evict(1) == 6 and changed()


def test_a_node_that_is_gone_holds_nothing(make_tree):
    tree = make_tree()
    tree.insert(range(4))
    tree.insert(range(8))
    parent, child = sorted(tree.cache.nodes(), key=lambda node: node.start)
    assert tree.cache.evict(1) == 4
    assert (child.parent, child.tokens, child.packed, child.entry) == (None, b"", b"", None)
    assert parent.children is NO_CHILDREN


class FailsLate(EvictionPolicy):
    facts = frozenset({"last_use"})

    def key(self, node):
        return (-node.last_use if node.last_use < 9 else 1 / 0,)


def test_the_log_names_who_chose(make_tree):
    tree = make_tree(policy=FailsLate())
    for i in range(4):  # each takes two ticks
        tree.insert([i])
    assert tree.cache.evict(1) == 1
    tree.insert([4])  # tick 10: its key fails
    assert tree.cache.evict(1) == 1
    assert [(each.packed, each.policy) for each in tree.cache.log._recent] == [
        (pack([3]), "test"),
        (pack([0]), "least recently used, in place of test"),
    ]


def test_a_lease_names_its_segments_and_two_leases_share_those_of_a_common_prefix(make_tree):
    tree = make_tree()
    tree.insert(range(10))
    tree.insert([*range(6), 60, 61])
    a, b = tree.acquire(range(10)), tree.acquire([*range(6), 60, 61])
    assert [(start, length) for _, start, length in a.segments()] == [(0, 6), (6, 4)]
    assert [(start, length) for _, start, length in b.segments()] == [(0, 6), (6, 2)]
    assert a.segments()[0].node is b.segments()[0].node
    assert a.slots().tolist() == [slot for segment in a.segments() for slot in segment.node.slots.tolist()]
    assert tree.acquire([99]).segments() == []
