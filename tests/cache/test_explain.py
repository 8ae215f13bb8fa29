"""Why a prompt hits as much as it does, in numbers."""

import pytest

from rtk.cache import evictions
from rtk.cache.evictions import Evicted, EvictionLog
from rtk.cache.explain import explain
from rtk.cache.key import DEFAULT_NAMESPACE, Key, Namespace, pack


def told(tree, tokens, namespace=DEFAULT_NAMESPACE):
    """(ends, cached, matched, position, the prompt's token, the cache's token)."""
    e = explain(tree.cache, Key(namespace, pack(tokens)))
    assert (e.prompt_tokens, e.namespace) == (len(tokens), namespace)
    return e.ends, e.cached_tokens, e.matched_tokens, e.position, e.token, e.cached_token


@pytest.mark.parametrize(("page", "cached", "matched"), [(1, 9, 10), (4, 8, 8)])
def test_a_prompt_that_is_cached_whole(make_tree, page, cached, matched):
    tree = make_tree(page_size=page)
    tree.insert(range(20))
    assert told(tree, range(10)) == ("prompt", cached, matched, None, None, None)
    assert told(tree, []) == ("prompt", 0, 0, None, None, None)


def test_where_the_rendered_history_differs(make_tree):
    """Case A21: one newline more in the second turn."""
    newline, history = 10, [*range(100, 130)]
    tree = make_tree(page_size=4)
    tree.insert([*history[:18], newline, *history[18:]])
    assert told(tree, history) == ("differs", 16, 16, 18, history[18], newline)


def test_the_most_similar_of_several_continuations_is_named(make_tree):
    tree = make_tree(page_size=4)
    for tail in ([1, 2, 3, 4], [1, 2, 5, 5], [9, 9, 9, 9]):
        tree.insert([0, 0, 0, 0, *tail])
    assert told(tree, [0, 0, 0, 0, 1, 2, 5, 6, 7]) == ("differs", 4, 4, 7, 6, 5)
    assert told(tree, [0, 0, 0, 7]) == ("differs", 0, 0, 3, 7, 0)


def test_of_equally_similar_continuations_the_latest_is_named_and_only_so_many_are_compared(make_tree, monkeypatch):
    tree = make_tree(page_size=2)
    for page in ([1, 2], [1, 3], [8, 8], [9, 9]):
        tree.insert(page)
    assert told(tree, [1, 7]) == ("differs", 0, 0, 1, 7, 3)
    assert told(tree, [7, 7]) == ("differs", 0, 0, 0, 7, 9)
    monkeypatch.setattr("rtk.cache.explain.LOOKED_AT", 2)
    assert told(tree, [1, 7]) == ("differs", 0, 0, 0, 1, 9)


def test_nothing_was_ever_cached_there(make_tree):
    tree = make_tree()
    assert told(tree, [1, 2]) == ("new", 0, 0, None, None, None)
    tree.insert([1, 2])
    assert told(tree, [1, 2, 3]) == ("new", 2, 2, None, None, None)
    assert told(tree, [1, 2], Namespace(None, "salt")) == ("new", 0, 0, None, None, None)


def test_what_followed_was_evicted(make_tree):
    now = [5.0]
    tree = make_tree(page_size=4, clock=lambda: now[0])
    tree.insert(range(4))
    tree.insert(range(12))
    now[0] = 7.5
    tree.cache.evict(1)
    tree.insert([*range(4), *[99] * 4])  # goes on otherwise; that the prompt's own page was there says more
    [parent] = [node for node in tree.cache.nodes() if node.start == 0]
    assert told(tree, range(12)) == ("evicted", 4, 4, None, None, None)
    evicted = explain(tree.cache, Key(DEFAULT_NAMESPACE, pack(range(12)))).evicted
    assert evicted[:1] + evicted[2:] == (parent.id, pack(range(4, 12)), 4, 7.5, "test")
    tree.cache.flush()
    assert told(tree, range(12)) == ("evicted", 0, 0, None, None, None)
    assert told(tree, range(100, 112)) == ("new", 0, 0, None, None, None)
    tree.insert(range(12))
    assert told(tree, range(12)) == ("prompt", 8, 12, None, None, None)


GONE = {
    "a part of what was one node": ([range(12)], range(4), range(12), 12),
    "what hung below": ([range(4), range(12)], range(4), range(12), 8),
    "what hung below what hung below": ([range(4), range(8), range(12)], range(8), range(12), 4),
    "the other branch": ([[1, 2, 3, 4], [1, 2, 9, 9]], [1, 2, 3, 4], [1, 2, 9, 9], 2),
}


@pytest.mark.parametrize("case", GONE)
def test_what_left_with_its_prefix_is_known_though_that_came_back(make_tree, case):
    before, again, prompt, tokens = GONE[case]
    tree = make_tree()
    for stored in before:
        tree.insert(stored)
    tree.cache.flush()
    tree.insert(again)
    e = explain(tree.cache, Key(DEFAULT_NAMESPACE, pack(prompt)))
    assert (e.ends, e.evicted.tokens) == ("evicted", tokens)
    assert told(tree, [*again, 77])[0] in ("new", "differs")
    assert told(tree, [*again, 77], Namespace(None, "salt"))[0] == "new"


def test_the_latest_eviction_is_told(make_tree):
    now = [0.0]
    tree = make_tree(clock=lambda: now[0])
    for now[0] in (1.0, 2.0, 3.0):
        tree.insert(range(4))
        tree.cache.flush()
    assert explain(tree.cache, Key(DEFAULT_NAMESPACE, pack(range(4)))).evicted.time_s == 3.0


def test_what_was_evicted_elsewhere_says_nothing(make_tree):
    tree = make_tree()
    tree.insert([1, 2, 3])
    tree.insert([1, 2, 3, 4])
    tree.cache.flush()
    tree.insert([1, 5])
    assert told(tree, [1, 5, 3, 4])[0] == "new"  # 4 was there, but behind 1, 2, 3
    assert told(tree, [1, 2, 6])[0] == "evicted"  # 2 was there, behind 1
    assert told(tree, [1, 6, 2])[0] == "differs"


def test_old_evictions_are_forgotten(make_tree, monkeypatch):
    monkeypatch.setattr(evictions, "KEPT", 3)
    tree = make_tree()
    for i in range(5):
        tree.insert([i])
        tree.cache.evict(1)
    assert len(tree.cache.log) == 3
    assert [told(tree, [i])[0] for i in range(5)] == ["new", "new", "evicted", "evicted", "evicted"]


def test_explaining_changes_nothing(make_tree):
    tree = make_tree()
    tree.insert(range(10))
    before = [node.view() for node in tree.cache.nodes()], tree.cache._tick, tree.cache._version
    told(tree, [*range(5), 99])
    assert ([node.view() for node in tree.cache.nodes()], tree.cache._tick, tree.cache._version) == before


def test_long_salts_do_not_make_the_memory_of_evictions_grow():
    log = EvictionLog()
    for i in range(200):
        log.add(Evicted(Namespace(salt=f"{i}" + "x" * 50_000), i, b"page", i, 0.0, "lru"))
    assert 80 <= len(log) <= 84  # 16 MiB of some 200,000 bytes each
    assert log.find({Namespace(salt="199" + "x" * 50_000): 0}, b"page", 0, 4).tick == 199
    assert log.find({Namespace(salt="0" + "x" * 50_000): 0}, b"page", 0, 4) is None
