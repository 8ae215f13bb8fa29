"""Memory that asks for huge pages is memory like any other."""

import mmap
from pathlib import Path

import pytest
import torch

from rtk import huge_pages
from rtk.model.panels import Arena


@pytest.mark.parametrize("size", [0, 1, huge_pages.HUGE - 1, huge_pages.HUGE, 3 * huge_pages.HUGE + 5])
def test_zeros_from_the_start_of_a_page(size):
    memory = huge_pages.zeros(size)
    assert memory.shape == (size,)
    assert not memory.any()
    memory.fill_(7)
    if size:
        assert memory.data_ptr() % huge_pages.HUGE == 0
        assert not huge_pages.zeros(size).any()


def test_a_kernel_without_huge_pages(monkeypatch):
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 12345, raising=False)  # EINVAL
    assert not huge_pages.zeros(10).any()


def test_what_the_system_does_not_give():
    with pytest.raises(MemoryError, match="1,152,921,504,606,846,976 bytes: Cannot allocate memory"):
        huge_pages.zeros(1 << 60)


def test_an_arena_hands_out_every_entry_once(monkeypatch):
    monkeypatch.setattr(Arena, "BLOCK", 448)
    arena = Arena()
    pieces = [arena.take(count) for count in (60, 40, 30, 250, 1)]
    assert [len(piece) for piece in pieces] == [60, 40, 30, 250, 1]
    for i, piece in enumerate(pieces):
        piece.fill_(i)
    assert all(torch.equal(piece, torch.full_like(piece, i)) for i, piece in enumerate(pieces))
    assert pieces[1].data_ptr() == pieces[0].data_ptr() + 256  # 60 * 4, and up to the next line of the cache


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux tells")
def test_the_memory_is_private():
    """Linux gives shared memory, which is what Python maps by default, no huge pages."""
    memory = huge_pages.zeros(huge_pages.HUGE)
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    bounds = [([int(end, 16) for end in line[0].split("-")], line[1]) for line in lines]
    assert [mode for (begin, end), mode in bounds if begin <= memory.data_ptr() < end] == ["rw-p"]
