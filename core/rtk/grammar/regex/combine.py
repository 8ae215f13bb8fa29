"""Several expressions and a range of lengths as one exact expression: no automaton where plain arithmetic will do."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rtk.grammar.regex.automaton import PROBLEM, Dfa, Letters, minimised, product
from rtk.grammar.regex.errors import TooLargeError
from rtk.grammar.regex.nodes import (
    ANYTHING,
    EMPTY,
    NOTHING,
    Alt,
    Node,
    Repeat,
    Seq,
    alt,
    chars,
    lengths,
    repeat,
    seq,
)

MAX_STATES = 300
"""States of an automaton that is written as an expression."""
MAX_NODES = 4000
"""Parts of an expression that is the outcome."""
MAX_HEIGHT = 120
"""Levels of it."""


def combined(
    wanted: Iterable[Node], *, unwanted: Sequence[Node] = (), shortest: int = 0, longest: int | None = None
) -> Node:
    """The texts of `shortest` to `longest` characters that match all of `wanted` and none of `unwanted`.

    `NOTHING` where there are none. Raises `TooLargeError` where the outcome is too large, or takes too long.
    """
    nodes = list(dict.fromkeys(node for node in wanted if node != ANYTHING)) or [ANYTHING]
    try:
        one = nodes[0] if len(nodes) == 1 and not unwanted else _worked_out(nodes, unwanted, 0, None)
        return _Lengths().between(one, shortest, _ENDLESS if longest is None else longest)
    except TooLargeError:
        return _worked_out(nodes, unwanted, shortest, longest)


def overlap(a: Node, b: Node) -> bool:
    """Whether some text matches both. Raises `TooLargeError`."""
    return any(_product((a, b), (), 0, None).final)


def contains(a: Node, b: Node) -> bool:
    """Whether every text that matches `b` matches `a`. Raises `TooLargeError`."""
    return not any(_product((b,), (a,), 0, None).final)


def matches(node: Node, text: str) -> bool:
    """Whether the whole text matches. Raises `TooLargeError`."""
    return Dfa.of(node, Letters((node, ANYTHING))).matches(text)


def _product(wanted: Sequence[Node], unwanted: Sequence[Node], shortest: int, longest: int | None) -> Dfa:
    letters = Letters((*wanted, *unwanted))
    return product(
        [Dfa.of(node, letters) for node in wanted], [Dfa.of(node, letters) for node in unwanted], shortest, longest
    )


def _worked_out(wanted: Sequence[Node], unwanted: Sequence[Node], shortest: int, longest: int | None) -> Node:
    return written(minimised(_product(wanted, unwanted, shortest, longest)))


class _Lengths:
    """Restricts expressions to a range of lengths by arithmetic on their parts."""

    def __init__(self) -> None:
        self._left = MAX_NODES

    def between(self, node: Node, shortest: int, longest: int) -> Node:
        """The texts that `node` matches, of these lengths. Raises `TooLargeError` where that takes more than this."""
        self._spend(1)
        if node == NOTHING:
            return NOTHING
        low, high = _range(node)
        if low > longest or high < shortest:
            return NOTHING
        if shortest <= low and high <= longest:
            return node
        if isinstance(node, Alt):
            return alt(self.between(option, shortest, longest) for option in node.options)
        if isinstance(node, Seq):
            return self._of_seq(node, shortest, longest)
        assert isinstance(node, Repeat), node
        return self._of_repeat(node, shortest, longest)

    def _spend(self, parts: int) -> None:
        self._left -= parts
        if self._left < 0:
            raise TooLargeError(PROBLEM)

    def _of_repeat(self, node: Repeat, shortest: int, longest: int) -> Node:
        length, high = _range(node.item)
        if length != high:
            if node.high != 1:
                raise TooLargeError(PROBLEM)
            some = self.between(node.item, shortest, longest)
            return alt((some, EMPTY)) if shortest == 0 else some
        low = max(node.low, -(-shortest // length))
        top = min(_ENDLESS if node.high is None else node.high, longest // length)
        if low > top:
            return NOTHING
        return repeat(node.item, low, node.high if longest == _ENDLESS else top)

    def _of_seq(self, node: Seq, shortest: int, longest: int) -> Node:
        """One part after the other: for each length of the first that varies, what is left for the rest."""
        sizes = [_range(item) for item in node.items]
        at = next(i for i, (low, high) in enumerate(sizes) if low != high)
        fixed = sum(low for low, _ in sizes[:at])
        head, first, rest = seq(node.items[:at]), node.items[at], seq(node.items[at + 1 :])
        shortest, longest = max(0, shortest - fixed), longest if longest == _ENDLESS else longest - fixed
        (low, high), (rest_low, rest_high) = sizes[at], _range(rest)
        # From `free` to `free_top` characters of the first, whatever the rest can be is allowed.
        if longest != _ENDLESS:
            high = min(high, longest - rest_low)
        free, free_top = max(low, shortest - rest_low), high
        if longest != _ENDLESS:
            free_top = min(high, longest - rest_high)
        options: list[Node] = []
        if free <= free_top:
            options.append(seq((self.between(first, free, free_top), rest)))
        else:
            free, free_top = high + 1, high
        self._spend(free - low + high - free_top)
        for length in (*range(low, free), *range(max(low, free_top + 1), high + 1)):
            left = longest if longest == _ENDLESS else longest - length
            part = self.between(first, length, length)
            options.append(seq((part, self.between(rest, max(0, shortest - length), left))))
        return seq((head, alt(options)))


_ENDLESS = 1 << 62


def _range(node: Node) -> tuple[int, int]:
    low, high = lengths(node)
    return low, _ENDLESS if high is None else high


class _Label(NamedTuple):
    """An expression with how many parts and levels it has at most."""

    node: Node
    parts: int
    height: int


def written(dfa: Dfa) -> Node:
    """An expression for what an automaton accepts: its states are taken out, one by one. Raises `TooLargeError`."""
    count = len(dfa.steps)
    if not any(dfa.final):
        return NOTHING
    if count > MAX_STATES:
        raise TooLargeError(PROBLEM)
    out: list[dict[int, _Label]] = [{} for _ in range(count + 2)]
    into: list[set[int]] = [set() for _ in range(count + 2)]
    begin, end = count, count + 1

    def connect(a: int, b: int, label: _Label) -> None:
        out[a][b] = label
        into[b].add(a)

    for state, row in enumerate(dfa.steps):
        for target in {target for target in row if target >= 0}:
            ranges = [r for letter, t in enumerate(row) if t == target for r in dfa.letters.ranges[letter]]
            connect(state, target, _Label(chars(ranges), 1, 1))
        if dfa.final[state]:
            connect(state, end, _Label(EMPTY, 1, 1))
    connect(begin, 0, _Label(EMPTY, 1, 1))
    left = set(range(count))
    while left:
        state = min(left, key=lambda s: (_cost(s, out, into), s))
        left.remove(state)
        loop = out[state].pop(state, None)
        into[state].discard(state)
        for source in into[state]:
            first = out[source].pop(state)
            for target, last in out[state].items():
                connect(source, target, _joined(first, loop, last, out[source].get(target)))
        for target in out[state]:
            into[target].discard(state)
        out[state].clear()
    return out[begin][end].node


def _cost(state: int, out: list[dict[int, _Label]], into: list[set[int]]) -> int:
    """About how many parts are written anew where a state is taken out."""
    loop = out[state].get(state)
    sources = [out[source][state].parts for source in into[state] if source != state]
    targets = [label.parts for target, label in out[state].items() if target != state]
    return (
        sum(sources) * (len(targets) - 1)
        + sum(targets) * (len(sources) - 1)
        + (loop.parts if loop else 0) * (len(sources) * len(targets) - 1)
    )


def _joined(first: _Label, loop: _Label | None, last: _Label, beside: _Label | None) -> _Label:
    parts = [first, last, *(label for label in (loop, beside) if label is not None)]
    height = max(label.height for label in parts) + (1 if loop is None else 2) + (beside is not None)
    size = sum(label.parts for label in parts)
    if size > MAX_NODES or height > MAX_HEIGHT:
        raise TooLargeError(PROBLEM)
    again = EMPTY if loop is None else repeat(loop.node, 0, None)
    whole = seq((first.node, again, last.node))
    return _Label(whole if beside is None else alt((beside.node, whole)), size, height)
