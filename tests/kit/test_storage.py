"""Planted faults of stores: the contract suite catches each."""

import pytest
from planted import assert_caught, assert_passes

from rtk.plugin import Options, Storage
from rtk.plugin.testing.toys import Memory


def test_the_toy_passes():
    assert_passes("storage", lambda: Memory(Options()))


class Nothing(Storage):
    """A store that has no room."""

    def __init__(self, options):
        pass

    def exists(self, key):
        return False

    def get(self, key):
        return None

    def put(self, key, page):
        return False


def test_a_store_without_room_is_none():
    assert_caught("storage", lambda: Nothing(Options()), "pages come back")


class Forgetful(Memory):
    """Drops the oldest of 40 pages: what a cache of pages does, and may do."""

    def put(self, key, page):
        self.pages[key] = bytes(page)
        if len(self.pages) > 40:
            del self.pages[next(iter(self.pages))]
        return True


def test_a_store_may_drop_pages():
    assert_passes("storage", lambda: Forgetful(Options()))


class ShortensKeys(Memory):
    """As a file system with short names would."""

    def get(self, key):
        return super().get(key[:62])

    def exists(self, key):
        return super().exists(key[:62])

    def put(self, key, page):
        return super().put(key[:62], page)


class KeepsTheHostsMemory(Memory):
    def put(self, key, page):
        self.pages[key] = page
        return True

    def get(self, key):
        return bytes(self.pages[key]) if key in self.pages else None


class ReturnsTheLatestPage(Memory):
    def get(self, key):
        return list(self.pages.values())[-1] if key in self.pages else None


class CutsPages(Memory):
    def get(self, key):
        page = super().get(key)
        return page and page[:65_536]


class Appends(Memory):
    def put(self, key, page):
        self.pages[key] = self.pages.get(key, b"") + bytes(page)
        return True


class HasEverything(Memory):
    def exists(self, key):
        return True


class LooksUnderAnotherName(Memory):
    """What it looks for is never what it has written."""

    def exists(self, key):
        return super().exists(f"{key}.page")


class GivesPagesAway(Memory):
    def get(self, key):
        return self.pages.pop(key, None)


class SaysNothing(Memory):
    def put(self, key, page):
        super().put(key, page)


class PromisesRoom(Memory):
    def put(self, key, page):
        return super().put(key, page) or True


class OverwritesWhenFull(Memory):
    """Puts the page in the place of another, under the other's name."""

    def put(self, key, page):
        if not super().put(key, page):
            self.pages[next(iter(self.pages))] = bytes(page)
        return key in self.pages


class AnswersItsOwnMemory(Memory):
    def get(self, key):
        page = super().get(key)
        return page and bytearray(page)


class ScribblesOnThePage(Memory):
    def put(self, key, page):
        kept = super().put(key, page)
        page[:8] = bytes(8)
        return kept


@pytest.mark.parametrize(
    ("store", "check"),
    [
        (ShortensKeys, "keys are not confused"),
        (KeepsTheHostsMemory, "the memory is the hosts"),
        (ReturnsTheLatestPage, "keys are not confused"),
        (ReturnsTheLatestPage, "any use is answered"),
        (CutsPages, "pages come back"),
        (Appends, "putting again is harmless"),
        (HasEverything, "pages come back"),
        (LooksUnderAnotherName, "pages come back"),
        (GivesPagesAway, "pages come back"),
        (SaysNothing, "pages come back"),
        (PromisesRoom, "a full store says so"),
        (OverwritesWhenFull, "a full store says so"),
        (AnswersItsOwnMemory, "pages come back"),
        (ScribblesOnThePage, "the memory is the hosts"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_planted_faults_are_caught(store, check):
    assert_caught("storage", lambda: store(Options()), check)
