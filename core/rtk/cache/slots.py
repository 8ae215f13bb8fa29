"""Who owns which rows of the KV pool: a page-granular allocator. Page 0 is padding and is never given out."""

import numpy as np
from numpy.typing import NDArray

Slots = NDArray[np.int32]

EMPTY: Slots = np.empty(0, dtype=np.int32)


class OutOfSlotsError(RuntimeError):
    """More pages were asked for than are free: the caller did not evict first, or its books are wrong."""


class SlotAllocator:
    """Hands out whole pages of slots. Invariant: every page is either on the free stack or allocated, once.

    Slots of page g are `g * page_size .. (g + 1) * page_size - 1`.
    """

    def __init__(self, slots: int, page_size: int) -> None:
        """`slots` is the pool's capacity in tokens, a multiple of `page_size`; padding comes on top of it."""
        if slots <= 0 or slots % page_size:
            raise ValueError(f"a pool of {slots} slots is no positive multiple of the page size {page_size}")
        self.capacity = slots
        self.page_size = page_size
        pages = slots // page_size
        self._stack = np.arange(pages, 0, -1, dtype=np.int32)  # descending: a run of pops ascends
        self._top = pages
        self._is_free = np.ones(pages + 1, dtype=np.bool_)
        self._is_free[0] = False
        self._offsets = np.arange(page_size, dtype=np.int32)

    @property
    def free(self) -> int:
        """Free slots."""
        return self._top * self.page_size

    def alloc(self, pages: int) -> Slots:
        """`pages * page_size` slots, ascending wherever the free pages are. O(pages). Raises `OutOfSlotsError`."""
        if pages > self._top:
            raise OutOfSlotsError(f"{pages} pages asked for, {self._top} free")
        taken = self._stack[self._top - pages : self._top][::-1]
        self._top -= pages
        self._is_free[taken] = False
        if self.page_size == 1:
            return taken.copy()
        return (taken[:, None] * self.page_size + self._offsets).reshape(-1)

    def release(self, slots: Slots) -> None:
        """Take whole pages back, each page's slots in order. O(n log n) in the pages. Raises on a double free."""
        if not len(slots):
            return
        pages = np.sort(slots[:: self.page_size] // self.page_size)[::-1]
        if self._is_free[pages].any() or pages[-1] <= 0 or (np.diff(pages) == 0).any():
            raise ValueError(f"double free, or a free of padding, among pages {pages[:8].tolist()}")
        self._stack[self._top : self._top + len(pages)] = pages
        self._top += len(pages)
        self._is_free[pages] = True

    def check(self) -> None:
        """Raise `AssertionError` unless the free stack and the page states agree."""
        free = self._stack[: self._top]
        assert len(np.unique(free)) == self._top, "a page is on the free stack twice"
        assert self._is_free[free].all() and int(self._is_free.sum()) == self._top, "free stack and page states differ"
