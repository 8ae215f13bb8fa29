"""What was compiled, for one vocabulary: bounded in bytes, the least recently used goes first."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from rtk.plugin.grammar import Matcher


class GrammarKey(NamedTuple):
    """What is compiled, and by whom."""

    backend: str
    kind: str
    text: str
    whitespace: int

    @property
    def size(self) -> int:
        """Bytes of the text."""
        return len(self.text.encode())


@dataclass(frozen=True, slots=True)
class Invalid:
    """The backend cannot compile it, today or ever."""

    problem: str


@dataclass(frozen=True, slots=True)
class _Entry:
    found: Matcher | Invalid
    size: int


class GrammarCache:
    """Matchers at the start of an answer, and what turned out to be invalid. Belongs to one thread."""

    def __init__(self, limit: int) -> None:
        """`limit`: bytes of all entries together, packed or in memory, with their texts."""
        self._limit = limit
        self._entries: OrderedDict[GrammarKey, _Entry] = OrderedDict()
        self.size = 0
        """Bytes."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: GrammarKey) -> Matcher | Invalid | None:
        """What is known: a matcher to fork and not to move, a verdict, or nothing. O(1)."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry.found

    def put(self, key: GrammarKey, found: Matcher | Invalid, own: int = 0) -> None:
        """Remember something of `own` bytes, unless it is larger than all the room. O(1) amortised."""
        size = own + key.size
        if key in self._entries:
            self.size -= self._entries.pop(key).size
        if size > self._limit:
            return
        self._entries[key] = _Entry(found, size)
        self.size += size
        while self.size > self._limit:
            _, oldest = self._entries.popitem(last=False)
            self.size -= oldest.size
