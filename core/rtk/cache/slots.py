"""Who owns which rows of the KV pool: a page-granular allocator. Page 0 is padding and is never given out.

Free pages are kept as runs, each as long as it can be. A request gets one run where there is one that suffices, so that
the K/V of a batch can often be read as a view instead of being gathered.
"""

from sys import byteorder

import numpy as np
from numpy.typing import NDArray

Slots = NDArray[np.int32]

EMPTY: Slots = np.empty(0, dtype=np.int32)

PROBES = 16
"""Entries of a request's own size class that are looked at before a larger run is cut."""


class OutOfSlotsError(RuntimeError):
    """More pages were asked for than are free: the caller did not evict first, or its books are wrong."""


class SlotAllocator:
    """Hands out whole pages of slots. Invariant: every page is in exactly one free run, or allocated, once.

    Slots of page g are `g * page_size .. (g + 1) * page_size - 1`. Runs are filed by size class: class k holds the runs
    of 2^(k-1) to 2^k - 1 pages.
    """

    def __init__(self, slots: int, page_size: int) -> None:
        """`slots` is the pool's capacity in tokens, a multiple of `page_size`; padding comes on top of it."""
        if slots <= 0 or slots % page_size:
            raise ValueError(f"a pool of {slots} slots is no positive multiple of the page size {page_size}")
        self.capacity = slots
        self.page_size = page_size
        pages = slots // page_size
        self.free = 0
        """Free slots."""
        self._taken = bytearray(b"\1") * (pages + 1)
        self._end: dict[int, int] = {}  # first page of a free run -> the page after its last
        self._first: dict[int, int] = {}  # the inverse
        self._classes: list[list[int]] = [[] for _ in range(pages.bit_length() + 1)]  # first pages; some out of date
        self._runs = [0] * len(self._classes)  # runs of each class
        self._filled = 0  # bit k: class k has a run
        self._entries = 0  # in all classes
        self._put_back(1, pages + 1)

    def alloc(self, pages: int) -> Slots:
        """`pages * page_size` slots, ascending; one run where a free run of twice as many pages exists.

        O(1) for each run that they come from. Raises `OutOfSlotsError`.
        """
        size = self.page_size
        if pages * size > self.free:
            raise OutOfSlotsError(f"{pages} pages asked for, {self.free // size} free")
        if not pages:
            return EMPTY
        first = self._fitting(pages)
        if first is not None:
            self._take(first, pages)
            return np.arange(first * size, (first + pages) * size, dtype=np.int32)
        runs: list[tuple[int, int]] = []
        while pages:
            first = self._latest(self._filled.bit_length() - 1)
            count = min(pages, self._end[first] - first)
            self._take(first, count)
            runs.append((first, first + count))
            pages -= count
        return np.concatenate([np.arange(a * size, b * size, dtype=np.int32) for a, b in sorted(runs)])

    def _fitting(self, pages: int) -> int | None:
        """A free run of at least `pages` pages: the latest of the own size class, else one of the next larger."""
        own = pages.bit_length()
        if own < len(self._classes) and self._runs[own]:
            for first, _ in zip(reversed(self._classes[own]), range(PROBES), strict=False):
                if self._end.get(first, first) - first >= pages:
                    return first
        larger = self._filled >> (own + 1)
        return self._latest(own + (larger & -larger).bit_length()) if larger else None

    def _latest(self, size_class: int) -> int:
        """The run of a class that was filed last. There is one. O(1) amortised."""
        entries = self._classes[size_class]
        while (self._end.get(entries[-1], entries[-1]) - entries[-1]).bit_length() != size_class:
            entries.pop()
            self._entries -= 1
        return entries[-1]

    def _take(self, first: int, pages: int) -> None:
        """Cut the first `pages` pages off the free run at `first`."""
        end = self._end[first]
        self._unfile(first, end)
        stop = first + pages
        self._taken[first:stop] = b"\1" * pages
        self.free -= pages * self.page_size
        if stop < end:
            self._file(stop, end)

    def release(self, slots: Slots) -> None:
        """Take whole pages back, each page's slots in order; pages in any order. Raises on pages that are not taken.

        O(n) at memory speed for n pages that form one run; else O(n log n), and O(1) for each run that they form.
        """
        self.release_packed(np.ascontiguousarray(slots, dtype=np.int32).tobytes())

    def release_packed(self, packed: bytes) -> None:
        """`release`, for slots that are packed as int32 bytes."""
        if not packed:
            return
        size = self.page_size
        first, end = int.from_bytes(packed[:4], byteorder) // size, (int.from_bytes(packed[-4:], byteorder) + 1) // size
        as_long = len(packed) == 4 * size * (end - first)
        if as_long and packed == np.arange(first * size, end * size, dtype=np.int32).tobytes():
            runs = [(first, end)]
        else:
            pages = np.frombuffer(packed, dtype=np.int32)
            if size > 1:
                pages = pages[::size] // size
            steps = pages[1:] - pages[:-1]
            if (steps <= 0).any():
                pages = np.sort(pages)
                steps = pages[1:] - pages[:-1]
            cuts = np.flatnonzero(steps != 1)
            firsts, lasts = pages[1:][cuts].tolist(), pages[cuts].tolist()
            runs = [(a, b + 1) for a, b in zip([int(pages[0]), *firsts], [*lasts, int(pages[-1])], strict=True)]
        if not self._are_taken(runs):
            raise ValueError(f"double free, or no page of the pool, among pages {runs[0][0]} to {runs[-1][1] - 1}")
        for first, end in runs:
            self._put_back(first, end)

    def _are_taken(self, runs: list[tuple[int, int]]) -> bool:
        """Whether ascending runs are pages of the pool, apart, and none of them free. O(pages) at memory speed."""
        before = 1
        for first, end in runs:
            if first < before or self._taken.find(b"\0", first, end) >= 0:
                return False
            before = end
        return before <= len(self._taken)

    def _put_back(self, first: int, end: int) -> None:
        """A run becomes free and joins its neighbours. O(1)."""
        self._taken[first:end] = bytes(end - first)
        self.free += (end - first) * self.page_size
        before = self._first.get(first)
        if before is not None:
            self._unfile(before, first)
            first = before
        after = self._end.get(end)
        if after is not None:
            self._unfile(end, after)
            end = after
        self._file(first, end)

    def _file(self, first: int, end: int) -> None:
        size_class = (end - first).bit_length()
        self._end[first], self._first[end] = end, first
        self._classes[size_class].append(first)
        self._runs[size_class] += 1
        self._filled |= 1 << size_class
        self._entries += 1
        if self._entries > 2 * len(self._end) + 64:
            self._refile()

    def _unfile(self, first: int, end: int) -> None:
        """Take a run out. Its entry stays behind and is passed over."""
        size_class = (end - first).bit_length()
        del self._end[first], self._first[end]
        self._runs[size_class] -= 1
        if not self._runs[size_class]:
            self._filled &= ~(1 << size_class)

    def _refile(self) -> None:
        """Drop the entries that are out of date. O(runs), after as many filings."""
        self._classes = [[] for _ in self._classes]
        for first, end in self._end.items():
            self._classes[(end - first).bit_length()].append(first)
        self._entries = len(self._end)

    def check(self) -> None:
        """Raise `AssertionError` unless the free runs and the page states agree, and no two runs touch."""
        covered = np.zeros(len(self._taken), dtype=np.bool_)
        for first, end in self._end.items():
            assert self._first[end] == first and first < end, "a run's ends disagree"
            assert not covered[first:end].any(), "two free runs overlap"
            assert end not in self._end, "two free runs touch"
            assert first in self._classes[(end - first).bit_length()], "a run is filed under another size"
            covered[first:end] = True
        assert len(self._first) == len(self._end) == sum(self._runs), "a run is filed in part"
        assert self._entries == sum(map(len, self._classes)), "the number of entries is off"
        assert (covered == (np.frombuffer(self._taken, np.uint8) == 0)).all(), "free runs and page states differ"
        assert self.free == int(covered.sum()) * self.page_size, "the number of free slots is off"
        assert self._filled == sum(1 << k for k, runs in enumerate(self._runs) if runs), "a size class is misjudged"
