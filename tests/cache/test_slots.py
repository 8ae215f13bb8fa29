import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rtk.cache.slots import OutOfSlotsError, SlotAllocator


def test_padding_is_never_given_out():
    allocator = SlotAllocator(32, 4)
    slots = allocator.alloc(8)
    assert slots.tolist() == list(range(4, 36))
    assert allocator.free == 0


def test_a_fresh_pool_gives_ascending_runs():
    allocator = SlotAllocator(8, 1)
    assert [allocator.alloc(3).tolist(), allocator.alloc(2).tolist()] == [[1, 2, 3], [4, 5]]


def test_freed_pages_come_back_as_a_run():
    allocator = SlotAllocator(8, 1)
    slots = allocator.alloc(8)
    allocator.release(slots[[5, 2, 3, 4]])
    assert allocator.alloc(4).tolist() == [3, 4, 5, 6]


@pytest.mark.parametrize("pages", [[1, 1], [3], [0]], ids=["twice in one call", "free already", "padding"])
def test_double_free_is_an_error_and_changes_nothing(pages):
    allocator = SlotAllocator(8, 2)
    allocator.alloc(2)
    slots = np.array([s for p in pages for s in (2 * p, 2 * p + 1)], dtype=np.int32)
    with pytest.raises(ValueError, match="double free"):
        allocator.release(slots)
    assert allocator.free == 4
    allocator.check()


def test_asking_for_more_than_there_is_takes_nothing():
    allocator = SlotAllocator(8, 2)
    with pytest.raises(OutOfSlotsError, match="5 pages asked for, 4 free"):
        allocator.alloc(5)
    assert allocator.free == 8


@pytest.mark.parametrize("slots", [0, -4, 6])
def test_a_pool_is_whole_pages(slots):
    with pytest.raises(ValueError, match="positive multiple of the page size 4"):
        SlotAllocator(slots, 4)


class AllocatorMachine(RuleBasedStateMachine):
    """Against a set of free pages."""

    @initialize(page_size=st.sampled_from([1, 4, 16]), pages=st.integers(1, 12))
    def build(self, page_size, pages):
        self.page_size = page_size
        self.allocator = SlotAllocator(pages * page_size, page_size)
        self.free = set(range(1, pages + 1))
        self.held: list[list[int]] = []

    @rule(pages=st.integers(0, 13))
    def alloc(self, pages):
        if pages > len(self.free):
            with pytest.raises(OutOfSlotsError):
                self.allocator.alloc(pages)
            return
        slots = self.allocator.alloc(pages)
        taken = slots[:: self.page_size] // self.page_size
        expected = (taken[:, None] * self.page_size + np.arange(self.page_size)).reshape(-1)
        assert slots.tolist() == expected.tolist()
        assert set(taken.tolist()) <= self.free and len(set(taken.tolist())) == pages
        self.free -= set(taken.tolist())
        self.held.append(slots)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        slots = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.allocator.release(slots)
        self.free |= set((slots // self.page_size).tolist())
        if len(slots):
            with pytest.raises(ValueError, match="double free"):
                self.allocator.release(slots)

    @invariant()
    def books_agree(self):
        if hasattr(self, "allocator"):
            self.allocator.check()
            assert self.allocator.free == len(self.free) * self.page_size


TestAllocator = AllocatorMachine.TestCase
TestAllocator.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
