"""Tokens to text, one token at a time: whole characters only, and nothing of a stop string.

Everything here is a fold over single tokens, so how tokens are grouped into messages changes no text, and the scheduler
(`StopChecker`) and the client's side (`TextAssembler`), which are built from the same pieces, end a text at one place.
"""

from collections.abc import Callable, Iterable, Sequence

from rtk.schedule.messages import Finish

BROKEN = "\ufffd"
"""What decoders write for bytes that are no character, or not yet one."""

CONTEXT_TOKENS = 16
"""Prompt tokens that a decoder is given to start from."""

_WINDOW = 8
_LONGEST_PENDING = 16

Decode = Callable[[list[int]], str]


class IncrementalDecoder:
    """The text of new tokens, given as soon as it is decided.

    Broken characters at the end are held back until the next tokens decide them; whole ones before them are not. The
    text starts after the last whole character of the prompt: where a prompt ends inside a character that new tokens
    complete, the character belongs to the text. Costs two decodes of at most 24 tokens a token, whatever the length.
    """

    def __init__(
        self, decode: Decode, context: Sequence[int] = (), *, silent: frozenset[int] = frozenset(), marks: int = 1
    ) -> None:
        """`context`: the last prompt tokens. `silent`: tokens that have no text, such as special ones.

        `marks`: how many U+FFFD `decode` writes at most for the beginning of one character.
        """
        self._decode = decode
        self._silent = silent
        self._marks = marks
        self._prefix, self._pending = _split(decode, [token for token in context if token not in silent])
        """Tokens up to the last whole character whose text is out, and those after it."""
        self._prefix_text = decode(self._prefix)
        self._cut = self._pending_text()
        """Text of the prompt's tokens that stand in `pending`."""
        self._sent = len(self._cut)
        """Characters of the pending text that are out, or the prompt's."""
        self._held = 0
        self.passed = 0
        """Characters of what `push` gave last that its token has no part in: beginnings that came to nothing."""

    def push(self, token: int) -> str:
        """The text that `token` decides; often its own, sometimes none, sometimes that of tokens before it."""
        self.passed = 0
        if token in self._silent:
            return ""
        self._pending.append(token)
        text = self._pending_text()
        if not text.startswith(self._cut):
            self._sent -= _trailing(self._cut)  # the prompt's broken character became a whole one
            self._cut = ""
        ready = len(text) - min(_trailing(text), self._marks)
        new = text[self._sent : ready]
        self._sent = max(self._sent, ready)
        self.passed = min(self._held, len(new) - len(new.lstrip(BROKEN)))
        self._held = len(text) - self._sent
        if ready == len(text):
            self._settle(*self._whole_prefix(), held=0)
        elif len(self._pending) >= _LONGEST_PENDING:
            prefix = self._pending[-_WINDOW:]
            self._settle(prefix, self._decode(prefix), held=len(text) - ready)
        return new

    def finish(self) -> str:
        """What is left: nothing, or one U+FFFD for a character that was cut off."""
        return BROKEN if self._held else ""

    def _pending_text(self) -> str:
        text = self._decode(self._prefix + self._pending)
        if text.startswith(self._prefix_text):
            return text[len(self._prefix_text) :]
        return self._decode(self._pending)  # byte fallback voids a whole run of bytes that ends inside a character

    def _whole_prefix(self) -> tuple[list[int], str]:
        """The tokens that settled last, and more where those show no text of their own, and all of their text.

        A lone space shows none, since decoders take it off the front, and would tell nothing of how later tokens join.
        """
        tokens = (self._prefix + self._pending)[-_WINDOW - _LONGEST_PENDING :]
        for size in range(len(self._pending), len(tokens)):
            text = self._decode(tokens[-size:])
            if text and not text.startswith(BROKEN):
                return tokens[-size:], text
        return tokens, self._decode(tokens)

    def _settle(self, prefix: list[int], text: str, held: int) -> None:
        """Move on: later tokens are decoded behind `prefix`. The last `held` characters of its text are not out yet."""
        self._prefix, self._prefix_text = prefix, text[: len(text) - held]
        self._pending, self._sent, self._cut = [], 0, ""


def _trailing(text: str) -> int:
    return len(text) - len(text.rstrip(BROKEN))


def _split(decode: Decode, context: list[int]) -> tuple[list[int], list[int]]:
    """The end of `context` as some tokens that are whole characters, and at most three that begin the next one."""
    for end in range(len(context), max(-1, len(context) - 4), -1):
        first = max(0, end - _WINDOW)
        for start in range(first, min(first + 4, max(end, 1))):
            text = decode(context[start:end])
            if not text.startswith(BROKEN) and not text.endswith(BROKEN):
                return context[start:end], context[end:]
    return [], context[-_WINDOW:]


class StopScanner:
    """Passes text on up to a stop string, holding back what could be the beginning of one.

    The match that begins first wins, at one place the string named first. A match counts only where a token of index
    `min_new_tokens` or later completes it. `push` is called once for every token, also when it decided no text.
    """

    def __init__(self, stops: Sequence[str], min_new_tokens: int = 0, *, keep: bool = False) -> None:
        """`keep`: the text ends with the stop string, or the stop token, and not before it."""
        self._stops = stops
        self._uncounted = min_new_tokens
        self.keep = keep
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """The text that can be shown now. O(longest stop string + text) for each stop string."""
        if self.matched is not None:
            return ""
        text, old = self._held + text, len(self._held)
        if self._uncounted:
            self._uncounted -= 1
        elif (found := self._find(text, old)) is not None:
            at, self.matched = found
            self._held = ""
            return text[: at + len(self.matched) * self.keep]
        keep = self._undecided(text)
        self._held = text[keep:]
        return text[:keep]

    def finish(self) -> str:
        """What was held back and turned out to be no stop string."""
        return self._held

    def _find(self, text: str, old: int) -> tuple[int, str] | None:
        """Where the winning match begins among those that end behind the first `old` characters."""
        places = ((text.find(stop, max(0, old - len(stop) + 1)), stop) for stop in self._stops)
        return min((place for place in places if place[0] >= 0), key=lambda place: place[0], default=None)

    def _undecided(self, text: str) -> int:
        """Where the longest ending of `text` begins that is a proper beginning of a stop string."""
        return min((overlap(text, stop) for stop in self._stops), default=len(text))


def overlap(text: str, stop: str) -> int:
    """Where the longest ending of `text` begins that is a proper beginning of `stop`."""
    at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while at >= 0:
        if stop.startswith(text[at:]):
            return at
        at = text.find(stop[0], at + 1)
    return len(text)


class TextAssembler:
    """The text of one request, as its client sees it."""

    def __init__(self, decoder: IncrementalDecoder, scanner: StopScanner) -> None:
        self._decoder = decoder
        self._scanner = scanner
        self._length = 0
        self.offsets: tuple[int, ...] = ()
        """Of the tokens that were pushed last: how many characters come before each, those of a stop string that is cut
        off among them."""

    def push(self, tokens: Iterable[int], finish: Finish | None = None) -> str:
        """Text of the next tokens; with `finish`, the last of it. A stop token that ended the text has none."""
        text, offsets = "", []
        last = None if finish is None or self._scanner.keep else finish.matched
        tokens = list(tokens)
        for i, token in enumerate(tokens, 1):
            if token == last and i == len(tokens):
                offsets.append(self._length)
                break
            new = self._decoder.push(token)
            offsets.append(self._length + self._decoder.passed)
            self._length += len(new)
            text += self._scanner.push(new)
        if finish is not None and self._scanner.matched is None:
            text += self._scanner.finish() + self._decoder.finish()
        self.offsets = tuple(offsets)
        return text


class StopChecker:
    """Tells the scheduler which token completes a stop string."""

    def __init__(self, decoder: IncrementalDecoder, scanner: StopScanner) -> None:
        self._decoder = decoder
        self._scanner = scanner

    def push(self, token: int) -> str | None:
        """The stop string that `token` completes."""
        self._scanner.push(self._decoder.push(token))
        return self._scanner.matched
