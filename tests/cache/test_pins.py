"""Pins as leases on a budget; `tests/schedule/test_pins.py` has the rules by which they are given."""

import pytest

from rtk.cache.pins import Pins


def pinned(tree, pins, name, tokens, ttl=None):
    lease = tree.acquire(tokens)
    tree.fill(lease, tokens)
    return pins.add(name, lease, ttl)


def test_what_two_pins_share_counts_once(make_tree):
    tree, pins = make_tree(page_size=4), Pins(100, lambda: 0.0)
    pinned(tree, pins, "a", range(12))
    assert (pins.tokens, tree.books()) == (12, (0, 12))
    pinned(tree, pins, "b", [*range(8), *range(50, 62)])
    assert (pins.tokens, tree.books()) == (24, (0, 24))
    assert [(pin.name, pin.tokens) for pin in pins] == [("a", 12), ("b", 20)]
    assert pins.shared(tree.peek([*range(8), 50, 51, 52, 53, 9, 9, 9, 9])) == 12
    tree.match([0, 1, 2, 3, 99, 99, 99, 99])  # splits what is pinned
    assert pins.shared(tree.peek(range(12))) == 12 and pins.shared(tree.peek([7, 7, 7, 7])) == 0
    pins.remove("a")
    assert (pins.tokens, tree.books(), "a" in pins, len(pins)) == (20, (4, 20), False, 1)
    assert tree.cache.flush() == 4
    pins.remove("b")
    assert (pins.tokens, tree.cache.flush()) == (0, 20)


def test_a_pin_ends_by_its_clock(make_tree):
    now = [10.0]
    tree, pins = make_tree(), Pins(100, lambda: now[0])
    assert pinned(tree, pins, "short", range(4), ttl=2.5).expires_s == 12.5
    assert pinned(tree, pins, "kept", range(100, 108)).expires_s is None
    for now[0], left in ((12.4, ["short", "kept"]), (12.5, ["kept"]), (1e9, ["kept"])):
        pins.expire()
        assert [pin.name for pin in pins] == left
    assert (pins.tokens, tree.books()) == (8, (4, 8))
    with pytest.raises(KeyError):
        pins.remove("short")


def test_eviction_does_not_touch_what_is_pinned(make_tree):
    tree, pins = make_tree(pool=16), Pins(100, lambda: 0.0)
    pinned(tree, pins, "a", range(4))
    for i in range(20):
        tree.cache.evict(8 - tree.allocator.free)
        tree.insert(range(100 * i, 100 * i + 8))
    assert tree.match(range(4)) == 4
    assert tree.cache.evict(99) <= 12 and tree.books() == (0, 4)
