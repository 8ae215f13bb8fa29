"""The contract suite of stores: `CHECKS`. What a store answers is compared with what was put.

Keys are new in every run: a store that lasts is not disturbed by an earlier one. A store may drop pages at any time,
but then they are gone, and never something else.
"""

import hashlib
import uuid
from contextlib import closing

from rtk.plugin.storage import Storage
from rtk.plugin.testing.check import Check, Factory, named

SIZES = (1, 4096, 100_000)


class Keys:
    """Keys by name, different in every run."""

    def __init__(self) -> None:
        self._run = uuid.uuid4().hex

    def __call__(self, name: object) -> str:
        return hashlib.sha256(f"{self._run} {name}".encode()).hexdigest()


def page(name: object, size: int = 512) -> bytes:
    """A page whose every part tells its name."""
    one = hashlib.sha256(str(name).encode()).digest()
    return (one * (size // len(one) + 1))[:size]


def _put(store: Storage, key: str, content: bytes) -> bool:
    kept = store.put(key, memoryview(bytearray(content)))
    assert isinstance(kept, bool), f"put() answers {kept!r}, not whether the page was kept"
    return kept


def _look(store: Storage, key: str, wanted: bytes) -> bool:
    """Whether the page is there; it must be the right one, and `exists` must say the same."""
    there, got = store.exists(key), store.get(key)
    assert got is None or type(got) is bytes, f"get() answers a {type(got).__name__}, not bytes"
    assert there is (got is not None), f"exists() answers {there!r}, and get() a page of {got and len(got)} bytes"
    assert got is None or got == wanted, f"get() answers another page of {len(got)} bytes, {len(wanted)} were put"
    return there


def pages_come_back(factory: Factory) -> None:
    """A page that was kept is found right afterwards, whole, as often as it is asked for; pages have any size."""
    keys = Keys()
    with closing(factory()) as store:
        assert not store.exists(keys("nothing")), "exists() is true for what was never put"
        assert store.get(keys("nothing")) is None, "get() finds what was never put"
        for size in SIZES:
            assert _put(store, keys(size), page(size, size)), f"a page of {size} bytes has no room in an empty store"
            for _ in range(2):
                assert _look(store, keys(size), page(size, size)), f"a page of {size} bytes is gone"


def keys_are_not_confused(factory: Factory) -> None:
    """Keys that differ in one letter, or in length, are different pages."""
    start = Keys()("")
    keys = [start[:63] + end for end in "0123456789abcdef"] + [end + start[1:] for end in "ghijkl"]
    keys += [start[:length] for length in (20, 32, 62)]
    with closing(factory()) as store:
        kept = [key for key in keys if _put(store, key, page(key))]
        assert kept, "nothing was kept"
        found = [key for key in kept if _look(store, key, page(key))]
        assert found, "nothing is left of what was kept"


def the_memory_is_the_hosts(factory: Factory) -> None:
    """A store copies: what the host writes into the memory afterwards is no part of the page."""
    key, memory = Keys()("memory"), bytearray(page("memory"))
    with closing(factory()) as store:
        store.put(key, memoryview(memory))
        assert memory == page("memory"), "put() changes the page"
        memory[:] = bytes(len(memory))
        _look(store, key, page("memory"))


def putting_again_is_harmless(factory: Factory) -> None:
    """A key that is there keeps its page."""
    key = Keys()("twice")
    with closing(factory()) as store:
        for _ in range(3):
            assert _put(store, key, page("twice")), "there is no room for what is there"
            assert _look(store, key, page("twice")), "the page is gone"


def a_full_store_says_so(factory: Factory) -> None:
    """Many pages: each is kept or refused, and whatever is still there is the right one."""
    keys = Keys()
    with closing(factory()) as store:
        for i in range(300):
            kept = _put(store, keys(i), page(i, 8192))
            there = _look(store, keys(i), page(i, 8192))
            assert there is kept, f"put() answers {kept}, and right afterwards exists() {there}"
        for i in range(300):
            _look(store, keys(i), page(i, 8192))


def any_use_is_answered(factory: Factory) -> None:
    """Hypothesis looks for puts and looks after which a page is missing that was just put, or another."""
    from hypothesis import given
    from hypothesis import strategies as st

    from rtk.plugin.testing.strategies import few

    steps = st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=30)

    @few(25)
    @given(steps, st.integers(1, 5000))
    def search(steps: list[tuple[bool, int]], size: int) -> None:
        keys, known = Keys(), set[int]()
        with closing(factory()) as store:
            for puts, i in steps:
                kept = puts and _put(store, keys(i), page(i, size + i))
                there = _look(store, keys(i), page(i, size + i))
                assert there or not kept, "a page is gone that was just kept"
                known |= {i} if kept else set()
                assert i in known or not there, "a page is there that was never put"

    search()


CHECKS: tuple[Check, ...] = (
    named(pages_come_back),
    named(keys_are_not_confused),
    named(the_memory_is_the_hosts),
    named(putting_again_is_harmless),
    named(a_full_store_says_so),
    named(any_use_is_answered, quick=False),
)
"""The whole contract."""
