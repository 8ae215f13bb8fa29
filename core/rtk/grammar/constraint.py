"""One answer under its grammar: where it stands, and which tokens may come next.

The grammar's matcher knows the text; this knows the rest: that tokens without text never come, that those which end an
answer come only where it may end, whichever of them the request listens to, and that thinking is free.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence, Set
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from rtk.grammar.unique_keys import Retraced, UniqueKeys
from rtk.plugin.grammar import WORD, GrammarBackend, Matcher, Vocabulary, read_row, write_row

Row = NDArray[np.int32]

AHEAD = 128
"""Bytes that are looked at of those that a grammar leaves no choice of."""
MOST_LOOKED_AT = 100
"""Places along the keys of an object, to see whether there are others."""

State = Literal["open", "complete", "ended", "barred", "dead"]
"""The answer must go on; it may end here, or go on; it can only end; the request's own stops are all it could go on
with; nothing is."""


class Constraint:
    """The state of one request's grammar. From one thread at a time; whatever the backend raises comes through.

    Before each token its mask is made (`ask`, `refine`, `look_ahead`), and it is told which token came (`accept`).
    Before the first mask, and between a token and the next mask, it is `stale`.
    """

    __slots__ = (
        *("_keys", "_marker", "_open", "_scarce", "_seen", "_stops", "_vocabulary", "_words"),
        *("ahead", "backend", "drafts", "matcher", "name", "stale", "state"),
    )

    def __init__(
        self,
        matcher: Matcher,
        backend: GrammarBackend,
        name: str,
        vocabulary: Vocabulary,
        *,
        stops: Set[int],
        after: bytes = b"",
        keys: UniqueKeys | None = None,
        scarce: bool = False,
    ) -> None:
        """`matcher` becomes its own; `name` is the backend's. `stops`: every token that ends this request's text.

        `after`: the text ends its thinking with these bytes, and the answer begins; empty: it begins at once. `keys`:
        at the start of the answer, where no object of it may have a key twice. `scarce`: the grammar may run out of
        keys for an object, or of those that begin as the text does.
        """
        self.matcher = matcher
        self.backend = backend
        self.name = name
        self._vocabulary = vocabulary
        self._stops = frozenset(token for token in stops if token < len(vocabulary.tokens))
        self._words = words_of(vocabulary)
        self._open = self._words.without(self._stops)
        self._keys = keys
        self._scarce = scarce
        self._marker = self._words.marker(after) if after else None
        self._seen = 0  # bytes of the marker
        self.stale = True
        self.state: State = "open"
        """After `refine`: see `State`."""
        self.drafts: tuple[int, ...] = ()
        """After `look_ahead`: tokens that the text goes on with, for all that is known."""
        self.ahead: NDArray[np.int32] = np.zeros((0, vocabulary.words), dtype=np.int32)
        """After `mask_drafts`: row i is the mask behind the first i + 1 drafts."""

    @property
    def thinking(self) -> bool:
        """Whether the answer has not begun."""
        return self._marker is not None

    @property
    def words(self) -> int:
        """Words of a row of the mask."""
        return self._vocabulary.words

    def accept(self, token: int) -> bool:
        """Go on by a token. False, and nothing changed, where it is not allowed here."""
        self.drafts = ()
        if token in self._stops:
            accepted = self._may_end()
            if accepted:
                self.stale, self.state = False, "ended"
            return accepted
        if self._marker is None:
            accepted = self.matcher.accept(token) is True
            if accepted and self._keys is not None:
                self._keys.advance(token)
        else:
            accepted = self._think(self._vocabulary.tokens[token])
        self.stale |= accepted
        return accepted

    def _think(self, data: bytes) -> bool:
        assert self._marker is not None, "asked while it thinks"
        seen = self._marker.after(self._seen, data) if data else None
        if seen is None:
            return False
        self._seen = seen
        if seen == len(self._marker.text):
            self._marker = None
        return True

    def _may_end(self) -> bool:
        if not self.stale:
            return self.state in ("complete", "ended")
        return self._marker is None and any(self.matcher.fork().accept(end) is True for end in self._vocabulary.ends)

    def refine(self, row: Row) -> None:
        """Make what the matcher wrote into its row of the mask, all zeros while it thinks, this request's mask."""
        if self._marker is not None:
            np.bitwise_and(self._marker.rows[self._seen], self._open, out=row)
            self.state = "open" if row.any() else "dead"
        else:
            may_end = any(row[end // WORD] >> end % WORD & 1 for end in self._vocabulary.ends)
            barred = self._open is not self._words.open and bool((row & self._words.open & ~self._open).any())
            row &= self._open
            if self._keys is not None:
                self._keep_keys(self._keys, row)
            if row.any():
                self.state = "complete" if may_end else "open"
            else:
                self.state = "ended" if may_end else "barred" if barred else "dead"
            if may_end:
                _set(row, self._stops)
        self.stale = False

    def _keep_keys(self, keys: UniqueKeys, row: Row) -> None:
        """Allow no key a second time, nor what leads to where no other may come."""
        _clear(row, keys.forbidden().tolist())
        if self._scarce:
            for tokens in keys.retracing(row).values():
                state = self.fork()
                if state.accept(tokens[0]) and not state._has_keys():
                    _clear(row, tokens)

    def _has_keys(self) -> bool:
        """Whether a key may come that its object has not, looked for along those which it has."""
        left, seen = [self], set[Retraced]()
        for _ in range(MOST_LOOKED_AT):
            if not left:
                return False
            state = left.pop()
            assert state._keys is not None, "it is a fork of one that has them"
            mask = np.zeros((1, self.words), dtype=np.int32)
            ask([state], mask, [0])
            row = mask[0] & self._open
            _clear(row, state._keys.forbidden().tolist())
            retracing = state._keys.retracing(row)
            _clear(row, [*state._keys.blank().tolist(), *(token for tokens in retracing.values() for token in tokens)])
            if row.any():
                return True
            for place, tokens in retracing.items():
                if place not in seen:
                    seen.add(place)
                    fork = state.fork()
                    if fork.accept(tokens[0]):
                        left.append(fork)
        return True

    def moved(self) -> None:
        """Its row of the mask is lost."""
        self.stale = self.state != "ended"

    def look_ahead(self, row: Row) -> None:
        """Where the grammar leaves no choice of bytes, leave none of tokens either, in the mask: the longest that fits.

        Under the plain mask, models that expect other words spell those of a grammar in pieces, which neither they nor
        anybody else wrote before. The texts that are possible stay the same.
        """
        self.drafts = ()
        if self._marker is not None or self.state != "open":
            return
        forced = self.matcher.forced()
        if not isinstance(forced, bytes):
            raise TypeError(f"answered a {type(forced).__name__}, not bytes")
        if forced:
            self.drafts, certain = self._words.written(forced[:AHEAD])
            if certain and row[self.drafts[0] // WORD] >> self.drafts[0] % WORD & 1:
                row[:] = 0
                _set(row, {self.drafts[0]})

    def behind_drafts(self, most: int) -> list["Constraint"]:
        """Where it would stand behind each of the first `most` drafts, as far as they are allowed."""
        state, states = self, []
        for token in self.drafts[:most]:
            state = state.fork()
            if not state.accept(token):
                break
            states.append(state)
        return states

    def mask_drafts(self, states: list["Constraint"]) -> None:
        """Have the backend write the masks behind its drafts."""
        self.ahead = np.empty((len(states), self.words), dtype=np.int32)
        ask(states, self.ahead, range(len(states)))

    def refine_drafts(self, states: list["Constraint"]) -> int:
        """Finish these; answers behind how many of the drafts, one after the other, the text goes on."""
        for count, (state, row) in enumerate(zip(states, self.ahead, strict=True)):
            state.refine(row)
            state.look_ahead(row)
            if state.state in ("ended", "barred", "dead"):
                return count
        return len(states)

    def fork(self) -> "Constraint":
        """Another one in the same place; what happens to one does not touch the other."""
        other = object.__new__(type(self))
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other.matcher = self.matcher.fork()
        other._keys = self._keys and self._keys.fork()
        return other


def ask(constraints: Sequence[Constraint], mask: NDArray[np.int32], rows: Sequence[int]) -> None:
    """Have the one backend of all these write their rows of the mask; `refine` makes them the requests'."""
    mask[list(rows)] = 0
    asked = [(c.matcher, row) for c, row in zip(constraints, rows, strict=True) if not c.thinking]
    if asked:
        matchers, where = zip(*asked, strict=True)
        constraints[0].backend.fill_batch(matchers, mask, where)


def _clear(row: Row, tokens: Iterable[int]) -> None:
    cut = np.zeros_like(row)
    _set(cut, tokens)
    row &= ~cut


def _set(row: Row, tokens: Iterable[int]) -> None:
    bits = row.view(np.uint32)
    for token in tokens:
        bits[token // WORD] |= np.uint32(1 << token % WORD)


def runs_out_of_keys(schema: str) -> bool:
    """Whether objects of a schema in normal form may: those whose names are any but a few never do."""
    return '"patternProperties":' in schema or '"propertyNames":' in schema


class Words:
    """What is made of a vocabulary once."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokens = vocabulary.tokens
        self.open: Row = np.zeros(vocabulary.words, dtype=np.int32)
        """Allows the tokens that have bytes and end nothing."""
        write_row(self.open, [i for i, data in enumerate(self._tokens) if data and i not in vocabulary.ends])
        self._markers: dict[bytes, Marker] = {}
        self._spelling: _Spelling | None = None

    def without(self, stops: Set[int]) -> Row:
        """`open` without these; not to be written to."""
        cut = np.zeros_like(self.open)
        _set(cut, stops)
        return self.open & ~cut if (self.open & cut).any() else self.open

    def marker(self, text: bytes) -> "Marker":
        """The marker with this text, made once."""
        if text not in self._markers:
            self._markers[text] = Marker(text, self._tokens, self.open)
        return self._markers[text]

    def written(self, text: bytes) -> tuple[tuple[int, ...], int]:
        """A text as tokens, each the longest that fits, as far as some do; and how many of them are certain.

        Those are the same however the text goes on: no token has all the rest of the text and more. None is where a
        text can become one that no tokens make. O(text * longest token).
        """
        if self._spelling is None:
            self._spelling = _Spelling(self._tokens, read_row(self.open))
        return self._spelling.written(text)


class _Spelling:
    """Texts as tokens."""

    def __init__(self, tokens: Sequence[bytes], allowed: list[int]) -> None:
        self._ids = {tokens[i]: i for i in reversed(allowed)}  # of equal ones the first
        self._sorted = sorted(self._ids)
        self._longest = max(map(len, self._sorted), default=0)
        self._bytewise = all(bytes([byte]) in self._ids for byte in set(b"".join(self._sorted)))

    def written(self, text: bytes) -> tuple[tuple[int, ...], int]:
        written: list[int] = []
        certain, start = None, 0
        while start < len(text):
            if certain is None and (not self._bytewise or self._goes_on(text[start:])):
                certain = len(written)
            for stop in range(min(start + self._longest, len(text)), start, -1):
                if (token := self._ids.get(text[start:stop])) is not None:
                    break
            else:
                break
            written.append(token)
            start = stop
        return tuple(written), len(written) if certain is None else certain

    def _goes_on(self, rest: bytes) -> bool:
        """Whether a token has all of this and more."""
        after = bisect_right(self._sorted, rest) if len(rest) < self._longest else len(self._sorted)
        return after < len(self._sorted) and self._sorted[after].startswith(rest)


_WORDS: WeakKeyDictionary[Vocabulary, Words] = WeakKeyDictionary()


def words_of(vocabulary: Vocabulary) -> Words:
    """What is made of a vocabulary, made once."""
    if vocabulary not in _WORDS:
        _WORDS[vocabulary] = Words(vocabulary)
    return _WORDS[vocabulary]


class Marker:
    """The text that ends the thinking, looked for byte by byte (Knuth, Morris, Pratt): it may be split over tokens.

    No token may go on behind it, since the grammar would have to start in the middle of a token.
    """

    def __init__(self, text: bytes, tokens: Sequence[bytes], allowed: Row) -> None:
        self.text = text
        self._back = _borders(text)
        tails = tuple(text[i:] for i in range(len(text)))
        last = text[-1]
        suspects = [i for i, data in enumerate(tokens) if last in data and (data.startswith(tails) or text in data)]
        self.rows = []
        """The tokens that may come where so many bytes of the text have come."""
        for seen in range(len(text)):
            row, cut = allowed.copy(), np.zeros_like(allowed)
            _set(cut, {i for i in suspects if self.after(seen, tokens[i]) is None})
            row &= ~cut
            self.rows.append(row)

    def after(self, seen: int, data: bytes) -> int | None:
        """How many bytes have come after `data` too; None where the text ends inside of it. O(bytes) amortised."""
        for place, byte in enumerate(data):
            while seen and self.text[seen] != byte:
                seen = self._back[seen]
            seen += self.text[seen] == byte
            if seen == len(self.text) and place < len(data) - 1:
                return None
            if seen == len(self.text):
                break
        return seen


def _borders(text: bytes) -> list[int]:
    """For each number of bytes: how many of the first are also the last of them, without being all."""
    back = [0, 0]
    for byte in text[1:]:
        at = back[-1]
        while at and text[at] != byte:
            at = back[at]
        back.append(at + (text[at] == byte))
    return back
