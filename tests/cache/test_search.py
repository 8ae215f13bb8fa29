"""Looking for a prompt in other namespaces: what is found, in what order, and how far the search goes."""

from rtk.cache.explain import NAMED, SEARCHED, Elsewhere, search
from rtk.cache.key import DEFAULT_NAMESPACE, AdapterRef, Key, Namespace, pack
from rtk.cache.slots import SlotAllocator
from rtk.cache.tree import PrefixCache
from rtk.plugin.guard import GuardedEviction, Health
from rtk.plugin.host import installed


def make(pool):
    entry = installed().get("eviction", "lru")
    allocator = SlotAllocator(pool, 1)
    guarded = GuardedEviction(entry.build(entry.plugin.options()), "lru", Health())
    return PrefixCache(allocator, guarded), allocator


def put(cache, allocator, namespace, tokens):
    key = Key(namespace, pack(tokens))
    lease = cache.acquire(key, cache.peek(key))
    lease.grow(key.tokens, allocator.alloc(len(tokens)))
    lease.release()


def salted(name):
    return Namespace(salt=name)


def test_what_is_longer_elsewhere_comes_longest_first_and_the_latest_of_equals():
    cache, allocator = make(64)
    lengths = {"a": 3, "b": 5, "c": 2, "d": 5, "e": 4, "f": 1}
    for name, length in lengths.items():
        put(cache, allocator, salted(name), range(length))
    put(cache, allocator, Namespace(AdapterRef("a", 1)), range(9))
    put(cache, allocator, DEFAULT_NAMESPACE, range(2))
    put(cache, allocator, salted("other"), [7, 8, 9])
    found, searched = search(cache, Key(DEFAULT_NAMESPACE, pack(range(8))))
    assert searched == len(lengths) + 2
    assert found == (
        Elsewhere(Namespace(AdapterRef("a", 1)), 7),  # one token is left to compute
        Elsewhere(salted("d"), 5),
        Elsewhere(salted("b"), 5),
        Elsewhere(salted("e"), 4),
        Elsewhere(salted("a"), 3),
    )
    cache.check()


def test_it_changes_nothing():
    cache, allocator = make(64)
    for name in "ab":
        put(cache, allocator, salted(name), range(8))
    before = [(node.id, node.size, node.hits, node.last_use) for node in cache.nodes()]
    assert search(cache, Key(salted("a"), pack([0, 1, 5]))) == ((), 1)
    assert search(cache, Key(salted("c"), pack([0, 1, 5]))).found == (
        Elsewhere(salted("b"), 2),
        Elsewhere(salted("a"), 2),
    )
    assert [(node.id, node.size, node.hits, node.last_use) for node in cache.nodes()] == before


def test_at_most_so_many_are_named_and_looked_at():
    cache, allocator = make(2 * SEARCHED + 20)
    put(cache, allocator, salted("first"), range(9))
    for i in range(SEARCHED):
        put(cache, allocator, salted(str(i)), range(2))
    key = Key(DEFAULT_NAMESPACE, pack(range(9)))
    found, searched = search(cache, key)
    assert searched == SEARCHED  # "first" is the one too many
    assert found == tuple(Elsewhere(salted(str(SEARCHED - 1 - i)), 2) for i in range(NAMED))
    cache.evict(9)  # "first", which was used the longest time ago
    put(cache, allocator, salted("first"), range(9))
    assert search(cache, key).found[0] == Elsewhere(salted("first"), 8)
