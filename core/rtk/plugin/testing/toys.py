"""The smallest plugins of the kinds that have no built-in one yet: to read, to start from, and to plant faults in."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rtk.plugin.grammar import GrammarBackend, Judgement, Matcher, Spec, Vocabulary, write_row
from rtk.plugin.info import Options
from rtk.plugin.observer import Observer, RequestReport, StepReport
from rtk.plugin.storage import Storage


class Choices(GrammarBackend):
    """An answer is one of a few texts. Looks at the whole vocabulary for each token: a toy, for small ones."""

    spec_kinds = frozenset({"choice"})

    def __init__(self, options: Options) -> None:
        pass

    def judge(self, spec: Spec) -> Judgement:
        try:
            texts = json.loads(spec.text)
        except (ValueError, RecursionError):
            return Judgement.refused("the choices are no JSON")
        if not (isinstance(texts, list) and texts and all(map(_is_text, texts))):
            return Judgement.refused("the choices are no array of texts, of one at least")
        return Judgement.exact()

    def compile(self, spec: Spec, vocabulary: Vocabulary) -> "ChoiceMatcher":
        return ChoiceMatcher(tuple(text.encode() for text in json.loads(spec.text)), vocabulary)

    def fill_batch(self, matchers: Sequence[Matcher], mask: NDArray[np.int32], rows: Sequence[int]) -> None:
        for matcher, row in zip(matchers, rows, strict=True):
            assert isinstance(matcher, ChoiceMatcher)
            write_row(mask[row], matcher.allowed())


def _is_text(value: object) -> bool:
    """JSON can escape half a character, which no answer can hold."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


class ChoiceMatcher(Matcher):
    """The tokens so far; what is left of the texts follows from them."""

    max_rollback = 2**31

    def __init__(self, texts: tuple[bytes, ...], vocabulary: Vocabulary, past: Sequence[int] = ()) -> None:
        self.texts = texts
        self.vocabulary = vocabulary
        self.past = list(past)

    def left(self) -> set[bytes]:
        """What may follow; nothing after an end."""
        if self.past and self.past[-1] in self.vocabulary.ends:
            return set()
        said = b"".join(self.vocabulary.tokens[token] for token in self.past)
        return {text[len(said) :] for text in self.texts if text.startswith(said)}

    def fits(self, token: int, left: set[bytes]) -> bool:
        """Whether a token may come next where this is left."""
        data = self.vocabulary.tokens[token]
        return b"" in left if token in self.vocabulary.ends else any(data and text.startswith(data) for text in left)

    def allowed(self) -> list[int]:
        """The tokens that may come next. O(vocabulary)."""
        left = self.left()
        return [token for token in range(len(self.vocabulary.tokens)) if self.fits(token, left)]

    def accept(self, token: int) -> bool:
        fits = self.fits(token, self.left())
        if fits:
            self.past.append(token)
        return fits

    def rollback(self, count: int) -> None:
        del self.past[len(self.past) - count :]

    def fork(self) -> "ChoiceMatcher":
        return type(self)(self.texts, self.vocabulary, self.past)

    def forced(self) -> bytes:
        left = self.left()
        first, last = min(left, default=b""), max(left, default=b"")
        same = [one == other for one, other in zip(first, last, strict=False)]
        return first[: [*same, False].index(False)]


class Memory(Storage):
    """Keeps pages in this process, as many bytes as there is room for."""

    room = 1 << 20

    def __init__(self, options: Options) -> None:
        self.pages: dict[str, bytes] = {}

    def exists(self, key: str) -> bool:
        return key in self.pages

    def get(self, key: str) -> bytes | None:
        return self.pages.get(key)

    def put(self, key: str, page: memoryview) -> bool:
        if sum(map(len, self.pages.values())) + len(page) > self.room:
            return key in self.pages
        self.pages[key] = bytes(page)
        return True


class RecorderOptions(Options):
    """Where a `Recorder` writes."""

    path: Path = Path("rtk-reports.txt")


class Recorder(Observer):
    """Writes every report down, a line for each."""

    def __init__(self, options: RecorderOptions) -> None:
        self._out = options.path.open("a", encoding="utf-8")

    def on_step(self, report: StepReport) -> None:
        self._out.write(f"{report!r}\n")

    def on_request(self, report: RequestReport) -> None:
        self._out.write(f"{report!r}\n")

    def close(self) -> None:
        self._out.write("closed\n")
        self._out.close()
