"""Deterministic automata over characters, small ones: what texts several expressions have in common, exactly.

The alphabet is cut into letters: sets of characters that no expression in question tells apart.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rtk.grammar.regex.chars import ANY, Ranges
from rtk.grammar.regex.errors import PROBLEM, TooLargeError
from rtk.grammar.regex.nodes import Alt, Chars, Node, Repeat, Seq

MAX_STATES = 2000
"""States of one automaton."""
MAX_WORK = 200_000
"""Steps of one construction: a fraction of a second."""
MAX_MATCH = 1_000_000
"""Steps of one comparison of a text with an expression."""


class Letters:
    """The characters, cut into sets that some expressions do not tell apart."""

    def __init__(self, nodes: Iterable[Node]):
        found = {node.ranges for root in nodes for node in _leaves(root)}
        classes = sorted(found)
        starts: dict[int, set[int]] = {low: set() for low, _ in ANY}
        edges = [(code, i) for i, ranges in enumerate(classes) for low, high in ranges for code in (low, high + 1)]
        for code, i in edges:
            starts.setdefault(code, set()).add(i)
        self.ranges: list[Ranges] = []
        """The characters of each letter."""
        inside: set[int] = set()
        letters: dict[frozenset[int], int] = {}
        pieces: list[list[tuple[int, int]]] = []
        cuts = sorted(starts)
        if len(classes) * len(cuts) > MAX_WORK:
            raise TooLargeError(PROBLEM)
        for low, after in zip(cuts, [*cuts[1:], ANY[-1][1] + 1], strict=True):
            inside ^= starts[low]
            if low > ANY[-1][1] or ANY[0][1] < low < ANY[1][0]:
                continue
            letter = letters.setdefault(frozenset(inside), len(letters))
            if letter == len(pieces):
                pieces.append([])
            pieces[letter].append((low, min(after - 1, ANY[0][1]) if low <= ANY[0][1] else after - 1))
        self.ranges = [tuple(piece) for piece in pieces]
        self._of = {
            ranges: tuple(letter for key, letter in letters.items() if i in key) for i, ranges in enumerate(classes)
        }

    def __len__(self) -> int:
        return len(self.ranges)

    def of(self, node: Chars) -> tuple[int, ...]:
        """The letters that a set of characters consists of."""
        return self._of[node.ranges]


def _leaves(root: Node) -> Iterator[Chars]:
    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, Chars):
            yield node
        elif isinstance(node, Repeat):
            stack.append(node.item)
        else:
            stack.extend(node.items if isinstance(node, Seq) else node.options)


class _Nfa:
    """An automaton with empty steps, written down from an expression. Sets of states are bits of an integer."""

    def __init__(self, node: Node, limit: int):
        self._left = limit
        self.empty: list[list[int]] = []
        self.steps: list[tuple[Chars, int] | None] = []
        self.start = self._state()
        self.final = self._add(node, self.start)

    def spend(self, steps: int) -> None:
        """Count steps of work, of which there is a limit."""
        self._left -= steps
        if self._left < 0:
            raise TooLargeError(PROBLEM)

    def _state(self) -> int:
        self.spend(1)
        self.empty.append([])
        self.steps.append(None)
        return len(self.empty) - 1

    def _add(self, node: Node, start: int) -> int:
        """Write `node` from `start` on; answers where it ends. Nothing that is added later leads into `start`."""
        if isinstance(node, Chars):
            end = self._state()
            at = self._state()
            self.empty[start].append(at)
            self.steps[at] = (node, end)
            return end
        if isinstance(node, Seq):
            for item in node.items:
                start = self._add(item, start)
            return start
        if isinstance(node, Alt):
            end = self._state()
            for option in node.options:
                self.empty[self._add(option, self._after(start))].append(end)
            return end
        for _ in range(node.low):
            start = self._add(node.item, self._after(start))
        end = self._state()
        self.empty[start].append(end)
        if node.high is None:
            again = self._after(start)
            self.empty[self._add(node.item, again)].extend((again, end))
        for _ in range(node.low, node.high or 0):
            start = self._add(node.item, self._after(start))
            self.empty[start].append(end)
        return end

    def _after(self, state: int) -> int:
        fresh = self._state()
        self.empty[state].append(fresh)
        return fresh

    def closure(self, states: Iterable[int]) -> frozenset[int]:
        """What can be reached without a character; just the states that read one, and the final one."""
        seen = set(states)
        stack = list(seen)
        while stack:
            for state in self.empty[stack.pop()]:
                if state not in seen:
                    seen.add(state)
                    stack.append(state)
        self.spend(len(seen))
        return frozenset(state for state in seen if self.steps[state] is not None or state == self.final)


@dataclass(frozen=True, slots=True)
class Dfa:
    """States 0..n-1, of which 0 is the first; -1 is where no text can match any more."""

    letters: Letters
    steps: list[list[int]]
    """Where each state goes by each letter."""
    final: list[bool]

    @classmethod
    def of(cls, node: Node, letters: Letters) -> "Dfa":
        """The texts that `node` matches. Raises `TooLargeError`."""
        nfa = _Nfa(node, MAX_WORK)
        first = nfa.closure((nfa.start,))
        names = {first: 0}
        sets = deque((first,))
        closures: dict[int, frozenset[int]] = {}
        steps: list[list[int]] = []
        final: list[bool] = []
        while sets:
            here = sets.popleft()
            targets: dict[int, set[int]] = {}
            for state in here:
                step = nfa.steps[state]
                if step is not None:
                    item, end = step
                    if end not in closures:
                        closures[end] = nfa.closure((end,))
                    for letter in letters.of(item):
                        targets.setdefault(letter, set()).update(closures[end])
                        nfa.spend(len(closures[end]))
            nfa.spend(len(letters))
            row = [-1] * len(letters)
            for letter, reached in targets.items():
                key = frozenset(reached)
                if key not in names:
                    names[key] = len(names)
                    sets.append(key)
                row[letter] = names[key]
            steps.append(row)
            final.append(nfa.final in here)
            if len(names) > MAX_STATES:
                raise TooLargeError(PROBLEM)
        return cls(letters, steps, final)


def matches(node: Node, text: str) -> bool:
    """Whether the whole text matches. Its time is that of the text times the expression, whatever they are.

    Raises `TooLargeError` where that is too much.
    """
    nfa = _Nfa(node, MAX_MATCH)
    here = nfa.closure((nfa.start,))
    closures: dict[int, frozenset[int]] = {}
    for code in map(ord, text):
        reached: set[int] = set()
        for state in here:
            step = nfa.steps[state]
            if step is not None and any(low <= code <= high for low, high in step[0].ranges):
                if step[1] not in closures:
                    closures[step[1]] = nfa.closure((step[1],))
                reached |= closures[step[1]]
                nfa.spend(len(closures[step[1]]))
        nfa.spend(len(here))
        here = frozenset(reached)
    return nfa.final in here


def product(wanted: Sequence[Dfa], unwanted: Sequence[Dfa], shortest: int, longest: int | None) -> Dfa:
    """The texts of a length that match all of the wanted and none of the unwanted. Raises `TooLargeError`."""
    parts, letters = (*wanted, *unwanted), wanted[0].letters
    most = shortest if longest is None else longest
    names = {(0,) * (1 + len(parts)): 0}
    todo = deque(names)
    steps: list[list[int]] = []
    final: list[bool] = []
    while todo:
        length, *states = todo.popleft()
        ends = [state >= 0 and part.final[state] for part, state in zip(parts, states, strict=True)]
        final.append(length >= shortest and all(ends[: len(wanted)]) and not any(ends[len(wanted) :]))
        row = [-1] * len(letters)
        for letter in range(len(letters)) if longest is None or length < longest else ():
            pairs = zip(parts, states, strict=True)
            reached = [part.steps[state][letter] if state >= 0 else -1 for part, state in pairs]
            if -1 not in reached[: len(wanted)]:
                key = (min(length + 1, most), *reached)
                if key not in names:
                    names[key] = len(names)
                    todo.append(key)
                row[letter] = names[key]
        steps.append(row)
        if len(names) > MAX_STATES or len(names) * len(letters) * len(parts) > MAX_WORK:
            raise TooLargeError(PROBLEM)
    return Dfa(letters, steps, final)


def minimised(dfa: Dfa) -> Dfa:
    """The same texts with the fewest states, none of which is a dead end. By Hopcroft's refinement of blocks."""
    count, sink = len(dfa.steps) + 1, len(dfa.steps)
    before: list[list[list[int]]] = [[[] for _ in range(count)] for _ in dfa.letters.ranges]
    for state, row in enumerate([*dfa.steps, [sink] * len(dfa.letters)]):
        for letter, target in enumerate(row):
            before[letter][target if target >= 0 else sink].append(state)
    block = [int(end) for end in dfa.final] + [0]
    members = [{s for s in range(count) if not block[s]}, {s for s in range(count) if block[s]}]
    waiting = {(1, letter) for letter in range(len(dfa.letters))}
    while waiting:
        splitter, letter = waiting.pop()
        touched: dict[int, set[int]] = {}
        for target in members[splitter]:
            for state in before[letter][target]:
                touched.setdefault(block[state], set()).add(state)
        for name, inside in touched.items():
            if len(inside) == len(members[name]):
                continue
            fresh = len(members)
            members.append(inside)
            members[name] -= inside
            for state in inside:
                block[state] = fresh
            for each in range(len(dfa.letters)):
                smaller = fresh if len(inside) <= len(members[name]) else name
                waiting.add((fresh if (name, each) in waiting else smaller, each))
    return _renamed(dfa, block, block[sink])


def _renamed(dfa: Dfa, block: list[int], dead: int) -> Dfa:
    """The automaton of the blocks that can be reached, but for the dead one."""
    names = {block[0]: 0}
    todo = deque((0,))
    steps: list[list[int]] = []
    final: list[bool] = []
    while todo:
        state = todo.popleft()
        final.append(dfa.final[state])
        row = []
        for target in dfa.steps[state]:
            if target < 0 or block[target] == dead:
                row.append(-1)
                continue
            if block[target] not in names:
                names[block[target]] = len(names)
                todo.append(target)
            row.append(names[block[target]])
        steps.append(row)
    return Dfa(dfa.letters, steps, final)
