"""An expression restricted to a range of lengths, by arithmetic on its parts."""

from typing import TypeGuard

from rtk.grammar.regex.errors import PROBLEM, TooLargeError
from rtk.grammar.regex.nodes import EMPTY, NOTHING, Alt, Chars, Node, Repeat, Seq, alt, lengths, repeat, seq

MAX_PARTS = 4000
"""Steps of the arithmetic, and so about the parts of the outcome."""

_ENDLESS = 1 << 62


def between(node: Node, shortest: int, longest: int | None) -> Node:
    """The texts that `node` matches, of these lengths. Raises `TooLargeError` where that takes more than arithmetic."""
    return _Lengths().between(node, shortest, _ENDLESS if longest is None else longest)


def _range(node: Node) -> tuple[int, int]:
    low, high = lengths(node)
    return low, _ENDLESS if high is None else high


class _Lengths:
    def __init__(self) -> None:
        self._left = MAX_PARTS

    def between(self, node: Node, shortest: int, longest: int) -> Node:
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
        """What is fixed keeps its length; the parts that vary share what is left."""
        vary = [i for i, (low, high) in enumerate(map(_range, node.items)) if low != high]
        first, last = vary[0], vary[-1]
        head, tail = seq(node.items[:first]), seq(node.items[last + 1 :])
        fixed = _range(head)[0] + _range(tail)[0]
        shortest, longest = max(0, shortest - fixed), longest if longest == _ENDLESS else longest - fixed
        a, middle, b = node.items[first], node.items[first + 1 : last], node.items[last]
        if first == last:
            inner = self.between(a, shortest, longest)
        elif len(vary) == 2 and _run(a) and _run(b) and shortest <= _range(seq((a, *middle, b)))[0]:
            inner = self._of_two(a, seq(middle), b, longest)
        else:
            inner = self._of_first(a, seq((*middle, b)), shortest, longest)
        return seq((head, inner, tail))

    def _of_two(self, a: Repeat, middle: Node, b: Repeat, longest: int) -> Node:
        """Two runs of single characters with a part of fixed length between."""
        middle = seq((repeat(a.item, a.low, a.low), middle, repeat(b.item, b.low, b.low)))
        most_a, most_b = (_ENDLESS if run.high is None else run.high - run.low for run in (a, b))
        return self._shared(a.item, middle, b.item, most_a, most_b, longest - _range(middle)[0])

    def _shared(self, a: Node, middle: Node, b: Node, most_a: int, most_b: int, most: int) -> Node:
        """`middle`, with up to `most_a` times `a` before and up to `most_b` times `b` after it, `most` of both at most.

        By halves, so that all counts together are about `most` times its logarithm, not its square.
        """
        self._spend(1)
        most_a, most_b = min(most_a, most), min(most_b, most)
        half = most if most_a + most_b <= most else most // 2
        rest = most - half if half < most else most
        options = [seq((repeat(a, 0, min(most_a, half)), middle, repeat(b, 0, min(most_b, rest))))]
        if most_a > half:
            inner = self._shared(a, middle, b, most_a - half - 1, most_b, most - half - 1)
            options.append(seq((repeat(a, half + 1, half + 1), inner)))
        if most_b > rest:
            inner = self._shared(a, middle, b, most_a, most_b - rest - 1, most - rest - 1)
            options.append(seq((inner, repeat(b, rest + 1, rest + 1))))
        return alt(options)

    def _of_first(self, first: Node, rest: Node, shortest: int, longest: int) -> Node:
        """For each length of the first part, what is left for the rest."""
        (low, high), (rest_low, rest_high) = _range(first), _range(rest)
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
        return alt(options)


def _run(node: Node) -> TypeGuard[Repeat]:
    return isinstance(node, Repeat) and isinstance(node.item, Chars)
