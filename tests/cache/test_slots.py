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


@pytest.mark.parametrize("pages", [[5], [4, 5], [100]])
def test_what_lies_outside_the_pool_cannot_be_released(pages):
    allocator = SlotAllocator(8, 2)
    allocator.alloc(4)
    with pytest.raises(ValueError, match="no page of the pool"):
        allocator.release(np.array([s for p in pages for s in (2 * p, 2 * p + 1)], dtype=np.int32))
    assert allocator.free == 0
    allocator.check()


def test_the_smallest_run_that_surely_suffices_is_cut_and_else_the_largest():
    allocator = SlotAllocator(40, 1)
    slots = allocator.alloc(40)
    allocator.release(np.concatenate([slots[0:16], slots[20:24], slots[30:31]]))
    assert allocator.alloc(2).tolist() == [21, 22]
    assert allocator.alloc(1).tolist() == [31]
    assert allocator.alloc(17).tolist() == [*range(1, 17), 23]
    assert allocator.free == 1


def test_slots_come_as_int32_in_order_whatever_the_runs():
    allocator = SlotAllocator(20, 2)
    slots = allocator.alloc(10)
    allocator.release(np.concatenate([slots[16:18], slots[2:4], slots[8:12]]))
    assert allocator.alloc(4).tolist() == [4, 5, 10, 11, 12, 13, 18, 19]
    assert allocator.alloc(0).dtype == np.int32


def fragmented(*free):
    """A pool of 16 pages of 1 with the given free runs, given back in that order."""
    allocator = SlotAllocator(16, 1)
    allocator.alloc(16)
    for first, last in free:
        allocator.release(np.arange(first, last + 1, dtype=np.int32))
    return allocator


def test_a_run_that_fits_exactly_is_not_passed_over():
    assert fragmented((2, 4), (6, 7), (9, 9)).alloc(3).tolist() == [2, 3, 4]


def test_where_no_run_suffices_the_longest_come_first():
    assert fragmented((1, 1), (5, 7), (9, 9), (11, 12)).alloc(5).tolist() == [5, 6, 7, 11, 12]


def test_entries_that_are_out_of_date_are_dropped():
    allocator = fragmented((1, 1), (3, 3))
    for _ in range(1000):
        allocator.release(allocator.alloc(1))
        assert sum(map(len, allocator._classes)) <= 2 * 2 + 64


@pytest.mark.parametrize("slots", [0, -4, 6])
def test_a_pool_is_whole_pages(slots):
    with pytest.raises(ValueError, match="positive multiple of the page size 4"):
        SlotAllocator(slots, 4)


def longest(free):
    """The longest run of pages in a set."""
    return max((run(free, page) for page in free if page - 1 not in free), default=0)


def run(free, page):
    end = page
    while end in free:
        end += 1
    return end - page


class AllocatorMachine(RuleBasedStateMachine):
    """Against a set of free pages."""

    @initialize(page_size=st.sampled_from([1, 4, 16]), pages=st.sampled_from([1, 7, 12, 40]))
    def build(self, page_size, pages):
        self.page_size = page_size
        self.allocator = SlotAllocator(pages * page_size, page_size)
        self.free = set(range(1, pages + 1))
        self.held: list[np.ndarray] = []

    @rule(pages=st.integers(0, 13))
    def alloc(self, pages):
        if pages > len(self.free):
            with pytest.raises(OutOfSlotsError):
                self.allocator.alloc(pages)
            return
        promised = longest(self.free) >= 2 * pages
        slots = self.allocator.alloc(pages)
        taken = slots[:: self.page_size] // self.page_size
        expected = (taken[:, None] * self.page_size + np.arange(self.page_size)).reshape(-1)
        assert slots.tolist() == expected.tolist()
        assert set(taken.tolist()) <= self.free and len(set(taken.tolist())) == pages
        assert (np.diff(taken) > 0).all()
        assert not promised or not pages or taken[-1] - taken[0] == pages - 1, "cut in pieces without need"
        self.free -= set(taken.tolist())
        self.held.append(slots)

    def taken_out(self, data):
        return self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        self.give_back(self.taken_out(data))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release_in_part_and_out_of_order(self, data):
        pages = self.taken_out(data).reshape(-1, self.page_size)
        shuffled = data.draw(st.permutations(range(len(pages))))
        kept = data.draw(st.integers(0, len(pages)))
        self.held.append(pages[shuffled[:kept]].reshape(-1))
        self.give_back(pages[shuffled[kept:]].reshape(-1))

    def give_back(self, slots):
        self.allocator.release(slots)
        self.free |= set((slots // self.page_size).tolist())
        if not len(slots):
            return
        others = self.held[-1] if self.held else slots[:0]
        for twice in (slots, np.concatenate([others, slots[-self.page_size :]])):
            with pytest.raises(ValueError, match="double free"):
                self.allocator.release(twice)

    @invariant()
    def books_agree(self):
        if hasattr(self, "allocator"):
            self.allocator.check()
            assert self.allocator.free == len(self.free) * self.page_size
            runs = {page: page + run(self.free, page) for page in self.free if page - 1 not in self.free}
            assert self.allocator._end == runs, "runs are as long as they can be"


TestAllocator = AllocatorMachine.TestCase
TestAllocator.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


class Counted(SlotAllocator):
    """Counts the entries that are filed, passed over or filed anew."""

    def __init__(self, *args):
        self.work = 0
        super().__init__(*args)

    def _file(self, first, end):
        self.work += 1
        super()._file(first, end)
        assert self._entries <= 2 * len(self._end) + 64, "entries that are out of date pile up"

    def _latest(self, size_class):
        before = self._entries
        first = super()._latest(size_class)
        self.work += 1 + before - self._entries
        return first

    def _refile(self):
        self.work += self._entries
        super()._refile()


@pytest.mark.parametrize("pages", [1_000, 16_000])
def test_work_is_bounded_by_the_runs_that_are_touched(pages):
    """Fragments, merges and cuts, over and over: a few entries for each run given or taken, however large the pool."""
    allocator, runs = Counted(pages, 1), 0
    rng = np.random.default_rng(1)
    held = [allocator.alloc(1) for _ in range(pages)]
    for _ in range(4):
        rng.shuffle(held)
        for slots in held:
            allocator.release(slots)
            runs += len(slots)
        held = []
        while allocator.free:
            size = min(int(rng.integers(1, 20)), allocator.free)
            held.append(allocator.alloc(size))
            runs += 1 + int((np.diff(held[-1]) != 1).sum())
        odd, held = held[::2], held[1::2]
        for slots in odd:
            allocator.release(slots)
            runs += 1 + int((np.diff(slots) != 1).sum())
        held += [allocator.alloc(1) for _ in range(allocator.free)]
        runs += len(odd)
    allocator.check()
    assert allocator.work <= 5 * runs
