"""What requests are served from."""

from dataclasses import dataclass

from rtk.cache.req_table import ReqTable
from rtk.cache.slots import SlotAllocator
from rtk.cache.tree import PrefixCache


@dataclass(frozen=True, slots=True)
class Pools:
    """Slots, request rows, and the tree over the slots. One owner: the scheduler."""

    allocator: SlotAllocator
    table: ReqTable
    cache: PrefixCache
