"""Expressions with anchors, as four without: those that touch the beginning of the text, its end, both, or neither.

Where an anchor stands inside, what is on its other side can match only the empty text. So a pattern with anchors
anywhere, but for repeated ones, becomes an exact expression for the whole text.
"""

from collections.abc import Iterable
from functools import reduce
from itertools import product
from typing import NamedTuple

from rtk.grammar.regex.nodes import ANYTHING, EMPTY, NOTHING, Node, alt, nullable, repeat, seq


class Anchored(NamedTuple):
    """What may match anywhere, only from the beginning of the text, only to its end, and only as the whole text."""

    free: Node = NOTHING
    start: Node = NOTHING
    end: Node = NOTHING
    both: Node = NOTHING

    @property
    def anchored(self) -> bool:
        """Whether there is an anchor in it."""
        return any(part != NOTHING for part in self[1:])

    def matched(self) -> Node:
        """The whole texts that match from their beginning to their end."""
        return alt(self)

    def begun(self) -> Node:
        """The whole texts that match from their beginning to some place."""
        return alt((seq((self.free, ANYTHING)), seq((self.start, ANYTHING)), self.end, self.both))

    def searched(self) -> Node:
        """The whole texts of which some part matches."""
        if any(map(nullable, self[:3])):
            return ANYTHING
        return alt(
            (
                seq((ANYTHING, self.free, ANYTHING)),
                seq((self.start, ANYTHING)),
                seq((ANYTHING, self.end)),
                self.both,
            )
        )


def plain(node: Node) -> Anchored:
    """An expression without anchors."""
    return Anchored(free=node)


def at_start() -> Anchored:
    """`^`."""
    return Anchored(start=EMPTY)


def at_end() -> Anchored:
    """`$`."""
    return Anchored(end=EMPTY)


def alternatives(options: Iterable[Anchored]) -> Anchored:
    """One of them."""
    options = list(options)
    if len(options) == 1:
        return options[0]
    return Anchored(*map(alt, zip(*options, strict=True)))


def in_order(items: Iterable[Anchored]) -> Anchored:
    """One after the other."""
    items = list(items)
    if not any(item.anchored for item in items):
        return plain(seq(item.free for item in items))
    found = Anchored(free=EMPTY)
    run: list[Node] = []
    for item in items:
        if item.anchored:
            found = reduce(_then, (plain(seq(run)), item), found)
            run = []
        else:
            run.append(item.free)
    return _then(found, plain(seq(run)))


def _then(a: Anchored, b: Anchored) -> Anchored:
    found: list[list[Node]] = [[], [], [], []]
    for (i, first), (j, second) in product(enumerate(a), enumerate(b)):
        if i & 2:  # the text has ended before `second`
            second = EMPTY if nullable(second) else NOTHING
        if j & 1:  # the text begins after `first`
            first = EMPTY if nullable(first) else NOTHING
        found[i | j].append(seq((first, second)))
    return Anchored(*map(alt, found))


def repeated(item: Anchored, low: int, high: int | None) -> Anchored:
    """Several times; at most once, if there is an anchor in it."""
    if not item.anchored:
        return plain(repeat(item.free, low, high))
    assert high is not None and high <= 1
    if high == 0:
        return plain(EMPTY)
    return item if low else alternatives((item, plain(EMPTY)))
