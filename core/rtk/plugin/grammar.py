"""The grammar contract: a backend compiles what an answer must look like, and says which tokens may come next.

The host keeps everything else: it normalises what clients send, asks `judge`, compiles in workers, keeps what was
compiled, owns the mask and samples.
"""

import io
import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

SPEC_KINDS: dict[str, str] = {
    "choice": "a JSON array of distinct texts, of which the answer is one; one may be empty, the array not",
    "ebnf": "a grammar in extended Backus-Naur form; its start is `root`",
    "json_schema": "a JSON Schema, of draft 2020-12, that the answer, a JSON text, is valid under",
    "regex": "a regular expression that the whole answer matches",
    "structural_tag": "a JSON object with `triggers` and `tags`: free text until a trigger is written, then a tag that "
    "begins so: its `begin`, a JSON text that is valid under its `schema`, its `end`. With a `run`, of `begin`, "
    "`between` and `end`, several tags may stand where one may, with these texts around and between them. With "
    "`openers` in place of triggers the answer is tags, or a text that does not begin with one of them, be it behind "
    "white space; with `otherwise`, tags or a JSON text that is valid under that; with none of these, tags. Without a "
    "run that is one tag. If `once` is true, an answer has one tag at most",
}
"""What may be asked for, and what the text of each is."""

WORD = 32
"""Tokens of one word of the mask."""


WHITESPACE = 8
"""Characters of white space between two tokens of a JSON text, at most, where nothing else is asked for."""


class Spec(NamedTuple):
    """What an answer must look like: a kind of `SPEC_KINDS`, and its text as the host normalised it."""

    kind: str
    text: str
    whitespace: int = WHITESPACE
    """Of JSON texts: between two of its tokens there are at most so many spaces, tabs and line ends, around it none."""


class Reason(NamedTuple):
    """Why a spec is narrowed or refused. A client gets to read it."""

    problem: str
    """One line, which names the keyword or construct."""
    at: str = ""
    """Of a JSON Schema: the JSON pointer of the keyword in the normalised text, such as `#/properties/a/pattern`."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a backend makes of a spec, before anything is compiled."""

    verdict: Literal["exact", "narrowed", "refused"]
    reasons: tuple[Reason, ...] = ()
    """None for `exact`."""

    @classmethod
    def exact(cls) -> "Judgement":
        """Just the texts that the spec describes can be generated."""
        return cls("exact")

    @classmethod
    def narrowed(cls, *reasons: str | Reason) -> "Judgement":
        """Whatever is generated is as the spec says, but not everything that it allows can be."""
        return cls("narrowed", tuple(r if isinstance(r, Reason) else Reason(r) for r in reasons))

    @classmethod
    def refused(cls, *reasons: str | Reason) -> "Judgement":
        """The spec is malformed, or more than the backend can promise to keep."""
        return cls("refused", tuple(r if isinstance(r, Reason) else Reason(r) for r in reasons))


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Vocabulary:
    """The tokens of a model. There is one such object for each tokenizer: what is made of it may be kept with it."""

    tokens: Sequence[bytes]
    """The bytes of each token id; none for special tokens, which no grammar allows but for those of `ends`."""
    ends: frozenset[int]
    """The tokens that end an answer."""

    @property
    def words(self) -> int:
        """Words of a row of the mask."""
        return -(-len(self.tokens) // WORD)


class Matcher(ABC):
    """Where one answer stands in its grammar. Used from one thread at a time.

    It can be pickled: grammars are compiled in processes that can be killed, and matchers come back from there. The
    vocabulary is left out (see `packed`). One that is cheap to make may pickle as the recipe that makes it again.
    """

    max_rollback: int
    """How many tokens `rollback` can take back at least; 0 for none."""
    size: int = 0
    """Bytes of memory that it shares with its forks, where that is more than it has packed."""

    @abstractmethod
    def accept(self, token: int) -> bool:
        """Go on by a token of the vocabulary. False, and nothing changed, where the grammar does not allow it here.

        After an end token nothing is allowed any more. An end is only an end, whatever bytes it has.
        """

    @abstractmethod
    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens that were accepted, at most `max_rollback`; never more than there are."""

    @abstractmethod
    def fork(self) -> "Matcher":
        """Another matcher in the same place, with the same past. What happens to one does not touch the other."""

    def forced(self) -> bytes:
        """Bytes that every allowed answer goes on with from here; may be fewer than there are, or none."""
        return b""


class GrammarBackend(ABC):
    """Compiles grammars. Built once with its options."""

    spec_kinds: ClassVar[frozenset[str]]
    """Of `SPEC_KINDS`: what it understands. It is asked about no other."""
    library: ClassVar[str] = ""
    """The package that does the work, where that is somebody else's: operators are told which version is there."""

    @abstractmethod
    def judge(self, spec: Spec) -> Judgement:
        """What this backend makes of `spec`, malformed ones included. Pure, and quick: called for each new spec.

        Imports no library that compiles: a configuration and a client's request are judged without one.
        """

    @abstractmethod
    def compile(self, spec: Spec, vocabulary: Vocabulary) -> Matcher:
        """A new matcher, at the start of an answer, for a spec that was not refused.

        Called in a worker process, which is killed where this takes too long or too much memory. The host keeps what
        comes back for all requests with this spec: each gets a fork. Safe in several threads at once. Raises
        `ValueError` with one line for a spec that turns out to be more than the backend can do.
        """

    @abstractmethod
    def fill_batch(self, matchers: Sequence[Matcher], mask: NDArray[np.int32], rows: Sequence[int]) -> None:
        """Write which tokens each matcher allows next into its row of `mask`, and touch no other row.

        `mask` is [B, vocabulary.words]: bit i of word w is token WORD * w + i, and set where that is allowed; bits that
        stand for no token are 0. A token is allowed iff some answer that the grammar allows goes on with all its bytes,
        an end token iff the answer may end here. So a row of zeros is a dead end. Called once for each token of each
        request, never for a matcher that has accepted an end.
        """


def write_row(row: NDArray[np.int32], allowed: Iterable[int]) -> None:
    """Make a row of the mask allow these tokens, and no others."""
    bits = np.zeros(len(row) * WORD, dtype=np.uint8)
    bits[list(allowed)] = 1
    row[:] = np.packbits(bits, bitorder="little").view("<i4")


def read_row(row: NDArray[np.int32]) -> list[int]:
    """The tokens that a row of the mask allows."""
    found: list[int] = np.flatnonzero(np.unpackbits(row.astype("<i4").view(np.uint8), bitorder="little")).tolist()
    return found


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: object) -> str | None:
        return "vocabulary" if isinstance(value, Vocabulary) else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, vocabulary: Vocabulary) -> None:
        super().__init__(io.BytesIO(data))
        self._vocabulary = vocabulary

    def persistent_load(self, pid: object) -> Vocabulary:
        return self._vocabulary


def packed(matcher: Matcher) -> bytes:
    """A matcher as bytes, without its vocabulary."""
    out = io.BytesIO()
    _Pickler(out, protocol=pickle.HIGHEST_PROTOCOL).dump(matcher)
    return out.getvalue()


def unpacked(data: bytes, vocabulary: Vocabulary) -> Matcher:
    """What `packed` packed, over this vocabulary. Only for bytes that came from a process of one's own."""
    matcher = _Unpickler(data, vocabulary).load()
    assert isinstance(matcher, Matcher), f"{type(matcher).__name__} is no Matcher"
    return matcher
