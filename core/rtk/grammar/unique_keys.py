"""Keys that an object would have twice, found while its text is generated: a grammar cannot keep free keys apart.

`UniqueKeys` follows a JSON text token by token, and says which tokens would complete a key that its object has already.
What tokens do is looked up in a `KeyIndex`, made once for a vocabulary. That the text is JSON is for others to see to.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rtk.plugin.grammar import WORD, Vocabulary, read_row

_ESCAPES = {
    ord('"'): b'"',
    ord("\\"): b"\\",
    ord("/"): b"/",
    ord("b"): b"\b",
    ord("f"): b"\f",
    ord("n"): b"\n",
    ord("r"): b"\r",
    ord("t"): b"\t",
}
_QUOTE, _BACKSLASH, _U = b'"\\u'
_HEX = frozenset(b"0123456789abcdefABCDEF")


class _Keys(NamedTuple):
    """The keys of an object so far, the last one first."""

    key: bytes
    before: "_Keys | None"


_UNKNOWN = _Keys(b"\xff", None)  # no text has such a byte


class _Frame(NamedTuple):
    """An array or object that is open."""

    is_object: bool
    keys: _Keys | None
    outer: "_Frame | None"
    depth: int


class _State(NamedTuple):
    """Where a text is."""

    top: _Frame | None = None
    in_string: bool = False
    key: bool = False
    """The string it is in, or the next one, is a key."""
    text: bytes = b""
    """Of a key: what it says so far, in UTF-8."""
    pending: bytes = b""
    """An escape that is not at its end yet; a first half of a character, as long as the second may follow."""


_ENTRIES = {(in_string, key): _State(None, in_string, key) for in_string in (False, True) for key in (False, True)}
"""The states that a token can begin in, but for what is open, what a key says so far and escapes."""


def _all(keys: _Keys | None) -> Iterator[bytes]:
    while keys is not None:
        yield keys.key
        keys = keys.before


def _run(state: _State, data: bytes, said: list[tuple[_Frame, bytes]] | None = None) -> tuple[_State, bool]:
    """The state after `data`, and whether it completes a key that is there; `said` gets the keys it completes."""
    top, in_string, key, text, pending = state
    twice = False
    for byte in data:
        if not in_string:
            if byte == _QUOTE:
                in_string, text, pending = True, b"", b""
            elif byte in b"{[":
                top = _Frame(byte == 0x7B, None, top, top.depth + 1 if top else 1)
                key = top.is_object
            elif byte in b"}]":
                top, key = top.outer if top else None, False
            elif byte == 0x2C:
                key = top is not None and top.is_object
            elif byte == 0x3A:
                key = False
        elif byte == _QUOTE and pending[-1:] != b"\\":
            in_string = False
            if key and top is not None:
                text += _half(pending[:6]) + pending[6:]
                twice = twice or text in _all(top.keys)
                if said is not None:
                    said.append((top, text))
                top = top._replace(keys=_Keys(text, top.keys))
            key, text, pending = False, b"", b""
        elif pending or byte == _BACKSLASH:
            text, pending = _escape(text, pending, byte)
            text = text if key else b""
        elif key:
            text += bytes((byte,))
    return _State(top, in_string, key, text, pending), twice


def _half(pending: bytes) -> bytes:
    """A first half of a character, which stays alone; an escape that is none."""
    return _utf8(int(pending[2:], 16)) if len(pending) == 6 else pending


def _utf8(code: int) -> bytes:
    return chr(code).encode("utf-8", "surrogatepass")


def _escape(text: bytes, pending: bytes, byte: int) -> tuple[bytes, bytes]:
    """Go on by a byte in an escape, or at the beginning of one."""
    first, rest = (pending[:6], pending[6:]) if len(pending) >= 6 else (b"", pending)
    if not rest:
        if byte == _BACKSLASH:
            return text, pending + b"\\"
        return text + _half(first) + bytes((byte,)), b""
    if len(rest) == 1:
        if byte == _U:
            return text, pending + b"u"
        return text + _half(first) + _ESCAPES.get(byte, bytes((byte,))), b""
    if byte == _BACKSLASH:  # no JSON, for others to see to
        return text + _half(first) + rest, b"\\"
    rest += bytes((byte,))
    if len(rest) < 6:
        return text, first + rest
    try:
        code = int(rest[2:], 16)
    except ValueError:  # no JSON either
        return text + _half(first) + rest, b""
    if first and 0xDC00 <= code < 0xE000:
        high = int(first[2:], 16)
        return text + _utf8(0x10000 + ((high - 0xD800) << 10) + (code - 0xDC00)), b""
    text += _half(first)
    return (text, rest) if 0xD800 <= code < 0xDC00 else (text + _utf8(code), b"")


class KeyIndex:
    """Which tokens of a vocabulary complete a key, by what the key says or how it ends."""

    def __init__(self, vocabulary: Vocabulary):
        self.tokens = vocabulary.tokens
        quoted = [(token, data) for token, data in enumerate(vocabulary.tokens) if b'"' in data]
        self.first: dict[tuple[bool, bool], dict[bytes, list[int]]] = {}
        """Tokens that complete a key of the innermost object, by what they add to it, for each way to begin."""
        self.others: dict[tuple[bool, bool], list[int]] = {}
        """Tokens that complete another key, or several."""
        for entry, state in _ENTRIES.items():
            first: dict[bytes, list[int]] = {}
            others: list[int] = []
            for token, data in quoted:
                said: list[tuple[_Frame, bytes]] = []
                _, twice = _run(state._replace(top=_objects(len(data) + 1)), data, said)
                if all(_is_fresh(frame) for frame, _ in said) and not twice:
                    continue
                frame, key = said[0]
                if frame.keys is _UNKNOWN and frame.depth == len(data) + 1 and not _leaves(state, data, frame.depth):
                    first.setdefault(key, []).append(token)
                    if len(said) > 1:
                        others.append(token)
                else:
                    others.append(token)
            self.first[entry], self.others[entry] = first, others
        self.quoted: dict[int, list[int]] = {}
        """Tokens with a quotation mark, by how they begin: no other completes a key."""
        for token, data in quoted:
            self.quoted.setdefault(data[0], []).append(token)
        self.several = [token for token, data in quoted if data.count(b'"') > 2]
        """Those that may complete a key which begins in them, out of a string."""

    @cached_property
    def plain(self) -> Mapping[bytes, list[int]]:
        """Tokens by their bytes, those that neither end a string nor escape in it."""
        found: dict[bytes, list[int]] = {}
        for token, data in enumerate(self.tokens):
            if data and _QUOTE not in data and _BACKSLASH not in data:
                found.setdefault(data, []).append(token)
        return found

    @cached_property
    def escaping(self) -> NDArray[np.int64]:
        """Tokens with a backslash, and those that leave a string and come to the next key."""
        return self._where(lambda data: _BACKSLASH in data or b"," in data.partition(b'"')[2])

    @cached_property
    def leaving(self) -> NDArray[np.int64]:
        """Tokens that may leave a string and come to the next key."""
        return self._where(lambda data: b"," in data.partition(b'"')[2])

    @cached_property
    def quoting(self) -> NDArray[np.int64]:
        """Tokens with a quotation mark."""
        return self._where(lambda data: _QUOTE in data)

    @cached_property
    def parting(self) -> NDArray[np.int64]:
        """Tokens with a comma."""
        return self._where(lambda data: b"," in data)

    @cached_property
    def blank(self) -> NDArray[np.int64]:
        """Tokens of white space."""
        return self._where(lambda data: bool(data) and not data.strip(b" \t\r\n"))

    def _where(self, holds: Callable[[bytes], bool]) -> NDArray[np.int64]:
        return np.array([token for token, data in enumerate(self.tokens) if holds(data)], dtype=np.int64)


def _objects(count: int) -> _Frame:
    """So many objects in each other, of which nothing is known."""
    frame = _Frame(True, _UNKNOWN, None, 1)
    for depth in range(2, count + 1):
        frame = _Frame(True, _UNKNOWN, frame, depth)
    return frame


def _is_fresh(frame: _Frame) -> bool:
    """Whether the object was opened by the token."""
    keys = frame.keys
    while keys is not None and keys is not _UNKNOWN:
        keys = keys.before
    return keys is None


def _leaves(state: _State, data: bytes, depth: int) -> bool:
    """Whether a token leaves the innermost object, or enters another, before it completes a key."""
    state = state._replace(top=_objects(depth))
    for byte in data:
        before = state
        state, _ = _run(state, bytes((byte,)))
        if before.in_string and not state.in_string and before.key:
            return False
        if state.top is None or state.top.depth != depth:
            return True
    return True


class Retraced(NamedTuple):
    """Where a token leaves the text: as far as it matters for which keys may come."""

    depth: int
    in_string: bool
    text: bytes
    pending: bytes
    before: bytes
    """What the token says up to its last comma."""


class UniqueKeys:
    """Follows one text. Whatever it is fed, forks share nothing that changes."""

    def __init__(self, index: KeyIndex):
        self._index = index
        self._past: list[_State] = [_State()]

    def advance(self, token: int) -> None:
        """The text goes on by a token; one without bytes changes nothing, and can be taken back like any other."""
        self._past.append(_run(self._past[-1], self._index.tokens[token])[0])

    def rollback(self, count: int) -> None:
        """Take back the last tokens."""
        assert 0 <= count < len(self._past), f"{count} of {len(self._past) - 1} tokens taken back"
        del self._past[len(self._past) - count :]

    def fork(self) -> "UniqueKeys":
        """Another one in the same place, with the same past."""
        other = UniqueKeys(self._index)
        other._past = self._past.copy()
        return other

    def forbidden(self) -> NDArray[np.int32]:
        """The tokens that would complete a key that its object has already, in order."""
        return np.array(sorted(set(self._forbidden())), dtype=np.int32)

    def _forbidden(self) -> Iterator[int]:
        state, index = self._past[-1], self._index
        if state.pending:
            yield from self._tried(index.several)
            if state.key:
                yield from self._in_escape(state)
            return
        entry = (state.in_string, state.key)
        first = index.first[entry]
        if state.top is not None and state.top.is_object and first:
            for key in _all(state.top.keys):
                if key.startswith(state.text):
                    yield from first.get(key[len(state.text) :], ())
        yield from self._tried(index.others[entry])

    def _in_escape(self, state: _State) -> Iterator[int]:
        """The tokens that complete the key which the text is in, in the midst of an escape."""
        keys = list(_all(state.top.keys)) if state.top else []
        text, pending = state.text, state.pending
        in_code = len(pending) % 6 > 1
        for byte, tokens in self._index.quoted.items():
            if byte == _QUOTE and pending[-1:] != b"\\":
                if text + _half(pending) in keys:
                    yield from tokens
                continue
            if in_code and byte not in _HEX:
                continue
            begun, left = _escape(text, pending, byte)
            if any(key.startswith(begun) for key in keys):
                digits = 6 - len(left) % 6 if len(left) % 6 > 1 else 0
                yield from self._tried(
                    [token for token in tokens if _HEX.issuperset(self._index.tokens[token][1 : 1 + digits])]
                )

    def _tried(self, tokens: list[int]) -> Iterator[int]:
        state = self._past[-1]
        return (token for token in tokens if _run(state, self._index.tokens[token])[1])

    # --- keys that run out ------------------------------------------------------------------------------------------

    def retracing(self, row: NDArray[np.int32]) -> dict[Retraced, list[int]]:
        """Of the tokens that `row` allows: those after which the text may be on its way to no other key than to one
        that is there, all of the innermost object's; together where they leave it in the same place.
        """
        found: dict[Retraced, list[int]] = {}
        for token in self._on_the_way(row):
            data = self._index.tokens[token]
            after, _ = _run(self._past[-1], data)
            if _retraces(after):
                assert after.top is not None, "it is in an object"
                before = data[: data.rfind(b",") + 1]
                place = Retraced(after.top.depth, after.in_string, after.text, after.pending, before)
                found.setdefault(place, []).append(token)
        return found

    def _on_the_way(self, row: NDArray[np.int32]) -> list[int]:
        """The tokens that `row` allows and `retracing` has to look at."""
        state, index = self._past[-1], self._index
        if state.top is None:
            return []
        if not state.in_string:
            return _allowed(row, index.quoting if state.key else index.parting)
        if not state.key:
            return _allowed(row, index.leaving)
        if state.pending:
            return read_row(row)
        tokens = _allowed(row, index.escaping)
        begins = {key[len(state.text) :] for key in _all(state.top.keys) if key.startswith(state.text)}
        for data in {rest[:count] for rest in begins for count in range(1, len(rest) + 1)}:
            tokens += _allowed(row, np.array(index.plain.get(data, ()), dtype=np.int64))
        return tokens

    def blank(self) -> NDArray[np.int64]:
        """The tokens that lead nowhere where the text is: the white space in front of a key."""
        return self._index.blank if self._past[-1].key and not self._past[-1].in_string else _NONE


_NONE = np.zeros(0, dtype=np.int64)


def _retraces(state: _State) -> bool:
    """Whether the text is in a key, or in front of one, that may be one of those which are there."""
    if not state.key or state.top is None:
        return False
    return any(not state.in_string or key.startswith(state.text) for key in _all(state.top.keys))


def _allowed(row: NDArray[np.int32], tokens: NDArray[np.int64]) -> list[int]:
    bits: list[int] = tokens[(row[tokens // WORD] >> (tokens % WORD)) & 1 != 0].tolist()
    return bits
