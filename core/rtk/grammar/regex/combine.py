"""Several expressions and a range of lengths as one exact expression: no automaton where plain arithmetic will do."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rtk.grammar.regex.automaton import Dfa, Letters, minimised, product
from rtk.grammar.regex.errors import PROBLEM, TooLargeError
from rtk.grammar.regex.lengths import between
from rtk.grammar.regex.nodes import ANYTHING, EMPTY, NOTHING, Chars, Node, Repeat, alt, chars, repeat, seq
from rtk.grammar.regex.text import fits

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
    found = _combined(wanted, unwanted, shortest, longest)
    if not fits(found):
        raise TooLargeError(PROBLEM)
    return found


def _combined(wanted: Iterable[Node], unwanted: Sequence[Node], shortest: int, longest: int | None) -> Node:
    nodes = []
    for node in wanted:
        if isinstance(node, Repeat) and isinstance(node.item, Chars):  # it asks for a length, and for characters
            shortest, longest = max(shortest, node.low), _shorter(longest, node.high)
            node = repeat(node.item, 0, None)
        nodes.append(node)
    nodes = list(dict.fromkeys(node for node in nodes if node != ANYTHING)) or [ANYTHING]
    try:
        one = nodes[0] if len(nodes) == 1 and not unwanted else _worked_out(nodes, unwanted, 0, None)
        return between(one, shortest, longest)
    except TooLargeError:
        return _worked_out(nodes, unwanted, shortest, longest)


def _shorter(a: int | None, b: int | None) -> int | None:
    return min((bound for bound in (a, b) if bound is not None), default=None)


def overlap(a: Node, b: Node) -> bool:
    """Whether some text matches both. Raises `TooLargeError`."""
    return any(_product((a, b), (), 0, None).final)


def contains(a: Node, b: Node) -> bool:
    """Whether every text that matches `b` matches `a`. Raises `TooLargeError`."""
    return not any(_product((b,), (a,), 0, None).final)


def _product(wanted: Sequence[Node], unwanted: Sequence[Node], shortest: int, longest: int | None) -> Dfa:
    letters = Letters((*wanted, *unwanted))
    return product(
        [Dfa.of(node, letters) for node in wanted], [Dfa.of(node, letters) for node in unwanted], shortest, longest
    )


def _worked_out(wanted: Sequence[Node], unwanted: Sequence[Node], shortest: int, longest: int | None) -> Node:
    return written(minimised(_product(wanted, unwanted, shortest, longest)))


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
