"""What will hold recurrent states, sliding windows and host memory, with toys in their place.

`test_tree_machine` mixes all of them at random.
"""

import numpy as np
import pytest
from toys import HostTier, Recurrent, Window

from rtk.cache.explain import explain
from rtk.cache.key import DEFAULT_NAMESPACE, Key, Namespace, pack, unpack
from rtk.plugin import EvictionPolicy


def compute(tree, tokens, *ends, **states):
    """A request that computes `tokens`, stops at `ends` on its way, and attaches states to the last of them."""
    lease = tree.acquire(tokens, limit=len(tokens) - 1)
    for end in [*ends, len(tokens)]:
        tree.fill(lease, list(tokens[:end]))
    for component, state in states.items():
        assert lease.attach(component, state)
    lease.release()


# --- recurrent states ---------------------------------------------------------------------------------------------


def test_a_match_ends_at_the_deepest_recurrent_state(make_tree):
    recurrent = Recurrent()
    tree = make_tree(page_size=4, components=[recurrent])
    compute(tree, range(8), recurrent=recurrent.make("8"))
    compute(tree, range(16), recurrent=recurrent.make("16"))
    compute(tree, range(24))
    assert tree.shape() == [(0, 8), (8, 8), (16, 8)]
    assert [tree.peek(range(n)).length for n in (24, 16, 15, 12, 8, 7)] == [16, 16, 8, 8, 8, 0]
    assert tree.cache.evictable == 24
    lease = tree.acquire(range(24))
    assert (lease.length, tree.books()) == (16, (8, 16))
    lease.release()


def test_a_split_leaves_the_recurrent_state_with_the_lower_half(make_tree):
    recurrent = Recurrent()
    tree = make_tree(page_size=4, components=[recurrent])
    compute(tree, range(16), recurrent=recurrent.make("16"))
    [node] = tree.cache.nodes()
    compute(tree, [*range(8), 99, 99, 99, 99])
    assert tree.shape() == [(0, 8), (8, 4), (8, 8)]
    assert (node.start, node.size, node.states, node.parent.states) == (8, 8, (1,), (None,))
    assert (tree.match(range(16)), tree.match([*range(8), 99, 99, 99, 99])) == (16, 0)
    assert tree.cache.flush() == 20
    assert (recurrent.made, recurrent.live) == (1, {})


def test_a_state_that_the_tree_has_stays_with_the_caller(make_tree):
    recurrent = Recurrent()
    tree = make_tree(components=[recurrent])
    first, second, empty = tree.acquire(range(8)), tree.acquire(range(8)), tree.acquire(range(8))
    tree.fill(first, range(8))
    tree.fill(second, range(8))
    assert first.attach("recurrent", recurrent.make("first"))
    late = recurrent.make("second")
    assert not second.attach("recurrent", late)
    assert not empty.attach("recurrent", late)
    recurrent.free(late)
    for lease in (first, second, empty):
        lease.release()
    assert recurrent.live == {1: "first"}
    with pytest.raises(ValueError, match="elsewhere"):
        tree.acquire(range(8)).attach("elsewhere", 1)


def test_a_state_that_comes_after_a_look_makes_it_old(make_tree):
    recurrent = Recurrent()
    tree = make_tree(components=[recurrent])
    compute(tree, range(4), recurrent=recurrent.make("4"))
    lease = tree.acquire(range(8))
    tree.fill(lease, range(8))
    before = tree.peek(range(8))
    lease.attach("recurrent", recurrent.make("8"))
    after = tree.peek(range(8))
    assert (before.length, after.length, before.version != after.version) == (4, 8, True)
    lease.release()


class AtMost:
    """Serves so many tokens, whole pages or not."""

    name = "at most"

    def __init__(self, most):
        self.most = most

    def usable(self, path):
        return min(self.most, sum(each.used for each in path))


@pytest.mark.parametrize(("most", "length"), [(3, 0), (4, 4), (7, 4), (8, 8), (9, 8)])
def test_what_a_component_serves_is_cut_to_whole_pages(make_tree, most, length):
    tree = make_tree(page_size=4, components=[AtMost(most)])
    for end in (4, 8):
        compute(tree, range(end))
    match = tree.peek(range(8))
    assert (match.length, match.offset) == (length, min(length, 4))


# --- sliding windows ----------------------------------------------------------------------------------------------


def test_only_the_last_window_of_a_match_needs_its_states(make_tree):
    window = Window(6)
    tree = make_tree(page_size=2, components=[window])
    compute(tree, range(10))
    compute(tree, range(14), window=window.make([*range(10, 14)]))
    assert tree.peek(range(14)).length == 0  # only 4 of the last 6
    compute(tree, range(20), window=window.make([*range(14, 20)]))
    assert [tree.peek(range(n)).length for n in (20, 18, 16, 14, 10)] == [20, 18, 16, 0, 0]
    compute(tree, [*range(16), 99, 99])  # splits the last node, and its states
    assert tree.match(range(16)) == 16
    assert sorted(map(tuple, window.live.values())) == [(10, 11, 12, 13), (14, 15), (16, 17, 18, 19)]
    tree.cache.flush()
    assert window.live == {}


def test_a_prompt_shorter_than_the_window_needs_all_of_its_states(make_tree):
    window = Window(100)
    tree = make_tree(components=[window])
    compute(tree, range(4), window=window.make([*range(4)]))
    compute(tree, range(8))
    assert [tree.peek(range(n)).length for n in (8, 4, 3)] == [4, 4, 3]


def test_both_kinds_agree_on_one_length(make_tree):
    recurrent, window = Recurrent(), Window(4)
    tree = make_tree(components=[recurrent, window])
    compute(tree, range(4), recurrent=recurrent.make("4"), window=window.make([*range(4)]))
    compute(tree, range(8), recurrent=recurrent.make("8"))
    compute(tree, range(14), window=window.make([*range(8, 14)]))
    # Windows alone would serve 14, states 8; the window of 8 is missing, and what both have ends at 4.
    assert [tree.peek(range(n)).length for n in (14, 8, 7, 3)] == [4, 4, 4, 0]
    tree.cache.flush()
    assert (recurrent.live, window.live) == ({}, {})


# --- a tier -------------------------------------------------------------------------------------------------------


def fresh(tree, tokens):
    """What a request computes, with all of its slots: (lease, grown, slots)."""
    lease = tree.acquire(tokens, limit=len(tokens) - 1)
    slots = np.concatenate([lease.slots(), tree.allocator.alloc(len(tokens) - lease.length)])
    return lease, lease.grow(pack(tokens), slots), slots.tolist()


def test_evicted_kv_moves_to_the_tier_and_comes_back_without_duplicates(make_tree):
    tier = HostTier(100)
    tree = make_tree(pool=32, tier=tier)
    compute(tree, range(12), 4)
    assert tree.cache.evict(5) == 8
    assert (tree.books(), tree.allocator.free, tier.tokens) == ((4, 0), 28, 8)
    match = tree.peek(range(12))
    assert (match.length, match.stored) == (4, 8)
    assert tree.peek(range(9), limit=6).stored == 2

    lease, grown, slots = fresh(tree, range(12))
    assert (len(grown.duplicates), lease.slots().tolist()) == (0, slots)
    assert (tree.books(), tree.allocator.free) == ((0, 12), 20)
    assert tier.tokens == 8  # the copy stays, and need not be made again
    lease.release()
    assert tree.cache.evict(5) == 8 and tier.made == 1
    assert tree.cache.evict(4) == 4 and tier.tokens == 12
    assert (tree.peek(range(12)).stored, tree.cache.namespaces) == (12, 1)


def test_a_diverging_request_splits_the_copy_and_brings_back_its_part(make_tree):
    tier = HostTier(100)
    tree = make_tree(page_size=4, tier=tier)
    compute(tree, range(16))
    tree.cache.evict(16)
    compute(tree, [*range(8), *[99] * 8])
    assert sorted(map(tuple, tier.live.values())) == [tuple(range(8)), tuple(range(8, 16))]
    match = tree.peek(range(16))
    assert (match.length, match.stored, tree.books()) == (8, 8, (16, 0))


def test_what_follows_a_nodes_end_does_not_follow_its_middle(make_tree):
    tree = make_tree(page_size=4, tier=HostTier(100))
    compute(tree, [*range(8), *[50] * 4], 8)
    tree.cache.evict(4)
    assert tree.peek([*range(8), *[50] * 4]).stored == 4
    match = tree.peek([*range(4), *[50] * 4])
    assert (match.length, match.stored) == (4, 0)


def test_what_follows_a_copy_does_not_follow_its_middle(make_tree):
    tree = make_tree(tier=HostTier(100))
    compute(tree, [1, 2, 3], 2)
    tree.cache.evict(3)
    assert [tree.peek(tokens).stored for tokens in ([1, 2, 3], [1, 3], [2])] == [3, 1, 0]


def test_what_components_cut_off_is_not_followed_by_the_tier(make_tree):
    recurrent = Recurrent()
    tree = make_tree(components=[recurrent], tier=HostTier(100))
    compute(tree, range(4), recurrent=recurrent.make("4"))
    compute(tree, range(12), 8)
    tree.cache.evict(1)
    match = tree.peek(range(12))
    assert (match.length, match.stored) == (4, 0)  # positions 4 to 7 come next, and lie on the device


def test_states_do_not_come_back_with_the_tier(make_tree):
    recurrent = Recurrent()
    tree = make_tree(components=[recurrent], tier=HostTier(100))
    compute(tree, range(8), recurrent=recurrent.make("8"))
    assert tree.match(range(8)) == 8
    tree.cache.evict(8)
    assert recurrent.live == {}
    compute(tree, range(8))
    assert (tree.cache.evictable, tree.match(range(8))) == (8, 0)


def test_a_full_tier_takes_nothing_and_what_hung_below_is_dropped_once(make_tree):
    tier = HostTier(8)
    tree = make_tree(tier=tier)
    compute(tree, range(16), 4, 8)  # nodes of 4, 4 and 8
    compute(tree, [7, 7])
    assert tree.cache.evict(8) == 8  # the tier takes the node of 8 and is full
    assert (tier.tokens, len(tree.cache.log)) == (8, 0)
    assert tree.cache.evict(4) == 4  # no room: the node goes, and the copy below it
    assert (tier.live, tree.peek(range(16)).stored) == ({}, 0)
    assert [unpack(gone.packed) for gone in tree.cache.log._recent] == [[4, 5, 6, 7]]
    assert tree.shape() == [(0, 2), (0, 4)]


def test_flushing_empties_the_tier_except_of_what_is_held(make_tree):
    tier = HostTier(100)
    tree = make_tree(tier=tier)
    compute(tree, range(12), 8, 10)
    compute(tree, [*range(8), 50, 51])
    tree.cache.evict(6)
    lease, _, _ = fresh(tree, range(10))  # holds 8 and 2 tokens, the last of which have a copy
    compute(tree, [70] * 4)
    assert (tier.tokens, tree.books()) == (6, (4, 10))
    assert tree.cache.flush() == 4
    assert (tree.shape(), list(map(tuple, tier.live.values()))) == ([(0, 8), (8, 2)], [(8, 9)])
    lease.release()
    assert tree.cache.flush() == 10
    assert (tier.live, tree.cache.namespaces, tree.allocator.free) == ({}, 0, 256)


def test_a_flush_copies_nothing_and_drops_the_copies_of_what_is_on_the_device(make_tree):
    tier = HostTier(100)
    tree = make_tree(tier=tier)
    compute(tree, range(8))
    assert tree.cache.evict(8) == 8 and tier.made == 1
    compute(tree, range(8))  # on the device again, and the copy is kept
    compute(tree, [70, 71])
    assert (tree.cache.flush(), tier.live, tier.made) == (10, {}, 1)
    assert (tree.shape(), tree.cache.namespaces) == ([], 0)


def test_a_flush_of_nothing_but_copies_is_a_change(make_tree):
    tree = make_tree(tier=HostTier(100))
    compute(tree, range(8))
    before = tree.cache._version
    tree.cache.evict(8)
    moved = tree.cache._version
    assert tree.peek(range(8)).stored == 8
    assert tree.cache.flush() == 0 and tree.peek(range(8)).stored == 0
    assert len({before, moved, tree.cache._version}) == 3
    compute(tree, range(8))
    tree.cache.evict(8)
    before = tree.cache._version
    lease, _, _ = fresh(tree, range(8))  # brings it back
    assert tree.cache._version != before
    lease.release()


def test_explanations_know_the_tier(make_tree):
    tree = make_tree(tier=HostTier(100))
    compute(tree, range(8), 4)
    tree.cache.evict(4)
    told = explain(tree.cache, Key(DEFAULT_NAMESPACE, pack(range(8))))
    assert (told.ends, told.cached_tokens, told.matched_tokens, told.position) == ("stored", 4, 4, None)
    told = explain(tree.cache, Key(DEFAULT_NAMESPACE, pack([*range(4), 99])))
    assert (told.ends, told.position, told.token, told.cached_token) == ("differs", 4, 99, 4)
    assert explain(tree.cache, Key(Namespace(None, "x"), pack([1]))).ends == "new"


class Remembers(EvictionPolicy):
    """Must be told of whatever is on the device, or it cannot answer."""

    facts = frozenset()

    def __init__(self):
        self.known = {}

    def on_insert(self, node):
        self.known[node.id] = node.last_use

    def on_evict(self, node, key):
        del self.known[node.id]

    def key(self, node):
        return (self.known[node.id],)


def test_a_policy_is_told_of_what_comes_back(make_tree):
    policy = Remembers()
    tree = make_tree(policy=policy, tier=HostTier(100))
    for _ in range(3):
        compute(tree, range(8))
        assert list(policy.known) == [2]
        assert tree.cache.evict(8) == 8
        assert policy.known == {}
    assert not tree.health.degraded
