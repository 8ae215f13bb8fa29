"""What a regular expression is made of once it is read: characters, sequences, alternatives, repetitions. Nothing else.

Nodes are made by `chars`, `seq`, `alt` and `repeat`, which keep them small and in one form.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from rtk.grammar.regex.chars import ANY, Ranges, union


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set that is not empty."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Seq:
    """One after the other; the empty sequence matches the empty text."""

    items: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """One of them; no alternatives match nothing."""

    options: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """From `low` to `high` times; None: any number."""

    item: "Node"
    low: int
    high: int | None


Node = Chars | Seq | Alt | Repeat

EMPTY = Seq(())
"""The empty text."""
NOTHING = Alt(())
"""No text at all."""


def chars(ranges: Iterable[tuple[int, int]]) -> Node:
    """One character of these ranges."""
    found = union(ranges)
    return Chars(found) if found else NOTHING


def literal(text: str) -> Node:
    """Just this text."""
    return seq(Chars(((ord(c), ord(c)),)) for c in text)


def seq(items: Iterable[Node]) -> Node:
    """One after the other. Neighbours of which one repeats the other become one repetition."""
    out: list[Node] = []
    for item in items:
        for part in item.items if isinstance(item, Seq) else (item,):
            if part == NOTHING:
                return NOTHING
            joined = _joined(out[-1], part) if out else None
            if joined is None:
                out.append(part)
            else:
                out[-1] = joined
    return out[0] if len(out) == 1 else Seq(tuple(out))


def _joined(a: Node, b: Node) -> Node | None:
    if not (isinstance(a, Repeat) or isinstance(b, Repeat)):
        return None
    a_item, a_low, a_high = (a.item, a.low, a.high) if isinstance(a, Repeat) else (a, 1, 1)
    b_item, b_low, b_high = (b.item, b.low, b.high) if isinstance(b, Repeat) else (b, 1, 1)
    if a_item != b_item:
        return None
    return Repeat(a_item, a_low + b_low, None if a_high is None or b_high is None else a_high + b_high)


def alt(options: Iterable[Node]) -> Node:
    """One of them. Sets of characters become one set; the empty text becomes an option of the rest."""
    flat: list[Node] = []
    optional = False
    for part in options:
        if isinstance(part, Repeat) and (part.low, part.high) == (0, 1):
            optional, part = True, part.item
        if part == EMPTY:
            optional = True
        elif isinstance(part, Alt):
            flat.extend(part.options)
        else:
            flat.append(part)
    single = Chars(union(ranges for part in flat if isinstance(part, Chars) for ranges in part.ranges))
    rest = tuple(dict.fromkeys(single if isinstance(part, Chars) else part for part in flat))
    one = rest[0] if len(rest) == 1 else Alt(rest)
    return repeat(one, 0, 1) if optional else one


def repeat(item: Node, low: int, high: int | None) -> Node:
    """Several times; where it says the same, without nesting."""
    if high == 0 or item == EMPTY:
        return EMPTY
    if item == NOTHING:
        return NOTHING if low else EMPTY
    if (low, high) == (1, 1):
        return item
    if isinstance(item, Repeat) and (item.low <= 1 or low == high or (item.high is None and low)):
        top = None if high is None or item.high is None else high * item.high
        return Repeat(item.item, low * item.low, top)  # the numbers of times leave no gap
    return Repeat(item, low, high)


ANYTHING = Repeat(Chars(ANY), 0, None)
"""Every text."""


def nullable(node: Node) -> bool:
    """Whether the empty text matches."""
    if isinstance(node, Chars):
        return False
    if isinstance(node, Seq):
        return all(map(nullable, node.items))
    if isinstance(node, Alt):
        return any(map(nullable, node.options))
    return node.low == 0 or nullable(node.item)


def size(node: Node) -> int:
    """Places of a character once all repetitions are written out. An automaton has about so many states."""
    if isinstance(node, Chars):
        return 1
    if isinstance(node, Repeat):
        return size(node.item) * max(node.low, 1 if node.high is None else node.high)
    return sum(map(size, node.items if isinstance(node, Seq) else node.options))


def lengths(node: Node) -> tuple[int, int | None]:
    """The shortest and the longest text that may match, in characters; None: no longest. Not for `NOTHING`."""
    if isinstance(node, Chars):
        return 1, 1
    if isinstance(node, Repeat):
        low, high = lengths(node.item)
        top = 0 if high == 0 else None if high is None or node.high is None else high * node.high
        return low * node.low, top
    if isinstance(node, Seq):
        lows, highs = zip(*map(lengths, node.items), strict=True) if node.items else ((), ())
        return sum(lows), None if None in highs else sum(highs)
    lows, highs = zip(*map(lengths, node.options), strict=True)
    return min(lows), None if None in highs else max(highs)
